package policy

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"inspect/envs/spec"
)

const fullFloor = `version: 1
repositories:
  - id: 1234
    limits: {budget_usd: 20}
  - match: "octocat/*"
    egress: [go, npm, "*.internal.example:443"]
    limits: {cpu: 1, memory: 1GiB, pids: 100, disk: 2GiB, egress: 3GiB, timeout: 10m, concurrent: 1, budget_usd: 2.5}
    models: ["anthropic/*"]
    harnesses: [opencode, command]
    publish: {protected: ["infra/**", "**/migrations/**"], max_files: 5, max_bytes: 1MiB}
    data: [synthetic]
    secrets: [SEED, "NPM_*"]
  - match: "hubot/{a,b}"
defaults:
  limits: {budget_usd: 4, timeout: 20m}
  publish: {protected: ["infra/**"], max_files: 50}
`

func floorOf(t testing.TB, body string) Floor {
	t.Helper()
	f, problems := ParseFloor([]byte(body))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return f
}

func specOf(t testing.TB, body string) spec.Spec {
	t.Helper()
	sp, problems := spec.Parse([]byte("version: 1\n" + body))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return sp
}

func TestParseFloorSaysWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"empty":              {"", "line 1: version: expected the number 1 (the file is empty)"},
		"no version":         {"defaults: {}\n", "line 1: version: expected the number 1; the key is missing"},
		"unknown key":        {"version: 1\ndefaults:\n  egres: []\n", "line 3: defaults.egres: unknown key; did you mean egress?"},
		"wrong type":         {"version: 1\nrepositories: all\n", `line 2: repositories: expected a list of repositories, but found "all"`},
		"nothing":            {"version: 1\nrepositories:\n", "line 2: repositories: expected a list of repositories, but found nothing"},
		"impossible number":  {"version: 1\ndefaults: {limits: {cpu: 0}}\n", `line 2: defaults.limits.cpu: expected a number of cores from 0.1 to 256, but found "0"`},
		"bad host":           {"version: 1\ndefaults: {egress: [\"https://registry.example\"]}\n", "line 2: defaults.egress[0]: expected a host without a scheme, for example registry.example:443, but found"},
		"no slash":           {"version: 1\nrepositories: [{match: octocat}]\n", "line 2: repositories[0].match: expected a pattern of owner/name like octocat/*"},
		"star":               {"version: 1\ndefaults: {models: [\"*\"]}\n", "line 2: defaults.models[0]: expected a pattern of models like anthropic/*"},
		"both":               {"version: 1\nrepositories:\n  - {match: \"a/b\", id: 3}\n", "line 3: repositories[0]: expected either match or id, but found both"},
		"neither":            {"version: 1\nrepositories:\n  - {egress: []}\n", "line 3: repositories[0].match: expected a pattern of owner/name, or the key id; both are missing"},
		"no kind":            {"version: 1\ndefaults: {harnesses: [emacs]}\n", "line 2: defaults.harnesses[0]: expected opencode, claude, codex or command"},
		"no secret":          {"version: 1\ndefaults: {secrets: [npm_token]}\n", `line 2: defaults.secrets[0]: expected the name of a secret, or a pattern like NPM_*, but found "npm_token"`},
		"no repository":      {"version: 1\ndefaults: {submodules: [lib]}\n", `line 2: defaults.submodules[0]: expected a pattern of owner/name like octocat/* (a * does not reach over a /, ** does), but found "lib"`},
		"no tier":            {"version: 1\ndefaults: {sandbox: chroot}\n", "line 2: defaults.sandbox: expected the least tier of sandboxes, bubblewrap or gvisor"},
		"no image":           {"version: 1\ndefaults: {images: [debian]}\n", "line 2: defaults.images[0]: expected a pattern of images like registry.example/dev/*"},
		"no provenance":      {"version: 1\ndefaults: {data: [real]}\n", "line 2: defaults.data[0]: expected synthetic, scrubbed or production"},
		"four eyes":          {"version: 1\ndefaults: {publish: {four_eyes: maybe}}\n", `line 2: defaults.publish.four_eyes: expected true or false`},
		"priority":           {"version: 1\ndefaults: {limits: {priority: 51}}\n", "line 2: defaults.limits.priority: expected a number from 0 to 50"},
		"a label's priority": {"version: 1\ndefaults: {priority_labels: {urgent: 0}}\n", "line 2: defaults.priority_labels.urgent: expected a number from 1 to 50"},
		"alias":              {"version: 1\ndefaults: &a {}\n", "line 2: defaults: expected a plain value; anchors and aliases are not allowed"},
		"too large":          {"version: 1\n#" + strings.Repeat("x", spec.MaxFloorBytes), "expected at most 262144 bytes, but found"},
		"two documents":      {"version: 1\n---\nversion: 1\n", "expected one YAML document, but found more"},
	} {
		t.Run(name, func(t *testing.T) {
			f, problems := ParseFloor([]byte(c.body))
			if len(problems) == 0 || !strings.HasPrefix(problems.Error(), c.want) {
				t.Errorf("said %q, want %q", problems, c.want)
			}
			if !reflect.DeepEqual(f, Floor{}) {
				t.Error("a floor came out all the same")
			}
		})
	}
}

