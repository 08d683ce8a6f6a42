package scheduler

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"inspect/scheduler/audit"
	"inspect/storage"
)

// recorded is a session with events of every sort of data, and another one.
func recorded(t *testing.T) (w *world, s *Scheduler, id, other string) {
	t.Helper()
	w = newWorld(t)
	s = w.scheduler()
	one, r := w.running(s)
	w.phase(s, r, "restoring", "working", "verifying")
	two, _ := w.running(s)
	for _, data := range []any{
		map[string]any{"n": int64(1)<<53 + 1, "f": 0.1, "zero": 0, "big": 1e21, "small": 1e-7, "neg": -3},
		map[string]any{"words": "é\u202e\x1b[2J\x00 <&>", "list": []any{1, "a", nil, true}},
		map[string]any{"a": 1, "bb": map[string]any{"c": "d"}},
	} {
		if err := s.Record(context.Background(), one.ID, "test", data); err != nil {
			t.Fatal(err)
		}
	}
	return w, s, one.ID, two.ID
}

func TestEveryTamperingIsToldApart(t *testing.T) {
	ctx := context.Background()
	w, _, id, other := recorded(t)
	row := w.get(id)
	n := row.EventsCount
	whole := []audit.Anchor{{Session: id, Count: n, Head: hex.EncodeToString(row.EventsHead), From: "the receipt"}}
	if n != 10 {
		t.Fatalf("%d events", n)
	}
	const mine, rest, own = ` WHERE session_id = $1`, ` AND session_id = $1`, ` WHERE id = $1`
	const ended = `UPDATE sessions SET finished_at = now() - interval '1 day' WHERE id = $1`
	for name, c := range map[string]struct {
		sql     []string
		fit     bool // the hashes are made to fit, and the session's row
		against bool // is only found with what was noted elsewhere
		want    string
	}{
		"untouched":              {},
		"data changed":           {sql: []string{`UPDATE events SET data = data || '{"x": 1}' WHERE seq = 2` + rest}, want: "event 2 was changed"},
		"key removed":            {sql: []string{`UPDATE events SET data = data - 'bb' WHERE seq = 10` + rest}, want: "event 10 was changed"},
		"hash changed":           {sql: []string{`UPDATE events SET hash = sha256('x') WHERE seq = 5` + rest}, want: "event 5 was changed"},
		"time":                   {sql: []string{`UPDATE events SET at = at + interval '1 microsecond' WHERE seq = 3` + rest}, want: "event 3 was changed"},
		"no time":                {sql: []string{`UPDATE events SET at = 'infinity' WHERE seq = 3` + rest}, want: "event 3 was changed"},
		"far time":               {sql: []string{`UPDATE events SET at = '12026-01-01' WHERE seq = 3` + rest}, want: "event 3 was changed"},
		"kind":                   {sql: []string{`UPDATE events SET kind = 'note' WHERE seq = 3` + rest}, want: "event 3 was changed"},
		"generation":             {sql: []string{`UPDATE events SET generation = 2 WHERE seq = 4` + rest}, want: "event 4 was changed"},
		"runner's number":        {sql: []string{`UPDATE events SET number = 99 WHERE seq = 4` + rest}, want: "event 4 was changed"},
		"number made ours":       {sql: []string{`UPDATE events SET number = NULL WHERE number = 1` + rest}, want: "event 4 was changed"},
		"large whole number":     {sql: []string{`UPDATE events SET data = jsonb_set(data, '{n}', '9007199254740992') WHERE seq = 8` + rest}, want: "event 8 was changed"},
		"larger than float64":    {sql: []string{`UPDATE events SET data = jsonb_set(data, '{big}', '1000000000000000000001') WHERE seq = 8` + rest}, want: "event 8 was changed"},
		"1.0 for 1":              {sql: []string{`UPDATE events SET data = jsonb_set(data, '{a}', '1.0') WHERE seq = 10` + rest}, want: "event 10 was changed: a number"},
		"more digits":            {sql: []string{`UPDATE events SET data = jsonb_set(data, '{f}', '0.1000000000000000000001') WHERE seq = 8` + rest}, want: "event 8 was changed: a number"},
		"0.0 for 0":              {sql: []string{`UPDATE events SET data = jsonb_set(data, '{zero}', '-0.0') WHERE seq = 8` + rest}, want: "event 8 was changed: a number"},
		"no number at all":       {sql: []string{`UPDATE events SET data = jsonb_set(data, '{n}', '1e400') WHERE seq = 8` + rest}, want: "event 8 was changed: its data cannot be read"},
		"true for 1":             {sql: []string{`UPDATE events SET data = jsonb_set(data, '{a}', 'true') WHERE seq = 10` + rest}, want: "event 10 was changed"},
		"text for a number":      {sql: []string{`UPDATE events SET data = jsonb_set(data, '{a}', '"1"') WHERE seq = 10` + rest}, want: "event 10 was changed"},
		"another letter":         {sql: []string{`UPDATE events SET data = jsonb_set(data, '{words}', '"e\u0301"') WHERE seq = 9` + rest}, want: "event 9 was changed"},
		"missing first":          {sql: []string{`DELETE FROM events WHERE seq = 1` + rest}, want: "event 1 is missing"},
		"missing":                {sql: []string{`DELETE FROM events WHERE seq = 5` + rest}, want: "event 5 is missing"},
		"several missing":        {sql: []string{`DELETE FROM events WHERE seq BETWEEN 5 AND 7` + rest}, want: "events 5 to 7 are missing"},
		"missing and renumbered": {sql: []string{`DELETE FROM events WHERE seq BETWEEN 4 AND 5` + rest, `UPDATE events SET seq = seq - 2 WHERE seq > 5` + rest}, want: "events 4 to 5 are missing, and those after were renumbered"},
		"all missing":            {sql: []string{`DELETE FROM events` + mine}, want: "cut off after event 0: 10 events were recorded"},
		"cut off":                {sql: []string{`DELETE FROM events WHERE seq > 7` + rest}, want: "cut off after event 7: 10 events were recorded"},
		"cut off with the row": {sql: []string{`DELETE FROM events WHERE seq > 7` + rest,
			`UPDATE sessions SET events_count = 7, events_head = (SELECT hash FROM events WHERE seq = 7` + rest + `) WHERE id = $1`},
			against: true, want: "cut off after event 7: the receipt names 10 events"},
		"neighbours swapped": {sql: []string{`UPDATE events SET seq = 100 WHERE seq = 4` + rest, `UPDATE events SET seq = 4 WHERE seq = 5` + rest, `UPDATE events SET seq = 5 WHERE seq = 100` + rest},
			want: "reordered: event 5 stands in place 4, event 4 in place 5"},
		"swapped": {sql: []string{`UPDATE events SET seq = 100 WHERE seq = 3` + rest, `UPDATE events SET seq = 3 WHERE seq = 8` + rest, `UPDATE events SET seq = 8 WHERE seq = 100` + rest},
			want: "reordered: event 8 stands in place 3, event 3 in place 8"},
		"moved to the end":  {sql: []string{`UPDATE events SET seq = 100 WHERE seq = 4` + rest}, want: "reordered: event 4 stands in place 100"},
		"moved to the head": {sql: []string{`UPDATE events SET seq = -4 WHERE seq = 4` + rest}, want: "reordered: event 4 stands in place -4"},
		"put in": {sql: []string{`UPDATE events SET seq = -seq WHERE seq >= 5` + rest, `UPDATE events SET seq = -seq + 1 WHERE seq < 0` + rest,
			`INSERT INTO events SELECT session_id, 5, generation, NULL, kind, '{"x": 1}', at, sha256('x') FROM events WHERE seq = 4` + rest},
			want: "a row was put in as event 5, which stands in place 6"},
		"added with a wrong hash": {sql: []string{`INSERT INTO events SELECT session_id, 11, generation, NULL, kind, '{"x": 1}', at, sha256('x') FROM events WHERE seq = 4` + rest}, want: "a row with the number 11 was added"},
		"added far away":          {sql: []string{`INSERT INTO events SELECT session_id, 1000, generation, NULL, kind, '{"x": 1}', at, sha256('x') FROM events WHERE seq = 4` + rest}, want: "a row with the number 1000 was added"},
		"added before":            {sql: []string{`INSERT INTO events SELECT session_id, -9223372036854775808, generation, NULL, kind, '{"x": 1}', at, sha256('x') FROM events WHERE seq = 4` + rest}, want: "a row with the number -9223372036854775808 was added"},
		"of another session": {sql: []string{`DELETE FROM events WHERE seq = 2` + rest,
			`INSERT INTO events SELECT $1, seq, generation, number, kind, data, at, hash FROM events WHERE seq = 2 AND session_id = '` + other + `'`},
			want: "event 2 was changed, or is not of this session"},
		"moved into another session": {sql: []string{`UPDATE events SET session_id = '` + other + `', seq = 100, generation = 50 WHERE seq = 6` + rest}, want: "event 6 is missing"},
		"row's count":                {sql: []string{`UPDATE sessions SET events_count = 9 WHERE id = $1`}, want: "not the one that the session's row names"},
		"row's count up":             {sql: []string{`UPDATE sessions SET events_count = 11 WHERE id = $1`}, want: "cut off after event 10: 11 events were recorded"},
		"row's head":                 {sql: []string{`UPDATE sessions SET events_head = sha256('x') WHERE id = $1`}, want: "event 10, the last, is not the one"},
		"row's state":                {sql: []string{`UPDATE sessions SET state = 'delivered' WHERE id = $1`}, want: `says that it is "delivered", its last recorded state is "verifying"`},
		"row's receipt":              {sql: []string{`UPDATE sessions SET receipt = '{"events_count": 5, "events_head": "00"}' WHERE id = $1`}, want: "the first 5 events are not those of the session's own receipt"},
		"removed too early":          {sql: []string{`INSERT INTO events_removed VALUES ($1, 10, '', '[]', 3600, now())`, `DELETE FROM events` + mine}, want: "before they were old enough"},
		"removed with a short keep":  {sql: []string{ended, `INSERT INTO events_removed VALUES ($1, 10, (SELECT events_head FROM sessions` + own + `), '[]', 1, now())`, `DELETE FROM events` + mine}, want: "before they were old enough"},
		"removed with another head":  {sql: []string{ended, `INSERT INTO events_removed VALUES ($1, 10, '\x00', '[]', 3600, now())`, `DELETE FROM events` + mine}, want: "event 10, the last that was removed, is not the one that the session's row names"},
		"removed without states":     {sql: []string{ended, `INSERT INTO events_removed VALUES ($1, 10, (SELECT events_head FROM sessions` + own + `), '[]', 3600, now())`, `DELETE FROM events` + mine}, want: "no change of state is kept"},
		"removed with odd states":    {sql: []string{ended, `INSERT INTO events_removed VALUES ($1, 10, (SELECT events_head FROM sessions` + own + `), '[{"count": 11, "head": "00"}]', 3600, now())`, `DELETE FROM events` + mine}, want: "does not fit together"},
		"written anew":               {sql: []string{`UPDATE events SET data = data || '{"x": 1}' WHERE seq = 2` + rest}, fit: true, against: true, want: "the first 10 events are not those of the receipt"},
	} {
		t.Run(name, func(t *testing.T) {
			tx, err := w.db.SQL().Begin()
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
			for _, q := range c.sql {
				args := []any{id}
				if !strings.Contains(q, "$1") {
					args = nil
				}
				if res, err := tx.Exec(q, args...); err != nil {
					t.Fatalf("%s: %v", q, err)
				} else if n, _ := res.RowsAffected(); n == 0 {
					t.Fatalf("%s changes nothing", q)
				}
			}
			q := storage.New(tx)
			if c.fit {
				refit(t, tx, id)
			}
			_, found, err := CheckChain(ctx, q, id, nil)
			if c.against {
				if err != nil {
					t.Fatalf("without what was noted elsewhere: %v", err)
				}
				_, found, err = CheckChain(ctx, q, id, whole)
			}
			switch {
			case c.want == "" && (err != nil || found.Count != n):
				t.Fatalf("%+v, %v", found, err)
			case c.want != "" && (!errors.Is(err, audit.ErrBroken) || !strings.Contains(err.Error(), c.want)):
				t.Fatalf("got %v\nwant %s", err, c.want)
			}
			if c.want == "" {
				return
			}
			// The same is found in an export of it, without a database.
			var file bytes.Buffer
			x := audit.NewExporter(&file)
			s, events, err := Chain(ctx, q, id)
			if err == nil {
				err = x.Session(s, events)
			}
			if err = errors.Join(err, x.Close()); err != nil {
				t.Fatal(err)
			}
			var anchors []audit.Anchor
			if c.against {
				anchors = whole
			}
			err = audit.OpenExport(bytes.NewReader(file.Bytes()), "the export").Check(anchors, func(_ audit.Session, _ audit.Result, err error) error { return err })
			if !errors.Is(err, audit.ErrBroken) {
				t.Fatalf("the export: %v", err)
			}
		})
	}
}

