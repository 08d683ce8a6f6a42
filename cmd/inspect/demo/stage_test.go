package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inspect/fixtures/githubd"
	"inspect/fixtures/githubd/githubdtest"
	"inspect/fixtures/webhooks"
)

// binary is the inspect program, built once for this test binary.
var binary string

// binaryVar names it where this test binary runs itself.
const binaryVar = "INSPECT_TEST_BINARY"

func TestMain(m *testing.M) {
	code, err := build(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func build(m *testing.M) (int, error) {
	if binary = os.Getenv(binaryVar); binary != "" {
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("", "inspect-story-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o711); err != nil {
		return 1, err
	}
	binary = filepath.Join(dir, "inspect")
	cmd := exec.Command("make", "-s", "-C", "../../..", "build", "BIN="+binary) // with its init beside it
	if out, err := cmd.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build inspect: %w\n%s", err, out)
	}
	return m.Run(), nil
}

func limits() string {
	if os.Geteuid() == 0 {
		return "enforce"
	}
	return "best-effort"
}

// stage is a story of our own: the same GitHub, the same serve, but small
// repositories whose tests need no compiler.
type stage struct {
	*story
	t *testing.T
}

// small is a repository that is prepared in a moment. Its agent is the scripted
// one, told by the repository itself how to behave.
func small(flags ...string) map[string]string {
	words := append([]string{binary, AgentCommand, "--edit", "price.txt", "--replace", "price=11", "--with", "price=10", "--test", "sh test.sh"}, flags...)
	for i, w := range words {
		words[i] = "'" + w + "'"
	}
	return map[string]string{
		"price.txt": "price=11\n",
		"test.sh":   "grep -q price=10 price.txt\n",
		".inspect.yml": "version: 1\nverify: [{name: unit, run: sh test.sh}]\n" +
			"limits: {memory: 256MiB, pids: 100, disk: 64MiB, timeout: 15s}\n" +
			"harness: {kind: command, command: \"" + strings.ReplaceAll(strings.Join(words, " "), `"`, `\"`) + "\"}\n",
	}
}

// openStage starts a GitHub with the given repositories of octocat and serve.
func openStage(t *testing.T, repositories map[string]map[string]string) *stage {
	t.Helper()
	return openStageWith(t, repositories, func(*story) {})
}

func openStageWith(t *testing.T, repositories map[string]map[string]string, edit func(*story)) *stage {
	t.Helper()
	dir, err := os.MkdirTemp("", "inspect-demo-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	s := &stage{t: t, story: &story{
		o:   Options{Binary: binary, Limits: limits(), Err: &logTo{t: t, path: filepath.Join(dir, "serve.log")}},
		out: newTeller(testWriter{t}, false), started: time.Now(), dir: dir, program: binary, jobs: map[string]bool{},
	}}
	edit(s.story)
	gh := githubdtest.New(t, githubd.Options{Dir: mkdir(t, dir, "github"), WebhookSecret: canarySecret, Events: []string{"issues", "issue_comment"}}) // no push: drift stays
	s.github = gh
	var names []string
	for name, files := range repositories {
		if _, err := gh.AddRepository(octocat, name, githubd.Seed{Files: files}); err != nil {
			t.Fatal(err)
		}
		names = append(names, octocat+"/"+name)
	}
	for name, body := range map[string]string{"app.pem": string(gh.KeyPEM()), "webhook.secret": canarySecret} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stop, err := s.startServe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if left := leftovers(dir); len(left) > 0 {
			t.Errorf("left behind: %s", strings.Join(left, "; "))
		}
		if t.Failed() {
			if log, err := os.ReadFile(filepath.Join(dir, "serve.log")); err == nil {
				t.Logf("serve said:\n%s", log[max(0, len(log)-16<<10):])
			}
		}
	})
	if _, err := gh.Install(octocat, names...); err != nil {
		t.Fatal(err)
	}
	return s
}

const canarySecret = "canary-webhook-secret-5d0c7a"

// again starts a serve that was stopped.
func (s *stage) again() error {
	s.serve.mu.Lock()
	s.serve.stopping = false
	s.serve.mu.Unlock()
	return s.serve.start()
}

func mkdir(t *testing.T, parts ...string) string {
	t.Helper()
	dir := filepath.Join(parts...)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// ask opens an issue in a repository and labels it.
func (s *stage) ask(repo, title string) (issue int) {
	s.t.Helper()
	issue, err := s.github.OpenIssue(octocat+"/"+repo, octocat, title, "Please.")
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.github.Label(octocat+"/"+repo, issue, "inspect", octocat); err != nil {
		s.t.Fatal(err)
	}
	return issue
}

// listed is what the list of sessions says.
type listed struct {
	Session    string `json:"session"`
	Repository string `json:"repository"`
	Issue      int    `json:"issue"`
}

// of finds the session of an issue.
func (s *stage) of(ctx context.Context, repo string, issue int) string {
	s.t.Helper()
	var id string
	err := await(ctx, "no session for "+repo, nil, func() (bool, error) {
		var all []listed
		if err := s.pages.get(ctx, "/sessions.json", &all); err != nil {
			return false, err
		}
		for _, l := range all {
			if l.Repository == octocat+"/"+repo && l.Issue == issue {
				id = l.Session
			}
		}
		return id != "", nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return id
}

// until waits for a session to be as wanted.
func (s *stage) until(ctx context.Context, id, what string, ok func(sessionView) bool) sessionView {
	s.t.Helper()
	var last sessionView
	err := await(ctx, "session "+id+" is not "+what, nil, func() (bool, error) {
		v, err := s.pages.session(ctx, id)
		if err != nil {
			return false, err
		}
		last = v
		return ok(v), nil
	})
	if err != nil {
		s.t.Fatalf("%v; it is %s (%s: %s)", err, last.State, last.Reason, last.Words)
	}
	return last
}

func over(v sessionView) bool { return v.Terminal && v.Reported }

// leftovers lists what an installation under dir has left on the machine.
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
	groups, _ := filepath.Glob("/sys/fs/cgroup/*" + cgroupOf(dir) + "*")
	return append(left, groups...)
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// logTo keeps what serve says for a test that fails.
type logTo struct {
	t    *testing.T
	path string
}

func (l *logTo) Write(p []byte) (int, error) {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.Write(p)
}

// onlyAllowed holds the record of requests to what the App may do at all.
func onlyAllowed(t *testing.T, gh *githubd.Server) {
	t.Helper()
	for _, r := range gh.Requests() {
		if !r.FromApp() {
			continue
		}
		for _, bad := range []string{"/merge", "/reviews", "/protection", "/rulesets", "/collaborators/invit", "/auto-merge", "/hooks", "/keys"} {
			if strings.Contains(r.Path, bad) && r.Method != "GET" {
				t.Errorf("the App sent %s %s", r.Method, r.Path)
			}
		}
		if r.Method == "DELETE" && !r.IsToken() {
			t.Errorf("the App sent %s %s", r.Method, r.Path)
		}
		for _, p := range r.Push {
			if !strings.HasPrefix(p.Ref, "refs/heads/inspect/") || p.New == strings.Repeat("0", 40) {
				t.Errorf("the App pushed %s to %s", p.New, p.Ref)
			}
		}
	}
}

func pullsOf(t *testing.T, gh *githubd.Server, repo string) []webhooks.PullRequest {
	t.Helper()
	pulls, err := gh.PullRequests(octocat + "/" + repo)
	if err != nil {
		t.Fatal(err)
	}
	return pulls
}

var errPatience = errors.New("out of patience")

func patienceOf(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), d, errPatience)
	t.Cleanup(cancel)
	return ctx
}
