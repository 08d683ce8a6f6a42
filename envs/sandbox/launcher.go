package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/proc"
	"inspect/envs/wire"
)

// ErrRunning is the error of starting a sandbox with the ID of one that runs.
var ErrRunning = errors.New("a sandbox of this name is running")

// ErrIsolation is the error of a machine that cannot isolate or limit a
// sandbox as asked; the message says what to do.
var ErrIsolation = errors.New("cannot isolate")

// Options of a Launcher.
type Options struct {
	// Binary is the path of a program that calls inside.Main for the first
	// argument sandbox-init: inspect-init, or the inspect binary, which takes
	// longer to start.
	Binary string
	// Tool, if set, is the path of a program that commands inside can call as
	// inspect: the inspect binary, which holds no secret. It is placed as Binary is.
	Tool string
	// RunDir, if set, is a directory of this installation's. The binary is
	// copied there, so that the sandbox's uid can reach it and a later upgrade
	// does not pull it away. It and everything above it must let others pass.
	RunDir string
	// CgroupRoot is where in each cgroup hierarchy the sandboxes' groups are;
	// "" is "/inspect". Two installations on one machine need two.
	CgroupRoot string
	// UID and GID are the sandboxes' outside; a Spec may say otherwise. A root
	// launcher without them runs its probe as 65534. An ordinary user's
	// launcher uses its own.
	UID, GID int
	// Expose names further directories of the host that are visible inside,
	// read-only, under the same path.
	Expose []string
	// BestEffort starts sandboxes without enforced limits where this process
	// may not set them. Isolation is never less.
	BestEffort bool
	// Tier is wire.TierBubblewrap, which "" is too, or wire.TierGVisor.
	Tier string
	// Bubblewrap is the program; "" looks for bwrap in the usual places.
	Bubblewrap string
	// Runsc is the path of gVisor's program, for its tier. It is copied to RunDir.
	Runsc string
	Clock proc.Clock   // says when disk usage is measured; nil: the machine's
	Log   *slog.Logger // nil: none
}

// Launcher starts sandboxes. It is safe for concurrent use.
type Launcher struct {
	opt    Options
	root   bool
	binary string // what is bound as the init
	tool   string // what is bound on ToolPath; empty: nothing, and there is none inside
	tier   tier
	etc    []string
	clock  proc.Clock
	log    *slog.Logger

	groups *cgroups // nil: limits are not enforced, and noGroups says why
	lacks  string

	mu   sync.Mutex
	live map[string]bool
}

