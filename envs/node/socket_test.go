package node_test

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/node/dial"
	"inspect/envs/sandbox/stream"
	"inspect/envs/snapshot"
	"inspect/envs/wire"
)

func code(err error) string {
	var e *wire.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestOnlyGoodGrantsAreObeyed(t *testing.T) {
	w, f := newFakeWorld(t)
	f.publish("snap-1")
	good := w.grant("s1", wire.PurposeWork, "snap-1")
	_, err := dial.Restore(t.Context(), w.socket, good)
	must(t, err)
	_, stranger, err := ed25519.GenerateKey(nil)
	must(t, err)
	mine := w.key
	w.key = stranger
	forged := w.grant("s1", wire.PurposeWork, "snap-1")
	w.key = mine
	body, _, _ := strings.Cut(w.grant("s2", wire.PurposeWork, "snap-1"), ".")
	_, sig, _ := strings.Cut(good, ".")

	for name, test := range map[string]struct{ grant, code string }{
		"empty":            {"", "unauthorized"},
		"noise":            {"noise", "unauthorized"},
		"long":             {strings.Repeat("a", 20<<10) + ".b", "unauthorized"},
		"forged":           {forged, "unauthorized"},
		"another's body":   {body + "." + sig, "unauthorized"},
		"expired":          {w.grant("s1", wire.PurposeWork, "snap-1", func(g *wire.Grant) { g.Expires = w.clock.Now().Add(-time.Second) }), "unauthorized"},
		"a stronger tier":  {w.grant("s1", wire.PurposeWork, "snap-1", func(g *wire.Grant) { g.Tier = wire.TierGVisor }), "tier"},
		"another node's":   {w.grant("s1", wire.PurposeWork, "snap-1", func(g *wire.Grant) { g.Node = "node-2" }), "unauthorized"},
		"another uid's":    {w.grant("s1", wire.PurposeWork, "snap-1", func(g *wire.Grant) { g.PeerUID++ }), "unauthorized"},
		"without the verb": {w.grant("s1", wire.PurposeWork, "snap-1", func(g *wire.Grant) { g.Verbs = []string{"dance"} }), "unauthorized"},
		"proof's purpose":  {w.grant("s1", "proof", "snap-1"), "bad_request"},
		"path as session":  {w.grant("../../etc", wire.PurposeWork, "snap-1"), "bad_request"},
		"path as snapshot": {w.grant("s9", wire.PurposeWork, "../../etc"), "bad_request"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := dial.Restore(t.Context(), w.socket, test.grant); code(err) != test.code {
				t.Errorf("restore: %v", err)
			}
			if _, _, err := dialSandbox(t.Context(), w.socket, test.grant); code(err) != test.code && !(name == "path as snapshot") {
				t.Errorf("sandbox: %v", err)
			}
			if name == "path as snapshot" || name == "a stronger tier" {
				return // discard does not look at it
			}
			if err := dial.Discard(t.Context(), w.socket, test.grant); code(err) != test.code {
				t.Errorf("discard: %v", err)
			}
		})
	}
	if _, err := f.store.Clone(t.Context(), work("s1")); err != nil {
		t.Errorf("a refused grant cost a clone: %v", err)
	}
	for name, grant := range map[string]string{
		"no such snapshot": w.grant("s3", wire.PurposeWork, "snap-9"),
	} {
		if _, err := dial.Restore(t.Context(), w.socket, grant); code(err) != "not_found" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := dialSandbox(t.Context(), w.socket, w.grant("s4", wire.PurposeWork, "snap-1")); code(err) != "not_found" {
		t.Errorf("a sandbox without a clone: %v", err)
	}
	f.publish("snap-2")
	if _, _, err := dialSandbox(t.Context(), w.socket, w.grant("s1", wire.PurposeWork, "snap-2")); code(err) != "bad_request" {
		t.Errorf("a sandbox over a clone of another snapshot: %v", err)
	}
}

// raw sends bytes with descriptors and returns the answer.
func raw(t *testing.T, socket string, chunks []string, fds ...int) wire.SandboxReply {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	must(t, err)
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(15*time.Second)))
	for i, chunk := range chunks {
		var rights []byte
		if i == 0 && len(fds) > 0 {
			rights = unix.UnixRights(fds...)
		}
		if _, _, err := c.WriteMsgUnix([]byte(chunk), rights, nil); err != nil {
			break // refused before all was sent
		}
	}
	_ = c.CloseWrite()
	var reply wire.SandboxReply
	if b, err := bufio.NewReader(c).ReadBytes('\n'); err == nil {
		must(t, json.Unmarshal(b, &reply))
	}
	return reply
}

