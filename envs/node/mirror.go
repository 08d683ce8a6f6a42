package node

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/wire"
)

// mirrors keeps one bare repository for each repository of GitHub. Outside of
// sandboxes git runs only there, and no sandbox can write to it, so its
// configuration is what we put into it. What is fetched is hostile all the same:
// a daemon that is root has an account of its own do all that is done in a
// mirror.
type mirrors struct {
	dir     string // of <repository id>.git
	gitBase *url.URL
	token   func(context.Context, wire.Remote) (wire.GitToken, error)
	clock   proc.Clock
	account *proc.Credential // nil: ourselves

	mu    sync.Mutex
	locks map[int64]chan struct{}
	ready map[int64]bool // cleared of a killed daemon's locks
}

// mirrorConfig is the whole configuration of a mirror.
const mirrorConfig = `[core]
	repositoryformatversion = 0
	filemode = true
	bare = true
	hooksPath = /dev/null
	sharedRepository = 0644
[gc]
	auto = 0
[maintenance]
	auto = false
[uploadpack]
	allowAnySHA1InWant = true
[receive]
	denyCurrentBranch = refuse
`

var (
	commitPattern = regexp.MustCompile(`^[0-9a-f]{40}([0-9a-f]{24})?$`)
	// branchPattern is what git lets a branch be called of those characters that
	// are no option, refspec, pattern, revision, or way out of refs/heads.
	branchPattern = regexp.MustCompile(`^[^\x00-\x20\x7f~^:?*\[\\./-][^\x00-\x20\x7f~^:?*\[\\]*$`)
	// pullPattern is where a forge has the heads of pull requests.
	pullPattern = regexp.MustCompile(`^refs/pull/[1-9][0-9]{0,9}/head$`)
)

// path of a repository's mirror.
func (m *mirrors) path(repository int64) string {
	return filepath.Join(m.dir, strconv.FormatInt(repository, 10)+".git")
}

// parseGitBase reads the one place that may be fetched from: a git host or, if
// the operator says so with file://, a directory of this machine, which nobody
// but us and the operator may write to.
func parseGitBase(base string) (*url.URL, error) {
	u, err := url.Parse(base)
	if err == nil && u.Scheme == schemeFile {
		if u.Host != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || len(u.Path) < 2 || path.Clean(u.Path) != u.Path || !path.IsAbs(u.Path) {
			return nil, fmt.Errorf("the git base %q is not of the form file:///directory", base)
		}
		return u, nil
	}
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("the git host's address %q is not a URL of the form https://host", base)
	}
	if u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())) {
		return nil, fmt.Errorf("the git host's address %q is neither https nor on this machine: a token would travel in clear", base)
	}
	return u, nil
}

// schemeFile is the scheme of repositories on this machine.
const schemeFile = "file"

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// check says whether the remote may be fetched from.
func (m *mirrors) check(r wire.Remote) error {
	u, err := url.Parse(r.URL)
	switch {
	case err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return errors.New("its address is not a plain URL")
	case u.Scheme != m.gitBase.Scheme || !sameHost(u, m.gitBase):
		return fmt.Errorf("its address is not below %s", m.gitBase)
	case m.gitBase.Path != "" && !strings.HasPrefix(u.Path, strings.TrimRight(m.gitBase.Path, "/")+"/"):
		return fmt.Errorf("its address is not below %s", m.gitBase)
	case strings.Contains(u.Path, ".."):
		return errors.New("its address climbs out of its place")
	case r.RepositoryID <= 0:
		return errors.New("it has no id")
	case !validBranch(r.Branch):
		return errors.New("its branch has a name that is not fetched")
	case r.Ref != "" && !pullPattern.MatchString(r.Ref):
		return errors.New("its ref has a name that is not fetched")
	}
	return nil
}

func sameHost(a, b *url.URL) bool {
	port := func(u *url.URL) string {
		if p := u.Port(); p != "" {
			return p
		}
		return map[string]string{"https": "443", "http": "80"}[u.Scheme]
	}
	return strings.EqualFold(net.JoinHostPort(a.Hostname(), port(a)), net.JoinHostPort(b.Hostname(), port(b)))
}

func validBranch(b string) bool {
	return len(b) <= 244 && utf8.ValidString(b) && branchPattern.MatchString(b) && b != "@" && !strings.Contains(b, "..") && !strings.Contains(b, "//") &&
		!strings.Contains(b, "@{") && !strings.HasSuffix(b, "/") && !strings.HasSuffix(b, ".") &&
		!strings.HasSuffix(b, ".lock") && !strings.Contains(b, "/.") && !strings.Contains(b, ".lock/")
}

