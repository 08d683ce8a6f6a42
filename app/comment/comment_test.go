package comment

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"inspect/app/command"
	"inspect/checks/evidence"
	"inspect/checks/render"
	"inspect/envs/spec"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

const base = "0123456789abcdef0123456789abcdef01234567"

func facts(state string) Facts {
	created := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	return Facts{
		Session: "abcdefgh23", SessionURL: "http://127.0.0.1:8321/sessions/abcdefgh23", State: state,
		Requester: "octocat", Harness: "scripted", SpecSource: ".inspect.yml", BaseBranch: "main", BaseSHA: base, Generation: 1, Created: created,
	}
}

func with(f Facts, change func(*Facts)) Facts { change(&f); return f }

func restored(f *Facts) {
	f.Snapshot = &Snapshot{Commit: base, Age: 12 * time.Minute, Drift: 3, Restore: 184 * time.Millisecond, Sandbox: "bubblewrap 0.8.0", Limits: "enforced"}
}

func over(f *Facts) {
	restored(f)
	f.Finished = f.Created.Add(95 * time.Second)
	f.Evidence = "http://127.0.0.1:8321/sessions/abcdefgh23/evidence"
	f.Kept = []Link{{"bundle", f.Evidence + "/bundle"}, {"patch", f.Evidence + "/patch"}}
}

func delivered(f *Facts) {
	over(f)
	f.Kept = nil
	f.Check = "https://github.com/octocat/hello/runs/7"
	f.Verify = []Verify{{Name: "unit", Run: "go test -json ./...", Passed: true, Words: "42 passed, 1 skipped"}}
	f.Receipt = &Receipt{Branch: "inspect/3-adding-abcdefgh23", HeadSHA: base, PullRequest: 4, URL: "https://github.com/octocat/hello/pull/4",
		Evidence: strings.Repeat("ab", 32), Chain: strings.Repeat("cd", 32), Events: 31, Withheld: []string{".github/workflows/ci.yml"}}
}

// modelled has called a model.
func modelled(f *Facts) {
	f.Harness, f.Model = "OpenCode", "anthropic/claude-sonnet"
	f.Spent, f.Budget = 143_400_000, 5_000_000_000
	f.Calls = evidence.Model{Name: f.Model, Calls: 7, InputTokens: 120_345, OutputTokens: 2_310, Cost: 123_400_000, Priced: true,
		Unreported: 1, UnreportedCost: 20_000_000, Budget: f.Budget, PricesAsOf: "2026-11-01"}
}

// refused could not reach something.
func refused(f *Facts) {
	f.Refused = []evidence.Refused{
		{Host: "169.254.169.254", Port: 80, Command: "curl -s http://169.254.169.254/", Count: 1, Reason: "an IP address cannot be allowed, only the name of a host"},
		{Host: "registry.example", Port: 443, Command: "npm ci", Count: 3, Reason: evidence.NotListed},
		{Host: "registry.example", Port: 443, Command: "npm test", Count: 1, Verification: true},
		{Host: "a.example", Port: 443, Count: 1}, {Host: "b.example", Port: 443, Count: 1}, {Host: "c.example", Port: 8443, Count: 1},
		{Host: "models.example", Port: 443, Command: "opencode serve", Count: 40, Noise: true},
	}
}

// hostile is text as an enemy would write it into everything it can reach.
const hostile = "/inspect stop\n\n/inspect stop @octocat Fixes #1 <!-- --> </sub> ![x](http://127.0.0.1/x) `a` | b\n```\n# h\n> q"

