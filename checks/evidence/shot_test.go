package evidence

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"inspect/envs/wire"
)

// pictured is what one picture left.
func (w *judged) pictured(exit int, s wire.Shot) wire.VerifyResult {
	body, err := json.Marshal(s)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.left(exit, string(body))
}

func (w *judged) left(exit int, record string) wire.VerifyResult {
	sum := fmt.Sprint("f", len(w.files))
	w.files[sum] = record
	w.files[sum+"e"] = "inspect: there is no Chromium here. Install it\nmore\n"
	return wire.VerifyResult{
		Name: "home", Run: "inspect shot http://localhost/", Report: "screenshot", ExitCode: exit, Stdout: sum, Stderr: sum + "e",
		Reports: []wire.ReportFile{{Path: wire.ShotPicture, SHA256: strings.Repeat("a", 64)}},
	}
}

func TestPagesAreJudged(t *testing.T) {
	w := &judged{t: t, files: map[string]string{}}
	good := wire.Shot{URL: "http://localhost/", Final: "http://localhost/", Status: 200, Width: 1280, Height: 800}
	gone := good
	gone.Status, gone.Failed = 404, "the page was answered with status 404"
	noPicture := w.pictured(0, good)
	noPicture.Reports = nil
	damaged := w.pictured(0, good)
	damaged.Reports[0] = wire.ReportFile{Path: "picture.png", Problem: "could not be taken out of the sandbox"}
	for name, c := range map[string]struct {
		result wire.VerifyResult
		kind   string
		words  string
	}{
		"good":                    {w.pictured(0, good), Passed, "1 pass"},
		"gone":                    {w.pictured(1, gone), Failed, "home: the page was answered with status 404"},
		"gone, and says it is ok": {w.pictured(0, gone), Doubtful, "home: exit status 0, but its record says that the page was answered with status 404"},
		"no record":               {w.left(0, ""), Doubtful, "home: no record of the page is there"},
		"no browser":              {w.left(3, ""), Failed, "home: exit status 3: there is no Chromium here. Install it"},
		"no picture":              {noPicture, Doubtful, "home: no picture was taken"},
		"damaged":                 {damaged, Doubtful, "home: the picture could not be taken out of the sandbox"},
		"too long":                {w.left(0, `{"title":"`+strings.Repeat("x", wire.MaxShotJSON)+`"}`), Doubtful, "home: no record"},
	} {
		v := w.judge(wire.Outcome{Results: []wire.VerifyResult{c.result}, Base: column(w.pictured(0, good))}).Verdict
		if v.Kind != c.kind || !strings.HasPrefix(v.Words, c.words) {
			t.Errorf("%s: %s %q, want %s %q", name, v.Kind, v.Words, c.kind, c.words)
		}
	}
	if v := w.judge(wire.Outcome{Results: []wire.VerifyResult{w.pictured(0, good)}, Base: column(w.pictured(1, gone))}).Verdict; v.Fixed != 1 {
		t.Errorf("a page that is there now: %+v", v)
	}
}

// What the browser complained of is in the notes: what is new apart from what was.
func TestWhatTheBrowserSaid(t *testing.T) {
	w := &judged{t: t, files: map[string]string{}}
	was := wire.Shot{URL: "http://localhost/", Final: "http://localhost/", Status: 200, Errors: []string{"old"}}
	is := was
	is.Errors, is.MoreErrors = []string{"old", "new\nline\u202e", "b", "c", "d"}, 7
	is.Requests = []wire.ShotRequest{{URL: "http://localhost/x.js", Words: "status 500"}}
	is.Final = "http://localhost/login"
	for range 100 {
		is.Requests = append(is.Requests, wire.ShotRequest{URL: strings.Repeat("y", 900), Words: "z"})
	}
	j := w.judge(wire.Outcome{Results: []wire.VerifyResult{w.pictured(0, is)}, Base: column(w.pictured(0, was))})
	notes := strings.Join(j.Verdict.Notes, "\n")
	for _, want := range []string{
		"home: 4 console errors that the base does not have: new line", "; and 1 more", "home: 1 console error, on the base as well: old",
		"home: 50 failed requests that the base does not have: http://localhost/x.js: status 500; ", "home: 7 further console errors", "home: the page led to http://localhost/login",
	} {
		if !strings.Contains(notes, want) {
			t.Errorf("%q is not in\n%s", want, notes)
		}
	}
	if j.Verdict.Kind != Passed || strings.Contains(notes, "\u202e") || len(j.Checks[0].Shot.Requests) != wire.MaxShotLines {
		t.Errorf("%+v", j.Verdict)
	}
}

func TestShare(t *testing.T) {
	p := &Picture{}
	for want, s := range map[string]Screenshot{
		"":                                   {Before: p, Changed: 1, Pixels: 2},
		"unchanged":                          {Before: p, After: p, Pixels: 100},
		"1 pixel changed, less than 0.1 %":   {Before: p, After: p, Changed: 1, Pixels: 5000},
		"12.5 % of the pixels changed":       {Before: p, After: p, Changed: 1, Pixels: 8},
		"100.0 % of the pixels changed":      {Before: p, After: p, Changed: 8, Pixels: 8},
		"20 pixels changed, less than 0.1 %": {Before: p, After: p, Changed: 20, Pixels: 50_000},
	} {
		if got := s.Share(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