func TestFloorFor(t *testing.T) {
	f := floorOf(t, fullFloor)
	for _, c := range []struct {
		id      int64
		name    string
		from    string
		allowed bool
	}{
		{1, "octocat/hello", "floor: repositories[1]", true},
		{1, "OctoCat/Hello", "floor: repositories[1]", true},
		{1234, "octocat/hello", "floor: repositories[0]", true}, // the first counts
		{1234, "monalisa/renamed", "floor: repositories[0]", true},
		{0, "monalisa/renamed", "", false},
		{1, "hubot/a", "floor: repositories[2]", true},
		{1, "hubot/c", "", false},
		{1, "octocat/hello/more", "", false},
		{1, "octocats/hello", "", false},
		{1, "octocat", "", false},
		{1, "", "", false},
		{0, "", "", false},
	} {
		b, allowed := f.For(c.id, c.name)
		if allowed != c.allowed || allowed && b[len(b)-1].from != c.from || !allowed && b != nil {
			t.Errorf("%d %q: %v, %v", c.id, c.name, b, allowed)
		}
	}
	if !f.NeedsID() || floorOf(t, "version: 1\n").NeedsID() {
		t.Error("which floor names numbers?")
	}
	if _, allowed := floorOf(t, "version: 1\n").For(1, "monalisa/x"); !allowed {
		t.Error("without a list somebody may not")
	}
	if _, allowed := floorOf(t, "version: 1\nrepositories: []\n").For(1, "monalisa/x"); allowed {
		t.Error("with an empty list somebody may")
	}
	if _, allowed := floorOf(t, "version: 1\nrepositories: [{match: \"**\"}]\n").For(1, "monalisa/x"); !allowed {
		t.Error("** does not mean everybody")
	}
	if _, allowed := (Floor{}).For(0, ""); !allowed {
		t.Error("no floor binds")
	}
}

