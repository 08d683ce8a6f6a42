package harnesstest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"inspect/envs/sandbox"
	"inspect/envs/sandbox/sandboxtest"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// Box is a real sandbox for an agent program.
type Box struct {
	*stream.Client
	Work, Home string // host directories of /workspace and the home
	Path       string // PATH=… with the program in it
	proxy      *refuser
}

// Gateway and Proxy are where the model and the proxy are, inside.
var (
	Gateway = "http://127.0.0.1:" + strconv.Itoa(sandbox.ModelPort)
	Proxy   = "http://127.0.0.1:" + strconv.Itoa(sandbox.EgressPort)
)

var root = os.Getuid() == 0

// runDir is what the sandboxes of one test binary share.
var (
	runDir   string
	launcher *sandbox.Launcher
	userID   = os.Getuid()
)

// Main is for TestMain.
func Main(m *testing.M) {
	os.Exit(run(sandboxtest.Main(m)))
}

func run(m sandboxtest.M) int {
	dir, err := os.MkdirTemp("/tmp", "inspect-harness-test-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		panic(err)
	}
	runDir = dir
	if root {
		userID = 200_000 + os.Getpid()%1_000_000
	}
	code := m.Run()
	if launcher != nil {
		_ = launcher.Close()
	}
	return code
}

func launch(t testing.TB) *sandbox.Launcher {
	t.Helper()
	if launcher != nil {
		return launcher
	}
	var err error
	launcher, err = sandbox.New(sandbox.Options{
		Binary: sandboxtest.Init(t), RunDir: filepath.Join(runDir, "run"), CgroupRoot: fmt.Sprintf("/inspect-test-%d", os.Getpid()),
		UID: userID, GID: userID, BestEffort: !root,
	})
	if err != nil {
		t.Fatal(err)
	}
	return launcher
}

// dir is a directory the sandbox's user owns.
func dir(t testing.TB) string {
	t.Helper()
	d, err := os.MkdirTemp(runDir, "dir-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(d, 0o755); err != nil {
		t.Fatal(err)
	}
	own(t, d)
	return d
}

// own gives all beneath a directory to the sandbox's user.
func own(t testing.TB, d string) {
	t.Helper()
	if !root {
		return
	}
	err := filepath.WalkDir(d, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, userID, userID)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// reachable links the files of a directory to where the sandbox's user can
// reach them; where they cannot be linked they are copied.
func reachable(t testing.TB, from string) string {
	t.Helper()
	to := filepath.Join(runDir, "programs", strings.ReplaceAll(strings.Trim(from, "/"), "/", "_"))
	if _, err := os.Stat(to); err == nil {
		return to
	}
	err := filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		case !d.Type().IsRegular():
			return nil
		}
		if os.Link(p, filepath.Join(to, rel)) == nil {
			return nil
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o755)
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

var ids atomic.Int64

// NewBox starts a sandbox that ends with the test. program is the file of the
// agent program on this machine; it and what is beside it are visible inside.
// fill puts the repository into a directory.
func NewBox(t testing.TB, program string, model http.Handler, fill func(dir string)) *Box {
	t.Helper()
	l := launch(t)
	ours, theirs, err := stream.Pair()
	if err != nil {
		t.Fatal(err)
	}
	b := &Box{Work: dir(t), Home: dir(t), proxy: &refuser{}, Path: "PATH=/opt/agent:" + sandbox.SearchPath}
	fill(b.Work)
	own(t, b.Work)
	sockets := dir(t)
	serve(t, filepath.Join(sockets, "model"), model, false)
	serve(t, filepath.Join(sockets, "egress"), b.proxy, true)
	id := ids.Add(1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sb, err := l.Start(ctx, sandbox.Spec{
		ID: fmt.Sprintf("h%d", id), Control: theirs,
		Mounts: []sandbox.Mount{
			{Source: b.Work, Target: sandbox.Workspace, Writable: true},
			{Source: b.Home, Target: sandbox.Home, Writable: true},
			{Source: reachable(t, filepath.Dir(program)), Target: "/opt/agent"},
		},
		Limits: wire.Limits{MemoryBytes: 4 << 30, Pids: 512},
		Forwards: []sandbox.Forward{
			{Port: sandbox.ModelPort, Socket: filepath.Join(sockets, "model")},
			{Port: sandbox.EgressPort, Socket: filepath.Join(sockets, "egress"), Named: true},
		},
	})
	if err != nil {
		_ = ours.Close()
		t.Fatal(err)
	}
	b.Client = stream.NewClient(ours)
	t.Cleanup(func() {
		_ = b.Client.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := sb.Kill(ctx); err != nil {
			t.Error(err)
		}
	})
	return b
}

// Asked are the hosts that were asked of the proxy, "host:port".
func (b *Box) Asked() []string {
	b.proxy.mu.Lock()
	defer b.proxy.mu.Unlock()
	return append([]string(nil), b.proxy.asked...)
}

// refuser is a proxy that refuses and remembers.
type refuser struct {
	mu    sync.Mutex
	asked []string
}

func (p *refuser) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked = append(p.asked, r.Host)
	p.mu.Unlock()
	http.Error(w, "nothing may be reached here", http.StatusForbidden)
}

// serve serves on a unix socket until the test ends. Named connections begin
// with a line that says who connects.
func serve(t testing.TB, socket string, h http.Handler, named bool) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	if named {
		l = nameless{l}
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { _ = s.Close(); <-done })
}

// nameless drops the line that says who connects.
type nameless struct{ net.Listener }

func (n nameless) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &namelessConn{Conn: c, r: bufio.NewReader(c)}, nil
}

type namelessConn struct {
	net.Conn
	r    *bufio.Reader
	once sync.Once
}

func (c *namelessConn) Read(p []byte) (int, error) {
	var err error
	c.once.Do(func() { _, err = c.r.ReadString('\n') })
	if err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
