package scheduler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/scheduler/secrets"
	"inspect/storage"
)

// sha is a commit for a test.
func sha(n int) string { return fmt.Sprintf("%040x", 0xabc000+n) }

// prepareHead does what a look does that found a new head.
func (w *world) prepareHead(s *Scheduler, commit string, sp *spec.Spec) {
	w.t.Helper()
	err := w.db.InTx(context.Background(), func(tx *storage.Tx) error {
		return s.Prepare(context.Background(), tx, Head{RepositoryID: 42, Branch: "main", Commit: commit, Spec: sp})
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// open are the refreshes that are given out or wait to be.
func (w *world) open() (out []string) {
	w.t.Helper()
	rows, err := w.db.Q().OpenWork(context.Background(), "n1")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range rows {
		if r.Kind == wire.WorkRefresh {
			out = append(out, r.State)
		}
	}
	return out
}

func (w *world) offer(s *Scheduler, work *wire.Work) {
	w.t.Helper()
	if err := s.Offer(context.Background(), "n1", offerOf(work)); err != nil {
		w.t.Fatal(err)
	}
}

// failed has a refresh fail.
func (w *world) failed(s *Scheduler, work *wire.Work, words string) {
	w.t.Helper()
	if err := s.WorkDone(context.Background(), "n1", work.ID, wire.WorkResult{Words: words}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) environmentNode(env string) storage.EnvironmentNode {
	w.t.Helper()
	at, err := w.db.Q().LockEnvironmentNode(context.Background(), storage.LockEnvironmentNodeParams{EnvironmentID: env, Node: "n1"})
	if err != nil {
		w.t.Fatal(err)
	}
	return at
}

func (w *world) current(env string) storage.Snapshot {
	w.t.Helper()
	sn, err := w.db.Q().CurrentSnapshot(context.Background(), storage.CurrentSnapshotParams{EnvironmentID: env, Node: "n1"})
	if err != nil {
		w.t.Fatal(err)
	}
	return sn
}

func TestPushesDuringARefreshAreOneMore(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sp := testSpec()
	w.prepareHead(s, sha(1), &sp)
	// One that no node has seen goes to the newest commit at once.
	w.prepareHead(s, sha(2), &sp)
	first := w.work(s, wire.WorkRefresh)
	if first.Refresh.Commit != sha(2) || first.Refresh.From != "" || first.Refresh.Generation != 1 {
		t.Fatalf("refresh %+v", first.Refresh)
	}
	for n := 3; n < 8; n++ {
		w.prepareHead(s, sha(n), nil)
	}
	if got := w.open(); len(got) != 1 {
		t.Fatalf("refreshes overlap: %v", got)
	}
	w.offer(s, first)
	second := w.work(s, wire.WorkRefresh)
	if r := second.Refresh; r.Commit != sha(7) || r.From != first.Refresh.Snapshot || r.Generation != 2 {
		t.Fatalf("refresh %+v", r)
	}
	if cur := w.current(first.Refresh.Environment); cur.ID != first.Refresh.Snapshot {
		t.Fatalf("current is %+v while the next is made", cur)
	}
	w.prepareHead(s, sha(8), nil)
	w.prepareHead(s, sha(7), nil) // reset to what is being made
	o := offerOf(second)
	o.From = second.Refresh.From
	for range 2 { // the answer got lost
		if err := s.Offer(context.Background(), "n1", o); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.open(); len(got) != 0 {
		t.Fatalf("further refreshes: %v", got)
	}
	if cur := w.current(first.Refresh.Environment); cur.ID != second.Refresh.Snapshot || cur.Depth != 2 || cur.FromID != first.Refresh.Snapshot {
		t.Fatalf("current is %+v", cur)
	}
}

func TestUnchangedIsNoWork(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sp := testSpec()
	w.prepareHead(s, sha(1), &sp)
	work := w.work(s, wire.WorkRefresh)
	w.prepareHead(s, sha(1), nil)
	w.offer(s, work)
	w.clock.Advance(3 * time.Hour)
	w.nodeAlive(s)
	sp.Refresh.Every = time.Hour // no other environment
	w.prepareHead(s, sha(1), &sp)
	if got := w.open(); len(got) != 0 {
		t.Fatalf("refreshes: %v", got)
	}
	if cur := w.current(work.Refresh.Environment); !cur.NewestAt.Time.Equal(w.clock.Now()) {
		t.Errorf("seen as the newest at %s, now is %s", cur.NewestAt.Time, w.clock.Now())
	}
	// Another configuration is another environment, and its snapshot is at hand
	// before the next session asks.
	sp.Setup = spec.Steps("make")
	w.prepareHead(s, sha(1), &sp)
	other := w.work(s, wire.WorkRefresh)
	if other.Refresh.Environment == work.Refresh.Environment || other.Refresh.From != "" || other.Refresh.Generation != 1 {
		t.Fatalf("refresh %+v", other.Refresh)
	}
	// A person may want it anew all the same.
	w.offer(s, other)
	if err := AskBuild(context.Background(), w.db.Q(), 42, false, w.clock.Now()); err != nil {
		t.Fatal(err)
	}
	w.prepareHead(s, sha(1), nil)
	if got := w.open(); len(got) != 0 {
		t.Fatalf("refreshes: %v", got)
	}
	if err := AskBuild(context.Background(), w.db.Q(), 42, true, w.clock.Now()); err != nil {
		t.Fatal(err)
	}
	w.prepareHead(s, sha(1), nil)
	if again := w.work(s, wire.WorkRefresh); again.Refresh.From != "" || again.Refresh.Generation != 2 {
		t.Fatalf("refresh %+v", again.Refresh)
	}
}

func TestEveryEighthGenerationIsMadeAfresh(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sp := testSpec()
	from := map[int]string{}
	last := ""
	for n := 1; n <= 17; n++ {
		w.prepareHead(s, sha(n), &sp)
		work := w.work(s, wire.WorkRefresh)
		r := work.Refresh
		if r.Generation != n {
			t.Fatalf("generation %d, want %d", r.Generation, n)
		}
		from[n] = r.From
		if n == 8 { // what would have been afresh fails, so the next has to be
			w.failed(s, work, "boom")
			continue
		}
		if want := map[bool]string{true: "", false: last}[n == 1 || n%8 == 0 || n == 10]; r.From != want {
			t.Errorf("generation %d is made from %q, want %q", n, r.From, want)
		}
		o := offerOf(work)
		o.From = r.From
		if err := s.Offer(context.Background(), "n1", o); err != nil {
			t.Fatal(err)
		}
		if depth := w.current(r.Environment).Depth; depth > 8 {
			t.Errorf("generation %d is the %dth made from one another", n, depth)
		}
		last = r.Snapshot
	}
}

// A node that goes on from a snapshot, cannot, and begins afresh is not asked to
// try again; one that only had not the snapshot any more is.
func TestSetupThatDoesNotRunTwice(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sp := testSpec()
	for n, c := range []struct {
		from  bool // is asked for
		tried bool
	}{{false, false}, {true, false}, {true, true}, {false, false}} {
		w.prepareHead(s, sha(n+1), &sp)
		work := w.work(s, wire.WorkRefresh)
		if (work.Refresh.From != "") != c.from {
			t.Fatalf("refresh %d goes on from %q", n+1, work.Refresh.From)
		}
		o := offerOf(work)
		o.From = ""
		if c.tried {
			o.Phases = map[string]time.Duration{"clone": 1}
		}
		if err := s.Offer(context.Background(), "n1", o); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBrokenCommitIsTriedAfterGrowingWaits(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sp := testSpec()
	w.prepareHead(s, sha(1), &sp)
	good := w.work(s, wire.WorkRefresh)
	w.offer(s, good)
	env := good.Refresh.Environment
	broken := w.clock.Now()
	w.prepareHead(s, sha(2), nil)
	w.failed(s, w.work(s, wire.WorkRefresh), "make: *** [all] Error 2")
	at := w.environmentNode(env)
	if !at.StaleSince.Time.Equal(broken) || at.Error != "make: *** [all] Error 2" || w.current(env).ID != good.Refresh.Snapshot {
		t.Fatalf("after a failure %+v", at)
	}
	// Looked at every half an hour for a day.
	var tried []time.Duration
	for range 48 {
		w.clock.Advance(30 * time.Minute)
		w.nodeAlive(s)
		w.prepareHead(s, sha(2), nil)
		if len(w.open()) > 0 {
			tried = append(tried, w.clock.Now().Sub(broken))
			w.failed(s, w.work(s, wire.WorkRefresh), "the same")
		}
	}
	if got := fmt.Sprint(tried); got != "[30m0s 1h30m0s 3h30m0s 7h30m0s 13h30m0s 19h30m0s]" {
		t.Errorf("tried after %s", got)
	}
	if at := w.environmentNode(env); !at.StaleSince.Time.Equal(broken) || at.Error != "the same" {
		t.Errorf("after a day %+v", at)
	}
	// Another commit is tried at once, and its success clears all.
	w.prepareHead(s, sha(3), nil)
	w.offer(s, w.work(s, wire.WorkRefresh))
	if at := w.environmentNode(env); at.StaleSince.Valid || at.Error != "" || at.Failures != 0 {
		t.Errorf("after a success %+v", at)
	}
	// A person who asks is not kept waiting.
	w.prepareHead(s, sha(4), nil)
	w.failed(s, w.work(s, wire.WorkRefresh), "once more")
	if err := AskBuild(context.Background(), w.db.Q(), 42, false, w.clock.Now()); err != nil {
		t.Fatal(err)
	}
	w.prepareHead(s, sha(4), nil)
	w.work(s, wire.WorkRefresh)
}

func TestWhatIsMadeFromAnotherHoldsItsSecrets(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sp := testSpec()
	w.prepareHead(s, sha(1), &sp)
	first := w.work(s, wire.WorkRefresh)
	w.sql(`UPDATE snapshots SET secrets = '{"NPM_TOKEN": 5}' WHERE id = $1`, first.Refresh.Snapshot)
	w.offer(s, first)
	w.prepareHead(s, sha(2), nil)
	second := w.work(s, wire.WorkRefresh)
	if second.Refresh.From != first.Refresh.Snapshot {
		t.Fatalf("refresh %+v", second.Refresh)
	}
	if _, err := w.db.Q().RetireStaleSnapshots(context.Background()); err != nil { // nobody has that version
		t.Fatal(err)
	}
	w.offer(s, second)
	if sn, err := w.db.Q().GetSnapshot(context.Background(), second.Refresh.Snapshot); err != nil || sn.State != snapshotRetired {
		t.Errorf("published with an old secret in it: %+v (%v)", sn, err)
	}
}

// Two offers for one environment and node at the same moment leave one current
// snapshot, the later generation, whichever comes first.
func TestTwoOffersAtOnce(t *testing.T) {
	for round := range 4 {
		w := newWorld(t)
		s := w.scheduler()
		sp := testSpec()
		w.prepareHead(s, sha(1), &sp)
		older := w.work(s, wire.WorkRefresh)
		// What only a fault could bring about.
		w.sql("UPDATE snapshots SET cold = true")
		w.prepareHead(s, sha(2), nil)
		w.sql("UPDATE snapshots SET cold = false")
		newer := w.work(s, wire.WorkRefresh)
		offers := []*wire.Work{older, newer}
		if round%2 == 1 {
			offers = []*wire.Work{newer, older}
		}
		var both sync.WaitGroup
		for _, work := range offers {
			run := func() {
				if err := s.Offer(context.Background(), "n1", offerOf(work)); err != nil {
					t.Error(err)
				}
			}
			if round < 2 {
				run()
			} else {
				both.Go(run)
			}
		}
		both.Wait()
		if cur := w.current(older.Refresh.Environment); cur.ID != newer.Refresh.Snapshot {
			t.Errorf("round %d: current is generation %d", round, cur.Generation)
		}
		if sn, err := w.db.Q().GetSnapshot(context.Background(), older.Refresh.Snapshot); err != nil || sn.State != snapshotRetired || sn.IsCurrent {
			t.Errorf("round %d: the older is %+v (%v)", round, sn, err)
		}
	}
}

func TestOfferOfWorkThatIsOutOfTheNodesHands(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sp := testSpec()
	w.prepareHead(s, sha(1), &sp)
	work := w.work(s, wire.WorkRefresh)
	if err := s.NodeState(ctx, "n1", wire.NodeState{Instance: "another"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Offer(ctx, "n1", offerOf(work)); codeOf(err) != codeUnavailable {
		t.Fatalf("an offer of a daemon that is gone: %v", err)
	}
	again := w.work(s, wire.WorkRefresh)
	o := offerOf(again)
	o.From = "snap-other"
	if err := s.Offer(ctx, "n1", o); codeOf(err) != codeBadRequest {
		t.Fatalf("made from something else: %v", err)
	}
	w.offer(s, again)
	if cur := w.current(work.Refresh.Environment); cur.ID != work.Refresh.Snapshot {
		t.Fatalf("current %+v", cur)
	}
}

// looker stands in for what reads GitHub.
type looker struct {
	mu    sync.Mutex
	w     *world
	s     *Scheduler
	head  string
	err   error
	looks int
	more  func() // during a look
}

func (l *looker) look(ctx context.Context, repository int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looks++
	if l.more != nil {
		l.more()
	}
	if l.err != nil {
		return l.err
	}
	sp := testSpec()
	return l.w.db.InTx(ctx, func(tx *storage.Tx) error {
		return l.s.Prepare(ctx, tx, Head{RepositoryID: repository, Branch: "main", Commit: l.head, Spec: &sp})
	})
}

func newLooker(w *world) (*looker, *Scheduler) {
	l := &looker{w: w, head: baseSHA}
	w.o.Look = func(ctx context.Context, id int64) error { return l.look(ctx, id) }
	l.s = w.scheduler()
	return l, l.s
}

func (w *world) lookAt() storage.Repository {
	w.t.Helper()
	r, err := w.db.Q().GetRepositoryRow(context.Background(), 42)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func TestLooksFollowTheSchedule(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	l, s := newLooker(w)
	due := func() bool {
		t.Helper()
		ids, err := w.db.Q().DueLooks(ctx, storage.DueLooksParams{Now: w.clock.Now(), AtMost: 10})
		if err != nil {
			t.Fatal(err)
		}
		if len(ids) == 0 {
			return false
		}
		if err := s.look(ctx, 42); err != nil && !errors.Is(err, l.err) {
			t.Fatal(err)
		}
		w.nodeAlive(s)
		return true
	}
	if w.clock.Advance(time.Hour); due() {
		t.Fatal("looked at a repository that nobody uses")
	}
	w.create(s)
	w.prepare(s)
	used := w.clock.Now()
	var at []time.Duration
	for range 14 {
		w.clock.Advance(10 * time.Minute)
		if due() {
			at = append(at, w.clock.Now().Sub(used))
		}
	}
	if got := fmt.Sprint(at); got != "[30m0s 1h0m0s 1h30m0s 2h0m0s]" {
		t.Errorf("looked after %s", got)
	}
	if n := len(w.open()); n != 0 {
		t.Errorf("%d refreshes of an unchanged commit", n)
	}
	// A look that fails is repeated after a growing wait, and says why.
	l.err = errFake
	w.clock.Advance(time.Hour)
	due()
	r := w.lookAt()
	if r.LookTries != 1 || !strings.Contains(r.LookError, errFake.Error()) || !r.LookAt.Time.After(w.clock.Now()) || r.LookAt.Time.After(w.clock.Now().Add(time.Minute)) {
		t.Errorf("after a failure %+v", r)
	}
	for range 20 {
		w.clock.Advance(time.Hour)
		due()
	}
	if r := w.lookAt(); r.LookAt.Time.Sub(w.clock.Now()) > lookRetry || r.LookTries < 20 {
		t.Errorf("after many failures %+v", r)
	}
	l.err = nil
	w.clock.Advance(time.Hour)
	due()
	if r := w.lookAt(); r.LookTries != 0 || r.LookError != "" || r.HeadSha != baseSHA || r.HeadEnvironment == "" {
		t.Errorf("after a success %+v", r)
	}
	// Nobody uses it any more: no further looks, until somebody does or asks.
	w.clock.Advance(usedWithin)
	due()
	if r := w.lookAt(); r.LookAt.Valid {
		t.Errorf("looked at again at %s", r.LookAt.Time)
	}
	before := l.looks
	if err := w.db.InTx(ctx, func(tx *storage.Tx) error { return s.Pushed(ctx, tx, 42) }); err != nil {
		t.Fatal(err)
	}
	if w.lookAt().LookAt.Valid {
		t.Error("a push to a repository that nobody uses is looked at")
	}
	if err := AskBuild(ctx, w.db.Q(), 42, false, w.clock.Now()); err != nil {
		t.Fatal(err)
	}
	if due(); l.looks != before+1 || w.lookAt().Build != "" {
		t.Errorf("%d looks after somebody asked: %+v", l.looks-before, w.lookAt())
	}
}

func TestPushDuringALookIsLookedAtAgain(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	l, s := newLooker(w)
	w.create(s)
	w.prepare(s)
	pushed := func() {
		if err := w.db.InTx(ctx, func(tx *storage.Tx) error { return s.Pushed(ctx, tx, 42) }); err != nil {
			t.Error(err)
		}
	}
	pushed()
	pushed()
	l.head = sha(1)
	l.more = func() {
		if l.looks == 1 {
			pushed()
			if err := s.look(ctx, 42); !errors.Is(err, errBusy) {
				t.Errorf("two looks at once: %v", err)
			}
		}
	}
	for range 3 {
		if err := s.look(ctx, 42); err != nil {
			t.Fatal(err)
		}
	}
	if l.looks != 2 {
		t.Errorf("%d looks, want one for the pushes before it and one for the push during it", l.looks)
	}
	if work := w.work(s, wire.WorkRefresh); work.Refresh.Commit != sha(1) || len(w.open()) != 1 {
		t.Errorf("refresh %+v", work.Refresh)
	}
}

func TestHeadWhoseSecretIsMissing(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	l, s := newLooker(w)
	w.create(s)
	l.err = &secrets.Problem{Words: "the secret NPM_TOKEN is not set"}
	if err := AskBuild(ctx, w.db.Q(), 42, false, w.clock.Now()); err != nil {
		t.Fatal(err)
	}
	if err := s.look(ctx, 42); err != nil {
		t.Fatal(err)
	}
	if r := w.lookAt(); r.HeadWords != "the secret NPM_TOKEN is not set" || r.LookTries != 0 || r.HeadEnvironment != "" || r.Build != "" {
		t.Errorf("%+v", r)
	}
}

// The queue finds what is due by itself.
func TestSchedulerLooksAfterAPush(t *testing.T) {
	w := newWorld(t)
	w.fast()
	l, s := newLooker(w)
	w.nodeAlive(s)
	w.create(s)
	w.prepare(s)
	l.head = sha(9)
	stop := runs(t, s)
	if err := w.db.InTx(context.Background(), func(tx *storage.Tx) error { return s.Pushed(context.Background(), tx, 42) }); err != nil {
		t.Fatal(err)
	}
	w.eventually("a refresh after a push", func() bool { return len(w.open()) == 1 })
	stop()
}

// An installation may be heard of before the node daemon is up.
func TestFirstRefreshWaitsForItsNode(t *testing.T) {
	w := newWorld(t)
	w.sql("UPDATE nodes SET state = '{}', seen_at = NULL")
	s := w.scheduler()
	sp := testSpec()
	w.prepareHead(s, sha(1), &sp)
	w.nodeAlive(s)
	w.offer(s, w.work(s, wire.WorkRefresh))
	// One that has a snapshot and is away is asked when it is back.
	w.clock.Advance(time.Hour)
	w.prepareHead(s, sha(2), nil)
	if got := w.open(); len(got) != 0 {
		t.Errorf("refreshes of a node that is away: %v", got)
	}
}