func TestEffectiveLowers(t *testing.T) {
	b, _ := floorOf(t, fullFloor).For(1, "octocat/hello")
	greedy := specOf(t, `
egress: [go, "a.internal.example:443"]
harness: {kind: opencode, model: anthropic/claude-sonnet}
data: {provenance: synthetic, load: [{run: seed, secrets: [SEED]}]}
setup: [{run: npm ci, secrets: [NPM_TOKEN]}]
limits: {cpu: 64, memory: 1TiB, pids: 32768, disk: 10TiB, egress: 1TiB, timeout: 24h, concurrent: 1000, budget_usd: 100000}
publish: {protected: ["**/migrations/**", "a/**"], max_files: 10000, max_bytes: 64MiB}
`)
	before := slices.Clone(greedy.Publish.Protected)
	got, values, err := Effective(greedy, b)
	if err != nil {
		t.Fatal(err)
	}
	want := spec.Limits{CPU: 1, MemoryBytes: 1 << 30, Pids: 100, DiskBytes: 2 << 30, EgressBytes: 3 << 30, Timeout: 10 * time.Minute, Concurrent: 1, Budget: spec.Dollar * 5 / 2}
	if got.Limits != want {
		t.Errorf("limits %+v", got.Limits)
	}
	if p := got.Publish; p.MaxFiles != 5 || p.MaxBytes != 1<<20 || !slices.Equal(p.Protected, []string{"**/migrations/**", "a/**", "infra/**"}) {
		t.Errorf("publish %+v", p)
	}
	if !slices.Equal(greedy.Publish.Protected, before) {
		t.Error("the repository's own list was changed")
	}
	for _, v := range []Value{
		{"limits.cpu", "1", "floor: repositories[1]", "64"},
		{"limits.egress", "3GiB", "floor: repositories[1]", "1TiB"},
		{"limits.timeout", "10m", "floor: repositories[1]", "24h"},
		{"limits.budget_usd", "$2.50", "floor: repositories[1]", "$100000.00"},
		{"egress", "go, a.internal.example:443", ".inspect.yml", ""},
		{"egress (at most)", "go, npm, *.internal.example:443", "floor: repositories[1]", ""},
		{"secrets", "NPM_TOKEN, SEED", ".inspect.yml", ""},
		{"secrets (at most)", "SEED, NPM_*", "floor: repositories[1]", ""},
		{"publish.protected", strings.Join(spec.AlwaysProtected(), ", "), "always", ""},
		{"publish.protected", "infra/**", "floor: defaults", ""},
		{"publish.max_bytes", "1MiB", "floor: repositories[1]", "64MiB"},
		{"publish.prefix", "inspect", "default", ""},
		{"publish.signed", "auto", "default", ""},
		{"publish.signoff", "false", "default", ""},
		{"publish.reviewers", "codeowners", "default", ""},
	} {
		if !slices.Contains(values, v) {
			t.Errorf("the values lack %+v:\n%+v", v, values)
		}
	}
	// The defaults bind where the entry is wider, and a modest repository stays as it is.
	wide, _ := floorOf(t, fullFloor).For(1234, "octocat/hello")
	if got, _, err := Effective(greedy, wide); err != nil || got.Limits.Budget != 4*spec.Dollar || got.Limits.CPU != 64 || got.Publish.MaxFiles != 50 {
		t.Errorf("%+v, %v", got, err)
	}
	modest := specOf(t, "limits: {cpu: 0.5, memory: 64MiB, pids: 16, disk: 16MiB, egress: 1MiB, timeout: 10s, budget_usd: 0.01, concurrent: 1}\npublish: {max_files: 1, max_bytes: 1KiB}\n")
	if got, _, err := Effective(modest, b); err != nil || got.Limits != modest.Limits || got.Publish.MaxFiles != 1 || got.Publish.MaxBytes != 1<<10 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestEffectiveRefuses(t *testing.T) {
	b, _ := floorOf(t, fullFloor).For(1, "octocat/hello")
	for name, c := range map[string]struct {
		body string
		want []string // key and what was asked
	}{
		"nothing asked":  {"", nil},
		"all in all":     {"egress: [evil.example, go, pypi]\nharness: {kind: codex, model: openai/gpt}\ndata: {provenance: production}\n", []string{"harness.kind codex", "harness.model openai/gpt", "data.provenance production", "egress evil.example", "egress pypi"}},
		"a deeper model": {"harness: {kind: opencode, model: anthropic/a/b}\n", []string{"harness.model anthropic/a/b"}},
		"another port":   {"egress: [\"a.internal.example:444\"]\n", []string{"egress a.internal.example:444"}},
		"one port more":  {"egress: [a.internal.example]\n", []string{"egress a.internal.example"}},
		"a name like it": {"egress: [\"eviinternal.example:443\"]\n", []string{"egress eviinternal.example:443"}},
		"the domain":     {"egress: [\"internal.example:443\"]\n", []string{"egress internal.example:443"}},
		"all of it":      {"egress: [\"*.internal.example:443\", \"*.b.internal.example:443\"]\n", nil},
		"all above it":   {"egress: [\"*.other.example:443\"]\n", []string{"egress *.other.example:443"}},
		"secrets": {`
setup: [{run: x, secrets: [SEED, NPM_A, A_NPM_]}]
services: {a: {command: x, secrets: [NPM, SERVICE]}}
verify: [{name: v, run: x, secrets: [VERIFY]}]
egress: [{host: "a.internal.example:443", header_from: PROXY}]
data: {provenance: synthetic, load: [{run: x, secrets: [SEED_2, NPM_]}]}
`, []string{"secrets A_NPM_", "secrets NPM", "secrets PROXY", "secrets SEED_2", "secrets SERVICE", "secrets VERIFY"}},
		"in other letter": {"egress: [\"A.Internal.Example:443\", NPM]\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, values, err := Effective(specOf(t, c.body), b)
			var beyond *BeyondError
			if !errors.As(err, &beyond) {
				beyond = &BeyondError{}
			}
			var got []string
			for _, w := range beyond.What {
				got = append(got, w.Key+" "+w.Asked)
				if w.Most == "" || w.From != "floor: repositories[1]" || !strings.Contains(err.Error(), w.Asked) {
					t.Errorf("%+v in %q", w, err)
				}
			}
			if !slices.Equal(got, c.want) || len(values) == 0 {
				t.Errorf("refused %q, want %q", got, c.want)
			}
		})
	}
	// Both layers count, and an empty list leaves nothing.
	both, _ := floorOf(t, "version: 1\nrepositories: [{match: \"**\", egress: [go]}]\ndefaults: {egress: [npm], models: []}\n").For(1, "a/b")
	sp := specOf(t, "egress: [go]\nharness: {kind: opencode, model: local/x}\n")
	_, _, err := Effective(sp, both)
	if want := `harness.model: "local/x" is beyond what the operator allows, which is nothing (floor: defaults); egress: "go" is beyond what the operator allows, which is npm (floor: defaults)`; err == nil || err.Error() != want {
		t.Errorf("said %v", err)
	}
	sp.EgressGuessed = true
	var beyond *BeyondError
	if _, _, err := Effective(sp, both); !errors.As(err, &beyond) || !beyond.Guessed {
		t.Errorf("said %v", err)
	}
}

// A pattern with an @ binds the digest, whatever name a repository gives it.
func TestImageByDigest(t *testing.T) {
	other := strings.Repeat("0", 64)
	for _, c := range []struct {
		pattern, image string
		ok             bool
	}{
		{"**/*@sha256:" + digest, "registry.example/team/dev@sha256:" + digest, true},
		{"**/*@sha256:" + digest, "imported@sha256:" + digest, true},
		{"**/*@sha256:" + digest, "registry.example/team/dev@sha256:" + other, false},
		{"registry.example/*@sha256:" + digest, "registry.example/dev@sha256:" + digest, true},
		{"registry.example/*@sha256:" + digest, "docker.example/dev@sha256:" + digest, false},
		{"registry.example/*", "registry.example/dev@sha256:" + other, true},
		{"registry.example/*@**", "registry.example/dev@sha256:" + other, true},
	} {
		b, _ := floorOf(t, "version: 1\ndefaults: {images: [\""+c.pattern+"\"]}\n").For(1, "octocat/hello")
		_, _, err := Effective(spec.Spec{Image: c.image}, b)
		if (err == nil) != c.ok {
			t.Errorf("%s under %s: %v", c.image, c.pattern, err)
		}
	}
}

