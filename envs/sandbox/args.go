package sandbox

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// etcEntries of the host are visible inside where they exist. /etc as a whole
// is not: it holds configuration of the host's programs and worse.
var etcEntries = []string{
	"/etc/alternatives", "/etc/ca-certificates", "/etc/ca-certificates.conf", "/etc/debian_version", "/etc/fonts",
	"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/magic", "/etc/mime.types",
	"/etc/os-release", "/etc/pki", "/etc/protocols", "/etc/services", "/etc/ssl", "/etc/timezone",
}

// etcPatterns are further ones that programs under /usr link to.
var etcPatterns = []string{"/etc/java-*", "/etc/python3*", "/etc/maven/m2.conf", "/etc/maven/logging"}

// etcFiles are written for each sandbox.
func etcFiles() map[string]string {
	return map[string]string{
		"/etc/passwd": fmt.Sprintf("root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n"+
			"%s:x:%d:%d:agent:%s:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
			InsideUser, InsideUID, InsideGID, Home),
		"/etc/group": fmt.Sprintf("root:x:0:\n%s:x:%d:\nnogroup:x:65534:\n", InsideUser, InsideGID),
		"/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n",
		// No name service: nothing to ask is in reach.
		"/etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files\n" +
			"protocols: files\nservices: files\n",
	}
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

// memFile is an anonymous file, closed on exec, read from its beginning.
func memFile(b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("inspect", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "memfd")
	_, err = f.Write(b)
	if err == nil {
		_, err = f.Seek(0, 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("fill a file in memory: %w", err)
	}
	return f, nil
}

// options adds everything that makes the sandbox for s. The order of the last
// ones matters: what is remounted read-only must be complete.
func (l *Launcher) options(a *argFiles, s Spec, info *os.File) {
	a.add("--unshare-user", "--unshare-all", "--disable-userns", "--new-session", "--cap-drop", "ALL",
		"--clearenv", "--as-pid-1", "--uid", strconv.Itoa(InsideUID), "--gid", strconv.Itoa(InsideGID),
		"--hostname", "sandbox", "--info-fd", a.file(info))

	a.add("--ro-bind", "/usr", "/usr")
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		st, err := os.Lstat("/" + name)
		switch {
		case err != nil:
		case st.Mode()&os.ModeSymlink != 0:
			if to, err := os.Readlink("/" + name); err == nil {
				a.add("--symlink", to, "/"+name)
			}
		case st.IsDir():
			a.add("--ro-bind", "/"+name, "/"+name)
		}
	}
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
	for _, e := range l.etc {
		a.add("--ro-bind", e, e)
	}
	for name, content := range etcFiles() {
		a.add("--perms", "0444", "--file", a.data([]byte(content)), name)
	}
	for _, e := range l.opt.Expose {
		a.add("--ro-bind", e, e)
	}
	a.add("--ro-bind", l.binary, InitPath)
	if !slices.ContainsFunc(s.Mounts, func(m Mount) bool { return m.Target == Home }) {
		sized("0755", run, Home)
	}
	dir := "/"
	for _, m := range s.Mounts {
		how := "--ro-bind"
		if m.Writable {
			how = "--bind"
		}
		a.add(how, m.Source, m.Target)
		if m.Target == Workspace {
			dir = Workspace
		}
	}
	for _, f := range s.Forwards {
		// Connecting to a socket needs no writable mount; changing the file does.
		a.add("--ro-bind", f.Socket, f.inside())
	}
	for _, e := range append(l.environment(s), s.Env...) {
		name, value, _ := strings.Cut(e, "=")
		a.add("--setenv", name, value)
	}
	a.add("--seccomp", a.data(l.filter), "--chdir", dir,
		"--remount-ro", "/run/inspect", "--remount-ro", "/dev", "--remount-ro", "/")
}

// inside is where a forward's socket is shown.
func (f Forward) inside() string { return SocketDir + "/" + strconv.Itoa(f.Port) }

// hostEtc is which of the entries exist here.
func hostEtc() (out []string) {
	all := etcEntries
	for _, p := range etcPatterns {
		more, _ := filepath.Glob(p)
		all = append(all[:len(all):len(all)], more...)
	}
	for _, e := range all {
		if _, err := os.Stat(e); err == nil {
			out = append(out, e)
		}
	}
	return out
}

// environment is what commands find before the Spec and they themselves add.
// Programs see the host's processors and memory inside, so they are told.
func (l *Launcher) environment(s Spec) []string {
	env := []string{
		"PATH=" + SearchPath, "HOME=" + Home, "USER=" + InsideUser, "LOGNAME=" + InsideUser,
		"SHELL=/bin/sh", "LANG=C.UTF-8", "TMPDIR=/tmp", "GOTOOLCHAIN=local", "GIT_TERMINAL_PROMPT=0",
	}
	var java []string
	if c := s.Limits.CPU; c > 0 {
		n := int(math.Ceil(c))
		env = append(env, fmt.Sprintf("GOMAXPROCS=%d", n))
		java = append(java, fmt.Sprintf("-XX:ActiveProcessorCount=%d", n))
	}
	if m := s.Limits.MemoryBytes; m > 0 {
		env = append(env, fmt.Sprintf("NODE_OPTIONS=--max-old-space-size=%d", m*3/4>>20))
		java = append(java, fmt.Sprintf("-XX:MaxRAM=%d", m))
	}
	if len(java) > 0 {
		env = append(env, "JDK_JAVA_OPTIONS="+strings.Join(java, " "))
	}
	return env
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
