package node

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"inspect/envs/egress"
	"inspect/envs/sandbox"
	"inspect/envs/wire"
)

// socketPorts are the sockets a grant can name and where they are inside.
var socketPorts = map[string]sandbox.Forward{
	wire.SocketModel:  {Port: sandbox.ModelPort},
	wire.SocketEgress: {Port: sandbox.EgressPort, Named: true},
}

// checkSockets refuses what a sandbox cannot have.
func checkSockets(names []string) error {
	for i, name := range names {
		if _, ok := socketPorts[name]; !ok {
			return badRequest(fmt.Sprintf("a sandbox has no socket named %q", name))
		}
		if slices.Contains(names[:i], name) {
			return badRequest(fmt.Sprintf("the socket %q is named twice", name))
		}
	}
	return nil
}

// wayKeeper owns the directory of the sandboxes' sockets.
type wayKeeper struct {
	mu   sync.Mutex
	held map[string]bool // directories in use by this process
}

// ways are the unix sockets that lead out of one sandbox. Each lies in a
// directory of the sandbox's own, through which only root and the sandboxes'
// group can pass, and is bound into the sandbox by path. Whoever has its
// listener serves it; nobody who has not can.
type ways struct {
	n         *Node
	dir       string
	names     []string
	listeners []*os.File // ours until passed on
	trust     string     // path of what the sandbox trusts; empty: what the node does
}

func (n *Node) waysDir() string { return filepath.Join(n.o.Root, "run", "ways") }

func (n *Node) wayDir(id string) string { return filepath.Join(n.waysDir(), wayName(id)) }

// wayName is the name of a sandbox's directory: ids may be long.
func wayName(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:10])
}

// makeWays makes the sockets of a sandbox, which must not be running.
func (n *Node) makeWays(id string, names []string) (_ *ways, err error) {
	w := &ways{n: n, dir: n.wayDir(id), names: names}
	if len(names) == 0 {
		return w, nil
	}
	if err := checkSockets(names); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.letGo()
			w.remove()
			err = fmt.Errorf("make the sockets of sandbox %s: %w", id, err)
		}
	}()
	if err := n.waysMade(w.dir); err != nil {
		return nil, err
	}
	dir, err := os.Open(w.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	for _, name := range names {
		// Through the open directory: a socket's path has at most 107 bytes, and
		// the data directory's own may be longer.
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name), Net: "unix"})
		if err != nil {
			return nil, err
		}
		l.SetUnlinkOnClose(false)
		f, err := l.File()
		l.Close()
		if err != nil {
			return nil, err
		}
		w.listeners = append(w.listeners, f)
		if os.Geteuid() == 0 {
			err = os.Chown(w.path(name), n.o.SandboxUID, n.o.SandboxGID)
		}
		if err := errors.Join(err, os.Chmod(w.path(name), 0o600)); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// waysMade makes an empty directory for the sockets of one sandbox.
func (n *Node) waysMade(dir string) error {
	n.ways.mu.Lock()
	defer n.ways.mu.Unlock()
	if n.ways.held == nil {
		n.ways.held = map[string]bool{}
	}
	n.ways.held[dir] = true
	for _, d := range []string{filepath.Dir(n.waysDir()), n.waysDir()} {
		if err := os.Mkdir(d, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	// What an earlier sandbox of that name left.
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o710)); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, 0, n.o.SandboxGID); err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o710)
}

func (w *ways) path(name string) string { return filepath.Join(w.dir, name) }

func (w *ways) has(name string) bool { return slices.Contains(w.names, name) }

// trustName is the file of what a sandbox trusts, beside its sockets.
const trustName = "authorities.pem"

// believe has the sandbox trust the authority of the proxy at its egress
// socket, if there is one.
func (w *ways) believe(authority []byte) error {
	if len(authority) == 0 || !w.has(wire.SocketEgress) {
		return nil
	}
	authority, err := egress.CheckAuthority(authority)
	if err != nil {
		return badRequest("the authority of the egress proxy: " + err.Error())
	}
	bundle, err := egress.Bundle(authority)
	if err != nil {
		return err
	}
	w.trust = w.path(trustName)
	if err := os.WriteFile(w.trust, bundle, 0o644); err != nil {
		return fmt.Errorf("write what the sandbox trusts: %w", err)
	}
	return os.Chmod(w.trust, 0o644) // whatever the umask is
}

// waysOf are the ways of a sandbox that runs, as another that shares its
// loopback finds them.
func (n *Node) waysOf(id string, names []string) *ways {
	w := &ways{n: n, dir: n.wayDir(id), names: names}
	if _, err := os.Stat(w.path(trustName)); err == nil {
		w.trust = w.path(trustName)
	}
	return w
}

// apply shows the sockets in a sandbox and tells programs of the proxy.
func (w *ways) apply(s *sandbox.Spec) {
	for _, name := range w.names {
		f := socketPorts[name]
		f.Socket = w.path(name)
		s.Forwards = append(s.Forwards, f)
	}
	w.tell(s)
}

// tell tells the programs in a sandbox of the proxy, if w has one. The sandbox
// is the one that w leads out of, or beside it.
func (w *ways) tell(s *sandbox.Spec) {
	if !w.has(wire.SocketEgress) {
		return
	}
	trust := ""
	if w.trust != "" {
		trust = insideTrust
		s.Mounts = append(s.Mounts, sandbox.Mount{Source: w.trust, Target: trust})
	}
	s.Env = append(s.Env, egress.Environment(sandbox.EgressPort, trust)...)
}

// letGo closes our copies of the listeners: they have been passed on, or
// nobody will serve them.
func (w *ways) letGo() {
	closeAll(w.listeners)
	w.listeners = nil
}

// remove removes the socket files of a sandbox that has ended. The listeners
// are with who has started it.
func (w *ways) remove() {
	if len(w.names) == 0 {
		return
	}
	w.n.ways.mu.Lock()
	defer w.n.ways.mu.Unlock()
	if err := os.RemoveAll(w.dir); err != nil {
		w.n.log.Warn("the sockets of an ended sandbox stay for now", "directory", w.dir, "error", err)
	}
	delete(w.n.ways.held, w.dir)
}

// madeWays lists the directories of sandboxes' sockets.
func (n *Node) madeWays() ([]string, error) {
	entries, err := os.ReadDir(n.waysDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var dirs []string
	for _, e := range entries {
		dirs = append(dirs, filepath.Join(n.waysDir(), e.Name()))
	}
	return dirs, err
}

// sweepWays removes those that belong to no sandbox: not to one that this
// process has started and not to one of these that lives. They were listed
// after dirs.
func (n *Node) sweepWays(dirs, sandboxes []string) error {
	alive := map[string]bool{}
	for _, id := range sandboxes {
		if n.o.Launcher.Alive(id) {
			alive[n.wayDir(id)] = true
		}
	}
	var errs []error
	for _, dir := range dirs {
		if alive[dir] {
			continue
		}
		n.ways.mu.Lock()
		if !n.ways.held[dir] {
			errs = append(errs, os.RemoveAll(dir))
		}
		n.ways.mu.Unlock()
	}
	return errors.Join(errs...)
}