func TestHostileSandboxRequests(t *testing.T) {
	w, f := newFakeWorld(t)
	f.publish("snap-1")
	grant := w.grant("s1", wire.PurposeWork, "snap-1")
	_, err := dial.Restore(t.Context(), w.socket, grant)
	must(t, err)
	line := func() string {
		b, err := json.Marshal(wire.SandboxRequest{Grant: grant})
		must(t, err)
		return string(b) + "\n"
	}()
	near, far, err := stream.Pair()
	must(t, err)
	defer near.Close()
	defer far.Close()
	pipeR, pipeW, err := os.Pipe()
	must(t, err)
	defer pipeR.Close()
	defer pipeW.Close()
	dgram, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	must(t, err)
	defer unix.Close(dgram[0])
	defer unix.Close(dgram[1])
	ok := int(far.Fd())

	// Before each try, so that what leaks is seen.
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(entries)
	}
	before := open()
	for name, test := range map[string]struct {
		chunks []string
		fds    []int
	}{
		"none":            {[]string{line}, nil},
		"two":             {[]string{line}, []int{ok, ok}},
		"five":            {[]string{line}, []int{ok, ok, ok, ok, ok}},
		"two hundred":     {[]string{line}, slicesRepeat(ok, 200)},
		"a pipe":          {[]string{line}, []int{int(pipeW.Fd())}},
		"a datagram pair": {[]string{line}, []int{dgram[0]}},
		"two lines":       {[]string{line + line}, []int{ok}},
		"no line":         {[]string{"{"}, []int{ok}},
		"not JSON":        {[]string{"{nonsense}\n"}, []int{ok}},
		"endless":         {slicesRepeat("{"+strings.Repeat(" ", 4000), 20), []int{ok}},
	} {
		t.Run(name, func(t *testing.T) {
			if reply := raw(t, w.socket, test.chunks, test.fds...); reply.OK {
				t.Errorf("it was obeyed: %+v", reply)
			}
		})
	}
	if n := f.launcher.started(); n != 0 {
		t.Errorf("%d sandboxes were started", n)
	}
	until(t, "all descriptors are closed", func() bool { return open() <= before })
	// In pieces, and with its one descriptor, it is obeyed.
	if reply := raw(t, w.socket, []string{line[:10], line[10:40], line[40:]}, ok); !reply.OK || reply.ID != work("s1").String() {
		t.Errorf("a good request in pieces: %+v", reply)
	}
}

func slicesRepeat[T any](v T, n int) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = v
	}
	return out
}

func TestHTTPBounds(t *testing.T) {
	w, _ := newFakeWorld(t)
	until(t, "the daemon listens", func() bool { _, err := os.Lstat(w.socket); return err == nil })
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", w.socket)
	}}}
	defer client.CloseIdleConnections()
	for _, test := range []struct {
		method, path, body string
		status             int
	}{
		{"POST", "/restore", strings.Repeat("x", 40<<10), 413},
		{"POST", "/restore", "not json", 400},
		{"POST", "/discard", "[]", 400},
		{"GET", "/restore", "", 405},
		{"POST", "/elsewhere", "", 404},
	} {
		req, err := http.NewRequestWithContext(t.Context(), test.method, "http://node"+test.path, strings.NewReader(test.body))
		must(t, err)
		res, err := client.Do(req)
		must(t, err)
		res.Body.Close()
		if res.StatusCode != test.status {
			t.Errorf("%s %s: %s", test.method, test.path, res.Status)
		}
	}
}

