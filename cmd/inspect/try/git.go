package try

import (
	"context"
	"errors"
	"io"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"inspect/envs/proc"
)

// git runs git as one account, on one repository. No hook runs, no monitor, no
// maintenance; nothing is fetched from anywhere; of configuration only the
// repository's own counts, and not where it could make git run something of
// the repository's.
type git struct {
	account *proc.Credential // nil: ourselves
	home    string           // of the account, for its list of ignored files; empty: nobody's
	dir     string           // git's directory; empty: found from where the command runs
}

var gitSettings = []string{
	"core.hooksPath=/dev/null",
	"core.fsmonitor=false",
	"core.logAllRefUpdates=false",
	"core.quotePath=false",
	"gc.auto=0",
	"maintenance.auto=false",
	"protocol.allow=never", // a partial clone would fetch what it lacks
	"safe.directory=*",     // it was named by the person who asks
}

// gitCall is one command of git.
type gitCall struct {
	args   []string
	at     string // working directory; empty: /
	stdin  io.Reader
	stdout io.Writer
	limit  int64    // of what is kept of the output, bytes; 0: proc.DefaultLimit
	with   []string // further settings
	asUser bool     // with the account's own configuration, for what only looks
}

func (g git) command(c gitCall) proc.Command {
	env := []string{
		"PATH=" + proc.DefaultPath, "LC_ALL=C", "GIT_TERMINAL_PROMPT=0",
		"GIT_OPTIONAL_LOCKS=0", // the index is not refreshed by looking
		"GIT_NO_REPLACE_OBJECTS=1", "GIT_NO_LAZY_FETCH=1", "GIT_GRAFT_FILE=/dev/null",
		"GIT_CONFIG_COUNT=" + strconv.Itoa(len(gitSettings)+len(c.with)),
	}
	for i, kv := range slices.Concat(gitSettings, c.with) {
		at := strings.LastIndexByte(kv, '=') // no value has one, a key may
		n := strconv.Itoa(i)
		env = append(env, "GIT_CONFIG_KEY_"+n+"="+kv[:at], "GIT_CONFIG_VALUE_"+n+"="+kv[at+1:])
	}
	if c.asUser && g.home != "" {
		env = append(env, "HOME="+g.home)
	} else {
		env = append(env, "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null")
	}
	if g.dir != "" {
		env = append(env, "GIT_DIR="+g.dir)
	}
	at := c.at
	if at == "" {
		at = "/"
	}
	return proc.Command{
		Argv: slices.Concat([]string{"git"}, c.args), Dir: at, Env: env, Credential: g.account,
		Stdin: c.stdin, Stdout: c.stdout, Limit: c.limit,
	}
}

// run runs one command and returns its output.
func (g git) run(ctx context.Context, c gitCall) (string, error) {
	res, err := proc.Run(ctx, g.command(c))
	return string(res.Stdout), err
}

// line runs a command whose output is one line.
func (g git) line(ctx context.Context, args ...string) (string, error) {
	out, err := g.run(ctx, gitCall{args: args})
	return strings.TrimSuffix(out, "\n"), err
}

// said is what a git that failed told, for people.
func said(err error) string {
	var exit *proc.ExitError
	if !errors.As(err, &exit) {
		return err.Error()
	}
	words := strings.TrimSpace(string(exit.Result.Stderr))
	first, _, _ := strings.Cut(words, "\n")
	for _, prefix := range []string{"fatal: ", "error: "} {
		first = strings.TrimPrefix(first, prefix)
	}
	if first == "" {
		return err.Error()
	}
	return plain(first, 300)
}

// status is the exit status of a git that ran, -1 if it did not.
func status(err error) int {
	var exit *proc.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.Result.Code
	}
	return -1
}

// ownerOf is the account to run git as for what lies at path: whoever owns it
// if we are root, ourselves else.
func ownerOf(path string) (*proc.Credential, string, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return nil, "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	uid := os.Geteuid()
	if uid == 0 {
		uid = int(st.Uid)
	}
	home, gid := "", int(st.Gid)
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		home = u.HomeDir
		if n, err := strconv.Atoi(u.Gid); err == nil {
			gid = n
		}
	}
	if uid == os.Geteuid() {
		return nil, home, nil
	}
	return &proc.Credential{UID: uid, GID: gid}, home, nil
}

// pipe runs two commands, the output of one being the input of the other. The
// error of the first is the one that explains, if both fail.
func pipe(ctx context.Context, from, to proc.Command) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	from.Stdout, to.Stdin = w, r
	done := make(chan error, 1)
	go func() {
		_, err := proc.Run(ctx, to)
		r.Close() // so that the first does not wait for a reader that is gone
		done <- err
	}()
	_, fromErr := proc.Run(ctx, from)
	w.Close()
	toErr := <-done
	var exit *proc.ExitError
	if errors.As(fromErr, &exit) && exit.Result.Signal == "SIGPIPE" && toErr != nil {
		return toErr
	}
	if fromErr != nil {
		return fromErr
	}
	return toErr
}
