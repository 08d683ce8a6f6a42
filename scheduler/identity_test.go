package scheduler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"inspect/envs/wire"
	"inspect/storage"
)

// vouchingEngine vouches for the runners it was told of.
type vouchingEngine struct {
	*fakeEngine
	tokens map[string]Identity
	err    error
}

func (e *vouchingEngine) Identify(_ context.Context, token string) (Identity, error) {
	if e.err != nil {
		return Identity{}, e.err
	}
	id, ok := e.tokens[token]
	if !ok {
		return Identity{}, errors.New("the signature is nobody's")
	}
	return id, nil
}

func newVouchingWorld(t *testing.T) (*world, *vouchingEngine) {
	w := newWorld(t)
	e := &vouchingEngine{fakeEngine: w.engine, tokens: map[string]Identity{}}
	w.o.Engine = e
	return w, e
}

// placed is a session whose attempt the engine was asked for.
func (w *world) placed(s *Scheduler) storage.Session {
	w.t.Helper()
	sess := w.look(s, w.create(s).ID)
	if sess.State == Queued {
		w.prepare(s)
	}
	return w.look(s, sess.ID)
}

func TestIdentityOfAWorkload(t *testing.T) {
	ctx := context.Background()
	w, e := newVouchingWorld(t)
	s := w.scheduler()
	sess := w.placed(s)
	right := Identity{Session: sess.ID, Generation: 1, Allocation: "alloc-1", Node: "n1"}
	for token, edit := range map[string]func(*Identity){
		"good":          func(*Identity) {},
		"other session": func(i *Identity) { i.Session = "aaaaaaaaaa" },
		"next attempt":  func(i *Identity) { i.Generation = 2 },
		"no allocation": func(i *Identity) { i.Allocation = "" },
		"second":        func(i *Identity) { i.Allocation = "alloc-2" },
	} {
		id := right
		edit(&id)
		e.tokens[token] = id
	}
	ask := func(token string) (wire.TokenReply, error) {
		return s.Exchange(ctx, wire.TokenRequest{Session: sess.ID, Generation: 1, JWT: token})
	}
	if a, _ := e.last(sess.ID); a.Secret != "" || len(w.attemptOf(sess.ID).SecretHash) > 0 {
		t.Error("an attempt whose runner proves itself has a secret")
	}
	if _, err := s.Exchange(ctx, wire.TokenRequest{Session: sess.ID, Generation: 1, Secret: s.runnerSecret(sess.ID, 1)}); codeOf(err) != codeUnauthorized {
		t.Errorf("a secret opened it: %v", err)
	}
	for _, bad := range []string{"forged", "other session", "next attempt", "no allocation", strings.Repeat("x", maxJWT+1)} {
		if _, err := ask(bad); codeOf(err) != codeUnauthorized {
			t.Errorf("%.20s: %v", bad, err)
		}
	}
	if _, err := s.Exchange(ctx, wire.TokenRequest{Session: sess.ID, Generation: 1, JWT: "good", Secret: "too"}); codeOf(err) != codeUnauthorized {
		t.Errorf("two proofs: %v", err)
	}
	e.err = fmt.Errorf("the cluster is away: %w", ErrIdentityUnknown)
	if _, err := ask("good"); codeOf(err) != codeUnavailable {
		t.Errorf("it cannot be told now: %v", err)
	}
	e.err = nil
	w.sql("UPDATE attempts SET engine_ref = NULL, engine = 'other' WHERE session_id = $1", sess.ID)
	if _, err := ask("good"); codeOf(err) != codeUnauthorized {
		t.Errorf("of another engine's attempt: %v", err)
	}
	w.sql("UPDATE attempts SET engine = 'fake' WHERE session_id = $1", sess.ID)
	if _, err := ask("good"); codeOf(err) != codeUnavailable {
		t.Errorf("before its engine has answered: %v", err)
	}
	if w.attemptOf(sess.ID).Allocation != "" {
		t.Fatal("a refused identity was pinned")
	}
	w.look(s, sess.ID)

	first, err := ask("good")
	if err != nil {
		t.Fatal(err)
	}
	again, err := ask("good") // its answer got lost, or it was started again
	if err != nil || again.Token == first.Token {
		t.Fatalf("shown again: %v", err)
	}
	for _, token := range []string{first.Token, again.Token} {
		if _, err := s.Authenticate(ctx, token); err != nil {
			t.Error(err)
		}
	}
	if _, err := ask("second"); codeOf(err) != codeUnauthorized {
		t.Errorf("a second allocation of the attempt: %v", err)
	}
	if a := w.attemptOf(sess.ID); a.Allocation != "alloc-1" || a.Node != "n1" {
		t.Errorf("pinned %q on %q", a.Allocation, a.Node)
	}
	// Its attempt is given up: neither the identity nor the tokens count.
	e.kill(sess.ID)
	w.look(s, sess.ID)
	if _, err := ask("good"); codeOf(err) != codeStale {
		t.Errorf("of an old attempt: %v", err)
	}
	if _, err := s.Authenticate(ctx, again.Token); codeOf(err) != codeStale {
		t.Errorf("of an old attempt: %v", err)
	}
}

