package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/checks/redact"
	"inspect/envs/harness"
	"inspect/envs/harness/harnesstest"
	"inspect/envs/harness/tell"
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
	wrote     []string // what was written to which file
}

func (f *fakeSandbox) Run(ctx context.Context, e stream.Exec) (stream.Exit, error) {
	if e.Argv[0] == "sh" {
		b, err := io.ReadAll(e.Stdin)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.file, f.text = e.Argv[len(e.Argv)-1], string(b)
		f.wrote = append(f.wrote, f.file+": "+f.text)
		return stream.Exit{}, err
	}
	f.mu.Lock()
	f.agentExec = e
	f.mu.Unlock()
	return f.agent(ctx, e)
}

func start(t *testing.T, sb *fakeSandbox, in harness.Input, c *harnesstest.Events, clock proc.Clock) harness.Session {
	t.Helper()
	in.Home, in.Dir = "/home/agent", "/workspace"
	s, err := Harness{Argv: []string{"agent", "--flag"}, Clock: clock}.Boot(t.Context(), sb, in, c.Add)
	if err != nil {
		t.Fatal(err)
	}
	<-s.Ready()
	return s
}

func ask(t *testing.T, s harness.Session, text string) {
	t.Helper()
	if err := s.Prompt(t.Context(), harness.Prompt{Text: text, Author: "hubot"}); err != nil {
		t.Fatal(err)
	}
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
	c := harnesstest.NewEvents()
	s := start(t, sb, harness.Input{Env: []string{"A=b"}, Model: "m1", Gateway: "http://127.0.0.1:7"}, c, nil)
	ask(t, s, "fix it")
	if r := s.Wait(); !r.OK() || r.Tail != "asked: fix itthinking" {
		t.Errorf("result %+v", r)
	}
	if sb.file != "/home/agent/.inspect/prompt.md" || sb.text != "fix it" {
		t.Errorf("the file %q holds %q", sb.file, sb.text)
	}
	env := strings.Join(sb.agentExec.Env, " ")
	if env != "A=b INSPECT_PROMPT_FILE=/home/agent/.inspect/prompt.md INSPECT_NOTICE_FILE=/home/agent/.inspect/notice.md INSPECT_MODEL=m1 INSPECT_GATEWAY=http://127.0.0.1:7" || sb.agentExec.Dir != "/workspace" {
		t.Errorf("environment %q, directory %q", env, sb.agentExec.Dir)
	}
	if c.Output("stdout") != "asked: fix it" || c.Output("stderr") != "thinking" {
		t.Errorf("events %+v", c.All())
	}
	if p := c.Prompts(); len(p) != 2 || p[0].Done || p[0].Text != "" || p[0].Author != "hubot" || !p[1].Done || p[1].Failed != "" {
		t.Errorf("prompts %+v", p)
	}
	if err := s.Prompt(t.Context(), harness.Prompt{Text: "more"}); !errors.Is(err, harness.ErrOver) {
		t.Errorf("a prompt after the end: %v", err)
	}
	if s.Notify(t.Context(), "more") {
		t.Error("a notice after the end")
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
	c := harnesstest.NewEvents()
	s := start(t, sb, harness.Input{}, c, clock)
	ask(t, s, "x")
	<-said
	clock.Advance(tell.FlushEvery)
	if err := c.Await(t.Context(), func(e harness.Event) bool { return e.Kind == wire.EventOutput }); err != nil {
		t.Fatal(err)
	}
	if got := c.Output("stdout"); got != "first line\n" {
		t.Errorf("before the end: %q", got)
	}
	close(end)
	s.Wait()
	if got := c.Output("stdout"); got != "first line\nsecond" {
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
	c := harnesstest.NewEvents()
	s := start(t, sb, harness.Input{OutputBytes: 60_000, Redact: redact.New("top-secret")}, c, nil)
	ask(t, s, "x")
	r := s.Wait()
	if r.OK() || r.ExitCode != -1 || r.Signal != "SIGTERM" || !r.Truncated {
		t.Errorf("result %+v", r)
	}
	if strings.Contains(r.Tail, "top-secret") || !strings.HasSuffix(r.Tail, "last [redacted] words\n") {
		t.Errorf("tail %q", r.Tail)
	}
	got := c.Output("stdout")
	if !strings.HasPrefix(got, "a [redacted] word\nnul \u2400 bad \uFFFD esc \x1b[m\nüüü") {
		t.Errorf("text begins %q", got[:60])
	}
	if len(got) > 60_000+10 || strings.Count(got, "\uFFFD") > 2 {
		t.Errorf("%d bytes, %d broken letters", len(got), strings.Count(got, "\uFFFD"))
	}
	for _, e := range c.All() {
		if o, ok := e.Data.(wire.Output); ok && len(o.Text) > 8<<10 {
			t.Errorf("an event has %d bytes of text", len(o.Text))
		}
	}
	if last := c.All()[len(c.All())-1]; last.Kind != wire.EventNote {
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
		events := harnesstest.NewEvents()
		s := start(t, sb, harness.Input{}, events, nil)
		ask(t, s, "one")
		_ = s.Prompt(t.Context(), harness.Prompt{Text: "two"}) // it may have ended already
		r := s.Wait()
		if !c.check(r) || r.OK() {
			t.Errorf("%s: %+v", name, r)
		}
		for _, p := range events.Prompts() {
			if p.Done && p.Failed == "" {
				t.Errorf("%s: prompt %+v", name, p)
			}
		}
	}
}

func TestInterrupt(t *testing.T) {
	working := make(chan struct{}, 1)
	sb := &fakeSandbox{agent: func(ctx context.Context, _ stream.Exec) (stream.Exit, error) {
		working <- struct{}{}
		<-ctx.Done()
		return stream.Exit{Code: 130}, errors.Join(errors.New("agent was stopped"), context.Cause(ctx))
	}}
	c := harnesstest.NewEvents()
	s := start(t, sb, harness.Input{}, c, nil)
	ask(t, s, "one")
	ask(t, s, "two")
	<-working
	s.Interrupt()
	s.Interrupt()
	if r := s.Wait(); r.ExitCode != 130 || r.Err != nil {
		t.Errorf("an agent that ended when asked: %+v", r)
	}
	if p := c.Prompts(); len(p) != 4 || p[3].Prompt != 2 || p[3].Failed == "" {
		t.Errorf("a prompt that waits is not dropped: %+v", p)
	}

	// The end of Boot's context is somebody else's doing.
	for _, asked := range []bool{true, false} {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("the end of the world")
		s, err := Harness{Argv: []string{"agent"}}.Boot(ctx, sb, harness.Input{Home: "/h"}, harnesstest.NewEvents().Add)
		if err != nil {
			t.Fatal(err)
		}
		if asked {
			ask(t, s, "x")
			<-working
		}
		cancel(why)
		if r := s.Wait(); !errors.Is(r.Err, why) {
			t.Errorf("a cancelled agent: %+v", r)
		}
	}

	// Before the first prompt nothing runs; it ends all the same.
	s = start(t, sb, harness.Input{}, c, nil)
	s.Interrupt()
	if r := s.Wait(); r.OK() || r.Err != nil || r.Failed == "" {
		t.Errorf("an agent that was never asked: %+v", r)
	}
	if err := s.Prompt(t.Context(), harness.Prompt{Text: "x"}); !errors.Is(err, harness.ErrOver) {
		t.Errorf("a prompt after that: %v", err)
	}
}

// A further prompt starts the program again, with the conversation so far.
func TestFollowUps(t *testing.T) {
	var got []string
	begun, goOn := make(chan struct{}, 3), make(chan struct{})
	sb := &fakeSandbox{agent: func(_ context.Context, e stream.Exec) (stream.Exit, error) {
		b, _ := io.ReadAll(e.Stdin)
		got = append(got, string(b))
		begun <- struct{}{}
		<-goOn
		_, _ = e.Stdout.Write([]byte(strings.Repeat("long ago\n", 1000) + "answer " + strconv.Itoa(len(got)) + " with ``` in it"))
		return stream.Exit{}, nil
	}}
	c := harnesstest.NewEvents()
	s := start(t, sb, harness.Input{}, c, nil)
	if s.Notify(t.Context(), "too early") {
		t.Error("a notice before the first prompt")
	}
	ask(t, s, "the first prompt")
	<-begun
	if !s.Notify(t.Context(), "hurry") {
		t.Error("a notice was not written")
	}
	ask(t, s, "the second prompt")
	ask(t, s, "the third prompt")
	close(goOn)
	if r := s.Wait(); !r.OK() || !strings.HasSuffix(r.Tail, "answer 3 with ``` in it") {
		t.Errorf("result %+v", r)
	}
	if len(got) != 3 || got[0] != "the first prompt" {
		t.Fatalf("it was given %q", got)
	}
	last := got[2]
	for _, part := range []string{
		"# Prompt 1, by hubot\n\nthe first prompt\n", "# Prompt 2, by hubot\n\nthe second prompt\n", "# New prompt, by hubot\n\nthe third prompt\n",
		"\n````\nlong ago", "answer 1 with ``` in it\n````\n", "answer 2 with ``` in it\n````\n",
	} {
		at := strings.Index(last, part)
		if at < 0 {
			t.Errorf("%q is not in %q", part, last)
		}
	}
	if len(last) > 10_000 {
		t.Errorf("the conversation has %d bytes", len(last))
	}
	if want := "/home/agent/.inspect/notice.md: hurry\n"; !slices.Contains(sb.wrote, want) {
		t.Errorf("written: %q", sb.wrote)
	}
	var order []string
	for _, p := range c.Prompts() {
		order = append(order, fmt.Sprintf("%d %v %s", p.Prompt, p.Done, p.Text))
	}
	if got := strings.Join(order, ", "); got != "1 false , 2 false the second prompt, 3 false the third prompt, 1 true , 2 true , 3 true " {
		t.Errorf("prompts %s", got)
	}
}

// A program that fails gets no further prompt.
func TestFailureWithPromptsWaiting(t *testing.T) {
	begun, goOn := make(chan struct{}), make(chan struct{})
	sb := &fakeSandbox{agent: func(context.Context, stream.Exec) (stream.Exit, error) {
		close(begun)
		<-goOn
		return stream.Exit{Code: 3}, nil
	}}
	c := harnesstest.NewEvents()
	s := start(t, sb, harness.Input{}, c, nil)
	ask(t, s, "one")
	<-begun
	ask(t, s, "two")
	close(goOn)
	if r := s.Wait(); r.ExitCode != 3 {
		t.Errorf("result %+v", r)
	}
	if p := c.Prompts(); len(p) != 4 || p[2].Failed != "the agent ended with status 3" || p[3].Failed != "the agent ended before it came to this" {
		t.Errorf("prompts %+v", p)
	}
}

// In a real shell, with a real file.
func TestOnThisMachine(t *testing.T) {
	dir := harnesstest.Script(t, "agent", `cat "$INSPECT_PROMPT_FILE" - && : >begun && while [ ! -s "$INSPECT_NOTICE_FILE" ]; do sleep 0.02; done; cat "$INSPECT_NOTICE_FILE"`)
	work, home := t.TempDir(), t.TempDir()
	c := harnesstest.NewEvents()
	s, err := Harness{Argv: []string{"agent"}}.Boot(t.Context(), harnesstest.Host{}, harness.Input{
		Dir: work, Home: home, Env: []string{"PATH=" + dir + ":" + proc.DefaultPath},
	}, c.Add)
	if err != nil {
		t.Fatal(err)
	}
	ask(t, s, "hello\n")
	if err := c.Await(t.Context(), func(e harness.Event) bool { return e.Kind == wire.EventOutput }); err != nil {
		t.Fatal(err)
	}
	if !s.Notify(t.Context(), "the time") {
		t.Error("it could not be told")
	}
	if r := s.Wait(); !r.OK() || c.Output("stdout") != "hello\nhello\nthe time\n" {
		t.Errorf("result %+v, output %q", r, c.Output("stdout"))
	}

	// A home that cannot be written to is no fault of the prompt's.
	if err := os.WriteFile(filepath.Join(home, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s, err = Harness{Argv: []string{"agent"}}.Boot(t.Context(), harnesstest.Host{}, harness.Input{Dir: work, Home: filepath.Join(home, "file")}, c.Add)
	if err != nil {
		t.Fatal(err)
	}
	ask(t, s, "x")
	if r := s.Wait(); r.OK() || !strings.Contains(r.Failed, "could not be written") {
		t.Errorf("result %+v", r)
	}
}

func TestNothingToStart(t *testing.T) {
	if _, err := (Harness{}).Boot(t.Context(), &fakeSandbox{}, harness.Input{}, harnesstest.NewEvents().Add); err == nil {
		t.Error("a harness without a command was started")
	}
}
