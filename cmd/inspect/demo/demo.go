// Package demo plays the main story of Inspect on one machine: a GitHub of its
// own (fixtures/githubd) with a real repository in it, `inspect serve` with
// its private database, and octocat who puts a label on an issue. Options come
// in; the steps with their durations go to a writer, the result comes back.
// Nothing is played but GitHub and the agent's mind.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"inspect/envs/proc"
	"inspect/fixtures/githubd"
	"inspect/fixtures/modeld"
	"inspect/fixtures/repos"
)

// Options of Run.
type Options struct {
	Binary string        // the inspect binary
	Keep   bool          // go on after the story until ctx ends
	JSON   bool          // print the result as the last line of Out
	Kill   string        // "serve", "node" or "runner": killed with -9 while the harness works, then started again
	Mode   string        // of the scripted agent, default "ok"; see fixtures/scripted
	Delay  time.Duration // how long the agent thinks
	Limits string        // "enforce" or "best-effort"

	Sandbox []string // flags of serve that say what sandboxes are made of
	Store   []string // and where snapshots are kept
	// Erase removes what is kept outside of the directory that serve had, once
	// that has ended; nil: nothing is.
	Erase func(ctx context.Context, data string) error
	Nomad *Cluster // that sessions run in; nil: the local engine

	Harness  string   // "opencode", "codex" or "claude"; empty: the scripted agent
	Model    string   // openai/NAME or anthropic/NAME with the key in the environment; empty: one without a mind
	Programs []string // NAME=PATH of agents, passed on to serve

	Out io.Writer // the story; with JSON only the last line
	Err io.Writer // what serve logs

	Observer githubd.Observer // of what passes between serve and the GitHub; nil outside of tests
}

// Result of the story, in the words of the check run and the session.
type Result struct {
	Session      string  `json:"session"`
	State        string  `json:"state"`
	Conclusion   string  `json:"conclusion"`
	PullRequest  int     `json:"pull_request"`
	Branch       string  `json:"branch"`
	HeadSHA      string  `json:"head_sha"`
	CheckRunID   int64   `json:"check_run_id"`
	Verify       Verify  `json:"verify"`
	RestoreMS    float64 `json:"restore_ms"`
	Harness      string  `json:"harness"`
	Generation   int     `json:"generation"`
	GitHub       Counts  `json:"github_requests"` // from the label on
	Reason       string  `json:"reason,omitempty"`
	Words        string  `json:"words,omitempty"`
	PullRequests int     `json:"pull_requests"` // how many there are in all
	CheckRuns    int     `json:"check_runs"`
	TotalMS      int64   `json:"total_ms"` // from the label to the end told on GitHub
	Engine       string  `json:"engine"`
	Job          string  `json:"job,omitempty"` // of the last attempt, which Nomad has forgotten
}

// Verify counts tests.
type Verify struct {
	Passed int `json:"passed"`
	Failed int `json:"failed"`
}

// Counts of requests the App sent to GitHub.
type Counts struct {
	Total  int `json:"total"`
	Tokens int `json:"tokens"`
	Writes int `json:"writes"`
}

// ErrNotDelivered is the error of a story that ended in another way.
var ErrNotDelivered = errors.New("the session was not delivered")

const (
	repoName = "octocat/parcel"
	octocat  = "octocat"
	// patience bounds the story, so that a broken build ends with words.
	patience = 10 * time.Minute
	// eraseTime bounds what is done after it.
	eraseTime = time.Minute
)

