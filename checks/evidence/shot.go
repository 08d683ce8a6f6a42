package evidence

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"inspect/checks/redact"
	"inspect/envs/spec"
	"inspect/envs/wire"
)

// Shot is what the browser said about a page that a picture was taken of.
type Shot struct {
	URL    string `json:"url"`
	Final  string `json:"final,omitempty"` // where it led
	Title  string `json:"title,omitempty"`
	Status int    `json:"status,omitempty"` // 0: there was no answer
	Width  int    `json:"width"`            // of the window
	Height int    `json:"height"`
	Cut    bool   `json:"cut,omitempty"` // the page goes on below the picture
	// Errors are those of the console, Requests those that failed, each at most
	// wire.MaxShotLines; More are further ones of both.
	Errors   []string `json:"errors,omitempty"`
	Requests []string `json:"requests,omitempty"`
	More     int      `json:"more,omitempty"`
	Browser  string   `json:"browser,omitempty"`
}

// Screenshot is a page on the base and on the result. Its pictures are written by
// the control plane, each found under its digest among the files.
type Screenshot struct {
	Name   string   `json:"name"` // of the verify command
	URL    string   `json:"url"`
	Before *Picture `json:"before,omitempty"` // on the base
	After  *Picture `json:"after,omitempty"`  // on the result
	// Difference is drawn where both are there and are not the same.
	Difference *Picture `json:"difference,omitempty"`
	// Changed are the pixels that differ, of Pixels, all that one of the two has.
	Changed int `json:"changed"`
	Pixels  int `json:"pixels"`
	// Words say what is missing, and why; empty: nothing is.
	Words string `json:"words,omitempty"`
}

// Picture is one PNG.
type Picture struct {
	SHA256 string `json:"sha256"`
	Width  int    `json:"width"`
	Height int    `json:"height"`
}

// Share is how much of the picture has changed, in words.
func (s Screenshot) Share() string {
	switch {
	case s.Before == nil || s.After == nil || s.Pixels <= 0:
		return ""
	case s.Changed == 0:
		return "unchanged"
	case s.Changed*1000 < s.Pixels:
		return fmt.Sprintf("%s changed, less than 0.1 %%", plural(s.Changed, "pixel", "pixels"))
	}
	return fmt.Sprintf("%.1f %% of the pixels changed", 100*float64(s.Changed)/float64(s.Pixels))
}

// PictureOf is the picture that a result has; empty: there is none, and why says
// what is known of that.
func PictureOf(v wire.VerifyResult) (sha256, why string) {
	for _, again := range v.Again { // the last one counts
		v = again
	}
	if len(v.Reports) == 0 {
		return "", "no picture was taken"
	}
	if f := v.Reports[0]; f.Problem != "" {
		return "", "the picture " + redact.OneLine(f.Problem, 200)
	}
	return v.Reports[0].SHA256, ""
}

// judgeShot reads what the browser said. As with every report it is not believed
// against the exit status.
func (c *Check) judgeShot(v wire.VerifyResult, open Opener) error {
	body, err := readHead(v.Stdout, wire.MaxShotJSON+1, open)
	if err != nil {
		return err
	}
	var s wire.Shot
	if len(body) > wire.MaxShotJSON || json.Unmarshal(body, &s) != nil {
		if c.clean {
			c.doubt("no record of the page is there, or it cannot be read")
			return nil
		}
		said, err := readHead(v.Stderr, 4<<10, open)
		if err != nil {
			return err
		}
		first, _ := bufio.NewReader(strings.NewReader(strings.TrimSpace(string(said)))).ReadString('\n')
		if first = redact.OneLine(strings.TrimPrefix(first, "inspect: "), 400); first != "" {
			c.Words += ": " + first
		}
		return nil
	}
	c.Shot = &Shot{
		URL: redact.OneLine(s.URL, wire.MaxShotText), Final: redact.OneLine(s.Final, wire.MaxShotText), Title: redact.OneLine(s.Title, 200),
		Status: s.Status, Width: s.Width, Height: s.Height, Cut: s.Cut, Browser: redact.OneLine(s.Browser, 100),
		More: min(max(0, s.MoreErrors), 1<<30) + min(max(0, s.MoreRequests), 1<<30),
	}
	for _, e := range s.Errors[:min(len(s.Errors), wire.MaxShotLines)] {
		c.Shot.Errors = append(c.Shot.Errors, redact.OneLine(e, wire.MaxShotText))
	}
	for _, r := range s.Requests[:min(len(s.Requests), wire.MaxShotLines)] {
		c.Shot.Requests = append(c.Shot.Requests, redact.OneLine(r.URL, wire.MaxShotText)+": "+redact.OneLine(r.Words, 100))
	}
	failed := redact.OneLine(s.Failed, 400)
	picture, why := PictureOf(wire.VerifyResult{Reports: v.Reports})
	switch {
	case !c.clean && failed != "":
		c.Words = failed
	case c.clean && failed != "":
		c.doubt("exit status 0, but its record says that " + failed)
	case c.clean && picture == "":
		c.doubt(why)
	case c.clean:
		c.Words = fmt.Sprintf("status %d, %d x %d", s.Status, s.Width, s.Height)
	}
	return nil
}

// readHead reads the beginning of an evidence file; of none there is nothing.
func readHead(sum string, most int64, open Opener) ([]byte, error) {
	if sum == "" {
		return nil, nil
	}
	f, err := open(sum)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}

// maxShotNotes bounds what is said of one page, of each kind.
const maxShotNotes = 3

// shotNotes says what the browser complained of, new things first.
func (c *Check) shotNotes(base *Check, v *Verdict) {
	if c.Shot == nil {
		return
	}
	var had Shot
	known := base != nil && base.Shot != nil
	if known {
		had = *base.Shot
	}
	tell := func(what string, now, was []string) {
		var fresh, old []string
		for _, s := range now {
			if slices.Contains(was, s) {
				old = append(old, s)
			} else {
				fresh = append(fresh, s)
			}
		}
		for _, l := range []struct {
			list []string
			also string
		}{{fresh, ""}, {old, ", on the base as well"}} {
			if len(l.list) == 0 {
				continue
			}
			words := fmt.Sprintf("%s: %s%s", c.Name, plural(len(l.list), what, what+"s"), l.also)
			if known && l.also == "" {
				words += " that the base does not have"
			}
			words += ": " + strings.Join(l.list[:min(len(l.list), maxShotNotes)], "; ")
			if n := len(l.list) - maxShotNotes; n > 0 {
				words += fmt.Sprintf("; and %d more", n)
			}
			v.Notes = append(v.Notes, words)
		}
	}
	tell("console error", c.Shot.Errors, had.Errors)
	tell("failed request", c.Shot.Requests, had.Requests)
	if c.Shot.More > 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("%s: %d further console errors and failed requests are not listed", c.Name, c.Shot.More))
	}
	if c.Shot.Final != "" && c.Shot.Final != c.Shot.URL && strings.TrimSuffix(c.Shot.Final, "/") != strings.TrimSuffix(c.Shot.URL, "/") {
		v.Notes = append(v.Notes, fmt.Sprintf("%s: the page led to %s", c.Name, c.Shot.Final))
	}
}

// isShot says whether a report is a picture.
func isShot(report string) bool { return report == spec.ReportScreenshot }
