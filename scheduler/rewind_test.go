package scheduler

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/storage"
)

// worked is a session whose first attempt made three turns and failed.
func (w *world) worked(s *Scheduler, edit ...func(*NewSession)) storage.Session {
	w.t.Helper()
	sess, r := w.running(s, append(edit, keep(2*time.Hour))...)
	w.phase(s, r, "restoring", "working")
	for turn, content := range []string{"one", "two", "three"} {
		w.bundle(s, r, turn+1, content)
	}
	w.outcome(s, r, wire.OutcomeFailed)
	w.referenced(s, sess.ID)
	w.look(s, sess.ID)
	return w.get(sess.ID)
}

func (w *world) rewind(p Point) (storage.Session, error) {
	var row storage.Session
	err := w.db.InTx(context.Background(), func(tx *storage.Tx) (err error) {
		row, err = Rewind(context.Background(), tx, p, "monalisa", w.clock.Now())
		return err
	})
	return row, err
}

func (w *world) fork(p Point, h spec.Harness) (storage.Session, error) {
	var row storage.Session
	err := w.db.InTx(context.Background(), func(tx *storage.Tx) (err error) {
		row, err = Fork(context.Background(), tx, p, h, "monalisa", w.clock.Now())
		return err
	})
	return row, err
}

// begun brings a queued session to its attempt and returns its spec.
func (w *world) begun(s *Scheduler, id string) (wire.Spec, Runner) {
	w.t.Helper()
	w.nodeAlive(s)
	w.look(s, id)
	w.look(s, id)
	r := w.runner(s, id)
	sp, err := s.Spec(context.Background(), r)
	if err != nil {
		w.t.Fatal(err)
	}
	return sp, r
}

func (w *world) read(s *Scheduler, r Runner, sum string) string {
	w.t.Helper()
	rc, err := s.Bundle(context.Background(), r, sum)
	if err != nil {
		w.t.Fatal(err)
	}
	defer rc.Close()
	body, err := io.ReadAll(rc)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(body)
}

func TestRewind(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess := w.worked(s)
	w.want(sess.ID, Failed, "")
	row, err := w.rewind(Point{Session: sess.ID, Turn: 2})
	if err != nil || row.State != Queued || row.FinishedAt.Valid || row.ReportedAt.Valid {
		t.Fatalf("%+v (%v)", row, err)
	}
	sp, r := w.begun(s, sess.ID)
	if sp.Generation != 2 || sp.Resume == nil || sp.Resume.Generation != 1 || sp.Resume.Turn != 2 || sp.Fork != nil || w.read(s, r, sp.Resume.SHA256) != "two" {
		t.Fatalf("goes on from %+v, %+v", sp.Resume, sp.Fork)
	}
	// It is lost before its first turn was over: the point stays.
	w.engine.kill(sess.ID)
	w.clock.Advance(2 * time.Minute)
	if sp, r = w.begun(s, sess.ID); sp.Generation != 3 || sp.Resume == nil || sp.Resume.Turn != 2 || sp.Resume.Generation != 1 {
		t.Fatalf("goes on from %+v", sp.Resume)
	}
	w.bundle(s, r, 1, "anew")
	w.engine.kill(sess.ID)
	w.clock.Advance(2 * time.Minute)
	// What it did itself counts then.
	if sp, r = w.begun(s, sess.ID); sp.Generation != 4 || sp.Resume == nil || sp.Resume.Generation != 3 || w.read(s, r, sp.Resume.SHA256) != "anew" {
		t.Fatalf("goes on from %+v", sp.Resume)
	}
	w.verified(s, r)
	w.look(s, sess.ID)
	w.look(s, sess.ID)
	w.want(sess.ID, Delivered, "")
	if w.effects.lastReport(sess.ID) != Delivered {
		t.Error("its second end was not told")
	}
	if err := VerifyEvents(ctx, w.db.Q(), sess.ID, "", 0); err != nil {
		t.Errorf("its record: %v", err)
	}
	if _, err := w.rewind(Point{Session: sess.ID, Turn: 1}); !IsPointError(err) || !strings.Contains(err.Error(), "fork it instead") {
		t.Errorf("rewinding what was delivered: %v", err)
	}
}