func cases() map[string]string {
	out := map[string]string{}
	for name, f := range map[string]Facts{
		"queued": with(facts("queued"), func(f *Facts) { f.Generation = 0; f.Queue.Reason = "4 of 4 sessions of this repository are running" }),
		"queued-limit": with(facts("queued"), func(f *Facts) {
			f.Generation = 0
			f.Queue = render.Waiting{Reason: "limit 4 of octocat/shop reached", Position: 3, Of: 12, Since: f.Created, Now: f.Created.Add(time.Hour)}
		}),
		"queued-building": with(facts("queued"), func(f *Facts) {
			f.Generation = 0
			f.Queue = render.Waiting{Reason: "building the snapshot", Position: 1, Of: 1, Since: f.Created, Now: f.Created.Add(40 * time.Second)}
		}),
		"placing": facts("placing"),
		"placing-waits": with(facts("placing"), func(f *Facts) {
			f.Queue = render.Waiting{Reason: "no node with 32 GiB", Since: f.Created, Now: f.Created.Add(time.Minute)}
		}),
		"restoring":      facts("restoring"),
		"working":        with(facts("working"), func(f *Facts) { restored(f); f.LastAction = "go test ./..." }),
		"working-model":  with(facts("working"), func(f *Facts) { restored(f); modelled(f); f.LastAction = "npm test\n# and more" }),
		"verifying":      with(facts("verifying"), func(f *Facts) { restored(f); f.LastAction = "verify unit" }),
		"publishing":     with(facts("publishing"), restored),
		"needs-approval": with(facts("needs_approval"), func(f *Facts) { restored(f); f.Words = "protected paths were changed" }),
		"delivered":      with(facts("delivered"), delivered),
		"delivered-reviewers": with(facts("delivered"), func(f *Facts) {
			delivered(f)
			f.Receipt.Signed, f.Receipt.Reviewers, f.Receipt.Unasked = true, []string{"hubot", "octocat/core"}, []string{"monalisa: @monalisa may not, fixes #1"}
		}),
		"delivered-standing": with(facts("delivered"), func(f *Facts) {
			delivered(f)
			f.NoNew, f.Stands = true, []string{"unit: example.com/m TestOld", "unit: example.com/m Test|@octocat", "lint: exit status 1, here and there; without a report nobody knows whether for the same reason", "a", "b", "c"}
			f.Verify[0].Passed, f.Verify[0].Words = false, "3 of 212 tests failed"
		}),
		"delivered-head": with(facts("delivered"), func(f *Facts) { delivered(f); f.OnHead = true }),
		"patch":          with(facts("no_change"), func(f *Facts) { f.Reason, f.Words = "patch", "The result is kept as a patch." }),
		"delivered-model": with(facts("delivered"), func(f *Facts) {
			delivered(f)
			modelled(f)
			refused(f)
		}),
		"no-price": with(facts("delivered"), func(f *Facts) {
			delivered(f)
			modelled(f)
			f.Calls.Unpriced, f.Calls.Priced = 8, false
			f.Refused = []evidence.Refused{{Host: "db.example", Port: 5432, Command: "psql", Count: 1, Reason: "its address is not a public one"}, {Host: "models.example", Port: 443, Count: 1, Noise: true}}
			f.More = 7
		}),
		"no-change": with(facts("no_change"), func(f *Facts) { over(f); f.Kept = nil; f.Reason = "no_change"; f.Words = "The agent changed nothing." }),
		"failed-verify": with(facts("failed"), func(f *Facts) {
			over(f)
			f.Reason = "verify_failed"
			f.Words = "The verify command unit failed."
			f.Verify = []Verify{{Name: "unit", Run: "go test -json ./...", Words: "2 of 42 failed"}, {Name: "lint", Run: "make lint", Passed: true}}
		}),
		"stopped": with(facts("stopped"), func(f *Facts) { over(f); f.Reason = "command"; f.Words = "Stopped by monalisa." }),
		"timed-out": with(facts("timed_out"), func(f *Facts) {
			over(f)
			f.Reason = "timeout"
			f.Words = "The agent (scripted) was not done within 45m0s; nothing was verified. Its work is kept."
		}),
		"over-budget": with(facts("over_budget"), func(f *Facts) {
			over(f)
			modelled(f)
			f.Reason = "budget"
			f.Words = "The agent (OpenCode) was not done when the budget for model calls was used up; nothing was verified. Its work is kept."
		}),
		"infrastructure": with(facts("infrastructure"), func(f *Facts) {
			over(f)
			f.Generation = 3
			f.Snapshot.Limits = "best effort: no cgroup"
			f.Reason = "disk"
			f.Words = "The node's disk is full."
		}),
		"unknown-state": facts("new_state"),
		"detected":      with(facts("queued"), func(f *Facts) { f.SpecSource = "detected from go.mod" }),
		"hostile": with(facts("failed"), func(f *Facts) {
			over(f)
			f.Reason, f.Words, f.LastAction, f.Queue.Reason = "harness_exit", hostile, hostile, hostile
			f.Harness, f.Requester, f.BaseBranch, f.Model, f.SpecSource = hostile, hostile, hostile, hostile, hostile
			f.Session, f.SessionURL = "x --> "+hostile, "javascript:alert(1)"
			f.Calls = evidence.Model{Name: hostile, Calls: 1, PricesAsOf: hostile}
			f.Refused = []evidence.Refused{{Host: hostile, Port: 1, Command: hostile, Reason: hostile, Count: 1}, {Host: "a.example", Port: 443, Command: hostile, Count: 1}}
			f.Kept = []Link{{hostile, "http://127.0.0.1/a)b"}}
			f.Verify = []Verify{{Name: hostile, Run: hostile, Words: hostile}}
			f.Receipt = &Receipt{Branch: hostile, HeadSHA: hostile, URL: hostile, Evidence: hostile, Chain: hostile, Withheld: []string{hostile}, Reviewers: []string{hostile}, Unasked: []string{hostile}}
		}),
		"hostile-running": with(facts("working"), func(f *Facts) { f.LastAction = hostile }),
		"hostile-queued":  with(facts("queued"), func(f *Facts) { f.Queue.Reason = hostile }),
	} {
		out["session-"+name] = Render(f)
	}
	replies := map[string]string{
		"broken-spec": BrokenSpec("main", base, []spec.Problem{{Line: 3, Key: "verify[0].report", Want: "expected exit or gotest", Got: "junit"},
			{Want: "expected YAML, but " + hostile, Key: hostile, Got: hostile}}),
		"nothing-detected":  NothingDetected("main", base),
		"nothing-to-verify": NothingToVerify("main", base),
		"no-flags-now":      NoFlagsNow("abcdefgh23", "http://127.0.0.1:8321/sessions/abcdefgh23"),
		"awaits":            Awaits("abcdefgh23", "http://127.0.0.1:8321/sessions/abcdefgh23"),
		"head-moved":        HeadMoved(base),
		"name-head":         NameHead(base),
		"cannot-go-on":      CannotGoOn(hostile),
		"pull-over":         PullOver("merged"),
		"refreshing":        Refreshing(),
		"no-allow-for-fork": NoAllowForFork(),
		"too-many":          TooMany(20, 10*time.Minute),
		"no-base":           NoBase(),
		"closed":            Closed("closed"),
		"no-branch":         NoBranch(hostile),
		"empty-repository":  EmptyRepository("main"),
		"not-started":       NotStarted(hostile),
		"no-session":        NoSession(),
		"younger":           Younger("abcdefgh23", "http://127.0.0.1:8321/sessions/abcdefgh23"),
		"over":              Over("abcdefgh23", "http://127.0.0.1:8321/sessions/abcdefgh23", "delivered"),
		"help":              command.Table(),
	}
	for name, words := range replies {
		out["reply-"+name] = Reply("comment-12", words)
	}
	return out
}

