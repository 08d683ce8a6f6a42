// Package enginetest is what every engine must do, tried with real processes:
// an engine comes in, and each of its promises is a test that can fail. The
// test binary itself is the runner that the engine starts.
package enginetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"inspect/scheduler"
)

// World is an engine under test.
type World struct {
	// New returns the engine as it is after a restart of the control plane: all
	// that New returns are engines of the same attempts. args are the runner's
	// further arguments; its binary is the running one.
	New func(t *testing.T, args []string) scheduler.Engine
	// Node is where attempts are expected to run, as List has it; empty: anywhere.
	Node string
}

// NewSession returns the id of a session that nobody had before.
func NewSession() string { return strings.ToLower(rand.Text())[:16] }

// Attempt returns the first attempt of a new session.
func Attempt() scheduler.Attempt {
	return scheduler.Attempt{
		Session: NewSession(), Generation: 1, Secret: "one-time-" + rand.Text(), Repository: "octocat/hello",
		CPU: 0.05, Memory: 16 << 20, Deadline: time.Now().Add(time.Hour),
	}
}

// Run tries everything.
func Run(t *testing.T, w World) {
	for name, test := range map[string]func(*testing.T, *rig){
		"started twice is started once":         startTwice,
		"16 starts at once are one":             startAtOnce,
		"stop ends it":                          stopEnds,
		"what is not there is stopped":          unknown,
		"gone after its own end":                goneAfterExit,
		"gone after it was killed":              goneAfterKill,
		"listed":                                listed,
		"the end of its log":                    logs,
		"forgotten":                             forgotten,
		"found again after a restart":           restart,
		"attempts of a session are apart":       generations,
		"what cannot be an attempt is refused":  refused,
		"no secret is in what the engine shows": noSecret,
	} {
		t.Run(name, func(t *testing.T) { test(t, newRig(t, w)) })
	}
}

type rig struct {
	World
	*Listener
	engine scheduler.Engine
}

func newRig(t *testing.T, w World) *rig {
	t.Helper()
	r := &rig{World: w, Listener: Listen(t)}
	r.engine = w.New(t, r.Args())
	return r
}

// again is the engine after a restart.
func (r *rig) again(t *testing.T) scheduler.Engine { return r.New(t, r.Args()) }

func (r *rig) start(t *testing.T, a scheduler.Attempt) (json.RawMessage, *Process) {
	t.Helper()
	ref, err := r.engine.Start(t.Context(), a)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	t.Cleanup(func() {
		if err := r.engine.Forget(context.WithoutCancel(t.Context()), ref); err != nil {
			t.Errorf("Forget: %v", err)
		}
	})
	return ref, r.Wait(t, a.Session, a.Generation)
}

// becomes waits for a state. An engine may learn late of an end, but never
// takes one back.
func becomes(t *testing.T, e scheduler.Engine, ref json.RawMessage, want scheduler.EngineState) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		got, err := e.State(t.Context(), ref)
		switch {
		case err != nil:
			t.Fatalf("State: %v", err)
		case got == want:
			return
		case got == scheduler.EngineGone || time.Now().After(end):
			t.Fatalf("the state is %v, want %v", got, want)
		}
	}
}

// is asks for a state that must be told at once.
func is(t *testing.T, e scheduler.Engine, ref json.RawMessage, want scheduler.EngineState) {
	t.Helper()
	if got, err := e.State(t.Context(), ref); err != nil || got != want {
		t.Fatalf("the state is %v (%v), want %v", got, err, want)
	}
}

func (r *rig) once(t *testing.T, a scheduler.Attempt) {
	t.Helper()
	if n := r.Count(a.Session, a.Generation); n != 1 {
		t.Errorf("the attempt had %d processes", n)
	}
}

func startTwice(t *testing.T, r *rig) {
	a := Attempt()
	ref, p := r.start(t, a)
	is(t, r.engine, ref, scheduler.EngineRunning)
	second, err := r.engine.Start(t.Context(), a)
	if err != nil {
		t.Fatalf("the second Start: %v", err)
	}
	is(t, r.engine, second, scheduler.EngineRunning)
	p.Tell(t, "exit 0")
	p.WaitEnd(t)
	becomes(t, r.engine, ref, scheduler.EngineGone)
	// Also once it is over.
	third, err := r.engine.Start(t.Context(), a)
	if err != nil {
		t.Fatalf("the third Start: %v", err)
	}
	becomes(t, r.engine, third, scheduler.EngineGone)
	r.once(t, a)
}

