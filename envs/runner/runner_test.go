package runner

import (
	"strings"
	"testing"

	"inspect/envs/wire"
)

func TestVerified(t *testing.T) {
	w := newWorld(t)
	o := w.outcome()
	if o.Kind != wire.OutcomeVerified || o.Reason != "" {
		t.Fatalf("outcome %+v", o)
	}
	if len(o.Results) != 1 || o.Results[0].ExitCode != 0 || o.Results[0].Name != "state" {
		t.Errorf("results %+v", o.Results)
	}
	if got := string(w.control.artifacts[o.Results[0].Stdout]); got != "fine\n" {
		t.Errorf("stdout artifact %q", got)
	}
	if got := string(w.control.artifacts[o.Results[0].Stderr]); got != "careful\n" {
		t.Errorf("stderr artifact %q", got)
	}
	if got := string(w.control.artifacts[o.Patch]); !strings.Contains(got, "-bad\n+good\n") {
		t.Errorf("patch %q", got)
	}
	dir := w.unbundle(o.Bundle)
	if got := w.file(dir, "state.txt"); got != "good\n" {
		t.Errorf("state.txt in the bundle is %q", got)
	}
	head, err := hostGit(dir, "git", "rev-parse", "HEAD", "HEAD^{tree}", "HEAD~1")
	if err != nil {
		t.Fatal(err)
	}
	if want := o.Tip + "\n" + o.Tree + "\n" + w.sample.second; head != want {
		t.Errorf("tip, tree, parent are\n%s\nthe outcome says\n%s", head, want)
	}
	if author, err := hostGit(dir, "git", "log", "-1", "--format=%an <%ae> %cn"); err != nil || author != "inspect[bot] <1+inspect[bot]@users.noreply.github.com> inspect[bot]" {
		t.Errorf("author %q, %v", author, err)
	}
	// What setup left untracked is no part of the result.
	if files, err := hostGit(dir, "git", "ls-tree", "--name-only", "HEAD"); err != nil || strings.Contains(files, "left over") {
		t.Errorf("files %q, %v", files, err)
	}
	var phases []string
	for _, e := range w.control.events() {
		if e.Kind == wire.EventPhase {
			phases = append(phases, string(e.Data))
		}
	}
	if got := strings.Join(phases, " "); got != `{"phase":"restoring"} {"phase":"working"} {"phase":"verifying"}` {
		t.Errorf("phases %s", got)
	}
	if got := w.control.texts(wire.EventOutput); !strings.Contains(got, "the test fails at state_test.go:3") {
		t.Errorf("the agent's output: %s", got)
	}
	if o.Times.Restore <= 0 || o.Times.Sync <= 0 || o.Times.Work <= 0 || o.Times.Bundle <= 0 || o.Times.VerifyRestore <= 0 || o.Times.Verify <= 0 {
		t.Errorf("times %+v", o.Times)
	}
}

func TestCommitsThatChangeNothing(t *testing.T) {
	w := newWorld(t)
	w.spec.Harness.Command = []string{"git", "commit", "-q", "--allow-empty", "-m", "Nothing"}
	if o := w.outcome(); o.Kind != wire.OutcomeNoChange || o.Bundle != "" {
		t.Fatalf("outcome %+v", o)
	}
	if notes := w.control.texts(wire.EventNote); !strings.Contains(notes, "change no file") {
		t.Errorf("notes %s", notes)
	}
}
