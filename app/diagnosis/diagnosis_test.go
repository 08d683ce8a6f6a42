package diagnosis

import (
	"slices"
	"strings"
	"testing"
	"time"

	"inspect/app/manifest"
)

func TestProtection(t *testing.T) {
	rule := func(kind string, reviews int, bypass string) Rule {
		return Rule{Type: kind, Reviews: reviews, Ruleset: 5, From: "octocat/hello", Bypass: bypass}
	}
	for name, c := range map[string]struct {
		rules       []Rule
		classic     bool
		push, merge bool
		words       string
	}{
		"nothing":                  {nil, false, true, true, "no rule keeps the App from pushing to main or from merging into it"},
		"a review":                 {[]Rule{rule("pull_request", 1, "never")}, false, false, false, "rules keep the App"},
		"no review":                {[]Rule{rule("pull_request", 0, "never")}, false, false, true, "from merging into main"},
		"only who may":             {[]Rule{rule("update", 0, "never")}, false, false, false, "rules keep"},
		"merge queue":              {[]Rule{rule("merge_queue", 0, "never")}, false, false, true, "from merging"},
		"other rules":              {[]Rule{rule("deletion", 0, "never"), rule("required_status_checks", 0, "never"), rule("required_signatures", 0, "never")}, false, true, true, "no rule"},
		"the App passes":           {[]Rule{rule("pull_request", 2, "always")}, false, true, true, "bypass actor of ruleset 5 (octocat/hello)"},
		"the App is exempt":        {[]Rule{rule("update", 0, "exempt")}, false, true, true, "bypass actor"},
		"passes by pull request":   {[]Rule{rule("pull_request", 2, "pull_requests_only")}, false, false, true, "by a pull request"},
		"not said":                 {[]Rule{rule("pull_request", 2, "")}, false, true, true, "does not say"},
		"a word nobody knows":      {[]Rule{rule("pull_request", 2, "sometimes")}, false, true, true, "bypass actor"},
		"two, one stands":          {[]Rule{rule("pull_request", 2, "always"), rule("pull_request", 1, "never")}, false, false, false, "rules keep"},
		"two halves":               {[]Rule{rule("pull_request", 0, "never"), rule("update", 0, "pull_requests_only")}, false, false, true, "from merging"},
		"branch protection":        {nil, true, true, true, "only administrators may see"},
		"branch protection beside": {[]Rule{rule("pull_request", 1, "never")}, true, false, false, "rules keep"},
	} {
		p := Protect(c.rules, c.classic)
		if p.Push != c.push || p.Merge != c.merge || p.Safe() != (!c.push && !c.merge) || !strings.Contains(p.Words("main"), c.words) {
			t.Errorf("%s: %+v, %s", name, p, p.Words("main"))
		}
		want := OK
		if !p.Safe() {
			want = Warn
		}
		if f := p.DefaultBranch("main", false); f.Level != want || (f.Do == "") != p.Safe() {
			t.Errorf("%s: %+v", name, f)
		}
		if f := p.DefaultBranch("main", true); !p.Safe() && f.Level != Fail {
			t.Errorf("%s, required: %+v", name, f)
		}
	}
}

