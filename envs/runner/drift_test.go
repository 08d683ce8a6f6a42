package runner

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"inspect/envs/wire"
)

// makeDrift makes a repository whose second commit changes manifests, with a
// third that has nothing to do with it.
var makeDrift = sync.OnceValues(func() (sample, error) {
	s := sample{snapshot: filepath.Join(theDir, "drift-snapshot"), mirror: filepath.Join(theDir, "drift-mirror.git")}
	script := `set -e
git init -q -b main "$1"; cd "$1"
mkdir -p web node_modules/x docs
echo bad >state.txt; echo one >web/package.json; echo one >go.mod; echo one >node_modules/x/package.json; echo one >docs/text
ln -s go.mod Gemfile
git add -fA; git commit -q -m first
git clone -q "$1" "$2"
for f in web/package.json node_modules/x/package.json docs/text state.txt; do echo two >$f; done
echo bad >state.txt; printf 'locked\n' >'web/yarn.lock'
git add -fA; git commit -q -m second
git checkout -q --orphan other; echo three >go.mod; git add -fA; git commit -q -m third
git checkout -q main
git clone -q --bare "$1" "$3"
`
	if _, err := hostGit("/", "sh", "-c", script, "sh", filepath.Join(theDir, "drift-origin"), s.snapshot, s.mirror); err != nil {
		return s, err
	}
	var err error
	if s.first, err = hostGit(s.snapshot, "git", "rev-parse", "HEAD"); err != nil {
		return s, err
	}
	s.second, err = hostGit(s.mirror, "git", "rev-parse", "main")
	return s, err
})

// newDrift is a world whose session begins at the second commit.
func newDrift(t *testing.T, setup ...string) *world {
	t.Helper()
	s, err := makeDrift()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.sample, w.node.sample = s, s
	w.spec.BaseSHA, w.spec.SnapshotCommit = s.second, s.first
	// The agent tells what it finds of setup.
	w.spec.Harness.Command = []string{"sh", "-c", `echo good >state.txt; echo "the agent finds $(cat "$HOME/ran" 2>/dev/null | tr '\n' ' ')."; git status --porcelain | sed "s/^/changed /"`}
	w.spec.Verify = []wire.Verify{{Name: "ran", Run: `cat "$HOME/ran"; git status --porcelain`, Report: "exit"}}
	for _, line := range setup {
		w.spec.Setup = append(w.spec.Setup, wire.Step{Run: line})
	}
	return w
}

// drifted is the one event of that kind.
func (w *world) drifted() wire.Drifted {
	w.t.Helper()
	var out []wire.Drifted
	for _, e := range w.control.events() {
		if e.Kind == wire.EventDrift {
			var d wire.Drifted
			if err := json.Unmarshal(e.Data, &d); err != nil {
				w.t.Fatal(err)
			}
			out = append(out, d)
		}
	}
	if len(out) != 1 {
		w.t.Fatalf("%d events of drift", len(out))
	}
	return out[0]
}

// leaves is a step that leaves its name, with a program of its ecosystem.
func leaves(name, program string) string { return `echo ` + name + ` >>"$HOME/ran"; # ` + program }

func shaOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// A changed manifest has the steps it concerns run again, in the agent's clone
// and in the one for verification, before anything else happens there; what
// they do to tracked files and leave beside them is not part of the result.
func TestChangedManifestRunsSetupAgain(t *testing.T) {
	w := newDrift(t, leaves("a", "go"), leaves("b", "npm"), leaves("c", "echo")+"\necho x >>docs/text; echo left >left-by-setup")
	o := w.outcome()
	if o.Kind != wire.OutcomeVerified || o.Results[0].ExitCode != 0 {
		t.Fatalf("%+v", o)
	}
	d := w.drifted()
	if !slices.Equal(d.Manifests, []string{"web/package.json", "web/yarn.lock"}) || len(d.Steps) != 2 || !strings.Contains(d.Steps[0], "echo b") {
		t.Errorf("%+v", d)
	}
	want := []wire.Lockfile{{Path: "go.mod", SHA256: shaOf("one\n")}, {Path: "web/package.json", SHA256: shaOf("two\n")}, {Path: "web/yarn.lock", SHA256: shaOf("locked\n")}}
	if !slices.Equal(d.Lockfiles, want) {
		t.Errorf("lockfiles %+v", d.Lockfiles)
	}
	if got := w.control.texts(wire.EventOutput); !strings.Contains(got, "the agent finds b c .") || strings.Contains(got, "docs/text") {
		t.Errorf("the agent says %s", got)
	}
	if got := string(w.control.artifacts[o.Results[0].Stdout]); !strings.HasPrefix(got, "b\nc\n") || strings.Contains(got, "docs/text") {
		t.Errorf("verification says %q", got)
	}
	result := w.unbundle(o.Bundle)
	if _, err := os.Stat(filepath.Join(result, "left-by-setup")); err == nil || w.file(result, "docs/text") != "two\n" {
		t.Error("what setup did is in the result")
	}
	// Before the first prompt.
	var order []string
	for _, e := range w.control.events() {
		if e.Kind == wire.EventDrift || e.Kind == wire.EventOutput || e.Kind == wire.EventCommand && strings.Contains(string(e.Data), `"step":"setup"`) {
			order = append(order, e.Kind)
		}
	}
	if got := strings.Join(order, " "); !strings.HasPrefix(got, "drift command command output") {
		t.Errorf("order: %s", got)
	}
}