func TestFiftyRestoresAndDiscards(t *testing.T) {
	w, f := newFakeWorld(t)
	f.publish("snap-1")
	var wg sync.WaitGroup
	for i := range 50 {
		grant := w.grant("s"+string(rune('a'+i%25)), []string{wire.PurposeWork, wire.PurposeVerify}[i/25], "snap-1")
		wg.Go(func() {
			for range 2 {
				if _, err := dial.Restore(t.Context(), w.socket, grant); err != nil {
					t.Errorf("restore: %v", err)
				}
			}
			c, _, err := dialSandbox(t.Context(), w.socket, grant)
			if err != nil {
				t.Errorf("sandbox: %v", err)
			} else {
				defer c.Close()
			}
			if err := dial.Discard(t.Context(), w.socket, grant); err != nil {
				t.Errorf("discard: %v", err)
			}
		})
	}
	wg.Wait()
	l, err := f.store.List(t.Context())
	must(t, err)
	if len(l.Clones) != 0 {
		t.Errorf("left: %v", l.Clones)
	}
	if ids, _ := f.launcher.List(); len(ids) != 0 {
		t.Errorf("sandboxes left: %v", ids)
	}
}

func TestFullDiskRefusesWithWords(t *testing.T) {
	w, f := newFakeWorld(t, func(o *nodeOptions) { o.MinFree = 1 << 60 })
	f.publish("snap-1")
	_, err := dial.Restore(t.Context(), w.socket, w.grant("s1", wire.PurposeWork, "snap-1"))
	if code(err) != "no_space" || !strings.Contains(err.Error(), "floor") {
		t.Errorf("restore below the floor: %v", err)
	}
	// A clone that is there costs nothing and is given again.
	f.restore("snap-1", "s2")
	if _, err := dial.Restore(t.Context(), w.socket, w.grant("s2", wire.PurposeWork, "snap-1")); err != nil {
		t.Errorf("the clone that is there: %v", err)
	}
	w.plane.give(w.refreshWork(1, "snap-2"))
	if r := <-w.plane.results; r.OK || !strings.Contains(r.Words, "floor") {
		t.Errorf("refresh below the floor: %+v", r)
	}
}

// sized is a store of another size than it has.
type sized struct {
	snapshot.Store
	space snapshot.Space
}

func (s sized) Space(context.Context) (snapshot.Space, error) { return s.space, nil }

// Above its bound a node restores and refreshes nothing, and says so before it
// is asked.
func TestFullPoolRefusesWithWords(t *testing.T) {
	for name, c := range map[string]struct {
		fill, free int64  // percent, GiB
		want       string // of 1000 GiB
	}{
		"above the bound": {80, 170, "node node-1 is 83 % full, nothing is restored from 80 % on"},
		"at the bound":    {80, 200, "80 % full"},
		"below":           {80, 201, ""},
		"higher":          {90, 170, ""},
		"lower":           {50, 400, "60 % full, nothing is restored from 50 % on"},
	} {
		t.Run(name, func(t *testing.T) {
			w, f := newFakeWorld(t, func(o *nodeOptions) {
				o.Store = sized{o.Store, snapshot.Space{Total: 1000 << 30, Free: c.free << 30, Room: (c.fill*10 - 1000 + c.free) << 30}}
			})
			f.publish("snap-1")
			_, err := dial.Restore(t.Context(), w.socket, w.grant("s1", wire.PurposeWork, "snap-1"))
			if refused := code(err) == "no_space" && strings.Contains(err.Error(), c.want); c.want == "" && err != nil || c.want != "" && !refused {
				t.Errorf("restore: %v", err)
			}
			until(t, "its state is told", func() bool {
				w.plane.mu.Lock()
				defer w.plane.mu.Unlock()
				return len(w.plane.states) > 0
			})
			w.plane.mu.Lock()
			s := w.plane.states[len(w.plane.states)-1]
			w.plane.mu.Unlock()
			if s.TotalBytes != 1000<<30 || s.FreeBytes != c.free<<30 || (s.Refuses == "") != (c.want == "") || !strings.Contains(s.Refuses, c.want) {
				t.Errorf("state: %d of %d free, refuses %q", s.FreeBytes, s.TotalBytes, s.Refuses)
			}
			if c.want != "" {
				w.plane.give(w.refreshWork(1, "snap-2"))
				if r := <-w.plane.results; r.OK || !strings.Contains(r.Words, c.want) {
					t.Errorf("refresh: %+v", r)
				}
			}
		})
	}
}

