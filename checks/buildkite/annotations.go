package buildkite

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/buildkite/go-buildkite/v3/buildkite"
	"golang.org/x/net/html"

	"inspect/checks/redact"
)

// Annotation is what a job has pinned to its build's page.
type Annotation struct {
	Context string
	Style   string // success, info, warning, error
	Text    string // its words, without HTML
	Cut     bool   // there was more
}

// maxAnnotation bounds the text of one annotation, in bytes. Buildkite keeps up
// to 1 MiB of each.
const maxAnnotation = 64 << 10

// Annotations of a build, at most 500. The token needs the scope read_builds.
func (c *Client) Annotations(ctx context.Context, org, pipeline string, number int) ([]Annotation, error) {
	path, err := ofBuild(org, pipeline, number, "annotations")
	if err != nil {
		return nil, err
	}
	k := call{what: fmt.Sprintf("list the annotations of build %d of %s/%s", number, org, pipeline), scope: "read_builds"}
	var out []Annotation
	err = list(ctx, c, k, path, func(a buildkite.Annotation) {
		text, more := plain(value(a.BodyHTML), maxAnnotation)
		out = append(out, Annotation{Context: cut(value(a.Context), 100), Style: cut(value(a.Style), 40), Text: text, Cut: more})
	})
	return out, err
}

// list reads the pages of a list, one after the other.
func list[T any](ctx context.Context, c *Client, k call, path string, each func(T)) error {
	for page := 1; page > 0 && page <= pages; {
		var got []T
		query := "?page=" + strconv.Itoa(page) + "&per_page=" + strconv.Itoa(perPage)
		answer, err := c.do(ctx, k, "GET", path+query, nil, nil, func() any { got = nil; return &got })
		if err != nil {
			return err
		}
		for _, v := range got[:min(len(got), perPage)] {
			each(v)
		}
		if answer.NextPage <= page {
			return nil
		}
		page = answer.NextPage
	}
	return nil
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// plain is the words of HTML that somebody else wrote, at most most bytes.
func plain(s string, most int) (text string, more bool) {
	var b strings.Builder
	z := html.NewTokenizer(strings.NewReader(s))
	z.SetMaxBuf(2 << 20)
	hidden := ""
	line := func() {
		if b.Len() > 0 && !strings.HasSuffix(b.String(), "\n") {
			b.WriteByte('\n')
		}
	}
	for b.Len() <= most {
		kind := z.Next()
		if kind == html.ErrorToken {
			break
		}
		raw, _ := z.TagName()
		name := string(raw)
		switch kind {
		case html.TextToken:
			if hidden == "" {
				b.Write(z.Text())
			}
		case html.StartTagToken, html.SelfClosingTagToken, html.EndTagToken:
			switch name {
			case "script", "style":
				hidden = name
				if kind != html.StartTagToken {
					hidden = ""
				}
			case "p", "div", "br", "li", "tr", "pre", "h1", "h2", "h3", "h4", "h5", "h6", "table", "ul", "ol", "details", "summary", "blockquote", "hr":
				line()
			case "td", "th":
				if kind == html.EndTagToken {
					b.WriteString(" | ")
				}
			}
		}
	}
	text = strings.TrimSpace(redact.Visible(b.String()))
	if len(text) > most {
		return cut(text, most), true
	}
	return text, false
}
