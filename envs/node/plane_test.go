package node_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/node"
	"inspect/envs/sandbox"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// Accounts of these tests. An ordinary user has only one.
const (
	planeUID = 64330
	oneUID   = 64331 // of a runner
	otherUID = 64332
)

// dialAs connects to the node's socket as another account.
func dialAs(t *testing.T, socket string, uid int) *net.UnixConn {
	t.Helper()
	var c *net.UnixConn
	var err error
	done := make(chan struct{})
	go func() { // the thread ends with it
		defer close(done)
		runtime.LockOSThread()
		// This thread alone: the kernel asks it who connects.
		if _, _, no := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); no != 0 {
			err = no
			return
		}
		c, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	}()
	<-done
	must(t, err)
	must(t, c.SetDeadline(time.Now().Add(15*time.Second)))
	return c
}

// ask makes one HTTP request on the node's socket as an account and returns the
// answer's status.
func ask(t *testing.T, socket string, uid int, path string, body any) (int, string) {
	t.Helper()
	c := dialAs(t, socket, uid)
	defer c.Close()
	b, err := json.Marshal(body)
	must(t, err)
	req, err := http.NewRequest(http.MethodPost, "http://node"+path, bytes.NewReader(b))
	must(t, err)
	must(t, req.Write(c))
	res, err := http.ReadResponse(bufio.NewReader(c), req)
	must(t, err)
	defer res.Body.Close()
	var said bytes.Buffer
	_, err = said.ReadFrom(res.Body)
	must(t, err)
	return res.StatusCode, strings.TrimSpace(said.String())
}

// fakeRunners remember what they were asked for.
type fakeRunners struct {
	mu    sync.Mutex
	asked []string
	as    map[string]int
}

func (r *fakeRunners) did(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, fmt.Sprintf(format, args...))
}

func (r *fakeRunners) Start(_ context.Context, s string, g int, secret string) error {
	r.did("start %s %d %s", s, g, secret)
	return nil
}

func (r *fakeRunners) Running(_ context.Context, s string, g int) (bool, error) {
	r.did("state %s %d", s, g)
	return true, nil
}

func (r *fakeRunners) Stop(_ context.Context, s string, g int) error {
	r.did("stop %s %d", s, g)
	return nil
}

func (r *fakeRunners) Log(_ context.Context, s string, g int, max int) ([]byte, error) {
	r.did("log %s %d %d", s, g, max)
	return []byte("what it said"), nil
}

func (r *fakeRunners) List(context.Context) ([]wire.RunnerState, error) {
	r.did("list")
	return []wire.RunnerState{{Session: "s1", Generation: 1, Running: true}}, nil
}

func (r *fakeRunners) Forget(_ context.Context, s string, g int) error {
	r.did("forget %s %d", s, g)
	return nil
}

func (r *fakeRunners) StopAll(context.Context) { r.did("stop all") }

func (r *fakeRunners) RunsAs(s string, g int) (int, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	uid, ok := r.as[fmt.Sprintf("%s %d", s, g)]
	return uid, ok
}

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("an ordinary user cannot be several accounts")
	}
}

func forPlane(verb string) func(*wire.Grant) {
	return func(g *wire.Grant) { g.Verbs, g.PeerUID, g.Session = []string{verb}, planeUID, "s1" }
}