// New looks at the machine and prepares a launcher. It starts nothing: Probe
// does. The error wraps ErrIsolation if this machine cannot do what is asked.
func New(opt Options) (*Launcher, error) {
	if opt.CgroupRoot == "" {
		opt.CgroupRoot = "/inspect"
	}
	l := &Launcher{opt: opt, root: os.Geteuid() == 0, clock: opt.Clock, log: opt.Log, live: map[string]bool{}}
	if l.clock == nil {
		l.clock = proc.System()
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	for _, e := range opt.Expose {
		if !filepath.IsAbs(e) || filepath.Clean(e) != e {
			return nil, fmt.Errorf("expose %q: not an absolute path in its shortest form", e)
		}
		if _, err := os.Stat(e); err != nil {
			return nil, fmt.Errorf("expose %s inside sandboxes: %w", e, err)
		}
	}
	var err error
	if l.binary, err = l.place(opt.Binary, "init"); err != nil {
		return nil, err
	}
	if opt.Tool != "" {
		if l.tool, err = l.place(opt.Tool, "inspect"); err != nil {
			return nil, err
		}
	}
	l.etc = hostEtc()
	err = l.findLimits()
	if err == nil {
		l.tier, err = newTier(l)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// tier is what differs between the kinds of sandboxes: the program that
// isolates, how it is told what a Spec asks for, and what is seen of it outside.
type tier interface {
	// version is the tier and what the program says of itself: "bubblewrap 0.8.0".
	version(ctx context.Context) (string, error)
	// prepare says what is to be executed, as the box's user, to have a sandbox
	// whose init gets the arguments.
	prepare(box *Sandbox, gid int, initArgs []string) (*starting, error)
	// stand returns when the init has said its word, the box knows its process
	// and what the kernel says about it is right; errSilent if it ended.
	stand(box *Sandbox, st *starting) error
	// beside finds the running sandbox that a compartment is to be started
	// beside: a pidfd of the init whose network it joins, or nil if it joins none.
	beside(s Spec, uid int) (*os.File, error)
	// host is what the cgroup is limited to for the limits of a Spec.
	host(Spec) wire.Limits
	// refuses is the error if the program's last words say that it cannot do
	// what it was asked for, or nil.
	refuses(said string) error
}

func newTier(l *Launcher) (tier, error) {
	switch l.opt.Tier {
	case "", wire.TierBubblewrap:
		return newBubblewrap(l)
	case wire.TierGVisor:
		return newGVisor(l)
	}
	return nil, fmt.Errorf("%w: there is no sandbox tier %q", ErrIsolation, l.opt.Tier)
}

// findLimits sets groups, or lacks if it may do without.
func (l *Launcher) findLimits() error {
	err := errors.New("an ordinary user may not make cgroups")
	if l.root {
		l.groups, err = machineCgroups(l.opt.CgroupRoot)
	}
	if err == nil {
		return nil
	}
	l.groups = nil
	if !l.opt.BestEffort {
		return fmt.Errorf("%w: limits for memory, processor and processes cannot be enforced: %w; "+
			"start the node daemon as root, or ask for best-effort limits by name", ErrIsolation, err)
	}
	l.lacks = err.Error()
	return nil
}

func machineCgroups(root string) (*cgroups, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := findCgroups(f, root)
	if err != nil {
		return nil, err
	}
	return c, c.prepare()
}

// place copies a program to RunDir, if there is one, and returns where it is.
func (l *Launcher) place(program, name string) (string, error) {
	if program == "" {
		return "", fmt.Errorf("the path of the %s program is not known", name)
	}
	at, err := filepath.Abs(program)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(at); err != nil {
		return "", fmt.Errorf("find the %s program: %w", name, err)
	}
	if l.opt.RunDir != "" {
		dir, err := filepath.Abs(l.opt.RunDir)
		if err != nil {
			return "", err
		}
		from := at
		at = filepath.Join(dir, name)
		if err := copyBinary(from, dir, at); err != nil {
			return "", fmt.Errorf("copy the %s program to %s: %w", name, dir, err)
		}
	}
	st, err := os.Stat(at)
	if err != nil {
		return "", fmt.Errorf("find the %s program: %w", name, err)
	}
	if owner := st.Sys().(*syscall.Stat_t).Uid; l.opt.RunDir != "" && (int(owner) != os.Geteuid() || st.Mode()&0o022 != 0) {
		return "", fmt.Errorf("%w: the copied binary %s can be changed by others", ErrIsolation, at)
	}
	return at, nil
}

func copyBinary(binary, dir, name string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return err
	}
	from, err := os.Open(binary)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.CreateTemp(dir, filepath.Base(name)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(to.Name()) // gone already if it was renamed
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Chmod(0o755), to.Close()); err != nil {
		return err
	}
	return os.Rename(to.Name(), name)
}

// Tool is where the program lies that commands inside can call; empty: there is none.
func (l *Launcher) Tool() string { return l.tool }

// credential is who a sandbox is outside.
func (l *Launcher) credential(s Spec) (uid, gid int, err error) {
	uid, gid = s.UID, s.GID
	if uid == 0 {
		uid, gid = l.opt.UID, l.opt.GID
	}
	if !l.root {
		if uid != 0 && uid != os.Getuid() {
			return 0, 0, fmt.Errorf("%w: an ordinary user cannot start a sandbox as uid %d", ErrIsolation, uid)
		}
		return os.Getuid(), os.Getgid(), nil
	}
	if uid <= 0 || gid <= 0 {
		return 0, 0, fmt.Errorf("%w: root cannot be the owner of a sandbox; name an unprivileged uid and gid", ErrIsolation)
	}
	return uid, gid, nil
}

// reachable checks that uid can come to file through every directory above it,
// as the tier's program will have to.
func reachable(file string, uid, gid int, need uint32) error {
	check := func(p string, need uint32) error {
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err != nil {
			return fmt.Errorf("find %s: %w", p, err)
		}
		mode := st.Mode & 7
		switch {
		case int(st.Uid) == uid:
			mode = st.Mode >> 6 & 7
		case int(st.Gid) == gid:
			mode = st.Mode >> 3 & 7
		}
		if mode&need != need {
			return fmt.Errorf("%w: the sandbox's user %d may not pass %s (mode %04o)", ErrIsolation, uid, p, st.Mode&0o7777)
		}
		return nil
	}
	for dir := filepath.Dir(file); ; dir = filepath.Dir(dir) {
		if err := check(dir, 1); err != nil {
			return err
		}
		if dir == "/" {
			break
		}
	}
	if need == 0 {
		return nil
	}
	return check(file, need)
}

// Limits is how limits are kept here: "enforced", or "best effort: " and why.
func (l *Launcher) Limits() string {
	if l.groups != nil {
		return "enforced"
	}
	return "best effort: " + l.lacks + "; memory and processor time are not limited"
}

// List is the ids of all sandboxes of this installation that have left
// something on this machine, running or not, also those an earlier process
// has started. The caller reaps those it does not know.
func (l *Launcher) List() ([]string, error) {
	if l.groups != nil {
		return l.groups.list()
	}
	return l.listMarks()
}

// Alive reports whether processes of the sandbox live.
func (l *Launcher) Alive(id string) bool {
	if !validID.MatchString(id) {
		return false
	}
	if l.groups != nil {
		return len(l.groups.group(id).pids()) > 0
	}
	m, err := l.readMark(id)
	return err == nil && m.alive()
}

// Reap ends whatever is left of a sandbox, also of one that an earlier process
// has started, and removes its traces. A sandbox that never was is no error.
func (l *Launcher) Reap(ctx context.Context, id string) error {
	if !validID.MatchString(id) {
		return fmt.Errorf("%q cannot name a sandbox", id)
	}
	if l.groups == nil {
		if err := l.reapMark(ctx, id); err != nil {
			return err
		}
		return l.removeBundle(id)
	}
	g := l.groups.group(id)
	if err := g.kill(ctx); err != nil {
		return err
	}
	return errors.Join(g.remove(ctx), l.removeBundle(id))
}

func (l *Launcher) claim(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.live[id] {
		return fmt.Errorf("%w: %s", ErrRunning, id)
	}
	l.live[id] = true
	return nil
}

func (l *Launcher) release(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.live, id)
}

// Close ends the launcher and removes what New has made beside RunDir, as far
// as no sandbox uses it. Sandboxes that run go on, and their Wait returns.
func (l *Launcher) Close() error {
	if l.groups == nil {
		return nil
	}
	return l.groups.close()
}

// blocked says in words why a user namespace may be refused here, or "". The
// settings are read under settings, "/proc/sys".
func blocked(settings string) string {
	for _, c := range []struct{ name, bad, cure string }{
		{"kernel.unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"},
		{"kernel.apparmor_restrict_unprivileged_userns", "1",
			"sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or install an AppArmor profile for bwrap"},
		{"user.max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"},
	} {
		b, err := os.ReadFile(filepath.Join(settings, strings.ReplaceAll(c.name, ".", "/")))
		if err == nil && strings.TrimSpace(string(b)) == c.bad {
			return fmt.Sprintf("this machine forbids unprivileged user namespaces (%s is %s); allow them: %s", c.name, c.bad, c.cure)
		}
	}
	return ""
}

// Times are variables for tests on a machine that is emulated.
var (
	startTimeout = 30 * time.Second // for a sandbox to stand
	probeTimeout = 30 * time.Second
	cleanTimeout = 30 * time.Second // for the removal of an ended sandbox
)
