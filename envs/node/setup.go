package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/sandbox"
	"inspect/envs/sandbox/dialer"
	"inspect/envs/sandbox/stream"
	"inspect/envs/services"
	"inspect/envs/wire"
)

// What is kept of a command's output, in bytes.
const (
	outputTail  = 4 << 10 // shown when it failed
	statusBytes = 1 << 20 // of git status
)

// firstStart is how long a service may take to become ready on data that was
// just made. Nobody waits for a refresh as for a session.
const firstStart = 2 * time.Minute

// checkout gives the sandbox a repository of its own: all objects are in it and
// it needs nothing outside, but its origin is the read-only mirror. No hooks,
// no background maintenance: a repack in a clone would share no blocks with
// its snapshot.
func (r *refresher) checkout(ctx context.Context, c *stream.Client) error {
	branch, commit := r.w.Remote.Branch, r.w.Commit
	tracking := "refs/remotes/origin/" + branch
	for _, argv := range [][]string{
		{"git", "init", "--quiet", "--template=", "--initial-branch=" + branch, "."},
		{"git", "config", "gc.auto", "0"},
		{"git", "config", "maintenance.auto", "false"},
		{"git", "remote", "add", "-t", branch, "origin", "file://" + sandbox.MirrorPath},
		{"git", "fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--update-shallow", "origin", commit + ":" + tracking},
		{"git", "symbolic-ref", "refs/remotes/origin/HEAD", tracking},
		{"git", "-c", "core.hooksPath=/dev/null", "checkout", "--quiet", "-B", branch, "--track", "origin/" + branch},
	} {
		if err := r.command(ctx, c, "checking out "+commit, strings.Join(argv[:2], " "), stream.Exec{Argv: argv}); err != nil {
			return err
		}
	}
	return r.submodules(ctx, c)
}

// quietly is git without what a repository that setup has written may bid it
// do besides.
func quietly(args ...string) []string {
	return append([]string{"git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false"}, args...)
}

// stay clears, of an earlier snapshot, what must not stay when setup runs again:
// locks, the names that were excluded, and the data of services, which setup and
// load are about to make: data that is loaded twice is wrong.
const stay = `set -e
find .git -xdev -name '*.lock' -type f -delete
rm -f .git/info/exclude
if [ -d /var/lib ]; then find /var/lib -xdev -mindepth 1 -delete; fi
`

// sync brings the clone of an earlier snapshot, which is of the commit from, to
// the commit that is wanted. What it lacks comes from the read-only mirror.
// Tracked files are as committed afterwards; what setup left beside them stays.
// A repository that is damaged or has nothing to do with the commit is an error.
func (r *refresher) sync(ctx context.Context, c *stream.Client, from string) error {
	branch, commit := r.w.Remote.Branch, r.w.Commit
	tracking := "refs/remotes/origin/" + branch
	mirror := "file://" + sandbox.MirrorPath
	for _, argv := range [][]string{
		{"sh", "-c", stay},
		quietly("config", "--replace-all", "remote.origin.url", mirror),
		quietly("config", "--replace-all", "remote.origin.fetch", "+refs/heads/"+branch+":"+tracking),
		quietly("fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--update-shallow", mirror, "+"+commit+":"+tracking),
		quietly("merge-base", from, commit),
		quietly("symbolic-ref", "refs/remotes/origin/HEAD", tracking),
		quietly("checkout", "--quiet", "--force", "-B", branch, "--track", "origin/"+branch),
	} {
		if err := r.command(ctx, c, "syncing the earlier snapshot to "+commit, words(argv), stream.Exec{Argv: argv, Stdout: io.Discard}); err != nil {
			return err
		}
	}
	return r.submodules(ctx, c)
}

// words is a command of ours as people are shown it.
func words(argv []string) string {
	for i := 1; i < len(argv) && argv[0] == "git"; i++ {
		if argv[i] == "-c" {
			i++
			continue
		}
		return "git " + argv[i]
	}
	return argv[0]
}

