package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"inspect/envs/proc"
	"inspect/envs/sandbox/inside"
	"inspect/envs/wire"
)

// bubblewrap is the tier whose walls are the kernel's own: namespaces and a
// system-call filter.
type bubblewrap struct {
	l       *Launcher
	program string
	filter  []byte
}

func newBubblewrap(l *Launcher) (*bubblewrap, error) {
	filter, err := seccompFilter()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIsolation, err)
	}
	program := l.opt.Bubblewrap
	if program == "" {
		if program, err = proc.LookPath("bwrap", []string{"PATH=" + proc.DefaultPath}); err != nil {
			return nil, fmt.Errorf("%w: bubblewrap is not installed, run as root: apt-get install -y bubblewrap (%w)", ErrIsolation, err)
		}
	}
	return &bubblewrap{l: l, program: program, filter: filter}, nil
}

func (b *bubblewrap) version(ctx context.Context) (string, error) {
	res, err := proc.Run(ctx, proc.Command{Argv: []string{b.program, "--version"}})
	if err != nil {
		return "", fmt.Errorf("ask bubblewrap for its version: %w", err)
	}
	version, err := parseVersion(res.Stdout)
	if err != nil {
		return "", err
	}
	return wire.TierBubblewrap + " " + version, nil
}

// parseVersion reads "bubblewrap 0.8.0" and refuses what is older than that.
func parseVersion(out []byte) (string, error) {
	f := bytes.Fields(out)
	var major, minor int
	if len(f) != 2 || string(f[0]) != "bubblewrap" {
		return "", errors.New("bubblewrap does not say its version")
	}
	if _, err := fmt.Sscanf(string(f[1]), "%d.%d", &major, &minor); err != nil {
		return "", fmt.Errorf("bubblewrap's version %q cannot be read", f[1])
	}
	if major == 0 && minor < 8 {
		return "", fmt.Errorf("%w: bubblewrap %s is too old, 0.8.0 or newer is needed", ErrIsolation, f[1])
	}
	return string(f[1]), nil
}

func (b *bubblewrap) prepare(box *Sandbox, _ int, initArgs []string) (*starting, error) {
	s := box.spec
	infoR, infoW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	a := &argFiles{files: []*os.File{s.Control}} // descriptor 3
	if box.beside != nil {
		a.file(box.beside) // descriptor 4
		initArgs = append(initArgs, besideFlag, besideFD)
	}
	lent := len(a.files)
	b.options(a, s, infoW)
	argsFD := a.data(encode(a.args))
	in, gate, err := newGate(encode([]string{needed}))
	if err != nil {
		a.err = err
	}
	gateFD := a.file(in)
	if b.l.groups == nil && s.Limits.Pids > 0 && countsPerNamespace() {
		initArgs = append(initArgs, "--nproc", strconv.FormatInt(s.Limits.Pids+inside.ReservedPids, 10))
	}
	st := &starting{
		argv:  append([]string{b.program, "--args", gateFD, "--args", argsFD, "--", InitPath}, initArgs...),
		files: a.files, lent: lent, gate: gate, info: infoR,
	}
	if a.err != nil {
		st.close()
		return nil, a.err
	}
	return st, nil
}

// stand learns the init's process from bubblewrap and waits for its word.
func (b *bubblewrap) stand(box *Sandbox, st *starting) error {
	var info struct {
		Child int `json:"child-pid"`
	}
	said, err := io.ReadAll(io.LimitReader(st.info, 4<<10))
	if err != nil || len(said) == 0 {
		return errSilent
	}
	if err := json.Unmarshal(said, &info); err != nil || info.Child <= 1 {
		return fmt.Errorf("bubblewrap did not say which process its init is: %q", said)
	}
	if !box.watchProcess(info.Child) {
		return errSilent
	}
	if !st.word() {
		return errSilent
	}
	err = verify(info.Child, box.uid, map[string]string{
		"CapEff:":     "0000000000000000",
		"CapPrm:":     "0000000000000000",
		"CapBnd:":     "0000000000000000",
		"NoNewPrivs:": "1",
		"Seccomp:":    "2",
	})
	if err != nil || box.beside == nil {
		return err
	}
	return verifyBeside(info.Child, box.beside)
}

func (b *bubblewrap) host(s Spec) wire.Limits { return s.Limits }

