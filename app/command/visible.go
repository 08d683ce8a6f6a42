package command

import (
	"bytes"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
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

// markdown is GitHub's dialect as far as it decides what a line is.
func markdown() goldmark.Markdown {
	return goldmark.New(goldmark.WithExtensions(extension.GFM, extension.Footnote))
}

// visible returns those candidates that a reader of the rendered comment sees
// as the first text of a line of a top-level paragraph.
func visible(src string, candidates []int) []int {
	source := []byte(src)
	doc := markdown().Parser().Parse(text.NewReader(source))
	starts := make(map[int]bool, len(candidates))
	for _, c := range candidates {
		starts[c] = false
	}
	var open htmlStack
	for n := doc.FirstChild(); n != nil; n = n.NextSibling() {
		switch n := n.(type) {
		case *ast.HTMLBlock:
			open.feed(blockBytes(n, source))
		case *ast.Paragraph:
			markParagraph(n, source, &open, starts)
		default:
			// Tags in headings, lists and quotes stay within them.
		}
		if open.comment {
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

// markParagraph marks in starts the candidates that are plain text of p. A
// piece of text counts only if it is a direct child of the paragraph: what
// stands in code, in HTML, in a link's title or is struck out does not.
func markParagraph(p *ast.Paragraph, source []byte, open *htmlStack, starts map[int]bool) {
	var math int // number of $$ seen in this paragraph
	for n := p.FirstChild(); n != nil; n = n.NextSibling() {
		switch n := n.(type) {
		case *ast.Text:
			segment := n.Segment
			if _, ok := starts[segment.Start]; ok && open.empty() && math%2 == 0 {
				starts[segment.Start] = true
			}
			words := segment.Value(source)
			math += bytes.Count(words, []byte("$$"))
			if bytes.Contains(words, []byte("<!--")) {
				open.comment = true // never closed: what follows is not certain to be seen
				return
			}
		case *ast.RawHTML:
			for i := 0; i < n.Segments.Len(); i++ {
				segment := n.Segments.At(i)
				open.feed(segment.Value(source))
			}
		}
	}
}

func blockBytes(n *ast.HTMLBlock, source []byte) []byte {
	var b bytes.Buffer
	lines := n.Lines()
	for i := 0; i < lines.Len(); i++ {
		line := lines.At(i)
		b.Write(line.Value(source))
	}
	if n.HasClosure() {
		b.Write(n.ClosureLine.Value(source))
	}
	return b.Bytes()
}

// htmlStack follows which HTML elements are open. It errs towards "open": a
// command that is not seen can be given again, one that nobody saw cannot be
// taken back.
type htmlStack struct {
	names   []string
	comment bool // an unterminated comment began
}

func (h *htmlStack) empty() bool { return len(h.names) == 0 && !h.comment }

// maxOpen bounds the stack; deeper is taken as never closed.
const maxOpen = 256

// feed reads tags from a piece of raw HTML.
func (h *htmlStack) feed(b []byte) {
	s := string(b)
	for {
		i := strings.IndexByte(s, '<')
		if i < 0 {
			return
		}
		s = s[i+1:]
		switch {
		case strings.HasPrefix(s, "!--"):
			j := strings.Index(s[3:], "-->")
			if j < 0 {
				h.comment = true
				return
			}
			s = s[3+j+3:]
		case strings.HasPrefix(s, "/"):
			name := tagName(s[1:])
			h.close(name)
		default:
			if name := tagName(s); name != "" && !isVoid(name) {
				rest, selfClosed := skipTag(s)
				s = rest
				if !selfClosed || !isForeign(name) {
					h.push(name)
				}
			}
		}
	}
}

func (h *htmlStack) push(name string) {
	if len(h.names) < maxOpen {
		h.names = append(h.names, name)
	}
}

// close ends the innermost element of that name and everything left open in it.
func (h *htmlStack) close(name string) {
	for i := len(h.names) - 1; i >= 0; i-- {
		if h.names[i] == name {
			h.names = h.names[:i]
			return
		}
	}
}

// tagName reads a tag's name in lower case, "" if s does not start with one.
func tagName(s string) string {
	n := 0
	for n < len(s) && n < 64 {
		c := s[n] | 0x20
		if c >= 'a' && c <= 'z' || n > 0 && (s[n] >= '0' && s[n] <= '9' || s[n] == '-') {
			n++
			continue
		}
		break
	}
	return strings.ToLower(s[:n])
}

// skipTag moves past a tag's end, minding quoted attribute values.
func skipTag(s string) (rest string, selfClosed bool) {
	var quote byte
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '>':
			return s[i+1:], i > 0 && s[i-1] == '/'
		}
	}
	return "", false
}

// isVoid says whether an element has no content or ends by itself where the
// next block begins.
func isVoid(name string) bool {
	switch name {
	case "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr",
		"p", "li", "dt", "dd", "tr", "td", "th", "summary":
		return true
	}
	return false
}

// isForeign says whether "/>" really closes the element; for those of HTML it
// means nothing.
func isForeign(name string) bool { return name == "svg" || name == "math" || name == "path" }
