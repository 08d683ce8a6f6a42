package claude

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"inspect/envs/harness"
	"inspect/envs/harness/harnesstest"
	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

func shell(line string) stream.Exec { return stream.Exec{Argv: []string{"sh", "-c", line}} }

// fake boots a shell script in Claude Code's place.
func fake(t *testing.T, script string, clock proc.Clock) (harness.Session, *harnesstest.Events) {
	t.Helper()
	dir := harnesstest.Script(t, "claude", script)
	events := harnesstest.NewEvents()
	s, err := Harness{Clock: clock}.Boot(t.Context(), harnesstest.Host{}, harness.Input{
		Dir: t.TempDir(), Home: t.TempDir(), Model: model, Gateway: "http://127.0.0.1:1",
		Env: []string{"PATH=" + dir + ":" + proc.DefaultPath},
	}, events.Add)
	if err != nil {
		t.Fatal(err)
	}
	return s, events
}

const greet = `read x; echo '{"type":"system","subtype":"init"}'; `

// Whatever stands in Claude Code's place, the session ends and says why.
func TestOddPrograms(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		check  func(harness.Result) bool
	}{
		"ends at once":     {"exit 0", func(r harness.Result) bool { return strings.Contains(r.Failed, "ended without") && r.ExitCode == 0 }},
		"fails at once":    {"echo broken >&2; exit 7", func(r harness.Result) bool { return r.ExitCode == 7 && strings.Contains(r.Tail, "broken") }},
		"is killed":        {"kill -9 $$", func(r harness.Result) bool { return r.Signal == "SIGKILL" && r.ExitCode == -1 }},
		"prints nonsense":  {`echo hello; echo '{"type":'; echo '[1]'; echo '{"type":7}'; exit 0`, func(r harness.Result) bool { return r.Failed != "" && strings.Contains(r.Tail, "hello") }},
		"a very long line": {`head -c 3000000 /dev/zero | tr '\0' x; echo; exit 4`, func(r harness.Result) bool { return r.ExitCode == 4 && len(r.Tail) < 8<<10 }},
		"ends in mid-turn": {greet + `exit 0`, func(r harness.Result) bool { return strings.Contains(r.Failed, "ended without") }},
		"gives up":         {greet + `echo '{"type":"result","subtype":"error_max_turns","is_error":true}'; exit 1`, func(r harness.Result) bool { return strings.Contains(r.Failed, "error_max_turns") && r.ExitCode == 1 }},
		"answers nothing":  {greet + `echo '{"type":"result","subtype":"success","result":""}'; cat >/dev/null`, func(r harness.Result) bool { return strings.Contains(r.Failed, "nothing") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, events := fake(t, c.script, nil)
			if err := s.Prompt(t.Context(), harness.Prompt{Text: "x"}); err != nil {
				t.Fatal(err)
			}
			r := s.Wait()
			if !c.check(r) || r.OK() {
				t.Errorf("result %+v, %+v", r, events.All())
			}
			if p := events.Prompts(); len(p) != 2 || p[1].Failed == "" {
				t.Errorf("prompts %+v", p)
			}
		})
	}
}