// setup runs the repository's setup commands one after the other. Where there
// are services it makes what they need, with their own programs.
func (r *refresher) setup(ctx context.Context, c *stream.Client) error {
	if err := r.programs(ctx, c); err != nil {
		return err
	}
	for i, step := range r.w.Setup {
		line := step.Run
		what := fmt.Sprintf("setup command %d of %d", i+1, len(r.w.Setup))
		argv := []string{"sh", "-c", line}
		if len(r.w.Services) > 0 {
			argv = services.Shell(line)
		}
		begun := r.n.clock.Now()
		if err := r.step(ctx, c, strconv.Itoa(i)+"-setup", what, step, argv); err != nil {
			return err
		}
		if part, ok := wire.SetupPhase(i); ok {
			r.phases[part] += r.n.clock.Now().Sub(begun)
		}
	}
	return nil
}

// needed are the programs that Inspect itself starts in the sandboxes of an
// environment: a refresh not all of them, a session each.
var needed = []string{"sh", "git", "find", "cat", "chmod", "cp", "mkdir", "rm"}

// programs looks for what an image must hold. Without it each session would end
// before its agent begins, as if by a fault of the machinery.
func (r *refresher) programs(ctx context.Context, c *stream.Client) error {
	if r.w.Image == "" {
		return nil // the node's own
	}
	look := `for p; do command -v "$p" >/dev/null || { echo "there is no $p"; none=yes; }; done; test -z "$none"`
	return r.command(ctx, c, "looking for the programs that the image "+r.w.Image+" must hold", strings.Join(needed, ", "),
		stream.Exec{Argv: append([]string{"sh", "-c", look, "sh"}, needed...)})
}

// step runs one step where its secrets are its alone.
func (r *refresher) step(ctx context.Context, c *stream.Client, place, what string, s wire.Step, argv []string) error {
	p, err := r.place(ctx, c, place, what, s)
	if err != nil {
		return err
	}
	defer p.Close()
	return r.command(ctx, p, what, s.Run, stream.Exec{Argv: argv, Env: p.Env})
}

// data starts the services, loads the data into them and stops them cleanly, so
// that the snapshot holds what they need for another start. Without data to
// load they are started all the same: a snapshot whose services do not become
// ready is of no use to anybody.
func (r *refresher) data(ctx context.Context, c *stream.Client) error {
	if len(r.w.Services)+len(r.w.Load) == 0 {
		return nil
	}
	var died []wire.ServiceState
	var set *services.Set
	err := r.in("services", func() (err error) {
		set, err = services.Start(ctx, c, r.w.Services, services.Options{
			Clock: r.n.clock, Redact: r.n.redactor, Timeout: firstStart,
			Apart: func(ctx context.Context, s wire.Service) (services.Apart, error) {
				return r.apart(ctx, s.Name, "service "+s.Name, s.Secrets)
			},
			Dial: func(ctx context.Context, addr string) (net.Conn, error) { return dialer.Dial(ctx, c, addr) },
			Event: func(s wire.ServiceState) {
				r.n.log.Info("a service of a refresh", "snapshot", r.w.Snapshot, "service", s.Name, "state", s.State, "after", s.After, "words", s.Words)
				if s.State == services.StateFailed {
					died = append(died, s)
				}
			},
		})
		return err
	})
	var bad *services.Error
	if errors.As(err, &bad) {
		return failed("%v", bad)
	}
	if err != nil {
		return failed("the services could not be started: %v", err)
	}
	if len(r.w.Load) > 0 {
		err = r.in("load", func() error { return r.load(ctx, c) })
	}
	// Before they are stopped: a service that ended by itself has lost data.
	lost := set.Failed()
	if serr := r.in("stop", func() error { return set.Stop(ctx) }); serr != nil {
		err = errors.Join(err, failed("%v", serr))
	}
	if len(lost) == 0 {
		return err
	}
	words := strings.Join(lost, "; ") + " while the data was loaded"
	if err != nil {
		words = err.Error() + "\n" + words
	}
	for _, s := range died {
		words += "\n" + s.Output
	}
	return failed("%s", words)
}