func startAtOnce(t *testing.T, r *rig) {
	a := Attempt()
	engines := []scheduler.Engine{r.engine, r.again(t)}
	refs, errs := make([]json.RawMessage, 16), make([]error, 16)
	var all sync.WaitGroup
	for i := range refs {
		all.Go(func() { refs[i], errs[i] = engines[i%len(engines)].Start(t.Context(), a) })
	}
	all.Wait()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
		if !bytes.Equal(refs[i], refs[0]) {
			t.Errorf("start %d is known as %s, the first as %s", i, refs[i], refs[0])
		}
	}
	_, p := r.start(t, a)
	is(t, r.engine, refs[0], scheduler.EngineRunning)
	if err := r.engine.Stop(t.Context(), refs[0]); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	p.WaitEnd(t)
	becomes(t, r.engine, refs[0], scheduler.EngineGone)
	r.once(t, a)
}

func stopEnds(t *testing.T, r *rig) {
	a, other := Attempt(), Attempt()
	ref, p := r.start(t, a)
	otherRef, otherProcess := r.start(t, other)
	if err := r.engine.Stop(t.Context(), ref); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	p.WaitEnd(t)
	becomes(t, r.engine, ref, scheduler.EngineGone)
	if err := r.engine.Stop(t.Context(), ref); err != nil {
		t.Errorf("a second Stop: %v", err)
	}
	is(t, r.engine, ref, scheduler.EngineGone)
	is(t, r.engine, otherRef, scheduler.EngineRunning)
	otherProcess.Tell(t, "say that it lives")
	r.once(t, a)
}

// strange is the reference of an attempt that never was.
func (r *rig) strange(t *testing.T) json.RawMessage {
	t.Helper()
	a := Attempt()
	ref, p := r.start(t, a)
	p.Tell(t, "exit 0")
	p.WaitEnd(t)
	becomes(t, r.engine, ref, scheduler.EngineGone)
	return json.RawMessage(strings.ReplaceAll(string(ref), a.Session, NewSession()))
}

func unknown(t *testing.T, r *rig) {
	ref := r.strange(t)
	is(t, r.engine, ref, scheduler.EngineGone)
	if err := r.engine.Stop(t.Context(), ref); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if err := r.engine.Forget(t.Context(), ref); err != nil {
		t.Errorf("Forget: %v", err)
	}
	if log, err := r.engine.Logs(t.Context(), ref, 100); err != nil || len(log) > 0 {
		t.Errorf("Logs: %q, %v", log, err)
	}
	for _, broken := range []string{"", "[]", `"x"`} {
		if _, err := r.engine.State(t.Context(), json.RawMessage(broken)); err == nil {
			t.Errorf("the reference %q is taken", broken)
		}
	}
}

func goneAfterExit(t *testing.T, r *rig) {
	for _, order := range []string{"exit 0", "exit 3"} {
		ref, p := r.start(t, Attempt())
		p.Tell(t, order)
		p.WaitEnd(t)
		becomes(t, r.engine, ref, scheduler.EngineGone)
	}
}