const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// greedy asks for all that a repository can ask for.
const greedy = `
image: docker.example/evil@sha256:` + digest + `
setup: [{run: x, secrets: [PRODUCTION_KEY]}]
egress: [npm, "*.internal.example"]
data: {provenance: production}
harness: {kind: codex, model: openai/gpt}
limits: {cpu: 64, memory: 1TiB, pids: 32768, disk: 10TiB, egress: 1TiB, timeout: 24h, concurrent: 1000, budget_usd: 100000}
refresh: {every: 1m, max_age: 8760h, max_drift: 1000000, when_stale: use}
keep_failed: 168h
publish: {max_files: 10000, max_bytes: 64MiB, push: head}
`

// Each key of the floor binds a repository that asks for everything, alone, in
// an entry and in the defaults, and explain says who did it. A key that is
// added must be tried here too.
func TestEachKeyOfTheFloorBinds(t *testing.T) {
	type try struct {
		floor string
		shown Value // From and Instead are looked at apart
		holds func(sp spec.Spec, b Bounds) bool
		asked string // what is beyond it; empty: it lowers
	}
	tries := map[string]try{
		"Egress":    {floor: "egress: [go]", shown: Value{Key: "egress (at most)", Value: "go"}, asked: "npm"},
		"Models":    {floor: "models: [\"anthropic/*\"]", shown: Value{Key: "harness.model (at most)", Value: "anthropic/*"}, asked: "openai/gpt"},
		"Harnesses": {floor: "harnesses: [opencode]", shown: Value{Key: "harness.kind (at most)", Value: "opencode"}, asked: "codex"},
		"Data":      {floor: "data: [synthetic]", shown: Value{Key: "data.provenance (at most)", Value: "synthetic"}, asked: "production"},
		"Images": {floor: "images: [\"registry.example/**\"]", shown: Value{Key: "image (at most)", Value: "registry.example/**"}, asked: "docker.example/evil@sha256:" + digest,
			holds: func(_ spec.Spec, b Bounds) bool {
				return b.NamesImage("registry.example/dev@sha256:"+digest) && !b.NamesImage("docker.example/evil@sha256:"+digest) && !Bounds(nil).NamesImage("registry.example/dev@sha256:"+digest)
			}},
		"Secrets": {floor: "secrets: [NPM_*]", shown: Value{Key: "secrets (at most)", Value: "NPM_*"}, asked: "PRODUCTION_KEY"},
		"Submodules": {floor: "submodules: [\"octocat/lib-*\"]", shown: Value{Key: "submodules (at most)", Value: "octocat/lib-*"},
			holds: func(_ spec.Spec, b Bounds) bool {
				return b.Submodule("octocat/lib-a") && !b.Submodule("octocat/secret")
			}},
		"Sandbox": {floor: "sandbox: gvisor", shown: Value{Key: "sandbox (at least)", Value: "gvisor"},
			holds: func(_ spec.Spec, b Bounds) bool { tier, _ := b.Sandbox(); return tier == "gvisor" }},
		"RequireProtection": {floor: "require_protection: true", shown: Value{Key: "require_protection", Value: "true"},
			holds: func(_ spec.Spec, b Bounds) bool { required, _ := b.RequireProtection(); return required }},
		"Protected": {floor: "publish: {protected: [\"infra/**\"]}", shown: Value{Key: "publish.protected", Value: "infra/**"},
			holds: func(sp spec.Spec, b Bounds) bool {
				return protectedBy("infra/x", PublishRules(sp.Publish).Protected) != "" && protectedBy("infra/x", b.Tighten(Rules{}).Protected) != ""
			}},
		"Push": {floor: "publish: {push: stacked}", shown: Value{Key: "publish.push", Value: "stacked"},
			holds: func(sp spec.Spec, b Bounds) bool { return sp.Publish.Push == "" && !b.PushHead() }},
		"MaxFiles": {floor: "publish: {max_files: 5}", shown: Value{Key: "publish.max_files", Value: "5"},
			holds: func(sp spec.Spec, b Bounds) bool {
				return sp.Publish.MaxFiles == 5 && b.Tighten(Rules{MaxFiles: 9}).MaxFiles == 5
			}},
		"MaxBytes": {floor: "publish: {max_bytes: 5KiB}", shown: Value{Key: "publish.max_bytes", Value: "5KiB"},
			holds: func(sp spec.Spec, b Bounds) bool {
				return sp.Publish.MaxBytes == 5<<10 && b.Tighten(Rules{MaxBytes: 9 << 10}).MaxBytes == 5<<10
			}},
		"FourEyes": {floor: "publish: {four_eyes: true}", shown: Value{Key: "publish.four_eyes", Value: "true"},
			holds: func(sp spec.Spec, b Bounds) bool {
				return sp.Publish.FourEyes && b.FourEyes() && b.Tighten(Rules{}).FourEyes
			}},
		"RefreshEvery": {floor: "refresh: {every: 1h}", shown: Value{Key: "refresh.every", Value: "1h"},
			holds: func(sp spec.Spec, _ Bounds) bool { return sp.Refresh.Every == time.Hour }},
		"KeepFailed": {floor: "limits: {keep_failed: 1h}", shown: Value{Key: "keep_failed", Value: "1h"},
			holds: func(sp spec.Spec, _ Bounds) bool { return sp.KeepFailed == time.Hour }},
		"Limits.CPU":         {floor: "limits: {cpu: 0.5}", shown: Value{Key: "limits.cpu", Value: "0.5"}, holds: func(sp spec.Spec, _ Bounds) bool { return sp.Limits.CPU == 0.5 }},
		"Limits.MemoryBytes": {floor: "limits: {memory: 1GiB}", shown: Value{Key: "limits.memory", Value: "1GiB"}, holds: func(sp spec.Spec, _ Bounds) bool { return sp.Limits.MemoryBytes == 1<<30 }},
		"Limits.Pids":        {floor: "limits: {pids: 100}", shown: Value{Key: "limits.pids", Value: "100"}, holds: func(sp spec.Spec, _ Bounds) bool { return sp.Limits.Pids == 100 }},
		"Limits.DiskBytes":   {floor: "limits: {disk: 1GiB}", shown: Value{Key: "limits.disk", Value: "1GiB"}, holds: func(sp spec.Spec, _ Bounds) bool { return sp.Limits.DiskBytes == 1<<30 }},
		"Limits.EgressBytes": {floor: "limits: {egress: 1GiB}", shown: Value{Key: "limits.egress", Value: "1GiB"}, holds: func(sp spec.Spec, _ Bounds) bool { return sp.Limits.EgressBytes == 1<<30 }},
		"Limits.Timeout":     {floor: "limits: {timeout: 5m}", shown: Value{Key: "limits.timeout", Value: "5m"}, holds: func(sp spec.Spec, _ Bounds) bool { return sp.Limits.Timeout == 5*time.Minute }},
		"Limits.Concurrent":  {floor: "limits: {concurrent: 1}", shown: Value{Key: "limits.concurrent", Value: "1"}, holds: func(sp spec.Spec, _ Bounds) bool { return sp.Limits.Concurrent == 1 }},
		"Limits.Budget":      {floor: "limits: {budget_usd: 2}", shown: Value{Key: "limits.budget_usd", Value: "$2.00"}, holds: func(sp spec.Spec, _ Bounds) bool { return sp.Limits.Budget == 2*spec.Dollar }},
		"Limits.OpenPullRequests": {floor: "limits: {open_pull_requests: 3}", shown: Value{Key: "limits.open_pull_requests", Value: "3"},
			holds: func(sp spec.Spec, _ Bounds) bool { return sp.Limits.OpenPullRequests == 3 }},
		"Limits.OpenPullRequestsEach": {floor: "limits: {open_pull_requests_per_requester: 2}", shown: Value{Key: "limits.open_pull_requests_per_requester", Value: "2"},
			holds: func(sp spec.Spec, _ Bounds) bool { return sp.Limits.OpenPullRequestsEach == 2 }},
		"Priority": {floor: "limits: {priority: 7}", shown: Value{Key: "limits.priority", Value: "7"},
			holds: func(_ spec.Spec, b Bounds) bool {
				n, err := b.Priority(7, nil)
				_, more := b.Priority(8, nil)
				return n == 7 && err == nil && more != nil
			}},
		"PriorityLabels": {floor: "priority_labels: {Inspect-Urgent: 20}", shown: Value{Key: "priority_labels", Value: "inspect-urgent: 20"},
			holds: func(_ spec.Spec, b Bounds) bool {
				n, err := b.Priority(0, []string{"bug", "inspect-URGENT"})
				return n == 20 && err == nil
			}},
	}
	var keys []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[spec.FloorKeys]()) {
		if f.Type != reflect.TypeFor[spec.Limits]() {
			keys = append(keys, f.Name)
			continue
		}
		for _, l := range reflect.VisibleFields(f.Type) {
			keys = append(keys, f.Name+"."+l.Name)
		}
	}
	for _, key := range keys {
		c, ok := tries[key]
		if !ok {
			t.Errorf("the key %s of the floor is not tried", key)
			continue
		}
		for from, body := range map[string]string{
			"floor: defaults":        "defaults: {" + c.floor + "}\n",
			"floor: repositories[0]": "repositories: [{match: \"octocat/*\", " + c.floor + "}]\n",
		} {
			b, _ := floorOf(t, "version: 1\n"+body).For(1, "octocat/hello")
			sp, values, err := Effective(specOf(t, greedy), b)
			var beyond *BeyondError
			switch errors.As(err, &beyond); {
			case c.asked == "" && (err != nil || !c.holds(sp, b)):
				t.Errorf("%s in %s does not hold: %+v, %v", key, from, sp, err)
			case c.asked != "" && (beyond == nil || beyond.What[0].Asked != c.asked || beyond.What[0].From != from):
				t.Errorf("%s in %s lets pass: %v", key, from, err)
			}
			if !slices.ContainsFunc(values, func(v Value) bool { return v.Key == c.shown.Key && v.Value == c.shown.Value && v.From == from }) {
				t.Errorf("%s in %s is not explained: %+v", key, from, values)
			}
		}
	}
}

