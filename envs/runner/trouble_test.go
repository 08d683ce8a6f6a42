package runner

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/envs/wire"
)

func stopOrder(grace time.Duration) wire.Directive {
	return wire.Directive{Kind: wire.DirectiveStop, Stop: &wire.StopDirective{Reason: "superseded", Grace: grace}}
}

func TestStopWhileWorking(t *testing.T) {
	w := newWorld(t, "--mode", "hang-uncommitted")
	w.beside(func() {
		w.control.awaitOutput("hanging")
		w.control.order(stopOrder(20 * time.Second))
	})
	o := w.outcome()
	if o.Kind != wire.OutcomeStopped || o.Reason != "superseded" {
		t.Fatalf("outcome %+v", o)
	}
	if got := w.file(w.unbundle(o.Bundle), "state.txt"); got != "good\n" {
		t.Errorf("the kept work has %q", got)
	}
	if len(o.Results) != 0 || w.node.starts["verify"] != 0 {
		t.Error("a stopped session was verified")
	}
}

// Services that take their time to stop do not take it from the work.
func TestStopWithStubbornServices(t *testing.T) {
	const grace = 20 * time.Second
	w := newWorld(t)
	w.spec.Harness.Command = []string{"sh", "-c", "printf 'good\\n' >state.txt; echo hanging; exec sleep 600"} // goes when asked
	w.spec.Services = []wire.Service{{Name: "stubborn", Command: "trap '' TERM; while :; do sleep 1; done", Stop: "sleep 600"}}
	var ordered time.Time
	w.beside(func() {
		w.control.awaitOutput("hanging")
		ordered = time.Now()
		w.control.order(stopOrder(grace))
	})
	o := w.outcome()
	if took := time.Since(ordered); o.Kind != wire.OutcomeStopped || took > grace {
		t.Fatalf("outcome %+v after %s", o, took)
	}
	if got := w.file(w.unbundle(o.Bundle), "state.txt"); got != "good\n" {
		t.Errorf("the kept work has %q", got)
	}
}

func TestStopWhileRestoring(t *testing.T) {
	w := newWorld(t)
	w.node.onRestore = func(ctx context.Context, _ string) error {
		w.control.order(stopOrder(10 * time.Second))
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if o := w.outcome(); o.Kind != wire.OutcomeStopped || o.Bundle != "" {
		t.Fatalf("outcome %+v", o)
	}
}

func TestStopWhileVerifying(t *testing.T) {
	w := newWorld(t)
	w.spec.Verify = []wire.Verify{{Name: "slow", Run: "sleep 600", Report: "exit"}, {Name: "never", Run: "true", Report: "exit"}}
	w.node.onSandbox = func(purpose string, _ int, sb Sandbox, end <-chan wire.SandboxEnd) (Sandbox, <-chan wire.SandboxEnd, error) {
		if purpose == "verify" {
			w.control.order(stopOrder(10 * time.Second))
		}
		return sb, end, nil
	}
	o := w.outcome()
	if o.Kind != wire.OutcomeStopped || o.Bundle == "" {
		t.Fatalf("outcome %+v", o)
	}
}

func TestFinishTakesWhatThereIs(t *testing.T) {
	w := newWorld(t, "--mode", "hang")
	w.beside(func() {
		w.control.awaitOutput("hanging")
		w.control.order(wire.Directive{Kind: wire.DirectiveFinish})
	})
	o := w.outcome()
	if o.Kind != wire.OutcomeVerified || len(o.Results) != 1 || o.Results[0].ExitCode != 0 {
		t.Fatalf("outcome %+v", o)
	}
}

func TestPromptsAndUnknownDirectivesAreAnswered(t *testing.T) {
	w := newWorld(t, "--mode", "hang")
	w.beside(func() {
		w.control.awaitOutput("hanging")
		w.control.order(wire.Directive{Kind: wire.DirectivePrompt, Prompt: &wire.PromptDirective{Text: "and the other one", Author: "hubot"}})
		w.control.order(wire.Directive{Kind: wire.DirectiveAllowHost, AllowHost: &wire.AllowHostDirective{Host: "a.example"}})
		w.control.order(wire.Directive{Kind: wire.DirectiveBudget, Budget: &wire.BudgetDirective{Budget: 7_000_000_000}})
		w.control.order(wire.Directive{Kind: "fly"})
		w.control.order(wire.Directive{Kind: wire.DirectiveFinish})
	})
	w.outcome()
	notes := w.control.texts(wire.EventNote)
	for _, want := range []string{"prompt of hubot was given to the agent", `"fly"`, "a.example is allowed, but", "raised to $7.00"} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes lack %q:\n%s", want, notes)
		}
	}
}

