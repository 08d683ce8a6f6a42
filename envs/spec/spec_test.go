package spec

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What is the default is not written down, so that a session that was stored
// before there was a choice has it too.
func TestHowCommitsArePublished(t *testing.T) {
	for text, want := range map[string]Publish{
		"":                                    {},
		"signed: auto, reviewers: codeowners": {},
		"signed: always, signoff: true, reviewers: none": {Signed: SignedAlways, SignOff: true, Reviewers: ReviewersNone},
	} {
		got, problems := Parse([]byte("version: 1\npublish: {" + text + "}\n"))
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		want.Prefix, want.MaxFiles, want.MaxBytes = "inspect", 100, 4<<20
		if d := cmp.Diff(want, got.Publish); d != "" {
			t.Errorf("%q: -want +got:\n%s", text, d)
		}
	}
	for _, text := range []string{"signed: yes", "signoff: maybe", "reviewers: octocat"} {
		if _, problems := Parse([]byte("version: 1\npublish: {" + text + "}\n")); len(problems) == 0 {
			t.Errorf("%q is taken", text)
		}
	}
}

func TestParseFull(t *testing.T) {
	got, problems := Parse([]byte(`version: 1
setup: [go mod download, "go build ./..."]
data: {provenance: synthetic, load: ["psql -f seed.sql"]}
services:
  web: {command: npm run dev, port: 5173, ready: "http://127.0.0.1:5173/health"}
  postgres: {command: "postgres -D /var/lib/pg", ready: pg_isready, stop: pg_ctl stop}
egress: [go, NPM, "*.Internal.example:443", nexus:8081]
verify:
  - {name: unit, run: "go test -json ./...", report: gotest}
  - {name: lint, run: make lint}
limits: {cpu: 1.5, memory: 512MiB, pids: 64, disk: 1GiB, egress: 2GiB, timeout: 5m, concurrent: 2, budget_usd: 2.125}
harness: {kind: command, command: "fix-it --fast", model: anthropic/claude-sonnet}
publish: {prefix: robots, draft: true, push: stacked, protected: ["**/migrations/**"], max_files: 7, max_bytes: 1MiB, four_eyes: true, signed: never}
checks: {required: true}
triggers: {labels: [inspect, "help wanted"], commands: write, on_buildkite_failure: false}
`))
	if problems != nil {
		t.Fatal(problems)
	}
	want := Spec{
		Version: 1,
		Setup:   Steps("go mod download", "go build ./..."),
		Data:    Data{Provenance: "synthetic", Load: Steps("psql -f seed.sql")},
		Services: []Service{ // in the file's order
			{Name: "web", Command: "npm run dev", Port: 5173, Ready: "http://127.0.0.1:5173/health"},
			{Name: "postgres", Command: "postgres -D /var/lib/pg", Ready: "pg_isready", Stop: "pg_ctl stop"},
		},
		Egress:   []string{"go", "npm", "*.internal.example:443", "nexus:8081"},
		Verify:   []Verify{{Name: "unit", Run: "go test -json ./...", Report: "gotest"}, {Name: "lint", Run: "make lint", Report: "exit"}},
		Limits:   Limits{CPU: 1.5, MemoryBytes: 512 << 20, Pids: 64, DiskBytes: 1 << 30, EgressBytes: 2 << 30, Timeout: 5 * time.Minute, Concurrent: 2, Budget: 2125 * Dollar / 1000},
		Refresh:  Default().Refresh,
		Harness:  Harness{Kind: "command", Command: "fix-it --fast", Model: "anthropic/claude-sonnet"},
		Publish:  Publish{Prefix: "robots", Protected: []string{"**/migrations/**"}, MaxFiles: 7, MaxBytes: 1 << 20, FourEyes: true, Signed: SignedNever},
		Checks:   Checks{Required: true},
		Triggers: Triggers{Labels: []string{"inspect", "help wanted"}, Commands: "write"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
}

func TestSecretsAreNamedWhereTheyGo(t *testing.T) {
	got, problems := Parse([]byte(`version: 1
setup:
- make
- {run: npm ci, secrets: [NPM_TOKEN]}
data: {provenance: synthetic, load: [{run: ./seed, secrets: [SEED]}]}
services:
  web: {command: npm start, secrets: [A, B]}
verify:
- {name: e2e, run: npm run e2e, secrets: [C]}
egress:
- go
- {host: NPM.internal.example, header_from: NPM_TOKEN}
- {host: "pypi.internal.example:8443", header_from: PYPI, header: X-Api-Key}
`))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	want := Default()
	want.Setup = []Step{{Run: "make"}, {Run: "npm ci", Secrets: []string{"NPM_TOKEN"}}}
	want.Data = Data{Provenance: "synthetic", Load: []Step{{Run: "./seed", Secrets: []string{"SEED"}}}}
	want.Services = []Service{{Name: "web", Command: "npm start", Secrets: []string{"A", "B"}}}
	want.Verify = []Verify{{Name: "e2e", Run: "npm run e2e", Report: ReportExit, Secrets: []string{"C"}}}
	want.Egress = []string{"go", "npm.internal.example", "pypi.internal.example:8443"}
	want.Inject = []Injection{
		{Host: "npm.internal.example", Header: "Authorization", Secret: "NPM_TOKEN"},
		{Host: "pypi.internal.example:8443", Header: "X-Api-Key", Secret: "PYPI"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
	var again Spec
	body, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(body, &again); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(got, again); d != "" {
		t.Fatal(d)
	}
}

func TestParseDefaults(t *testing.T) {
	got, problems := Parse([]byte("version: 1\n"))
	if problems != nil {
		t.Fatal(problems)
	}
	if d := cmp.Diff(Default(), got); d != "" {
		t.Fatal(d)
	}
}

// Every problem names its line, its key and what was expected.
func TestProblems(t *testing.T) {
	for _, c := range []struct{ name, file, want string }{
		{"empty", "", "line 1: version: expected the number 1 (the file is empty)"},
		{"only a comment", "# nothing\n", "line 1: version: expected the number 1 (the file is empty)"},
		{"no version", "setup: []\n", "line 1: version: expected the number 1; the key is missing"},
		{"other version", "version: 2\n", `line 1: version: expected the number 1, but found "2"`},
		{"version as text", "version: \"1\"\n", `line 1: version: expected the number 1, but found "1"`},
		{"unknown key", "version: 1\n\nsetpu: []\n", "line 3: setpu: unknown key; did you mean setup?"},
		{"unknown nested key", "version: 1\nlimits:\n  ram: 4GiB\n", "line 3: limits.ram: unknown key; expected one of budget_usd, concurrent, cpu, disk, egress, memory, open_pull_requests, open_pull_requests_per_requester, pids, timeout"},
		{"wrong type", "version: 1\nsetup: make\n", `line 2: setup: expected a list of shell lines, but found "make"`},
		{"list for map", "version: 1\nlimits: [1]\n", "line 2: limits: expected a map, but found a list"},
		{"number for text", "version: 1\nsetup: [7]\n", `line 2: setup[0]: expected a shell line, but found "7"`},
		{"null", "version: 1\nlimits:\n", "line 2: limits: expected a map, but found nothing"},
		{"impossible size", "version: 1\nlimits: {memory: 4GB}\n", `line 2: limits.memory: expected a size like 4GiB, from 64MiB to 1TiB, but found "4GB"`},
		{"too little egress", "version: 1\nlimits: {egress: 1023KiB}\n", `line 2: limits.egress: expected a size like 10GiB, from 1MiB to 1TiB, but found "1023KiB"`},
		{"impossible duration", "version: 1\nlimits: {timeout: 1s}\n", `line 2: limits.timeout: expected a duration like 45m, from 10s to 24h, but found "1s"`},
		{"negative", "version: 1\nlimits: {pids: -5}\n", `line 2: limits.pids: expected a number from 16 to 32768, but found "-5"`},
		{"not a number", "version: 1\nlimits: {cpu: .nan}\n", `line 2: limits.cpu: expected a number of cores from 0.1 to 256, but found ".nan"`},
		{"verify without run", "version: 1\nverify:\n  - name: unit\n", "line 3: verify[0].run: expected a shell line; the key is missing"},
		{"verify twice", "version: 1\nverify:\n  - {name: a, run: x}\n  - {name: a, run: y}\n", `line 4: verify[1].name: expected each name once, but found "a"`},
		{"key twice", "version: 1\nsetup: []\nsetup: []\n", "line 3: setup: expected each key once, but found it again"},
		{"alias", "version: 1\nsetup: &a [x]\n", "line 2: setup: expected a plain value; anchors and aliases are not allowed"},
		{"merge", "version: 1\nlimits: {<<: {cpu: 1}}\n", `line 2: limits.<<: expected a plain key, but found "<<"`},
		{"two documents", "version: 1\n---\nversion: 1\n", "expected one YAML document, but found more"},
		{"not yaml", "version: 1\n\tsetup: []\n", "line 2: expected YAML, but found a tab"},
		{"service without command", "version: 1\nservices:\n  pg: {ready: x}\n", "line 3: services.pg.command: expected a shell line that stays in the foreground; the key is missing"},
		{"service's name", "version: 1\nservices:\n  Pg: {command: x}\n", "line 3: services.Pg: expected a name of lower-case letters"},
		{"service asked elsewhere", "version: 1\nservices:\n  a: {command: x, ready: \"http://example.com/\"}\n", "line 3: services.a.ready: expected an address on the sandbox's own loopback"},
		{"service asked elsewhere in disguise", "version: 1\nservices:\n  a: {command: x, ready: \"http://127.0.0.1:80@example.com/\"}\n", "line 3: services.a.ready: expected an address like http://127.0.0.1:5173/"},
		{"service asked by https", "version: 1\nservices:\n  a: {command: x, ready: \"https://127.0.0.1/\"}\n", "line 3: services.a.ready: expected an http:// address or a shell line"},
		{"port twice", "version: 1\nservices:\n  a: {command: x, port: 80}\n  b: {command: y, port: 080}\n", `line 4: services.b.port: expected each port once; a has it too, but found "080"`},
		{"our port", "version: 1\nservices:\n  a: {command: x, port: 41711}\n", "line 3: services.a.port: expected another port"},
		{"no port", "version: 1\nservices:\n  a: {command: x, port: 0}\n", `line 3: services.a.port: expected a port from 1 to 65535, but found "0"`},
		{"data of no kind", "version: 1\ndata: {load: [x]}\n", "line 2: data.provenance: expected synthetic, scrubbed or production; the key is missing"},
		{"egress", "version: 1\negress: [npn]\n", `line 2: egress[0]: no such ecosystem; did you mean npm?, but found "npn"`},
		{"egress twice", "version: 1\negress: [npm, NPM]\n", `line 2: egress[1]: expected each entry once, but found "NPM"`},
		{"credential for a pattern", "version: 1\negress: [{host: \"*.a.example\", header_from: TOKEN}]\n", `line 2: egress[0].host: expected one host like npm.internal.example: a credential is not added for patterns and ecosystems, but found "*.a.example"`},
		{"credential for an ecosystem", "version: 1\negress: [{host: npm, header_from: TOKEN}]\n", `line 2: egress[0].host: expected one host`},
		{"credential in a header of the connection", "version: 1\negress: [{host: a.example, header_from: TOKEN, header: Host}]\n", `line 2: egress[0].header: expected a header that holds a credential, but found "Host"`},
		{"host twice, once with a credential", "version: 1\negress: [a.example, {host: A.example, header_from: TOKEN}]\n", `line 2: egress[1]: expected each entry once, but found "A.example"`},
		{"secret that steers programs", "version: 1\nsetup: [{run: x, secrets: [LD_PRELOAD]}]\n", `line 2: setup[0].secrets[0]: expected another name: this one means something to programs, but found "LD_PRELOAD"`},
		{"secret of a wrong form", "version: 1\nservices:\n  a: {command: x, secrets: [token]}\n", `line 3: services.a.secrets[0]: expected the name of a secret: upper-case letters, digits and '_', but found "token"`},
		{"step without a line", "version: 1\nsetup: [{secrets: [TOKEN]}]\n", "line 2: setup[0].run: expected a shell line; the key is missing"},
		{"egress wrong too", "version: 1\negress: [{host: a.example}]\n", "line 2: egress[0].header_from: expected the name of a secret: upper-case letters, digits and '_'; the key is missing"},
		{"image by tag", "version: 1\nimage: a/b:latest\n", `line 2: image: expected an image by digest (name@sha256:…), but found "a/b:latest"`},
		{"image with an option", "version: 1\nimage: \"--x@sha256:" + strings.Repeat("0", 64) + "\"\n", "line 2: image: expected an image by digest"},
		{"refresh too often", "version: 1\nrefresh: {every: 10s}\n", `line 2: refresh.every: expected a duration like 30m, from 1m to 168h, but found "10s"`},
		{"drift of nothing", "version: 1\nrefresh: {max_drift: 0}\n", `line 2: refresh.max_drift: expected a number of commits from 1 to 1000000, but found "0"`},
		{"stale", "version: 1\nrefresh: {when_stale: wait}\n", `line 2: refresh.when_stale: expected use, refuse or cold, but found "wait"`},
		{"kept for ever", "version: 1\nkeep_failed: 169h\n", `line 2: keep_failed: expected a duration like 2h, from 0s to 168h, but found "169h"`},
		{"report outside", "version: 1\nverify: [{name: e, run: x, report: \"junit:../*.xml\"}]\n", `line 2: verify[0].report: expected a path in the repository`},
		{"report of all", "version: 1\nverify: [{name: e, run: x, report: \"junit:/etc/*.xml\"}]\n", `line 2: verify[0].report: expected a path in the repository`},
		{"report of git", "version: 1\nverify: [{name: e, run: x, report: \"sarif:.git/**\"}]\n", `line 2: verify[0].report: expected a path in the repository`},
		{"bad glob", "version: 1\nverify: [{name: e, run: x, coverage: \"lcov:a[.info\"}]\n", `line 2: verify[0].coverage: expected a glob`},
		{"screenshot of elsewhere", "version: 1\nverify: [{name: e, screenshot: \"http://example.com/\"}]\n", "line 2: verify[0].screenshot: expected an address on the sandbox's own loopback"},
		{"screenshot of a file", "version: 1\nverify: [{name: e, screenshot: \"file:///etc/passwd\"}]\n", "line 2: verify[0].screenshot: expected an address like http://127.0.0.1:5173/"},
		{"screenshot of our port", "version: 1\nverify: [{name: e, screenshot: \"http://localhost:41710/\"}]\n", "line 2: verify[0].screenshot: expected another port"},
		{"screenshot in disguise", "version: 1\nverify: [{name: e, screenshot: \"http://127.0.0.1:80@example.com/\"}]\n", "line 2: verify[0].screenshot: expected an address like"},
		{"screenshot and run", "version: 1\nverify: [{name: e, run: x, screenshot: \"http://127.0.0.1/\"}]\n", "line 2: verify[0].run: expected either run or screenshot, not both"},
		{"screenshot with a report", "version: 1\nverify: [{name: e, report: tap, screenshot: \"http://127.0.0.1/\"}]\n", "line 2: verify[0].report: expected only with run"},
		{"viewport without a page", "version: 1\nverify: [{name: e, run: x, viewport: 800x600}]\n", "line 2: verify[0].viewport: expected only with screenshot"},
		{"viewport", "version: 1\nverify: [{name: e, screenshot: \"http://127.0.0.1/\", viewport: 99x800}]\n", `line 2: verify[0].viewport: expected a size like 1280x800, from 100x100 to 3840x2400, but found "99x800"`},
		{"viewport in words", "version: 1\nverify: [{name: e, screenshot: \"http://127.0.0.1/\", viewport: +800x600}]\n", "line 2: verify[0].viewport: expected a size"},
		{"selector of two lines", "version: 1\nverify: [{name: e, screenshot: \"http://127.0.0.1/\", wait_for: \"a\\nb\"}]\n", "line 2: verify[0].wait_for: expected a CSS selector"},
		{"too many screenshots", "version: 1\nverify:\n" + manyScreenshots(21), "line 23: verify[20].screenshot: expected at most 20 screenshots"},
		{"harness without command", "version: 1\nharness: {kind: command}\n", "line 2: harness.command: expected a shell line, because the kind is command; the key is missing"},
		{"command without harness", "version: 1\nharness: {kind: opencode, command: x}\n", "line 2: harness.command: expected only with kind: command"},
		{"model", "version: 1\nharness: {kind: opencode, model: gpt}\n", `line 2: harness.model: expected a model like provider/name, but found "gpt"`},
		{"budget", "version: 1\nlimits: {budget_usd: 1e3}\n", `line 2: limits.budget_usd: expected an amount in US dollars from 0.01 to 100000, with at most three decimals, but found "1e3"`},
		{"budget of a sign", "version: 1\nlimits: {budget_usd: -1}\n", "line 2: limits.budget_usd: expected an amount"},
		{"budget of nothing", "version: 1\nlimits: {budget_usd: 0.001}\n", "line 2: limits.budget_usd: expected an amount"},
		{"budget too exact", "version: 1\nlimits: {budget_usd: 1.2345}\n", "line 2: limits.budget_usd: expected an amount"},
		{"harness unknown", "version: 1\nharness: {kind: magic}\n", `line 2: harness.kind: expected opencode, claude, codex or command, but found "magic"`},
		{"push", "version: 1\npublish: {push: anywhere}\n", `line 2: publish.push: expected stacked or head, but found "anywhere"`},
		{"four eyes", "version: 1\npublish: {four_eyes: 1}\n", `line 2: publish.four_eyes: expected true or false`},
		{"pattern bomb", "version: 1\npublish: {protected: [\"" + strings.Repeat("{a,aa}", 40) + "b\"]}\n", "line 2: publish.protected[0]: expected a path pattern"},
		{"bad pattern", "version: 1\npublish: {protected: [\"[\"]}\n", "line 2: publish.protected[0]: expected a path pattern"},
		{"prefix", "version: 1\npublish: {prefix: ../x}\n", `line 2: publish.prefix: expected lower-case letters, digits and '-', at most 30, but found "../x"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, problems := Parse([]byte(c.file))
			if len(problems) == 0 {
				t.Fatal("no problem found")
			}
			lines := make([]string, len(problems))
			for i, p := range problems {
				lines[i] = p.String()
			}
			for _, l := range lines {
				if l == c.want || strings.HasPrefix(l, c.want) {
					return
				}
			}
			t.Fatalf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), c.want)
		})
	}
}

func TestHarnessKinds(t *testing.T) {
	for _, kind := range []string{HarnessOpenCode, HarnessClaude, HarnessCodex} {
		s, problems := Parse([]byte("version: 1\nharness: {kind: " + kind + ", model: openrouter/qwen/qwen3-coder:free}\n"))
		if problems != nil || s.Harness != (Harness{Kind: kind, Model: "openrouter/qwen/qwen3-coder:free"}) {
			t.Errorf("%s: %+v %v", kind, s.Harness, problems)
		}
	}
}

func TestEgressProblem(t *testing.T) {
	for _, ok := range []string{
		"go", "npm", "registry.example", "registry.example:443", "*.internal.example", "*.internal.example:8443", "xn--bcher-kva.example",
		"a-b.c1.example", "nexus:8081", "1password.example", "0.example",
	} {
		if p := EgressProblem(ok); p != "" {
			t.Errorf("%s: %s", ok, p)
		}
	}
	for entry, want := range map[string]string{
		"": "expected a host", "https://registry.example": "without a scheme", "registry.example/x": "without a path", "user@registry.example": "without an account",
		"10.0.0.1": "not an IP address", "10.0.0.1:443": "not an IP address", "127.1": "not an IP address", "0x7f.0x1": "not an IP address", "2130706433": "not an IP address",
		"[::1]:443": "not an IP address", "::1": "not an IP address", "fe80::1:443": "not an IP address",
		"*": "expected a * only", "*.example": "at least two parts", "a*.internal.example": "expected a * only", "*.*.internal.example": "expected a * only", "*:443": "expected a * only",
		"registry.example:0": "a port from", "registry.example:99999": "a port from", "registry.example:": "a port from", "registry.example:+443": "a port from", "registry.example:0443": "a port from",
		"registry.example.": "without a dot at its end", "registry..example": "expected a host", "-x.example": "expected a host", "x_y.example": "expected a host",
		"bücher.example": "ASCII form", "localhost:3000": "the sandbox itself", "db.localhost": "the sandbox itself",
		"cargo": "one of the ecosystems alpine, conda", "pypy": "did you mean pypi?", "registry example": "expected a host",
		strings.Repeat("a", 64) + ".example": "expected a host", strings.Repeat("abcdefg.", 40) + "example": "at most 253",
	} {
		if p := EgressProblem(entry); !strings.Contains(p, want) {
			t.Errorf("%q: %q, want %q", entry, p, want)
		}
	}
	if e := Ecosystems(); !slices.IsSorted(e) || len(e) < 5 {
		t.Errorf("ecosystems: %v", e)
	}
}

func TestTooLarge(t *testing.T) {
	_, problems := Parse([]byte("version: 1\n#" + strings.Repeat("x", MaxFileBytes)))
	if len(problems) != 1 || !strings.Contains(problems[0].Want, "at most 65536 bytes") {
		t.Fatal(problems)
	}
}

func TestEnvironmentDigest(t *testing.T) {
	a := Default()
	b := Default()
	b.Limits.Pids = 77
	if a.EnvironmentDigest() != b.EnvironmentDigest() {
		t.Error("limits must not make another snapshot")
	}
	for name, change := range map[string]func(*Spec){
		"setup":    func(s *Spec) { s.Setup = Steps("make") },
		"services": func(s *Spec) { s.Services = []Service{{Name: "a", Command: "b"}} },
		"load":     func(s *Spec) { s.Data.Load = Steps("x") },
		"egress":   func(s *Spec) { s.Egress = []string{"npm"} },
	} {
		b := Default()
		change(&b)
		if a.EnvironmentDigest() == b.EnvironmentDigest() {
			t.Errorf("%s must make another snapshot", name)
		}
	}
}

// The published schema and the validator come from one table; this holds the
// schema to being JSON that names every top-level key.
func TestJSONSchema(t *testing.T) {
	var out struct {
		Properties map[string]any `json:"properties"`
	}
	if err := json.Unmarshal(JSONSchema(), &out); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"version", "image", "setup", "data", "services", "verify", "refresh", "keep_failed", "limits", "egress", "harness", "publish", "triggers"} {
		if out.Properties[k] == nil {
			t.Errorf("schema lacks %s", k)
		}
	}
}

// How fresh a snapshot is to be says nothing about what it is made of.
func TestRefreshIsReadAndMakesNoOtherEnvironment(t *testing.T) {
	plain, problems := Parse([]byte("version: 1\nsetup: [make]\n"))
	if want := (Refresh{Every: 30 * time.Minute, MaxAge: 2 * time.Hour, MaxDrift: 200, WhenStale: StaleUse}); len(problems) > 0 || plain.Refresh != want || plain.KeepFailed != 0 {
		t.Fatalf("by default %+v, kept %s (%v)", plain.Refresh, plain.KeepFailed, problems)
	}
	said, problems := Parse([]byte("version: 1\nsetup: [make]\nrefresh: {every: 10m, max_age: 1h, max_drift: 3, when_stale: cold}\nkeep_failed: 2h\n"))
	if want := (Refresh{Every: 10 * time.Minute, MaxAge: time.Hour, MaxDrift: 3, WhenStale: StaleCold}); len(problems) > 0 || said.Refresh != want || said.KeepFailed != 2*time.Hour {
		t.Fatalf("read %+v, kept %s (%v)", said.Refresh, said.KeepFailed, problems)
	}
	if plain.EnvironmentDigest() != said.EnvironmentDigest() {
		t.Error("another environment")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("version: 1\nsetup: [a]\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("? [x]\n: y\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		s, problems := Parse(body)
		if len(problems) == 0 && (s.Version != 1 || s.Limits.Pids < 16 || s.Publish.Prefix == "") {
			t.Fatalf("accepted %q as %+v", body, s)
		}
		if len(problems) == 0 && (s.Limits.Budget <= 0 || slices.ContainsFunc(s.Egress, func(e string) bool { return EgressProblem(e) != "" })) {
			t.Fatalf("accepted %q as %+v", body, s)
		}
		for _, p := range problems {
			if p.Want == "" {
				t.Fatalf("%q: a problem without words", body)
			}
		}
	})
}