// How often snapshots are refreshed and how long clones are kept is bound where
// no floor says anything too, and a floor may say more or less than that.
func TestRefreshAndKeepFailedAreBound(t *testing.T) {
	for _, c := range []struct {
		defaults, entry, asks string
		every, keep           time.Duration
		from                  string // of refresh.every
	}{
		{"", "", "", 30 * time.Minute, 0, "default"},
		{"", "", "refresh: {every: 1m}\nkeep_failed: 168h\n", 5 * time.Minute, 24 * time.Hour, "always"},
		{"", "", "refresh: {every: 2h}\nkeep_failed: 2h\n", 2 * time.Hour, 2 * time.Hour, ".inspect.yml"},
		{"refresh: {every: 1m}, limits: {keep_failed: 72h}", "", "refresh: {every: 1m}\nkeep_failed: 168h\n", time.Minute, 72 * time.Hour, ".inspect.yml"},
		{"refresh: {every: 10m}, limits: {keep_failed: 72h}", "refresh: {every: 1m}, limits: {keep_failed: 168h}", "refresh: {every: 1m}\nkeep_failed: 168h\n", 10 * time.Minute, 72 * time.Hour, "floor: defaults"},
		{"refresh: {every: 1m}", "refresh: {every: 1h}, limits: {keep_failed: 0s}", "keep_failed: 2h\n", time.Hour, 0, "floor: repositories[0]"},
	} {
		b, _ := floorOf(t, "version: 1\ndefaults: {"+c.defaults+"}\nrepositories: [{match: \"**\", "+c.entry+"}]\n").For(1, "a/b")
		asked := specOf(t, c.asks)
		sp, values, err := Effective(asked, b)
		if err != nil || sp.Refresh.Every != c.every || sp.KeepFailed != c.keep {
			t.Errorf("%+v: every %s, keep %s (%v)", c, sp.Refresh.Every, sp.KeepFailed, err)
		}
		if !slices.ContainsFunc(values, func(v Value) bool { return v.Key == "refresh.every" && v.From == c.from }) {
			t.Errorf("%+v: explained as %+v", c, values)
		}
		if sp.EnvironmentDigest() != asked.EnvironmentDigest() {
			t.Errorf("%+v makes another environment", c)
		}
	}
}

