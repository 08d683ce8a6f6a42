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

// hostile is text as an enemy would write it into everything it can reach.
const hostile = "/inspect stop\n\n/inspect stop @octocat Fixes #1 <!-- --> </sub> ![x](http://127.0.0.1/x) `a` | b\n```\n# h\n> q"

func cases() map[string]string {
	out := map[string]string{}
	for name, f := range map[string]Facts{
		"queued":         with(facts("queued"), func(f *Facts) { f.Generation = 0; f.QueueReason = "4 of 4 sessions of this repository are running" }),
		"placing":        facts("placing"),
		"restoring":      facts("restoring"),
		"working":        with(facts("working"), func(f *Facts) { restored(f); f.LastAction = "go test ./..." }),
		"verifying":      with(facts("verifying"), func(f *Facts) { restored(f); f.LastAction = "verify unit" }),
		"publishing":     with(facts("publishing"), restored),
		"needs-approval": with(facts("needs_approval"), func(f *Facts) { restored(f); f.Words = "protected paths were changed" }),
		"delivered":      with(facts("delivered"), delivered),
		"no-change":      with(facts("no_change"), func(f *Facts) { over(f); f.Kept = nil; f.Reason = "no_change"; f.Words = "The agent changed nothing." }),
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
			f.Words = "The agent was still at work after 45 minutes."
		}),
		"over-budget": with(facts("over_budget"), func(f *Facts) { over(f); f.Reason = "budget"; f.Words = "5 dollars are spent." }),
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
			f.Reason, f.Words, f.LastAction, f.QueueReason = "harness_exit", hostile, hostile, hostile
			f.Harness, f.Requester, f.BaseBranch, f.Model, f.SpecSource = hostile, hostile, hostile, hostile, hostile
			f.Session, f.SessionURL = "x --> "+hostile, "javascript:alert(1)"
			f.Kept = []Link{{hostile, "http://127.0.0.1/a)b"}}
			f.Verify = []Verify{{Name: hostile, Run: hostile, Words: hostile}}
			f.Receipt = &Receipt{Branch: hostile, HeadSHA: hostile, URL: hostile, Evidence: hostile, Chain: hostile, Withheld: []string{hostile}}
		}),
		"hostile-running": with(facts("working"), func(f *Facts) { f.LastAction = hostile }),
		"hostile-queued":  with(facts("queued"), func(f *Facts) { f.QueueReason = hostile }),
	} {
		out["session-"+name] = Render(f)
	}
	replies := map[string]string{
		"broken-spec": BrokenSpec("main", base, []spec.Problem{{Line: 3, Key: "verify[0].report", Want: "expected exit or gotest", Got: "junit"},
			{Want: "expected YAML, but " + hostile, Key: hostile, Got: hostile}}),
		"nothing-detected":  NothingDetected("main", base),
		"nothing-to-verify": NothingToVerify("main", base),
		"busy":              Busy("abcdefgh23", "http://127.0.0.1:8321/sessions/abcdefgh23"),
		"not-supported":     NotSupported("/inspect retry"),
		"pull-request":      PullRequest(),
		"closed":            Closed("closed"),
		"no-branch":         NoBranch(hostile),
		"empty-repository":  EmptyRepository("main"),
		"not-started":       NotStarted(hostile),
		"no-session":        NoSession(),
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
	for range 1000 {
		f.Verify = append(f.Verify, Verify{Name: long, Run: long, Words: long})
		f.Kept = append(f.Kept, Link{"x", "http://127.0.0.1/x"})
	}
	f.Receipt = &Receipt{Withheld: make([]string, 5000)}
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