// A version that does not say when a prompt reaches the model answers each with
// a result of its own.
func TestWithoutReplays(t *testing.T) {
	s, events := fake(t, `read x; read y; for n in 1 2; do
		echo '{"type":"assistant","message":{"content":[{"type":"text","text":"hm"}]}}'
		echo '{"type":"result","subtype":"success","result":"hm"}'; done; cat >/dev/null`, nil)
	for range 2 {
		if err := s.Prompt(t.Context(), harness.Prompt{Text: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	if r := s.Wait(); !r.OK() {
		t.Errorf("result %+v", r)
	}
	if p := events.Prompts(); len(p) != 4 || p[3].Prompt != 2 || p[3].Failed != "" {
		t.Errorf("prompts %+v", p)
	}
}

// It asks whether it may use a tool; nobody is here.
func TestItIsAnswered(t *testing.T) {
	s, _ := fake(t, greet+`echo '{"type":"control_request","request_id":"r1","request":{"subtype":"can_use_tool"}}'
		read x; case $x in *'"request_id":"r1"'*) exit 5;; esac; exit 6`, nil)
	if err := s.Prompt(t.Context(), harness.Prompt{Text: "x"}); err != nil {
		t.Fatal(err)
	}
	if r := s.Wait(); r.ExitCode != 5 {
		t.Errorf("result %+v", r)
	}
}

// Calls that never get a result do not pile up.
func TestCallsWithoutResults(t *testing.T) {
	s := &speaker{calls: map[string]call{}}
	for n := range 10 * maxCalls {
		s.remember(fmt.Sprint("t", n), call{})
	}
	if len(s.calls) > maxCalls {
		t.Errorf("%d calls", len(s.calls))
	}
}

func TestExitCode(t *testing.T) {
	for _, c := range []struct {
		text   string
		failed bool
		code   int // -1: none
		rest   string
	}{
		{"fine", false, 0, "fine"}, {"Exit code 3\none\ntwo", true, 3, "one\ntwo"}, {"Exit code 3", true, 3, ""},
		{"Exit code x", true, -1, "Exit code x"}, {"not allowed", true, -1, "not allowed"}, {"Exit code 3", false, 0, "Exit code 3"},
	} {
		code, rest := exitCode(c.text, c.failed)
		got := -1
		if code != nil {
			got = *code
		}
		if got != c.code || rest != c.rest {
			t.Errorf("%q: %d %q", c.text, got, rest)
		}
	}
}

// A program that says nothing is given up.
func TestASilentProgram(t *testing.T) {
	clock := proc.NewFake(time.Unix(0, 0))
	s, _ := fake(t, "exec sleep 1000", clock)
	if err := s.Prompt(t.Context(), harness.Prompt{Text: "x"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := clock.BlockUntil(ctx, 3); err != nil { // the teller's ticker, the preparation, the patience
		t.Fatal(err)
	}
	for {
		select {
		case <-s.Done():
		default:
			clock.Advance(time.Minute)
			continue
		}
		break
	}
	if r := s.Wait(); !strings.Contains(r.Failed, "did not say a word") {
		t.Errorf("result %+v", r)
	}
}

func TestMissing(t *testing.T) {
	s, err := Harness{}.Boot(t.Context(), harnesstest.Host{Env: []string{"PATH=/usr/bin:/bin"}}, harness.Input{
		Home: t.TempDir(), Model: model, Gateway: "http://127.0.0.1:1",
	}, harnesstest.NewEvents().Add)
	if err != nil {
		t.Fatal(err)
	}
	<-s.Ready()
	if err := s.Prompt(t.Context(), harness.Prompt{Text: "x"}); err != nil {
		t.Fatal(err)
	}
	if r := s.Wait(); r.Missing == "" || r.OK() {
		t.Errorf("result %+v", r)
	}
}

// Before the first prompt nothing runs; it ends all the same.
func TestStoppedBeforeItBegan(t *testing.T) {
	s, events := fake(t, "exit 0", nil)
	s.Interrupt()
	if r := s.Wait(); r.OK() || r.Err != nil || !strings.Contains(r.Failed, "stopped") || len(events.All()) > 0 {
		t.Errorf("result %+v, %+v", r, events.All())
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the end of the world")
	s, err := Harness{}.Boot(ctx, harnesstest.Host{}, harness.Input{Model: model, Gateway: "http://127.0.0.1:1"}, events.Add)
	if err != nil {
		t.Fatal(err)
	}
	cancel(why)
	if r := s.Wait(); !errors.Is(r.Err, why) {
		t.Errorf("result %+v", r)
	}
}

func TestWhatCannotBeBooted(t *testing.T) {
	for _, in := range []harness.Input{
		{Gateway: "http://127.0.0.1:1"}, {Model: model}, {Model: model, Gateway: "http://127.0.0.1:1", API: wire.APIChat},
	} {
		if _, err := (Harness{}).Boot(t.Context(), harnesstest.Host{}, in, harnesstest.NewEvents().Add); err == nil {
			t.Errorf("%+v is booted", in)
		}
	}
}

func TestNoise(t *testing.T) {
	for host, want := range map[string]bool{
		"api.anthropic.com": true, "claude.ai": true, "Downloads.Claude.ai.": true, "notclaude.ai": false, "github.com": false, "registry.npmjs.org": false,
	} {
		if Noise(host, 443) != want {
			t.Errorf("%s: %v", host, !want)
		}
	}
}