func (b *bubblewrap) refuses(said string) error {
	if strings.Contains(said, "Unknown option") {
		return fmt.Errorf("%w: this bubblewrap is too old, 0.8.0 is needed (%s)", ErrIsolation, said)
	}
	return nil
}

// argFiles are bubblewrap's options, and the files they name by number. All
// options go to it in a file: on its command line every user of the host could
// read them.
type argFiles struct {
	args  []string
	files []*os.File // descriptor 3 is files[0], and so on
	err   error
}

func (a *argFiles) add(args ...string) { a.args = append(a.args, args...) }

func (a *argFiles) mkdir(at string)      { a.add("--dir", at) }
func (a *argFiles) link(to, at string)   { a.add("--symlink", to, at) }
func (a *argFiles) show(from, at string) { a.add("--ro-bind", from, at) }

// file hands f on and returns its number there.
func (a *argFiles) file(f *os.File) string {
	a.files = append(a.files, f)
	return strconv.Itoa(2 + len(a.files))
}

// data hands a file with this content on and returns its number there.
func (a *argFiles) data(b []byte) string {
	f, err := memFile(b)
	if err != nil {
		a.err = err
		return ""
	}
	return a.file(f)
}

// needed is the option that bubblewrap waits for at the gate. Without it the
// others contradict each other (--as-pid-1), and it ends before it has made a
// process or a namespace.
const needed = "--unshare-pid"

// options adds everything else that makes the sandbox for s. The order of the last
// ones matters: what is remounted read-only must be complete.
func (b *bubblewrap) options(a *argFiles, s Spec, info *os.File) {
	uid, gid := s.insideUser()
	a.add("--unshare-user", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
	if s.Beside == "" {
		a.add("--unshare-net")
	}
	a.add("--disable-userns", "--new-session", "--cap-drop", "ALL",
		"--clearenv", "--as-pid-1", "--uid", strconv.Itoa(uid), "--gid", strconv.Itoa(gid),
		"--hostname", "sandbox", "--info-fd", a.file(info))

	tmp, shm, run := s.tmpfsSizes()
	a.add("--proc", "/proc", "--dev", "/dev")
	sized := func(perms string, size int64, dir string) {
		a.add("--perms", perms, "--size", strconv.FormatInt(size, 10), "--tmpfs", dir)
	}
	sized("1777", shm, "/dev/shm")
	sized("1777", tmp, "/tmp")
	sized("0755", run, "/run")
	sized("0755", 1<<20, "/run/inspect")
	a.add("--dir", "/var", "--symlink", "/tmp", "/var/tmp", "--symlink", "/run", "/var/run", "--dir", "/etc")
	if err := b.l.showPrograms(a, s); err != nil {
		a.err = err
	}
	for name, content := range s.etcFiles() {
		a.add("--perms", "0444", "--file", a.data([]byte(content)), name)
	}
	a.add("--ro-bind", b.l.binary, InitPath)
	if b.l.tool != "" {
		a.add("--ro-bind", b.l.tool, ToolPath)
	}
	if !s.mounts(Home) {
		sized("0755", run, Home)
	}
	for _, m := range s.Mounts {
		how := "--ro-bind"
		if m.Writable {
			how = "--bind"
		}
		a.add(how, m.Source, m.Target)
	}
	for _, f := range s.Forwards {
		// Connecting to a socket needs no writable mount; changing the file does.
		a.add("--ro-bind", f.Socket, f.inside())
	}
	for _, e := range append(b.l.environment(s), s.Env...) {
		name, value, _ := strings.Cut(e, "=")
		a.add("--setenv", name, value)
	}
	a.add("--seccomp", a.data(b.filter), "--chdir", s.dir(),
		"--remount-ro", "/run/inspect", "--remount-ro", "/dev", "--remount-ro", "/")
}

// encode is the form of --args.
func encode(args []string) []byte {
	var b bytes.Buffer
	for _, a := range args {
		b.WriteString(a)
		b.WriteByte(0)
	}
	return b.Bytes()
}

// countsPerNamespace reports whether RLIMIT_NPROC counts the processes of one
// user namespace and not those of the user's whole machine (Linux 5.14).
func countsPerNamespace() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major > 5 || major == 5 && minor >= 14
}
