package command

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/checks/redact"
	"inspect/envs/harness"
	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// fakeSandbox runs agent as the program and takes the prompt's file.
type fakeSandbox struct {
	agent func(ctx context.Context, e stream.Exec) (stream.Exit, error)

	mu        sync.Mutex
	file      string // path of the prompt's file
	text      string
	agentExec stream.Exec
}

func (f *fakeSandbox) Run(ctx context.Context, e stream.Exec) (stream.Exit, error) {
	if e.Argv[0] == "sh" {
		b, err := io.ReadAll(e.Stdin)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.file, f.text = e.Argv[len(e.Argv)-1], string(b)
		return stream.Exit{}, err
	}
	f.mu.Lock()
	f.agentExec = e
	f.mu.Unlock()
	return f.agent(ctx, e)
}

type collector struct {
	mu     sync.Mutex
	events []harness.Event
	came   chan struct{}
}

func newCollector() *collector { return &collector{came: make(chan struct{}, 1000)} }

func (c *collector) add(e harness.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, e)
	c.came <- struct{}{}
}

// text is what came on a stream.
func (c *collector) text(stream string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for _, e := range c.events {
		if o, ok := e.Data.(wire.Output); ok && o.Stream == stream {
			b.WriteString(o.Text)
		}
	}
	return b.String()
}

