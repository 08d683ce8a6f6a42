package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"inspect/envs/proc"
	"inspect/envs/sandbox/inside"
	"inspect/envs/wire"
)

// controllers of the first version that a sandbox has a group in.
var controllers = []string{"memory", "pids", "cpu", "cpuacct", "freezer"}

// cgroups is where the machine's control groups are. Either unified carries
// the controllers (version 2), or v1 does; a unified hierarchy without
// controllers beside v1 holds a twin of each group, for its cgroup.kill.
type cgroups struct {
	root    string            // of ours under each mount point, "/inspect"
	v1      map[string]string // controller -> mount point
	unified string            // mount point, or ""
}

// isV2 reports whether the unified hierarchy carries the limits.
func (c *cgroups) isV2() bool { return len(c.v1) == 0 }

// findCgroups reads a mountinfo file. The error says what is missing.
func findCgroups(mounts io.Reader, root string) (*cgroups, error) {
	c := &cgroups{root: filepath.Clean("/" + root), v1: map[string]string{}}
	if c.root == "/" {
		return nil, errors.New("the root of all cgroups cannot be ours")
	}
	infos, err := mountinfo.GetMountsFromReader(mounts, func(i *mountinfo.Info) (skip, stop bool) {
		return i.FSType != "cgroup" && i.FSType != "cgroup2", false
	})
	if err != nil {
		return nil, fmt.Errorf("read the list of mounts: %w", err)
	}
	for _, i := range infos {
		if i.FSType == "cgroup2" {
			if c.unified == "" { // later ones are other namespaces'
				c.unified = i.Mountpoint
			}
			continue
		}
		for _, o := range strings.Split(i.VFSOptions, ",") {
			if slices.Contains(controllers, o) && c.v1[o] == "" {
				c.v1[o] = i.Mountpoint
			}
		}
	}
	if _, ok := c.v1["memory"]; ok {
		for _, need := range controllers {
			if c.v1[need] == "" {
				return nil, fmt.Errorf("no cgroup hierarchy with the controller %s is mounted", need)
			}
		}
		return c, nil
	}
	c.v1 = map[string]string{}
	if c.unified == "" {
		return nil, errors.New("no cgroup hierarchy is mounted")
	}
	return c, nil
}

// prepare makes our own group, which holds those of the sandboxes.
func (c *cgroups) prepare() error {
	for _, m := range c.mounts() {
		if err := os.MkdirAll(filepath.Join(m, c.root), 0o755); err != nil {
			return fmt.Errorf("make a cgroup: %w", err)
		}
	}
	if !c.isV2() {
		return nil
	}
	dir := c.unified
	for _, step := range append([]string{""}, strings.Split(strings.Trim(c.root, "/"), "/")...) {
		dir = filepath.Join(dir, step)
		control := filepath.Join(dir, "cgroup.subtree_control")
		if err := writeFile(control, "+memory +pids +cpu"); err != nil {
			return fmt.Errorf("hand the controllers memory, pids and cpu down from the cgroup %s: %w", dir, err)
		}
	}
	return nil
}