func TestDriftWithoutSetup(t *testing.T) {
	for name, c := range map[string]struct {
		change    func(*world)
		setup     string
		manifests int
		note      string
		runs      bool
	}{
		"no drift":         {func(w *world) { w.spec.BaseSHA = w.sample.first }, leaves("a", "npm"), 0, "", false},
		"nobody's step":    {func(*world) {}, leaves("a", "echo"), 2, "", true},
		"no setup":         {func(*world) {}, "", 2, "", false},
		"another history":  {func(w *world) { w.spec.BaseSHA = w.rev("other") }, leaves("a", "echo"), 0, "no commit in common", true},
		"snapshot unknown": {func(w *world) { w.node.commit = strings.Repeat("ab", 20) }, leaves("a", "echo"), 0, "is not in its own repository", true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newDrift(t)
			if c.setup != "" {
				w.spec.Setup = []wire.Step{{Run: c.setup}}
			}
			w.spec.Verify = nil
			c.change(w)
			if o := w.outcome(); o.Kind != wire.OutcomeVerified {
				t.Fatalf("%+v", o)
			}
			d := w.drifted()
			if len(d.Manifests) != c.manifests || len(d.Steps) > 0 != c.runs || len(d.Lockfiles) < 2 {
				t.Errorf("%+v", d)
			}
			notes := w.control.texts(wire.EventNote)
			if c.note == "" && strings.Contains(notes, "snapshot's commit") || !strings.Contains(notes, c.note) {
				t.Errorf("notes: %s", notes)
			}
			if got := strings.Contains(w.control.texts(wire.EventOutput), "the agent finds a ."); got != c.runs {
				t.Errorf("the agent says %s", w.control.texts(wire.EventOutput))
			}
		})
	}
}

// rev is the commit of a branch of the mirror.
func (w *world) rev(branch string) string {
	w.t.Helper()
	out, err := hostGit(w.sample.mirror, "git", "rev-parse", branch)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// A step that fails ends the attempt, with its last words.
func TestSetupThatFailsAgain(t *testing.T) {
	for name, c := range map[string]struct {
		setup  string
		change func(*world)
		words  []string
	}{
		"status":    {"echo npm says no; exit 7", nil, []string{"Setup step 1 of 2", "exit status 7", "npm says no"}},
		"signal":    {"kill -9 $$ # npm", nil, []string{"SIGKILL"}},
		"not there": {"no-such-npm # npm", nil, []string{"exit status 127"}},
		"memory": {"npm=1; exec tail /dev/zero # npm", func(w *world) { w.node.limits.MemoryBytes = 128 << 20; w.spec.Limits.MemoryBytes = 128 << 20 },
			[]string{"memory limit of 128 MiB"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newDrift(t, c.setup+"\n# npm", leaves("b", "npm"))
			if c.change != nil {
				c.change(w)
			}
			o := w.outcome()
			if o.Kind != wire.OutcomeFailed || o.Reason != wire.ReasonSetup || o.Bundle != "" {
				t.Errorf("%+v", o)
			}
			for _, want := range c.words {
				if !strings.Contains(o.Words, want) {
					t.Errorf("words lack %q: %s", want, o.Words)
				}
			}
			if got := w.control.texts(wire.EventOutput); strings.Contains(got, "the agent finds") {
				t.Error("the agent was given its prompt all the same")
			}
		})
	}
}

// What setup may reach, and its secrets, are not the agent's.
func TestSetupReachesWhatTheAgentMayNot(t *testing.T) {
	w := newDrift(t)
	at := withEgress(t, w, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, "package") }))
	w.spec.SetupEgress, w.spec.Egress = w.spec.Egress, nil
	fetch := "curl -sSfkm 20 https://" + at + "/"
	w.spec.Setup = []wire.Step{{Run: fetch + ` >"$HOME/ran"; # npm`}}
	w.spec.Harness.Command = []string{"sh", "-c", `echo good >state.txt; echo "the agent finds $(cat "$HOME/ran")"; ` + fetch + ` || echo refused`}
	w.spec.Verify = []wire.Verify{{Name: "ran", Run: `cat "$HOME/ran"; ` + fetch + ` || echo refused`, Report: "exit"}}
	o := w.outcome()
	if o.Kind != wire.OutcomeVerified || o.Results[0].ExitCode != 0 {
		t.Fatalf("%+v", o)
	}
	if got := w.control.texts(wire.EventOutput); !strings.Contains(got, "the agent finds package") || !strings.Contains(got, "refused") {
		t.Errorf("the agent says %s", got)
	}
	if got := string(w.control.artifacts[o.Results[0].Stdout]); got != "packagerefused\n" {
		t.Errorf("verification says %q", got)
	}
	told, _ := egressOf(t, w)
	if len(told) != 4 || !told[0].Allowed || told[1].Allowed || !told[2].Allowed || told[3].Allowed || told[1].Reason != wire.EgressNotListed {
		t.Errorf("%+v", told)
	}
	// Work, setup, work again, its taking; verification, setup, verification again.
	if w.node.starts["work"] != 4 || w.node.starts["verify"] != 3 {
		t.Errorf("sandboxes: %v", w.node.starts)
	}
}

