package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"inspect/app/diagnosis"
	"inspect/app/github"
	"inspect/app/manifest"
)

var repo = github.Repo{ID: 7, Owner: "octocat", Name: "hello"}

// fake answers from fields; what is in fail goes wrong.
type fake struct {
	rules     []github.Rule
	bypass    map[int64]string
	protected bool
	files     map[string]string
	fail      map[string]error
	asked     []string

	self      github.Self
	installed []github.InstallationInfo
	hook      github.HookConfig
	delivered []github.Delivery
	skew      time.Duration
}

func (f *fake) ask(what string) error {
	f.asked = append(f.asked, what)
	return f.fail[what]
}

func (f *fake) BranchRules(context.Context, github.Repo, string) ([]github.Rule, error) {
	return f.rules, f.ask("rules")
}

func (f *fake) Bypass(_ context.Context, _ github.Repo, id int64) (string, error) {
	return f.bypass[id], f.ask(fmt.Sprint("bypass ", id))
}

func (f *fake) BranchProtected(context.Context, github.Repo, string) (bool, error) {
	return f.protected, f.ask("protected")
}

func (f *fake) Files(context.Context, github.Repo, string, string) ([]string, error) {
	var names []string
	for n := range f.files {
		if rest, ok := strings.CutPrefix(n, ".github/workflows/"); ok {
			names = append(names, rest)
		}
	}
	if err := f.ask("files"); err != nil || len(names) > 0 {
		return names, err
	}
	return nil, github.ErrNotFound
}

func (f *fake) File(_ context.Context, _ github.Repo, path, _ string) ([]byte, error) {
	if err := f.ask("file " + path); err != nil {
		return nil, err
	}
	if body, ok := f.files[path]; ok {
		return []byte(body), nil
	}
	return nil, github.ErrNotFound
}

func (f *fake) Self(context.Context) (github.Self, error) { return f.self, f.ask("self") }
func (f *fake) Installations(context.Context) ([]github.InstallationInfo, error) {
	return f.installed, f.ask("installations")
}
func (f *fake) HookConfig(context.Context) (github.HookConfig, error) { return f.hook, f.ask("hook") }
func (f *fake) Deliveries(context.Context) ([]github.Delivery, error) {
	return f.delivered, f.ask("deliveries")
}
func (f *fake) Skew() (time.Duration, bool) { return f.skew, true }

func review(n int, ruleset int64) github.Rule {
	return github.Rule{Type: "pull_request", RulesetID: ruleset, Source: "octocat/hello", Parameters: json.RawMessage(fmt.Sprintf(`{"required_approving_review_count":%d}`, n))}
}

func TestProtectionIsAskedFor(t *testing.T) {
	for name, c := range map[string]struct {
		f     fake
		safe  bool
		asked string
	}{
		"protected":        {fake{rules: []github.Rule{review(1, 5), {Type: "deletion", RulesetID: 6}}, bypass: map[int64]string{5: "never"}}, true, "rules, bypass 5"},
		"one ruleset":      {fake{rules: []github.Rule{review(1, 5), {Type: "update", RulesetID: 5}}, bypass: map[int64]string{5: "never"}}, true, "rules, bypass 5"},
		"the App passes":   {fake{rules: []github.Rule{review(1, 5)}, bypass: map[int64]string{5: "always"}}, false, "rules, bypass 5, protected"},
		"not ours to see":  {fake{rules: []github.Rule{review(1, 5)}, fail: map[string]error{"bypass 5": github.ErrNotFound}}, false, "rules, bypass 5, protected"},
		"nothing":          {fake{}, false, "rules, protected"},
		"older protection": {fake{protected: true}, false, "rules, protected"},
	} {
		p, err := Protection(t.Context(), &c.f, repo, "main")
		if err != nil || p.Safe() != c.safe || strings.Join(c.f.asked, ", ") != c.asked {
			t.Errorf("%s: %+v, %v after %q", name, p, err, c.f.asked)
		}
	}
	for _, lost := range []string{"rules", "bypass 5", "protected"} {
		f := fake{rules: []github.Rule{review(0, 5)}, bypass: map[int64]string{5: "never"}, fail: map[string]error{lost: github.ErrUnavailable}}
		if _, err := Protection(t.Context(), &f, repo, "main"); !errors.Is(err, github.ErrUnavailable) {
			t.Errorf("%s cannot be read: %v", lost, err)
		}
	}
}