func goneAfterKill(t *testing.T, r *rig) {
	a := Attempt()
	ref, p := r.start(t, a)
	if err := syscall.Kill(p.Said.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.WaitEnd(t)
	becomes(t, r.engine, ref, scheduler.EngineGone)
	r.once(t, a)
}

func find(t *testing.T, e scheduler.Engine, a scheduler.Attempt) (scheduler.Listed, bool) {
	t.Helper()
	all, err := e.List(t.Context())
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	i := slices.IndexFunc(all, func(l scheduler.Listed) bool { return l.Session == a.Session && l.Generation == a.Generation })
	if i < 0 {
		return scheduler.Listed{}, false
	}
	return all[i], true
}

func listed(t *testing.T, r *rig) {
	a, b := Attempt(), Attempt()
	if _, there := find(t, r.engine, a); there {
		t.Error("an attempt is listed that was not started")
	}
	_, _ = r.start(t, a)
	ref, p := r.start(t, b)
	p.Tell(t, "exit 3")
	p.WaitEnd(t)
	becomes(t, r.engine, ref, scheduler.EngineGone)
	for _, e := range []scheduler.Engine{r.engine, r.again(t)} {
		runs, there := find(t, e, a)
		if !there || runs.State != scheduler.EngineRunning {
			t.Errorf("what runs is listed as %+v (%v)", runs, there)
		}
		if r.Node != "" && runs.Node != r.Node {
			t.Errorf("its node is %q, want %q", runs.Node, r.Node)
		}
		is(t, e, runs.Ref, scheduler.EngineRunning)
		ended, there := find(t, e, b)
		if !there || ended.State != scheduler.EngineGone {
			t.Errorf("what has ended is listed as %+v (%v)", ended, there)
		}
	}
}

func logs(t *testing.T, r *rig) {
	ref, p := r.start(t, Attempt())
	p.Tell(t, "say hello")
	p.Tell(t, "exit 0")
	p.WaitEnd(t)
	becomes(t, r.engine, ref, scheduler.EngineGone)
	all, err := r.engine.Logs(t.Context(), ref, 1<<20)
	if err != nil || !bytes.Contains(all, []byte("said: hello\n")) || !bytes.Contains(all, []byte("complained: hello\n")) {
		t.Fatalf("its log is %q (%v)", all, err)
	}
	end, err := r.engine.Logs(t.Context(), ref, 7)
	if err != nil || len(end) != 7 || !bytes.HasSuffix(all, end) {
		t.Errorf("the last 7 bytes of %q are %q (%v)", all, end, err)
	}
	if none, err := r.engine.Logs(t.Context(), ref, 0); err != nil || len(none) > 0 {
		t.Errorf("no bytes of it are %q (%v)", none, err)
	}
}

func forgotten(t *testing.T, r *rig) {
	a := Attempt()
	ref, p := r.start(t, a)
	p.Tell(t, "say hello")
	if err := r.engine.Forget(t.Context(), ref); err != nil {
		t.Fatalf("Forget: %v", err)
	}
	p.WaitEnd(t)
	becomes(t, r.engine, ref, scheduler.EngineGone)
	if l, there := find(t, r.engine, a); there {
		t.Errorf("it is still listed: %+v", l)
	}
	if log, err := r.engine.Logs(t.Context(), ref, 1<<20); err != nil || len(log) > 0 {
		t.Errorf("its log is still there: %q (%v)", log, err)
	}
	if err := r.engine.Forget(t.Context(), ref); err != nil {
		t.Errorf("a second Forget: %v", err)
	}
	r.once(t, a)
}

func restart(t *testing.T, r *rig) {
	a := Attempt()
	ref, p := r.start(t, a)
	later := r.again(t)
	is(t, later, ref, scheduler.EngineRunning)
	found, err := later.Start(t.Context(), a)
	if err != nil || !bytes.Equal(found, ref) {
		t.Errorf("it is known as %s (%v), and was as %s", found, err, ref)
	}
	if err := later.Stop(t.Context(), ref); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	p.WaitEnd(t)
	becomes(t, later, ref, scheduler.EngineGone)
	r.once(t, a)
}

func generations(t *testing.T, r *rig) {
	first := Attempt()
	second := first
	second.Generation = 2
	ref, p := r.start(t, first)
	newer, q := r.start(t, second)
	if p.Said.PID == q.Said.PID {
		t.Fatal("both are one process")
	}
	if err := r.engine.Stop(t.Context(), ref); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	p.WaitEnd(t)
	becomes(t, r.engine, ref, scheduler.EngineGone)
	is(t, r.engine, newer, scheduler.EngineRunning)
}

func refused(t *testing.T, r *rig) {
	for _, change := range []func(*scheduler.Attempt){
		func(a *scheduler.Attempt) { a.Session = "" },
		func(a *scheduler.Attempt) { a.Session = "../x" },
		func(a *scheduler.Attempt) { a.Session = "Abc" },
		func(a *scheduler.Attempt) { a.Session = strings.Repeat("a", 65) },
		func(a *scheduler.Attempt) { a.Generation = 0 },
		func(a *scheduler.Attempt) { a.Generation = -1 },
	} {
		a := Attempt()
		change(&a)
		if ref, err := r.engine.Start(t.Context(), a); err == nil {
			t.Errorf("attempt %d of session %q is started as %s", a.Generation, a.Session, ref)
		}
	}
}

func noSecret(t *testing.T, r *rig) {
	a := Attempt()
	ref, p := r.start(t, a)
	shown := append(append(slices.Clone(p.Said.Args), p.Said.Env...), string(ref))
	for _, s := range shown {
		if strings.Contains(s, a.Secret) {
			t.Errorf("the secret is in %q", s)
		}
	}
}