// mounts is where each group has a directory, the unified hierarchy last.
func (c *cgroups) mounts() (out []string) {
	for _, name := range controllers {
		if m := c.v1[name]; m != "" && !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	if c.unified != "" {
		out = append(out, c.unified)
	}
	return out
}

// group is one sandbox's control group, in all hierarchies.
type group struct {
	c  *cgroups
	id string
}

func (c *cgroups) group(id string) *group { return &group{c, id} }

// suffix tells the sandboxes' groups from whatever else is under our root, such
// as the root of another launcher.
const suffix = ".sandbox"

func (g *group) dir(mount string) string { return filepath.Join(mount, g.c.root, g.id+suffix) }

func (g *group) dirs() (out []string) {
	for _, m := range g.c.mounts() {
		out = append(out, g.dir(m))
	}
	return out
}

// procs are the files that hold the numbers of its processes.
func (g *group) procs() (out []string) {
	for _, d := range g.dirs() {
		out = append(out, filepath.Join(d, "cgroup.procs"))
	}
	return out
}

// join puts a process, with all its threads, into the group.
func (g *group) join(pid int) error {
	for _, f := range g.procs() {
		if err := writeFile(f, strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("put the sandbox's first process into its cgroup: %w", err)
		}
	}
	return nil
}

// create makes the group, new in all hierarchies, and sets its limits. The
// error wraps ErrRunning if processes live in one of that name.
func (g *group) create(ctx context.Context, l wire.Limits) error {
	if pids := g.pids(); len(pids) > 0 {
		return fmt.Errorf("%w: %s", ErrRunning, g.id)
	}
	if err := g.remove(ctx); err != nil {
		return err
	}
	if err := g.c.prepare(); err != nil { // another launcher's Close may have tidied up
		return err
	}
	for _, d := range g.dirs() {
		if err := os.Mkdir(d, 0o755); err != nil {
			return errors.Join(fmt.Errorf("make a cgroup: %w", err), g.remove(ctx))
		}
	}
	if err := g.limit(l); err != nil {
		return errors.Join(err, g.remove(ctx))
	}
	return nil
}

const cpuPeriod = 100_000 // microseconds

func (g *group) limit(l wire.Limits) error {
	type setting struct {
		controller, v1, v2 string
		value1, value2     string
		wanted, optional   bool
	}
	mem := strconv.FormatInt(l.MemoryBytes, 10)
	pids := strconv.FormatInt(l.Pids+inside.ReservedPids, 10)
	quota := strconv.FormatInt(max(1000, int64(l.CPU*cpuPeriod)), 10)
	for _, s := range []setting{
		{"memory", "memory.limit_in_bytes", "memory.max", mem, mem, l.MemoryBytes > 0, false},
		// Swap would only make a flood last longer; it is not always built in.
		{"memory", "memory.memsw.limit_in_bytes", "memory.swap.max", mem, "0", l.MemoryBytes > 0, true},
		{"pids", "pids.max", "pids.max", pids, pids, l.Pids > 0, false},
		{"cpu", "cpu.cfs_period_us", "", strconv.Itoa(cpuPeriod), "", l.CPU > 0, false},
		{"cpu", "cpu.cfs_quota_us", "cpu.max", quota, fmt.Sprintf("%s %d", quota, cpuPeriod), l.CPU > 0, false},
	} {
		file, value := filepath.Join(g.dir(g.c.v1[s.controller]), s.v1), s.value1
		if g.c.isV2() {
			file, value = filepath.Join(g.dir(g.c.unified), s.v2), s.value2
		}
		if !s.wanted || (g.c.isV2() && s.v2 == "") {
			continue
		}
		if err := writeFile(file, value); err != nil && (!s.optional || !errors.Is(err, os.ErrNotExist)) {
			return fmt.Errorf("limit %s to %s: %w", s.controller, value, err)
		}
	}
	return nil
}

// pidsMax is the file with the limit of processes.
func (g *group) pidsMax() string {
	mount := g.c.v1["pids"]
	if g.c.isV2() {
		mount = g.c.unified
	}
	return filepath.Join(g.dir(mount), "pids.max")
}

// raisePids adds n to the limit of processes, if there is one and the group is
// still there.
func (g *group) raisePids(n int64) error {
	file := g.pidsMax()
	b, err := os.ReadFile(file)
	if err == nil {
		now, perr := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		if perr != nil {
			return nil // "max"
		}
		err = writeFile(file, strconv.FormatInt(now+n, 10))
	}
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// pids are the processes in the group, in any hierarchy.
func (g *group) pids() (out []int) {
	for _, f := range g.procs() {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for _, w := range bytes.Fields(b) {
			if pid, err := strconv.Atoi(string(w)); err == nil && !slices.Contains(out, pid) {
				out = append(out, pid)
			}
		}
	}
	return out
}

// kill ends every process in the group and waits until none is left.
func (g *group) kill(ctx context.Context) error {
	for {
		if g.c.unified != "" {
			_ = writeFile(filepath.Join(g.dir(g.c.unified), "cgroup.kill"), "1")
		}
		if len(g.pids()) == 0 {
			return nil
		}
		g.freezeAndKill()
		if len(g.pids()) == 0 {
			return nil
		}
		if err := proc.Sleep(ctx, proc.System(), 10*time.Millisecond); err != nil {
			return fmt.Errorf("end the processes %v of sandbox %s: %w", g.pids(), g.id, err)
		}
	}
}

// freezeAndKill kills by number. Frozen, no process can end and leave its
// number to another between the reading and the killing.
func (g *group) freezeAndKill() {
	state, frozen, thawed := filepath.Join(g.dir(g.c.v1["freezer"]), "freezer.state"), "FROZEN", "THAWED"
	if g.c.isV2() {
		state, frozen, thawed = filepath.Join(g.dir(g.c.unified), "cgroup.freeze"), "1", "0"
	}
	if writeFile(state, frozen) != nil {
		return
	}
	for _, pid := range g.pids() {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	_ = writeFile(state, thawed)
}

// counts are the processes killed for want of memory and the forks refused.
func (g *group) counts() (oom, pidsHit int64) {
	if g.c.isV2() {
		d := g.dir(g.c.unified)
		return counter(filepath.Join(d, "memory.events"), "oom_kill"), counter(filepath.Join(d, "pids.events"), "max")
	}
	return counter(filepath.Join(g.dir(g.c.v1["memory"]), "memory.oom_control"), "oom_kill"),
		counter(filepath.Join(g.dir(g.c.v1["pids"]), "pids.events"), "max")
}

// counter is the number after name in a file of "name number" lines; 0 if
// there is none.
func counter(file, name string) int64 {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n
		}
	}
	return 0
}

// remove removes the empty group. The kernel says busy for a while after the
// last process has ended.
func (g *group) remove(ctx context.Context) error {
	return proc.Retry(ctx, proc.System(), proc.Policy{First: 5 * time.Millisecond, Max: 100 * time.Millisecond, Total: 10 * time.Second},
		func(context.Context) error {
			var errs []error
			for _, d := range g.dirs() {
				if err := unix.Rmdir(d); err != nil && err != unix.ENOENT {
					errs = append(errs, fmt.Errorf("remove the cgroup %s: %w", d, err))
				}
			}
			return errors.Join(errs...)
		})
}

// close removes our own group, with the empty ones above it that no one uses.
func (c *cgroups) close() error {
	var errs []error
	for _, m := range c.mounts() {
		for dir := c.root; dir != "/"; dir = filepath.Dir(dir) {
			err := unix.Rmdir(filepath.Join(m, dir))
			if err == unix.EBUSY || err == unix.ENOTEMPTY {
				break
			}
			if err != nil && err != unix.ENOENT {
				errs = append(errs, fmt.Errorf("remove the cgroup %s: %w", dir, err))
				break
			}
		}
	}
	return errors.Join(errs...)
}

// list is the ids that have a group in any hierarchy, sorted.
func (c *cgroups) list() ([]string, error) {
	var ids []string
	for _, m := range c.mounts() {
		entries, err := os.ReadDir(filepath.Join(m, c.root))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list the cgroups: %w", err)
		}
		for _, e := range entries {
			id, ok := strings.CutSuffix(e.Name(), suffix)
			if ok && e.IsDir() && validID.MatchString(id) && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// writeFile writes to a file of the kernel's: it is never created.
func writeFile(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
