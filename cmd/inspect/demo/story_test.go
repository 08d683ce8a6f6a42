package demo

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"inspect/fixtures/githubd/githubdtest"
)

func cgroupOf(dir string) string {
	sum := sha256.Sum256([]byte(filepath.Join(dir, "data")))
	return "/inspect-" + hex.EncodeToString(sum[:4])
}

// The demo itself, as a newcomer runs it, with --json.
func TestDemo(t *testing.T) {
	var out bytes.Buffer
	res, err := Run(patienceOf(t, 8*time.Minute), Options{Binary: binary, JSON: true, Limits: limits(), Out: &out, Err: io.Discard, Observer: githubdtest.Watch(t)})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var printed map[string]any
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &printed); err != nil {
		t.Fatalf("the last line is no JSON: %v", err)
	}
	for _, key := range []string{"session", "state", "conclusion", "pull_request", "branch", "head_sha", "check_run_id", "verify", "restore_ms", "harness", "generation", "github_requests"} {
		if _, ok := printed[key]; !ok {
			t.Errorf("the JSON lacks %s", key)
		}
	}
	if res.State != "delivered" || res.Conclusion != "success" || res.PullRequests != 1 || res.CheckRuns != 1 || res.Generation != 1 {
		t.Errorf("%+v", res)
	}
	if res.Verify.Passed != 3 || res.Verify.Failed != 0 || res.Harness != "scripted" || res.RestoreMS <= 0 {
		t.Errorf("%+v", res)
	}
	// Besides token calls at most 16 requests for one issue session, 7 of them writes.
	if n := res.GitHub.Total - res.GitHub.Tokens; n > 16 || res.GitHub.Writes > 7 {
		t.Errorf("%d requests, %d writes", n, res.GitHub.Writes)
	}
}

// Whatever process is killed while the harness works: the session is delivered
// once, with one pull request and one completed check run.
func TestKilled(t *testing.T) {
	s := openStage(t, map[string]map[string]string{
		"serve": small("--delay", "4s"), "node": small("--delay", "4s"), "runner": small("--delay", "4s"),
	})
	ctx := patienceOf(t, 5*time.Minute)
	for _, which := range []string{"node", "runner", "serve"} {
		issue := s.ask(which, "Too dear")
		id := s.of(ctx, which, issue)
		begun := time.Now()
		s.until(ctx, id, "working", func(v sessionView) bool { return v.State == "working" })
		t.Logf("%s: working after %.1f s", which, time.Since(begun).Seconds())
		if err := await(ctx, "nothing to kill", nil, func() (bool, error) { return s.kill(which, id) }); err != nil {
			t.Fatal(err)
		}
		killed := time.Now()
		v := s.until(ctx, id, "over", over)
		t.Logf("kill -9 %s: over after %.1f s", which, time.Since(killed).Seconds())
		if v.State != "delivered" {
			t.Fatalf("kill -9 %s: %s (%s: %s)", which, v.State, v.Reason, v.Words)
		}
		if pulls := pullsOf(t, s.github, which); len(pulls) != 1 {
			t.Errorf("kill -9 %s: %d pull requests", which, len(pulls))
		}
		runs, err := s.github.CheckRuns(octocat + "/" + which)
		if err != nil {
			t.Fatal(err)
		}
		if len(runs) != 1 || runs[0].Status != "completed" || runs[0].Conclusion != "success" {
			t.Errorf("kill -9 %s: check runs %+v", which, runs)
		}
		if which == "runner" && v.Generation != 2 {
			t.Errorf("the runner was killed in attempt %d", v.Generation)
		}
	}
	onlyAllowed(t, s.github)
}