func TestIdentityWhereTheEngineVouchesForNobody(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sess := w.placed(s)
	if _, err := s.Exchange(context.Background(), wire.TokenRequest{Session: sess.ID, Generation: 1, JWT: "x"}); codeOf(err) != codeUnauthorized {
		t.Fatal(err)
	}
}

// Two allocations of one attempt come at the same moment: one is pinned.
func TestOneAllocationIsPinned(t *testing.T) {
	ctx := context.Background()
	w, e := newVouchingWorld(t)
	s := w.scheduler()
	sess := w.placed(s)
	const callers = 6
	for i := range callers {
		e.tokens[fmt.Sprint(i)] = Identity{Session: sess.ID, Generation: 1, Allocation: fmt.Sprint("alloc-", i%2), Node: "n1"}
	}
	errs := make([]error, callers)
	done := make(chan int)
	for i := range callers {
		go func() {
			_, errs[i] = s.Exchange(ctx, wire.TokenRequest{Session: sess.ID, Generation: 1, JWT: fmt.Sprint(i)})
			done <- i
		}()
	}
	for range callers {
		<-done
	}
	pinned := w.attemptOf(sess.ID).Allocation
	for i, err := range errs {
		if mine := fmt.Sprint("alloc-", i%2) == pinned; mine && err != nil || !mine && codeOf(err) != codeUnauthorized {
			t.Errorf("%s is pinned, caller %d: %v", pinned, i, err)
		}
	}
}

func TestTheEnginesNodeBecomesTheAttempts(t *testing.T) {
	ctx := context.Background()
	w, e := newVouchingWorld(t)
	s := w.scheduler()
	sess := w.placed(s)
	first := w.attemptOf(sess.ID)
	e.tokens["stranger"] = Identity{Session: sess.ID, Generation: 1, Allocation: "a", Node: "n9"}
	e.tokens["n2"] = Identity{Session: sess.ID, Generation: 1, Allocation: "a", Node: "n2"}
	ask := func(token string) (wire.TokenReply, error) {
		return s.Exchange(ctx, wire.TokenRequest{Session: sess.ID, Generation: 1, JWT: token})
	}
	if _, err := ask("stranger"); codeOf(err) != codeUnauthorized || !strings.Contains(err.Error(), `"n9", which is not registered`) {
		t.Fatalf("of a machine that is no node of ours: %v", err)
	}
	if w.attemptOf(sess.ID).Allocation != "" {
		t.Fatal("a refused allocation was pinned")
	}
	if err := s.RegisterNode(ctx, "n2", hashOf("token of n2")); err != nil {
		t.Fatal(err)
	}
	// Nothing is there: the node will say so.
	reply, err := ask("n2")
	if err != nil {
		t.Fatal(err)
	}
	if a := w.attemptOf(sess.ID); a.Node != "n2" || a.SnapshotID != first.SnapshotID || w.get(sess.ID).Node != "n2" {
		t.Fatalf("the attempt is on %q with %s", a.Node, a.SnapshotID)
	}
	r, err := s.Authenticate(ctx, reply.Token)
	if err != nil {
		t.Fatal(err)
	}
	if sp, err := s.Spec(ctx, r); err != nil || grantNode(w, sp.WorkGrant) != "n2" {
		t.Fatalf("the grant is for %q, %v", grantNode(w, sp.WorkGrant), err)
	}

	// Another session: there are snapshots, one of an older commit.
	other := w.placed(s)
	e.tokens["other"] = Identity{Session: other.ID, Generation: 1, Allocation: "b", Node: "n2"}
	w.sql(`INSERT INTO snapshots (id, environment_id, node, generation, commit_sha, config_digest, created_at, newest_at, published_at, state, is_current, cold)
		SELECT v.id, environment_id, 'n2', v.g, v.sha, config_digest, $2, $2, $2, v.state, v.cur, false FROM snapshots,
		(VALUES ('there', 1, $3, 'ready', true), ('retired', 2, '1111111111111111111111111111111111111111', 'retired', false)) v(id, g, sha, state, cur) WHERE snapshots.id = $1`,
		first.SnapshotID, w.clock.Now(), strings.Repeat("3", 40))
	if err := s.NodeState(ctx, "n2", wire.NodeState{Version: 1, Snapshots: []string{"there"}, Work: []int64{}}); err != nil {
		t.Fatal(err)
	}
	if reply, err = s.Exchange(ctx, wire.TokenRequest{Session: other.ID, Generation: 1, JWT: "other"}); err != nil {
		t.Fatal(err)
	}
	if a := w.attemptOf(other.ID); a.SnapshotID != "there" || !strings.Contains(string(a.Taken.RawMessage), `"there"`) || w.get(other.ID).SnapshotID != "there" {
		t.Fatalf("the attempt has %s: %s", a.SnapshotID, a.Taken.RawMessage)
	}
	if r, err = s.Authenticate(ctx, reply.Token); err != nil {
		t.Fatal(err)
	}
	// Its commit is fetched there first.
	if _, err := s.Spec(ctx, r); codeOf(err) != codeUnavailable {
		t.Fatalf("before the commit is there: %v", err)
	}
	work, err := s.NextWork(ctx, "n2")
	if err != nil || work.Fetch == nil || work.Fetch.Commit != baseSHA {
		t.Fatalf("%+v, %v", work, err)
	}
	if err := s.WorkDone(ctx, "n2", work.ID, wire.WorkResult{OK: true}); err != nil {
		t.Fatal(err)
	}
	sp, err := s.Spec(ctx, r)
	if err != nil || sp.SnapshotID != "there" || grantNode(w, sp.VerifyGrant) != "n2" {
		t.Fatalf("%+v, %v", sp, err)
	}
	if err := VerifyEvents(ctx, w.db.Q(), other.ID, "", 0); err != nil {
		t.Fatal(err)
	}
}

