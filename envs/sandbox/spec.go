package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"inspect/envs/wire"
)

// Paths and names inside a sandbox.
const (
	Workspace   = "/workspace"
	Home        = "/home/agent"
	InitPath    = "/run/inspect/init"
	ToolPath    = toolDir + "/inspect" // what commands can call, where a launcher has a Tool
	MirrorPath  = "/run/inspect/mirror.git"
	ModulesPath = "/run/inspect/modules" // has the mirrors of submodules
	SocketDir   = "/run/inspect/sock"    // has the socket of each Forward, named by its port
	InsideUID   = 1000
	InsideGID   = 1000
	InsideUser  = "agent"
	SearchPath  = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin:" + toolDir

	toolDir = "/run/inspect/bin"
)

// Ports on the loopback inside that lead outside, where a sandbox has them.
const (
	EgressPort = 41710 // the egress proxy, HTTP
	ModelPort  = 41711 // the model gateway, HTTP
)

// maxForwards are the most a sandbox can have: the init has a thread for each.
const maxForwards = 2

// maxCompartments are the most that can be announced.
const maxCompartments = 100

// Forward makes a port on the loopback inside lead to a unix socket outside.
type Forward struct {
	Port   int
	Socket string // path of the listening socket; every directory above it must let the sandbox's uid pass
	// Named connections begin with one line that says which command connects,
	// see package forward.
	Named bool
}

// LeastMemory is the least memory limit a sandbox can be started with, in bytes.
const LeastMemory = 64 << 20

// Mount makes a directory or file of the host visible inside. Source is
// resolved with the sandbox's uid: every directory above it must let that pass
// (mode 0711 will do).
type Mount struct {
	Source, Target string // absolute, clean
	Writable       bool
}

// Spec describes one sandbox.
type Spec struct {
	// ID names the sandbox: up to 100 letters, digits, '.', '_' and '-'. Two
	// with one ID cannot run at a time.
	ID string
	// Beside, if set, names a running sandbox of this installation and makes this
	// one a compartment of it: with namespaces and a uid inside of its own, but
	// with the other's loopback, cgroup and end. Commands of the one cannot see,
	// trace or signal those of the other, nor read their environment; they reach
	// each other's ports and abstract unix sockets, and what both have mounted.
	// UID and GID must be the other's, Forwards are the other's, of Limits only
	// the size of files counts, and List, Alive and Reap know it through the other
	// alone. Of the tier bubblewrap it needs root; of the tier gvisor the other
	// must have been started for it (Compartments), and Root and Mounts must be
	// the other's.
	Beside string
	// Compartments is how many others will be started beside this one at a time,
	// at most. Of the tier gvisor they need it, and each that is announced makes
	// room for the processes of its init. It is no bound.
	Compartments int
	// UID and GID it has outside; 0 means the launcher's Options. Inside it is
	// always 1000, "agent". Root is refused. An ordinary user's launcher can
	// only use its own.
	UID, GID int
	// Root is the tree of an image, shown read-only in place of the programs of
	// this machine; empty: those. It must not change while the sandbox is.
	Root string
	// Mounts beside the system's own. The first that is mounted on Workspace
	// makes that the working directory.
	Mounts []Mount
	// Env is added to the environment inside, "NAME=value".
	Env    []string
	Limits wire.Limits
	// Forwards are the ways out of the sandbox; there are no others.
	Forwards []Forward
	// TmpBytes is the size of /tmp; 0 is a quarter of the memory limit, or
	// 512 MiB. What is in it counts as memory: all the temporary file systems
	// together get at most half of the memory limit.
	TmpBytes int64
	// Control is the sandbox's end of stream.Pair. Start closes it in any case.
	Control *os.File
	// DiskUsage measures what Limits.DiskBytes bounds, in bytes; nil counts
	// the blocks of all writable mounts. Files without a name that the sandbox
	// holds there are added to it. It is called every two seconds or, if it takes
	// long, so that it takes a tenth of the time, but no later than 30 seconds
	// after it returned. A sandbox over its limit is ended. Not called if
	// DiskBytes is 0.
	DiskUsage func(context.Context) (int64, error)
}

var validID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