func start(t *testing.T, sb *fakeSandbox, in harness.Input, c *collector, clock proc.Clock) harness.Session {
	t.Helper()
	in.Home, in.Dir = "/home/agent", "/workspace"
	s, err := Harness{Argv: []string{"agent", "--flag"}, Clock: clock}.Start(t.Context(), sb, in, c.add)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPromptReachesTheAgent(t *testing.T) {
	sb := &fakeSandbox{agent: func(_ context.Context, e stream.Exec) (stream.Exit, error) {
		b, err := io.ReadAll(e.Stdin)
		if err != nil {
			return stream.Exit{}, err
		}
		_, _ = e.Stdout.Write([]byte("asked: " + string(b)))
		_, _ = e.Stderr.Write([]byte("thinking"))
		return stream.Exit{}, nil
	}}
	c := newCollector()
	s := start(t, sb, harness.Input{Prompt: "fix it", Env: []string{"A=b"}, Model: "m1"}, c, nil)
	if r := s.Wait(); !r.OK() || r.Tail != "asked: fix itthinking" {
		t.Errorf("result %+v", r)
	}
	if sb.file != "/home/agent/.inspect/prompt.md" || sb.text != "fix it" {
		t.Errorf("the file %q holds %q", sb.file, sb.text)
	}
	env := strings.Join(sb.agentExec.Env, " ")
	if env != "A=b INSPECT_PROMPT_FILE=/home/agent/.inspect/prompt.md INSPECT_MODEL=m1" || sb.agentExec.Dir != "/workspace" {
		t.Errorf("environment %q, directory %q", env, sb.agentExec.Dir)
	}
	if c.text("stdout") != "asked: fix it" || c.text("stderr") != "thinking" {
		t.Errorf("events %+v", c.events)
	}
	if err := s.Prompt(t.Context(), "more", "hubot"); !errors.Is(err, harness.ErrOver) {
		t.Errorf("a prompt after the end: %v", err)
	}
	s.Interrupt() // harmless
}

func TestOutputComesWhileTheAgentWorks(t *testing.T) {
	clock := proc.NewFake(time.Unix(0, 0))
	end := make(chan struct{})
	said := make(chan struct{})
	sb := &fakeSandbox{agent: func(_ context.Context, e stream.Exec) (stream.Exit, error) {
		_, _ = e.Stdout.Write([]byte("first line\nsecond"))
		close(said)
		<-end
		return stream.Exit{}, nil
	}}
	c := newCollector()
	s := start(t, sb, harness.Input{}, c, clock)
	<-said
	clock.Advance(flushEvery)
	<-c.came
	if got := c.text("stdout"); got != "first line\n" {
		t.Errorf("before the end: %q", got)
	}
	if err := s.Prompt(t.Context(), "more", "hubot"); !errors.Is(err, harness.ErrNoFollowUp) {
		t.Errorf("a prompt meanwhile: %v", err)
	}
	close(end)
	s.Wait()
	if got := c.text("stdout"); got != "first line\nsecond" {
		t.Errorf("after the end: %q", got)
	}
}

func TestOutputIsRedactedCleanedAndCut(t *testing.T) {
	sb := &fakeSandbox{agent: func(_ context.Context, e stream.Exec) (stream.Exit, error) {
		for _, piece := range []string{"a top-", "sec", "ret word\n", "nul \x00 bad \xff esc \x1b[m\n", strings.Repeat("ü", 50_000), "\nlast top-secret words\n"} {
			_, _ = e.Stdout.Write([]byte(piece))
		}
		return stream.Exit{Code: 143, Signal: "SIGTERM"}, nil
	}}
	c := newCollector()
	s := start(t, sb, harness.Input{OutputBytes: 60_000, Redact: redact.New("top-secret")}, c, nil)
	r := s.Wait()
	if r.OK() || r.ExitCode != -1 || r.Signal != "SIGTERM" || !r.Truncated {
		t.Errorf("result %+v", r)
	}
	if strings.Contains(r.Tail, "top-secret") || !strings.HasSuffix(r.Tail, "last [redacted] words\n") {
		t.Errorf("tail %q", r.Tail)
	}
	got := c.text("stdout")
	if !strings.HasPrefix(got, "a [redacted] word\nnul \u2400 bad \uFFFD esc \x1b[m\nüüü") {
		t.Errorf("text begins %q", got[:60])
	}
	if len(got) > 60_000+10 || strings.Count(got, "\uFFFD") > 2 {
		t.Errorf("%d bytes, %d broken letters", len(got), strings.Count(got, "\uFFFD"))
	}
	for _, e := range c.events {
		if o, ok := e.Data.(wire.Output); ok && len(o.Text) > maxText {
			t.Errorf("an event has %d bytes of text", len(o.Text))
		}
	}
	if last := c.events[len(c.events)-1]; last.Kind != wire.EventNote {
		t.Errorf("nobody is told that output is missing: %+v", last)
	}
}

func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		exit  stream.Exit
		err   error
		check func(harness.Result) bool
	}{
		"status":  {exit: stream.Exit{Code: 3}, check: func(r harness.Result) bool { return r.ExitCode == 3 && r.Err == nil }},
		"missing": {err: &stream.StartError{Program: "agent", Words: "no such file"}, check: func(r harness.Result) bool { return r.Missing == "no such file" && r.Err == nil }},
		"gone":    {err: stream.ErrEnded, check: func(r harness.Result) bool { return errors.Is(r.Err, stream.ErrEnded) && r.ExitCode == -1 }},
	} {
		sb := &fakeSandbox{agent: func(context.Context, stream.Exec) (stream.Exit, error) { return c.exit, c.err }}
		if r := start(t, sb, harness.Input{}, newCollector(), nil).Wait(); !c.check(r) || r.OK() {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestInterrupt(t *testing.T) {
	sb := &fakeSandbox{agent: func(ctx context.Context, _ stream.Exec) (stream.Exit, error) {
		<-ctx.Done()
		return stream.Exit{Code: 130}, errors.Join(errors.New("agent was stopped"), context.Cause(ctx))
	}}
	s := start(t, sb, harness.Input{}, newCollector(), nil)
	s.Interrupt()
	s.Interrupt()
	if r := s.Wait(); r.ExitCode != 130 || r.Err != nil {
		t.Errorf("an agent that ended when asked: %+v", r)
	}

	// The end of Start's context is somebody else's doing.
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the end of the world")
	s, err := Harness{Argv: []string{"agent"}}.Start(ctx, sb, harness.Input{Home: "/h"}, newCollector().add)
	if err != nil {
		t.Fatal(err)
	}
	cancel(why)
	if r := s.Wait(); !errors.Is(r.Err, why) {
		t.Errorf("a cancelled agent: %+v", r)
	}
}

func TestNothingToStart(t *testing.T) {
	if _, err := (Harness{}).Start(t.Context(), &fakeSandbox{}, harness.Input{}, newCollector().add); err == nil {
		t.Error("a harness without a command was started")
	}
}