func (r *refresher) load(ctx context.Context, c *stream.Client) error {
	for i, step := range r.w.Load {
		what := fmt.Sprintf("loading data, line %d of %d,", i+1, len(r.w.Load))
		if err := r.step(ctx, c, strconv.Itoa(i)+"-load", what, step, services.Shell(step.Run)); err != nil {
			return err
		}
	}
	return nil
}

// leftovers removes what running programs leave and no later one may find. A
// pid file is worse than useless: in a fresh pid namespace its number belongs
// to something else.
const leftovers = `set -e
if [ -d .git ]; then
  find .git -xdev -name '*.lock' -type f -delete
  rm -f .git/gc.pid .git/fsmonitor--daemon.ipc
fi
set -- "$PWD" "$HOME"
if [ -d /var/lib ]; then
  find /var/lib -xdev -name '*.pid' -type f -delete
  set -- "$@" /var/lib
fi
find "$@" -xdev \( -name postmaster.pid -o -name '.s.PGSQL.*.lock' -o -name '*.sock.lock' -o -type s -o -type p \) -delete
`

// scan looks at what setup made of the tree. Setup may add what git ignores;
// what it leaves beside that is written to .git/info/exclude, so that it never
// becomes a part of somebody's change, and so are the caches that Python leaves
// beside every source it runs; what it changes of the repository's own
// files fails the refresh, because every session would begin with that change.
func (r *refresher) scan(ctx context.Context, c *stream.Client) error {
	if err := r.command(ctx, c, "clearing what setup left", "find", stream.Exec{Argv: []string{"sh", "-c", leftovers}}); err != nil {
		return err
	}
	status, err := r.status(ctx, c)
	if err != nil {
		return err
	}
	if len(status.changed) > 0 {
		return failed("setup changed files of the repository: %s. Let setup leave them as they are (for example npm ci in place of npm install), or commit the change",
			listed(status.changed))
	}
	lines, err := excludes(status.untracked)
	if err != nil {
		return err
	}
	err = r.command(ctx, c, "excluding what setup left", "cat", stream.Exec{
		Argv:  []string{"sh", "-c", "mkdir -p .git/info && cat >> .git/info/exclude"},
		Stdin: strings.NewReader("# left by setup\n" + lines + "# left by whatever runs Python\n__pycache__/\n"),
	})
	if err != nil {
		return err
	}
	if len(status.untracked) > 0 {
		r.n.log.Info("setup left files git does not ignore; they are excluded", "snapshot", r.w.Snapshot, "names", listed(status.untracked))
	}
	return r.verifyTree(ctx, c)
}

// fsckTime is how long all objects of the repository may take to be looked at;
// where that is not enough, it is only looked whether they are there.
const fsckTime = 5 * time.Minute

// fsck says whether the repository is whole.
func (r *refresher) fsck(ctx context.Context, c *stream.Client) error {
	check := func(ctx context.Context, how ...string) error {
		argv := append(quietly(), fsckSettings()...)
		argv = append(append(argv, "fsck", "--no-dangling", "--no-progress"), how...)
		return r.command(ctx, c, "checking the repository after setup", words(argv), stream.Exec{Argv: argv})
	}
	whole, cancel := proc.WithTimeout(ctx, r.n.clock, fsckTime)
	defer cancel()
	err := check(whole)
	if whole.Err() == nil || ctx.Err() != nil {
		return err
	}
	r.n.log.Info("the repository is too large to look at all of its objects", "snapshot", r.w.Snapshot, "within", fsckTime)
	return check(ctx, "--connectivity-only")
}

// fsckSettings have git fsck bear what the mirror's fetch has borne.
func fsckSettings() (args []string) {
	for _, id := range borne {
		args = append(args, "-c", "fsck."+id+"=warn")
	}
	return args
}

