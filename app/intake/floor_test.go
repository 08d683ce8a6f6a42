package intake

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"inspect/app/github"
	"inspect/app/policy"
	"inspect/envs/spec"
)

// floor makes the operator's policy of the test's world.
func floor(t *testing.T, body string) func(int64, string) (policy.Bounds, bool) {
	t.Helper()
	f, problems := policy.ParseFloor([]byte("version: 1\n" + body))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return f.For
}

func TestFloorLowers(t *testing.T) {
	w := setup(t, func(o *Options) {
		o.Floor = floor(t, "repositories: [{match: \"octocat/*\", limits: {timeout: 5m, budget_usd: 1}}]\ndefaults: {publish: {max_files: 3, protected: [\"infra/**\"]}}\n")
	})
	w.deliver("issue_comment", body(commented("/inspect --timeout 20m fix it")))
	s := w.one()
	var sp spec.Spec
	if err := json.Unmarshal(s.Spec, &sp); err != nil {
		t.Fatal(err)
	}
	if sp.Limits.Timeout != 5*time.Minute || sp.Limits.Budget != spec.Dollar || s.Budget != int64(spec.Dollar) || sp.Publish.MaxFiles != 3 || len(sp.Publish.Protected) != 1 {
		t.Errorf("the session has %+v, budget %d", sp, s.Budget)
	}
	if !strings.Contains(w.log.String(), "key=limits.timeout value=5m instead=20m") {
		t.Errorf("the log does not tell: %s", w.log)
	}
	if r := w.gh.replies(); len(r) != 0 {
		t.Errorf("replies %q", r)
	}
}

func TestFloorRefusesWhatIsBeyond(t *testing.T) {
	w := setup(t, func(o *Options) {
		o.Floor = floor(t, "defaults: {egress: [go], harnesses: [command], models: [\"local/*\"], data: [synthetic]}\n")
		o.Models = func(_, model string) (string, error) { return model, nil }
	})
	for name, c := range map[string]struct {
		file, command string
		words         []string // none: it starts
	}{
		"within":       {"egress: [go]\n", "/inspect fix it", nil},
		"a host":       {"egress: [go, evil.example]\n", "/inspect fix it", []string{"`evil.example`", "`egress`", "`go`", "`floor: defaults`", ".inspect.yml"}},
		"a harness":    {"harness: {kind: opencode, model: local/x}\n", "/inspect fix it", []string{"`opencode`", "`command`"}},
		"a model":      {"", "/inspect --model other/x fix it", []string{"`other/x`", "`local/*`"}},
		"a provenance": {"data: {provenance: production}\n", "/inspect fix it", []string{"`production`", "`synthetic`"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.fresh(t)
			w.gh.files[".inspect.yml"] = goodSpec + c.file
			w.deliver("issue_comment", body(commented(c.command)))
			if c.words == nil {
				w.one()
				return
			}
			reply := w.oneReply()
			for _, word := range append(c.words, "No session was started") {
				if !strings.Contains(reply, word) {
					t.Errorf("the reply lacks %q:\n%s", word, reply)
				}
			}
			if n := len(w.sessions()) + w.number("SELECT count(*) FROM environments"); n != 0 {
				t.Error("something was started")
			}
		})
	}
	t.Run("a guess", func(t *testing.T) {
		w := w.fresh(t)
		w.gh.files, w.gh.root = map[string]string{}, []string{"package.json", "package-lock.json"}
		w.deliver("issue_comment", body(commented("/inspect fix it")))
		if reply := w.oneReply(); !strings.Contains(reply, "`npm`") || !strings.Contains(reply, "guessed") {
			t.Errorf("the reply says %s", reply)
		}
	})
}

func TestFloorKeepsRepositoriesOut(t *testing.T) {
	w := setup(t, func(o *Options) {
		o.Floor = floor(t, "repositories: [{match: \"hubot/*\"}, {id: 1}]\n")
		o.Prepare = 3
	})
	d := w.deliver("issues", body(labeled()))
	if reply := w.oneReply(); !strings.Contains(reply, "does not allow it for this repository") || d.Note != outcomeReplied {
		t.Errorf("note %s, reply %s", d.Note, reply)
	}
	w.deliver("issue_comment", body(commented("/inspect fix it"))) // said already
	w.deliver("issue_comment", body(by(commented("/inspect fix it"), hubot, "hubot")))
	w.oneReply()
	if len(w.sessions()) != 0 || w.gh.count("File") != 0 || w.gh.count("React") != 0 {
		t.Errorf("calls %q", w.gh.calls)
	}
	// Nothing is prepared either, but for the one whose number is listed.
	list := `,"repositories":[{"id":1,"full_name":"octocat/r1"},{"id":2,"full_name":"octocat/r2"}]`
	if d := w.deliver("installation", event("created", list)); !strings.HasSuffix(d.Note, "1 environments prepared") {
		t.Errorf("note %s", d.Note)
	}
}

// Where the floor requires protection nothing starts that could push or merge to
// the default branch; elsewhere nobody asks.
func TestFloorRequiresProtection(t *testing.T) {
	require := floor(t, "defaults: {require_protection: true}\n")
	w := setup(t, func(o *Options) { o.Floor = require })
	review := []github.Rule{{Type: "pull_request", RulesetID: 5, Parameters: json.RawMessage(`{"required_approving_review_count":1}`)}}
	for name, c := range map[string]struct {
		rules  []github.Rule
		bypass string
		starts bool
	}{
		"no rules":         {nil, "", false},
		"protected":        {review, "never", true},
		"the App may pass": {review, "always", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.fresh(t)
			w.gh.rules, w.gh.bypass = c.rules, c.bypass
			w.deliver("issues", body(labeled()))
			if c.starts {
				w.one()
				return
			}
			if reply := w.oneReply(); len(w.sessions()) != 0 || !strings.Contains(reply, "No session was started") || !strings.Contains(reply, "ruleset") {
				t.Errorf("%d sessions, reply %s", len(w.sessions()), reply)
			}
		})
	}
	t.Run("cannot be read", func(t *testing.T) {
		w := w.fresh(t)
		w.gh.fail["BranchRules"] = github.ErrUnavailable
		if err := w.in.Deliver(t.Context(), w.store("issues", body(labeled()))); err == nil || len(w.sessions()) != 0 {
			t.Errorf("%v, %d sessions", err, len(w.sessions()))
		}
	})
	free := setup(t, nil)
	free.deliver("issues", body(labeled()))
	free.one()
	if n := free.gh.count("BranchRules"); n != 0 {
		t.Errorf("rules are read %d times where nobody requires them", n)
	}
}
