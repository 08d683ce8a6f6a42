package publish

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"inspect/envs/proc"
)

// Paths inside a quarantine.
const (
	QuarantineDir = "/quarantine"             // GitCommand.Dir, writable
	MirrorDir     = "/run/inspect/mirror.git" // GitCommand.Mirror, read-only
)

const quarantineRepo = QuarantineDir + "/repo.git"

// GitCommand is one run of git over hostile data.
type GitCommand struct {
	ID     string // of the sandbox: lower-case letters, digits and '-'
	Dir    string // host directory, mounted writable at QuarantineDir
	Mirror string // host directory of the bare mirror, mounted read-only at MirrorDir
	Argv   []string
	Env    []string // the whole environment
	Stdin  io.Reader
	// Stdout and Stderr are given all output as it comes; their Write never fails.
	Stdout, Stderr io.Writer
	Limits         ProcessLimits
}

// ProcessLimits are resource limits (RLIMIT_*) of one process.
type ProcessLimits struct {
	CPU          time.Duration // RLIMIT_CPU, whole seconds
	AddressSpace int64         // RLIMIT_AS, bytes
	FileSize     int64         // RLIMIT_FSIZE, bytes
}

// Quarantine runs git where it can do no harm: a fresh sandbox for each
// command, with no network, no credential and no host file but the two
// directories of the command and the system's programs. cmd implements it over
// the sandbox.
//
// Run returns git's exit status, 128+n if signal n ended it. An error means
// that the sandbox could not do its work or that ctx ended; then the status
// means nothing. When Run returns, nothing of the sandbox is left. It is safe
// for concurrent use.
type Quarantine interface {
	Run(ctx context.Context, c GitCommand) (exit int, err error)
}

// Bounds of what git may do and say in a quarantine.
const (
	gitTimeout      = 2 * time.Minute  // wall time of one command
	gitCPU          = 10 * time.Second // a bomb of zeros is stopped by this
	gitMemory       = 320 << 20        // address space besides the mirror's indexes
	gitFile         = 256 << 20        // of any file git writes
	maxGitComplaint = 4 << 10          // kept of what git says on standard error
)

// cell is a quarantined repository and the commands run on it.
type cell struct {
	q      Quarantine
	id     string
	dir    string // host path of QuarantineDir
	mirror string // host path of MirrorDir
	memory int64
	runs   int
}

// newCell lays out a bare repository without templates, hooks or configuration
// but ours, over the mirror's objects. dir must exist and be reachable for the
// sandbox's account; what git writes into is made writable for all, so dir's
// name must not be guessable.
func newCell(q Quarantine, id, dir, mirror string) (*cell, error) {
	repo := filepath.Join(dir, "repo.git")
	for _, d := range []string{"", "objects", "objects/info", "objects/pack", "refs", "refs/heads"} {
		full := filepath.Join(repo, d)
		if err := os.Mkdir(full, 0o700); err != nil {
			return nil, fmt.Errorf("make the quarantine: %w", err)
		}
		mode := fs.FileMode(0o755)
		if d == "objects/pack" {
			mode = 0o777
		}
		if err := os.Chmod(full, mode); err != nil { // past the umask
			return nil, fmt.Errorf("make the quarantine: %w", err)
		}
	}
	if err := bareFiles(repo, MirrorDir, mirror, 0o644); err != nil {
		return nil, err
	}
	indexes, err := indexBytes(mirror)
	if err != nil {
		return nil, err
	}
	return &cell{q: q, id: id, dir: dir, mirror: mirror, memory: gitMemory + 2*indexes}, nil
}

// bareFiles writes the files of an empty bare repository whose objects are
// also those of the mirror, which lies at alternate for whoever uses the
// repository and at mirror for us. Where the mirror's history is cut off, so is
// the repository's.
func bareFiles(repo, alternate, mirror string, mode fs.FileMode) error {
	files := map[string]string{
		"HEAD":                    "ref: refs/heads/none\n",
		"config":                  "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n\tlogAllRefUpdates = false\n",
		"objects/info/alternates": alternate + "/objects\n",
	}
	shallow, err := os.ReadFile(filepath.Join(mirror, "shallow"))
	switch {
	case err == nil:
		files["shallow"] = string(shallow)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("look at the mirror: %w", err)
	}
	for name, text := range files {
		full := filepath.Join(repo, name)
		if err := os.WriteFile(full, []byte(text), mode); err != nil {
			return fmt.Errorf("make a repository: %w", err)
		}
		if err := os.Chmod(full, mode); err != nil {
			return fmt.Errorf("make a repository: %w", err)
		}
	}
	return nil
}

