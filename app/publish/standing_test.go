package publish

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"inspect/checks/evidence"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/storage"
)

const goTestFails = `{"Action":"run","Package":"example/calc","Test":"TestOld"}
{"Action":"fail","Package":"example/calc","Test":"TestOld","Elapsed":0}
{"Action":"run","Package":"example/calc","Test":"TestAdd"}
{"Action":"pass","Package":"example/calc","Test":"TestAdd","Elapsed":0}
{"Action":"fail","Package":"example/calc","Elapsed":0.1}
`

// A result that mends something is delivered if its failures are the base's, and
// only then.
func TestFailuresOfTheBaseDoNotHoldBack(t *testing.T) {
	w := newWorld(t)
	ran := func(id, report string) wire.VerifyResult {
		return wire.VerifyResult{Name: "unit", Run: "go test -json ./...", Report: "gotest", ExitCode: 1, Stdout: w.put(id, []byte(report)), Stderr: w.put(id, nil), Duration: time.Second}
	}
	session := func(base, result string) storage.Session {
		return w.session(w.fixed(), func(s *storage.Session, _ *spec.Spec, o *wire.Outcome) {
			o.Results, o.Base = []wire.VerifyResult{ran(s.ID, result)}, &wire.Column{Results: []wire.VerifyResult{ran(s.ID, base)}}
		})
	}
	w.refused(session(strings.ReplaceAll(goTestFails, "TestOld", "TestOther"), goTestFails), scheduler.ReasonVerifyFailed, "1 of 2 tests failed")

	w.refused(session(goTestFails, goTestFails), scheduler.ReasonVerifyFailed, "1 of 2 tests failed") // mends nothing

	s := session(strings.ReplaceAll(goTestFails, `"pass"`, `"fail"`), goTestFails)
	r := w.deliver(s)
	if r.PullRequest == 0 {
		t.Errorf("%+v", r)
	}
	var m evidence.Manifest
	w.ok(json.Unmarshal([]byte(w.file(s.ID, FileManifest)), &m))
	if m.Verdict.Kind != evidence.NoNew || m.Verdict.Standing != 1 {
		t.Errorf("%+v", m.Verdict)
	}
}