// verifyTree says whether the workspace is at the commit and clean.
func (r *refresher) verifyTree(ctx context.Context, c *stream.Client) error {
	head := &proc.Head{N: 200}
	if err := r.command(ctx, c, "reading HEAD", "git rev-parse HEAD", stream.Exec{Argv: []string{"git", "rev-parse", "HEAD"}, Stdout: head}); err != nil {
		return err
	}
	if got := strings.TrimSpace(string(head.Bytes())); got != r.w.Commit {
		return failed("the workspace is at commit %s, not at %s: setup must not commit or check out anything", redact.Cut(got, 64), r.w.Commit)
	}
	status, err := r.status(ctx, c)
	if err != nil {
		return err
	}
	if names := append(status.changed, status.untracked...); len(names) > 0 {
		return failed("git status is not clean: %s", listed(names))
	}
	return nil
}

// status is what git status found.
type status struct{ changed, untracked []string }

func (r *refresher) status(ctx context.Context, c *stream.Client) (status, error) {
	out := &proc.Head{N: statusBytes}
	err := r.command(ctx, c, "looking at the tree", "git status", stream.Exec{
		Argv:   []string{"git", "status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=normal", "--ignore-submodules=all"},
		Stdout: out,
	})
	if err != nil {
		return status{}, err
	}
	if out.Cut() {
		return status{}, failed("setup leaves more files than can be listed that git does not ignore: add what it makes to .gitignore")
	}
	var s status
	for _, entry := range bytes.Split(out.Bytes(), []byte{0}) {
		switch {
		case len(entry) < 4: // the end
		case string(entry[:3]) == "?? ":
			s.untracked = append(s.untracked, string(entry[3:]))
		default:
			s.changed = append(s.changed, string(entry[3:]))
		}
	}
	return s, nil
}

// excludes turns names into lines of .git/info/exclude that match just them.
func excludes(names []string) (string, error) {
	var b strings.Builder
	for _, name := range names {
		if strings.ContainsAny(name, "\n\r") {
			return "", failed("setup leaves a file whose name holds a line break: %q", redact.Cut(name, 100))
		}
		b.WriteByte('/')
		for _, c := range []byte(name) {
			if strings.IndexByte(`\*?[] `, c) >= 0 {
				b.WriteByte('\\')
			}
			b.WriteByte(c)
		}
		b.WriteByte('\n')
	}
	return b.String(), nil
}

// listed names the first few.
func listed(names []string) string {
	const show = 5
	var out []string
	for _, n := range names[:min(len(names), show)] {
		out = append(out, redact.OneLine(n, 120))
	}
	if len(names) > show {
		out = append(out, fmt.Sprintf("and %d more", len(names)-show))
	}
	return strings.Join(out, ", ")
}

// command runs one command in the sandbox. If it fails the error has its last
// lines, without secrets.
func (r *refresher) command(ctx context.Context, c services.Sandbox, what, line string, e stream.Exec) error {
	tail := &proc.Tail{N: outputTail}
	shared := io.Writer(tail)
	if e.Stdout == nil {
		e.Stdout = shared
	}
	e.Stderr = shared
	exit, err := c.Run(ctx, e)
	var cannot *stream.StartError
	switch {
	case errors.As(err, &cannot):
		words := fmt.Sprintf("%s could not be started: %s: %s", what, redact.OneLine(line, 300), cannot.Words)
		if r.w.Image != "" {
			words += "; the image " + r.w.Image + " must hold " + strings.Join(needed, ", ") + " besides what the repository needs"
		}
		return failed("%s", words)
	case err == nil && exit.Code == 0 && exit.Signal == "":
		return nil
	}
	how := fmt.Sprintf("failed with exit status %d", exit.Code)
	switch {
	case errors.Is(err, stream.ErrEnded):
		how = "did not end: the sandbox went away"
	case err != nil:
		how = "did not end: " + err.Error()
	case exit.Signal != "":
		how = "was ended by " + exit.Signal
	}
	words := what + " " + how + ": " + redact.OneLine(line, 300)
	if out := strings.TrimSpace(string(tail.Bytes())); out != "" {
		words += "\n" + redact.Tail(redact.Visible(out), outputTail)
	}
	return failed("%s", r.n.redactor.String(words))
}
