package command

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	renderer "github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// Bounds on markup. The parser needs time that grows with the square of open
// delimiters and of nesting (64 KB of "*a_ " take 2 s); a comment that a person
// wrote is far below these.
const (
	maxDelimiters = 8000 // emphasis, bracket, backtick, tilde and angle characters in one comment
	maxNesting    = 40   // block markers at the start of one line
)

// tooTangled says whether src would be expensive to parse.
func tooTangled(src string) bool {
	delimiters := 0
	for line := range strings.Lines(src) {
		for i := 0; i < len(line); i++ {
			switch line[i] {
			case '*', '_', '~', '[', ']', '`', '<':
				delimiters++
			}
		}
		if nesting(line) > maxNesting {
			return true
		}
	}
	return delimiters > maxDelimiters
}

// nesting counts the characters in a line's margin that could each open a
// block. A ruler or an underline ("-----") opens none.
func nesting(line string) int {
	line = strings.TrimRight(line, "\n")
	n, same := 0, true
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == '>', c == '*', c == '-', c == '+', c == '.', c == ')':
			n++
		case c == ' ', c == '\t', c >= '0' && c <= '9':
		default:
			return n
		}
		same = same && c == line[0]
	}
	if same && line != "" && line[0] != '>' {
		return 0
	}
	return n
}

// markdown is GitHub's dialect as far as it decides what a line is. HTML is let
// through: it decides, too.
func markdown() goldmark.Markdown {
	return goldmark.New(goldmark.WithExtensions(extension.GFM, extension.Footnote), goldmark.WithRendererOptions(renderer.WithUnsafe()))
}

// visible returns those candidates that a reader of the rendered comment sees
// as the first text of a line of a top-level paragraph: one in the Markdown
// tree, and still one in the tree of the HTML that is made of it. Where the two
// say different things nothing is seen.
func visible(src string, candidates []int) []int {
	source, md := []byte(src), markdown()
	doc := md.Parser().Parse(text.NewReader(source))
	at := plain(doc, source, certain(doc, source, candidates))
	if len(at) == 0 {
		return nil
	}
	// The tree refers to the text, so a mark in it is rendered where it belongs.
	for i, c := range source {
		if c == markByte {
			source[i] = ' '
		}
	}
	for i, c := range at {
		copy(source[c:], mark(i))
	}
	var rendered bytes.Buffer
	if err := md.Renderer().Render(&rendered, source, doc); err != nil {
		return nil
	}
	shown := shownMarks(rendered.Bytes())
	var out []int
	for i, c := range at {
		if shown[mark(i)] {
			out = append(out, c)
		}
	}
	return out
}

// markByte begins a mark: no other text has it.
const markByte = '\x01'

// mark is as long as Trigger and stands for the i-th candidate.
func mark(i int) string { return fmt.Sprintf("%c%0*d", markByte, len(Trigger)-1, i) }

// plain returns the candidates that the Markdown tree has as plain text of a
// top-level paragraph. A piece of text counts only if it is a direct child of
// the paragraph: what stands in code, in a link's title or is struck out does not.
func plain(doc ast.Node, source []byte, candidates []int) []int {
	starts := make(map[int]bool, len(candidates))
	for n := doc.FirstChild(); n != nil; n = n.NextSibling() {
		if raw, ok := n.FirstChild().(*ast.RawHTML); ok && rawEnd.Match(raw.Segments.Value(source)) {
			break // what follows is read in another way by GitHub
		}
		if p, ok := n.(*ast.Paragraph); ok && !markParagraph(p, source, starts) {
			break
		}
	}
	var at []int
	for _, c := range candidates {
		if starts[c] {
			at = append(at, c)
		}
	}
	return at
}

// markParagraph collects where the plain text of p begins. It returns false if
// what follows p is not certain to be seen.
func markParagraph(p *ast.Paragraph, source []byte, starts map[int]bool) bool {
	var math int // number of $$ seen in this paragraph
	for n := p.FirstChild(); n != nil; n = n.NextSibling() {
		t, ok := n.(*ast.Text)
		if !ok {
			continue
		}
		starts[t.Segment.Start] = math%2 == 0
		words := t.Segment.Value(source)
		math += bytes.Count(words, []byte("$$"))
		if bytes.Contains(words, []byte("<!--")) {
			return false // a comment that is never closed
		}
	}
	return true
}

// certain drops the candidates at lines about which readers of Markdown do not
// agree. A row as below a table's head may begin a table in the midst of
// something else, a tag alone a block of HTML: then they are in doubt up to the
// next blank line, and if the row does not fit the line above it, from the last one.
func certain(doc ast.Node, source []byte, candidates []int) []int {
	var out, block []int // block: since the last blank line
	var above []byte
	code, pos, doubt := inFences(doc), 0, false
	for line := range bytes.Lines(source) {
		blank := len(bytes.Trim(line, " \t\n")) == 0
		switch {
		case blank:
			out, block, doubt = append(out, block...), nil, false
		case code[pos]:
		case len(above) > 0 && bytes.ContainsAny(line, "|:") && delimiterRow.Match(line):
			if doubt = true; cells(above) != cells(line) {
				block = nil
			}
		case loneTag.Match(line):
			doubt = true
		}
		if above = line; blank {
			above = nil
		}
		pos += len(line)
		for len(candidates) > 0 && candidates[0] < pos {
			if !doubt {
				block = append(block, candidates[0])
			}
			candidates = candidates[1:]
		}
	}
	return append(out, block...)
}

// inFences is where the lines of fenced code begin.
func inFences(doc ast.Node) map[int]bool {
	out := map[int]bool{}
	for n := doc.FirstChild(); n != nil; n = n.NextSibling() {
		if _, ok := n.(*ast.FencedCodeBlock); !ok {
			continue
		}
		for i := range n.Lines().Len() {
			out[n.Lines().At(i).Start] = true
		}
	}
	return out
}

// cells counts those of a table's row.
func cells(row []byte) int { return bytes.Count(bytes.Trim(row, " \t\n|"), []byte("|")) }

var (
	// rawEnd is a closing tag that goldmark does not take for the start of a block.
	rawEnd       = regexp.MustCompile(`^(?i)</(pre|script|style|textarea)\b`)
	delimiterRow = regexp.MustCompile(`^[ \t]*\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*\n?$`)
	loneTag      = regexp.MustCompile(`^ {0,3}</?[A-Za-z][A-Za-z0-9-]*([ \t/][^>]*)?>[ \t]*\n?$`)
)

// tableTag is how a tag begins whose element browsers move the rest of its
// content out of.
var tableTag = regexp.MustCompile(`(?i)<(/?)(table|caption|colgroup|col|thead|tbody|tfoot|tr|td|th)\b`)

// shownMarks are those in the text of paragraphs which stand in nothing else, as
// a browser reads the HTML, without the text of elements in these.
func shownMarks(rendered []byte) map[string]bool {
	rendered = tableTag.ReplaceAll(rendered, []byte("<${1}x-$2"))
	nodes, err := html.ParseFragment(bytes.NewReader(rendered), &html.Node{Type: html.ElementNode, Data: "body", DataAtom: atom.Body})
	if err != nil {
		return nil // nested too deeply
	}
	shown := map[string]bool{}
	for _, p := range nodes {
		if p.DataAtom != atom.P {
			continue
		}
		for n := p.FirstChild; n != nil; n = n.NextSibling {
			if n.Type != html.TextNode {
				continue
			}
			for _, after := range strings.Split(n.Data, string(markByte))[1:] {
				shown[string(markByte)+after[:min(len(after), len(Trigger)-1)]] = true
			}
		}
	}
	return shown
}
