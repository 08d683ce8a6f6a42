package spec

import (
	"fmt"
	"os/exec"
	"reflect"
	"strings"
	"testing"
)

func manyScreenshots(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "  - {name: s%d, screenshot: \"http://localhost/\"}\n", i)
	}
	return b.String()
}

func TestScreenshots(t *testing.T) {
	for _, c := range []struct {
		keys string
		want Screenshot
		line string
	}{
		{`screenshot: "http://127.0.0.1:5173/"`, Screenshot{URL: "http://127.0.0.1:5173/", Width: 1280, Height: 800}, "inspect shot http://127.0.0.1:5173/"},
		{`screenshot: "http://[::1]/a?b=$(id)&c='d'", viewport: 390x844, wait_for: "main > h1", full_page: true`,
			Screenshot{URL: "http://[::1]/a?b=$(id)&c='d'", Width: 390, Height: 844, WaitFor: "main > h1", FullPage: true},
			`inspect shot 'http://[::1]/a?b=$(id)&c='\''d'\''' --viewport 390x844 --wait-for 'main > h1' --full-page`},
	} {
		s, problems := Parse([]byte("version: 1\nverify: [{name: home, " + c.keys + "}]\n"))
		if problems != nil {
			t.Errorf("%s: %v", c.keys, problems)
			continue
		}
		want := Verify{Name: "home", Run: c.line, Report: ReportScreenshot, Screenshot: &c.want}
		if !reflect.DeepEqual(s.Verify[0], want) {
			t.Errorf("got %+v, want %+v", s.Verify[0], want)
		}
	}
}

// Whatever an address holds, a shell takes it for one word.
func TestLineIsOneWordEach(t *testing.T) {
	s := Screenshot{URL: "http://localhost/'\"$(touch x)`id`;&|\\ *~", Width: 1280, Height: 800, WaitFor: "a[href='x y']"}
	out, err := exec.Command("sh", "-c", "inspect() { printf '%s\\n' \"$@\"; }; "+s.Line()).Output()
	if want := "shot\n" + s.URL + "\n--wait-for\n" + s.WaitFor + "\n"; err != nil || string(out) != want {
		t.Errorf("%q %v, want %q", out, err, want)
	}
}
