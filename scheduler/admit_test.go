package scheduler

import (
	"context"
	"database/sql"
	"sync"
	"testing"
	"time"

	"inspect/envs/wire"
	"inspect/storage"
)

func TestLimitsOfOwnersAndInstallations(t *testing.T) {
	w := newWorld(t)
	w.o.Limits = Limits{Total: 10, PerOwner: 2, PerInstallation: 3}
	s := w.scheduler()
	w.sql("INSERT INTO repositories (id, installation_id, owner, name, default_branch) VALUES (44, 7, 'hubot', 'app', 'main')")
	w.ready(s)
	one := w.create(s)
	two := w.create(s, func(n *NewSession) { n.RepositoryID = 43 })
	w.prepare(s)
	w.want(one.ID, Placing, "")
	w.want(two.ID, Placing, "")
	third := w.create(s)
	w.look(s, third.ID)
	w.waits(third.ID, "limit 2 of octocat reached")
	four := w.create(s, func(n *NewSession) { n.RepositoryID = 44 })
	w.prepare(s)
	w.want(four.ID, Placing, "")
	five := w.create(s, func(n *NewSession) { n.RepositoryID = 44 })
	w.look(s, five.ID)
	w.waits(five.ID, "limit 3 of installation 7 reached")
}

func TestOpenPullRequestsAwaitReview(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	w.ready(s)
	few := func(n *NewSession) { n.Spec.Limits.OpenPullRequests = 1 }
	first, r := w.running(s, few)
	w.verified(s, r)
	w.look(s, first.ID)
	w.want(first.ID, Delivered, "")
	sess := w.create(s, few)
	w.look(s, sess.ID)
	w.waits(sess.ID, "1 pull request of octocat/hello awaits review")
	free := w.create(s)
	w.look(s, free.ID)
	w.want(free.ID, Placing, "")
	if err := w.db.Q().SetPullRequestClosed(context.Background(), storage.SetPullRequestClosedParams{
		RepositoryID: 42, PullRequest: 5, ClosedAt: sql.NullTime{Time: w.clock.Now(), Valid: true},
	}); err != nil {
		t.Fatal(err)
	}
	w.sweep(s)
	w.want(sess.ID, Placing, "")
}

// One person's pull requests hold up that person's sessions, and nobody else's;
// and none that opens no pull request.
func TestOpenPullRequestsOfARequester(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	w.ready(s)
	few := func(n *NewSession) { n.Spec.Limits.OpenPullRequestsEach = 1 }
	first, r := w.running(s, few)
	w.verified(s, r)
	w.look(s, first.ID)
	w.want(first.ID, Delivered, "")
	sess := w.create(s, few)
	w.look(s, sess.ID)
	w.waits(sess.ID, "1 pull request of octocat/hello that octocat asked for awaits review")
	other := w.create(s, few, func(n *NewSession) { n.RequesterID, n.RequesterLogin = 2, "hubot" })
	w.look(s, other.ID)
	w.want(other.ID, Placing, "")
	onHead := w.create(s, few, func(n *NewSession) { n.Spec.Limits.OpenPullRequests = 1 })
	if _, err := w.db.SQL().Exec(`UPDATE sessions SET deliver = 'head' WHERE id = $1`, onHead.ID); err != nil {
		t.Fatal(err)
	}
	w.look(s, onHead.ID)
	w.want(onHead.ID, Placing, "")
}

func TestPositionAndSince(t *testing.T) {
	w := newWorld(t)
	w.o.Limits.Total = 1
	s := w.scheduler()
	w.ready(s)
	running := w.create(s)
	w.look(s, running.ID)
	w.look(s, running.ID)
	var ids []string
	for i := range 20 {
		ids = append(ids, w.create(s, func(n *NewSession) { n.Priority = i % 2 }).ID)
	}
	w.look(s, ids[0])
	since := w.get(ids[0]).QueueAt.Time
	position := func(id string, want int32) {
		t.Helper()
		if got := w.waits(id, "the one slot is taken"); got.QueuePosition != want {
			t.Errorf("position %d, want %d", got.QueuePosition, want)
		}
	}
	position(ids[1], 1)
	position(ids[19], 10)
	position(ids[0], 11)
	position(ids[18], 20)
	w.clock.Advance(time.Minute)
	w.nodeAlive(s)
	w.over(s, running.ID)
	w.want(ids[1], Placing, "")
	position(ids[3], 1)
	position(ids[18], 19)
	if got := w.get(ids[0]); !got.QueueAt.Time.Equal(since) {
		t.Errorf("it waits since %s, and since %s", since, got.QueueAt.Time)
	}
}

