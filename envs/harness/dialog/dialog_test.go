package dialog

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"inspect/envs/harness"
	"inspect/envs/harness/harnesstest"
	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
)

// echo is a protocol in which the program says {"done":N} or {"fail":"why"}.
type echo struct {
	Talk
	prompts []*Prompt
}

func (e *echo) Begin() { e.Send(map[string]string{"say": "hello"}) }
func (e *echo) Give(p *Prompt) {
	e.prompts = append(e.prompts, p)
	e.Send(map[string]string{"ask": p.Text})
}
func (e *echo) Notify(text string, told func(bool)) {
	e.Send(map[string]string{"note": text})
	told(true)
}
func (e *echo) Hear(line []byte) {
	var m struct {
		Done  int
		Fail  *string
		Ready bool
		Again bool
	}
	_ = json.Unmarshal(line, &m)
	switch {
	case m.Again:
		e.Send(map[string]string{"no": strings.Repeat("x", 1<<20)})
	case m.Ready:
		e.Ready()
	case m.Done > 0:
		e.Done(e.prompts[m.Done-1])
		e.Done(e.prompts[m.Done-1]) // once is enough
	case m.Fail != nil:
		e.Fail(*m.Fail)
	}
}

func boot(t *testing.T, ctx context.Context, script string, early bool, clock proc.Clock) (harness.Session, *harnesstest.Events, string) {
	t.Helper()
	events, dir := harnesstest.NewEvents(), t.TempDir()
	s := Boot(ctx, harnesstest.Host{}, harness.Input{Dir: dir, Home: dir, Env: []string{"A=b"}, Proxy: "http://127.0.0.1:3"}, clock, events.Add, Program{
		Name: "Echo", Argv: []string{"sh", "-c", script}, Dir: dir, Env: []string{"C=d"},
		Prepare: `cat >"$1/prepared"`, Args: []string{dir}, Stdin: "configured", Early: early,
	}, func(talk Talk) Speaker { return &echo{Talk: talk} })
	return s, events, dir
}

func ask(t *testing.T, s harness.Session, text string) {
	t.Helper()
	if err := s.Prompt(t.Context(), harness.Prompt{Text: text}); err != nil {
		t.Fatal(err)
	}
}

func TestADialog(t *testing.T) {
	for _, early := range []bool{true, false} {
		s, events, dir := boot(t, t.Context(), `cat prepared; echo " $A $C $HTTPS_PROXY"; echo '{"ready":true}'
			read hello; read one; read two; echo "$hello$one$two" >heard; echo '{"done":2}'; echo '{"done":1}'; cat >rest; exit 3`, early, nil)
		if early {
			<-s.Ready()
		}
		ask(t, s, "one")
		ask(t, s, "two")
		r := s.Wait()
		if !r.OK() { // the status after its work says nothing
			t.Errorf("result %+v", r)
		}
		heard, err := os.ReadFile(dir + "/heard")
		if err != nil || string(heard) != `{"say":"hello"}{"ask":"one"}{"ask":"two"}`+"\n" {
			t.Errorf("heard %q, %v", heard, err)
		}
		if got := events.Output("stdout"); got != "configured b d http://127.0.0.1:3\n" || !strings.Contains(events.Notes(), "not of its protocol") {
			t.Errorf("output %q, notes %q", got, events.Notes())
		}
		if p := events.Prompts(); len(p) != 4 || p[2].Prompt != 2 || !p[2].Done || p[3].Prompt != 1 || !p[3].Done {
			t.Errorf("prompts %+v", p)
		}
	}
}

// A program that goes on after its work, or after it failed, is ended.
func TestItDoesNotEnd(t *testing.T) {
	for line, failed := range map[string]string{`{"done":1}`: "", `{"fail":"no way"}`: "no way", `{"fail":""}`: "Echo failed and did not say why"} {
		clock := proc.NewFake(time.Unix(0, 0))
		s, events, _ := boot(t, t.Context(), `read hello; read one; echo '`+line+`'; exec sleep 1000`, true, clock)
		ask(t, s, "x")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		// The teller's ticker, the preparation, the patience at the start and at the end.
		if err := clock.BlockUntil(ctx, 4); err != nil {
			t.Fatal(err)
		}
		cancel()
		clock.Advance(closeWait)
		if r := s.Wait(); r.Failed != failed || r.Err != nil || r.ExitCode != 0 || r.Signal != "" {
			t.Errorf("%s: %+v", line, r)
		}
		if p := events.Prompts(); len(p) != 2 || p[1].Failed != failed {
			t.Errorf("%s: prompts %+v", line, p)
		}
		if err := s.Prompt(t.Context(), harness.Prompt{}); !errors.Is(err, harness.ErrOver) {
			t.Errorf("a prompt after the end: %v", err)
		}
	}
}

