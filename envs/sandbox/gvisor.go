package sandbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"inspect/envs/proc"
	"inspect/envs/sandbox/inside"
	"inspect/envs/wire"
)

// gvisor is the tier that has a kernel of its own between the sandbox and the
// machine's: runsc. Everything of it is the sandbox's user outside and no one
// else. The sentry, which is that kernel, has no capability, a system-call filter
// and an empty root directory. The gofer, which opens files for it, has
// capabilities over files in a user namespace whose only id is the sandbox's
// user: they reach no other user's file. In that namespace the user is 1000, so
// inside it is "agent", and what agent writes is the sandbox's user's outside.
//
// The init puts the filter of the other tier on itself inside. There is no need
// for it outside; it keeps the sandbox's programs from the same calls in both
// tiers, where gVisor would only play them.
//
// Compartments are in the same gVisor's kernel, see beside.
//
// When memory runs out the machine's kernel ends the sentry, and with it the
// sandbox as a whole.
type gvisor struct {
	l       *Launcher
	program string
	filter  []byte
}

func newGVisor(l *Launcher) (*gvisor, error) {
	filter, err := seccompFilter(initsOwn()...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIsolation, err)
	}
	if l.opt.RunDir == "" {
		return nil, fmt.Errorf("%w: sandboxes of the tier gvisor need a run directory", ErrIsolation)
	}
	program, err := filepath.Abs(l.opt.Runsc)
	if err != nil {
		return nil, err
	}
	if st, err := os.Stat(program); l.opt.Runsc == "" || err != nil || !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: runsc, gVisor's program, is not there (%q): build it with make setup, or name its path", ErrIsolation, l.opt.Runsc)
	}
	g := &gvisor{l: l, program: filepath.Join(filepath.Dir(l.binary), "runsc"), filter: filter}
	if err := copyBinary(program, filepath.Dir(g.program), g.program); err != nil {
		return nil, fmt.Errorf("copy runsc to %s: %w", filepath.Dir(g.program), err)
	}
	return g, nil
}

func (g *gvisor) version(ctx context.Context) (string, error) {
	res, err := proc.Run(ctx, proc.Command{Argv: []string{g.program, "--version"}})
	if err != nil {
		return "", fmt.Errorf("ask runsc for its version: %w", err)
	}
	// "runsc version release-20221219.0", and a line on the specification.
	line, _, _ := bytes.Cut(res.Stdout, []byte("\n"))
	f := bytes.Fields(line)
	if len(f) != 3 || string(f[0]) != "runsc" {
		return "", fmt.Errorf("%w: %s does not say its version: it is no runsc", ErrIsolation, g.program)
	}
	return wire.TierGVisor + " " + string(f[2]), nil
}

// bundle is a sandbox's directory: what runsc is told, the root directory to be
// shown, and runsc's own state. Its name is short, because the path of a socket in it
// may be no longer than 107 bytes.
func (l *Launcher) bundle(id string) string {
	sum := sha256.Sum256([]byte(id))
	return filepath.Join(l.opt.RunDir, "gvisor", fmt.Sprintf("%x", sum[:8]))
}

// removeBundle removes a sandbox's directory, if it has one. (Nothing else is
// left of a sandbox of gVisor's: it mounts nothing outside its own namespaces.)
func (l *Launcher) removeBundle(id string) error {
	if l.opt.RunDir == "" {
		return nil
	}
	return os.RemoveAll(l.bundle(id))
}

const (
	stateDir    = "s"
	rootDir     = "root"
	containerID = "box" // the state is the sandbox's own, so one name does for all
	knownFile   = "known.json"
	longestPath = 107 // of a unix socket: unix(7)

	spareThreads = "8" // of the init
)

// options are runsc's own, before its command.
func (g *gvisor) options(state string) []string {
	return []string{
		g.program, "--root=" + state, "--network=none", "--gofer-network-namespace=new", "--host-uds=open",
		"--overlay2=none", "--ignore-cgroups", "--host-settings=ignore",
	}
}

// known is what must be known of a sandbox to start a compartment beside it.
type known struct {
	UID          int
	Compartments int
	Processes    int64 // the limit of them, 0: none
	Root         string
	Mounts       []Mount
}

func knownOf(s Spec, uid int) known {
	k := known{UID: uid, Compartments: s.Compartments, Root: s.Root, Mounts: s.Mounts}
	if s.Limits.Pids > 0 {
		k.Processes = s.Limits.Pids + int64(1+s.Compartments)*inside.ReservedPids
	}
	return k
}