func (s Spec) check() error {
	if !validID.MatchString(s.ID) {
		return fmt.Errorf("%q cannot name a sandbox", s.ID)
	}
	if s.Control == nil {
		return errors.New("it has no control stream")
	}
	switch {
	case s.Beside == "":
	case !validID.MatchString(s.Beside) || s.Beside == s.ID:
		return fmt.Errorf("%q cannot name the sandbox it is started beside", s.Beside)
	case len(s.Forwards) > 0:
		return errors.New("a sandbox beside another has that one's ways out and none of its own")
	}
	if s.Compartments < 0 || s.Compartments > maxCompartments {
		return fmt.Errorf("%d compartments cannot be had, %d are the most", s.Compartments, maxCompartments)
	}
	l := s.Limits
	if l.CPU < 0 || l.MemoryBytes < 0 || l.Pids < 0 || l.DiskBytes < 0 || s.TmpBytes < 0 {
		return errors.New("a limit is negative")
	}
	if l.MemoryBytes > 0 && l.MemoryBytes < LeastMemory {
		return fmt.Errorf("a memory limit of %d bytes is less than the %d MiB a sandbox needs", l.MemoryBytes, LeastMemory>>20)
	}
	if len(s.Forwards) > maxForwards {
		return fmt.Errorf("%d ports lead outside, %d are the most", len(s.Forwards), maxForwards)
	}
	for i, f := range s.Forwards {
		if f.Port < 1024 || f.Port > 65535 || slices.ContainsFunc(s.Forwards[:i], func(o Forward) bool { return o.Port == f.Port }) {
			return fmt.Errorf("port %d cannot lead outside: it is below 1024, or named twice", f.Port)
		}
		if !path.IsAbs(f.Socket) || path.Clean(f.Socket) != f.Socket || strings.ContainsRune(f.Socket, 0) {
			return fmt.Errorf("%q is not an absolute path in its shortest form", f.Socket)
		}
	}
	if s.Root != "" && (!path.IsAbs(s.Root) || path.Clean(s.Root) != s.Root || strings.ContainsRune(s.Root, 0)) {
		return fmt.Errorf("%q is not an absolute path in its shortest form", s.Root)
	}
	seen := []string{"/", "/usr", "/etc", "/proc", "/dev", "/run", "/tmp", "/run/inspect", InitPath, toolDir, ToolPath, SocketDir}
	for _, m := range s.Mounts {
		for _, p := range []string{m.Source, m.Target} {
			if !path.IsAbs(p) || path.Clean(p) != p || strings.ContainsRune(p, 0) {
				return fmt.Errorf("%q is not an absolute path in its shortest form", p)
			}
		}
		if slices.Contains(seen, m.Target) || hasAny(m.Target, "/usr/", "/etc/", "/proc/", "/dev/", "/bin/", "/lib/", SocketDir+"/") {
			return fmt.Errorf("%s is the system's or taken already: nothing can be mounted there", m.Target)
		}
		seen = append(seen, m.Target)
	}
	for _, e := range s.Env {
		name, _, ok := strings.Cut(e, "=")
		if !ok || name == "" || strings.ContainsRune(e, 0) {
			return fmt.Errorf("an environment entry named %q is not of the form NAME=value", name)
		}
	}
	return nil
}

func hasAny(s string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

// mounts reports whether something is mounted on target.
func (s Spec) mounts(target string) bool {
	return slices.ContainsFunc(s.Mounts, func(m Mount) bool { return m.Target == target })
}

// dir is the working directory.
func (s Spec) dir() string {
	if s.mounts(Workspace) {
		return Workspace
	}
	return "/"
}

// tmpfsSizes are the bytes of /tmp, /dev/shm and /run.
func (s Spec) tmpfsSizes() (tmp, shm, run int64) {
	tmp, run = s.TmpBytes, 16<<20
	mem := s.Limits.MemoryBytes
	if tmp == 0 {
		tmp = 512 << 20
		if mem > 0 {
			tmp = mem / 4
		}
	}
	if mem > 0 {
		run = min(run, mem/16)
		tmp = min(tmp, mem/4)
	}
	shm = max(tmp/2, 1<<20)
	return tmp, shm, run
}