func TestCommittedWorkIsUploadedMeanwhile(t *testing.T) {
	w := newWorld(t, "--mode", "hang")
	w.opt.pace.turn = 20 * time.Millisecond
	w.beside(func() {
		w.control.await("a turn", func() bool {
			for _, e := range w.control.log {
				if e.Kind == wire.EventTurn {
					return true
				}
			}
			return false
		})
		w.control.order(wire.Directive{Kind: wire.DirectiveFinish})
	})
	o := w.outcome()
	if o.Kind != wire.OutcomeVerified || len(w.control.turns) != 2 {
		t.Fatalf("outcome %+v, turns %v", o, w.control.turns)
	}
}

// The control plane vanishes in the middle of everything and comes back at the
// same address: nothing is lost and nothing is told twice.
func TestControlPlaneAway(t *testing.T) {
	w := newWorld(t, "--mode", "hang")
	w.beside(func() {
		w.control.awaitOutput("hanging")
		w.control.down()
		w.control.up()
		w.control.order(wire.Directive{Kind: wire.DirectiveFinish})
		w.control.await("verification", func() bool {
			return len(w.control.phases) > 0 && w.control.phases[len(w.control.phases)-1] == "verifying"
		})
		w.control.down()
		w.control.up()
	})
	w.spec.Verify = append(w.spec.Verify, wire.Verify{Name: "again", Run: "sleep 1", Report: "exit"})
	if o := w.outcome(); o.Kind != wire.OutcomeVerified || len(o.Results) != 2 {
		t.Fatalf("outcome %+v", o)
	}
}

// Answers get lost and the control plane says that it cannot serve now: every
// call is made again and counts once.
func TestLostAnswers(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex
	turn := map[string]int{}
	w.control.intercept = func(rw http.ResponseWriter, r *http.Request) bool {
		name, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/runner/v1/"), "/")
		mu.Lock()
		turn[name]++
		n := turn[name]
		mu.Unlock()
		switch {
		case n%3 == 1 && name != "directives":
			refuse(rw, 503, "unavailable")
			return true
		case n%3 == 2 && name == "events":
			// It is taken, but the answer is lost.
			var q struct{ Events []rawEvent }
			if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
				t.Error(err)
			}
			w.control.take(q.Events)
			panic(http.ErrAbortHandler)
		}
		return false
	}
	if o := w.outcome(); o.Kind != wire.OutcomeVerified {
		t.Fatalf("outcome %+v", o)
	}
	if got := w.control.texts(wire.EventOutput); !strings.Contains(got, "committed") {
		t.Errorf("output is missing: %s", got)
	}
}

// A control plane that was set back asks for events again.
func TestEventsAreSentAgainFromWhereTheyAreMissed(t *testing.T) {
	w := newWorld(t)
	var once sync.Once
	w.control.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/outcome") {
			return false
		}
		w.control.mu.Lock()
		defer w.control.mu.Unlock()
		if len(w.control.log) > 5 {
			once.Do(func() { w.control.log = w.control.log[:2] })
		}
		return false
	}
	w.control.lenient = true
	if o := w.outcome(); o.Kind != wire.OutcomeVerified {
		t.Fatalf("outcome %+v", o)
	}
}

func TestReplacedAttemptEndsQuietly(t *testing.T) {
	for _, call := range []string{"heartbeat", "directives", "events", "bundle", "outcome"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			mode := "hang"
			if call == "bundle" || call == "outcome" {
				mode = "ok"
			}
			w := newWorld(t, "--mode", mode)
			w.control.intercept = func(rw http.ResponseWriter, r *http.Request) bool {
				if !strings.HasPrefix(r.URL.Path, "/runner/v1/"+call) {
					return false
				}
				refuse(rw, 409, "stale_generation")
				return true
			}
			if err := w.run(); err != nil {
				t.Fatalf("a replaced runner complained: %v", err)
			}
			if w.control.result != nil {
				t.Error("it reported an outcome")
			}
			w.checkAfter()
		})
	}
}

func TestRefusedIdentity(t *testing.T) {
	w := newWorld(t)
	w.opt.Secret = "another secret"
	if err := w.run(); !errors.Is(err, ErrRefused) {
		t.Fatalf("error %v", err)
	}
	if n := w.control.calls["token"]; n != 1 {
		t.Errorf("the secret was tried %d times", n)
	}
	w = newWorld(t, "--mode", "hang")
	w.control.intercept = func(rw http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/heartbeat") {
			refuse(rw, 426, "version")
			return true
		}
		return false
	}
	if err := w.run(); !errors.Is(err, ErrRefused) {
		t.Fatalf("error %v", err)
	}
	w.checkAfter()
}