// Run plays the story. It leaves no process, mount, socket or file behind.
func Run(ctx context.Context, o Options) (res Result, err error) {
	st := &story{o: o, out: newTeller(o.Out, o.JSON), started: time.Now(), jobs: map[string]bool{}}
	defer func() {
		// A story that ended early has its line, too.
		if o.JSON && err != nil && !st.out.said {
			res.Words = err.Error()
			err = errors.Join(err, st.out.result(res))
		}
	}()
	dir, err := os.MkdirTemp("", "inspect-demo-")
	if err != nil {
		return res, err
	}
	defer func() {
		if rmErr := os.RemoveAll(dir); rmErr != nil && err == nil {
			err = fmt.Errorf("clean up: %w", rmErr)
		}
	}()
	// The accounts of sandboxes and runners pass through it.
	if err := os.Chmod(dir, 0o711); err != nil {
		return res, err
	}
	st.dir = dir

	if err := st.openGitHub(ctx); err != nil {
		return res, fmt.Errorf("the fixture GitHub: %w", err)
	}
	defer st.github.Close()
	defer func() {
		if st.model != nil {
			st.model.Close()
		}
	}()
	defer func() { // after serve has ended
		if o.Erase == nil {
			return
		}
		clear, cancel := context.WithTimeout(context.WithoutCancel(ctx), eraseTime)
		defer cancel()
		if eerr := o.Erase(clear, filepath.Join(dir, "data")); eerr != nil && err == nil {
			err = fmt.Errorf("clean up: %w", eerr)
		}
	}()
	stopServe, err := st.startServe(ctx)
	if err != nil {
		return res, fmt.Errorf("inspect serve: %w", err)
	}
	defer stopServe()
	defer st.clearCluster(ctx)

	story, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	res, err = st.play(story)
	if err != nil {
		if ctx.Err() != nil {
			return res, context.Cause(ctx)
		}
		return res, err
	}
	if o.JSON {
		if err := st.out.result(res); err != nil {
			return res, err
		}
	}
	if o.Keep {
		if err := st.tellHowToGoOn(res); err != nil {
			return res, err
		}
		<-ctx.Done()
	}
	if res.State != "delivered" {
		return res, fmt.Errorf("%w: it is %s (%s)", ErrNotDelivered, res.State, res.Words)
	}
	return res, nil
}

// story is one run of the demo.
type story struct {
	o       Options
	out     *teller
	started time.Time
	dir     string
	program string // inspect, where sandboxes see it
	repo    repos.Repo
	github  *githubd.Server
	model   *modeld.Server  // nil: none of ours
	key     string          // of the model
	scripts []modeld.Script // nil: the one that resolves the sample issue
	issue   int
	jobs    map[string]bool // in Nomad, and whether it was looked at
	pages   pages
	serve   *serveProcess
}

// openGitHub starts the fixture GitHub with the sample repository in it.
func (st *story) openGitHub(ctx context.Context) error {
	done := st.out.step("a GitHub of our own with the repository " + repoName)
	st.repo = repos.Parcel()
	seed := filepath.Join(st.dir, "seed")
	if _, err := st.repo.Commit(ctx, seed); err != nil {
		return err
	}
	dir := filepath.Join(st.dir, "github")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	secret := "demo-" + filepath.Base(st.dir)
	gh, err := githubd.New(githubd.Options{
		Dir: dir, WebhookSecret: secret,
		Events:   []string{"issues", "issue_comment", "push"}, // as in app.yml
		Observer: st.o.Observer,
	})
	if err != nil {
		return err
	}
	st.github = gh
	if _, err := gh.AddRepository(octocat, "parcel", githubd.Seed{Dir: seed}); err != nil {
		return err
	}
	if err := gh.Start("127.0.0.1:0"); err != nil {
		return err
	}
	for name, body := range map[string]string{"app.pem": string(gh.KeyPEM()), "webhook.secret": secret} {
		if err := os.WriteFile(filepath.Join(st.dir, name), []byte(body), 0o600); err != nil {
			return err
		}
	}
	if st.issue, err = gh.OpenIssue(repoName, octocat, st.repo.IssueTitle, st.repo.IssueBody); err != nil {
		return err
	}
	done(gh.URL())
	return nil
}

