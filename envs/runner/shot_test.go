package runner

import (
	"encoding/json"
	"image/png"
	"strings"
	"testing"

	"inspect/envs/wire"
)

const pagePort = 5173

// pictured makes a world whose verification takes pictures of what a server shows.
func pictured(t *testing.T, page wire.Screenshot) *world {
	t.Helper()
	if page.Width == 0 {
		page.Width, page.Height = 400, 300
	}
	w := compared(t, wire.Verify{Name: "home", Run: "inspect shot " + page.URL, Report: "screenshot", Screenshot: &page})
	w.node.limits = wire.Limits{CPU: 2, MemoryBytes: 2 << 30, Pids: 500}
	w.spec.Services = []wire.Service{{Name: "web", Command: "exec python3 -m http.server 5173 --bind 127.0.0.1", Port: pagePort, Ready: "http://127.0.0.1:5173/state.txt"}}
	w.agentDoes("")
	return w
}

func (w *world) record(r wire.VerifyResult) (s wire.Shot) {
	w.t.Helper()
	if err := json.Unmarshal([]byte(w.artifact(r.Stdout)), &s); err != nil {
		w.t.Fatalf("%v in %q; it said %q", err, w.artifact(r.Stdout), w.artifact(r.Stderr))
	}
	return s
}

// The base and the result are pictured, each in its own clone, by a browser in
// the sandbox.
func TestScreenshotsOfBaseAndResult(t *testing.T) {
	for _, tier := range []string{wire.TierBubblewrap, wire.TierGVisor} {
		t.Run(tier, func(t *testing.T) {
			w := pictured(t, wire.Screenshot{URL: "http://127.0.0.1:5173/state.txt"})
			o := w.outcome()
			if o.Kind != wire.OutcomeVerified || o.Base == nil || o.Base.Words != "" {
				t.Fatalf("%+v", o)
			}
			pictures := map[string]bool{}
			for _, r := range []wire.VerifyResult{o.Results[0], o.Base.Results[0]} {
				s := w.record(r)
				if r.ExitCode != 0 || s.Failed != "" || s.Status != 200 || s.Final != "http://127.0.0.1:5173/state.txt" || len(r.Reports) != 1 || r.Reports[0].Problem != "" {
					t.Fatalf("%+v %+v, it said %q", r, s, w.artifact(r.Stderr))
				}
				img, err := png.Decode(strings.NewReader(w.artifact(r.Reports[0].SHA256)))
				if err != nil || img.Bounds().Dx() != 400 || img.Bounds().Dy() != 300 {
					t.Errorf("%v %v", img.Bounds(), err)
				}
				pictures[r.Reports[0].SHA256] = true
			}
			if len(pictures) != 2 {
				t.Error("the base and the result look the same")
			}
		})
	}
}

// A page that does not load fails the command, and secrets in what the browser
// says are replaced.
func TestScreenshotOfNothing(t *testing.T) {
	w := pictured(t, wire.Screenshot{URL: "http://127.0.0.1:5173/gone?token=ghp_" + strings.Repeat("a1B2", 9)})
	o := w.outcome()
	r := o.Results[0]
	if s := w.record(r); r.ExitCode != 1 || len(r.Again) != wire.MaxAgain || s.Failed != "the page was answered with status 404" || strings.Contains(w.artifact(r.Stdout), "a1B2") {
		t.Errorf("%+v %+v", r, s)
	}
}

// What says it is a picture need not be one, and need not come alone.
func TestWhatIsNoPicture(t *testing.T) {
	a := &attempt{}
	var err error
	if a.spool, err = openSpool(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ body, problem string }{
		"nothing":      {"", ""},
		"no list":      {"hello\n", "could not be taken out of the sandbox"},
		"more":         {`{"path":"shot.json","bytes":2}` + "\n{}" + `{"path":"other","bytes":1}` + "\nx", "could not be taken out of the sandbox"},
		"two records":  {`{"path":"shot.json","bytes":2}` + "\n{}" + `{"path":"shot.json","bytes":2}` + "\n{}", "could not be taken out of the sandbox"},
		"too long":     {`{"path":"picture.png","bytes":99999999}` + "\n", "could not be taken out of the sandbox"},
		"path outside": {`{"path":"../../x","bytes":1}` + "\nx", "could not be taken out of the sandbox"},
	} {
		sw, err := a.spool.create(1<<20, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = sw.Write([]byte(c.body))
		whole, err := sw.finish()
		if err != nil {
			t.Fatal(err)
		}
		var res wire.VerifyResult
		record, err := a.takeShot(whole, &res)
		if err != nil || record.path == "" {
			t.Errorf("%s: %+v %v", name, record, err)
		}
		problem := ""
		if len(res.Reports) > 0 {
			problem = res.Reports[0].Problem
		}
		if problem != c.problem {
			t.Errorf("%s: %q, want %q", name, problem, c.problem)
		}
		whole.remove()
		record.remove()
	}
}