// refit computes every hash anew, as somebody would who can write to the database.
func refit(t *testing.T, tx *sql.Tx, id string) {
	t.Helper()
	_, events, err := Chain(context.Background(), storage.New(tx), id)
	if err != nil {
		t.Fatal(err)
	}
	var all []audit.Event
	if err := events(func(e audit.Event) error { all = append(all, e); return nil }); err != nil {
		t.Fatal(err)
	}
	var prev []byte
	for _, e := range all {
		if e.Data, err = audit.Canonical(e.Data); err == nil {
			err = e.Seal(prev)
		}
		if err == nil {
			_, err = tx.Exec("UPDATE events SET hash = $3 WHERE session_id = $1 AND seq = $2", id, e.Seq, e.Hash)
		}
		if err != nil {
			t.Fatal(err)
		}
		prev = e.Hash
	}
	if _, err := tx.Exec("UPDATE sessions SET events_head = $2 WHERE id = $1", id, prev); err != nil {
		t.Fatal(err)
	}
}

func TestEndsAreLoggedWithTheHead(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	var log bytes.Buffer
	w.o.Log = slog.New(slog.NewJSONHandler(&log, nil))
	s := w.scheduler()
	sess, r := w.running(s)
	w.phase(s, r, "restoring", "working", "verifying")
	w.verified(s, r)
	for range 3 {
		w.look(s, sess.ID)
	}
	w.want(sess.ID, Delivered, "")
	stopped := w.create(s)
	if err := s.Stop(ctx, stopped.ID, "hubot", "no more"); err != nil {
		t.Fatal(err)
	}
	w.look(s, stopped.ID)
	w.want(stopped.ID, Stopped, ReasonStopped)
	if err := s.Record(ctx, sess.ID, EventGitHub, map[string]any{"what": "comment"}); err != nil {
		t.Fatal(err)
	}
	anchors, err := audit.ReadAnchors(&log, "the log")
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]int{}
	for _, a := range anchors {
		lines[a.Session]++
		if _, found, err := CheckChain(ctx, w.db.Q(), a.Session, anchors); err != nil || found.Met != 2 {
			t.Errorf("%s: %+v, %v", a.Session, found, err)
		}
	}
	if lines[sess.ID] != 2 || lines[stopped.ID] != 2 {
		t.Errorf("lines of ends: %v", lines)
	}
	if w.count(stopped.ID, EventStop) != 1 || w.count(stopped.ID, EventState) != 1 {
		t.Error("who stopped the session is not recorded")
	}
}

