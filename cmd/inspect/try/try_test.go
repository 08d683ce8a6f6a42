package try

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// onBranch holds that a branch is one commit on top of base that puts the price
// right and changes nothing else.
func onBranch(t *testing.T, r repo, branch, commit, base string) {
	t.Helper()
	if got := r.git("rev-parse", "refs/heads/"+branch); got != commit {
		t.Errorf("%s is at %s, not at %s", branch, got, commit)
	}
	if got := r.git("rev-parse", commit+"^"); got != base {
		t.Errorf("%s stands on %s, not on %s", branch, got, base)
	}
	if got := r.git("diff", "--name-only", base, commit); got != "price.txt" {
		t.Errorf("%s changes %q", branch, got)
	}
	if got := r.git("show", commit+":price.txt"); got != "price=10" {
		t.Errorf("on %s the price is %q", branch, got)
	}
}

// A person's dirty worktree: the work is delivered beside it, and not a byte of
// it changes.
func TestDelivered(t *testing.T) {
	t.Parallel()
	dir := openTemp(t)
	r := newRepo(t, filepath.Join(dir, "parcel"), small())
	mark := filepath.Join(dir, "executed")
	hook := "#!/bin/sh\ntouch " + mark + "\n"
	for _, h := range []string{"reference-transaction", "post-checkout", "post-index-change", "pre-auto-gc", "fsmonitor"} {
		if err := os.WriteFile(filepath.Join(r.path, ".git/hooks", h), []byte(hook), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r.git("tag", "v1")
	r.git("branch", "topic")
	r.git("pack-refs", "--all")
	r.git("config", "core.fsmonitor", filepath.Join(r.path, ".git/hooks/fsmonitor"))
	r.write(map[string]string{"test.sh": "dirty\n", "new.txt": "untracked\n", "staged.txt": "staged\n", "sub/x": "x\n"})
	r.git("-c", "core.fsmonitor=false", "add", "staged.txt")
	// The index knows an old time of this file: looking would refresh it.
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(r.path, "price.txt"), old, old); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(mark); err != nil {
		t.Fatal(err)
	}
	base := r.git("rev-parse", "HEAD")
	before := stateOf(t, r.path)

	data := filepath.Join(dir, "data")
	c := &call{t: t, dir: filepath.Join(r.path, "sub")}
	if status := c.run("--data", data, "--prompt", "Make the price 10\n\nPlease.", "--command", scripted("--message", "An \x1b[31mescape\x1b[0m\u202e")); status != 0 {
		t.Fatalf("status %d\n%s\n%s", status, c.stdout.String(), c.stderr.String())
	}
	untouched(t, "a dirty worktree", before, stateOf(t, r.path))
	if _, err := os.Stat(mark); err == nil {
		t.Error("a hook or a monitor of the repository ran")
	}
	branches := strings.Fields(r.git("for-each-ref", "--format=%(refname:short)", "refs/heads/inspect"))
	if len(branches) != 1 || !strings.HasPrefix(branches[0], "inspect/make-the-price-10-") {
		t.Fatalf("branches %v", branches)
	}
	onBranch(t, r, branches[0], r.git("rev-parse", branches[0]), base)
	if out, err := r.try("fsck", "--strict"); err != nil {
		t.Errorf("git fsck: %v\n%s", err, out)
	}

	out, progress := c.stdout.String(), c.stderr.String()
	for _, want := range []string{"Delivered: branch " + branches[0] + " in " + r.path, "1 file, +1 -1", "unit passed", "$0.00", "git -C " + r.path + " diff"} {
		if !strings.Contains(out, want) {
			t.Errorf("the summary lacks %q:\n%s", want, out)
		}
	}
	for _, want := range []string{
		"parcel at " + base[:10] + " (main), init, environment .inspect.yml",
		"4 uncommitted changes are not part of this; commit them first if they should be.", "the agent works", "unit passed",
	} {
		if !strings.Contains(progress, want) {
			t.Errorf("the progress lacks %q:\n%s", want, progress)
		}
	}
	if strings.ContainsAny(out+progress, "\x1b\u202e") {
		t.Errorf("escapes in what is printed:\n%q\n%q", out, progress)
	}

	evidence, _ := filepath.Glob(filepath.Join(c.temp, "state/inspect/try/*"))
	if len(evidence) != 1 || !strings.Contains(out, evidence[0]) {
		t.Fatalf("evidence in %v", evidence)
	}
	var names []string
	for name := range stateOf(t, evidence[0]) {
		names = append(names, name)
	}
	for _, want := range []string{"manifest.json", "change.patch", "result.bundle", "verify-unit.out", "verify-unit.err", fileEvents, filePrompt, fileResult} {
		if !slices.Contains(names, want) {
			t.Errorf("the evidence lacks %s: %v", want, names)
		}
	}
	var res Result
	body, err := os.ReadFile(filepath.Join(evidence[0], fileResult))
	if err != nil || json.Unmarshal(body, &res) != nil || res.Branch != branches[0] {
		t.Errorf("%s: %v %+v", fileResult, err, res)
	}
	clone := repo{t, filepath.Join(dir, "clone")}
	r.git("clone", "-q", "--no-hardlinks", r.path, clone.path)
	clone.git("apply", filepath.Join(evidence[0], "change.patch"))
	if got := clone.git("diff", "--name-only"); got != "price.txt" {
		t.Errorf("the patch changes %q", got)
	}
	c.nothingLeft()

	// In the same directory the environment is there already.
	again := &call{t: t}
	if status := again.run("--repo", r.path, "--data", data, "--prompt", "Make the price 10", "--command", scripted(), "--json"); status != 0 {
		t.Fatalf("status %d\n%s", status, again.stderr.String())
	}
	if strings.Contains(again.stderr.String(), "building") || !strings.Contains(progress, "building") {
		t.Errorf("the environment was prepared anew:\n%s", again.stderr.String())
	}
	onBranch(t, r, again.result().Branch, again.result().Commit, base)
	if left := leftovers(dir); len(left) > 0 {
		t.Errorf("left behind: %s", strings.Join(left, "; "))
	}
}

// Repositories of every shape, as tasks of one run, and every kind of end.
func TestTasks(t *testing.T) {
	t.Parallel()
	dir := openTemp(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	type shape struct {
		name, path, root string // repository, as given; what must stay as it is
		commit           string
		note             string
		at               repo
		line             string // of the agent; empty: one that does its work
		state, reason    string // it ends as; empty: delivered
	}
	var shapes []shape
	add := func(s shape) {
		if s.root == "" {
			s.root = s.path
		}
		if s.at.t == nil {
			s.at = repo{t, s.path}
		}
		if s.commit == "" {
			s.commit = s.at.git("rev-parse", "HEAD")
		}
		shapes = append(shapes, s)
	}

	// The commit is worked on, not HEAD.
	plain := newRepo(t, at("plain"), small())
	first := plain.git("rev-parse", "HEAD")
	plain.write(map[string]string{"price.txt": "price=12\n", "later.txt": "x\n"})
	plain.git("add", "-A")
	plain.git("commit", "-q", "-m", "Dearer still")
	add(shape{name: "frozen", path: plain.path, commit: first})

	// A linked worktree with an odd name, on no branch.
	linked := newRepo(t, at("linked"), small())
	tree := at("linked -dash päth/with  spaces & 'quotes'")
	linked.git("worktree", "add", "-q", "--detach", tree)
	add(shape{name: "worktree", path: tree, root: dir})

	// A bare repository whose objects lie in another.
	linked.git("clone", "-q", "--bare", "--shared", linked.path, at("bare.git"))
	add(shape{name: "bare", path: at("bare.git")})

	long := newRepo(t, at("long"), small())
	for i := range 5 {
		long.write(map[string]string{"count.txt": strconv.Itoa(i)})
		long.git("add", "-A")
		long.git("commit", "-q", "-m", "More")
	}
	long.git("config", "uploadpack.allowFilter", "true")
	long.git("config", "uploadpack.allowAnySHA1InWant", "true")
	long.git("clone", "-q", "--depth", "2", "file://"+long.path, at("shallow"))
	add(shape{name: "shallow", path: at("shallow"), note: "cut off (shallow)"})
	// A partial clone, with a branch where ours would go.
	long.git("clone", "-q", "--filter=blob:none", "file://"+long.path, at("partial"))
	repo{t, at("partial")}.git("branch", "inspect")
	add(shape{name: "partial", path: at("partial"), note: "partial clone"})

	// A submodule, pointers into Git LFS, a rebase that stopped; named by a
	// directory below.
	with := newRepo(t, at("with"), small())
	with.git("submodule", "add", "-q", "file://"+plain.path, "lib")
	with.write(map[string]string{
		".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n",
		"a.bin":          "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("0", 64) + "\nsize 9\n",
		"docs/x":         "x\n",
	})
	with.git("add", "-A")
	with.git("commit", "-q", "-m", "A submodule and a pointer")
	with.git("checkout", "-q", "-b", "topic")
	with.write(map[string]string{"note.txt": "one\n"})
	with.git("add", "-A")
	with.git("commit", "-q", "-m", "One")
	with.git("checkout", "-q", "main")
	with.write(map[string]string{"note.txt": "two\n"})
	with.git("add", "-A")
	with.git("commit", "-q", "-m", "Two")
	if _, err := with.try("rebase", "topic"); err == nil {
		t.Fatal("the rebase did not stop")
	}
	add(shape{name: "with", path: filepath.Join(with.path, "docs"), root: with.path, note: "submodule lib is not available"})

	if os.Geteuid() == 0 {
		other := newRepo(t, at("other"), small())
		err := filepath.WalkDir(other.path, func(path string, _ os.DirEntry, err error) error {
			if err == nil {
				err = os.Lchown(path, 23456, 23457)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		add(shape{name: "other-owner", path: other.path})
	}

	// Ends that are no delivery.
	ends := newRepo(t, at("ends"), small())
	add(shape{name: "nothing", path: ends.path, line: scripted("--mode", "nothing"), state: "no_change"})
	add(shape{name: "broken", path: ends.path, line: scripted("--with", "price=12", "--test", ""), state: "failed", reason: "verify_failed"})
	add(shape{name: "too-long", path: ends.path, line: scripted("--mode", "hang"), state: "timed_out"})

	var list strings.Builder
	before := map[string]state{}
	for _, s := range shapes {
		task := map[string]any{"name": s.name, "repository": s.path, "commit": s.commit, "prompt": "Make the price 10"}
		if s.line != "" {
			task["command"], task["timeout"] = s.line, "10s"
		}
		if s.name == "frozen" { // relative to the file, named by what git understands
			task["repository"], task["commit"] = "plain", "HEAD~1"
		}
		line, err := json.Marshal(task)
		if err != nil {
			t.Fatal(err)
		}
		list.WriteString("- " + string(line) + "\n")
		before[s.name] = stateOf(t, s.root)
	}
	file := at("tasks.yml")
	if err := os.WriteFile(file, []byte(list.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	before["worktree"] = stateOf(t, dir) // with the file

	c := &call{t: t}
	status := c.run("--task", file, "--command", scripted(), "--json", "--out", at("evidence"))
	var rep Report
	c.decode(&rep)
	if status != ExitOther || rep.Delivered != len(shapes)-3 || rep.Total != len(shapes) {
		t.Errorf("status %d, %d of %d delivered\n%s", status, rep.Delivered, rep.Total, c.stderr.String())
	}
	for i, s := range shapes {
		if i >= len(rep.Tasks) {
			break
		}
		res := rep.Tasks[i]
		if s.state != "" {
			if res.State != s.state || s.reason != "" && res.Reason != s.reason || res.Words == "" || res.Branch != "" {
				t.Errorf("%s: %+v", s.name, res)
			}
			_, err := os.Stat(filepath.Join(at("evidence"), s.name, "result.bundle"))
			if kept := err == nil; kept != (s.state != "no_change") {
				t.Errorf("%s: the work is kept: %v", s.name, kept)
			}
			untouched(t, s.name, before[s.name], stateOf(t, s.root))
			if got := s.at.git("for-each-ref", "refs/heads/inspect"); got != "" {
				t.Errorf("%s: branches were left: %s", s.name, got)
			}
			continue
		}
		if res.Task != s.name || res.State != "delivered" || !res.Verified || res.Base != s.commit || res.Attempts != 1 {
			t.Errorf("%s: %+v\n%s", s.name, res, c.stderr.String())
			continue
		}
		if s.name == "worktree" { // the evidence and other shapes' branches lie in the same directory
			for name := range before[s.name] {
				if !strings.HasPrefix(name, "linked") {
					delete(before[s.name], name)
				}
			}
			after := stateOf(t, s.root)
			for name := range after {
				if !strings.HasPrefix(name, "linked") {
					delete(after, name)
				}
			}
			untouched(t, s.name, before[s.name], after)
		} else {
			untouched(t, s.name, before[s.name], stateOf(t, s.root))
		}
		onBranch(t, s.at, res.Branch, res.Commit, s.commit)
		if out, err := s.at.try("fsck", "--connectivity-only"); err != nil && s.name != "partial" {
			t.Errorf("%s: git fsck: %v\n%s", s.name, err, out)
		}
		if s.note != "" && !strings.Contains(strings.Join(res.Missing, "\n"), s.note) {
			t.Errorf("%s: nothing is said of %q: %q", s.name, s.note, res.Missing)
		}
		want := "inspect/make-the-price-10-" + res.Session
		if s.name == "partial" {
			want = strings.Replace(want, "/", "-", 1)
		}
		if res.Branch != want {
			t.Errorf("%s: branch %s, want %s", s.name, res.Branch, want)
		}
		if _, err := os.Stat(filepath.Join(at("evidence"), s.name, "manifest.json")); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
		if s.name == "other-owner" {
			for name, about := range stateOf(t, s.root) {
				if !strings.Contains(about, " 23456:23457") {
					t.Errorf("%s belongs to another now: %s", name, about)
				}
			}
		}
	}
	c.nothingLeft()
}

// Several at once on one repository, of root and of an ordinary user.
func TestParallelAndOrdinaryUser(t *testing.T) {
	t.Parallel()
	dir := openTemp(t)
	r := newRepo(t, filepath.Join(dir, "shared"), small())
	base := r.git("rev-parse", "HEAD")
	account := ""
	if os.Geteuid() == 0 {
		account = "nobody"
		u, err := user.Lookup(account)
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		err = filepath.WalkDir(r.path, func(path string, _ os.DirEntry, err error) error {
			if err == nil {
				err = os.Lchown(path, uid, gid)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	before := stateOf(t, r.path)
	calls := []*call{{t: t, user: account}, {t: t}}
	var wg sync.WaitGroup
	for _, c := range calls {
		wg.Go(func() {
			c.run("--repo", r.path, "--prompt", "Make the price 10", "--command", scripted("--delay", "1s"), "--json")
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for i, c := range calls {
		res := c.result()
		if c.cmd.ProcessState.ExitCode() != 0 || !res.delivered() || seen[res.Branch] {
			t.Errorf("%d: %+v\n%s", i, res, c.stderr.String())
			continue
		}
		seen[res.Branch] = true
		onBranch(t, r, res.Branch, res.Commit, base)
		ordinary := account != "" && c.user != "" || os.Geteuid() != 0
		if said := strings.Contains(strings.Join(res.Missing, " "), "not enforced"); said != ordinary {
			t.Errorf("%d: limits are said not to be enforced: %v, isolation %s", i, said, res.Isolation)
		}
		c.nothingLeft()
	}
	untouched(t, "the shared repository", before, stateOf(t, r.path))
	if os.Geteuid() == 0 {
		owner := strings.Fields(before["price.txt"])[1]
		for name, about := range stateOf(t, r.path) {
			if strings.Fields(about)[1] != owner {
				t.Errorf("%s belongs to another now: %s", name, about)
			}
		}
	}
}

// working starts a try whose agent never ends, and waits until it has committed.
func working(t *testing.T, r repo, args ...string) *call {
	t.Helper()
	c := &call{t: t}
	c.start(append([]string{"--repo", r.path, "--prompt", "Make the price 10", "--command", scripted("--mode", "hang"), "--json", "-v"}, args...)...)
	until(t, "the agent has committed and hangs", func() bool { return strings.Contains(c.stderr.String(), "scripted: hanging") })
	return c
}

// Ctrl-C keeps the work, a second one does not wait, kill -9 leaves nothing
// that runs, and what it left of files the next try removes.
// An installation on the same machine kills all of an account of its runners
// when one of them ends: a try's runner has none of those accounts.
func TestNoInstallationsRunner(t *testing.T) {
	if os.Geteuid() != 0 {
		return // it is the person's own
	}
	t.Parallel()
	r := newRepo(t, filepath.Join(openTemp(t), "stop"), small())
	c := working(t, r)
	runners := 0
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if !strings.Contains(string(line), "\x00runner\x00") || !strings.Contains(string(line), c.temp) {
			continue
		}
		runners++
		status, err := os.ReadFile(filepath.Join("/proc", e.Name(), "status"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(status), "\nUid:\t60700\t60700\t60700\t60700\n") {
			t.Errorf("it runs as another than 60700:\n%s", status)
		}
	}
	if runners != 1 {
		t.Errorf("%d runners", runners)
	}
	for range 2 {
		if err := syscall.Kill(-c.cmd.Process.Pid, syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
	}
	c.wait()
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	dir := openTemp(t)
	r := newRepo(t, filepath.Join(dir, "stop"), small())
	before := stateOf(t, r.path)

	t.Run("once", func(t *testing.T) {
		c := working(t, r, "--keep")
		if err := syscall.Kill(-c.cmd.Process.Pid, syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if status := c.wait(); status != ExitInterrupted {
			t.Errorf("status %d\n%s", status, c.stderr.String())
		}
		res := c.result()
		if res.State != "stopped" || res.Evidence == "" {
			t.Fatalf("%+v", res)
		}
		patch, err := os.ReadFile(filepath.Join(res.Evidence, "change.patch"))
		if err != nil || !strings.Contains(string(patch), "+price=10") {
			t.Errorf("the work is not kept: %v %s", err, patch)
		}
		kept, _ := filepath.Glob(filepath.Join(c.temp, "inspect-try-*"))
		sweep(t.Context(), c.temp)
		if len(kept) != 1 || !strings.Contains(c.stderr.String(), "kept: "+kept[0]) {
			t.Fatalf("kept: %v\n%s", kept, c.stderr.String())
		}
		if _, err := os.Stat(filepath.Join(kept[0], logName)); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(kept[0]); err != nil {
			t.Error(err)
		}
		c.nothingLeft()
	})
	t.Run("twice", func(t *testing.T) {
		c := working(t, r)
		for range 2 {
			if err := syscall.Kill(-c.cmd.Process.Pid, syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			until(t, "it is told", func() bool { return strings.Contains(c.stderr.String(), "stopping") })
		}
		if status := c.wait(); status != ExitInterrupted {
			t.Errorf("status %d\n%s", status, c.stderr.String())
		}
		if res := c.result(); res.State != "stopped" || res.Session == "" {
			t.Errorf("%+v", res)
		}
		c.nothingLeft()
	})
	t.Run("killed", func(t *testing.T) {
		c := working(t, r)
		if err := c.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		c.wait()
		until(t, "nothing runs any more", func() bool { return len(leftovers(c.temp)) == 0 })
		left, _ := filepath.Glob(filepath.Join(c.temp, "inspect-try-*"))
		if len(left) != 1 {
			t.Fatalf("left: %v", left)
		}
		until(t, "no control group is left", func() bool {
			sum := sha256.Sum256([]byte(left[0]))
			groups, _ := filepath.Glob("/sys/fs/cgroup/*/inspect-" + hex.EncodeToString(sum[:4]))
			return len(groups) == 0
		})
		old := time.Now().Add(-time.Hour)
		if err := os.Chtimes(left[0], old, old); err != nil {
			t.Fatal(err)
		}
		sweep(t.Context(), c.temp)
		if left, _ := filepath.Glob(filepath.Join(c.temp, "inspect-try-*")); len(left) != 0 {
			t.Errorf("still there: %v", left)
		}
	})
	untouched(t, "an interrupted try", before, stateOf(t, r.path))
}