// indexBytes is the size of the files git maps as a whole to find objects.
func indexBytes(mirror string) (int64, error) {
	if _, err := os.Stat(filepath.Join(mirror, "objects")); err != nil {
		return 0, fmt.Errorf("look at the mirror: %w", err)
	}
	var sum int64
	entries, err := os.ReadDir(filepath.Join(mirror, "objects", "pack"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look at the mirror: %w", err)
	}
	for _, e := range entries {
		if name := e.Name(); strings.HasSuffix(name, ".idx") || strings.HasSuffix(name, ".rev") || strings.HasPrefix(name, "multi-pack-index") {
			if info, err := e.Info(); err == nil {
				sum += info.Size()
			}
		}
	}
	return sum, nil
}

// gitConfig is what every git of ours is told besides the repository's own
// file: nothing of the machine's or an account's configuration counts.
var gitConfig = []string{
	"core.hooksPath=/dev/null",
	"core.attributesFile=/dev/null",
	"core.fsmonitor=false",
	"core.packedGitWindowSize=16m",
	"core.packedGitLimit=128m",
	"core.deltaBaseCacheLimit=32m",
	"core.bigFileThreshold=2047m", // larger files would be shown as binary, unread
	"core.quotePath=true",
	"gc.auto=0",
	"maintenance.auto=false",
	"protocol.allow=never",
	"i18n.logOutputEncoding=UTF-8",
}

// gitEnv is the whole environment of a git of ours.
func gitEnv(gitDir string, config []string) []string {
	env := []string{
		"PATH=" + proc.DefaultPath,
		"HOME=/nonexistent",
		"LC_ALL=C",
		"GIT_DIR=" + gitDir,
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_ATTR_NOSYSTEM=1",
		"GIT_NO_REPLACE_OBJECTS=1",
		"GIT_NO_LAZY_FETCH=1",
		"GIT_LITERAL_PATHSPECS=1",
		"GIT_OPTIONAL_LOCKS=0",
		"GIT_TERMINAL_PROMPT=0",
		"GIT_CONFIG_COUNT=" + strconv.Itoa(len(config)),
	}
	for i, kv := range config {
		key, value, _ := strings.Cut(kv, "=")
		n := strconv.Itoa(i)
		env = append(env, "GIT_CONFIG_KEY_"+n+"="+key, "GIT_CONFIG_VALUE_"+n+"="+value)
	}
	return env
}

// errOverflow is the error of a command that wrote more than its limit. What
// fits was passed on.
var errOverflow = errors.New("more output than is read")

// git runs one command on the quarantined repository and streams its output to
// out, of which at most limit bytes are let through; more ends the command
// with errOverflow. The status 0 and 1 are returned for the caller to judge;
// anything else and any word on standard error is a refusal.
func (c *cell) git(ctx context.Context, stdin io.Reader, out io.Writer, limit int64, args ...string) (exit int, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, gitTimeout, refuse(ReasonBundle, "git worked longer than %s on it", gitTimeout))
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if stdin == nil {
		stdin = strings.NewReader("")
	}
	c.runs++
	name := args[0]
	stdout := &bounded{w: out, left: limit, over: func() { stop(errOverflow) }}
	complaint := &proc.Head{N: maxGitComplaint}
	exit, err = c.q.Run(ctx, GitCommand{
		ID:     c.id + "-" + strconv.Itoa(c.runs),
		Dir:    c.dir,
		Mirror: c.mirror,
		Argv:   slices.Concat([]string{"git"}, args),
		Env:    gitEnv(quarantineRepo, gitConfig),
		Stdin:  stdin,
		Stdout: stdout,
		Stderr: complaint,
		Limits: ProcessLimits{CPU: gitCPU, AddressSpace: c.memory, FileSize: gitFile},
	})
	var refused *refusal
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errOverflow):
		return 0, errOverflow
	case errors.As(cause, &refused):
		return 0, refused
	case err != nil:
		return 0, fmt.Errorf("git %s in quarantine: %w", name, err)
	case stdout.err != nil:
		return 0, stdout.err
	}
	said := strings.TrimSpace(strings.ToValidUTF8(string(complaint.Bytes()), "\uFFFD"))
	switch {
	case exit > 128:
		return 0, refuse(ReasonBundle, "git %s was ended by signal %d: the result needs more time or memory than is given to it", name, exit-128)
	case said != "":
		return 0, refuse(ReasonBundle, "git %s complains: %s", name, firstLine(said))
	case exit > 1:
		return 0, refuse(ReasonBundle, "git %s ended with status %d", name, exit)
	}
	return exit, nil
}

// text runs a command that must end with 0 and returns its output.
func (c *cell) text(ctx context.Context, stdin io.Reader, limit int64, args ...string) (string, error) {
	var b strings.Builder
	exit, err := c.git(ctx, stdin, &b, limit, args...)
	switch {
	case errors.Is(err, errOverflow):
		return "", refuse(ReasonBundle, "the output of git %s has more than %d bytes", args[0], limit)
	case err != nil:
		return "", err
	case exit != 0:
		return "", refuse(ReasonBundle, "git %s ended with status %d", args[0], exit)
	}
	return b.String(), nil
}

// bounded passes on left bytes and then calls over; it never fails, so that
// the sandbox can go on emptying its pipe until it is ended.
type bounded struct {
	w    io.Writer
	left int64
	over func()
	err  error // of w
}

func (b *bounded) Write(p []byte) (int, error) {
	n := len(p)
	if b.err != nil {
		return n, nil
	}
	if int64(n) > b.left {
		if b.over != nil {
			b.over()
			b.over = nil
		}
		p = p[:b.left]
	}
	b.left -= int64(len(p))
	if len(p) > 0 {
		_, b.err = b.w.Write(p)
	}
	return n, nil
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	if len(s) > 300 {
		s = strings.ToValidUTF8(s[:300], "") + "…"
	}
	return s
}