func TestSecretsOfSetupAgain(t *testing.T) {
	if os.Geteuid() != 0 {
		return // nothing can run beside a sandbox
	}
	w := newDrift(t, "[ -z \"$NPM_TOKEN\" ]; # npm")
	w.spec.Setup = append(w.spec.Setup, wire.Step{Run: `[ ${#NPM_TOKEN} -gt 20 ] && echo "with $NPM_TOKEN"; echo b >>"$HOME/ran"`, Secrets: []string{"NPM_TOKEN"}})
	asked := w.giveSecrets(map[string]string{"NPM_TOKEN": registryToken})
	if o := w.outcome(); o.Kind != wire.OutcomeVerified || o.Results[0].ExitCode != 0 {
		t.Fatalf("%+v", o)
	}
	if got := asked(); !slices.Equal(got, []string{"NPM_TOKEN", "NPM_TOKEN"}) {
		t.Errorf("asked for %q", got)
	}
	for _, e := range w.control.events() {
		if strings.Contains(string(e.Data), registryToken) {
			t.Errorf("an event tells it: %s", e.Data)
		}
	}
	if notes := w.control.texts(wire.EventNote); !strings.Contains(notes, "Secrets handed to setup step 2 of 2: NPM_TOKEN.") {
		t.Errorf("notes: %s", notes)
	}
}

// A session forked from a turn goes on where that ended.
func TestForkGoesOn(t *testing.T) {
	w := newDrift(t, leaves("a", "npm"))
	w.spec.Fork = &wire.Fork{Session: "otherother", Generation: 1, Turn: 3}
	w.spec.Resume = &wire.Resume{SHA256: strings.Repeat("0", 64), Generation: 1}
	w.node.forked = `git fetch -q "$3" main; git checkout -q -B inspect/work FETCH_HEAD; git commit -q --allow-empty -m earlier
		echo untracked >by-the-agent; echo changed >docs/text; touch .git/index.lock`
	w.spec.Harness.Command = []string{"sh", "-c", `echo good >state.txt; git log -1 --format="after %s"; ls .git/*.lock; true`}
	o := w.outcome()
	if o.Kind != wire.OutcomeVerified || o.Results[0].ExitCode != 0 {
		t.Fatalf("%+v", o)
	}
	result := w.unbundle(o.Bundle)
	if w.file(result, "by-the-agent") != "untracked\n" || w.file(result, "docs/text") != "changed\n" || w.file(result, "state.txt") != "good\n" {
		t.Error("the work of the earlier turn is not in the result")
	}
	if got := w.control.texts(wire.EventOutput); !strings.Contains(got, "after earlier") || strings.Contains(got, "index.lock\n") {
		t.Errorf("the agent says %s", got)
	}
	if notes := w.control.texts(wire.EventNote); !strings.Contains(notes, "Going on from turn 3 of session otherother.") || strings.Contains(notes, "attempt") {
		t.Errorf("notes: %s", notes)
	}
	// The clone of the turn has had its setup; the one for verification has not.
	if d := w.drifted(); len(d.Steps) != 0 || len(d.Manifests) != 2 {
		t.Errorf("%+v", d)
	}
	if got := string(w.control.artifacts[o.Results[0].Stdout]); got != "a\n" {
		t.Errorf("verification says %q", got)
	}
}