// beside joins no network: a compartment's init is one more process of the
// sandbox's kernel, so its network is the sandbox's. Both inits are in pid, ipc
// and mount namespaces of their own there, and in user namespaces. The
// namespaces they are made from hold no command. (A second container would have
// its own view of the files in directories that both write to, and would be
// another user, who cannot use the first one's files.)
func (g *gvisor) beside(s Spec, uid int) (*os.File, error) {
	k, err := g.known(s.Beside)
	switch {
	case err != nil || k.UID != uid || !g.l.Alive(s.Beside):
		return nil, errNotBeside(s)
	case k.Compartments == 0:
		return nil, fmt.Errorf("%w: sandbox %s was started without compartments, and in the tier gvisor it is too late for them now", ErrIsolation, s.Beside)
	case s.Root != k.Root || !slices.Equal(s.Mounts, k.Mounts):
		return nil, fmt.Errorf("%w: a compartment of the tier gvisor shows the files of the sandbox that it is beside, and no others", ErrIsolation)
	}
	return nil, nil
}

func (g *gvisor) known(id string) (k known, err error) {
	b, err := os.ReadFile(filepath.Join(g.l.bundle(id), knownFile))
	if err != nil {
		return k, err
	}
	return k, json.Unmarshal(b, &k)
}

// apart are the arguments of the init in namespaces of its own. Before those of
// a compartment are its temporary file systems.
func (s Spec) apart(initArgs []string) []string {
	uid, gid := s.insideUser()
	out := []string{"sandbox-init", inside.ApartWord, strconv.Itoa(uid), strconv.Itoa(gid)}
	out = append(append(out, initArgs[1:]...), "--apart")
	if s.Beside == "" {
		return out
	}
	tmp, shm, run := s.tmpfsSizes()
	own := []string{fmt.Sprintf("tmp=%d", tmp), fmt.Sprintf("dev/shm=%d", shm), fmt.Sprintf("run=%d", run)}
	if !s.mounts(Home) {
		own = append(own, fmt.Sprintf("%s=%d", Home[1:], run))
	}
	for _, f := range own {
		out = append(out, "--fresh", f)
	}
	return out
}

// prepareBeside has runsc start one more init in the sandbox. It ends with this
// runsc, which alone holds the other end of a pipe.
func (g *gvisor) prepareBeside(box *Sandbox, initArgs []string) (_ *starting, err error) {
	s := box.spec
	k, err := g.known(s.Beside)
	if err != nil {
		return nil, err
	}
	if k.Processes > 0 {
		initArgs = append(initArgs, "--nproc", strconv.FormatInt(k.Processes, 10))
	}
	process, err := json.Marshal(g.process(s, s.apart(append(initArgs, "--filter", "4", "--spare", spareThreads, besideFlag, "5"))))
	if err != nil {
		return nil, err
	}
	st := &starting{files: []*os.File{s.Control}, lent: 1}
	defer func() {
		if err != nil {
			st.close()
		}
	}()
	filter, err := memFile(g.filter)
	if err != nil {
		return nil, err
	}
	st.files = append(st.files, filter)
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	st.files = append(st.files, r, w)
	told, err := memFile(process)
	if err != nil {
		return nil, err
	}
	st.files = append(st.files, told)
	st.argv = append(g.options(filepath.Join(g.l.bundle(s.Beside), stateDir)),
		"exec", "--process=/proc/self/fd/7", "--pass-fd=3:3", "--pass-fd=4:4", "--pass-fd=5:5", containerID)
	return st, nil
}

func (g *gvisor) prepare(box *Sandbox, gid int, initArgs []string) (*starting, error) {
	if box.spec.Beside != "" {
		return g.prepareBeside(box, initArgs)
	}
	s, dir := box.spec, g.l.bundle(box.id)
	state := filepath.Join(dir, stateDir)
	if len(state)+len("/runsc-.sock")+len(containerID) > longestPath {
		return nil, fmt.Errorf("%w: the path of the run directory %s is too long", ErrIsolation, g.l.opt.RunDir)
	}
	if n := knownOf(s, box.uid).Processes; n > 0 {
		initArgs = append(initArgs, "--nproc", strconv.FormatInt(n, 10), "--tell")
	}
	initArgs = append(initArgs, "--filter", "4", "--spare", spareThreads)
	if s.Compartments > 0 {
		initArgs = s.apart(initArgs)
	}
	if err := g.lay(s, dir, box.uid, gid, initArgs); err != nil {
		return nil, fmt.Errorf("lay out what runsc is told: %w", err)
	}
	filter, err := memFile(g.filter)
	if err != nil {
		return nil, err
	}
	return &starting{
		argv:  append(g.options(state), "run", "--bundle="+dir, "--pass-fd=3:3", "--pass-fd=4:4", containerID),
		files: []*os.File{s.Control, filter}, lent: 1,
	}, nil
}

