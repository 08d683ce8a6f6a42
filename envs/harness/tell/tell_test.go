package tell

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"inspect/checks/redact"
	"inspect/envs/harness"
	"inspect/envs/proc"
	"inspect/envs/wire"
)

func teller(o Options) (*Teller, func() []harness.Event) {
	var all []harness.Event
	o.Events = func(e harness.Event) { all = append(all, e) }
	t := New(o)
	return t, func() []harness.Event { t.Close(); return all }
}

func TestMessages(t *testing.T) {
	tt, end := teller(Options{Redact: redact.New("top-secret"), Limit: 30_000})
	tt.Message("  \n")
	tt.Message("a top-secret \x00 word \xff")
	tt.Message(strings.Repeat("ü", 9000))  // more than one event
	tt.Message(strings.Repeat("<", 20000)) // more than is left
	all := end()
	if got := all[0].Data.(wire.Message).Text; got != "a [redacted] \u2400 word \uFFFD" {
		t.Errorf("first %q", got)
	}
	text, size := "", 0
	for _, e := range all[1:] {
		m, ok := e.Data.(wire.Message)
		if !ok {
			continue
		}
		b, err := json.Marshal(e)
		if err != nil || len(b) > wire.MaxEventBytes || !utf8.ValidString(m.Text) {
			t.Errorf("an event of %d bytes, %v", len(b), err)
		}
		text += m.Text
		size += len(m.Text)
	}
	if !strings.HasPrefix(text, strings.Repeat("ü", 9000)+"<<<") || size > 30_000 || strings.Contains(text, "\uFFFD") {
		t.Errorf("%d bytes of text", size)
	}
	if last := all[len(all)-1]; last.Kind != wire.EventNote || !tt.Truncated() {
		t.Errorf("nobody is told that output is missing: %+v", last)
	}
}

// However a tool call is, its event is one that can be sent.
func TestTools(t *testing.T) {
	tt, end := teller(Options{Redact: redact.New("top-secret"), Dir: "/workspace"})
	worst := strings.Repeat("<\x01", 1<<20)
	var files []string
	for range 1000 {
		files = append(files, "/workspace/"+worst[:100])
	}
	tt.Tool(wire.Tool{Name: worst, Title: worst, Command: worst, Output: worst, Files: files})
	three := 3
	tt.Tool(wire.Tool{
		Name: "bash", Title: "two\nlines", Command: "echo top-secret", ExitCode: &three, Failed: true, Duration: time.Second,
		Output: "top-secret\n" + strings.Repeat("x", maxToolOutput) + "\nlast line\n",
		Files:  []string{"/workspace/a b", "/workspace/./a b", "/etc/passwd", "/workspaces/x", "rel/../y", "/workspace/top-secret"},
	})
	all := end()
	b, err := json.Marshal(all[0])
	if err != nil || len(b) > wire.MaxEventBytes-1024 { // its number and time come to it
		t.Errorf("an event of %d bytes, %v", len(b), err)
	}
	c := all[1].Data.(wire.Tool)
	if c.Title != "two lines" || c.Command != "echo [redacted]" || c.Output != "…\nlast line\n" || *c.ExitCode != 3 || !c.Failed || c.Duration != time.Second {
		t.Errorf("tool %+v", c)
	}
	if !slices.Equal(c.Files, []string{"a b", "/etc/passwd", "/workspaces/x", "y", "[redacted]"}) {
		t.Errorf("files %q", c.Files)
	}
	if s := all[0].Data.(wire.Tool); !utf8.ValidString(s.Output) || !utf8.ValidString(s.Command) {
		t.Error("invalid text")
	}
}

// When nothing more is kept, it is still told what was done.
func TestToolsWithoutRoom(t *testing.T) {
	tt, end := teller(Options{Limit: 10})
	tt.Message("more than ten bytes")
	tt.Tool(wire.Tool{Name: "bash", Command: "go test", Output: "ok"})
	all := end()
	if c := all[1].Data.(wire.Tool); c.Command != "go test" || c.Output != "" {
		t.Errorf("tool %+v", c)
	}
}

func TestStreams(t *testing.T) {
	clock := proc.NewFake(time.Unix(0, 0))
	tt, end := teller(Options{Clock: clock, Redact: redact.New("top-secret")})
	out, errs := tt.Stream("stdout"), tt.Stream("stderr")
	for _, piece := range []string{"a top-", "sec", "ret word\nrest"} {
		_, _ = out.Write([]byte(piece))
	}
	_, _ = errs.Write([]byte("oops\n"))
	tt.Message("said")
	tt.EndStreams()
	_, _ = out.Write([]byte(" of it"))
	all := end()
	got := map[string]string{}
	for _, e := range all {
		if o, ok := e.Data.(wire.Output); ok {
			got[o.Stream] += o.Text
		}
	}
	if got["stdout"] != "a [redacted] word\nrest of it" || got["stderr"] != "oops\n" {
		t.Errorf("streams %q", got)
	}
	if tail := tt.Tail(); tail != "a [redacted] word\nrestoops\nsaid\n of it" {
		t.Errorf("tail %q", tail)
	}
}

// A secret at the edge of what is kept is known for one.
func TestSecretsAtTheEdge(t *testing.T) {
	tt, end := teller(Options{Redact: redact.New("top-secret-word")})
	key := "-----BEGIN PRIVATE KEY-----\n" + strings.Repeat("canary+canary\n", 700) + "-----END PRIVATE KEY-----\n"
	for shift := range 20 {
		tt.Tool(wire.Tool{
			Output:  strings.Repeat("x", 200_000) + "top-secret-word" + strings.Repeat("y", maxToolOutput-shift),
			Command: strings.Repeat("x", maxToolCommand-shift) + "top-secret-word" + strings.Repeat("y", 200_000),
		})
	}
	tt.Tool(wire.Tool{Output: strings.Repeat("x", 200_000) + key})
	for _, e := range end() {
		c := e.Data.(wire.Tool)
		for _, part := range []string{"canary", "word", "top-"} {
			if strings.Contains(c.Output, part) || strings.Contains(c.Command, part) {
				t.Errorf("%q is in it", part)
			}
		}
	}
}

func TestPromptsAndWords(t *testing.T) {
	tt, end := teller(Options{Redact: redact.New("top-secret")})
	long := strings.Repeat("ü", 10_000)
	tt.Prompt(wire.Prompted{Prompt: 2, Text: "top-secret " + long, Failed: long})
	tt.Note("top-secret " + long)
	all := end()
	p := all[0].Data.(wire.Prompted)
	if !strings.HasPrefix(p.Text, "[redacted] ü") || len(p.Text) > maxPrompt+10 || len(p.Failed) > maxWords+10 || !strings.HasSuffix(p.Text, "ü…") {
		t.Errorf("prompt %+v", p)
	}
	if n := all[1].Data.(wire.Note); len(n.Words) > maxWords+10 || strings.Contains(n.Words, "top-secret") {
		t.Errorf("note %+v", n)
	}
	if w := tt.Words("  top-secret\n"); w != "[redacted]" {
		t.Errorf("words %q", w)
	}
}