// An entry cannot loosen what is required of all.
func TestProtectionStaysRequired(t *testing.T) {
	for _, c := range []struct {
		defaults, entry string
		want            bool
	}{
		{"", "", false}, {"require_protection: false", "require_protection: false", false},
		{"require_protection: true", "require_protection: false", true}, {"", "require_protection: true", true},
	} {
		b, _ := floorOf(t, "version: 1\ndefaults: {"+c.defaults+"}\nrepositories: [{match: \"**\", "+c.entry+"}]\n").For(1, "a/b")
		if got, _ := b.RequireProtection(); got != c.want {
			t.Errorf("%q and %q: %v", c.defaults, c.entry, got)
		}
	}
}

func TestStrictestSandbox(t *testing.T) {
	for _, c := range [][3]string{
		{"", "", ""}, {"sandbox: bubblewrap", "", "bubblewrap"}, {"sandbox: bubblewrap", "sandbox: gvisor", "gvisor"}, {"sandbox: gvisor", "sandbox: bubblewrap", "gvisor"},
	} {
		b, _ := floorOf(t, "version: 1\ndefaults: {"+c[0]+"}\nrepositories: [{match: \"**\", "+c[1]+"}]\n").For(1, "a/b")
		if got, _ := b.Sandbox(); got != c[2] {
			t.Errorf("%q and %q: %q, want %q", c[0], c[1], got, c[2])
		}
	}
}

// All bounds that name submodules must list one, and where none does there is none.
func TestSubmodulesMustBeListed(t *testing.T) {
	for _, c := range []struct {
		defaults, entry, name string
		want                  bool
	}{
		{"", "", "octocat/lib", false},
		{"submodules: [octocat/lib]", "", "octocat/lib", true},
		{"", "submodules: [octocat/Lib]", "OctoCat/LIB", true},
		{"submodules: [\"octocat/*\"]", "submodules: [octocat/lib]", "octocat/lib", true},
		{"submodules: [\"octocat/*\"]", "submodules: [octocat/lib]", "octocat/other", false},
		{"submodules: [octocat/lib]", "submodules: [\"octocat/*\"]", "octocat/other", false},
		{"submodules: [\"**\"]", "submodules: []", "octocat/lib", false},
		{"submodules: []", "submodules: [\"**\"]", "octocat/lib", false},
		{"submodules: [\"*/lib\"]", "", "octocat/more/lib", false},
	} {
		b, _ := floorOf(t, "version: 1\ndefaults: {"+c.defaults+"}\nrepositories: [{match: \"**\", "+c.entry+"}]\n").For(1, "a/b")
		if got := b.Submodule(c.name); got != c.want {
			t.Errorf("%q and %q: %s %v", c.defaults, c.entry, c.name, got)
		}
	}
	b, _ := (Floor{}).For(1, "octocat/hello")
	_, values, err := Effective(spec.Default(), b)
	if b.Submodule("octocat/lib") || err != nil || !slices.Contains(values, Value{Key: "submodules (at most)", Value: "nothing", From: "default"}) {
		t.Errorf("without a policy: %+v, %v", values, err)
	}
}