func TestRewindIsRefusedInWords(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	if _, err := w.rewind(Point{Session: "nosuchone2"}); !IsPointError(err) {
		t.Errorf("no such session: %v", err)
	}
	empty, r := w.running(s)
	if _, err := w.rewind(Point{Session: empty.ID, Turn: 1}); !IsPointError(err) || !strings.Contains(err.Error(), "has not ended: it is placing; stop it first") {
		t.Errorf("at work: %v", err)
	}
	w.outcome(s, r, wire.OutcomeFailed)
	if _, err := w.rewind(Point{Session: empty.ID, Turn: 1}); !IsPointError(err) || !strings.Contains(err.Error(), "nothing is kept") {
		t.Errorf("without a turn: %v", err)
	}
	w.nodeAlive(s)
	sess := w.worked(s)
	for words, p := range map[string]Point{
		"has no turn 4: the last that is kept is turn 3 of attempt 1":                                              {Session: sess.ID, Turn: 4},
		"nothing is kept of an attempt 2 of session " + sess.ID + ": the last that is kept is turn 3 of attempt 1": {Session: sess.ID, Generation: 2, Turn: 1},
		"nothing is kept of an attempt 9":                                                                          {Session: sess.ID, Generation: 9},
		"has no turn 4294967298":                                                                                   {Session: sess.ID, Turn: 1<<32 + 2}, // not turn 2
		"has no turn 4294967296":                                                                                   {Session: sess.ID, Turn: 1 << 32},   // not the last
		"has no turn -1":                                                                                           {Session: sess.ID, Turn: -1},
		"of an attempt 4294967297 of":                                                                              {Session: sess.ID, Generation: 1<<32 + 1, Turn: 1},
		"of an attempt 4294967296 of":                                                                              {Session: sess.ID, Generation: 1 << 32},
		"of an attempt -4294967295 of":                                                                             {Session: sess.ID, Generation: 1 - 1<<32, Turn: 1},
	} {
		if _, err := w.rewind(p); !IsPointError(err) || !strings.Contains(err.Error(), words) {
			t.Errorf("%+v: %v, want %s", p, err, words)
		}
	}
	w.sql("UPDATE sessions SET spent = budget WHERE id = $1", sess.ID)
	if _, err := w.rewind(Point{Session: sess.ID, Turn: 1}); !IsPointError(err) || !strings.Contains(err.Error(), "used its budget of $5.00 up") {
		t.Errorf("without money: %v", err)
	}
	w.sql("UPDATE sessions SET spent = 0")
	w.nodeAlive(s)
	other := w.create(s, func(n *NewSession) { n.IssueNumber = int(sess.IssueNumber) })
	if _, err := w.rewind(Point{Session: sess.ID, Turn: 1}); !IsPointError(err) || !strings.Contains(err.Error(), "session "+other.ID+" is at work on the same issue") {
		t.Errorf("beside another: %v", err)
	}
	w.sql("UPDATE sessions SET state = 'stopped', finished_at = now() WHERE id = $1", other.ID)
	w.sql("INSERT INTO events_removed (session_id, count, head, points, keep, removed_at) VALUES ($1, 1, '', '[]', 1, now())", sess.ID)
	if _, err := w.rewind(Point{Session: sess.ID, Turn: 1}); !IsPointError(err) || !strings.Contains(err.Error(), "record") {
		t.Errorf("without its record: %v", err)
	}
	w.sql("DELETE FROM events_removed")
	if _, err := w.rewind(Point{Session: sess.ID}); err != nil {
		t.Errorf("to its last turn: %v", err)
	}
}