// fetchError is a fetch that failed, in words for a person.
type fetchError struct {
	words     string
	anonymous bool // it was tried without a token
}

func (e *fetchError) Error() string { return e.words }

// Fetch brings the remote's branch and commit into the mirror; commits are
// kept by refs of ours, so that they stay whatever happens to the branch. A
// commit that is there already costs no request. An error that is a
// *fetchError is the fetch's own; anything else is ours or the context's.
func (m *mirrors) Fetch(ctx context.Context, r wire.Remote, commit string) (err error) {
	if err := m.check(r); err != nil {
		return &fetchError{words: "the repository is not fetched: " + err.Error()}
	}
	if !commitPattern.MatchString(commit) {
		return &fetchError{words: "the commit is not a full commit id"}
	}
	unlock, err := m.lock(ctx, r.RepositoryID)
	if err != nil {
		return err
	}
	defer unlock()
	ctx, cancel := proc.WithTimeout(ctx, m.clock, fetchTime)
	defer cancel()
	token := ""
	_, missing := os.Lstat(m.path(r.RepositoryID))
	if missing != nil { // before anything is made for what may not be read
		if token, err = m.tokenFor(ctx, r); err != nil {
			return err
		}
	}
	defer func() {
		var own *fetchError
		if missing != nil && errors.As(err, &own) && own.anonymous {
			err = errors.Join(err, m.remove(r.RepositoryID)) // nor is anything kept for it
		}
	}()
	if err := m.ensure(ctx, r); err != nil {
		return fmt.Errorf("make the mirror of repository %d: %w", r.RepositoryID, err)
	}
	now := m.clock.Now()
	if err := os.Chtimes(m.path(r.RepositoryID), now, now); err != nil { // a collection goes by it
		return err
	}
	if m.has(ctx, r.RepositoryID, commit) {
		return m.keep(ctx, r.RepositoryID, commit)
	}
	if missing == nil {
		if token, err = m.tokenFor(ctx, r); err != nil {
			return err
		}
	}
	// By its id git need not ask for the list of refs, and a branch that has
	// moved on meanwhile is no matter.
	err = m.fetch(ctx, r, token, commit+":refs/inspect/commits/"+commit)
	if err == nil || ctx.Err() != nil {
		return err
	}
	// Some servers give no commit that is not the tip of a branch.
	refspec := "+refs/heads/" + r.Branch + ":refs/heads/" + r.Branch
	if r.Ref != "" {
		refspec = "+" + r.Ref + ":refs/inspect/" + strings.TrimPrefix(r.Ref, "refs/")
	}
	if berr := m.fetch(ctx, r, token, refspec); berr != nil {
		return errors.Join(err, berr)
	}
	if !m.has(ctx, r.RepositoryID, commit) {
		return err
	}
	return m.keep(ctx, r.RepositoryID, commit)
}

// tokenFor is what the repository is read with; a directory of this machine
// needs nothing.
func (m *mirrors) tokenFor(ctx context.Context, r wire.Remote) (string, error) {
	if m.gitBase.Scheme == schemeFile {
		return "", nil
	}
	token, err := m.token(ctx, r)
	var refused *wire.Error
	switch {
	case errors.As(err, &refused):
		return "", &fetchError{words: "no token to read the repository: " + refused.Message}
	case err != nil:
		return "", fmt.Errorf("ask for a token to read the repository: %w", err)
	}
	return token.Token, nil
}