func TestOnlyTheControlPlaneHasRunnersStarted(t *testing.T) {
	needsRoot(t)
	r := &fakeRunners{}
	w, f := newFakeWorld(t, func(o *nodeOptions) { o.ControlUID, o.Runners = planeUID, r })
	good := w.grant("s1", "", "", forPlane(wire.VerbRun))
	for _, c := range []struct {
		name, path string
		uid        int
		req        wire.RunRequest
		status     int
	}{
		{"start", "/run/start", planeUID, wire.RunRequest{Grant: good, Secret: "one time"}, 200},
		{"state", "/run/state", planeUID, wire.RunRequest{Grant: good}, 200},
		{"stop", "/run/stop", planeUID, wire.RunRequest{Grant: good}, 200},
		{"stop all", "/run/stop-all", planeUID, wire.RunRequest{Grant: good}, 200},
		{"logs", "/run/logs", planeUID, wire.RunRequest{Grant: good}, 200},
		{"list", "/run/list", planeUID, wire.RunRequest{Grant: good}, 200},
		{"forget", "/run/forget", planeUID, wire.RunRequest{Grant: good}, 200},
		{"a runner reads logs", "/run/logs", oneUID, wire.RunRequest{Grant: good}, 401},
		{"a runner forgets", "/run/forget", oneUID, wire.RunRequest{Grant: good}, 401},
		{"no secret", "/run/start", planeUID, wire.RunRequest{Grant: good}, 400},
		{"two lines", "/run/start", planeUID, wire.RunRequest{Grant: good, Secret: "a\nb"}, 400},
		{"a runner", "/run/start", oneUID, wire.RunRequest{Grant: good, Secret: "x"}, 401},
		{"a runner stops", "/run/stop-all", oneUID, wire.RunRequest{Grant: good}, 401},
		{"root", "/run/start", 0, wire.RunRequest{Grant: good, Secret: "x"}, 401},
		{"for anybody", "/run/start", planeUID, wire.RunRequest{Secret: "x", Grant: w.grant("s1", "", "", forPlane(wire.VerbRun), func(g *wire.Grant) { g.PeerUID = wire.PeerRunner })}, 401},
		{"for the other, signed", "/run/start", otherUID, wire.RunRequest{Secret: "x", Grant: w.grant("s1", "", "", forPlane(wire.VerbRun), func(g *wire.Grant) { g.PeerUID = otherUID })}, 401},
		{"another verb", "/run/start", planeUID, wire.RunRequest{Secret: "x", Grant: w.grant("s1", wire.PurposeWork, "snap-1", func(g *wire.Grant) { g.PeerUID = planeUID })}, 401},
		{"no grant", "/run/stop-all", planeUID, wire.RunRequest{}, 401},
	} {
		if status, said := ask(t, w.socket, c.uid, c.path, c.req); status != c.status {
			t.Errorf("%s: %d %s", c.name, status, said)
		}
	}
	want := "start s1 1 one time; state s1 1; stop s1 1; stop all; log s1 1 65536; list; forget s1 1"
	if got := strings.Join(r.asked, "; "); got != want {
		t.Errorf("asked for %q, want %q", got, want)
	}
	f.stop()

	// A node whose control plane is elsewhere, or root itself, starts no runners.
	w.startFake(func(o *nodeOptions) { o.Runners = r })
	if status, said := ask(t, w.socket, planeUID, "/run/start", wire.RunRequest{Grant: good, Secret: "x"}); status != 401 {
		t.Errorf("without a control plane here: %d %s", status, said)
	}
}

func TestGrantOfARunnerTheNodeStarted(t *testing.T) {
	needsRoot(t)
	r := &fakeRunners{as: map[string]int{"s1 1": oneUID, "s2 1": otherUID}}
	w, f := newFakeWorld(t, func(o *nodeOptions) { o.ControlUID, o.Runners = planeUID, r })
	f.publish("snap-1")
	theirs := func(session string) wire.RestoreRequest {
		return wire.RestoreRequest{Grant: w.grant(session, wire.PurposeWork, "snap-1", func(g *wire.Grant) { g.PeerUID = wire.PeerRunner })}
	}
	for _, c := range []struct {
		name, session string
		uid, status   int
	}{
		{"its runner", "s1", oneUID, 200},
		{"another session's", "s1", otherUID, 401},
		{"the other's own", "s2", otherUID, 200},
		{"root", "s1", 0, 401},
		{"the control plane", "s1", planeUID, 401},
		{"of one that is not running", "s3", oneUID, 401},
	} {
		for _, path := range []string{"/restore", "/discard"} {
			if status, said := ask(t, w.socket, c.uid, path, theirs(c.session)); status != c.status {
				t.Errorf("%s, %s: %d %s", c.name, path, status, said)
			}
		}
	}
}

// planeLauncher remembers what it started.
type planeLauncher struct {
	*fakeLauncher
	specs []sandbox.Spec
}

func (l *planeLauncher) Start(ctx context.Context, s sandbox.Spec) (node.Sandbox, error) {
	l.specs = append(l.specs, s)
	return l.fakeLauncher.Start(ctx, s)
}