// A split installation has two more processes that may be killed: the control
// plane and the database. Both are started again.
func TestControlPlaneAndDatabaseKilled(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("an ordinary user's control plane is serve itself")
	}
	s := openStage(t, map[string]map[string]string{"killed": small("--delay", "6s")})
	ctx := patienceOf(t, 4*time.Minute)
	id := s.of(ctx, "killed", s.ask("killed", "Too dear"))
	s.until(ctx, id, "working", func(v sessionView) bool { return v.State == "working" })
	s.serve.mu.Lock()
	serve := s.serve.cmd.Process.Pid
	s.serve.mu.Unlock()
	for _, role := range []string{"control-plane", "postgres"} {
		// Of a role the first is the oldest: the others are its children.
		all := family(t, serve)
		i := slices.IndexFunc(all, func(p process) bool { return p.role() == role })
		if i < 0 {
			t.Fatalf("there is no %s among %+v", role, all)
		}
		if err := syscall.Kill(all[i].pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	v := s.until(ctx, id, "over", over)
	if v.State != "delivered" || v.Generation != 1 {
		t.Errorf("%s (%s: %s) in attempt %d", v.State, v.Reason, v.Words, v.Generation)
	}
	if pulls := pullsOf(t, s.github, "killed"); len(pulls) != 1 {
		t.Errorf("%d pull requests", len(pulls))
	}
	s.serve.mu.Lock()
	defer s.serve.mu.Unlock()
	if again := s.serve.cmd.Process.Pid; again != serve {
		t.Errorf("serve itself ended: it is %d now, it was %d", again, serve)
	}
}

// An agent that misbehaves: the right end, the reason in words, and everything
// it started gone.
func TestMisbehaviour(t *testing.T) {
	cases := []struct {
		mode          string
		flags         []string
		state, reason string
		pulls         int
	}{
		{mode: "nothing", state: "no_change"},
		{mode: "exit", state: "failed", reason: "harness_exit"},
		{mode: "hang", state: "timed_out"},
		{mode: "fork", state: "timed_out", reason: "pids"},
		{mode: "fill-disk", state: "failed", reason: "disk"},
		{mode: "commit-elsewhere", state: "delivered", pulls: 1},
		{mode: "conflict", state: "failed", reason: "conflict"},
		{mode: "delete-git", state: "failed", reason: "repository_gone"},
		{mode: "uncommitted", state: "delivered", pulls: 1},
		{mode: "break", flags: []string{"--with", "price=12"}, state: "failed", reason: "verify_failed"},
	}
	repositories := map[string]map[string]string{}
	for _, c := range cases {
		repositories[c.mode] = small(append([]string{"--mode", c.mode}, c.flags...)...)
	}
	s := openStage(t, repositories)
	ctx := patienceOf(t, 8*time.Minute)
	issues := map[string]int{}
	for _, c := range cases {
		issues[c.mode] = s.ask(c.mode, "Too dear")
	}
	for _, c := range cases {
		if limits() != "enforce" && (c.mode == "fork" || c.mode == "fill-disk") {
			continue // bounds need rights that an ordinary user lacks
		}
		v := s.until(ctx, s.of(ctx, c.mode, issues[c.mode]), "over", over)
		if v.State != c.state || c.reason != "" && v.Reason != c.reason {
			t.Errorf("%s: %s/%s (%s), want %s/%s", c.mode, v.State, v.Reason, v.Words, c.state, c.reason)
		}
		if v.State != "delivered" && v.Words == "" {
			t.Errorf("%s: no words", c.mode)
		}
		if n := len(pullsOf(t, s.github, c.mode)); n != c.pulls {
			t.Errorf("%s: %d pull requests", c.mode, n)
		}
		comments, err := s.github.Comments(octocat+"/"+c.mode, issues[c.mode])
		if err != nil {
			t.Fatal(err)
		}
		if len(comments) != 1 || c.state == "failed" && !strings.Contains(comments[0].Body, c.state) && !strings.Contains(comments[0].Body, "ailed") {
			t.Errorf("%s: comments %+v", c.mode, comments)
		}
	}
	onlyAllowed(t, s.github)
	// Nothing of the agents lives on while serve still runs.
	err := await(ctx, "processes of sandboxes live on", nil, func() (bool, error) {
		left := inSandboxes(s.dir)
		if len(left) > 0 {
			return false, fmt.Errorf("%v", left)
		}
		return true, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// inSandboxes lists the processes in control groups of an installation.
func inSandboxes(dir string) (pids []string) {
	_ = filepath.Walk("/sys/fs/cgroup/pids"+cgroupOf(dir), func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Name() == "cgroup.procs" {
			if body, err := os.ReadFile(path); err == nil {
				pids = append(pids, strings.Fields(string(body))...)
			}
		}
		return nil
	})
	return pids
}

// No secret of the control plane is in a sandbox: not in environment, command
// line, files or memory of any process in it.
func TestNoSecretInSandbox(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("as an ordinary user sandboxes run under our own account; their memory is read all the same")
	}
	s := openStage(t, map[string]map[string]string{"canary": small("--delay", "20s")})
	ctx := patienceOf(t, 3*time.Minute)
	id := s.of(ctx, "canary", s.ask("canary", "Too dear"))
	s.until(ctx, id, "working", func(v sessionView) bool { return v.State == "working" })

	canaries := map[string]string{"webhook secret": canarySecret, "installation token": "ghs_12345_"}
	key := string(s.github.KeyPEM())
	canaries["App key"] = strings.Split(key, "\n")[3]
	for _, name := range []string{"grant.seed", "node.token", "people.token"} {
		body, err := os.ReadFile(filepath.Join(s.dir, "data", "private", name))
		if err != nil {
			t.Fatal(err)
		}
		canaries[name] = strings.TrimSpace(string(body))
	}
	var agents []int
	if err := await(ctx, "no agent process", nil, func() (bool, error) {
		agents = inside(s.dir)
		return len(agents) >= 3, nil // init, the shell or agent, and what it runs
	}); err != nil {
		t.Fatal(err)
	}
	read := int64(0)
	for _, pid := range agents {
		for _, name := range []string{"environ", "cmdline"} {
			body, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
			look(t, canaries, fmt.Sprintf("process %d: %s", pid, name), body)
		}
		n, err := memory(pid, func(at string, body []byte) { look(t, canaries, fmt.Sprintf("process %d: memory %s", pid, at), body) })
		if err != nil {
			t.Logf("process %d: %v", pid, err)
		}
		read += n
	}
	if read < 1<<20 {
		t.Errorf("only %d bytes of memory were read of %d processes", read, len(agents))
	}
	root := filepath.Join(s.dir, "data", "node", "session")
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			body, err := os.ReadFile(path)
			if err == nil {
				look(t, canaries, path, body)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// The search can fail: the control plane's own memory holds them.
	found := false
	s.serve.mu.Lock()
	control := s.serve.cmd.Process.Pid
	s.serve.mu.Unlock()
	if _, err := memory(control, func(_ string, body []byte) { found = found || bytes.Contains(body, []byte(canarySecret)) }); err != nil || !found {
		t.Errorf("the webhook secret was not found where it must be (%v)", err)
	}
}

func look(t *testing.T, canaries map[string]string, where string, body []byte) {
	t.Helper()
	for name, value := range canaries {
		if bytes.Contains(body, []byte(value)) {
			t.Errorf("%s holds the %s", where, name)
		}
	}
}

// inside lists the processes of the sandboxes of an installation.
func inside(dir string) (pids []int) {
	for _, p := range inSandboxes(dir) {
		if pid, err := strconv.Atoi(p); err == nil {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 { // no control groups here: by what they were started with
		entries, _ := os.ReadDir("/proc")
		for _, e := range entries {
			line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
			if pid, numErr := strconv.Atoi(e.Name()); err == nil && numErr == nil && bytes.Contains(line, []byte("/run/inspect/init")) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// memory reads the writable memory of a process.
func memory(pid int, fn func(at string, body []byte)) (read int64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, err
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return 0, err
	}
	defer mem.Close()
	for line := range strings.Lines(string(maps)) {
		span, rest, _ := strings.Cut(line, " ")
		if !strings.HasPrefix(rest, "rw") {
			continue
		}
		lo, hi, _ := strings.Cut(span, "-")
		from, _ := strconv.ParseInt(lo, 16, 64)
		to, _ := strconv.ParseInt(hi, 16, 64)
		for at := from; at < to; at += 4 << 20 {
			body := make([]byte, min(to-at, 4<<20+256))
			n, _ := mem.ReadAt(body, at)
			fn(span, body[:n])
			read += int64(n)
		}
	}
	return read, nil
}

// The same wish twice is one session; strangers and broken files start none.
func TestIntake(t *testing.T) {
	broken := small()
	broken[".inspect.yml"] = "version: 1\nverify: [{name: unit, run: sh test.sh}]\nlimits: {ram: 4GiB}\n"
	s := openStage(t, map[string]map[string]string{"twice": small(), "broken": broken, "asked": small()})
	ctx := patienceOf(t, 3*time.Minute)

	issue := s.ask("twice", "Too dear")
	id := s.of(ctx, "twice", issue)
	if err := s.github.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	for _, d := range s.github.Deliveries() {
		if d.Event == "issues" && d.Action == "labeled" {
			for range 3 {
				if err := s.github.Redeliver(d.ID); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if err := s.github.SetPermission(octocat+"/twice", "hubot", "read"); err != nil {
		t.Fatal(err)
	}
	other, err := s.github.OpenIssue(octocat+"/twice", octocat, "Another", "…")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.github.Label(octocat+"/twice", other, "inspect", "hubot"); err != nil {
		t.Fatal(err)
	}
	wrong := s.ask("broken", "Too dear")
	asked, err := s.github.OpenIssue(octocat+"/asked", octocat, "A question", "…")
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"> /inspect quoted", "```\n/inspect in code\n```", "/inspect make the test pass\n"} {
		if _, err := s.github.Comment(octocat+"/asked", asked, octocat, body); err != nil {
			t.Fatal(err)
		}
	}
	if v := s.until(ctx, id, "over", over); v.State != "delivered" {
		t.Fatalf("%s: %s", v.State, v.Words)
	}
	if v := s.until(ctx, s.of(ctx, "asked", asked), "over", over); v.State != "delivered" {
		t.Fatalf("%s: %s", v.State, v.Words)
	}
	if err := s.github.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	if err := await(ctx, "the broken file is not answered", nil, func() (bool, error) {
		comments, err := s.github.Comments(octocat+"/broken", wrong)
		return len(comments) == 1 && strings.Contains(comments[0].Body, "| 3 | `limits.ram` | unknown key"), err
	}); err != nil {
		t.Error(err)
	}
	var all []listed
	if err := s.pages.get(ctx, "/sessions.json", &all); err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 {
		t.Errorf("%d sessions: %+v", len(all), all)
	}
	comments, err := s.github.Comments(octocat+"/twice", other)
	if err != nil || len(comments) != 0 {
		t.Errorf("hubot was answered: %+v %v", comments, err)
	}
	onlyAllowed(t, s.github)
}

// Two demos at once on one machine, and Ctrl-C in the middle of one.
func TestTwoAtOnceAndInterrupted(t *testing.T) {
	var stages [2]*stage
	for i := range stages {
		stages[i] = openStage(t, map[string]map[string]string{"pair": small("--delay", "1s")})
	}
	ctx := patienceOf(t, 3*time.Minute)
	var wg sync.WaitGroup
	for _, s := range stages {
		wg.Go(func() {
			id := s.of(ctx, "pair", s.ask("pair", "Too dear"))
			if v := s.until(ctx, id, "over", over); v.State != "delivered" {
				t.Errorf("%s: %s", v.State, v.Words)
			}
		})
	}
	wg.Wait()

	// As a person does it: the program in a process group of its own, Ctrl-C to
	// the group while the agent works. What it leaves is looked for by its own
	// temporary directory.
	temp := t.TempDir()
	if err := os.Chmod(temp, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(temp), 0o711); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "demo")
	cmd.Env = append(os.Environ(), "TMPDIR="+temp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// It is preparing the environment: the compiler runs in a sandbox.
	err := await(ctx, "no sandbox", nil, func() (bool, error) {
		dirs, _ := filepath.Glob(filepath.Join(temp, "inspect-demo-*"))
		return len(dirs) == 1 && len(inSandboxes(dirs[0])) > 0 || limits() != "enforce" && len(dirs) == 1, nil
	})
	if err != nil {
		t.Error(err)
	}
	dirs, _ := filepath.Glob(filepath.Join(temp, "inspect-demo-*"))
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Errorf("an interrupted demo ended with status 0:\n%s", out.String())
	}
	for _, dir := range dirs {
		if left := leftovers(dir); len(left) > 0 {
			t.Errorf("left behind: %s", strings.Join(left, "; "))
		}
	}
	if files, _ := os.ReadDir(temp); len(files) > 0 {
		t.Errorf("files left: %v", files)
	}
}