// levels are "level what" of each finding.
func levels(findings []diagnosis.Finding) string {
	var out []string
	for _, f := range findings {
		out = append(out, f.Level+" "+f.What)
	}
	return strings.Join(out, "; ")
}

func TestARepositoryIsExamined(t *testing.T) {
	good := fake{rules: []github.Rule{review(1, 5)}, bypass: map[int64]string{5: "never"}}
	r := Repository{Repo: repo, DefaultBranch: "main", NoSnapshots: true}
	if got, want := levels(ExamineRepository(t.Context(), &good, r)), "ok protection of the default branch; ok .inspect.yml; ok workflows"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	bad := fake{files: map[string]string{
		".inspect.yml":             "version: 1\nverify: [{name: t, run: make}]\npublish: {prefix: agents}\n",
		".github/workflows/ci.yml": "on: {push: {branches-ignore: [\"inspect/**\"]}}\n", ".github/workflows/README.md": "on: push\n",
	}}
	r.Required, r.NoSnapshots = true, false
	if got, want := levels(ExamineRepository(t.Context(), &bad, r)), "fail protection of the default branch; ok .inspect.yml; warn workflow ci.yml; warn snapshots"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	bad.files[".inspect.yml"] = "version: 2\n"
	bad.fail = map[string]error{"rules": github.ErrUnavailable, "files": github.ErrUnavailable}
	if got, want := levels(ExamineRepository(t.Context(), &bad, r)), "warn protection of the default branch; fail .inspect.yml; warn workflows; warn snapshots"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestTheAppIsExamined(t *testing.T) {
	m := manifest.Manifest{Permissions: map[string]string{"checks": "write"}, Events: []string{"issues"}}
	grant := github.Grant{Permissions: m.Permissions, Events: m.Events}
	now := time.Now()
	f := fake{
		self: github.Self{ID: 1, Name: "Inspect", Owner: "octocat", Grant: grant},
		hook: github.HookConfig{URL: "https://inspect.example.com/webhooks/github", ContentType: "json", Secret: true},
		installed: []github.InstallationInfo{
			{ID: 1, Account: "octocat", Grant: grant}, {ID: 2, Account: "hubot", Suspended: true, Grant: grant}, {ID: 3, Account: "monalisa", Grant: github.Grant{Events: m.Events}},
		},
		delivered: []github.Delivery{{GUID: "a", Status: 202, At: now}},
	}
	got, installed := ExamineApp(t.Context(), &f, m, now)
	want := "ok clock; ok App; ok permissions of the App; ok webhook; ok deliveries; ok installation of octocat; fail installation of hubot; fail installation of monalisa"
	if levels(got) != want || len(installed) != 2 {
		t.Errorf("%s, want %s; %d installations", levels(got), want, len(installed))
	}
	f.installed, f.fail = nil, map[string]error{"hook": github.ErrUnavailable, "deliveries": github.ErrUnavailable}
	if got, _ := ExamineApp(t.Context(), &f, m, now); levels(got) != "ok clock; ok App; ok permissions of the App; warn webhook; warn deliveries; fail installations" {
		t.Errorf("%s", levels(got))
	}
	// A refusal still says what time it is.
	f.skew, f.fail = time.Hour, map[string]error{"self": github.ErrDenied}
	if got, _ := ExamineApp(t.Context(), &f, m, now); levels(got) != "fail clock; fail App" {
		t.Errorf("%s", levels(got))
	}
}
