package spec

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// Screenshot is a page that verification takes a picture of, on the base and on
// the result.
type Screenshot struct {
	URL    string `json:"url"`
	Width  int    `json:"width"`  // of the window, in CSS pixels
	Height int    `json:"height"` // likewise
	// WaitFor is a CSS selector of what must be visible first; empty: the page
	// has to be loaded and at rest.
	WaitFor  string `json:"wait_for,omitempty"`
	FullPage bool   `json:"full_page,omitempty"` // as high as the page is
}

// The window that is taken where nobody says another, and the bounds of one.
const (
	DefaultWidth, DefaultHeight = 1280, 800
	minViewport                 = 100
	maxWidth, maxHeight         = 3840, 2400
)

// MaxScreenshots is how many verify commands can be pictures.
const MaxScreenshots = 20

var viewportHelp = fmt.Sprintf("a size like 1280x800, from %dx%d to %dx%d", minViewport, minViewport, maxWidth, maxHeight)

// Line is the shell line that takes the picture inside a sandbox.
func (s Screenshot) Line() string {
	words := []string{"inspect", "shot", s.URL}
	if s.Width != DefaultWidth || s.Height != DefaultHeight {
		words = append(words, "--viewport", fmt.Sprintf("%dx%d", s.Width, s.Height))
	}
	if s.WaitFor != "" {
		words = append(words, "--wait-for", s.WaitFor)
	}
	if s.FullPage {
		words = append(words, "--full-page")
	}
	for i, w := range words {
		words[i] = quoted(w)
	}
	return strings.Join(words, " ")
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9%+,./:=@_-]+$`).MatchString

// quoted is a word as a shell has to be given it.
func quoted(s string) string {
	if plainWord(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// ParseViewport reads a size like 1280x800.
func ParseViewport(s string) (width, height int, err error) {
	w, h, _ := strings.Cut(s, "x")
	if !between(minViewport, maxWidth)(w) || !between(minViewport, maxHeight)(h) || !plainNumber(w) || !plainNumber(h) {
		return 0, 0, fmt.Errorf("expected %s", viewportHelp)
	}
	width, _ = strconv.Atoi(w)
	height, _ = strconv.Atoi(h)
	return width, height, nil
}

var plainNumber = regexp.MustCompile(`^[1-9][0-9]{0,3}$`).MatchString

func isViewport(s string) bool { _, _, err := ParseViewport(s); return err == nil }

func oneLine(s string) bool {
	return notBlank(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// screenshotProblem says what is wrong with the address of a page.
func screenshotProblem(s string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || !oneLine(s) || strings.Contains(s, " "):
		return "expected an address like http://127.0.0.1:5173/"
	case !slices.Contains(loopback, u.Hostname()):
		return "expected an address on the sandbox's own loopback, http://127.0.0.1:…, and no other host: nothing else can be reached there"
	case u.Port() != "" && !between(1, 65535)(u.Port()):
		return "expected a port from 1 to 65535 in the address"
	}
	return portProblem(u.Port())
}

// checkScreenshot asks of a verify command that it is a shell line or a picture.
func (v *validator) checkScreenshot(item *yaml.Node, at string) {
	if item.Kind != yaml.MappingNode {
		return
	}
	picture := child(item, "screenshot") != nil
	switch {
	case picture && child(item, "run") != nil:
		v.add(child(item, "run"), at+".run", "expected either run or screenshot, not both", "")
	case !picture && child(item, "run") == nil:
		v.add(item, at+".run", "expected a shell line; the key is missing", "")
	}
	for _, key := range []string{"report", "coverage", "secrets"} {
		if n := child(item, key); n != nil && picture {
			v.add(n, at+"."+key, "expected only with run: a screenshot has none", "")
		}
	}
	for _, key := range []string{"viewport", "wait_for", "full_page"} {
		if n := child(item, key); n != nil && !picture {
			v.add(n, at+"."+key, "expected only with screenshot", "")
		}
	}
}

func (v *validator) countScreenshots(verify *yaml.Node) {
	n := 0
	for i, item := range verify.Content {
		if at := child(item, "screenshot"); at != nil {
			if n++; n == MaxScreenshots+1 {
				v.add(at, fmt.Sprintf("verify[%d].screenshot", i), fmt.Sprintf("expected at most %d screenshots", MaxScreenshots), "")
			}
		}
	}
}

// buildScreenshot reads the keys of a picture.
func buildScreenshot(item *yaml.Node, c *Verify) {
	if child(item, "screenshot") == nil {
		return
	}
	s := Screenshot{Width: DefaultWidth, Height: DefaultHeight}
	text(child(item, "screenshot"), &s.URL)
	text(child(item, "wait_for"), &s.WaitFor)
	s.FullPage = yes(child(item, "full_page"))
	if size := ""; child(item, "viewport") != nil {
		text(child(item, "viewport"), &size)
		s.Width, s.Height, _ = ParseViewport(size) // validated
	}
	c.Screenshot, c.Report, c.Run = &s, ReportScreenshot, s.Line()
}