func grantNode(w *world, text string) string {
	for _, n := range []string{"n1", "n2"} {
		if _, err := wire.OpenGrant(publicKey(w), text, n, wire.VerbRestore, 1234, w.clock.Now()); err == nil {
			return n
		}
	}
	return ""
}

// The control plane was away for longer than tokens live. The last token of a
// living attempt that has no identity can be renewed, and nothing else.
func TestTokensAfterALongAbsence(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s)
	w.phase(s, r, "working")
	oldest := r.bearer
	renew := func(bearer string) (string, error) {
		r, err := s.AuthenticateBeat(ctx, bearer)
		if err != nil {
			return "", err
		}
		reply, err := s.Beat(ctx, r, wire.Heartbeat{Phase: "working"})
		if life := reply.Expires.Sub(w.clock.Now()); err == nil && life > tokenLife {
			t.Errorf("a token of %s", life)
		}
		return reply.Token, err
	}
	for _, away := range []time.Duration{2 * time.Minute, tokenLife, 40 * time.Minute} {
		w.clock.Advance(away)
		if _, err := s.Authenticate(ctx, r.bearer); away >= tokenLife && codeOf(err) != codeUnauthorized {
			t.Fatalf("after %s the token is good for anything: %v", away, err)
		}
		for range 2 { // the first answer gets lost
			token, err := renew(r.bearer)
			if err != nil {
				t.Fatalf("after %s: %v", away, err)
			}
			if away > tokenLife && token == r.bearer {
				t.Fatal("not renewed")
			}
			if away == 40*time.Minute {
				continue
			}
			r.bearer = token
		}
	}
	if _, err := renew(oldest); codeOf(err) != codeUnauthorized {
		t.Fatalf("a token that was replaced twice: %v", err)
	}
	now, err := renew(r.bearer)
	if err != nil {
		t.Fatal(err)
	}
	// Never beyond its time, and never of one that does not count.
	a := w.attemptOf(sess.ID)
	w.clock.Set(a.Deadline.Add(tokenSlack))
	if _, err := renew(now); codeOf(err) != codeUnauthorized {
		t.Fatalf("after the attempt's time: %v", err)
	}
	w.look(s, sess.ID) // began at its very start, so the deadline counts
	if _, err := renew(now); codeOf(err) != codeStale {
		t.Fatalf("after its end: %v", err)
	}
}

