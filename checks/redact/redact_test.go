package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"html"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// longToken has the form GitHub began to hand out in 2026: about 520
// characters with dots, dashes and underscores.
var longToken = "ghs_12345_eyJhbGciOiJSUzI1NiJ9." + strings.Repeat("Ab-_9", 90) + "." + strings.Repeat("xY_z-", 10) + "end"

func TestPatternsTakeTheWholeToken(t *testing.T) {
	for name, secret := range map[string]string{
		"short app token": "ghs_" + strings.Repeat("a1B2", 9),
		"long app token":  longToken,
		"user token":      "ghu_" + strings.Repeat("Z9", 18),
		"pat":             "github_pat_" + strings.Repeat("A1_", 20),
		"jwt":             "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-_DEF",
		"aws":             "AKIA" + strings.Repeat("A7", 8),
		"anthropic":       "sk-ant-" + strings.Repeat("a-B_1", 8),
		"openai":          "sk-" + strings.Repeat("a1B2c3", 8),
		"buildkite":       "bkua_" + strings.Repeat("ab12", 8),
	} {
		t.Run(name, func(t *testing.T) {
			for _, around := range []string{"%", "x=%\n", "(%)", `{"token":"%"}`, `{"out":"a\n%"}`, "\x1b[32m%\x1b[0m", "MY_%", "fetch https://x-access-token:%@github.example/a/b failed"} {
				in := strings.Replace(around, "%", secret, 1)
				out := New().String(in)
				if piece := secret[len(secret)-8:]; strings.Contains(out, piece) {
					t.Errorf("%q left %q", in, out)
				}
				if !strings.Contains(out, Mark) {
					t.Errorf("%q has no mark: %q", in, out)
				}
				if f := Find(in); len(f) == 0 {
					t.Errorf("%q: nothing found", in)
				}
			}
		})
	}
}

func TestExactValuesInEverySpelling(t *testing.T) {
	const secret = "correct horse/battery+staple?"
	r := New(secret)
	for name, in := range map[string]string{
		"plain":  "a " + secret + " b",
		"query":  url.QueryEscape(secret),
		"path":   url.PathEscape(secret),
		"b64":    base64.StdEncoding.EncodeToString([]byte(secret)),
		"b64 +1": base64.StdEncoding.EncodeToString([]byte("x" + secret + "tail")),
		"b64 +2": base64.StdEncoding.EncodeToString([]byte("xy" + secret + "t")),
		"basic":  base64.URLEncoding.EncodeToString([]byte("x-access-token:" + secret)),
		"hex":    hex.EncodeToString([]byte("x" + secret)),
		"HEX":    strings.ToUpper(hex.EncodeToString([]byte(secret))),
	} {
		out := r.String(in)
		if !strings.Contains(out, Mark) {
			t.Errorf("%s: %q stayed", name, out)
		}
		if dec, err := base64.StdEncoding.DecodeString(out); err == nil && bytes.Contains(dec, []byte("battery")) {
			t.Errorf("%s: %q can still be read", name, out)
		}
	}
	if out := r.String("nothing here"); out != "nothing here" {
		t.Errorf("ordinary text changed: %q", out)
	}
	if New("abc").String("abc") != "abc" {
		t.Error("a value too short to be a secret was replaced")
	}
}

func TestTokenAfterAnEscapeOfAURL(t *testing.T) {
	if out := New().String("https://h.example/?a%3D" + longToken + "%26"); out != "https://h.example/?a%3D"+Mark+"%26" {
		t.Error(out)
	}
	if in := "it weighs_more_than_anybody_thought"; New().String(in) != in {
		t.Error("a word was taken for a token")
	}
}

// A value with characters that JSON and HTML write in another way.
func TestExactValuesEscaped(t *testing.T) {
	const secret = "a\"b\\c<d>&e\n'f"
	r := New(secret)
	for _, safe := range []bool{true, false} {
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(safe)
		if err := e.Encode(map[string]string{"k": secret}); err != nil {
			t.Fatal(err)
		}
		if out := r.String(b.String()); out != "{\"k\":\""+Mark+"\"}\n" {
			t.Errorf("%v: %s", safe, out)
		}
	}
	if out := r.String("<p>" + html.EscapeString(secret) + "</p>"); out != "<p>"+Mark+"</p>" {
		t.Error(out)
	}
}