// lay makes the sandbox's directory.
func (g *gvisor) lay(s Spec, dir string, uid, gid int, initArgs []string) error {
	if err := os.RemoveAll(dir); err != nil { // of one that was killed
		return err
	}
	root, state := filepath.Join(dir, rootDir), filepath.Join(dir, stateDir)
	if err := errors.Join(os.MkdirAll(filepath.Dir(dir), 0o711), os.Mkdir(dir, 0o750), os.Mkdir(root, 0o755), os.Mkdir(state, 0o700)); err != nil {
		return err
	}
	spec, err := g.config(s, root, uid, gid, initArgs)
	if err != nil {
		return err
	}
	config, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o640); err != nil {
		return err
	}
	about, err := json.Marshal(knownOf(s, uid))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, knownFile), about, 0o600)
	}
	if err != nil || !g.l.root {
		return err
	}
	// It reads what it is told and changes nothing but its state.
	return errors.Join(os.Chown(dir, 0, gid), os.Chown(filepath.Join(dir, "config.json"), 0, gid), os.Chown(state, uid, gid))
}

// config is what runsc is told, in the form of the Open Container Initiative.
// The root directory gets every place where something is mounted.
func (g *gvisor) config(s Spec, root string, uid, gid int, initArgs []string) (*specs.Spec, error) {
	c := &specs.Spec{
		Version:  "1.0.2",
		Hostname: "sandbox",
		Root:     &specs.Root{Path: rootDir, Readonly: true},
		Process:  g.process(s, initArgs),
		Linux: &specs.Linux{
			UIDMappings: []specs.LinuxIDMapping{{ContainerID: InsideUID, HostID: uint32(uid), Size: 1}},
			GIDMappings: []specs.LinuxIDMapping{{ContainerID: InsideGID, HostID: uint32(gid), Size: 1}},
		},
	}
	for _, ns := range []specs.LinuxNamespaceType{
		specs.UserNamespace, specs.PIDNamespace, specs.NetworkNamespace, specs.MountNamespace, specs.IPCNamespace, specs.UTSNamespace,
	} {
		c.Linux.Namespaces = append(c.Linux.Namespaces, specs.LinuxNamespace{Type: ns})
	}
	r := &rootTree{dir: root, spec: c}
	r.link("/tmp", "/var/tmp")
	r.link("/run", "/var/run")
	tmp, shm, run := s.tmpfsSizes()
	mine := []string{fmt.Sprintf("uid=%d", InsideUID), fmt.Sprintf("gid=%d", InsideGID)}
	r.mount("/proc", specs.Mount{Type: "proc", Source: "proc"})
	r.mount("/dev", specs.Mount{Type: "dev", Source: "dev", Options: []string{"ro", "mode=0755"}})
	// gVisor would show what it makes of the machine there.
	r.tmpfs("/sys", 0, "0755", "ro")
	r.tmpfs("/dev/shm", shm, "1777")
	r.tmpfs("/tmp", tmp, "1777")
	r.tmpfs("/run", run, "0755", mine...)
	r.do(g.l.showPrograms(r, s))
	for name, content := range s.etcFiles() {
		r.file(name, content)
	}
	if s.Compartments > 0 {
		theirs := Spec{Beside: s.ID}.etcFiles()
		for _, name := range []string{"passwd", "group"} {
			r.file("/run/inspect/"+name, theirs["/etc/"+name])
		}
	}
	if !s.mounts(Home) {
		r.tmpfs(Home, run, "0755", mine...)
	}
	// What is shown below /run/inspect lies in a directory that nobody inside can change.
	r.bind(filepath.Join(root, "run/inspect"), "/run/inspect", false)
	r.bind(g.l.binary, InitPath, false)
	if g.l.tool != "" {
		r.bind(g.l.tool, ToolPath, false)
	}
	for _, m := range s.Mounts {
		r.bind(m.Source, m.Target, m.Writable)
	}
	for _, f := range s.Forwards {
		r.bind(f.Socket, f.inside(), false)
	}
	return c, r.err
}

// process is the init, as gVisor's kernel starts it.
func (g *gvisor) process(s Spec, initArgs []string) *specs.Process {
	return &specs.Process{
		User:            specs.User{UID: InsideUID, GID: InsideGID},
		Args:            append([]string{InitPath}, initArgs...),
		Env:             append(g.l.environment(s), s.Env...),
		Cwd:             s.dir(),
		NoNewPrivileges: true,
		Capabilities:    &specs.LinuxCapabilities{},
	}
}

// rootTree is the root directory to be shown and what is mounted on it.
type rootTree struct {
	dir  string
	spec *specs.Spec
	err  error
}

func (r *rootTree) do(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *rootTree) mkdir(p string) { r.do(os.MkdirAll(filepath.Join(r.dir, p), 0o755)) }

func (r *rootTree) link(to, name string) {
	r.mkdir(path.Dir(name))
	r.do(os.Symlink(to, filepath.Join(r.dir, name)))
}