// With an identity an expired token is worth nothing: it is shown again.
func TestIdentityAfterALongAbsence(t *testing.T) {
	ctx := context.Background()
	w, e := newVouchingWorld(t)
	s := w.scheduler()
	sess := w.placed(s)
	e.tokens["jwt"] = Identity{Session: sess.ID, Generation: 1, Allocation: "a", Node: "n1"}
	ask := wire.TokenRequest{Session: sess.ID, Generation: 1, JWT: "jwt"}
	first, err := s.Exchange(ctx, ask)
	if err != nil || first.Expires.Sub(w.clock.Now()) != tokenLife {
		t.Fatalf("%s, %v", first.Expires.Sub(w.clock.Now()), err)
	}
	w.clock.Advance(tokenLife)
	if _, err := s.AuthenticateBeat(ctx, first.Token); codeOf(err) != codeUnauthorized {
		t.Fatal(err)
	}
	second, err := s.Exchange(ctx, ask)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Authenticate(ctx, first.Token); codeOf(err) != codeUnauthorized {
		t.Fatalf("the expired one is good again: %v", err)
	}
	if _, err := s.Authenticate(ctx, second.Token); err != nil {
		t.Fatal(err)
	}
}

// A control plane that comes back first hears the runners, then the clock.
func TestRunnersAreHeardAfterAnAbsence(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s)
	w.phase(s, r, "working")
	lost, _ := w.running(s)
	w.clock.Set(w.get(sess.ID).Deadline.Add(time.Hour / 4))
	s = w.scheduler() // back again
	w.nodeAlive(s)
	for _, id := range []string{sess.ID, lost.ID} {
		if got := w.look(s, id); !OnMachine(got.State) || got.Generation != 1 {
			t.Fatalf("before its runner could be heard it is %s, attempt %d", got.State, got.Generation)
		}
	}
	next, err := s.AuthenticateBeat(ctx, r.bearer)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := s.Beat(ctx, next, wire.Heartbeat{Phase: "verifying"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err = s.Authenticate(ctx, reply.Token); err != nil {
		t.Fatal(err)
	}
	w.verified(s, r)
	w.look(s, sess.ID)
	if got := w.want(sess.ID, Delivered, ""); got.Generation != 1 || w.effects.pushed[sess.ID] != 1 {
		t.Fatalf("attempt %d, %d pushes", got.Generation, w.effects.pushed[sess.ID])
	}
	w.clock.Advance(s.times.Heartbeat)
	w.nodeAlive(s)
	if got := w.look(s, lost.ID); got.Generation != 2 {
		t.Fatalf("one that was never heard of is %s, attempt %d", got.State, got.Generation)
	}
}

// A machine that cannot be reached holds no session up: its attempt counts no
// more, another one begins, and the old processes are ended once they can be.
func TestTheOldAttemptIsFencedBeforeItsMachineIsReached(t *testing.T) {
	ctx := context.Background()
	for _, state := range []string{"restoring", "working"} {
		t.Run(state, func(t *testing.T) {
			w := newWorld(t)
			s := w.scheduler()
			sess, r := w.running(s)
			w.phase(s, r, state)
			w.engine.stopErr, w.engine.stateErr = errFake, errFake
			w.clock.Set(w.get(sess.ID).Deadline)
			w.nodeAlive(s)
			w.look(s, sess.ID)
			if _, err := s.Authenticate(ctx, r.bearer); codeOf(err) != codeStale && codeOf(err) != codeUnauthorized {
				t.Fatalf("the old attempt still counts: %v", err)
			}
			if err := s.Outcome(ctx, r, wire.Outcome{Kind: wire.OutcomeNoChange}); codeOf(err) != codeStale {
				t.Fatalf("the old attempt still counts: %v", err)
			}
			if state == "working" {
				w.want(sess.ID, TimedOut, ReasonTimeout)
			} else if got := w.get(sess.ID); got.Generation != 2 || got.State != Placing {
				t.Fatalf("it is %s, attempt %d", got.State, got.Generation)
			}
			if err := s.Sweep(ctx); !errors.Is(err, errFake) {
				t.Fatalf("nobody tries to end the old one: %v", err)
			}
			w.engine.stopErr, w.engine.stateErr = nil, nil
			w.clock.Advance(reapGrace)
			if err := s.Sweep(ctx); err != nil {
				t.Fatal(err)
			}
			if !w.engine.attempts[sess.ID+"/1"].gone {
				t.Fatal("the old attempt runs on")
			}
		})
	}
}
