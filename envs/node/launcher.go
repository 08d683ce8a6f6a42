package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/proc"
	"inspect/envs/sandbox"
	"inspect/envs/snapshot"
	dirtree "inspect/envs/snapshot/tree"
	"inspect/envs/wire"
)

// Sandbox is a running sandbox.
type Sandbox interface {
	// Wait blocks until everything in the sandbox has ended.
	Wait() wire.SandboxEnd
	// Kill ends everything in it and waits for that.
	Kill(ctx context.Context) error
}

// Launcher is what the node daemon needs of package sandbox.
type Launcher interface {
	// Probe tells the tier and how limits are kept. An error: this machine
	// cannot isolate, and the daemon does not start.
	Probe(ctx context.Context) (sandbox.Probe, error)
	// Start starts a sandbox and closes its Control file in any case. The
	// context bounds the start only.
	Start(ctx context.Context, s sandbox.Spec) (Sandbox, error)
	// Reap kills what is left of the sandbox with that id; nothing is no error.
	Reap(ctx context.Context, id string) error
	// List names the sandboxes that have left something on this machine, running
	// or not, those of an earlier daemon included.
	List() ([]string, error)
	// Alive says whether processes of the sandbox live, whoever started it.
	Alive(id string) bool
}

// Sandboxes makes a Launcher of package sandbox's.
func Sandboxes(l *sandbox.Launcher) Launcher { return launcher{l} }

type launcher struct{ *sandbox.Launcher }

func (l launcher) Start(ctx context.Context, s sandbox.Spec) (Sandbox, error) {
	sb, err := l.Launcher.Start(ctx, s)
	if err != nil {
		return nil, err // not a nil *Sandbox in a Sandbox
	}
	return sb, nil
}

// insideConfig is where git's system-wide configuration is shown inside.
const insideConfig = "/run/inspect/gitconfig"

// insideTrust is where the certificate authorities are shown that a sandbox
// trusts whose proxy has one of its own. It is in no tree, so in no snapshot.
const insideTrust = "/run/inspect/authorities.pem"

// Directories of a base's or clone's tree.
const (
	workDir = "work" // shown as /workspace
	homeDir = "home" // shown as /home/agent
	libDir  = "lib"  // shown as /var/lib, for services; older snapshots have none
)

// gitConfig is the system-wide git configuration inside every sandbox.
const gitConfig = `[safe]
	directory = *
[gc]
	auto = 0
[maintenance]
	auto = false
[core]
	fsmonitor = false
[init]
	defaultBranch = main
[advice]
	detachedHead = false
[protocol "file"]
	allow = always
`

// sandboxSpec says how the tree of a base or clone is shown in a sandbox.
func (n *Node) sandboxSpec(id, tree string, repository int64, limits wire.Limits, control *os.File) (sandbox.Spec, error) {
	for _, d := range []string{workDir, homeDir} {
		st, err := os.Lstat(filepath.Join(tree, d))
		if err != nil || !st.IsDir() {
			return sandbox.Spec{}, fmt.Errorf("the tree of %s has no directory %s: the snapshot was not made by this program", id, d)
		}
	}
	s := sandbox.Spec{
		ID: id, UID: n.o.SandboxUID, GID: n.o.SandboxGID,
		Mounts: []sandbox.Mount{
			{Source: filepath.Join(tree, workDir), Target: sandbox.Workspace, Writable: true},
			{Source: filepath.Join(tree, homeDir), Target: sandbox.Home, Writable: true},
			{Source: n.gitConfigPath(), Target: insideConfig},
		},
		Env:       n.sandboxEnv(),
		Limits:    limits,
		Control:   control,
		DiskUsage: n.usageOf(id, tree),
	}
	if st, err := os.Lstat(filepath.Join(tree, libDir)); err == nil && st.IsDir() {
		s.Mounts = append(s.Mounts, sandbox.Mount{Source: filepath.Join(tree, libDir), Target: "/var/lib", Writable: true})
	}
	if repository > 0 {
		mirror := n.mirrors.path(repository)
		if _, err := os.Stat(mirror); err == nil {
			s.Mounts = append(s.Mounts, sandbox.Mount{Source: mirror, Target: sandbox.MirrorPath})
		}
		modules := n.modulesDir(repository)
		if _, err := os.Stat(modules); err == nil {
			s.Mounts = append(s.Mounts, sandbox.Mount{Source: modules, Target: sandbox.ModulesPath})
		}
	}
	return s, nil
}

// sandboxEnv is what is added to the environment that package sandbox gives.
// There is nothing secret in it and nothing that changes from start to start.
func (n *Node) sandboxEnv() []string {
	path := ""
	for _, d := range n.o.Expose {
		if st, err := os.Stat(filepath.Join(d, "bin")); err == nil && st.IsDir() {
			path += filepath.Join(d, "bin") + ":"
		}
	}
	path += "/usr/local/go/bin:"
	// Debian's own rabbitmq-server wants to be root; the one behind it does not.
	if st, err := os.Stat("/usr/lib/rabbitmq/bin"); err == nil && st.IsDir() {
		path += "/usr/lib/rabbitmq/bin:"
	}
	path += sandbox.SearchPath
	// initdb and pg_ctl are on no ordinary PATH; the newest version is first.
	versions, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is in order
	slices.SortFunc(versions, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(b, a)) })
	for _, v := range versions {
		path += ":" + v
	}
	return []string{"PATH=" + path, "GIT_CONFIG_SYSTEM=" + insideConfig}
}

