package try

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// program is the inspect binary, built once for all tests.
var program string

func TestMain(m *testing.M) {
	code, err := build(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func build(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "inspect-bin-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o711); err != nil {
		return 1, err
	}
	program = filepath.Join(dir, "inspect")
	cmd := exec.Command("go", "build", "-o", program, "inspect/cmd/inspect")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build inspect: %w\n%s", err, out)
	}
	return m.Run(), nil
}

// openTemp is a directory that every account can pass through, with a short name.
func openTemp(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "it-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// repo is a repository of a person, made for a test.
type repo struct {
	t    *testing.T
	path string // where git runs
}

// small is a repository that is prepared in a moment; its test fails until the
// price is 10.
func small() map[string]string {
	return map[string]string{
		"price.txt": "price=11\n",
		"test.sh":   "grep -q price=10 price.txt\n",
		".inspect.yml": "version: 1\nverify: [{name: unit, run: sh test.sh}]\n" +
			"limits: {memory: 256MiB, pids: 100, disk: 64MiB, timeout: 60s}\n",
	}
}

// scripted is the line of the scripted agent, inside the sandbox.
func scripted(flags ...string) string {
	words := append([]string{"/run/inspect/init", "demo-agent", "--edit", "price.txt", "--replace", "price=11", "--with", "price=10", "--test", "sh test.sh"}, flags...)
	for i, w := range words {
		words[i] = quote(w)
	}
	return strings.Join(words, " ")
}

func newRepo(t *testing.T, path string, files map[string]string) repo {
	t.Helper()
	r := repo{t, path}
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	r.git("init", "-q", "-b", "main")
	r.write(files)
	r.git("add", "-A")
	r.git("commit", "-q", "-m", "The beginning")
	return r
}

func (r repo) write(files map[string]string) {
	r.t.Helper()
	for name, body := range files {
		path := filepath.Join(r.path, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
			r.t.Fatal(err)
		}
	}
}

// try runs git as a test does, whoever owns the repository.
func (r repo) try(args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-c", "user.name=monalisa", "-c", "user.email=monalisa@localhost", "-c", "protocol.file.allow=always", "-c", "safe.directory=*"}, args...)...)
	cmd.Dir = r.path
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_OPTIONAL_LOCKS=0", "LC_ALL=C"}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (r repo) git(args ...string) string {
	r.t.Helper()
	out, err := r.try(args...)
	if err != nil {
		r.t.Fatalf("git %v in %s: %v\n%s", args, r.path, err, out)
	}
	return out
}

// state is every file below a directory: kind, mode, owner, content, and when it
// was written.
type state map[string]string

func stateOf(t *testing.T, root string) state {
	t.Helper()
	s := state{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		about := fmt.Sprintf("%v %d:%d", info.Mode(), st.Uid, st.Gid)
		switch {
		case info.Mode().IsRegular():
			body, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(body)
			about += fmt.Sprintf(" %s %d", hex.EncodeToString(sum[:8]), info.ModTime().UnixNano())
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			about += " " + to
		}
		s[rel] = about
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// untouched holds that between two states nothing changed but objects and
// branches inspect… that were added.
func untouched(t *testing.T, what string, before, after state) {
	t.Helper()
	for name, was := range before {
		if now, there := after[name]; !there {
			t.Errorf("%s: %s is gone", what, name)
		} else if now != was {
			t.Errorf("%s: %s changed:\nwas %s\nis  %s", what, name, was, now)
		}
	}
	for name := range after {
		_, old := before[name]
		parts := strings.Split(name, "/")
		ours := strings.Contains(name, "refs/heads/inspect") || len(parts) > 1 && contains(parts, "objects")
		if !old && !ours {
			t.Errorf("%s: %s is new", what, name)
		}
	}
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

// call is one run of `inspect try`.
type call struct {
	t      *testing.T
	temp   string // its TMPDIR
	user   string // account to run as; empty: the test's
	dir    string // working directory
	env    []string
	stdout output
	stderr output
	cmd    *exec.Cmd
	ended  chan error
}

// output is what a running program has said so far.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *output) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *output) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// start starts it in a process group of its own, as a shell does.
func (c *call) start(args ...string) {
	c.t.Helper()
	if c.temp == "" {
		c.temp = openTemp(c.t)
	}
	c.cmd = exec.Command(program, append([]string{"try"}, args...)...)
	c.cmd.Dir = c.dir
	c.cmd.Stdout, c.cmd.Stderr = &c.stdout, &c.stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + c.temp, "TMPDIR=" + c.temp, "XDG_STATE_HOME=" + filepath.Join(c.temp, "state"), "LANG=C.UTF-8",
	}, c.env...)
	if c.user != "" && os.Geteuid() == 0 {
		u, err := user.Lookup(c.user)
		if err != nil {
			c.t.Fatal(err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		c.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), Groups: []uint32{}}
		if err := os.Chown(c.temp, uid, gid); err != nil {
			c.t.Fatal(err)
		}
	}
	if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.ended = make(chan error, 1)
	go func() { c.ended <- c.cmd.Wait() }()
	c.t.Cleanup(func() {
		// Of a test that failed: what is killed takes all it started with it.
		_ = c.cmd.Process.Kill()
	})
}

// wait waits for its end and returns the exit status.
func (c *call) wait() int {
	c.t.Helper()
	select {
	case err := <-c.ended:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			c.t.Fatal(err)
		}
	case <-time.After(4 * time.Minute):
		_ = c.cmd.Process.Kill()
		<-c.ended
		c.t.Fatalf("it did not end:\n%s", c.stderr.String())
	}
	return c.cmd.ProcessState.ExitCode()
}

// run starts it and waits.
func (c *call) run(args ...string) int {
	c.t.Helper()
	c.start(args...)
	return c.wait()
}

// result is what --json printed.
func (c *call) result() Result {
	c.t.Helper()
	var r Result
	c.decode(&r)
	return r
}

func (c *call) decode(v any) {
	c.t.Helper()
	dec := json.NewDecoder(strings.NewReader(c.stdout.String()))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		c.t.Fatalf("standard output is not one JSON object: %v\n%s\n%s", err, c.stdout.String(), c.stderr.String())
	}
	if dec.More() {
		c.t.Errorf("there is more than one JSON object:\n%s", c.stdout.String())
	}
}

// nothingLeft holds that nothing of the run is on the machine any more.
func (c *call) nothingLeft() {
	c.t.Helper()
	if left := leftovers(c.temp); len(left) > 0 {
		c.t.Errorf("left behind: %s", strings.Join(left, "; "))
	}
	dirs, _ := filepath.Glob(filepath.Join(c.temp, "inspect-*"))
	if len(dirs) > 0 {
		c.t.Errorf("files left: %v", dirs)
	}
}

// leftovers lists what runs, or is mounted, of something below dir.
func leftovers(dir string) (left []string) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && strings.Contains(string(line), dir) {
			left = append(left, "process "+e.Name()+" "+strings.ReplaceAll(string(line[:min(len(line), 200)]), "\x00", " "))
		}
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err == nil && strings.Contains(string(mounts), dir) {
		left = append(left, "a mount under "+dir)
	}
	return left
}

// until waits for something to become true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	end := time.Now().Add(2 * time.Minute)
	for !ok() {
		if time.Now().After(end) {
			t.Fatalf("it never came about: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