func TestOldEventsAreRemovedAndTheirHeadsKept(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	var log bytes.Buffer
	w.o.Log = slog.New(slog.NewTextHandler(&log, nil))
	w.o.KeepEvents = 400 * 24 * time.Hour
	s := w.scheduler()
	end := func() storage.Session {
		sess := w.create(s)
		if err := s.Stop(ctx, sess.ID, "hubot", ""); err != nil {
			t.Fatal(err)
		}
		w.look(s, sess.ID)
		return w.want(sess.ID, Stopped, ReasonStopped)
	}
	old, tampered, unreported := end(), end(), end()
	open, _ := w.running(s)
	for range 2*retainBatch + 5 {
		if err := s.Record(ctx, old.ID, "test", map[string]any{}); err != nil {
			t.Fatal(err)
		}
	}
	atEnd := audit.Anchor{Session: old.ID, Count: old.EventsCount, Head: hex.EncodeToString(old.EventsHead), From: "the log"}
	old = w.get(old.ID)
	last := audit.Anchor{Session: old.ID, Count: old.EventsCount, Head: hex.EncodeToString(old.EventsHead), From: "the log"}
	w.sql("UPDATE events SET data = '{}' WHERE session_id = $1 AND seq = 2", tampered.ID)
	w.sql("UPDATE sessions SET reported_at = NULL WHERE id = $1", unreported.ID)
	retain := func() {
		t.Helper()
		if err := s.Retain(ctx); err != nil {
			t.Fatal(err)
		}
	}
	total := func(id string) (n int) {
		t.Helper()
		if err := w.db.SQL().QueryRow("SELECT count(*) FROM events WHERE session_id = $1", id).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	w.clock.Advance(399 * 24 * time.Hour)
	retain()
	if total(old.ID) == 0 {
		t.Fatal("removed before its time")
	}
	w.clock.Advance(2 * 24 * time.Hour)
	fresh := end()
	retain()
	if total(old.ID) != 0 {
		t.Fatalf("%d old events are left", total(old.ID))
	}
	for name, id := range map[string]string{"tampered": tampered.ID, "unreported": unreported.ID, "open": open.ID, "fresh": fresh.ID} {
		if total(id) == 0 {
			t.Errorf("%s: its events were removed", name)
		}
	}
	if !strings.Contains(log.String(), "old events of a session were removed") || !strings.Contains(log.String(), last.Head) || !strings.Contains(log.String(), "they are not removed") {
		t.Errorf("the log says\n%s", log.String())
	}
	check := func(a ...audit.Anchor) (audit.Result, error) {
		_, found, err := CheckChain(ctx, w.db.Q(), old.ID, a)
		return found, err
	}
	if found, err := check(); err != nil || found.Removed == nil || found.Removed.Count != old.EventsCount || found.Met != 0 {
		t.Errorf("%+v, %v", found, err)
	}
	if found, err := check(atEnd, last); err != nil || found.Met != 2 || found.Unknown != 0 {
		t.Errorf("what was noted is not met: %+v, %v", found, err)
	}
	if found, err := check(audit.Anchor{Session: old.ID, Count: 5, Head: last.Head}); err != nil || found.Met != 0 || found.Unknown != 1 {
		t.Errorf("an event nothing is kept of: %+v, %v", found, err)
	}
	wrong := strings.Repeat("0", 64)
	for _, count := range []int64{atEnd.Count, last.Count} {
		if _, err := check(audit.Anchor{Session: old.ID, Count: count, Head: wrong, From: "the log"}); !errors.Is(err, audit.ErrBroken) {
			t.Errorf("another head of %d events: %v", count, err)
		}
	}
	if _, err := check(audit.Anchor{Session: old.ID, Count: last.Count + 1, Head: wrong, From: "the log"}); !errors.Is(err, audit.ErrBroken) {
		t.Errorf("an event after the last: %v", err)
	}
	// What comes later continues the chain.
	if err := s.Record(ctx, old.ID, "test", map[string]any{"late": true}); err != nil {
		t.Fatal(err)
	}
	if found, err := check(last); err != nil || found.Count != old.EventsCount+1 || found.Met != 1 {
		t.Errorf("%+v, %v", found, err)
	}
	retain() // again, and nothing happens
	if total(old.ID) != 1 {
		t.Error("a later event was removed")
	}
}

// A removal that was cut off goes on; until then the rest does not count.
func TestRemovalGoesOnAfterACrash(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.o.KeepEvents = time.Hour
	s := w.scheduler()
	sess := w.create(s)
	if err := s.Stop(ctx, sess.ID, "hubot", ""); err != nil {
		t.Fatal(err)
	}
	w.look(s, sess.ID)
	w.clock.Advance(2 * time.Hour)
	if err := s.beginRemoval(ctx, sess.ID); err != nil {
		t.Fatal(err)
	}
	w.sql("DELETE FROM events WHERE session_id = $1 AND seq = 1", sess.ID)
	if _, found, err := CheckChain(ctx, w.db.Q(), sess.ID, nil); err != nil || found.Removed == nil {
		t.Fatalf("%+v, %v", found, err)
	}
	if err := w.scheduler().Retain(ctx); err != nil {
		t.Fatal(err)
	}
	if n := w.count(sess.ID, EventState) + w.count(sess.ID, EventStop); n != 0 {
		t.Fatalf("%d events are left", n)
	}
}

func TestCreationIsRecordedWithItsActor(t *testing.T) {
	w := newWorld(t)
	sess := w.create(w.scheduler())
	var raw []byte
	if err := w.db.SQL().QueryRow("SELECT data FROM events WHERE session_id = $1 AND seq = 1", sess.ID).Scan(&raw); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"requester": "octocat", "requester_id": 1.0, "intent": sess.IntentKey, "repository_id": 42.0,
		"spec_sha256": digestOf(encode(testSpec())), "prompt_sha256": digestOf([]byte("Fix the bug.")), "request_sha256": digestOf([]byte("fix it")),
	} {
		if got[key] != want {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
}