func TestItCannotBePrepared(t *testing.T) {
	events := harnesstest.NewEvents()
	s := Boot(t.Context(), harnesstest.Host{}, harness.Input{}, nil, events.Add, Program{
		Name: "Echo", Argv: []string{"true"}, Prepare: "echo disk full >&2; exit 1", Early: true,
	}, func(talk Talk) Speaker { return &echo{Talk: talk} })
	<-s.Ready()
	if r := s.Wait(); r.OK() || !strings.Contains(r.Failed, "disk full") {
		t.Errorf("result %+v", r)
	}
}

// gone is a sandbox that has ended.
type gone struct{}

func (gone) Run(context.Context, stream.Exec) (stream.Exit, error) {
	return stream.Exit{}, stream.ErrEnded
}

func TestItIsTakenAway(t *testing.T) {
	s := Boot(t.Context(), gone{}, harness.Input{}, nil, harnesstest.NewEvents().Add, Program{Name: "Echo", Argv: []string{"x"}},
		func(talk Talk) Speaker { return &echo{Talk: talk} })
	ask(t, s, "x")
	if r := s.Wait(); !errors.Is(r.Err, stream.ErrEnded) || r.ExitCode != -1 {
		t.Errorf("result %+v", r)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the end of the world")
	s, _, _ = boot(t, ctx, `read hello; read one; echo '{"ready":true}'; exec sleep 1000`, true, nil)
	ask(t, s, "x")
	<-s.Ready()
	cancel(why)
	if r := s.Wait(); !errors.Is(r.Err, why) {
		t.Errorf("result %+v", r)
	}
}

// Questions without end that read no answer do not fill our memory.
func TestItDoesNotListen(t *testing.T) {
	s, _, _ := boot(t, t.Context(), `yes '{"again":true}'`, true, nil)
	ask(t, s, "x")
	if r := s.Wait(); !strings.Contains(r.Failed, "does not read") {
		t.Errorf("result %+v", r)
	}
}

func TestFinal(t *testing.T) {
	for status, want := range map[int]bool{0: false, 200: false, 400: true, 401: true, 402: true, 403: true, 404: true, 409: false, 422: true, 429: false, 500: false, 529: false} {
		if Final(status) != want {
			t.Errorf("%d: %v", status, !want)
		}
	}
}

func TestLines(t *testing.T) {
	var got []string
	long := 0
	l := &lines{line: func(b []byte) { got = append(got, string(b)) }, long: func(n int) { long = n }}
	for _, p := range []string{"one\ntw", "", "o\r\n\n", strings.Repeat("x", maxLine-1), "x\n", strings.Repeat("y", maxLine), "yy", "y\nthree\nfo", "ur"} {
		if n, err := l.Write([]byte(p)); n != len(p) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	l.end()
	l.end()
	if len(got) != 5 || got[0] != "one" || got[1] != "two" || len(got[2]) != maxLine || got[3] != "three" || got[4] != "four" {
		t.Errorf("%d lines: %.20q", len(got), got)
	}
	if long != maxLine+3 {
		t.Errorf("a long line of %d bytes", long)
	}
}

func TestFeed(t *testing.T) {
	f := newFeed(10)
	if !f.add(nil) || f.add(make([]byte, 11)) {
		t.Error("there is no bound")
	}
	f.add([]byte("one "))
	read := make(chan string)
	go func() { b, _ := io.ReadAll(f); read <- string(b) }()
	f.add([]byte("two"))
	f.end()
	f.add([]byte("late"))
	f.end()
	if got := <-read; got != "one two" {
		t.Errorf("read %q", got)
	}
}
