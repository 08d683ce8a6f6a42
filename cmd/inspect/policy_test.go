package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"inspect/app/policy"
	"inspect/envs/spec"
	"inspect/storage"
)

func write(t *testing.T, path, body string) {
	t.Helper()
	next := path + ".next"
	if err := os.WriteFile(next, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

// A change counts at once, a broken one is logged once and changes nothing.
func TestFloorFileIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yml")
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, nil))
	if _, err := openFloor(path, log); err == nil || !strings.Contains(err.Error(), "--policy: ") {
		t.Errorf("a missing file: %v", err)
	}
	write(t, path, "version: 2\nrepositories: 3\n")
	if _, err := openFloor(path, log); err == nil || !strings.Contains(err.Error(), path+": line 1: version: ") || !strings.Contains(err.Error(), path+": line 2: repositories: ") {
		t.Errorf("a broken file: %v", err)
	}
	only := func(owner string) string { return "version: 1\nrepositories: [{match: \"" + owner + "/*\"}]\n" }
	write(t, path, only("octocat"))
	f, err := openFloor(path, log)
	if err != nil {
		t.Fatal(err)
	}
	allowed := func(want string) {
		t.Helper()
		for _, owner := range []string{"octocat", "hubot"} {
			if _, ok := f.For(1, owner+"/hello"); ok != (owner == want) {
				t.Errorf("%s may: %v", owner, ok)
			}
		}
	}
	allowed("octocat")
	if said.Len() > 0 {
		t.Errorf("said %s", &said)
	}
	write(t, path, only("hubot")+"#") // as long as the first
	allowed("hubot")
	for _, broken := range []string{"version: 1\nrepositories: all\n", "", "version: 1\n" + strings.Repeat("#", spec.MaxFloorBytes)} {
		said.Reset()
		write(t, path, broken)
		allowed("hubot")
		if n := strings.Count(said.String(), "stays in force"); n != 1 {
			t.Errorf("said %d times: %s", n, &said)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	allowed("hubot")
	write(t, path, only("octocat"))
	allowed("octocat")

	none, err := openFloor("", log)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := none.For(1, "monalisa/x"); !ok {
		t.Error("no policy, and somebody may not use it")
	}
}

// What the scheduler is told: the stricter of both as the file is now.
func TestFloorBindsWhatWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yml")
	write(t, path, "version: 1\n")
	f, err := openFloor(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	sp := spec.Default()
	sp.Egress = []string{"npm"}
	if b, err := f.bound(1, "octocat/hello", sp); err != nil || b.Denied != "" || b.Tier != "" || b.Spec.Limits != sp.Limits {
		t.Errorf("%+v, %v", b, err)
	}
	write(t, path, "version: 1\ndefaults: {sandbox: gvisor, limits: {pids: 64}}\n")
	if b, err := f.bound(1, "octocat/hello", sp); err != nil || b.Denied != "" || b.Tier != "gvisor" || b.Spec.Limits.Pids != 64 {
		t.Errorf("%+v, %v", b, err)
	}
	write(t, path, "version: 1\ndefaults: {egress: [go]}\n")
	if b, err := f.bound(1, "octocat/hello", sp); err != nil || !strings.Contains(b.Denied, `egress: "npm" is beyond`) {
		t.Errorf("%+v, %v", b, err)
	}
	hello, lib := storage.Repository{ID: 1, Owner: "octocat", Name: "hello"}, storage.Repository{ID: 2, Owner: "octocat", Name: "Lib"}
	if f.submodule(hello, lib) {
		t.Error("a submodule that is not listed")
	}
	write(t, path, "version: 1\ndefaults: {submodules: [octocat/lib]}\n")
	if !f.submodule(hello, lib) || f.submodule(lib, hello) {
		t.Error("which submodules are listed?")
	}
	write(t, path, "version: 1\nrepositories: []\ndefaults: {submodules: [octocat/lib]}\n")
	if f.submodule(hello, lib) {
		t.Error("a submodule of a repository that may not use Inspect")
	}
	if b, err := f.bound(1, "octocat/hello", sp); err != nil || !strings.Contains(b.Denied, "does not allow it") {
		t.Errorf("%+v, %v", b, err)
	}
}

func TestExplain(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	floor, file := filepath.Join(dir, "policy.yml"), filepath.Join(dir, "other.yml")
	write(t, floor, "version: 1\nrepositories: [{id: 7, limits: {cpu: 1}}, {match: \"octocat/*\", egress: [go]}]\ndefaults: {limits: {timeout: 5m}}\n")
	write(t, file, "version: 1\negress: [npm]\nlimits: {timeout: 1h}\n")
	var out, notes bytes.Buffer
	run := func(c explainFlags) error {
		out.Reset()
		notes.Reset()
		return explain(&out, &notes, "octocat/hello", c)
	}
	rows := func(want ...string) {
		t.Helper()
		table := strings.Join(strings.Fields(out.String()), " ")
		for _, w := range want {
			if !strings.Contains(table, w) {
				t.Errorf("the table lacks %q:\n%s", w, &out)
			}
		}
	}
	if err := run(explainFlags{policy: floor}); err != nil {
		t.Error(err)
	}
	rows("KEY VALUE FROM", "egress nothing default", "egress (at most) go floor: repositories[1]", "limits.timeout 5m floor: defaults, instead of 45m", "publish.protected "+strings.Join(spec.AlwaysProtected(), ", ")+" always")
	if n := notes.String(); !strings.Contains(n, "There is no .inspect.yml here") || !strings.Contains(n, "--repository-id") {
		t.Errorf("notes %q", n)
	}
	if err := run(explainFlags{policy: floor, file: file, id: 7}); err != nil || notes.Len() > 0 {
		t.Error(err, &notes)
	}
	rows("egress npm .inspect.yml", "limits.cpu 1 floor: repositories[0], instead of 2")
	if err := run(explainFlags{policy: floor, file: file}); err == nil || !strings.Contains(err.Error(), "no session would start for octocat/hello") {
		t.Error(err)
	}
	rows(`egress: "npm" is beyond what floor: repositories[1] allows: go`)
	if err := run(explainFlags{file: file}); err != nil {
		t.Error(err)
	}
	rows("limits.timeout 1h .inspect.yml")
	write(t, floor, "version: 1\nrepositories: []\n")
	if err := run(explainFlags{policy: floor}); err == nil || !strings.Contains(err.Error(), "octocat/hello may not use Inspect") {
		t.Error(err)
	}
	write(t, file, "version: 1\negres: []\n")
	if err := run(explainFlags{file: file}); err == nil || !strings.Contains(err.Error(), "line 2: egres: unknown key") {
		t.Error(err)
	}
	if err := run(explainFlags{file: filepath.Join(dir, "nowhere")}); err == nil {
		t.Error("a file that is named and missing was passed over")
	}
}

// The README's example is one.
func TestReadmeFloor(t *testing.T) {
	body, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(body), "### The floor\n")
	_, rest, _ = strings.Cut(rest, "```yaml\n")
	example, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("README.md has no example of a policy file")
	}
	floor, problems := policy.ParseFloor([]byte(example))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if _, allowed := floor.For(1234, "monalisa/renamed"); !allowed {
		t.Error("the example allows nobody by number")
	}
}