// show copies small files that all may read: each mount costs a start about 2 ms,
// and /etc has many.
func (r *rootTree) show(from, at string) {
	st, err := os.Stat(from)
	if err != nil || !st.Mode().IsRegular() || st.Size() > 1<<20 || st.Mode().Perm()&0o004 == 0 {
		r.bind(from, at, false)
		return
	}
	b, err := os.ReadFile(from)
	r.do(err)
	r.mkdir(path.Dir(at))
	r.do(os.WriteFile(filepath.Join(r.dir, at), b, st.Mode().Perm()&^0o222))
}

func (r *rootTree) file(name, content string) {
	r.mkdir(path.Dir(name))
	r.do(os.WriteFile(filepath.Join(r.dir, name), []byte(content), 0o444))
}

func (r *rootTree) mount(target string, m specs.Mount) {
	r.mkdir(target)
	m.Destination = target
	r.spec.Mounts = append(r.spec.Mounts, m)
}

func (r *rootTree) tmpfs(target string, size int64, mode string, more ...string) {
	r.mount(target, specs.Mount{Type: "tmpfs", Source: "tmpfs", Options: append([]string{
		"nosuid", "nodev", "mode=" + mode, "size=" + strconv.FormatInt(size, 10),
	}, more...)})
}

func (r *rootTree) bind(source, target string, writable bool) {
	if st, err := os.Stat(source); err != nil && source != filepath.Join(r.dir, target) {
		r.do(err)
		return
	} else if err == nil && !st.IsDir() {
		r.file(target, "")
	} else {
		r.mkdir(target)
	}
	how := "ro"
	if writable {
		how = "rw"
	}
	r.spec.Mounts = append(r.spec.Mounts, specs.Mount{
		Destination: target, Type: "bind", Source: source, Options: []string{"rbind", "nosuid", "nodev", how},
	})
}

// stand waits for the init's word, finds the sentry and the gofer and looks at
// their rights.
func (g *gvisor) stand(box *Sandbox, st *starting) error {
	if !st.word() {
		return errSilent
	}
	if box.spec.Beside != "" {
		pid := box.cmd.Process.Pid
		if !box.watchProcess(pid) {
			return errSilent
		}
		none := "0000000000000000"
		return verify(pid, box.uid, map[string]string{"CapEff:": none, "CapPrm:": none})
	}
	pids := childrenOf(box.cmd.Process.Pid)
	sentry, gofer := pids["runsc-sandbox"], pids["runsc-gofer"]
	if sentry == 0 || gofer == 0 || !box.watchProcess(sentry) {
		return errSilent
	}
	want := map[string]string{"NoNewPrivs:": "1", "Seccomp:": "2"}
	kernel := maps.Clone(want)
	kernel["CapEff:"], kernel["CapPrm:"] = "0000000000000000", "0000000000000000"
	if err := errors.Join(verify(sentry, box.uid, kernel), verify(gofer, box.uid, want)); err != nil {
		return err
	}
	for _, pid := range []int{sentry, gofer} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", pid))
		if err != nil {
			return err
		}
		if f := strings.Fields(string(b)); !slices.Equal(f, []string{strconv.Itoa(InsideUID), strconv.Itoa(box.uid), "1"}) {
			return fmt.Errorf("%w: process %d has other users than the sandbox's: %q", ErrIsolation, pid, b)
		}
	}
	box.hear(st.ready)
	st.heard = true
	return nil
}

// host bounds the processes outside far from what can be had inside, where
// gVisor's kernel bounds them: it would not get over a fork that is refused to it.
// A process inside is at most four outside, measured: two stubs with a thread
// for each processor that runs them.
func (g *gvisor) host(s Spec) wire.Limits {
	l := s.Limits
	if n := knownOf(s, 0).Processes; n > 0 {
		l.Pids = 4*n + 256
	}
	return l
}

// childrenOf are a process's children by their name, argument zero.
func childrenOf(pid int) map[string]int {
	out := map[string]int{}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is in order
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for _, w := range strings.Fields(string(b)) {
			line, err := os.ReadFile("/proc/" + w + "/cmdline")
			name, _, _ := bytes.Cut(line, []byte{0})
			if n, cerr := strconv.Atoi(w); err == nil && cerr == nil {
				out[string(name)] = n
			}
		}
	}
	return out
}

func (g *gvisor) refuses(said string) error {
	if strings.Contains(said, "flag provided but not defined") {
		return fmt.Errorf("%w: this runsc is too old, build the one that make setup builds (%s)", ErrIsolation, strings.SplitN(said, "\n", 2)[0])
	}
	if strings.Contains(said, unix.EPERM.Error()) || strings.Contains(said, "operation not permitted") {
		return fmt.Errorf("%w: this machine does not let runsc make what it needs (%s)", ErrIsolation, said)
	}
	return nil
}