func TestQuarantineIsOverTheControlPlanesOwnDirectory(t *testing.T) {
	needsRoot(t)
	q := &planeLauncher{fakeLauncher: &fakeLauncher{boxes: map[string]*fakeBox{}}}
	var w *world
	base := ""
	w, f := newFakeWorld(t, func(o *nodeOptions) {
		base = filepath.Join(filepath.Dir(o.Root), "publish")
		o.ControlUID, o.Quarantines, o.QuarantineDir, o.QuarantineUID = planeUID, q, base, 64333
	})
	for dir, uid := range map[string]int{"": 0, "mine": planeUID, "mine/q": planeUID, "mine/deep": planeUID, "mine/deep/q": planeUID, "foreign": 0, "foreign/q": planeUID, "mine/theirs": otherUID} {
		must(t, os.MkdirAll(filepath.Join(base, dir), 0o711))
		must(t, os.Chown(filepath.Join(base, dir), uid, uid))
	}
	must(t, os.Symlink("/etc", filepath.Join(base, "mine", "link")))
	must(t, os.Lchown(filepath.Join(base, "mine", "link"), planeUID, planeUID))
	must(t, os.Symlink("mine", filepath.Join(base, "alias")))
	must(t, os.Lchown(filepath.Join(base, "alias"), planeUID, planeUID))
	must(t, os.WriteFile(filepath.Join(base, "mine", "file"), nil, 0o644))
	must(t, os.Chown(filepath.Join(base, "mine", "file"), planeUID, planeUID))

	request := func(uid int, change ...func(*wire.Grant)) wire.SandboxReply {
		grant := w.grant("s1", "", "", append([]func(*wire.Grant){forPlane(wire.VerbQuarantine), func(g *wire.Grant) {
			g.Session, g.Directory = "quarantine-s1-1", "mine/q"
		}}, change...)...)
		line, err := json.Marshal(wire.SandboxRequest{Grant: grant, Quarantine: true})
		must(t, err)
		near, far, err := stream.Pair()
		must(t, err)
		defer near.Close()
		defer far.Close()
		c := dialAs(t, w.socket, uid)
		defer c.Close()
		raw, err := far.SyscallConn()
		must(t, err)
		must(t, raw.Control(func(fd uintptr) { _, _, err = c.WriteMsgUnix(append(line, '\n'), unix.UnixRights(int(fd)), nil) }))
		must(t, err)
		var reply wire.SandboxReply
		b, err := bufio.NewReader(c).ReadBytes('\n')
		must(t, err)
		must(t, json.Unmarshal(b, &reply))
		return reply
	}
	if r := request(planeUID); !r.OK {
		t.Fatalf("refused: %v", r.Error)
	}
	s := q.specs[0]
	if s.UID != 64333 || len(s.Forwards) != 0 || len(s.Env) != 0 || len(s.Mounts) != 2 ||
		s.Mounts[0] != (sandbox.Mount{Source: filepath.Join(base, "mine", "q"), Target: "/quarantine", Writable: true}) ||
		s.Mounts[1].Writable || s.Mounts[1].Source != filepath.Join(w.root, "mirrors", fmt.Sprintf("%d.git", repository)) {
		t.Errorf("started %+v", s)
	}
	if f.launcher.started() != 0 {
		t.Error("it was started among the sessions' sandboxes")
	}
	in := func(dir string) func(*wire.Grant) { return func(g *wire.Grant) { g.Directory = dir } }
	for name, c := range map[string]struct {
		uid    int
		change func(*wire.Grant)
		code   string
	}{
		"a runner":         {oneUID, in("mine/q"), "unauthorized"},
		"root":             {0, in("mine/q"), "unauthorized"},
		"another verb":     {planeUID, func(g *wire.Grant) { g.Verbs = []string{wire.VerbSandbox} }, "unauthorized"},
		"nothing":          {planeUID, in(""), "bad_request"},
		"all":              {planeUID, in("."), "bad_request"},
		"climbing":         {planeUID, in("../node"), "bad_request"},
		"climbing below":   {planeUID, in("mine/.."), "bad_request"},
		"absolute":         {planeUID, in("/etc"), "bad_request"},
		"too deep":         {planeUID, in("mine/deep/q"), "bad_request"},
		"a link":           {planeUID, in("mine/link"), "bad_request"},
		"through a link":   {planeUID, in("alias/q"), "bad_request"},
		"a file":           {planeUID, in("mine/file"), "bad_request"},
		"not there":        {planeUID, in("mine/none"), "bad_request"},
		"another's":        {planeUID, in("mine/theirs"), "bad_request"},
		"below another's":  {planeUID, in("foreign/q"), "bad_request"},
		"a sandbox's name": {planeUID, func(g *wire.Grant) { g.Session = "s1-g1-work" }, "bad_request"},
		"no mirror":        {planeUID, func(g *wire.Grant) { g.RepositoryID = 0 }, "bad_request"},
		"with a way out":   {planeUID, func(g *wire.Grant) { g.Sockets = []string{wire.SocketEgress} }, "bad_request"},
	} {
		if r := request(c.uid, c.change); r.OK || r.Error == nil || r.Error.Code != c.code {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if len(q.specs) != 1 {
		t.Errorf("%d sandboxes were started", len(q.specs))
	}
}