func TestTurnsAreKept(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		note string
		most int // times it is asked
	}{
		"kept":        {nil, "", 9},
		"unsupported": {&wire.Error{Code: "unsupported", Message: "a copy"}, "", 1},
		"not granted": {&wire.Error{Code: "unauthorized", Message: "no"}, "", 1},
		"enough":      {&wire.Error{Code: "too_large", Message: "20 are kept"}, "and later ones cannot be returned to: too_large: 20 are kept.", 1},
		"trouble":     {&wire.Error{Code: "no_space", Message: "full"}, "The state after turn 1 was not kept", 9},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			var asked []int
			w.node.onTurn = func(turn int) error {
				asked = append(asked, turn)
				return c.err
			}
			// It commits, says so, and goes on until that was taken.
			w.opt.pace.turn = 20e6
			w.spec.Harness.Command = []string{"sh", "-c", `echo better >state.txt; git commit -qam one; while [ ! -e "$HOME/taken" ]; do sleep 0.02; done; echo good >state.txt; git commit -qam two`}
			w.beside(func() {
				w.control.await("a turn", func() bool { return len(w.control.turns) > 0 })
				if err := os.WriteFile(filepath.Join(w.node.clone("work"), "home/taken"), nil, 0o644); err != nil {
					t.Error(err)
				}
			})
			if o := w.outcome(); o.Kind != wire.OutcomeVerified {
				t.Fatalf("%+v", o)
			}
			if len(asked) == 0 || asked[0] != 1 || len(asked) > c.most || c.most > 1 && asked[len(asked)-1] != w.control.turns[len(w.control.turns)-1] {
				t.Errorf("asked for %v, bundles %v", asked, w.control.turns)
			}
			if notes := w.control.texts(wire.EventNote); !strings.Contains(notes, c.note) || c.note == "" && strings.Contains(notes, "turn") {
				t.Errorf("notes: %s", notes)
			}
		})
	}
}

// What a repository says of its objects is believed as far as it was asked.
func TestDigestsOfHostileAnswers(t *testing.T) {
	a, b := strings.Repeat("a", 40), strings.Repeat("b", 40)
	for name, c := range map[string]struct {
		says string
		want []string
	}{
		"two":         {a + " blob 3\none\n" + b + " blob 0\n\n", []string{shaOf("one"), shaOf("")}},
		"cut":         {a + " blob 3\none\n" + b + " blob 9\nx", []string{shaOf("one")}},
		"other order": {b + " blob 1\nx\n", nil},
		"missing":     {a + " missing\n", nil},
		"a tree":      {a + " tree 1\nx\n", nil},
		"negative":    {a + " blob -5\nx\n", nil},
		"huge":        {a + " blob 99999999999999999999\nx\n", nil},
		"more":        {a + " blob 1\nx\n" + b + " blob 1\ny\n" + b + " blob 1\nz\n", []string{shaOf("x"), shaOf("y")}},
		"no end":      {strings.Repeat("x", 1000), nil},
	} {
		for _, size := range []int{1, 7, 1 << 10} {
			d := &digests{want: []string{a, b}}
			for s := []byte(c.says); len(s) > 0; s = s[min(size, len(s)):] {
				if _, err := d.Write(s[:min(size, len(s))]); err != nil {
					break
				}
			}
			if !slices.Equal(d.sums, c.want) {
				t.Errorf("%s by %d: %q", name, size, d.sums)
			}
		}
	}
}