// Sixty sessions for four slots: they start in order of priority, then age, and
// no slot is free for long while one waits.
func TestSixtySessionsForFourSlots(t *testing.T) {
	w := newWorld(t)
	w.fast()
	w.o.Times.Check = 10 * time.Second // as in life: nobody is found by chance
	w.o.Times.Sweep = time.Second
	w.o.Limits.Total = 4
	p := &fakePlacer{fakeEngine: w.engine, room: []NodeRoom{{Node: "n1", Eligible: true, CPU: 100, Memory: 1000 * gib}}, waiting: map[string]Wait{}}
	w.o.Engine = p
	a, b := w.scheduler(), w.scheduler()
	w.nodeAlive(a)
	w.ready(a)
	w.sql("UPDATE nodes SET draining = true")
	for i := range 60 {
		w.create(a, func(n *NewSession) { n.Priority, n.Spec.Limits.Concurrent = i%3, 100 })
	}
	var runners sync.WaitGroup
	w.engine.onStart = func(at Attempt) {
		runners.Go(func() {
			ctx := context.Background()
			var reply wire.TokenReply
			w.eventually("a token", func() (ok bool) {
				var err error
				reply, err = a.Exchange(ctx, wire.TokenRequest{Session: at.Session, Generation: at.Generation, Secret: at.Secret})
				return err == nil
			})
			r, err := a.Authenticate(ctx, reply.Token)
			if err != nil {
				t.Error(err)
				return
			}
			sum := w.bundle(a, r, 1, "a bundle of "+at.Session)
			if err := b.Outcome(ctx, r, goodOutcome(sum)); err != nil {
				t.Error(err)
			}
			w.engine.kill(at.Session)
		})
	}
	runs(t, a)
	runs(t, b)
	w.sql("UPDATE nodes SET draining = false")
	w.eventually("all are delivered", func() bool {
		var n int
		_ = w.db.SQL().QueryRow("SELECT count(*) FROM sessions WHERE state = 'delivered'").Scan(&n)
		return n == 60
	})
	runners.Wait()
	rows, err := w.db.SQL().Query(`SELECT s.priority, s.created_at, a.started_at FROM attempts a JOIN sessions s ON s.id = a.session_id ORDER BY a.started_at`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var starts []time.Time
	lastPriority, lastCreated := 3, time.Time{}
	for rows.Next() {
		var priority int
		var created, started time.Time
		if err := rows.Scan(&priority, &created, &started); err != nil {
			t.Fatal(err)
		}
		if priority > lastPriority || priority == lastPriority && created.Before(lastCreated) {
			t.Errorf("start %d is of priority %d, created %s, after one of %d, created %s", len(starts)+1, priority, created, lastPriority, lastCreated)
		}
		lastPriority, lastCreated = priority, created
		starts = append(starts, started)
	}
	var ends []time.Time
	ended, err := w.db.SQL().Query("SELECT ended_at FROM attempts ORDER BY ended_at")
	if err != nil {
		t.Fatal(err)
	}
	defer ended.Close()
	for ended.Next() {
		var at time.Time
		if err := ended.Scan(&at); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, at)
	}
	if len(starts) != 60 || len(ends) != 60 {
		t.Fatalf("%d starts, %d ends", len(starts), len(ends))
	}
	for i := 4; i < 60; i++ {
		if free := starts[i].Sub(ends[i-4]); free > 2*time.Second {
			t.Errorf("a slot was free for %s before start %d", free, i+1)
		}
	}
}