// lock waits until nobody else works in the repository's mirror.
func (m *mirrors) lock(ctx context.Context, repository int64) (unlock func(), err error) {
	l := m.turn(repository)
	select {
	case l <- struct{}{}:
		return func() { <-l }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// tryLock is lock that does not wait.
func (m *mirrors) tryLock(repository int64) (unlock func(), ok bool) {
	l := m.turn(repository)
	select {
	case l <- struct{}{}:
		return func() { <-l }, true
	default:
		return nil, false
	}
}

// turn holds one thing while somebody works in a repository's mirror.
func (m *mirrors) turn(repository int64) chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.locks[repository]
	if l == nil {
		l = make(chan struct{}, 1)
		m.locks[repository] = l
	}
	return l
}

// collect removes mirrors of repositories that nobody has needed for long, and
// that nobody works in; needed is told of all that somebody needs now.
func (m *mirrors) collect(needed func(int64) bool, log *slog.Logger) error {
	found, err := filepath.Glob(filepath.Join(m.dir, "*.git"))
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range found {
		repository, err := strconv.ParseInt(strings.TrimSuffix(filepath.Base(path), ".git"), 10, 64)
		if err != nil || m.path(repository) != path {
			continue
		}
		now := m.clock.Now()
		if needed(repository) {
			errs = append(errs, os.Chtimes(path, now, now))
			continue
		}
		unlock, ok := m.tryLock(repository)
		if !ok {
			continue
		}
		if st, err := os.Lstat(path); err == nil && now.Sub(st.ModTime()) >= keepUnused {
			log.Info("collecting the mirror of a repository that nobody needs", "repository", repository)
			errs = append(errs, m.remove(repository))
		}
		unlock()
	}
	return errors.Join(errs...)
}

// ensure makes the mirror if it is not there, and clears what a killed daemon
// left in it.
func (m *mirrors) ensure(ctx context.Context, r wire.Remote) error {
	p := m.path(r.RepositoryID)
	m.mu.Lock()
	ready := m.ready[r.RepositoryID]
	m.mu.Unlock()
	if ready {
		return nil
	}
	if _, err := os.Stat(p); err == nil {
		if _, err := m.git(ctx, p, nil, "rev-parse", "--is-bare-repository"); err != nil {
			if ctx.Err() != nil {
				return err
			}
			// Damaged beyond use; everything in it can be fetched again.
			if err := os.RemoveAll(p); err != nil {
				return err
			}
		}
	}
	if _, err := os.Stat(p); errors.Is(err, os.ErrNotExist) {
		tmp := p + ".new"
		if err := os.RemoveAll(tmp); err != nil {
			return err
		}
		if _, err := m.git(ctx, m.dir, nil, "init", "--quiet", "--bare", "--template=", "--shared=0644", "--initial-branch="+r.Branch, tmp); err != nil {
			return err
		}
		if _, err := m.run(ctx, tmp, strings.NewReader(mirrorConfig), nil, "sh", "-c", "cat >config"); err != nil {
			return err
		}
		if err := os.Rename(tmp, p); err != nil {
			return err
		}
	}
	// What a git that was killed has left. Nobody else writes in a mirror.
	if _, err := m.run(ctx, p, nil, nil, "sh", "-c", `rm -f ./*.lock && find refs objects/pack \( -name "*.lock" -o -path "objects/pack/tmp_*" \) -type f -delete`); err != nil {
		return err
	}
	m.mu.Lock()
	m.ready[r.RepositoryID] = true
	m.mu.Unlock()
	return nil
}

// remove takes a mirror away. Whoever calls it has it locked.
func (m *mirrors) remove(repository int64) error {
	m.mu.Lock()
	delete(m.ready, repository)
	m.mu.Unlock()
	return os.RemoveAll(m.path(repository))
}

// has says whether the commit and all that it needs are in the mirror. A ref of
// ours means that; otherwise git looks.
func (m *mirrors) has(ctx context.Context, repository int64, commit string) bool {
	p := m.path(repository)
	if _, err := m.git(ctx, p, nil, "rev-parse", "--verify", "--quiet", "refs/inspect/commits/"+commit); err == nil {
		return true
	}
	if _, err := m.git(ctx, p, nil, "cat-file", "-e", commit+"^{commit}"); err != nil {
		return false
	}
	// Objects of a fetch that was killed may lie there without their parents.
	_, err := m.git(ctx, p, nil, "rev-list", "--objects", "--quiet", commit, "--not", "--all")
	return err == nil
}

// Drift counts the commits on the way from one commit to another, both ways. A
// commit that is not in the mirror, because its history was rewritten before it
// was ever fetched here or because it was collected, has nothing in common.
func (m *mirrors) Drift(ctx context.Context, repository int64, since, commit string) (wire.Drift, error) {
	if !commitPattern.MatchString(since) || !commitPattern.MatchString(commit) {
		return wire.Drift{}, errors.New("it is not a full commit id")
	}
	if since == commit {
		return wire.Drift{}, nil
	}
	ctx, cancel := proc.WithTimeout(ctx, m.clock, driftTime)
	defer cancel()
	p := m.path(repository)
	for _, args := range [][]string{{"cat-file", "-e", since + "^{commit}"}, {"merge-base", since, commit}} {
		_, err := m.git(ctx, p, nil, args...)
		var exit *proc.ExitError
		if errors.As(err, &exit) && exit.Result.Signal == "" && ctx.Err() == nil {
			return wire.Drift{Unrelated: true}, nil
		}
		if err != nil {
			return wire.Drift{}, err
		}
	}
	var d wire.Drift
	for _, c := range []struct {
		to        *int
		has, lack string
	}{{&d.Commits, commit, since}, {&d.Behind, since, commit}} {
		res, err := m.git(ctx, p, nil, "rev-list", "--count", "--max-count="+strconv.Itoa(wire.MaxDrift), c.has, "^"+c.lack)
		if err == nil {
			*c.to, err = strconv.Atoi(strings.TrimSpace(string(res.Stdout)))
		}
		if err != nil {
			return wire.Drift{}, err
		}
	}
	return d, nil
}

func (m *mirrors) keep(ctx context.Context, repository int64, commit string) error {
	_, err := m.git(ctx, m.path(repository), nil, "update-ref", "refs/inspect/commits/"+commit, commit)
	return err
}

func (m *mirrors) fetch(ctx context.Context, r wire.Remote, token, refspec string) error {
	env := gitSettings(m.gitBase, token)
	args := []string{"fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-auto-gc", "--no-write-fetch-head"}
	if m.gitBase.Scheme == schemeFile {
		args = append(args, "--update-shallow") // the history of a person's clone may be cut off
	}
	_, err := m.git(ctx, m.path(r.RepositoryID), env, append(args, "--end-of-options", r.URL, refspec)...)
	var exit *proc.ExitError
	if errors.As(err, &exit) {
		words := redact.New(token).String(strings.TrimSpace(string(exit.Result.Stderr)))
		return &fetchError{"git fetch of " + r.Branch + " failed: " + redact.Tail(words, 2000), token == ""}
	}
	return err
}

// borne are faults of objects that old histories have and GitHub serves; they
// harm nobody.
var borne = []string{"zeroPaddedFilemode", "badTimezone", "badDate", "missingSpaceBeforeDate", "missingEmail"}

// gitSettings is the configuration of one fetch, given through the
// environment: the token is in no argument, URL or file. It is sent to the
// git host only and never follows a redirect.
func gitSettings(base *url.URL, token string) []string {
	set := [][2]string{
		{"http.followRedirects", "false"},
		{"http.lowSpeedLimit", "1000"}, // bytes a second, for as many seconds:
		{"http.lowSpeedTime", "60"},
		{"credential.helper", ""},
		{"core.hooksPath", "/dev/null"},
		{"core.askPass", ""},
		{"gc.auto", "0"},
		{"maintenance.auto", "false"},
		{"fetch.fsckObjects", "true"},
		{"fetch.recurseSubmodules", "false"},
		{"protocol.allow", "never"},
		{"protocol." + base.Scheme + ".allow", "always"},
	}
	for _, id := range borne {
		set = append(set, [2]string{"fetch.fsck." + id, "warn"})
	}
	if token != "" {
		auth := base64.StdEncoding.EncodeToString([]byte("x-access-token:" + token))
		set = append(set, [2]string{"http." + base.Scheme + "://" + base.Host + "/.extraHeader", "Authorization: Basic " + auth})
	}
	env := []string{"GIT_CONFIG_COUNT=" + strconv.Itoa(len(set))}
	for i, kv := range set {
		env = append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", i, kv[0]), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", i, kv[1]))
	}
	return env
}

