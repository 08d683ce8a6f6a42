package scheduler

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/storage"
)

func TestChoose(t *testing.T) {
	at := func(id string, commits int, newest time.Duration) candidate {
		return candidate{snapshot: id, newest: newest, drift: &wire.Drift{Commits: commits}}
	}
	exact := func(id string, newest time.Duration) candidate {
		return candidate{snapshot: id, exact: true, newest: newest, drift: &wire.Drift{}}
	}
	unknown := func(id string, newest time.Duration) candidate { return candidate{snapshot: id, newest: newest} }
	other := candidate{snapshot: "unrelated", drift: &wire.Drift{Unrelated: true}}
	cold := candidate{snapshot: "cold", exact: true, cold: true, drift: &wire.Drift{}}
	rewritten := candidate{snapshot: "rewritten", drift: &wire.Drift{Commits: 3, Behind: 2}}
	day, own, next := 24*time.Hour, coming{own: true}, coming{next: true}
	for name, c := range map[string]struct {
		list  []candidate
		when  string
		in    coming
		kind  choiceKind
		of    string
		stale bool
		why   string
	}{
		"fresh":                           {[]candidate{at("a", 12, 40*time.Minute)}, "", coming{}, chooseUse, "a", false, "it is 12 commits behind, of 200 at most, and it was the newest 40m ago, of 2h at most"},
		"fresh is not waited for":         {[]candidate{at("a", 1, time.Minute)}, spec.StaleRefuse, next, chooseUse, "a", false, "1 commit behind"},
		"at both bounds":                  {[]candidate{at("a", 200, 2*time.Hour)}, spec.StaleRefuse, coming{}, chooseUse, "a", false, ""},
		"own commit, however old":         {[]candidate{exact("a", 30*day)}, spec.StaleRefuse, coming{}, chooseUse, "a", false, "of the session's own commit"},
		"own commit first":                {[]candidate{at("a", 1, 0), exact("b", 9*day)}, spec.StaleCold, coming{}, chooseUse, "b", false, ""},
		"nearest":                         {[]candidate{at("a", 9, 0), at("b", 2, time.Hour), at("c", 5, 0)}, "", coming{}, chooseUse, "b", false, ""},
		"youngest of the nearest":         {[]candidate{at("a", 2, time.Hour), at("b", 2, time.Minute)}, "", coming{}, chooseUse, "b", false, ""},
		"known before unknown":            {[]candidate{unknown("a", 0), at("b", 100, 0)}, "", coming{}, chooseUse, "b", false, ""},
		"unknown":                         {[]candidate{unknown("a", time.Hour)}, spec.StaleRefuse, coming{}, chooseUse, "a", false, "how far it is behind is not known"},
		"rewritten history":               {[]candidate{rewritten}, spec.StaleRefuse, coming{}, chooseUse, "rewritten", false, "and has 2 commits that the history has no more"},
		"too old, used":                   {[]candidate{at("a", 1, 3*time.Hour)}, spec.StaleUse, next, chooseUse, "a", true, "it was last the newest 3h ago, longer than refresh.max_age of 2h, and refresh.when_stale is use"},
		"too far, used":                   {[]candidate{at("a", 201, 0)}, spec.StaleUse, coming{}, chooseUse, "a", true, "it is 201 commits behind, more than refresh.max_drift of 200, and refresh.when_stale is use"},
		"too old and too far, refused":    {[]candidate{at("a", wire.MaxDrift, 3*time.Hour)}, spec.StaleRefuse, coming{}, chooseRefuse, "", false, "is 1000000 commits or more behind, more than refresh.max_drift of 200 and was last the newest 3h ago, longer than refresh.max_age of 2h"},
		"refused, but one is coming":      {[]candidate{at("a", 201, 0)}, spec.StaleRefuse, next, chooseWait, "", false, "201 commits"},
		"refused, but its own is coming":  {[]candidate{at("a", 201, 0)}, spec.StaleRefuse, own, chooseWait, "", false, ""},
		"cold":                            {[]candidate{at("a", 201, 0)}, spec.StaleCold, coming{}, chooseCold, "", false, "is 201 commits behind"},
		"cold, but one is coming":         {[]candidate{at("a", 201, 0)}, spec.StaleCold, next, chooseWait, "", false, ""},
		"unrelated":                       {[]candidate{other}, spec.StaleUse, coming{}, chooseCold, "", false, "has no commit in common with the session's"},
		"unrelated, refused":              {[]candidate{other}, spec.StaleRefuse, next, chooseCold, "", false, ""},
		"unrelated, its own is coming":    {[]candidate{other}, spec.StaleUse, own, chooseWait, "", false, ""},
		"a stale one before an unrelated": {[]candidate{other, at("a", 900, day)}, spec.StaleUse, coming{}, chooseUse, "a", true, ""},
		"prepared for it":                 {[]candidate{other, cold}, spec.StaleUse, coming{}, chooseUse, "cold", false, "it was prepared afresh for the session's own commit: the other has no commit in common with the session's"},
	} {
		t.Run(name, func(t *testing.T) {
			r := spec.Default().Refresh
			if c.when != "" {
				r.WhenStale = c.when
			}
			got := choose(c.list, r, c.in)
			if got.kind != c.kind || got.of.snapshot != c.of || got.stale != c.stale || !strings.Contains(got.why, c.why) || got.why == "" {
				t.Errorf("chose %+v", got)
			}
		})
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 1500 * time.Millisecond: "1s", 59 * time.Second: "59s", 90 * time.Second: "1m", 40 * time.Minute: "40m", 2 * time.Hour: "2h", 125 * time.Minute: "2h5m", 20 * time.Hour: "20h", 30 * time.Hour: "30h",
	} {
		if got := short(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
}

// drifted answers the fetch that a session on another commit waits for.
func (w *world) drifted(s *Scheduler, since string, d *wire.Drift) {
	w.t.Helper()
	work := w.work(s, wire.WorkFetch)
	if work.Fetch.Since != since {
		w.t.Fatalf("fetch %+v, want it since %s", work.Fetch, since)
	}
	if err := s.WorkDone(context.Background(), "n1", work.ID, wire.WorkResult{OK: true, Drift: d}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) took(id string) (out Taken) {
	w.t.Helper()
	sess := w.get(id)
	a, err := w.db.Q().GetAttempt(context.Background(), storage.GetAttemptParams{SessionID: id, Generation: sess.Generation})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := json.Unmarshal(a.Taken.RawMessage, &out); err != nil {
		w.t.Fatal(err)
	}
	return out
}

func on(commit, when string) func(*NewSession) {
	return func(n *NewSession) {
		n.BaseSHA, n.Spec.Refresh.WhenStale = commit, when
	}
}

func TestFreshnessIsRecorded(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	first := w.create(s)
	id := w.prepare(s)
	w.look(s, first.ID)
	if got := w.took(first.ID); got.Snapshot != id || got.Commit != baseSHA || got.Drift == nil || *got.Drift != (wire.Drift{}) || got.Why != "it is of the session's own commit" || got.Stale {
		t.Errorf("took %+v", got)
	}
	w.clock.Advance(3 * time.Hour)
	w.nodeAlive(s)
	sess := w.create(s, on(sha(1), spec.StaleUse))
	w.look(s, sess.ID)
	for _, d := range []wire.Drift{{Commits: -1}, {Commits: wire.MaxDrift + 1}, {Behind: -1}} {
		rows, err := w.db.Q().OpenWork(context.Background(), "n1")
		if err != nil || len(rows) != 1 {
			t.Fatal(rows, err)
		}
		if err := s.WorkDone(context.Background(), "n1", rows[0].ID, wire.WorkResult{OK: true, Drift: &d}); codeOf(err) != codeBadRequest {
			t.Errorf("a drift of %+v: %v", d, err)
		}
	}
	w.drifted(s, baseSHA, &wire.Drift{Commits: 4, Behind: 1})
	w.want(sess.ID, Placing, "")
	got := w.took(sess.ID)
	if got.Snapshot != id || *got.Drift != (wire.Drift{Commits: 4, Behind: 1}) || !got.Stale || got.Age < 3*time.Hour || got.Newest < 3*time.Hour || got.Base != sha(1) || !strings.Contains(got.Why, "when_stale is use") {
		t.Errorf("took %+v", got)
	}
	// What setup and lock files had to do with it comes from the runner.
	w.look(s, sess.ID)
	r := w.runner(s, sess.ID)
	d := wire.Drifted{Manifests: []string{"go.mod"}, Steps: []string{"go build ./..."}, Lockfiles: []wire.Lockfile{{Path: "go.sum", SHA256: sumOf("x")}}}
	many := wire.Drifted{Manifests: make([]string, 101)}
	reply, err := s.AppendEvents(context.Background(), r, []wire.Event{
		{Number: 1, Kind: wire.EventDrift, At: w.clock.Now(), Data: d}, {Number: 2, Kind: wire.EventDrift, At: w.clock.Now(), Data: many},
	})
	if err != nil || reply.Acked != 2 {
		t.Fatal(reply, err)
	}
	a, err := w.db.Q().GetAttempt(context.Background(), storage.GetAttemptParams{SessionID: sess.ID, Generation: 1})
	if err != nil || !strings.Contains(string(a.Drifted.RawMessage), "go.sum") || a.Dropped != 1 {
		t.Errorf("%s, %d dropped (%v)", a.Drifted.RawMessage, a.Dropped, err)
	}
}

func TestStaleSnapshotIsRefused(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	w.create(s)
	w.prepare(s)
	w.clock.Advance(time.Hour)
	w.nodeAlive(s)
	sess := w.create(s, on(sha(1), spec.StaleRefuse))
	w.look(s, sess.ID)
	w.drifted(s, baseSHA, &wire.Drift{Commits: 201})
	w.look(s, sess.ID)
	if got := w.want(sess.ID, Infrastructure, ReasonSnapshotRefused); !strings.Contains(got.Words, "201 commits behind, more than refresh.max_drift of 200") {
		t.Errorf("words %q", got.Words)
	}
	// While a refresh goes on it is waited for.
	sp := testSpec()
	w.prepareHead(s, sha(1), &sp)
	second := w.create(s, on(sha(1), spec.StaleRefuse))
	w.look(s, second.ID)
	if got := w.want(second.ID, Queued, ""); !strings.Contains(got.QueueReason, "building the snapshot: the one there is 201 commits behind") {
		t.Errorf("queue reason %q", got.QueueReason)
	}
	w.offer(s, w.work(s, wire.WorkRefresh))
	w.want(second.ID, Placing, "")
}

func TestColdPath(t *testing.T) {
	for name, c := range map[string]struct {
		when, branch string
		drift        wire.Drift
		current      bool // what was prepared is the current one then
	}{
		"asked for":               {spec.StaleCold, "main", wire.Drift{Commits: 201}, true},
		"asked for on a branch":   {spec.StaleCold, "release/1", wire.Drift{Commits: 201}, false},
		"history without a bond":  {spec.StaleUse, "main", wire.Drift{Unrelated: true}, false},
		"refused, but unrelated":  {spec.StaleRefuse, "main", wire.Drift{Unrelated: true}, false},
		"a branch without a bond": {spec.StaleUse, "gh-pages", wire.Drift{Unrelated: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.scheduler()
			w.create(s)
			before := w.prepare(s)
			edit := func(n *NewSession) { on(sha(1), c.when)(n); n.BaseBranch = c.branch }
			sess := w.create(s, edit)
			w.look(s, sess.ID)
			w.drifted(s, baseSHA, &c.drift)
			if got := w.want(sess.ID, Queued, ""); got.QueueReason != "building a snapshot of the session's own commit" {
				t.Errorf("queue reason %q", got.QueueReason)
			}
			work := w.work(s, wire.WorkRefresh)
			if r := work.Refresh; r.Commit != sha(1) || r.From != "" || r.Remote.Branch != c.branch {
				t.Fatalf("refresh %+v", r)
			}
			w.look(s, sess.ID)
			if got := w.open(); len(got) != 1 {
				t.Fatalf("%v are prepared", got)
			}
			var note string
			if err := w.db.SQL().QueryRow("SELECT data->>'words' FROM events WHERE session_id = $1 AND kind = 'note'", sess.ID).Scan(&note); err != nil || !strings.HasPrefix(note, "The snapshot there is 201") && !strings.HasPrefix(note, "The snapshot there has no commit in common") {
				t.Errorf("noted %q (%v)", note, err)
			}
			if name == "history without a bond" { // it can fail, too
				w.failed(s, work, "make: *** Error 2")
				if got := w.want(sess.ID, Failed, ReasonSnapshotRefused); !strings.Contains(got.Words, "Error 2") {
					t.Errorf("words %q", got.Words)
				}
				if at := w.environmentNode(work.Refresh.Environment); at.StaleSince.Valid {
					t.Errorf("the environment counts as broken: %+v", at)
				}
				sess = w.create(s, edit)
				w.look(s, sess.ID)
				work = w.work(s, wire.WorkRefresh)
			}
			w.offer(s, work)
			w.want(sess.ID, Placing, "")
			if got := w.took(sess.ID); got.Snapshot != work.Refresh.Snapshot || got.Cold == c.current {
				t.Errorf("took %+v", got)
			}
			want := before
			if c.current {
				want = work.Refresh.Snapshot
			}
			if cur := w.current(work.Refresh.Environment); cur.ID != want {
				t.Errorf("current is %s", cur.ID)
			}
			// It goes when no session of that commit is left.
			state := func() string {
				t.Helper()
				if err := s.sweepCold(context.Background()); err != nil {
					t.Fatal(err)
				}
				sn, err := w.db.Q().GetSnapshot(context.Background(), work.Refresh.Snapshot)
				if err != nil {
					t.Fatal(err)
				}
				return sn.State
			}
			if state() != snapshotReady {
				t.Error("retired while its session works")
			}
			w.sql("UPDATE sessions SET state = 'stopped', finished_at = now()")
			if got := state(); (got == snapshotReady) != c.current {
				t.Errorf("after the end it is %s", got)
			}
		})
	}
}

func TestNodeThatRefuses(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	if err := s.RegisterNode(ctx, "n2", hashOf("token of n2")); err != nil {
		t.Fatal(err)
	}
	says := func(node, refuses string) {
		t.Helper()
		if err := s.NodeState(ctx, node, wire.NodeState{Version: 1, Refuses: refuses}); err != nil {
			t.Fatal(err)
		}
	}
	w.create(s)
	w.prepare(s)
	w.sql("UPDATE sessions SET state = 'stopped', finished_at = now()")
	says("n1", "its pool is 83 % full, more than 80 %")
	sess := w.create(s)
	w.look(s, sess.ID)
	if got := w.want(sess.ID, Queued, ""); got.QueueReason != "waiting for node n1, which takes nothing now: its pool is 83 % full, more than 80 %" {
		t.Errorf("queue reason %q", got.QueueReason)
	}
	if n := len(w.open()); n != 0 {
		t.Errorf("%d refreshes for a node that refuses", n)
	}
	// Another node prepares it.
	says("n2", "")
	w.look(s, sess.ID)
	rows, err := w.db.Q().OpenWork(ctx, "n2")
	if err != nil || len(rows) != 1 {
		t.Fatalf("work of n2: %v (%v)", rows, err)
	}
	says("n1", "")
	w.look(s, sess.ID)
	w.want(sess.ID, Placing, "")
}