// filling is a store that has no room from some time on.
type filling struct {
	snapshot.Store
	full atomic.Bool
}

func (s *filling) Space(context.Context) (snapshot.Space, error) {
	if s.full.Load() {
		return snapshot.Space{Total: 100, Free: 5, Room: -15}, nil
	}
	return snapshot.Space{Total: 100, Free: 50, Room: 30}, nil
}

// Who is refused for want of room hears it after the control plane did, which
// would place the next attempt here.
func TestFullIsToldFirst(t *testing.T) {
	store := &filling{}
	w, f := newFakeWorld(t, func(o *nodeOptions) {
		store.Store, o.Store, o.StateEvery = o.Store, store, time.Hour
	})
	f.publish("snap-1")
	f.restore("snap-1", "s1")
	store.full.Store(true)
	if _, err := dial.Restore(t.Context(), w.socket, w.grant("s2", wire.PurposeWork, "snap-1")); code(err) != "no_space" {
		t.Fatalf("restore: %v", err)
	}
	w.plane.mu.Lock()
	defer w.plane.mu.Unlock()
	if n := len(w.plane.states); n == 0 || w.plane.states[n-1].Refuses == "" {
		t.Errorf("told so far: %+v", w.plane.states)
	}
}

// Who may look at the node sees what is there; nobody else does.
func TestListAndSpace(t *testing.T) {
	w, f := newFakeWorld(t, func(o *nodeOptions) { o.Store = sized{o.Store, snapshot.Space{Total: 100, Free: 5, Room: -15}} })
	f.publish("snap-1")
	f.restore("snap-1", "s1")
	l, err := dial.List(t.Context(), w.socket)
	must(t, err)
	if len(l.Clones) != 1 || l.Clones[0].Session != "s1" || len(l.Snapshots) != 1 || l.TotalBytes != 100 {
		t.Errorf("%+v", l)
	}
	sp, err := dial.Space(t.Context(), w.socket)
	if err != nil || sp.FreeBytes != 5 || sp.TotalBytes != 100 || !strings.Contains(sp.Refuses, "95 % full") {
		t.Errorf("%+v, %v", sp, err)
	}
	if os.Geteuid() != 0 {
		return // nobody else can be
	}
	must(t, os.Chmod(w.root, 0o755))
	for _, path := range []string{"/list", "/space", "/images", "/images/import"} {
		cmd := exec.Command("curl", "-s", "--unix-socket", w.socket, "-d", "{}", "http://node"+path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 64321, Gid: 64321}}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), `"unauthorized"`) {
			t.Errorf("%s for another account: %v, %s", path, err, out)
		}
	}
}

func TestDialWaitsForTheDaemonButNotForARefusal(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 3)
	grant := w.grant("s1", wire.PurposeWork, "snap-1")
	go func() { _, err := dial.Restore(ctx, w.socket, grant); done <- err }()
	go func() { done <- dial.Discard(ctx, w.socket, grant) }()
	go func() { _, _, err := dialSandbox(ctx, w.socket, grant); done <- err }()
	cancel()
	for range 3 {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("no daemon: %v", err)
		}
	}
	// A daemon that is killed in the middle of an answer counts as away.
	must(t, os.MkdirAll(w.root, 0o711))
	l, err := net.Listen("unix", w.socket)
	must(t, err)
	go func() {
		c, err := l.Accept()
		if err == nil {
			c.Close()
		}
		l.Close()
	}()
	go func() { _, err := dial.Restore(t.Context(), w.socket, grant); done <- err }()
	until(t, "the first answer broke", func() bool { _, err := os.Lstat(w.socket); return err != nil })
	f := w.startFake()
	f.publish("snap-0")
	if err := <-done; code(err) != "not_found" {
		t.Errorf("then: %v", err)
	}
}