// Bounds of what is done in a mirror.
const (
	fetchTime  = time.Hour
	driftTime  = 2 * time.Minute
	mirrorSize = 64 << 30 // of one file, bytes
	mirrorRAM  = 16 << 30 // address space: packs are mapped into it
)

// git runs git in a mirror.
func (m *mirrors) git(ctx context.Context, dir string, settings []string, args ...string) (proc.Result, error) {
	return m.run(ctx, dir, nil, settings, append([]string{"git"}, args...)...)
}

// run runs a program outside of every sandbox, as the mirrors' account.
func (m *mirrors) run(ctx context.Context, dir string, stdin io.Reader, settings []string, argv ...string) (proc.Result, error) {
	env := append([]string{
		"PATH=" + proc.DefaultPath, "LANG=C.UTF-8", "HOME=/nonexistent",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0", "GIT_NO_REPLACE_OBJECTS=1",
		"GIT_CEILING_DIRECTORIES=" + m.dir,
	}, settings...)
	// The shell's limits are in KiB, of a file in blocks of 512 bytes.
	limits := fmt.Sprintf(`umask 022; ulimit -c 0; ulimit -f %d; ulimit -v %d; exec "$@"`, mirrorSize/512, mirrorRAM>>10)
	return proc.Run(ctx, proc.Command{
		Argv: append([]string{"sh", "-c", limits, "sh"}, argv...), Dir: dir, Env: env, Stdin: stdin,
		Credential: m.account, Limit: 64 << 10, Clock: m.clock,
	})
}

// prepare makes the directory of the mirrors, which is their account's.
func (m *mirrors) prepare() error {
	if err := os.MkdirAll(m.dir, 0o711); err != nil {
		return err
	}
	if m.account == nil {
		return nil
	}
	return os.Chown(m.dir, m.account.UID, -1)
}