func TestCoversHost(t *testing.T) {
	for _, c := range []struct {
		most  string
		asked string
		want  bool
	}{
		{"a.example", "a.example", true},
		{"a.example", "a.example:443", true},
		{"a.example", "a.example:80", true},
		{"a.example", "a.example:8443", false},
		{"a.example:443", "a.example", false},
		{"a.example:443 a.example:80", "a.example", true},
		{"a.example:443 *.example:80", "a.example", true},
		{"*.example.org", "a.b.example.org", true},
		{"*.example.org", "*.b.example.org", true},
		{"*.example.org", "*.example.org", true},
		{"*.b.example.org", "*.example.org", false},
		{"a.example.org", "*.example.org", false},
		{"npm", "npm", true},
		{"npm", "go", false},
		{"npm", "npm:443", false},
		{"npm:443", "npm", false}, // a host of that name is not the ecosystem
		{"", "a.example", false},
	} {
		if got := coversHost(strings.Fields(c.most), c.asked); got != c.want {
			t.Errorf("%q within %q: %v", c.asked, c.most, got)
		}
	}
}

func TestWords(t *testing.T) {
	for _, c := range [][2]string{
		{bytesWords(0), "0B"}, {bytesWords(1), "1B"}, {bytesWords(4 << 30), "4GiB"}, {bytesWords(1<<20 + 1), "1048577B"}, {bytesWords(1 << 60), "1048576TiB"},
		{durationWords(45 * time.Minute), "45m"}, {durationWords(time.Hour), "1h"}, {durationWords(90 * time.Second), "1m30s"}, {durationWords(10 * time.Second), "10s"}, {durationWords(20 * time.Hour), "20h"},
	} {
		if c[0] != c[1] {
			t.Errorf("%q, want %q", c[0], c[1])
		}
	}
}

func TestTighten(t *testing.T) {
	b, _ := floorOf(t, fullFloor).For(1, "octocat/hello")
	r := b.Tighten(PublishRules(spec.Default().Publish))
	if r.MaxFiles != 5 || r.MaxBytes != 1<<20 || protectedBy("infra/x", r.Protected) == "" || protectedBy(".github/x", r.Protected) == "" || r.Prefix != "inspect" {
		t.Errorf("%+v", r)
	}
	if r := Bounds(nil).Tighten(PublishRules(spec.Default().Publish)); r.MaxFiles != 100 {
		t.Errorf("%+v", r)
	}
}

func TestSecretsWithinBounds(t *testing.T) {
	b, _ := floorOf(t, fullFloor).For(1, "octocat/hello")
	if err := b.Secrets([]string{"SEED", "NPM_TOKEN"}); err != nil {
		t.Error(err)
	}
	if err := b.Secrets([]string{"SEED", "OTHER"}); err == nil || err.Error() != `secrets: "OTHER" is beyond what the operator allows, which is SEED, NPM_* (floor: repositories[1])` {
		t.Errorf("said %v", err)
	}
	if err := (Bounds{}).Secrets([]string{"OTHER"}); err != nil {
		t.Errorf("without bounds: %v", err)
	}
	none, _ := floorOf(t, "version: 1\ndefaults: {secrets: []}\n").For(1, "octocat/hello")
	if err := none.Secrets([]string{"OTHER"}); err == nil || none.Secrets(nil) != nil {
		t.Errorf("with an empty list: %v", err)
	}
}

func FuzzParseFloor(f *testing.F) {
	f.Add([]byte(fullFloor), int64(1), "octocat/hello")
	f.Add([]byte("version: 1\nrepositories: []\n"), int64(0), "")
	f.Add([]byte("version: 1\ndefaults: {models: [\"{a,b}/**\"], egress: []}\n"), int64(2), "hubot/a")
	f.Fuzz(func(t *testing.T, body []byte, id int64, name string) {
		floor, problems := ParseFloor(body)
		if len(problems) > 0 {
			if problems.Error() == "" || !reflect.DeepEqual(floor, Floor{}) {
				t.Errorf("problems without words, or a floor beside them: %+v", floor)
			}
			return
		}
		b, allowed := floor.For(id, name)
		if allowed != (b != nil) || !allowed && !floor.file.Listed {
			t.Errorf("%v, %v", b, allowed)
		}
		if _, _, err := Effective(spec.Default(), b); err != nil {
			t.Errorf("the defaults ask for nothing, yet: %v", err)
		}
	})
}

