package intake

import (
	"fmt"
	"testing"

	"inspect/app/github"
	"inspect/storage"
)

func TestReplyWhereNothingCanBeWritten(t *testing.T) {
	w := setup(t, nil)
	w.gh.fail["CreateComment"] = github.ErrGone
	o := labeled()
	at(o, "issue")["state"] = "closed"
	if d := w.deliver("issues", body(o)); d.Status != "done" || w.gh.count("CreateComment") != 1 {
		t.Errorf("delivery %s, calls %q", d.Status, w.gh.calls)
	}
}

func TestCrashBetweenSteps(t *testing.T) {
	w := setup(t, nil)
	// The database goes away at one statement after the other, as if the
	// process had died there; then the delivery is worked on again.
	for _, table := range []string{"sessions", "environments", "repositories", "installations"} {
		t.Run(table, func(t *testing.T) {
			w := w.fresh(t)
			guid := w.store("issues", body(labeled()))
			trap(t, w.db, table)
			if err := w.in.Deliver(t.Context(), guid); err == nil {
				t.Fatal("no error")
			}
			if i := w.intent(labelIntent()); i.Outcome != outcomePending || len(w.sessions()) != 0 {
				t.Errorf("intent %s, %d sessions", i.Outcome, len(w.sessions()))
			}
			untrap(t, w.db, table)
			if err := w.in.Deliver(t.Context(), guid); err != nil {
				t.Fatal(err)
			}
			w.one()
		})
	}
}

// trap makes every insert into a table fail.
func trap(t *testing.T, db *storage.DB, table string) {
	t.Helper()
	_, err := db.SQL().Exec(fmt.Sprintf(`
		CREATE OR REPLACE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trapped'; END $$;
		CREATE TRIGGER trap BEFORE INSERT OR UPDATE ON %s FOR EACH ROW EXECUTE FUNCTION trap()`, table))
	if err != nil {
		t.Fatal(err)
	}
}

func untrap(t *testing.T, db *storage.DB, table string) {
	t.Helper()
	if _, err := db.SQL().Exec("DROP TRIGGER trap ON " + table); err != nil {
		t.Fatal(err)
	}
}

func TestReplyOnce(t *testing.T) {
	w := setup(t, nil)
	broken := func(w *world) string {
		w.gh.files[".inspect.yml"] = "version: 2\n"
		return w.store("issues", body(labeled()))
	}
	t.Run("answer lost", func(t *testing.T) {
		w := w.fresh(t)
		guid := broken(w)
		w.gh.lost["CreateComment"] = true
		if err := w.in.Deliver(t.Context(), guid); err == nil {
			t.Fatal("no error")
		}
		w.gh.lost["CreateComment"] = false
		if err := w.in.Deliver(t.Context(), guid); err != nil {
			t.Fatal(err)
		}
		w.oneReply()
	})
	t.Run("died before it was recorded", func(t *testing.T) {
		w := w.fresh(t)
		guid := broken(w)
		if err := w.in.Deliver(t.Context(), guid); err != nil {
			t.Fatal(err)
		}
		if _, err := w.db.SQL().Exec("UPDATE effects SET state = 'started'; UPDATE deliveries SET status = 'pending'"); err != nil {
			t.Fatal(err)
		}
		if err := w.in.Deliver(t.Context(), guid); err != nil {
			t.Fatal(err)
		}
		w.oneReply()
	})
	t.Run("not written the first time", func(t *testing.T) {
		w := w.fresh(t)
		guid := broken(w)
		w.gh.fail["CreateComment"] = github.ErrUnavailable
		if err := w.in.Deliver(t.Context(), guid); err == nil {
			t.Fatal("no error")
		}
		delete(w.gh.fail, "CreateComment")
		if err := w.in.Deliver(t.Context(), guid); err != nil {
			t.Fatal(err)
		}
		w.oneReply()
		if n := w.gh.count("Permission"); n != 1 {
			t.Errorf("asked %d times for the permission of a wish that was judged", n)
		}
	})
	t.Run("told by two deliveries", func(t *testing.T) {
		w := w.fresh(t)
		if err := w.in.Deliver(t.Context(), broken(w)); err != nil {
			t.Fatal(err)
		}
		if d := w.deliver("issues", body(labeled())); d.Status != "done" {
			t.Errorf("delivery %s: %s", d.Status, d.Note)
		}
		w.oneReply()
	})
}
