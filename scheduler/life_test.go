package scheduler

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"inspect/envs/wire"
	"inspect/storage"
)

func TestALabelsWholeLife(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess := w.create(s)
	if !validID(sess.ID) || sess.State != Queued || !sess.Deadline.Equal(w.clock.Now().Add(24*time.Hour)) {
		t.Fatalf("created %s: %s, deadline %s", sess.ID, sess.State, sess.Deadline)
	}
	w.look(s, sess.ID)
	if got := w.want(sess.ID, Queued, ""); got.QueueReason != "building the snapshot" {
		t.Fatalf("queue reason %q", got.QueueReason)
	}
	snapshot := w.prepare(s) // the offer places the session
	w.want(sess.ID, Placing, "")
	a := w.attemptOf(sess.ID)
	if a.EngineRef.Valid || !a.Deadline.After(t0) {
		t.Fatal("the attempt and its deadline are not written before the engine is asked")
	}
	w.look(s, sess.ID)
	fa, ok := w.engine.last(sess.ID)
	if !ok || fa.Generation != 1 || fa.Node != "n1" || fa.Secret == "" {
		t.Fatalf("the engine was asked for %+v", fa)
	}
	r := w.runner(s, sess.ID)
	sp, err := s.Spec(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	if sp.Repository != "octocat/hello" || sp.SnapshotID != snapshot || sp.Prompt != "Fix the bug." || sp.BaseSHA != baseSHA ||
		len(sp.Verify) != 1 || sp.Verify[0].Run != "go test ./..." || sp.Resume != nil || sp.Harness.Label != "scripted" ||
		sp.Limits.Timeout != 45*time.Minute || !sp.EndDeadline.After(sp.WorkDeadline) {
		t.Fatalf("spec %+v", sp)
	}
	for purpose, text := range map[string]string{wire.PurposeWork: sp.WorkGrant, wire.PurposeVerify: sp.VerifyGrant} {
		g, err := wire.OpenGrant(publicKey(w), text, "n1", wire.VerbSandbox, 1234, w.clock.Now())
		if err != nil || g.Purpose != purpose || g.Session != sess.ID || g.Snapshot != snapshot || g.RepositoryID != 42 {
			t.Fatalf("grant %+v, %v", g, err)
		}
		if _, err := wire.OpenGrant(publicKey(w), text, "n1", wire.VerbSandbox, 1234, a.Deadline.Add(tokenSlack)); err == nil {
			t.Fatal("the grant outlives its attempt")
		}
	}
	for _, p := range []string{"restoring", "working", "verifying"} {
		w.phase(s, r, p)
		w.want(sess.ID, State(p), "")
	}
	w.phase(s, r, "working") // late words
	w.want(sess.ID, Verifying, "")
	w.verified(s, r)
	w.look(s, sess.ID)
	got := w.want(sess.ID, Delivered, "")
	if got.HeadSha != tipSHA || got.PullRequest != 5 || !got.FinishedAt.Valid || !got.ReportedAt.Valid || !got.Outcome.Valid || !got.StartedAt.Valid {
		t.Fatalf("delivered %+v", got)
	}
	if w.effects.pushed[sess.ID] != 1 || w.effects.lastReport(sess.ID) != Delivered {
		t.Fatalf("pushes %v, reports %v", w.effects.pushed, w.effects.reports)
	}
	var rc Receipt
	if err := json.Unmarshal(got.Receipt.RawMessage, &rc); err != nil {
		t.Fatal(err)
	}
	if err := VerifyEvents(ctx, w.db.Q(), sess.ID, rc.EventsHead, rc.EventsCount); err != nil {
		t.Fatal(err)
	}
	// The runner goes, its clones are discarded, nothing is left to do.
	w.engine.kill(sess.ID)
	if err := s.Sweep(ctx); err != nil {
		t.Fatal(err)
	}
	if d := w.work(s, wire.WorkDiscard); d.Discard.Session != sess.ID || d.Discard.Generation != 1 {
		t.Fatalf("discard %+v", d.Discard)
	}
	refs, err := s.Refs(ctx, "n1")
	if err != nil || len(refs.Sessions) != 0 || len(refs.Snapshots) != 1 {
		t.Fatalf("refs %+v, %v", refs, err)
	}
}

func (w *world) attemptOf(id string) storage.Attempt {
	w.t.Helper()
	a, err := w.db.Q().GetAttempt(context.Background(), storage.GetAttemptParams{SessionID: id, Generation: w.get(id).Generation})
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

func TestOutcomesBecomeStates(t *testing.T) {
	good := goodOutcome(strings.Repeat("a", 64))
	with := func(f func(*wire.Outcome)) wire.Outcome {
		o := good
		o.Results = append([]wire.VerifyResult(nil), good.Results...)
		f(&o)
		return o
	}
	sp := testSpec()
	none := sp
	none.Verify = nil
	for name, c := range map[string]struct {
		o      wire.Outcome
		none   bool
		to     State
		reason string
		words  string
	}{
		"verified":         {o: good, to: Publishing},
		"no bundle":        {o: with(func(o *wire.Outcome) { o.Bundle = "" }), to: Failed, reason: ReasonNoBundle},
		"nothing to run":   {o: good, none: true, to: Failed, reason: ReasonNothingVerified},
		"did not run":      {o: with(func(o *wire.Outcome) { o.Results = nil }), to: Failed, reason: ReasonNothingVerified, words: `"unit"`},
		"ran another line": {o: with(func(o *wire.Outcome) { o.Results[0].Run = "true" }), to: Failed, reason: ReasonNothingVerified},
		"exit status":      {o: with(func(o *wire.Outcome) { o.Results[0].ExitCode = 2 }), to: Failed, reason: ReasonVerifyFailed, words: `"unit" ended with status 2`},
		"signal":           {o: with(func(o *wire.Outcome) { o.Results[0].Signal = "SIGKILL" }), to: Failed, reason: ReasonVerifyFailed, words: "SIGKILL"},
		"too slow":         {o: with(func(o *wire.Outcome) { o.Results[0].TimedOut = true }), to: Failed, reason: ReasonVerifyFailed, words: "in time"},
		"passed when it ran again": {o: with(func(o *wire.Outcome) {
			o.Results[0].ExitCode = 1
			o.Results[0].Again = []wire.VerifyResult{{ExitCode: 1}, {ExitCode: 0}}
		}), to: Publishing},
		"failed each time": {o: with(func(o *wire.Outcome) {
			o.Results[0].ExitCode = 1
			o.Results[0].Again = []wire.VerifyResult{{ExitCode: 1}, {ExitCode: 2}}
		}), to: Failed, reason: ReasonVerifyFailed, words: `"unit" ended with status 2`},
		"fails on the base too": {o: with(func(o *wire.Outcome) {
			o.Results[0].ExitCode = 1
			o.Base = &wire.Column{Results: []wire.VerifyResult{{Name: "unit", ExitCode: 1}}}
		}), to: Publishing},
		"failed on the base, then passed": {o: with(func(o *wire.Outcome) {
			o.Results[0].ExitCode = 1
			o.Base = &wire.Column{Results: []wire.VerifyResult{{Name: "unit", ExitCode: 1, Again: []wire.VerifyResult{{ExitCode: 0}}}}}
		}), to: Failed, reason: ReasonVerifyFailed},
		"another fails on the base": {o: with(func(o *wire.Outcome) {
			o.Results[0].ExitCode = 1
			o.Base = &wire.Column{Results: []wire.VerifyResult{{Name: "lint", ExitCode: 1}}}
		}), to: Failed, reason: ReasonVerifyFailed},
		"its program is nowhere": {o: with(func(o *wire.Outcome) {
			o.Results[0].ExitCode = 127
			o.Base = &wire.Column{Results: []wire.VerifyResult{{Name: "unit", ExitCode: 127}}}
		}), to: Failed, reason: ReasonVerifyFailed, words: "not installed"},
		"no change":      {o: wire.Outcome{Kind: wire.OutcomeNoChange}, to: NoChange, words: "changed nothing"},
		"failed":         {o: wire.Outcome{Kind: wire.OutcomeFailed, Reason: wire.ReasonConflict, Words: "A conflict."}, to: Failed, reason: wire.ReasonConflict, words: "A conflict."},
		"stopped":        {o: wire.Outcome{Kind: wire.OutcomeStopped}, to: Stopped, reason: ReasonStopped},
		"timed out":      {o: wire.Outcome{Kind: wire.OutcomeTimedOut}, to: TimedOut, reason: ReasonTimeout},
		"infrastructure": {o: wire.Outcome{Kind: wire.OutcomeInfrastructure, Reason: "sync"}, to: "", reason: "sync"},
	} {
		t.Run(name, func(t *testing.T) {
			use := sp
			if c.none {
				use = none
			}
			v := judge(c.o, use)
			if v.to != c.to || v.reason != c.reason || !strings.Contains(v.words, c.words) {
				t.Fatalf("got %+v", v)
			}
			if v.to == Delivered {
				t.Fatal("a runner delivered")
			}
		})
	}
}

func TestSnapshotThatCannotBePreparedEndsTheSession(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess := w.create(s)
	other := w.create(s)
	w.look(s, sess.ID)
	work := w.work(s, wire.WorkRefresh)
	long := strings.Repeat("x", 10_000) + "\x00main.go:3: undefined: foo"
	if err := s.WorkDone(ctx, "n1", work.ID, wire.WorkResult{Words: long}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{sess.ID, other.ID} {
		w.look(s, id)
		got := w.want(id, Failed, ReasonSnapshotRefused)
		if !strings.Contains(got.Words, "undefined: foo") || len(got.Words) > maxWords {
			t.Fatalf("words %q", got.Words)
		}
	}
	if err := s.WorkDone(ctx, "n1", work.ID, wire.WorkResult{Words: "again"}); err != nil {
		t.Fatalf("saying it again: %v", err)
	}
	// Nobody tries again by itself, but the next session does.
	rows, err := w.db.Q().OpenWork(ctx, "n1")
	if err != nil || len(rows) != 0 {
		t.Fatalf("open work %v, %v", rows, err)
	}
	third := w.create(s)
	w.look(s, third.ID)
	if next := w.work(s, wire.WorkRefresh); next.Refresh.Generation != 2 {
		t.Fatalf("generation %d", next.Refresh.Generation)
	}
}

func TestLostRunnerIsReplacedAndTheOldOneRefused(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess, old := w.running(s)
	w.phase(s, old, "restoring", "working")
	sum := w.bundle(s, old, 3, "work so far")
	was, err := s.Spec(ctx, old)
	if err != nil {
		t.Fatal(err)
	}
	use := wire.Event{Number: 3, Kind: wire.EventUse, Data: wire.EgressUse{Sent: 1 << 20, Received: 1 << 30}}
	if reply, err := s.AppendEvents(ctx, old, []wire.Event{use}); err != nil || reply.Acked != 3 {
		t.Fatalf("%+v, %v", reply, err)
	}
	w.engine.kill(sess.ID)
	w.look(s, sess.ID)
	got := w.want(sess.ID, Placing, "")
	if got.Generation != 2 {
		t.Fatalf("generation %d", got.Generation)
	}
	for name, err := range map[string]error{
		"events":  second(s.AppendEvents(ctx, old, []wire.Event{{Number: 3, Kind: wire.EventNote, Data: wire.Note{Words: "late"}}})),
		"beat":    second(s.Beat(ctx, old, wire.Heartbeat{})),
		"spec":    second(s.Spec(ctx, old)),
		"outcome": s.Outcome(ctx, old, wire.Outcome{Kind: wire.OutcomeNoChange}),
		"bundle":  s.PutBundle(ctx, old, 4, tipSHA, sumOf("x"), strings.NewReader("x")),
		"put":     s.PutArtifact(ctx, old, sumOf("x"), strings.NewReader("x")),
		"get":     second(s.Bundle(ctx, old, sum)),
		"orders":  second(s.Directives(ctx, old, 0)),
		"token":   second(s.Authenticate(ctx, old.bearer)),
	} {
		if codeOf(err) != codeStale {
			t.Errorf("%s of a stale generation: %v", name, err)
		}
	}
	w.look(s, sess.ID)
	next := w.runner(s, sess.ID)
	sp, err := s.Spec(ctx, next)
	if err != nil || sp.Resume == nil || sp.Resume.SHA256 != sum || sp.Resume.Generation != 1 || sp.Resume.Turn != 3 || sp.Resume.Tip != tipSHA {
		t.Fatalf("resume %+v, %v", sp.Resume, err)
	}
	if left := sp.Limits.EgressBytes; left != was.Limits.EgressBytes-1<<20-1<<30 {
		t.Errorf("of %d bytes that the session may send and receive %d are left", was.Limits.EgressBytes, left)
	}
	rc, err := s.Bundle(ctx, next, sum)
	if err != nil {
		t.Fatal(err)
	}
	_ = rc.Close()
	// The second and third are lost too: that is enough.
	for range 2 {
		w.engine.kill(sess.ID)
		w.look(s, sess.ID)
		w.look(s, sess.ID)
	}
	got = w.want(sess.ID, Infrastructure, ReasonAttemptsExhausted)
	if !strings.Contains(got.Words, "it could not be started: permission denied") {
		t.Errorf("the engine's reason is not said: %s", got.Words)
	}
	if got.Generation != MaxAttempts || w.effects.publishes != 0 || w.effects.lastReport(sess.ID) != Infrastructure {
		t.Fatalf("generation %d, %d publishes", got.Generation, w.effects.publishes)
	}
	if err := VerifyEvents(ctx, w.db.Q(), sess.ID, "", 0); err != nil {
		t.Fatal(err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestSilentRunnerIsNotReplacedWhileItsProcessLives(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s)
	w.phase(s, r, "restoring")
	w.phase(s, r, "working")
	w.clock.Advance(10 * time.Minute)
	w.nodeAlive(s)
	w.look(s, sess.ID)
	if got := w.want(sess.ID, Working, ""); got.Generation != 1 {
		t.Fatalf("generation %d", got.Generation)
	}
	w.engine.stateErr = errFake // and one that cannot be asked about is not either
	w.look(s, sess.ID)
	w.want(sess.ID, Working, "")
}

func TestOutcomeThatArrivesWithTheRunnersEndCounts(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s)
	w.phase(s, r, "working")
	w.verified(s, r)
	w.engine.kill(sess.ID)
	w.look(s, sess.ID)
	if got := w.want(sess.ID, Delivered, ""); got.Generation != 1 {
		t.Fatalf("generation %d", got.Generation)
	}
}

func TestInfrastructureOutcomeIsTriedAgain(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s)
	for g := 1; g <= MaxAttempts; g++ {
		if err := s.Outcome(ctx, r, wire.Outcome{Kind: wire.OutcomeInfrastructure, Reason: wire.ReasonSync, Words: "The mirror is gone."}); err != nil {
			t.Fatal(err)
		}
		w.look(s, sess.ID)
		if fa, _ := w.engine.last(sess.ID); g < MaxAttempts && fa.stops != 0 {
			t.Fatal("the new attempt was stopped")
		}
		if g < MaxAttempts {
			w.look(s, sess.ID)
			r = w.runner(s, sess.ID)
			if r.Generation != g+1 {
				t.Fatalf("generation %d", r.Generation)
			}
		}
	}
	if got := w.want(sess.ID, Infrastructure, ReasonAttemptsExhausted); !strings.Contains(got.Words, "The mirror is gone (sync)") {
		t.Fatalf("words %q", got.Words)
	}
}