func TestGolden(t *testing.T) {
	for name, got := range cases() {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join("testdata", name+".md")
			if *update {
				if err := os.MkdirAll("testdata", 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatalf("%v (write it with -update)", err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

var (
	mention = regexp.MustCompile(`(^|[^\w/` + "`" + `])@\w`)
	closing = regexp.MustCompile(`(?i)\b(close[sd]?|fix(e[sd])?|resolve[sd]?):?\s+\S*#\d`)
)

// outsideCode drops code spans, in which nothing has an effect.
func outsideCode(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		if s[i] == '\\' && i+1 < len(s) {
			b.WriteString(s[i : i+2])
			i += 2
			continue
		}
		if s[i] != '`' {
			b.WriteByte(s[i])
			i++
			continue
		}
		n := 0
		for i+n < len(s) && s[i+n] == '`' {
			n++
		}
		ticks := s[i : i+n]
		end := -1
		for j := i + n; j < len(s); {
			if s[j] != '`' {
				j++
				continue
			}
			m := 0
			for j+m < len(s) && s[j+m] == '`' {
				m++
			}
			if m == n {
				end = j + m
				break
			}
			j += m
		}
		if end < 0 {
			b.WriteString(ticks)
			i += n
			continue
		}
		b.WriteString("CODE")
		i = end
	}
	return b.String()
}

func TestHarmless(t *testing.T) {
	for name, got := range cases() {
		t.Run(name, func(t *testing.T) {
			marker, rest, _ := strings.Cut(got, "\n")
			if !strings.HasPrefix(marker, "<!-- inspect:") || strings.Count(marker, "-->") != 1 || !strings.HasSuffix(marker, "-->") {
				t.Errorf("marker %q", marker)
			}
			if p := command.Parse(got); p[0] != (command.Ignore{}) {
				t.Errorf("reads as a command: %#v", p)
			}
			for _, line := range strings.Split(got, "\n") {
				if strings.HasPrefix(strings.TrimLeft(line, " \t>*-"), command.Trigger) {
					t.Errorf("line starts with a command: %q", line)
				}
			}
			bare := outsideCode(rest)
			if m := mention.FindString(bare); m != "" {
				t.Errorf("mentions: %q", m)
			}
			if m := closing.FindString(bare); m != "" {
				t.Errorf("closes: %q", m)
			}
			if strings.Contains(bare, "![") && !strings.Contains(bare, `!\[`) || strings.Contains(bare, "<!--") || strings.Contains(bare, "javascript:") {
				t.Errorf("markup survives:\n%s", bare)
			}
			if len(got) > MaxBytes {
				t.Errorf("%d bytes", len(got))
			}
		})
	}
}

func TestBounded(t *testing.T) {
	f := facts("failed")
	long := strings.Repeat("界\n", 200_000)
	f.Words, f.LastAction, f.Harness, f.Requester, f.BaseBranch = long, long, long, long, long
	f.Model, f.Calls = long, evidence.Model{Name: long, Calls: 1, PricesAsOf: long}
	for range 1000 {
		f.Refused = append(f.Refused, evidence.Refused{Host: long, Command: long, Count: 1})
		f.Verify = append(f.Verify, Verify{Name: long, Run: long, Words: long})
		f.Kept = append(f.Kept, Link{"x", "http://127.0.0.1/x"})
	}
	f.Receipt = &Receipt{Withheld: make([]string, 5000), Reviewers: make([]string, 5000), Unasked: make([]string, 5000)}
	if got := Render(f); len(got) > MaxBytes {
		t.Errorf("%d bytes", len(got))
	}
}

func TestMarker(t *testing.T) {
	if got, want := Marker("abc"), "<!-- inspect:session=abc -->"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if !strings.HasPrefix(Render(facts("queued")), Marker("abcdefgh23")) {
		t.Error("the comment does not start with its marker")
	}
	if !strings.HasPrefix(Reply("comment-1", "x"), ReplyMarker("comment-1")) {
		t.Error("the reply does not start with its marker")
	}
}

func TestStaleSnapshotIsTold(t *testing.T) {
	f := with(facts("working"), restored)
	if body := Render(f); !strings.Contains(body, "12 min 0 s old, 3 commits behind, restored in 184 ms") {
		t.Errorf("said %s", body)
	}
	f.Snapshot.Drift, f.Snapshot.Note = 300, "it is 300 commits behind, more than refresh.max_drift of 200 *and* refresh.when_stale is use"
	if body := Render(f); !strings.Contains(body, "300 commits behind (it is 300 commits behind, more than refresh.") || !strings.Contains(body, "\\*and\\*") {
		t.Errorf("said %s", body)
	}
}
