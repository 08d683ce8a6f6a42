package buildkite

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"inspect/checks/redact"
)

func TestLogTail(t *testing.T) {
	line := func(i int) string { return fmt.Sprintf("\x1b_bk;t=169900000%04d\aline %d\r\n", i, i) }
	var all strings.Builder
	for i := range 1000 {
		all.WriteString(line(i))
	}
	raw := all.String()
	ranged := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Accept-Ranges", "bytes")
		if r.Header.Get("Accept") != "text/plain" {
			t.Errorf("asked as %q", r.Header.Get("Accept"))
		}
		body := raw
		if n, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes=-"); ok {
			most, _ := strconv.Atoi(n)
			body = raw[len(raw)-most:]
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", len(raw)-most, len(raw)-1, len(raw)))
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			w.WriteHeader(206)
		} else {
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		}
		if r.Method != "HEAD" {
			fmt.Fprint(w, body)
		}
	}
	read := func(h http.HandlerFunc, most int) (Log, *api, error) {
		a := serve(t, h)
		l, err := a.LogTail(t.Context(), "acme", "web", 7, job, most)
		return l, a, err
	}

	l, a, err := read(ranged, 1<<20)
	if err != nil || l.Cut || l.Broken || l.Size != int64(len(raw)) || !strings.HasPrefix(l.Text, "line 0\nline 1\n") || !strings.HasSuffix(l.Text, "line 999\n") {
		t.Errorf("whole: %+v, %v", l, err)
	}
	if a.asked[0].Method != "HEAD" || a.asked[1].Header.Get("Range") != "" {
		t.Errorf("asked with %s first, then for the range %q", a.asked[0].Method, a.asked[1].Header.Get("Range"))
	}
	l, a, err = read(ranged, 100)
	if err != nil || !l.Cut || l.Broken || l.Size != int64(len(raw)) || l.Text != "line 997\nline 998\nline 999\n" {
		t.Errorf("the end: %+v, %v", l, err)
	}
	if a.asked[1].Header.Get("Range") != "bytes=-100" {
		t.Errorf("asked for the range %q", a.asked[1].Header.Get("Range"))
	}
	// A Buildkite, or something before it, that knows no ranges.
	l, _, err = read(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "HEAD" {
			w.WriteHeader(405)
			return
		}
		fmt.Fprint(w, raw)
	}, 100)
	if err != nil || !l.Cut || l.Broken || l.Size != int64(len(raw)) || l.Text != "line 997\nline 998\nline 999\n" {
		t.Errorf("without ranges: %+v, %v", l, err)
	}
	// Half a log is told as such.
	half := 0
	l, _, err = read(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(raw)))
		if r.Method != "HEAD" {
			half++
			fmt.Fprint(w, raw[:len(line(0))*(10/half)])
		}
	}, 1<<20)
	if err != nil || !l.Broken || half != 3 || !strings.HasSuffix(l.Text, "line 9\n") {
		t.Errorf("half a log after %d tries: %+v, %v", half, l, err)
	}
	// Something on the way took the end off and repaired the length.
	l, _, err = read(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "HEAD" {
			w.Header().Set("Content-Length", strconv.Itoa(len(raw)))
			return
		}
		fmt.Fprint(w, raw[:100])
	}, 1<<20)
	if err != nil || !l.Broken || l.Text == "" {
		t.Errorf("a shorter log: %+v, %v", l, err)
	}
	if l, _, err := read(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "0") }, 100); err != nil || l != (Log{}) {
		t.Errorf("empty: %+v, %v", l, err)
	}
	l, _, err = read(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "HEAD" {
			w.WriteHeader(405)
			return
		}
		w.WriteHeader(416)
	}, 100)
	if err != nil || l != (Log{}) {
		t.Errorf("empty, size not known: %+v, %v", l, err)
	}
	if _, _, err = read(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, 100); err == nil {
		t.Error("a log that is not there is taken")
	}
}

func TestStrip(t *testing.T) {
	for in, want := range map[string]string{
		"plain\n": "plain\n",
		"\x1b_bk;t=1699000000000\a\x1b[31mFAIL\x1b[0m x\r\n":               "FAIL x\n",
		"10%\r20%\r100%\r\ndone":                                           "100%\ndone",
		"\x1b]0;title\a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\":           "link",
		"\x1b]1337;File=inline=1:" + strings.Repeat("A", 9000) + "\aafter": "after",
		"\x1bPq#0;2;0;0;0\x1b\\sixel":                                      "sixel",
		"hides\x1b_nothing\nof the next line":                              "hides\nof the next line",
		"a\x1b[\nb\x1b[3":                                                  "a\nb",
		"a\x1b":                                                            "a",
		"\x1b(Bx\x1b=y\x1b7z":                                              "xyz",
		"bell\a null\x00 c1\u009b31m bidi\u202e":                           "bell null c131m bidi",
		"bad \xff utf":                                                     "bad \uFFFD utf",
		"~~~ Running\x1b[K\x1b[1A\x1b[?25l go test":                        "~~~ Running go test",
	} {
		if got := Strip(in, false); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	if got := Strip("=169900\aof a cut line\nwhole\n", true); got != "whole\n" {
		t.Errorf("cut: %q", got)
	}
	if got := Strip("one line without an end", true); got != "one line without an end" {
		t.Errorf("cut, one line: %q", got)
	}
}

func FuzzStrip(f *testing.F) {
	f.Add("\x1b_bk;t=1\ax\x1b[3", true)
	f.Add("\x1b\x1b]\x1b\\\r\n", false)
	f.Fuzz(func(t *testing.T, s string, cut bool) {
		got := Strip(s, cut)
		if strings.ContainsAny(got, "\x1b\x00\a\r") || got != redact.Visible(got) {
			t.Errorf("%q became %q", s, got)
		}
		if strings.Count(got, "\n") > strings.Count(s, "\n") {
			t.Errorf("%q became %q, with more lines", s, got)
		}
	})
}