func TestCancelledRunnerLeavesNothing(t *testing.T) {
	w := newWorld(t, "--mode", "hang")
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("SIGTERM")
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.control.awaitOutput("hanging")
		cancel(why)
	}()
	if err := Run(ctx, w.opt); !errors.Is(err, why) {
		t.Fatalf("error %v", err)
	}
	<-done
	w.checkAfter()
}

func TestResume(t *testing.T) {
	first := newWorld(t, "--mode", "exit-after")
	o := first.outcome()
	body, _ := first.control.bundle(o.Bundle)

	w := newWorld(t)
	w.control.bundles[o.Bundle] = body
	w.spec.Resume = &wire.Resume{Generation: 1, Turn: 0, SHA256: o.Bundle, Tip: o.Tip}
	got := w.outcome()
	if got.Kind != wire.OutcomeVerified || got.Tip != o.Tip {
		t.Fatalf("outcome %+v, want tip %s", got, o.Tip)
	}
	if out := w.control.texts(wire.EventOutput); !strings.Contains(out, "nothing left to do") {
		t.Errorf("the agent did not find the earlier work: %s", out)
	}

	// A bundle that is lost, or that git refuses, costs only itself.
	for name, break_ := range map[string]func(w *world){
		"lost":   func(w *world) { delete(w.control.bundles, w.spec.Resume.SHA256) },
		"broken": func(w *world) { w.spec.Resume.SHA256 = w.control.addBundle([]byte("# v2 git bundle\n\nPACK")) },
	} {
		w := newWorld(t)
		w.control.bundles[o.Bundle] = body
		w.spec.Resume = &wire.Resume{Generation: 1, SHA256: o.Bundle, Tip: o.Tip}
		break_(w)
		if got := w.outcome(); got.Kind != wire.OutcomeVerified || got.Tip == o.Tip {
			t.Errorf("%s: outcome %+v", name, got)
		}
		if notes := w.control.texts(wire.EventNote); !strings.Contains(notes, "could not be applied") {
			t.Errorf("%s: notes %s", name, notes)
		}
	}
}

// The sandbox goes away under the agent and nobody can tell why, as when the
// node daemon is killed: the work is saved, and the attempt may be repeated.
func TestSandboxLost(t *testing.T) {
	w := newWorld(t, "--mode", "hang-uncommitted")
	var mu sync.Mutex
	var first Sandbox
	w.node.onSandbox = func(_ string, _ int, sb Sandbox, end <-chan wire.SandboxEnd) (Sandbox, <-chan wire.SandboxEnd, error) {
		mu.Lock()
		defer mu.Unlock()
		if first != nil {
			return sb, end, nil
		}
		first = sb
		silent := make(chan wire.SandboxEnd)
		close(silent)
		return sb, silent, nil
	}
	w.beside(func() {
		w.control.awaitOutput("hanging")
		mu.Lock()
		defer mu.Unlock()
		if err := first.Close(); err != nil {
			t.Error(err)
		}
	})
	o := w.outcome()
	if o.Kind != wire.OutcomeInfrastructure || o.Reason != "sandbox_lost" {
		t.Fatalf("outcome %+v", o)
	}
	if got := w.file(w.unbundle(o.Bundle), "state.txt"); got != "good\n" {
		t.Errorf("the kept work has %q", got)
	}
}

// The node's store is full while the agent works, and while the result is
// verified: what fails then is no fault of the session's.
func TestStoreFull(t *testing.T) {
	for purpose, w := range map[string]*world{"work": newWorld(t, "--mode", "fail"), "verify": newWorld(t)} {
		if purpose == "verify" {
			w.spec.Verify = []wire.Verify{{Name: "unit", Run: "false", Report: "exit"}}
		}
		w.node.onSandbox = func(of string, _ int, sb Sandbox, end <-chan wire.SandboxEnd) (Sandbox, <-chan wire.SandboxEnd, error) {
			full := make(chan wire.SandboxEnd, 1)
			go func() {
				e := <-end
				if of == purpose {
					e.Store = "the disk of the node was full"
				}
				full <- e
			}()
			return sb, full, nil
		}
		o := w.outcome()
		if o.Kind != wire.OutcomeInfrastructure || o.Reason != wire.ReasonNodeStore || !strings.HasPrefix(o.Words, "The disk of the node was full. ") {
			t.Errorf("%s: outcome %+v", purpose, o)
		}
		if purpose == "verify" && o.Bundle == "" {
			t.Error("the work is not kept")
		}
	}
}