// The effective policy exceeds neither what is asked for nor any bound.
func FuzzEffective(f *testing.F) {
	f.Add([]byte(fullFloor), []byte("version: 1\negress: [go, \"a.internal.example:443\"]\nlimits: {cpu: 64, budget_usd: 100}\npublish: {protected: [\"a/**\"], max_files: 9}\n"), "octocat/hello", "x.internal.example", "infra/x")
	f.Add([]byte("version: 1\ndefaults: {egress: [a.example]}\n"), []byte("version: 1\negress: [\"*.a.example\"]\n"), "a/b", "b.a.example", ".github/x")
	f.Fuzz(func(t *testing.T, floorBody, specBody []byte, name, host, path string) {
		floor, bad := ParseFloor(floorBody)
		asked, wrong := spec.Parse(specBody)
		b, allowed := floor.For(0, name)
		if len(bad)+len(wrong) > 0 || !allowed {
			return
		}
		got, values, err := Effective(asked, b)
		if len(values) == 0 {
			t.Error("nothing is explained")
		}
		var all []side
		all = append(all, side{asked.Limits, asked.Publish.MaxFiles, asked.Publish.MaxBytes, asked.Publish.Protected})
		for _, l := range b {
			all = append(all, side{l.keys.Limits, l.keys.MaxFiles, l.keys.MaxBytes, l.keys.Protected})
			for _, port := range []string{"443", "80", "8443"} {
				if err == nil && l.keys.Egress != nil && opens(got.Egress, host, port) && !opens(l.keys.Egress, host, port) {
					t.Errorf("%s:%s can be reached past %q by %q", host, port, l.keys.Egress, got.Egress)
				}
			}
		}
		least := spec.Limits{CPU: .1, MemoryBytes: 1, Pids: 1, DiskBytes: 1, EgressBytes: 1, Timeout: 1, Concurrent: 1, Budget: 1}
		if past(least, got.Limits) || got.Publish.MaxFiles < 1 || got.Publish.MaxBytes < 1 {
			t.Errorf("nothing is left: %+v", got)
		}
		for _, a := range all {
			if past(got.Limits, a.limits) || a.files > 0 && got.Publish.MaxFiles > a.files || a.bytes > 0 && got.Publish.MaxBytes > a.bytes {
				t.Errorf("%+v exceeds %+v", got, a)
			}
			if protectedBy(path, a.protected) != "" && protectedBy(path, PublishRules(got.Publish).Protected) == "" {
				t.Errorf("%q is protected no more", path)
			}
		}
		if again, _, _ := Effective(got, b); !reflect.DeepEqual(again, got) {
			t.Errorf("twice is not once: %+v, %+v", got, again)
		}
	})
}

// side is what one side says of numbers and paths.
type side struct {
	limits    spec.Limits
	files     int
	bytes     int64
	protected []string
}

// past says whether a number of l is larger than a bound of most.
func past(l, most spec.Limits) bool {
	return most.CPU != 0 && l.CPU > most.CPU || most.MemoryBytes != 0 && l.MemoryBytes > most.MemoryBytes || most.Pids != 0 && l.Pids > most.Pids ||
		most.DiskBytes != 0 && l.DiskBytes > most.DiskBytes || most.EgressBytes != 0 && l.EgressBytes > most.EgressBytes || most.Timeout != 0 && l.Timeout > most.Timeout ||
		most.Concurrent != 0 && l.Concurrent > most.Concurrent || most.Budget != 0 && l.Budget > most.Budget
}

// opens is what the egress proxy would say of a host, ecosystems aside.
func opens(entries []string, host, port string) bool {
	for _, e := range entries {
		name, p, has := strings.Cut(e, ":")
		if !has && port == "8443" || has && p != port || spec.IsEcosystem(e) {
			continue
		}
		if domain, below := strings.CutPrefix(name, "*."); host == name && !below || below && strings.HasSuffix(host, "."+domain) {
			return true
		}
	}
	return false
}

// What a person asks for while a session goes on is bound like what its file says.
func TestHostAndBudgetAreBound(t *testing.T) {
	b, _ := floorOf(t, "version: 1\ndefaults: {egress: [go, \"*.internal.example\"], limits: {budget_usd: 2}}\n").For(1, "a/b")
	for entry, ok := range map[string]bool{"a.internal.example": true, "a.internal.example:443": true, "go": true, "npm": false, "evil.example": false, "a.internal.example:22": false} {
		if err := b.Host(entry); (err == nil) != ok {
			t.Errorf("%s: %v", entry, err)
		}
		if err := (Bounds{}).Host(entry); err != nil {
			t.Errorf("nothing binds %s: %v", entry, err)
		}
	}
	if err := b.Budget(2 * spec.Dollar); err != nil {
		t.Error(err)
	}
	if err := b.Budget(2*spec.Dollar + 1); err == nil || !strings.Contains(err.Error(), "$2.00") {
		t.Error(err)
	}
	if err := (Bounds{}).Budget(1000 * spec.Dollar); err != nil {
		t.Error(err)
	}
	// What was allowed to a session is judged with the rest when the floor has changed.
	sp := spec.Default()
	sp.Allowed = []string{"evil.example"}
	if _, _, err := Effective(sp, b); err == nil {
		t.Error("a host beyond the floor stays allowed")
	}
}
