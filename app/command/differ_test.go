package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// render has micromark make HTML of every body, as `make setup` installs it.
func render(t *testing.T, bodies []string) []string {
	t.Helper()
	script, err := os.ReadFile("testdata/html.mjs")
	if err != nil {
		t.Fatal(err)
	}
	in, err := json.Marshal(bodies)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", "--input-type=module", "--eval", string(script))
	cmd.Dir = "../../.tools/markdown" // imports are looked for from here
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("running micromark in %s: %v; make setup ARGS=tests installs it", cmd.Dir, err)
	}
	var rendered []string
	if err := json.Unmarshal(out, &rendered); err != nil || len(rendered) != len(bodies) {
		t.Fatalf("micromark rendered %d of %d: %v", len(rendered), len(bodies), err)
	}
	return rendered
}

// numbered gives every candidate a name of its own, of the same kind of characters
// and as long.
func numbered(src string, at []int) string {
	b := []byte(src)
	for i, c := range at {
		copy(b[c:], fmt.Sprintf("/insp%03d", i))
	}
	return string(b)
}

// shown returns those candidates that a browser shows as the first text of a
// line of a paragraph which stands in nothing else.
func shown(t *testing.T, rendered string, at []int) []int {
	t.Helper()
	nodes, err := html.ParseFragment(strings.NewReader(rendered), &html.Node{Type: html.ElementNode, Data: "body", DataAtom: atom.Body})
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, p := range nodes {
		if p.DataAtom != atom.P {
			continue
		}
		for n := p.FirstChild; n != nil; n = n.NextSibling {
			if n.Type != html.TextNode {
				continue
			}
			for i, c := range at {
				before, _, ok := strings.Cut(n.Data, fmt.Sprintf("/insp%03d", i))
				if ok && (before == "" && n.PrevSibling == nil || strings.HasSuffix(before, "\n")) {
					out = append(out, c)
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

// stricter is where a command is not obeyed although micromark shows it in a
// paragraph of its own.
var stricter = []struct {
	why     string
	in      *regexp.Regexp
	example string
}{
	{"a comment that began in a text and may go on", regexp.MustCompile(`<!--`), "a <!-- b\n\n/inspect stop"},
	{"a formula that may go on", regexp.MustCompile(`\$\$`), "$$\n/inspect stop\n$$"},
	{"a row as below a table's head, which has another number of cells", delimiterLine, "a\n|---|---|\n/inspect stop"},
	{"tags of a table that browsers move the text out of", regexp.MustCompile(`<table>|<tr>`), "<table>\n\n/inspect stop"},
	{"a paragraph that is HTML", regexp.MustCompile(`<p>`), "<p>\n/inspect stop"},
	{"a tag alone on a line, with no blank line below", regexp.MustCompile(`(?m)^ *</?[a-z]+( [^>]*)?>$`), "- a\n<x>\n/inspect stop"},
	{"words struck out with one tilde and two", regexp.MustCompile(`(?s)~.*~`), "~a\n/inspect stop\nb~~"},
	{"a list from another number than one, right below code", regexp.MustCompile(`(?m)^(    |\t).*\n+(2\)|10\.) item`), "    a\n2) item\n/inspect stop"},
}

var delimiterLine = regexp.MustCompile(`(?m)^[ \t]*\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$`)

// TestMicromark reads many comments with two parsers. No command may be seen
// where the other one, and a browser, do not show it as a text of its own; one
// may be left unseen only for the reasons that are known, each of which occurs.
func TestMicromark(t *testing.T) {
	bodies := generated()
	for _, c := range comments {
		bodies = append(bodies, normalise(c.body))
	}
	for _, s := range stricter {
		bodies = append(bodies, s.example)
	}
	marked := make([]string, len(bodies))
	for i, b := range bodies {
		marked[i] = numbered(b, candidates(b))
	}
	occurs, seen := make([]int, len(stricter)), 0
	for i, r := range render(t, marked) {
		at := candidates(bodies[i])
		ours, theirs := visible(bodies[i], at), shown(t, r, at)
		seen += len(ours)
		for _, c := range ours {
			if !slices.Contains(theirs, c) {
				t.Errorf("%q: the command at %d is hidden in\n%s", bodies[i], c, r)
			}
		}
		if len(theirs) <= len(ours) {
			continue
		}
		why := 0
		for why < len(stricter) && !stricter[why].in.MatchString(bodies[i]) {
			why++
		}
		if why == len(stricter) {
			t.Errorf("%q: of the commands at %v only %v were seen in\n%s", bodies[i], theirs, ours, r)
			continue
		}
		occurs[why]++
	}
	for i, n := range occurs {
		if n == 0 {
			t.Errorf("no comment shows why %q is a reason", stricter[i].why)
		}
	}
	t.Logf("%d comments, %d commands seen, read more strictly %v", len(bodies), seen, occurs)
}

// pieces of comments, one or more lines each.
var pieces = []string{
	"words", "", "  ", "/inspect stop", " /inspect stop", "   /inspect stop", "    /inspect stop", "\t/inspect stop", "words  ", `words\`,
	"> quote", ">", "> > deep", "> ```", "> - item", ">     code", "> # title", "> /inspect stop", ">/inspect stop",
	"- item", "-", "* item", "+ item", "1. item", "2) item", "10. item", "- [ ] task", "- [x] task", "-   item", "-     code", "  - item", "  more", "   more", "     more",
	"- > quote", "- ```", "- # title", "1.", "- /inspect stop", "1. /inspect stop",
	"```", "````", "~~~", "```go", "``` a`b", "~~~ a`b", "  ```", "    ```", "`", "``", "a `b", "a ``b", "c` d",
	"# title", "#", "#title", "####### seven", "===", "---", "- - -", "***", "___", "--", "=", "   ---",
	"<div>", "</div>", "<details>", "</details>", "<summary>x</summary>", "<!--", "-->", "<!-- a -->", "a <!-- b", "a <!-- b -->", "<!-->", "<!--->", "<?", "?>", "<!X", "<![CDATA[", "]]>",
	"<pre>", "</pre>", "<script>", "</script>", "<style>", "</style>", "<textarea>", "</textarea>", "<b>", "</b>", "<x>", "<a href=\"", "\">", "<br>", "<img src=x>", "<p>", "</p>", "<span", ">", "<b>x", "x</b>", "<table>", "<tr><td>", "</td></tr></table>", "<http://127.0.0.1>", "<sub>",
	"| a |", "|---|", "| a | b |", "|---|---|", "a | b", "--- | ---", ":-:", "| /inspect stop |", "|",
	"[a]: /b", "[a]:", "/b", "'title'", "\"title", "[a]: /b 'x", "[a]: <", "[a", "](b)", "![a", "](/b \"", "[a][b", "]", "[^1]: note", "[^1]", "a[^1]", "    note",
	"*a", "b*", "**a", "b**", "_a", "b_", "~~a", "b~~", "~a", "b~", "***", "*", "**",
	"&#47;inspect stop", "&lt;!--", `\<!--`, `\`, "$$", "$", "```math", "www.example.com", "a@example.com", "http://127.0.0.1/", "-- ", "@octokit", "#1",
	"\u00a0", "\u200b", "\f", "\v", "[!NOTE]", "> [!NOTE]", "[ ] x", "a\u2028b", ":", ": definition", "term",
}

// samples is how many texts are made.
const samples = 4000

// generated are texts made of pieces, the same each time.
func generated() []string {
	r := rand.New(rand.NewPCG(7, 11))
	out := make([]string, samples)
	for i := range out {
		lines := make([]string, 2+r.IntN(7))
		for j := range lines {
			lines[j] = pieces[r.IntN(len(pieces))]
		}
		lines[r.IntN(len(lines))] = "/inspect stop"
		out[i] = strings.Join(lines, "\n")
	}
	return out
}