// placeProgram copies this program, which is the scripted agent too, to where
// sandboxes may be shown it.
func (st *story) placeProgram() error {
	if st.program != "" {
		return nil
	}
	dir := filepath.Join(st.dir, "agent")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	body, err := os.ReadFile(st.o.Binary)
	if err != nil {
		return err
	}
	st.program = filepath.Join(dir, "inspect")
	return os.WriteFile(st.program, body, 0o755)
}

// agent is the harness command line: this program again, inside the sandbox.
func (st *story) agent() string {
	words := append([]string{st.program, AgentCommand}, st.repo.Script()...)
	if st.o.Mode != "" {
		words = append(words, "--mode", st.o.Mode)
	}
	if st.o.Delay > 0 {
		words = append(words, "--delay", st.o.Delay.String())
	}
	for i, w := range words {
		words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(words, " ")
}

// startServe starts `inspect serve` and has it learn of the installation.
func (st *story) startServe(ctx context.Context) (stop func(), err error) {
	agent, err := st.openModel()
	if err != nil {
		return nil, err
	}
	if agent == nil {
		if err := st.placeProgram(); err != nil {
			return nil, err
		}
		agent = []string{"--harness-command", st.agent(), "--harness-label", "scripted"}
	}
	done := st.out.step("inspect serve with its private database")
	var addr [3]string
	for i := range addr {
		if addr[i], err = freeAddress(); err != nil {
			return nil, err
		}
	}
	data := filepath.Join(st.dir, "data")
	argv := []string{
		st.o.Binary, "serve", "--data", data,
		"--github-app-id", "12345", "--github-key-file", filepath.Join(st.dir, "app.pem"),
		"--webhook-secret-file", filepath.Join(st.dir, "webhook.secret"),
		"--github-api", st.github.URL(), "--github-git", st.github.URL(), "--github-write-spacing", "0s",
		"--listen-hooks", addr[0], "--listen-people", addr[1], "--listen-machines", addr[2],
		"--limits", st.o.Limits,
	}
	argv = append(append(append(argv, st.o.Sandbox...), st.o.Store...), agent...)
	cluster, err := st.clusterFlags()
	if err != nil {
		return nil, err
	}
	argv = append(argv, cluster...)
	if st.program != "" {
		argv = append(argv, "--expose", filepath.Dir(st.program))
	}
	toolchain, err := goRoot(ctx)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(toolchain, "/usr/") {
		argv = append(argv, "--expose", toolchain)
	}
	st.serve = &serveProcess{argv: argv, err: st.o.Err, data: data}
	st.pages = pages{base: "http://" + addr[1], tokenFile: filepath.Join(data, "private", "people.token")}
	if err := st.serve.start(); err != nil {
		return nil, err
	}
	stop = func() {
		end := st.out.step("everything is stopped")
		if err := st.serve.stop(); err != nil {
			st.out.line("  " + err.Error())
		}
		end("")
	}
	if err := st.pages.awaitUp(ctx, st.serve.failed()); err != nil {
		stop()
		return nil, err
	}
	st.github.SetWebhookURL("http://" + addr[0] + "/webhooks/github")
	done(st.pages.base)
	return stop, nil
}

// freeAddress finds a port nobody listens on, below those the kernel gives to
// whoever asks for any: one of these could be taken until serve listens.
func freeAddress() (string, error) {
	var err error
	for range 50 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(15_000+rand.IntN(15_000)))
		var l net.Listener
		if l, err = net.Listen("tcp", addr); err == nil {
			return addr, l.Close()
		}
	}
	return "", err
}

// goRoot is where the Go toolchain lies that the repository's tests need.
func goRoot(ctx context.Context) (string, error) {
	res, err := proc.Run(ctx, proc.Command{Argv: []string{"go", "env", "GOROOT"}, Env: os.Environ()})
	if err != nil {
		return "", fmt.Errorf("the sample repository needs Go: %w", err)
	}
	return filepath.EvalSymlinks(strings.TrimSpace(string(res.Stdout)))
}