// A submodule that cannot be brought to where the session's commit has it is
// emptied: what the snapshot had there is no change of the agent's.
func TestSubmoduleThatCannotFollow(t *testing.T) {
	s := sample{snapshot: filepath.Join(theDir, "module-snapshot"), mirror: filepath.Join(theDir, "module-mirror.git")}
	script := `set -e
export GIT_ALLOW_PROTOCOL=file
git init -q -b main "$1-lib"; cd "$1-lib"; echo one >lib.txt; git add -A; git commit -q -m one
git init -q -b main "$1"; cd "$1"; echo bad >state.txt
git submodule --quiet add "$1-lib" lib; git add -A; git commit -q -m first
git clone -q --recurse-submodules "$1" "$2"
cd "$1-lib"; echo two >lib.txt; git commit -q -am two
cd "$1"; git -C lib pull -q; git add -A; git commit -q -m second
git clone -q --bare "$1" "$3"
`
	_, err := hostGit("/", "sh", "-c", script, "sh", filepath.Join(theDir, "module-origin"), s.snapshot, s.mirror)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.sample, w.node.sample = s, s
	for at, dir := range map[*string]string{&s.first: s.snapshot, &s.second: s.mirror} {
		if *at, err = hostGit(dir, "git", "rev-parse", "HEAD"); err != nil {
			t.Fatal(err)
		}
	}
	w.node.commit, w.spec.BaseSHA, w.spec.SnapshotCommit = s.first, s.second, s.first
	w.spec.Harness.Command = []string{"sh", "-c", `echo good >state.txt; echo "in lib: $(ls lib)."; git status --porcelain`}
	o := w.outcome()
	if o.Kind != wire.OutcomeVerified || o.Results[0].ExitCode != 0 {
		t.Fatalf("%+v", o)
	}
	if got := w.control.texts(wire.EventOutput); !strings.Contains(got, "in lib: .") || strings.Contains(got, "M lib") {
		t.Errorf("the agent says %s", got)
	}
	if notes := w.control.texts(wire.EventNote); !strings.Contains(notes, "The submodules could not be brought to where commit "+short12(s.second)+" has them") {
		t.Errorf("notes: %s", notes)
	}
	changed, err := hostGit(w.unbundle(o.Bundle), "git", "diff", "--name-only", s.second, "HEAD")
	if err != nil || changed != "state.txt" {
		t.Errorf("the result changes %q, %v", changed, err)
	}
}

// turns are what the runner told of its turns.
func (w *world) turns() (out []wire.Turn) {
	w.t.Helper()
	for _, e := range w.control.events() {
		if e.Kind == wire.EventTurn {
			var turn wire.Turn
			if err := json.Unmarshal(e.Data, &turn); err != nil {
				w.t.Fatal(err)
			}
			out = append(out, turn)
		}
	}
	return out
}

// A turn in which nothing is committed has a number too: its state is kept, and
// whoever returns to it finds the work before it.
func TestTurnsWithoutACommit(t *testing.T) {
	w := newWorld(t)
	var asked []int
	w.node.onTurn = func(turn int) error {
		asked = append(asked, turn)
		return os.WriteFile(filepath.Join(w.node.clone("work"), "home/taken"), nil, 0o644)
	}
	// The first prompt changes a file, the second commits it, the third does
	// nothing. Each but the last waits until it was taken.
	w.spec.Harness.Command = []string{"sh", "-c", `taken() { while [ ! -e "$HOME/taken" ]; do sleep 0.02; done; rm "$HOME/taken"; }
case $(cat) in
*prompt-c*) taken;;
*prompt-b*) taken; git commit -qam one;;
*prompt-a*) echo good >state.txt;;
esac`}
	w.spec.Prompt = "prompt-a"
	for _, text := range []string{"prompt-b", "prompt-c"} {
		w.control.order(wire.Directive{Kind: wire.DirectivePrompt, Prompt: &wire.PromptDirective{Text: text, Author: "hubot"}})
	}
	if o := w.outcome(); o.Kind != wire.OutcomeVerified {
		t.Fatalf("%+v", o)
	}
	got := w.turns()
	if len(got) != 3 || got[0].Turn != 1 || got[0].SHA256 != "" || got[0].Tip != w.spec.BaseSHA ||
		got[1].Turn != 2 || got[1].SHA256 == "" || got[2].Turn != 3 || got[2].Tip != got[1].Tip {
		t.Errorf("%+v", got)
	}
	if asked = slices.Compact(asked); !slices.Equal(asked, []int{1, 2, 3}) || !slices.Equal(w.control.turns, []int{2, 3}) {
		t.Errorf("kept were %v, bundles %v", asked, w.control.turns)
	}
}

// An agent that does nothing at all has had one turn.
func TestTurnOfAnAgentThatDoesNothing(t *testing.T) {
	w := newWorld(t)
	w.spec.Harness.Command = []string{"true"}
	if o := w.outcome(); o.Kind != wire.OutcomeNoChange {
		t.Fatalf("%+v", o)
	}
	if got := w.turns(); len(got) != 1 || got[0] != (wire.Turn{Turn: 1, Tip: w.spec.BaseSHA}) {
		t.Errorf("%+v", got)
	}
}