// A sandbox that ends while the work is taken is tried once more.
func TestSandboxLostWhileTaking(t *testing.T) {
	w := newWorld(t)
	w.node.onSandbox = func(purpose string, n int, sb Sandbox, end <-chan wire.SandboxEnd) (Sandbox, <-chan wire.SandboxEnd, error) {
		if purpose == "work" && n == 2 {
			_ = sb.Close()
		}
		return sb, end, nil
	}
	o := w.outcome()
	if o.Kind != wire.OutcomeInfrastructure || o.Bundle == "" {
		t.Fatalf("outcome %+v", o)
	}
}

func TestNodeRefuses(t *testing.T) {
	w := newWorld(t)
	w.node.onRestore = func(context.Context, string) error {
		return &wire.Error{Code: "not_found", Message: "no snapshot snap-1 here"}
	}
	if o := w.outcome(); o.Kind != wire.OutcomeInfrastructure || o.Reason != wire.ReasonSnapshotMissing {
		t.Fatalf("outcome %+v", o)
	}
	w = newWorld(t)
	w.node.onSandbox = func(_ string, _ int, sb Sandbox, _ <-chan wire.SandboxEnd) (Sandbox, <-chan wire.SandboxEnd, error) {
		_ = sb.Close()
		return nil, nil, errors.New("cannot isolate")
	}
	if o := w.outcome(); o.Kind != wire.OutcomeInfrastructure || !strings.Contains(o.Words, "cannot isolate") {
		t.Fatalf("outcome %+v", o)
	}
}

func TestHarnessThatIsNotSupported(t *testing.T) {
	w := newWorld(t)
	w.spec.Harness.Kind = "emacs"
	if o := w.outcome(); o.Kind != wire.OutcomeFailed || o.Words != `Harness "emacs" is not known to this runner; update it.` {
		t.Fatalf("outcome %+v", o)
	}
}

func TestBaseThatIsNowhere(t *testing.T) {
	w := newWorld(t)
	w.spec.BaseSHA = strings.Repeat("1", 40)
	if o := w.outcome(); o.Kind != wire.OutcomeInfrastructure || o.Reason != wire.ReasonSync {
		t.Fatalf("outcome %+v", o)
	}
}

func TestVerificationThatHangs(t *testing.T) {
	w := newWorld(t)
	clock := w.hurry()
	w.spec.WorkDeadline, w.spec.EndDeadline = time.Now().Add(20*time.Minute), time.Now().Add(time.Hour)
	w.spec.Verify = []wire.Verify{{Name: "quick", Run: "echo quick", Report: "exit"}, {Name: "slow", Run: "echo begun; sleep 600", Report: "exit"}}
	w.beside(func() {
		w.control.await("the first command", func() bool {
			for _, e := range w.control.log {
				if strings.Contains(string(e.Data), "verify:quick") {
					return true
				}
			}
			return false
		})
		clock.jump(50*time.Minute, 70*time.Minute)
	})
	o := w.outcome()
	if o.Kind != wire.OutcomeTimedOut || len(o.Results) != 2 || !o.Results[1].TimedOut || o.Bundle == "" {
		t.Fatalf("outcome %+v", o)
	}
}

func TestVerificationThatEndsItsSandbox(t *testing.T) {
	w := newWorld(t)
	w.node.limits.DiskBytes = 64 << 20
	w.spec.Limits.DiskBytes = 64 << 20
	w.spec.Verify = []wire.Verify{{Name: "greedy", Run: "for i in 1 2 3 4 5 6; do head -c 16000000 /dev/zero >cache/$i; done; sleep 600", Report: "exit"}}
	o := w.outcome()
	if o.Kind != wire.OutcomeFailed || o.Reason != wire.ReasonDisk || len(o.Results) != 1 {
		t.Fatalf("outcome %+v", o)
	}
}

func TestResultThatIsTooLarge(t *testing.T) {
	w := newWorld(t)
	w.opt.maxBundle = 1 << 20
	w.spec.Harness.Command = []string{"sh", "-c", "head -c 2000000 /dev/urandom >big.bin; echo good >state.txt"}
	o := w.outcome()
	if o.Kind != wire.OutcomeFailed || o.Reason != wire.ReasonBundleTooLarge || o.Bundle != "" {
		t.Fatalf("outcome %+v", o)
	}
	if got := string(w.control.artifacts[o.Patch]); !strings.Contains(got, "+good\n") || !strings.Contains(got, "GIT binary patch") {
		t.Error("the work is not kept as a patch")
	}

	w = newWorld(t)
	w.control.intercept = func(rw http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/bundle/") {
			refuse(rw, 413, "too_large")
			return true
		}
		return false
	}
	if o := w.outcome(); o.Kind != wire.OutcomeFailed || o.Reason != wire.ReasonBundleTooLarge || o.Bundle != "" || o.Patch == "" {
		t.Fatalf("outcome %+v", o)
	}
}