// says has the node advertise whether its store forks and the clones for work
// there are.
func (w *world) says(s *Scheduler, forks bool, clones ...string) {
	w.t.Helper()
	st := wire.NodeState{Version: 1, Store: "any", Forks: forks, Work: []int64{}}
	for _, id := range clones {
		st.Clones = append(st.Clones, wire.Clone{Session: id, Generation: 1, Purpose: wire.PurposeWork})
	}
	if err := s.NodeState(context.Background(), "n1", st); err != nil {
		w.t.Fatal(err)
	}
}

func TestForkFromTheCloneOrTheBundle(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.o.Limits.Total = 9
	s := w.scheduler()
	src := w.worked(s)
	second := spec.Harness{Kind: spec.HarnessCommand, Command: "another", Label: "another"}
	for name, c := range map[string]struct {
		forks  bool
		clones []string
		clone  bool
	}{
		"the clone is there":         {true, []string{src.ID}, true},
		"a store that copies":        {false, []string{src.ID}, false},
		"the clone is gone":          {true, nil, false},
		"another's clone is there":   {true, []string{"abcdefgh22"}, false},
		"a node that never was told": {false, nil, false},
	} {
		w.says(s, c.forks, c.clones...)
		sess, err := w.fork(Point{Session: src.ID, Turn: 2}, second)
		if err != nil {
			t.Fatal(name, err)
		}
		if sess.ID == src.ID || sess.State != Queued || sess.BaseSha != src.BaseSha || sess.Budget == 0 || sess.Prompt != src.Prompt {
			t.Errorf("%s: %+v", name, sess)
		}
		w.look(s, sess.ID)
		w.look(s, sess.ID)
		r := w.runner(s, sess.ID)
		sp, err := s.Spec(ctx, r)
		if err != nil {
			t.Fatal(name, err)
		}
		g, err := wire.OpenGrant(publicKey(w), sp.WorkGrant, "n1", wire.VerbRestore, 1234, w.clock.Now())
		if err != nil {
			t.Fatal(name, err)
		}
		v, err := wire.OpenGrant(publicKey(w), sp.VerifyGrant, "n1", wire.VerbRestore, 1234, w.clock.Now())
		if err != nil || v.Fork != nil {
			t.Errorf("%s: verification is of %+v (%v)", name, v.Fork, err)
		}
		want := wire.Fork{Session: src.ID, Generation: 1, Turn: 2}
		if c.clone {
			if sp.Fork == nil || *sp.Fork != want || g.Fork == nil || *g.Fork != want || sp.Resume != nil {
				t.Errorf("%s: goes on from %+v, granted %+v, %+v", name, sp.Fork, g.Fork, sp.Resume)
			}
		} else if sp.Fork != nil || g.Fork != nil || sp.Resume == nil || w.read(s, r, sp.Resume.SHA256) != "two" {
			t.Errorf("%s: goes on from %+v, granted %+v, %+v", name, sp.Fork, g.Fork, sp.Resume)
		}
		if sp.Harness.Label != "another" {
			t.Errorf("%s: works with %+v", name, sp.Harness)
		}
		if err := VerifyEvents(ctx, w.db.Q(), sess.ID, "", 0); err != nil {
			t.Errorf("%s: its record: %v", name, err)
		}
		if !c.clone {
			w.sql("UPDATE sessions SET state = 'stopped', finished_at = now() WHERE id = $1", sess.ID)
			continue
		}
		// A clone that could not be made of it is not tried again.
		w.outcome(s, r, wire.OutcomeInfrastructure)
		w.says(s, c.forks, c.clones...)
		if sp, r := w.begun(s, sess.ID); sp.Fork != nil || sp.Resume == nil || w.read(s, r, sp.Resume.SHA256) != "two" {
			t.Errorf("%s: the second attempt goes on from %+v, %+v", name, sp.Fork, sp.Resume)
		}
	}
	if got := w.get(src.ID); got.State != Failed || got.Version != src.Version {
		t.Errorf("the first session is %s", got.State)
	}
	if _, err := w.fork(Point{Session: src.ID}, spec.Harness{Kind: spec.HarnessCodex}); !IsPointError(err) || !strings.Contains(err.Error(), "no model") {
		t.Errorf("another harness without a model: %v", err)
	}
	// Of a fork no turn is left that it did not make.
	sess, err := w.fork(Point{Session: src.ID}, spec.Harness{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.fork(Point{Session: sess.ID}, spec.Harness{}); !IsPointError(err) {
		t.Errorf("a fork of what has no turn: %v", err)
	}
}

func TestRewindHoldsTheClone(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sess := w.worked(s)
	w.clock.Advance(2*time.Hour - 2*time.Minute)
	w.says(s, true, sess.ID)
	if _, err := w.rewind(Point{Session: sess.ID, Turn: 3}); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(10 * time.Minute) // beyond keep_failed
	w.says(s, true, sess.ID)
	w.referenced(s, sess.ID)
	if w.discards() != 0 {
		t.Fatal("the clone is gone before it could be used")
	}
	w.look(s, sess.ID)
	w.look(s, sess.ID)
	sp, err := s.Spec(context.Background(), w.runner(s, sess.ID))
	if err != nil || sp.Fork == nil || *sp.Fork != (wire.Fork{Session: sess.ID, Generation: 1, Turn: 3}) || sp.Generation != 2 {
		t.Errorf("goes on from %+v, %+v (%v)", sp.Fork, sp.Resume, err)
	}
}

// turn has the runner say that a turn is over in which nothing was committed.
func (w *world) turn(s *Scheduler, r Runner, number int64, turn int) {
	w.t.Helper()
	reply, err := s.AppendEvents(context.Background(), r, []wire.Event{{
		Number: number, At: w.clock.Now(), Kind: wire.EventTurn, Data: encode(wire.Turn{Turn: turn, Tip: strings.Repeat("a", 40)}),
	}})
	if err != nil || reply.Acked != number {
		w.t.Fatalf("%+v %v", reply, err)
	}
}

// A turn in which nothing was committed can be returned to: by the clone's own
// state where that is kept, else by the work before it.
func TestTurnsWithoutACommit(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s, keep(2*time.Hour))
	w.turn(s, r, 1, 1) // nothing is there yet
	w.bundle(s, r, 2, "two")
	w.turn(s, r, 2, 3)
	w.turn(s, r, 3, 3) // said twice, as after a restart
	w.bundle(s, r, 4, "four")
	w.outcome(s, r, wire.OutcomeFailed)
	w.referenced(s, sess.ID)
	w.look(s, sess.ID)
	resumed := func(turn int) string {
		t.Helper()
		if _, err := w.rewind(Point{Session: sess.ID, Generation: 1, Turn: turn}); err != nil {
			t.Fatal(err)
		}
		sp, r := w.begun(s, sess.ID)
		content := ""
		if sp.Resume != nil {
			content = w.read(s, r, sp.Resume.SHA256)
		}
		w.outcome(s, r, wire.OutcomeFailed)
		w.look(s, sess.ID)
		w.want(sess.ID, Failed, "")
		return content
	}
	for turn, want := range []string{1: "", 2: "two", 3: "two", 4: "four"} {
		if turn == 0 {
			continue
		}
		if got := resumed(turn); got != want {
			t.Errorf("turn %d goes on from %q, want %q", turn, got, want)
		}
	}
	// The clone is there: what was not committed is in it.
	w.says(s, true, sess.ID)
	if _, err := w.rewind(Point{Session: sess.ID, Generation: 1, Turn: 3}); err != nil {
		t.Fatal(err)
	}
	w.look(s, sess.ID)
	w.look(s, sess.ID)
	r = w.runner(s, sess.ID)
	sp, err := s.Spec(context.Background(), r)
	if err != nil || sp.Fork == nil || sp.Fork.Turn != 3 || sp.Resume != nil {
		t.Errorf("%+v, %+v, %v", sp.Fork, sp.Resume, err)
	}
	// An attempt that began with something has that before its first commit.
	w.turn(s, r, 1, 1)
	w.outcome(s, r, wire.OutcomeFailed)
	w.look(s, sess.ID)
	b, err := w.db.Q().BundleOfTurn(context.Background(), storage.BundleOfTurnParams{SessionID: sess.ID, Generation: int32(sp.Generation), Turn: 1})
	before, berr := w.db.Q().GetBundleAt(context.Background(), storage.GetBundleAtParams{SessionID: sess.ID, Generation: 1, Turn: 2})
	if err != nil || berr != nil || b.Sha256 != before.Sha256 {
		t.Errorf("%+v, %v; %+v, %v", b, err, before, berr)
	}
	// A fork begins where its session did where nothing was committed.
	for turn, want := range map[int]string{1: "", 3: "two"} {
		f, err := w.fork(Point{Session: sess.ID, Generation: 1, Turn: turn}, spec.Harness{})
		if err != nil {
			t.Fatal(err)
		}
		w.says(s, false, sess.ID)
		w.look(s, f.ID)
		w.look(s, f.ID)
		r := w.runner(s, f.ID)
		sp, err := s.Spec(context.Background(), r)
		if err != nil || (sp.Resume == nil) != (want == "") || want != "" && w.read(s, r, sp.Resume.SHA256) != want {
			t.Errorf("a fork of turn %d goes on from %+v, %v", turn, sp.Resume, err)
		}
		w.turn(s, r, 1, 1)
		w.outcome(s, r, wire.OutcomeFailed)
		w.look(s, f.ID)
	}
	if n, err := w.db.Q().NewestBundle(context.Background(), sess.ID); err != nil || n.Sha256 == "" {
		t.Errorf("%+v, %v", n, err)
	}
}

// A fork that commits nothing in its own first turn can be returned to all the
// same, and forked in its turn: it has the work it began with itself.
func TestAForkWithoutACommit(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.o.Limits.Total = 9
	s := w.scheduler()
	src := w.worked(s)
	began := func(id string) (wire.Spec, Runner) {
		t.Helper()
		w.says(s, true)
		sp, r := w.begun(s, id)
		if sp.Resume == nil || w.read(s, r, sp.Resume.SHA256) != "two" {
			t.Fatalf("%s goes on from %+v", id, sp.Resume)
		}
		return sp, r
	}
	f, err := w.fork(Point{Session: src.ID, Turn: 2}, spec.Harness{})
	if err != nil {
		t.Fatal(err)
	}
	retry := func() {
		t.Helper()
		if err := w.db.InTx(ctx, func(tx *storage.Tx) error {
			_, err := Retry(ctx, tx, Point{Session: f.ID}, "monalisa", w.clock.Now())
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	// It ends before its first turn is over: begun anew it is the same fork.
	_, r := began(f.ID)
	w.outcome(s, r, wire.OutcomeFailed)
	w.look(s, f.ID)
	retry()
	_, r = began(f.ID)
	w.turn(s, r, 1, 1)
	w.outcome(s, r, wire.OutcomeFailed)
	w.look(s, f.ID)
	if n, err := w.db.Q().NewestBundle(ctx, f.ID); err != nil {
		t.Error(err)
	} else if _, err := w.o.Blobs.Size(ctx, f.ID, n.Sha256); err != nil {
		t.Errorf("its work is not in its own evidence: %v", err)
	}
	if _, err := w.rewind(Point{Session: f.ID, Generation: 2, Turn: 1}); err != nil {
		t.Fatal(err)
	}
	sp, r := began(f.ID)
	if sp.Resume.Generation != 2 || sp.Resume.Turn != 1 {
		t.Errorf("it goes on from %+v", sp.Resume)
	}
	w.outcome(s, r, wire.OutcomeFailed)
	w.look(s, f.ID)
	second, err := w.fork(Point{Session: f.ID, Turn: 1}, spec.Harness{})
	if err != nil {
		t.Fatal(err)
	}
	began(second.ID)
}
