package codex

import (
	"context"
	"errors"
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

// fake boots a shell script in Codex's place.
func fake(t *testing.T, script string, clock proc.Clock) (harness.Session, *harnesstest.Events) {
	t.Helper()
	dir := harnesstest.Script(t, "codex", script)
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

const greet = `read x; echo '{"id":1,"result":{}}'; read x; `

// Whatever stands in Codex's place, the session ends and says why.
func TestOddPrograms(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		check  func(harness.Result) bool
	}{
		"ends at once":     {"exit 0", func(r harness.Result) bool { return strings.Contains(r.Failed, "ended without") && r.ExitCode == 0 }},
		"fails at once":    {"echo broken >&2; exit 7", func(r harness.Result) bool { return r.ExitCode == 7 && strings.Contains(r.Tail, "broken") }},
		"is killed":        {"kill -9 $$", func(r harness.Result) bool { return r.Signal == "SIGKILL" && r.ExitCode == -1 }},
		"prints nonsense":  {`echo hello; echo '{"id":'; echo '[1]'; echo '{"id":99,"result":1}'; echo '{"method":7}'; exit 0`, func(r harness.Result) bool { return r.Failed != "" && strings.Contains(r.Tail, "hello") }},
		"refuses to begin": {`read x; echo '{"id":1,"error":{"code":1,"message":"too old"}}'; cat >/dev/null`, func(r harness.Result) bool { return strings.Contains(r.Failed, "too old") }},
		"refuses a thread": {greet + `read x; echo '{"id":2,"error":{"code":1,"message":"no thread"}}'; cat >/dev/null`, func(r harness.Result) bool { return strings.Contains(r.Failed, "no thread") }},
		"another protocol": {greet + `read x; echo '{"id":2,"result":{"conversation":1}}'; cat >/dev/null`, func(r harness.Result) bool { return strings.Contains(r.Failed, "another version") }},
		"a very long line": {`head -c 3000000 /dev/zero | tr '\0' x; echo; exit 4`, func(r harness.Result) bool { return r.ExitCode == 4 && len(r.Tail) < 8<<10 }},
		"ends in mid-turn": {greet + `read x; echo '{"id":2,"result":{"thread":{"id":"t"}}}'; read x; echo '{"id":3,"result":{"turn":{"id":"u"}}}'; exit 0`, func(r harness.Result) bool { return strings.Contains(r.Failed, "ended without") }},
		"breaks off":       {greet + `read x; echo '{"id":2,"result":{"thread":{"id":"t"}}}'; read x; echo '{"id":3,"result":{"turn":{"id":"u"}}}'; echo '{"method":"turn/completed","params":{"threadId":"t","turn":{"id":"u","status":"interrupted"}}}'; cat >/dev/null`, func(r harness.Result) bool { return strings.Contains(r.Failed, "broke off") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, events := fake(t, c.script, nil)
			err := s.Prompt(t.Context(), harness.Prompt{Text: "x"})
			r := s.Wait()
			if !c.check(r) || r.OK() {
				t.Errorf("result %+v, %+v", r, events.All())
			}
			<-s.Ready() // closed at the end at the latest
			if err == nil {
				if p := events.Prompts(); len(p) != 2 || p[1].Failed == "" {
					t.Errorf("prompts %+v", p)
				}
			} else if !errors.Is(err, harness.ErrOver) {
				t.Error(err)
			}
		})
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
	events := harnesstest.NewEvents()
	s, err := Harness{}.Boot(t.Context(), harnesstest.Host{Env: []string{"PATH=/usr/bin:/bin"}}, harness.Input{
		Home: t.TempDir(), Model: model, Gateway: "http://127.0.0.1:1",
	}, events.Add)
	if err != nil {
		t.Fatal(err)
	}
	<-s.Ready()
	if r := s.Wait(); r.Missing == "" || r.OK() {
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

func TestShellLine(t *testing.T) {
	for joined, want := range map[string]string{
		`/bin/bash -lc 'echo one; exit 3'`:            "echo one; exit 3",
		`/bin/bash -c 'it'"'"'s'`:                     "it's",
		`/bin/sh -c "a \"b\" \$c"`:                    `a "b" $c`,
		`bash -c ls`:                                  "ls",
		`/bin/bash -lc 'unclosed`:                     `/bin/bash -lc 'unclosed`,
		`git commit -m 'two words'`:                   `git commit -m 'two words'`,
		"/bin/bash -c 'line one\nline two'":           "line one\nline two",
		``:                                            ``,
		`/bin/bash -lc 'one' 'two'`:                   `/bin/bash -lc 'one' 'two'`,
		`"/opt/my shell" -c 'echo '\''a'\'' '\\ '\''`: `"/opt/my shell" -c 'echo '\''a'\'' '\\ '\''`,
	} {
		if got := shellLine(joined); got != want {
			t.Errorf("%s: %q, want %q", joined, got, want)
		}
	}
}

func TestNoise(t *testing.T) {
	for host, want := range map[string]bool{
		"chatgpt.com": true, "api.openai.com": true, "AB.chatgpt.com.": true, "github.com": false, "notopenai.com": false, "proxy.golang.org": false,
	} {
		if Noise(host, 443) != want {
			t.Errorf("%s: %v", host, !want)
		}
	}
}
