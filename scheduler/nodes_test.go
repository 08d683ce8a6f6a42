package scheduler

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/storage"
)

func TestNodesWorkIsLeased(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	if _, err := s.AuthenticateNode(ctx, "x"); codeOf(err) != codeUnauthorized {
		t.Fatalf("a stranger: %v", err)
	}
	if name, err := s.AuthenticateNode(ctx, nodeToken); err != nil || name != "n1" {
		t.Fatalf("got %q, %v", name, err)
	}
	if err := s.RegisterNode(ctx, "Bad Name", hashOf("x")); err == nil {
		t.Fatal("a bad name was taken")
	}
	if _, err := s.NodeGitToken(ctx, "n1", wire.GitTokenRequest{RepositoryID: 42}); codeOf(err) != codeNotFound {
		t.Fatalf("a token without work: %v", err)
	}
	rich := func(n *NewSession) {
		n.Spec.Egress, n.Spec.Data.Load = []string{"go"}, spec.Steps("psql -f seed.sql")
		n.Spec.Services = []spec.Service{{Name: "postgres", Command: "postgres", Ready: "pg_isready", Stop: "pg_ctl stop", Port: 5432}}
	}
	sess := w.create(s, rich)
	first := w.work(s, wire.WorkRefresh)
	r := first.Refresh
	if want := []wire.Service{{Name: "postgres", Command: "postgres", Ready: "pg_isready", Stop: "pg_ctl stop", Port: 5432}}; !reflect.DeepEqual(r.Services, want) || !slices.Equal(r.Egress, []string{"go"}) || !reflect.DeepEqual(r.Load, []wire.Step{{Run: "psql -f seed.sql"}}) {
		t.Fatalf("services %+v, egress %v, load %v", r.Services, r.Egress, r.Load)
	}
	if r.Remote.URL != "https://git.example/octocat/hello.git" || r.Commit != baseSHA || len(r.Setup) != 1 || r.Generation != 1 || r.Timeout != 30*time.Minute {
		t.Fatalf("work %+v", r)
	}
	if tok, err := s.NodeGitToken(ctx, "n1", wire.GitTokenRequest{RepositoryID: 42}); err != nil || tok.Token != "ghs_42" {
		t.Fatalf("token %+v, %v", tok, err)
	}
	if _, err := s.NodeGitToken(ctx, "n1", wire.GitTokenRequest{RepositoryID: 43}); codeOf(err) != codeNotFound {
		t.Fatalf("a token for another repository: %v", err)
	}
	// In hand it stays leased; a daemon that forgot it gets it again.
	for range 5 {
		w.clock.Advance(50 * time.Second)
		if err := s.NodeState(ctx, "n1", wire.NodeState{Work: []int64{first.ID}}); err != nil {
			t.Fatal(err)
		}
	}
	w.clock.Advance(61 * time.Second)
	w.nodeAlive(s)
	if again := w.work(s, wire.WorkRefresh); again.ID != first.ID {
		t.Fatalf("got work %d", again.ID)
	}
	for name, edit := range map[string]func(*wire.SnapshotOffer){
		"commit":     func(o *wire.SnapshotOffer) { o.Commit = tipSHA },
		"digest":     func(o *wire.SnapshotOffer) { o.ConfigDigest = "x" },
		"generation": func(o *wire.SnapshotOffer) { o.Generation = 2 },
		"snapshot":   func(o *wire.SnapshotOffer) { o.Snapshot = "other" },
		"bytes":      func(o *wire.SnapshotOffer) { o.Bytes = -1 },
	} {
		o := offerOf(first)
		edit(&o)
		if err := s.Offer(ctx, "n1", o); codeOf(err) != codeBadRequest {
			t.Errorf("an offer of another %s: %v", name, err)
		}
	}
	if err := s.WorkDone(ctx, "n2", first.ID, wire.WorkResult{}); codeOf(err) != codeNotFound {
		t.Fatalf("another node's work: %v", err)
	}
	if len(w.effects.tokensDone) > 0 {
		t.Fatal("the token was taken away from a node at work")
	}
	for range 2 {
		if err := s.Offer(ctx, "n1", offerOf(first)); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Contains(w.effects.tokensDone, 42) {
		t.Error("the token is good beyond the work")
	}
	w.want(sess.ID, Placing, "")
	// A newer one takes its place; the old one is kept while its attempt lives.
	w.sql("UPDATE snapshots SET state = 'retired' WHERE id = $1", r.Snapshot)
	w.create(s, rich)
	w.sql("UPDATE snapshots SET state = 'ready' WHERE id = $1", r.Snapshot)
	next := w.prepare(s)
	refs, err := s.Refs(ctx, "n1")
	if err != nil || len(refs.Sessions) != 2 || len(refs.Snapshots) != 2 {
		t.Fatalf("refs %+v, %v", refs, err)
	}
	w.sql("UPDATE attempts SET reaped_at = now()")
	refs, err = s.Refs(ctx, "n1")
	if err != nil || len(refs.Sessions) != 0 || len(refs.Snapshots) != 1 || refs.Snapshots[0] != next {
		t.Fatalf("refs %+v, %v", refs, err)
	}
	// The mirror is kept as long as anything may need it, and then it is said so.
	for _, over := range []string{"UPDATE snapshots SET state = 'retired'", "UPDATE environments SET used_at = '2000-01-01'", "UPDATE sessions SET state = 'stopped', finished_at = now()"} {
		if refs, err = s.Refs(ctx, "n1"); err != nil || len(refs.Repositories) != 1 || refs.Repositories[0] != 42 {
			t.Fatalf("before %s: %+v, %v", over, refs, err)
		}
		w.sql(over)
	}
	if refs, err = s.Refs(ctx, "n1"); err != nil || refs.Repositories == nil || len(refs.Repositories) != 0 {
		t.Fatalf("refs %+v, %v", refs, err)
	}
}

func TestRefreshThatANodeNeverEndsFails(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess := w.create(s)
	w.work(s, wire.WorkRefresh)
	w.clock.Advance(time.Hour + time.Second)
	w.nodeAlive(s)
	done, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := s.NextWork(done, "n1")
		ended <- err
	}()
	if err := w.clock.BlockUntil(ctx, 1); err != nil { // nothing left to hand out
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; codeOf(err) != codeUnavailable {
		t.Fatalf("an interrupted poll: %v", err)
	}
	w.look(s, sess.ID)
	if got := w.want(sess.ID, Failed, ReasonSnapshotRefused); !strings.Contains(got.Words, "n1 began to prepare it 1 times") {
		t.Fatalf("words %q", got.Words)
	}
}

func TestNewCommitsAreFetchedBeforePlacing(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	w.create(s)
	w.prepare(s)
	drifted := func(n *NewSession) { n.BaseSHA = tipSHA }
	sess := w.create(s, drifted)
	w.look(s, sess.ID)
	if got := w.want(sess.ID, Queued, ""); !strings.Contains(got.QueueReason, "fetching the commits") {
		t.Fatalf("queue reason %q", got.QueueReason)
	}
	work := w.work(s, wire.WorkFetch)
	if work.Fetch.Commit != tipSHA || work.Fetch.Remote.RepositoryID != 42 {
		t.Fatalf("fetch %+v", work.Fetch)
	}
	// GitHub is away for a while.
	for range 2 {
		if err := s.WorkDone(ctx, "n1", work.ID, wire.WorkResult{Words: "502 Bad Gateway"}); err != nil {
			t.Fatal(err)
		}
		w.look(s, sess.ID)
		w.want(sess.ID, Queued, "")
		w.clock.Advance(30 * time.Second)
		w.nodeAlive(s)
		if again := w.work(s, wire.WorkFetch); again.ID != work.ID {
			t.Fatalf("got work %d", again.ID)
		}
	}
	if err := s.WorkDone(ctx, "n1", work.ID, wire.WorkResult{OK: true}); err != nil {
		t.Fatal(err)
	}
	w.want(sess.ID, Placing, "")
	third := w.create(s, drifted) // the same commit need not be fetched again
	w.sql("UPDATE sessions SET state = 'stopped', finished_at = now() WHERE id <> $1", third.ID)
	w.look(s, third.ID)
	w.want(third.ID, Placing, "")
}

func TestFetchThatNeverSucceedsEndsTheSession(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	w.create(s)
	w.prepare(s)
	sess := w.create(s, func(n *NewSession) { n.BaseSHA = tipSHA })
	w.look(s, sess.ID)
	for range maxFetches {
		work := w.work(s, wire.WorkFetch)
		if err := s.WorkDone(ctx, "n1", work.ID, wire.WorkResult{Words: "the commit is gone"}); err != nil {
			t.Fatal(err)
		}
		w.clock.Advance(2 * time.Minute)
		w.nodeAlive(s)
	}
	w.look(s, sess.ID)
	if got := w.want(sess.ID, Infrastructure, ReasonSync); !strings.Contains(got.Words, "the commit is gone") {
		t.Fatalf("words %q", got.Words)
	}
}

func TestQueueReasonsAreInWords(t *testing.T) {
	w := newWorld(t)
	w.sql("DELETE FROM nodes")
	s := w.scheduler()
	sess := w.create(s)
	reason := func(id string) string {
		t.Helper()
		w.look(s, id)
		return w.want(id, Queued, "").QueueReason
	}
	if got := reason(sess.ID); got != "no node is connected" {
		t.Fatalf("queue reason %q", got)
	}
	if err := s.RegisterNode(context.Background(), "n1", hashOf(nodeToken)); err != nil {
		t.Fatal(err)
	}
	w.nodeAlive(s)
	if got := reason(sess.ID); got != "building the snapshot" {
		t.Fatalf("queue reason %q", got)
	}
	w.prepare(s)
	w.want(sess.ID, Placing, "")
	concurrent := func(n *NewSession) { n.Spec.Limits.Concurrent = 1 }
	if got := reason(w.create(s, concurrent).ID); got != "limit 1 of octocat/hello reached" {
		t.Fatalf("queue reason %q", got)
	}
	other := func(n *NewSession) { n.RepositoryID = 43; n.Spec.Limits.Concurrent = 1 }
	o := w.create(s, other)
	w.prepare(s)
	w.want(o.ID, Placing, "")
	third := w.create(s, func(n *NewSession) { n.Spec.Limits.Concurrent = 9 })
	if got := reason(third.ID); got != "all 2 slots are taken" {
		t.Fatalf("queue reason %q", got)
	}
	fourth := w.create(s, func(n *NewSession) { n.Spec.Limits.Concurrent = 9 })
	if got := reason(fourth.ID); got != "all 2 slots are taken" || w.get(fourth.ID).QueuePosition != 3 || w.get(third.ID).QueuePosition != 2 {
		t.Fatalf("queue reason %q at %d", got, w.get(fourth.ID).QueuePosition)
	}
	w.clock.Advance(46 * time.Second)
	if got := reason(third.ID); got != "waiting for node n1, which has or builds the snapshot and is not connected" {
		t.Fatalf("queue reason %q", got)
	}
}

func TestEnvironmentsAreSharedByDigest(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	ensure := func(sp spec.Spec) (id string) {
		t.Helper()
		err := w.db.InTx(ctx, func(tx *storage.Tx) (err error) {
			id, err = s.EnsureEnvironment(ctx, tx, 42, sp, "main", baseSHA)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	a := testSpec()
	b := a
	b.Limits.Timeout = time.Minute
	c := a
	c.Setup = spec.Steps("make")
	if first, second := ensure(a), ensure(a); first != second || ensure(a) != ensure(b) || ensure(a) == ensure(c) || !strings.HasPrefix(ensure(a), "env-42-") {
		t.Fatal("environments are told apart by the wrong things")
	}
	rows, err := w.db.Q().OpenWork(ctx, "n1")
	if err != nil || len(rows) != 2 {
		t.Fatalf("%d refreshes, want one for each environment (%v)", len(rows), err)
	}
}

func TestSnapshotThatANodeLostIsPreparedAnew(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	w.create(s)
	id := w.prepare(s)
	says := func(has ...string) {
		t.Helper()
		if err := s.NodeState(ctx, "n1", wire.NodeState{Snapshots: has}); err != nil {
			t.Fatal(err)
		}
	}
	current := func() string {
		t.Helper()
		sn, err := w.db.Q().GetSnapshot(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		return sn.State
	}
	says([]string{}...)
	w.clock.Advance(2 * time.Minute)
	says(id, "other")
	if current() != snapshotReady {
		t.Fatal("retired although the node has it")
	}
	if err := s.NodeState(ctx, "n1", wire.NodeState{Snapshots: []string{}}); err != nil {
		t.Fatal(err)
	}
	if current() != snapshotRetired {
		t.Fatal("not retired although the node lost it")
	}
	sess := w.create(s)
	w.prepare(s)
	w.want(sess.ID, Placing, "")
}