func TestWorkflows(t *testing.T) {
	for on, want := range map[string]string{ // events that are told, a * before those that are warned of
		"push":                                                       "*push",
		"[push, pull_request]":                                       "*push pull_request",
		"{push: }":                                                   "*push",
		"{push: {paths: [src/**]}}":                                  "*push",
		"{push: {branches: [main]}}":                                 "",
		"{push: {branches: main}}":                                   "",
		"{push: {branches: [\"**\"]}}":                               "*push",
		"{push: {branches: [\"*\"]}}":                                "",
		"{push: {branches: [\"*/*\"]}}":                              "*push",
		"{push: {branches: [\"**\", \"!inspect/**\"]}}":              "",
		"{push: {branches: [\"**\", \"!inspect/*\"]}}":               "*push", // not the kept work
		"{push: {branches: [\"!inspect/**\", \"**\"]}}":              "*push",
		"{push: {branches-ignore: [\"inspect/**\"]}}":                "",
		"{push: {branches-ignore: [\"inspect/*\"]}}":                 "*push",
		"{push: {branches-ignore: [gh-pages]}}":                      "*push",
		"{push: {branches: [\"release/v[0-9]+\"]}}":                  "",
		"{push: {branches: [\"inspec?t/**\"]}}":                      "*push",
		"{push: {branches: [\"ins[\"]}}":                             "*push",
		"{push: {branches-ignore: [\"ins[\"]}}":                      "*push",
		"{push: {tags: [v*]}}":                                       "",
		"{push: {tags: [v*], branches: [main]}}":                     "",
		"{pull_request: {branches: [main]}}":                         "pull_request",
		"{pull_request_target: {types: [opened]}}":                   "*pull_request_target",
		"[create, workflow_dispatch]":                                "*create",
		"{schedule: [{cron: x}], issue_comment: {types: [created]}}": "",
		"{push: &p {branches: [main]}, pull_request_target: *p}":     "*pull_request_target",
		"{push: {branches: [\"inspe\\\\ct/**\"]}}":                   "*push",
		"{push: {branches: [\"größe/**\"]}}":                         "",
	} {
		var got []string
		for _, f := range Workflow("ci.yml", []byte("name: x\non: "+on+"\njobs: {}\n"), "inspect") {
			for _, event := range []string{"(`create`)", "(`pull_request`)", "(`pull_request_target`)", "a push to"} {
				if strings.Contains(f.Words, event) {
					event = strings.Trim(event, "(`)")
					event = strings.Replace(event, "a push to", "push", 1)
					if f.Level == Warn {
						event = "*" + event
					}
					got = append(got, event)
				}
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("on: %s: got %q, want %q", on, got, want)
		}
	}
	// A prefix of one's own, quoted keys, and what is no workflow.
	if got := Workflow("a.yml", []byte("\"on\":\n  push:\n    branches-ignore: ['inspect/**']\n"), "agents"); len(got) != 1 {
		t.Errorf("another prefix: %+v", got)
	}
	for _, body := range []string{"", "[]", "on: [", "\x00", "a: b\n---\n"} {
		got := Workflow("a.yml", []byte(body), "inspect")
		if unread := len(got) == 1 && got[0].Level == Warn && strings.Contains(got[0].Words, "cannot be read"); !unread && body != "a: b\n---\n" {
			t.Errorf("%q: %+v", body, got)
		}
	}
}

func FuzzWorkflow(f *testing.F) {
	f.Add([]byte("on: &a {push: *a}\n"))
	f.Add([]byte("on: [push, [x]]\n"))
	f.Add([]byte("on: {push: {branches: [[], {a: b}, null]}}\n"))
	f.Fuzz(func(_ *testing.T, body []byte) { Workflow("x.yml", body, "inspect") })
}

func TestJudgements(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	m := manifest.Manifest{Permissions: map[string]string{"checks": "write"}, Events: []string{"issues"}}
	some := map[string]string{"checks": "write"}
	d := func(guid string, status int, ago time.Duration) Delivery {
		return Delivery{GUID: guid, Event: "issues", Status: status, At: now.Add(-ago)}
	}
	good := Hook{URL: "https://inspect.example.com/webhooks/github", ContentType: "json", Secret: true}
	hook := func(change func(*Hook)) Finding {
		h := good
		change(&h)
		return Webhook(h)
	}
	for name, c := range map[string]struct {
		f     Finding
		level string
		words string
	}{
		"app":                  {App(m, some, []string{"issues"}, "x"), OK, "as in app.yml"},
		"app, teams":           {App(m, map[string]string{"checks": "write", "members": "read"}, []string{"issues"}, "x"), OK, "members: read"},
		"app, more of teams":   {App(m, map[string]string{"checks": "write", "members": "write"}, []string{"issues"}, "x"), Warn, "members"},
		"installed, teams":     {Installation(m, "octocat", false, map[string]string{"checks": "write", "members": "read"}, []string{"issues"}, "x"), OK, "teams are asked"},
		"installed, no teams":  {Installation(m, "octocat", false, some, []string{"issues"}, "x"), OK, "not asked"},
		"app lacks":            {App(m, nil, []string{"issues"}, "x"), Fail, "checks: write"},
		"app has more":         {App(m, map[string]string{"checks": "write", "administration": "write"}, []string{"issues"}, "x"), Warn, "administration"},
		"installed":            {Installation(m, "octocat", false, some, []string{"issues"}, "x"), OK, ""},
		"pending":              {Installation(m, "octocat", false, nil, []string{"issues"}, "x"), Fail, "checks: write"},
		"suspended":            {Installation(m, "octocat", true, some, []string{"issues"}, "x"), Fail, "suspended"},
		"hook":                 {Webhook(good), OK, "https://inspect.example.com"},
		"hook, nowhere":        {hook(func(h *Hook) { h.URL = "" }), Fail, "no address"},
		"hook, no secret":      {hook(func(h *Hook) { h.Secret = false }), Fail, "no secret"},
		"hook, certificate":    {hook(func(h *Hook) { h.Insecure = true }), Fail, "certificate"},
		"hook, form":           {hook(func(h *Hook) { h.ContentType = "form" }), Fail, "form"},
		"hook, other path":     {hook(func(h *Hook) { h.URL = "https://inspect.example.com/" }), Warn, ""},
		"hook, no TLS":         {hook(func(h *Hook) { h.URL = "http://x/webhooks/github" }), Warn, "without TLS"},
		"no deliveries":        {Deliveries(nil, now), Warn, "nothing"},
		"all arrived":          {Deliveries([]Delivery{d("b", 202, time.Minute), d("a", 200, time.Hour)}, now), OK, "1m0s ago"},
		"arrived later":        {Deliveries([]Delivery{d("a", 202, time.Minute), d("a", 502, time.Hour)}, now), OK, ""},
		"some did not":         {Deliveries([]Delivery{d("b", 202, time.Minute), d("a", 502, time.Hour)}, now), Warn, "1 of the last 2"},
		"the newest did not":   {Deliveries([]Delivery{d("b", 401, time.Minute), d("a", 202, time.Hour)}, now), Fail, "answered 401"},
		"nobody answered":      {Deliveries([]Delivery{d("b", 0, time.Minute)}, now), Fail, "did not reach anybody"},
		"clocks agree":         {Clock(-2 * time.Second), OK, ""},
		"a little":             {Clock(-20 * time.Second), Warn, "20s behind"},
		"much":                 {Clock(3 * time.Minute), Fail, "3m0s ahead of"},
		"token":                {Token("ghs_…", true), OK, "ghs_…"},
		"token not recognised": {Token("xyz", false), Fail, "xyz"},
		"no snapshot":          {Snapshots(nil)[0], Warn, "none"},
		"snapshot":             {Snapshots([]Snapshot{{Node: "local", Commit: "abc", Age: time.Hour, MaxAge: 2 * time.Hour}})[0], OK, "60 min"},
		"old snapshot":         {Snapshots([]Snapshot{{Node: "local", Commit: "abc", Age: 3 * time.Hour, MaxAge: 2 * time.Hour}})[0], Warn, "3 h ago; refresh.max_age is 2 h"},
	} {
		if c.f.Level != c.level || !strings.Contains(c.f.Words, c.words) || (c.f.Do == "") != (c.level == OK) {
			t.Errorf("%s: %+v, want %s with %q", name, c.f, c.level, c.words)
		}
	}
	if got := []string{Worst(nil), Worst([]Finding{{Level: Warn}, {Level: OK}}), Worst([]Finding{{Level: Fail}, {Level: Warn}})}; !slices.Equal(got, []string{OK, Warn, Fail}) {
		t.Errorf("worst: %q", got)
	}
}
