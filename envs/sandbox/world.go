package sandbox

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
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
func (s Spec) etcFiles() map[string]string {
	uid, gid := s.insideUser()
	return map[string]string{
		"/etc/passwd": fmt.Sprintf("root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n"+
			"%s:x:%d:%d:agent:%s:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
			InsideUser, uid, gid, Home),
		"/etc/group": fmt.Sprintf("root:x:0:\n%s:x:%d:\nnogroup:x:65534:\n", InsideUser, gid),
		"/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n",
		// No name service: nothing to ask is in reach.
		"/etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files\n" +
			"protocols: files\nservices: files\n",
	}
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

// hostRoot is how the host's root directory leads to its programs: links into
// /usr, and directories where it has not been merged.
func hostRoot() (links map[string]string, dirs []string) {
	links = map[string]string{}
	for _, name := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		if to, err := os.Readlink(name); err == nil {
			links[name] = to
		} else if st, err := os.Lstat(name); err == nil && st.IsDir() {
			dirs = append(dirs, name)
		}
	}
	return links, dirs
}

// insideUser is who commands are inside. Their name is the same in both cases:
// what programs write down by name, such as the owner of a database, fits both.
func (s Spec) insideUser() (uid, gid int) {
	if s.Beside != "" {
		return CompartmentUID, CompartmentGID
	}
	return InsideUID, InsideGID
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
