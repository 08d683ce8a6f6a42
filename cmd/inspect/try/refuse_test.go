package try

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"inspect/envs/spec"
)

// refused runs a try that must end before anything is started.
func refused(t *testing.T, o Options, status int, words ...string) {
	t.Helper()
	var progress bytes.Buffer
	o.Stdout, o.Progress = &bytes.Buffer{}, &progress
	o.Open = func(context.Context, HouseOptions) (*House, error) {
		t.Error("something was started")
		return nil, errors.New("started")
	}
	o.ChooseModel = func(kind, model string) (string, error) {
		if model == "" {
			return "", errors.New("name one")
		}
		return model, nil
	}
	o.Provide = func(context.Context, string, []string, []string, []string) ([]string, error) {
		return nil, Setup("not installed")
	}
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	err := Run(t.Context(), o)
	var e *Error
	if !errors.As(err, &e) || e.ExitCode() != status {
		t.Fatalf("%v, want status %d", err, status)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q lacks %q", err, w)
		}
	}
}

func TestRefusals(t *testing.T) {
	dir := openTemp(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	good := newRepo(t, at("good"), small())
	ask := func(path string, w Wishes) Options { return Options{Repo: path, Prompt: "x", Wishes: w} }
	command := Wishes{Harness: "command", Command: "true"}

	empty := repo{t, at("empty")}
	if err := os.MkdirAll(empty.path, 0o755); err != nil {
		t.Fatal(err)
	}
	empty.git("init", "-q", "-b", "trunk")
	big := repo{t, at("sha256")}
	if err := os.MkdirAll(big.path, 0o755); err != nil {
		t.Fatal(err)
	}
	big.git("init", "-q", "--object-format=sha256")
	big.git("commit", "-q", "--allow-empty", "-m", "x")
	bad := newRepo(t, at("bad"), map[string]string{".inspect.yml": "version: 1\nlimits: {ram: 4GiB}\n"})
	secret := newRepo(t, at("secret"), map[string]string{".inspect.yml": "version: 1\nsetup: [{run: npm ci, secrets: [NPM_TOKEN]}]\n" +
		"services: {db: {command: x, secrets: [DB_PASSWORD]}}\nverify: [{name: a, run: \"true\"}]\n"})
	unknown := newRepo(t, at("unknown"), map[string]string{"README.md": "x\n"})
	link := newRepo(t, at("link"), map[string]string{"x": "x\n"})
	if err := os.Symlink("x", filepath.Join(link.path, ".inspect.yml")); err != nil {
		t.Fatal(err)
	}
	link.git("add", "-A")
	link.git("commit", "-q", "-m", "x")
	torn := newRepo(t, at("torn"), small())
	torn.git("clone", "-q", "--shared", torn.path, at("lost"))
	if err := os.WriteFile(at("file"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}

	t.Run("no repository", func(t *testing.T) { refused(t, ask(dir, command), ExitUsage, "is not in a git repository") })
	t.Run("nothing there", func(t *testing.T) { refused(t, ask(at("nowhere"), command), ExitUsage, "there is no repository at") })
	t.Run("a file", func(t *testing.T) { refused(t, ask(at("file"), command), ExitUsage, "is no directory") })
	t.Run("unborn", func(t *testing.T) {
		refused(t, ask(empty.path, command), ExitUsage, "has no commit yet on its branch trunk")
	})
	t.Run("sha256", func(t *testing.T) { refused(t, ask(big.path, command), ExitUsage, "sha256", "not support") })
	t.Run("bad file", func(t *testing.T) {
		refused(t, ask(bad.path, command), ExitUsage, ".inspect.yml: line 2: limits.ram: unknown key")
	})
	t.Run("secrets", func(t *testing.T) {
		refused(t, ask(secret.path, command), ExitUsage, ".inspect.yml names secrets (DB_PASSWORD, NPM_TOKEN), and a try has no store")
	})
	t.Run("file is a link", func(t *testing.T) { refused(t, ask(link.path, command), ExitUsage, "no plain file") })
	t.Run("nothing to verify", func(t *testing.T) { refused(t, ask(unknown.path, command), ExitUsage, "nothing to verify", "--verify") })
	t.Run("no command", func(t *testing.T) {
		refused(t, ask(good.path, Wishes{Harness: "command"}), ExitUsage, "--command LINE")
	})
	t.Run("no such harness", func(t *testing.T) {
		refused(t, ask(good.path, Wishes{Harness: "magic"}), ExitUsage, "opencode, codex, claude or command")
	})
	t.Run("command of another", func(t *testing.T) {
		refused(t, ask(good.path, Wishes{Harness: "codex", Command: "x"}), ExitUsage, "--command goes with")
	})
	t.Run("no model", func(t *testing.T) { refused(t, ask(good.path, Wishes{}), ExitUsage, "opencode needs a model") })
	t.Run("no program", func(t *testing.T) { refused(t, ask(good.path, Wishes{Model: "a/b"}), ExitSetup, "not installed") })
	t.Run("bad verify", func(t *testing.T) {
		refused(t, ask(good.path, Wishes{Command: "true", Verify: []string{"a=x", "a=y"}}), ExitUsage, "given twice")
	})
	t.Run("bad egress", func(t *testing.T) {
		refused(t, ask(good.path, Wishes{Command: "true", Egress: []string{"https://x"}}), ExitUsage, "without a scheme")
	})
	t.Run("no prompt", func(t *testing.T) { refused(t, Options{Repo: good.path, Prompt: " \n"}, ExitUsage, "--prompt") })
	t.Run("evidence in use", func(t *testing.T) {
		o := ask(good.path, command)
		o.Out = good.path
		refused(t, o, ExitUsage, "not empty")
	})
	if os.Geteuid() != 0 {
		t.Run("read-only", func(t *testing.T) {
			refs := filepath.Join(good.path, ".git/refs")
			if err := os.Chmod(refs, 0o555); err != nil {
				t.Fatal(err)
			}
			defer os.Chmod(refs, 0o755)
			refused(t, ask(good.path, command), ExitUsage, "may not write")
		})
	}
	// Whose alternates are gone has no HEAD to read.
	if err := os.Rename(torn.path, at("moved")); err != nil {
		t.Fatal(err)
	}
	t.Run("objects gone", func(t *testing.T) { refused(t, ask(at("lost"), command), ExitUsage, "git fsck") })
}

// A history that lacks an object is told of before anything is started.
func TestIncompleteHistory(t *testing.T) {
	dir := openTemp(t)
	r := newRepo(t, filepath.Join(dir, "r"), small())
	r.write(map[string]string{"price.txt": "price=12\n"})
	r.git("commit", "-q", "-a", "-m", "Dearer")
	blob := r.git("rev-parse", "HEAD~1:price.txt")
	if err := os.Remove(filepath.Join(r.path, ".git/objects", blob[:2], blob[2:])); err != nil {
		t.Fatal(err)
	}
	got, err := openRepository(t.Context(), r.path, "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = copyOrigin(t.Context(), got, filepath.Join(dir, "origin.git"))
	var e *Error
	if !errors.As(err, &e) || e.Status != ExitUsage || !strings.Contains(err.Error(), "cannot be read completely") {
		t.Fatalf("%v", err)
	}
}

// The status of a program that failed is not the try's.
func TestExitStatus(t *testing.T) {
	fail := exec.Command("sh", "-c", "exit 7").Run()
	if fail == nil || coded(fmt.Errorf("x: %w", fail)) {
		t.Errorf("%v is taken for ours", fail)
	}
	if !coded(fmt.Errorf("x: %w", Setup("y"))) || coded(errors.New("x")) {
		t.Error("our own is not")
	}
}

func TestTasksFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "tasks.yml")
	one := "- {name: a, repository: r, commit: HEAD, prompt: x}\n"
	for body, words := range map[string]string{
		"":                                      "expected 1 to",
		"[]":                                    "expected 1 to",
		"a: b":                                  "expected a list of",
		"- {name: a, repo: b}":                  "field repo not found",
		"- {name: a}":                           "repository: expected",
		"- {name: a, repository: r}":            "commit: expected",
		"- {name: a, repository: r, commit: x}": "prompt: expected",
		"- {name: a b, repository: r, commit: x, prompt: y}":               "name: expected",
		"- {name: ../a, repository: r, commit: x, prompt: y}":              "name: expected",
		"- {name: a, repository: r, commit: --upload-pack=x, prompt: y}":   "commit: expected",
		"- {name: a, repository: r, commit: x, prompt: y, budget: 1e9}":    "budget:",
		"- {name: a, repository: r, commit: x, prompt: y, timeout: never}": "timeout:",
		one + one: "each name once",
	} {
		if err := os.WriteFile(file, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := readTasks(file)
		var e *Error
		if !errors.As(err, &e) || e.Status != ExitUsage || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v, want %q", body, err, words)
		}
	}
	body := "- {name: a, repository: r, commit: abc, prompt: x, verify: [\"unit=go test ./...\"], setup: [make], harness: codex, model: a/b, budget: 2.50, timeout: 5m}\n- {name: b, repository: /abs, commit: abc, prompt: y}\n"
	if err := os.WriteFile(file, []byte(body), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := readTasks(file)
	if err != nil || len(got) != 2 {
		t.Fatalf("%v %v", got, err)
	}
	a := got[0]
	if a.repo != filepath.Join(dir, "r") || a.Budget != 5*spec.Dollar/2 || a.Timeout != 5*time.Minute || a.Model != "a/b" || got[1].repo != "/abs" {
		t.Errorf("%+v", got)
	}
	// What a task leaves open is the command line's.
	w := got[1].Wishes.or(Wishes{Command: "x", Budget: 1, Verify: []string{"v"}})
	if w.Command != "x" || w.Budget != 1 || w.Verify[0] != "v" {
		t.Errorf("%+v", w)
	}
	if w := a.Wishes.or(Wishes{Command: "x", Model: "c/d"}); w.Command != "" || w.Harness != "codex" || w.Model != "a/b" {
		t.Errorf("%+v", w)
	}
}

func TestVerifyFlags(t *testing.T) {
	got, err := verifies([]string{"make test", "unit=go test -json ./...", "FOO=bar make test", "make test", "  'quoted thing' x"})
	if err != nil {
		t.Fatal(err)
	}
	want := []spec.Verify{
		{Name: "make-test", Run: "make test", Report: "exit"}, {Name: "unit", Run: "go test -json ./...", Report: "gotest"},
		{Name: "foo-bar-make", Run: "FOO=bar make test", Report: "exit"}, {Name: "make-test-2", Run: "make test", Report: "exit"},
		{Name: "quoted-thing", Run: "'quoted thing' x", Report: "exit"},
	}
	for i := range want {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("%d: %+v, want %+v", i, got[i], want[i])
		}
	}
	for _, bad := range []string{"", "a=", " ", strings.Repeat("x", 9000)} {
		if _, err := verifies([]string{bad}); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestFreeName(t *testing.T) {
	for _, c := range []struct {
		taken  map[string]string
		name   string
		exists bool
	}{
		{nil, "inspect/x-1", false},
		{map[string]string{"main": "a", "inspect/other": "b"}, "inspect/x-1", false},
		{map[string]string{"inspect/x-1": "b"}, "inspect/x-1-2", false},
		{map[string]string{"inspect/x-1": "head"}, "inspect/x-1", true},
		{map[string]string{"inspect": "b"}, "inspect-x-1", false},
		{map[string]string{"inspect": "b", "inspect-x-1": "c", "inspect-x-1-2": "head"}, "inspect-x-1-2", true},
		{map[string]string{"inspect/x-1/below": "b"}, "inspect/x-1-2", false},
	} {
		if name, exists := freeName("inspect/x-1", "head", c.taken); name != c.name || exists != c.exists {
			t.Errorf("%v: %s %v, want %s %v", c.taken, name, exists, c.name, c.exists)
		}
	}
}

func TestOriginBranch(t *testing.T) {
	for name, want := range map[string]string{
		"main": "main", "feature/x_1": "feature/x_1", "inspect/earlier-abc": "inspect/earlier-abc",
		"(no branch)": "base", "wörk": "base", "inspect": "base", "inspect/work": "base", "inspect/work/x": "base", "a..b": "base", "x.lock": "base", "-x": "base", "": "base",
	} {
		if got := originBranch(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

// To look at a repository runs nothing that its configuration names.
func TestLookingRunsNothing(t *testing.T) {
	dir := openTemp(t)
	r := newRepo(t, filepath.Join(dir, "r"), small())
	ran := filepath.Join(r.path, "ran")
	for _, name := range []string{"evil", "a=b", "x y.clean"} {
		r.git("config", "filter."+name+".clean", "touch "+ran+"; cat")
		r.git("config", "filter."+name+".process", "touch "+ran)
		r.git("config", "filter."+name+".required", "true")
	}
	r.write(map[string]string{"price.txt": "price=99\n", ".git/info/attributes": "price.txt filter=evil\n*.sh filter=a=b\n"})
	r.write(map[string]string{"test.sh": small()["test.sh"]}) // not changed, but looked at
	got, err := openRepository(t.Context(), r.path, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a filter was run")
	}
	if len(got.Pending) != 1 || !strings.Contains(got.Pending[0], "1 uncommitted change ") {
		t.Errorf("pending %q", got.Pending)
	}
}

// A branch is never written over, and a lock of somebody at work is waited for.
func TestBring(t *testing.T) {
	dir := openTemp(t)
	r := newRepo(t, filepath.Join(dir, "r"), small())
	got, err := openRepository(t.Context(), r.path, "")
	if err != nil {
		t.Fatal(err)
	}
	o, err := copyOrigin(t.Context(), got, filepath.Join(dir, "origin.git"))
	if err != nil {
		t.Fatal(err)
	}
	w := repo{t, filepath.Join(dir, "w")}
	r.git("clone", "-q", o.dir, w.path)
	w.write(map[string]string{"price.txt": "price=10\n"})
	w.git("commit", "-q", "-a", "-m", "x")
	w.git("push", "-q", "origin", "HEAD:refs/heads/inspect/x")
	head := w.git("rev-parse", "HEAD")

	r.git("branch", "inspect/x")
	lock := filepath.Join(r.path, ".git/refs/heads/inspect/x-2.lock")
	if err := os.WriteFile(lock, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	go func() {
		time.Sleep(300 * time.Millisecond) // somebody is at work for a moment
		os.Remove(lock)
	}()
	name, err := got.bring(t.Context(), o, "inspect/x", head)
	if err != nil || name != "inspect/x-2" {
		t.Fatalf("%q %v", name, err)
	}
	if at := r.git("rev-parse", "inspect/x"); at == head {
		t.Error("a branch was written over")
	}
	if again, err := got.bring(t.Context(), o, "inspect/x", head); err != nil || again != "inspect/x-2" {
		t.Errorf("again: %q %v", again, err)
	}
	// One that stays in the way is told of.
	if err := os.WriteFile(filepath.Join(r.path, ".git/refs/heads/inspect/y.lock"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := got.bring(ctx, o, "inspect/y", head); err == nil {
		t.Error("a locked branch was made")
	}
}

func TestWords(t *testing.T) {
	for line, want := range map[string]string{
		"go test ./...": "go", "FOO=1 make x": "make", "": "", "$(x) y": "", "./run.sh": "./run.sh", "'a b' c": "", "cd x && make": "cd",
	} {
		if got := words(line); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
	if got := plain("a\x1b[31mb\u202e\r\nc\td", 100); strings.ContainsAny(got, "\x1b\r\n\t\u202e") {
		t.Errorf("%q", got)
	}
	if !strings.Contains(took(90*time.Second), "90 s") || took(3*time.Minute) != "3m0s" {
		t.Error("durations")
	}
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	table(&b, []Result{
		{Task: "one", State: "delivered", Branch: "inspect/x", Verified: true, CostUSD: "$0.10", Attempts: 1, Times: Times{Total: 2500}},
		{Task: "two", State: "failed", Reason: "verify_failed", CostUSD: "$0.00", Attempts: 2},
		{Task: "three\x1b[2J", State: "not_run", CostUSD: "$0.00"},
	})
	for _, want := range []string{
		"TASK", "RESULT", "VERIFIED", "COST", "TIME", "TRIES", "failed (verify_failed)", "not run", "1 of 3 tasks delivered.",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "\x1b") {
		t.Errorf("%q", b.String())
	}
	b.Reset()
	r := Result{State: "failed", Words: "Setup failed: make\n\x1b[31mline\x1b[0m\nlast", CostUSD: "$0.00", Repository: "/r", Times: Times{Prepare: 1500, Total: 1500}}
	r.write(&b)
	if got := b.String(); !strings.Contains(got, "Failed: Setup failed: make\n  | ") || !strings.Contains(got, "  | last\n") || strings.Contains(got, "\x1b") || strings.Contains(got, "of work") {
		t.Errorf("%q", got)
	}
}

// Colours are ours alone, and only where they are wanted.
func TestTeller(t *testing.T) {
	var b bytes.Buffer
	f := follower{tell: &teller{w: &b, colour: true, begun: time.Now()}}
	f.changed("failed", "x", time.Now())
	f.tell.bad("%s", plain("\x1b[2J\x1b]0;title\x07evil", 100))
	if got := b.String(); !strings.HasPrefix(got, "\x1b[31m") || strings.Count(got, "\x1b") != 2 || strings.Contains(got, "\x07") {
		t.Errorf("%q", got)
	}
	b.Reset()
	f.tell.colour = false
	f.tell.bad("x")
	if got := b.String(); got != indent+"x\n" {
		t.Errorf("%q", got)
	}
}