func TestWith(t *testing.T) {
	base := New("first-secret")
	more := base.With("second-secret")
	if got := more.String("first-secret second-secret"); got != Mark+" "+Mark {
		t.Errorf("%q", got)
	}
	if got := base.String("second-secret"); got != "second-secret" {
		t.Errorf("the first learnt it too: %q", got)
	}
}

func TestFindTellsLines(t *testing.T) {
	r := New("hunter22hunter22")
	in := "a\nhunter22hunter22\n-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\nu\x00t\x00f hunt\x00er22hunter22"
	want := []Finding{{2, 2, "known-secret"}, {3, 5, "private-key"}, {6, 6, "known-secret"}}
	if d := cmp.Diff(want, r.Find(in)); d != "" {
		t.Error(d)
	}
}

// Many findings in a long text must not cost the square of it.
func TestFindIsNotQuadratic(t *testing.T) {
	in := strings.Repeat("ghp_"+strings.Repeat("a", 16)+"\n", 200_000)
	done := make(chan int, 1)
	go func() { done <- len(Find(in)) }()
	select {
	case n := <-done:
		if n != 200_000 {
			t.Errorf("%d findings", n)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("not over after 20 s")
	}
}

func TestForget(t *testing.T) {
	r := New("first-secret", "second-secret")
	r.Forget("first-secret")
	if got := r.String("first-secret second-secret"); got != "first-secret "+Mark {
		t.Errorf("%q", got)
	}
}

func TestPrivateKey(t *testing.T) {
	key := "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\ndef\n-----END RSA PRIVATE KEY-----"
	if out := New().String("a\n" + key + "\nb"); out != "a\n"+Mark+"\nb" {
		t.Error(out)
	}
	if out := New().String("a\n" + key[:40]); strings.Contains(out, "MIIa") {
		t.Error("a cut key stayed: " + out)
	}
}

func TestWriterSeesAcrossWrites(t *testing.T) {
	for _, step := range []int{1, 3, 7, 1000} {
		var out bytes.Buffer
		w := New("hunter22hunter22").Writer(&out)
		in := "one hunter22hunter22 two\n" + longToken + "\n-----BEGIN PRIVATE KEY-----\nMIIabc\n-----END PRIVATE KEY-----\nlast hunter22hunter22"
		for at := 0; at < len(in); at += step {
			if _, err := w.Write([]byte(in[at:min(at+step, len(in))])); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		want := "one [redacted] two\n[redacted]\n[redacted]\nlast [redacted]"
		if d := cmp.Diff(want, out.String()); d != "" {
			t.Errorf("step %d: %s", step, d)
		}
	}
}

// An endless line is let go of in parts, none of which ends in a secret.
func TestWriterCutsNoSecret(t *testing.T) {
	const known = "correct horse battery staple"
	huge := "ghs_" + strings.Repeat("Ab9-", 40<<10) // more than is ever held
	for name, secret := range map[string]string{"known": known, "token": longToken, "huge": huge} {
		for _, before := range []int{0, 100, maxHeld - minTail - 300, maxHeld - minTail - 10, maxHeld - minTail, maxHeld - 10, maxHeld} {
			for _, step := range []int{1000, 4096, 1 << 20} {
				var out bytes.Buffer
				w := New(known).Writer(&out)
				in := strings.Repeat("x ", before/2) + secret + " " + strings.Repeat("y ", maxHeld)
				for at := 0; at < len(in); at += step {
					if _, err := w.Write([]byte(in[at:min(at+step, len(in))])); err != nil {
						t.Fatal(err)
					}
				}
				w.Flush()
				if want := strings.Repeat("x ", before/2) + Mark + " " + strings.Repeat("y ", maxHeld); out.String() != want {
					t.Errorf("%s after %d, %d at a time: %d bytes came out, want %d", name, before, step, out.Len(), len(want))
				}
			}
		}
	}
}

// A known secret of several lines is no private key's form.
func TestWriterHoldsSecretsOfSeveralLines(t *testing.T) {
	const secret = "first line of it\nsecond\nthird line"
	in := "a\nb=" + secret + "\nfirst line of it\nother\nfirst line of it"
	for _, step := range []int{1, 5, 17, 1000} {
		var out bytes.Buffer
		w := New(secret).Writer(&out)
		for at := 0; at < len(in); at += step {
			if _, err := w.Write([]byte(in[at:min(at+step, len(in))])); err != nil {
				t.Fatal(err)
			}
		}
		w.Flush()
		if want := "a\nb=" + Mark + "\nfirst line of it\nother\nfirst line of it"; out.String() != want {
			t.Errorf("step %d: %q", step, out.String())
		}
	}
}

func TestWriterBoundsAnEndlessLine(t *testing.T) {
	var out bytes.Buffer
	w := New().Writer(&out)
	for range 100 {
		w.Write(bytes.Repeat([]byte("x"), 4096))
		if w.held.Len() > 2*maxHeld {
			t.Fatalf("%d bytes held", w.held.Len())
		}
	}
	w.Flush()
	if out.Len() != 100*4096 {
		t.Errorf("%d bytes came out", out.Len())
	}
}

var hostile = []string{
	"@octocat please look", "mail hubot@example.com", "fixes #12", "Closes octocat/hello#3", "see GH-7",
	"closes https://github.com/octocat/hello/issues/1", "www.example.com", "[click](http://evil)", "![x](http://evil/p.png)",
	"<img src=x onerror=alert(1)>", "<!-- hidden -->", "&lt;b&gt;", "```\nend", "~~~\nx", "# big", "> quote", "- item", "1. item", "| a | b |\n|---|---|\n| c | d |",
	"/inspect stop", "   /inspect approve", "text\n/inspect go", "    code", "\tcode", "title\n===", "title\n---", "**bold** _em_ ~~no~~", "`code`",
	"\u202eevil", "a\x1b[31mred\x1b[0m", "a\r\n/inspect x", "\u200b/inspect y", "[ref]: http://x", "\\", "\\`", "* * *", "a  \nb", ":smile:", "$x$", "- [ ] task",
	"https\\://x.example", "a@b@c", "http://user:pw@x", "ftp://x.example", "mailto:hubot@example.com", "xmpp:a@b.c",
}

// Rendered by GitHub's dialect, neutralised text is paragraphs of plain text
// and nothing else.
func TestNeutraliseRendersAsPlainText(t *testing.T) {
	for _, in := range hostile {
		checkPlain(t, in)
	}
}

func FuzzNeutralise(f *testing.F) {
	for _, in := range hostile {
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, in string) {
		if len(in) > 2000 {
			return
		}
		checkPlain(t, in)
	})
}

func checkPlain(t *testing.T, in string) {
	t.Helper()
	out := []byte(Neutralise(in))
	md := goldmark.New(goldmark.WithExtensions(extension.GFM))
	doc := md.Parser().Parse(text.NewReader(out))
	err := ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n.Kind() {
		case ast.KindDocument, ast.KindParagraph, ast.KindText, ast.KindString, ast.KindTextBlock:
		default:
			t.Fatalf("%q became %q, which holds a %s", in, out, n.Kind())
		}
		return ast.WalkContinue, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(out), "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "/") {
			t.Fatalf("%q: the line %q reads as a command", in, line)
		}
	}
	if afterAt().Match(out) {
		t.Fatalf("%q: mentions in %q", in, out)
	}
}

func TestFenceCannotBeEnded(t *testing.T) {
	for _, in := range []string{"a", "```", "````\nx", "~~~", "a\n`````\n```"} {
		md := goldmark.New(goldmark.WithExtensions(extension.GFM))
		out := []byte(Fence(in, "") + "\n\nafter")
		doc := md.Parser().Parse(text.NewReader(out))
		if doc.ChildCount() != 2 || doc.FirstChild().Kind() != ast.KindFencedCodeBlock {
			t.Errorf("%q escapes its fence: %q", in, out)
		}
	}
}

func TestCut(t *testing.T) {
	for _, c := range []struct {
		in   string
		max  int
		want string
	}{{"abc", 3, "abc"}, {"abcdef", 5, "ab…"}, {"日本語", 8, "日…"}, {"😀😀", 7, "😀…"}, {"abc", 2, ""}} {
		if got := Cut(c.in, c.max); got != c.want || len(got) > c.max {
			t.Errorf("Cut(%q, %d) = %q, want %q", c.in, c.max, got, c.want)
		}
	}
}

func TestOneLine(t *testing.T) {
	if got := OneLine("fix\n@octocat \u202e it\x1b[2J", 100); got != "fix @\u200boctocat it" {
		t.Errorf("%q", got)
	}
}
