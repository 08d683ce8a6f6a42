package report

import (
	"encoding/json"
	"strings"
	"testing"

	"inspect/checks/evidence"
	"inspect/envs/spec"
)

// What fails as on the base is neutral, and asks for action where a repository
// wants no neutral check run. In no case is it a success.
func TestFailuresOfTheBaseAreNoSuccess(t *testing.T) {
	for required, want := range map[bool]string{false: "neutral", true: "action_required"} {
		w := newWorld(t)
		sp := spec.Default()
		sp.Checks.Required = required
		pinned, err := json.Marshal(sp)
		w.ok(err)
		w.exec(`UPDATE sessions SET spec = $2 WHERE id = $1`, id, pinned)
		w.delivered()
		w.kept.manifest.Verdict = evidence.Verdict{Kind: evidence.NoNew, Passed: 209, Failed: 3, Standing: 3, Stands: []string{"unit: a TestX", "unit: a TestY", "unit: a TestZ"}}
		w.kept.manifest.Checks[0].Passed = false
		w.report()
		w.only("Delivered", "No new failures, but no success either", "TestY")
		var sent struct {
			Conclusion string
			Output     struct{ Title, Summary string }
		}
		for _, r := range w.server.Requests() {
			if r.Route == "checks/create" {
				w.ok(json.Unmarshal([]byte(r.Body), &sent))
			}
		}
		if sent.Conclusion != want || sent.Output.Title != "no new failures: 3 fail on the base too, 209 pass, +2 −1 in 1 file" || !strings.HasPrefix(sent.Output.Summary, "**3 failures, on the base as well:**\n\n- unit\\: a TestX\n") {
			t.Errorf("required %v: %s, %q\n%s", required, sent.Conclusion, sent.Output.Title, sent.Output.Summary)
		}
	}
}