// usageOf is how a sandbox's disk usage is measured: for nothing where the store
// itself holds a clone to its limit, beside what it shares with its snapshot, and
// it only has to be seen that the limit was reached.
func (n *Node) usageOf(id, tree string) func(context.Context) (int64, error) {
	if !n.quotaHolds(id) {
		return func(ctx context.Context) (int64, error) { return diskUsage(ctx, tree) }
	}
	return func(ctx context.Context) (int64, error) {
		var fs unix.Statfs_t
		if err := unix.Statfs(tree, &fs); err != nil {
			return 0, fmt.Errorf("measure %s: %w", tree, err)
		}
		if fs.Bavail > 0 {
			return 0, nil
		}
		sp, err := n.o.Store.Space(ctx)
		if err != nil || sp.Free < poolFull { // not this clone's doing
			return 0, err
		}
		return math.MaxInt64, nil
	}
}

// watched has what is measured of a sandbox's disk usage also tell when the store
// takes nothing any more. The function it returns says what was wrong with the
// store, also when it was so at some time before; empty: nothing.
func (n *Node) watched(spec *sandbox.Spec) (trouble func(context.Context) string) {
	tree := filepath.Dir(spec.Mounts[0].Source) // whose work directory it is
	var once atomic.Pointer[string]
	look := func(ctx context.Context) string {
		if words := n.storeTrouble(ctx, tree); words != "" {
			if once.CompareAndSwap(nil, &words) {
				n.log.Warn("nothing can be written in a sandbox", "sandbox", spec.ID, "why", words)
			}
		}
		if words := once.Load(); words != nil {
			return *words
		}
		return ""
	}
	usage := spec.DiskUsage
	spec.DiskUsage = func(ctx context.Context) (int64, error) {
		look(ctx)
		return usage(ctx)
	}
	return look
}

// storeTrouble says why nobody can write into a tree, whatever the limit of who
// does; empty: there is no such reason.
func (n *Node) storeTrouble(ctx context.Context, tree string) string {
	var fs unix.Statfs_t
	err := unix.Statfs(tree, &fs)
	switch {
	case errors.Is(err, unix.ENOENT): // it was taken away
		return ""
	case err == nil && int64(fs.Bavail)*fs.Bsize >= poolFull:
		return ""
	case err == nil:
		var sp snapshot.Space
		if sp, err = n.o.Store.Space(ctx); err == nil && sp.Free >= poolFull { // its own quota
			return ""
		}
	}
	if err != nil {
		return fmt.Sprintf("node %s could not use its store of snapshots: %v", n.o.Name, err)
	}
	return fmt.Sprintf("the disk of node %s was full, and not by this session: free some space there", n.o.Name)
}

// poolFull is how little free space a pool that takes nothing any more may show, in
// bytes: what is less than a block is nobody's.
const poolFull = 1 << 20

// quotaHolds says whether the store bounds what the sandbox with that id writes:
// clones that sessions work in, and no bases.
func (n *Node) quotaHolds(id string) bool {
	clone, _, _ := ours(id)
	return n.o.Store.HardQuota() && clone.Session != "" && clone.Purpose != snapshot.PurposeProof
}

// endOf is how a sandbox ended, with what is known of its disk.
func (n *Node) endOf(end wire.SandboxEnd, spec sandbox.Spec, trouble func(context.Context) string) wire.SandboxEnd {
	if spec.Beside != "" {
		return end
	}
	ctx, cancel := proc.WithTimeout(context.Background(), n.clock, measureTime)
	defer cancel()
	if end.DiskFull = end.DiskFull || n.atItsLimit(ctx, spec); !end.DiskFull {
		end.Store = trouble(ctx)
	}
	return end
}

// atItsLimit says whether a sandbox that has ended filled its clone: it may have
// ended too soon after that for it to be measured.
func (n *Node) atItsLimit(ctx context.Context, spec sandbox.Spec) bool {
	if spec.Limits.DiskBytes <= 0 || !n.quotaHolds(spec.ID) {
		return false
	}
	used, err := spec.DiskUsage(ctx)
	if err != nil {
		n.log.Warn("disk usage of a sandbox could not be measured", "sandbox", spec.ID, "error", err)
	}
	return err == nil && used == math.MaxInt64
}

// measureTime bounds what is measured when a sandbox has ended.
const measureTime = 10 * time.Second

// usageDepth is deeper than any tree that can become a snapshot; what lies
// deeper still was put there to be missed.
const usageDepth = 4 * snapshot.MaxDepth

// diskUsage is what a tree takes; more than can be counted is too much.
func diskUsage(ctx context.Context, tree string) (int64, error) {
	used, err := dirtree.Usage(ctx, tree, dirtree.UsageLimits{Depth: usageDepth})
	if err != nil {
		return 0, err
	}
	if used.Limit {
		return math.MaxInt64, nil
	}
	return max(used.Bytes, used.Entries*sandbox.EntryBytes), nil
}

func (n *Node) gitConfigPath() string { return filepath.Join(n.o.Root, "gitconfig") }

// refreshPrefix begins the ids of sandboxes that prepare a base.
const refreshPrefix = "refresh-"

// ours says whether a sandbox id is one this daemon would have given; others
// use the same machine, and theirs are left alone.
func ours(id string) (clone snapshot.CloneID, base snapshot.BaseID, ok bool) {
	if len(id) > len(refreshPrefix) && id[:len(refreshPrefix)] == refreshPrefix {
		b := snapshot.BaseID(id[len(refreshPrefix):])
		return snapshot.CloneID{}, b, b.Check() == nil
	}
	c, ok := snapshot.ParseCloneID(id)
	return c, "", ok
}
