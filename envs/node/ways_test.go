package node_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/egress"
	"inspect/envs/node/dial"
	"inspect/envs/sandbox"
	"inspect/envs/sandbox/forward"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// egressMain is the proxy of these tests' refreshes: names below egress.test
// are on this machine's loopback.
func egressMain() int {
	r, w, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	var c egress.Config
	if err != nil || json.Unmarshal(line, &c) != nil {
		fmt.Fprintln(os.Stderr, "a bad configuration")
		return 2
	}
	c.Resolve = map[string]string{"packages.egress.test": "127.0.0.1", "inner.egress.test": "10.0.0.1"}
	c.AllowAddresses = []string{"127.0.0.1"}
	if roots, err := os.ReadFile(rootsFile(os.Getppid())); err == nil {
		c.Roots = string(roots)
	}
	if line, err = json.Marshal(c); err != nil {
		panic(err)
	}
	go func() {
		_, _ = w.Write(append(line, '\n'))
		_, _ = io.Copy(w, in)
		w.Close()
	}()
	os.Stdin = r
	return egress.Main(nil)
}

func sockets(names ...string) func(*wire.Grant) {
	return func(g *wire.Grant) { g.Sockets = names }
}

// answering serves a listener: each connection is answered with the command
// that connected, if that is known, and what it sent.
func answering(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			b, _ := io.ReadAll(c)
			if n, ok := c.(forward.Conn); ok {
				fmt.Fprintf(c, "[%s]", n.Command())
			}
			_, _ = c.Write(b)
		}()
	}
}

// say connects to a port inside, says hello and prints the answer.
func say(port int) string {
	return fmt.Sprintf(`perl -MIO::Socket::INET -e 'my $s = IO::Socket::INET->new("127.0.0.1:%d") or print("none") and exit; print $s "hello"; shutdown($s, 1); print <$s>'`, port)
}

func (w *world) ways() []string {
	w.t.Helper()
	entries, err := os.ReadDir(filepath.Join(w.root, "run", "ways"))
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestWaysOut(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.refreshed(1, "snap-1")
	grant := w.grant("s1", wire.PurposeWork, "snap-1", sockets(wire.SocketEgress, wire.SocketModel))
	_, err := dial.Restore(t.Context(), w.socket, grant)
	must(t, err)
	r, err := dial.Sandbox(t.Context(), w.socket, grant)
	must(t, err)
	defer r.Client.Close()
	model, way := r.Sockets[wire.SocketModel], r.Sockets[wire.SocketEgress]
	if len(r.Sockets) != 2 || model == nil || way == nil {
		t.Fatalf("sockets %v", r.Sockets)
	}
	go answering(model)
	named := forward.Listener(way)
	defer named.Close()
	go answering(named)
	if got := sh(t, r.Client, say(sandbox.ModelPort)); got != "hello" {
		t.Errorf("the model's port: %q", got)
	}
	if got := sh(t, r.Client, say(sandbox.EgressPort)); !strings.HasPrefix(got, "[perl -MIO::Socket::INET") || !strings.HasSuffix(got, "]hello") {
		t.Errorf("the proxy's port: %q", got)
	}
	if got := sh(t, r.Client, "echo $HTTPS_PROXY $https_proxy $NO_PROXY; ls /run/inspect/sock"); got != "http://127.0.0.1:41710 http://127.0.0.1:41710 localhost,127.0.0.1,::1\n41710\n41711" {
		t.Errorf("inside: %q", got)
	}
	// What services keep is in the snapshot's tree.
	if got := sh(t, r.Client, "mkdir /var/lib/db && echo x > /var/lib/db/f && stat -c %U /var/lib"); got != "agent" {
		t.Errorf("/var/lib belongs to %q", got)
	}
	if b, err := os.ReadFile(filepath.Join(w.root, "session", work("s1").String(), "tree/lib/db/f")); err != nil || string(b) != "x\n" {
		t.Errorf("%q %v", b, err)
	}
	// Outside, nobody but root and the sandboxes' group comes to the sockets.
	dirs := w.ways()
	if len(dirs) != 1 {
		t.Fatalf("directories %v", dirs)
	}
	uid, gid := sandboxAccount()
	dir := filepath.Join(w.root, "run", "ways", dirs[0])
	for path, want := range map[string]os.FileMode{dir: os.ModeDir | 0o710, filepath.Join(dir, "egress"): os.ModeSocket | 0o600, filepath.Join(dir, "model"): os.ModeSocket | 0o600} {
		st, err := os.Lstat(path)
		must(t, err)
		owner := st.Sys().(*syscall.Stat_t)
		if st.Mode() != want || int(owner.Gid) != gid || !st.IsDir() && int(owner.Uid) != uid {
			t.Errorf("%s: mode %v, owner %d:%d", path, st.Mode(), owner.Uid, owner.Gid)
		}
	}
	// The runner's listener is the only one: when it is closed nobody answers.
	must(t, model.Close())
	if got := sh(t, r.Client, say(sandbox.ModelPort)); got != "" {
		t.Errorf("somebody else answers: %q", got)
	}
	must(t, r.Client.Close())
	<-r.Ends
	if got := w.ways(); len(got) > 0 {
		t.Errorf("after the end there is %v", got)
	}

	// A sandbox without them, and one with the model's alone.
	for _, names := range [][]string{nil, {wire.SocketModel}} {
		grant := w.grant("s1", wire.PurposeWork, "snap-1", sockets(names...))
		r, err := dial.Sandbox(t.Context(), w.socket, grant)
		must(t, err)
		if len(r.Sockets) != len(names) {
			t.Errorf("sockets %v", r.Sockets)
		}
		for _, l := range r.Sockets {
			go answering(l)
			defer l.Close()
		}
		want := "none"
		if len(names) > 0 {
			want = "hello"
		}
		if got := sh(t, r.Client, say(sandbox.ModelPort)); got != want {
			t.Errorf("%v: the model's port: %q", names, got)
		}
		if got := sh(t, r.Client, say(sandbox.EgressPort)+`; env | grep -ci proxy; true`); got != "none0" {
			t.Errorf("%v: the proxy's port: %q", names, got)
		}
		must(t, r.Client.Close())
		<-r.Ends
	}
}

// The ways go on without the daemon; a later one tidies up what is over.
func TestWaysOutliveTheDaemon(t *testing.T) {
	w := newWorld(t)
	first := w.spawn()
	w.refreshed(1, "snap-1")
	w.plane.set(func(p *plane) {
		p.refs = wire.Refs{Sessions: []wire.SessionRef{{Session: "s1", Generation: 1}}, Snapshots: []string{"snap-1"}}
	})
	grant := w.grant("s1", wire.PurposeWork, "snap-1", sockets(wire.SocketModel))
	_, err := dial.Restore(t.Context(), w.socket, grant)
	must(t, err)
	r, err := dial.Sandbox(t.Context(), w.socket, grant)
	must(t, err)
	defer r.Client.Close()
	l := r.Sockets[wire.SocketModel]
	defer l.Close()
	go answering(l)
	kill(t, first, syscall.SIGKILL)
	w.spawn(func(o *daemonOptions) { o.CollectEvery = 50 * time.Millisecond })
	w.plane.collected(t)
	if got := sh(t, r.Client, say(sandbox.ModelPort)); got != "hello" {
		t.Errorf("after a restart: %q", got)
	}
	if got := w.ways(); len(got) != 1 {
		t.Errorf("the sockets of a running sandbox: %v", got)
	}
	must(t, r.Client.Close())
	until(t, "the sockets are gone", func() bool { return len(w.ways()) == 0 })
}

func TestOddSocketsAreRefused(t *testing.T) {
	w, f := newFakeWorld(t)
	f.publish("snap-1")
	for name, sockets := range map[string]func(*wire.Grant){
		"unknown": sockets("docker"), "twice": sockets(wire.SocketModel, wire.SocketModel), "a path": sockets("../x"), "none": sockets(""),
	} {
		grant := w.grant("s1", wire.PurposeWork, "snap-1", sockets)
		_, err := dial.Restore(t.Context(), w.socket, grant)
		must(t, err)
		if r, err := dial.Sandbox(t.Context(), w.socket, grant); code(err) != "bad_request" {
			t.Errorf("%s: %+v %v", name, r, err)
		}
	}
	if f.launcher.started() > 0 || len(w.ways()) > 0 {
		t.Errorf("%d sandboxes, %v", f.launcher.started(), w.ways())
	}
}

// A data directory whose name is too long for a socket's is none for these.
func TestWaysOfALongRoot(t *testing.T) {
	w := newWorld(t)
	w.root = filepath.Join(w.root, strings.Repeat("long", 25))
	f := w.startFake()
	f.publish("snap-1")
	session := strings.Repeat("s", 80)
	grant := w.grant(session, wire.PurposeWork, "snap-1", sockets(wire.SocketModel))
	_, err := dial.Restore(t.Context(), w.socket, grant)
	must(t, err)
	r, err := dial.Sandbox(t.Context(), w.socket, grant)
	must(t, err)
	defer r.Client.Close()
	l := r.Sockets[wire.SocketModel]
	defer l.Close()
	go answering(l)
	dir, err := os.Open(filepath.Join(w.root, "run", "ways", w.ways()[0]))
	must(t, err)
	defer dir.Close()
	c, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/model", dir.Fd()))
	must(t, err)
	defer c.Close()
	_, err = c.Write([]byte("x"))
	must(t, err)
	must(t, c.(*net.UnixConn).CloseWrite())
	if b, err := io.ReadAll(c); string(b) != "x" {
		t.Errorf("%q %v", b, err)
	}
}

// What an earlier daemon left of sandboxes that are gone is collected, what
// belongs to a running one is not.
func TestCollectsWays(t *testing.T) {
	w, f, clock := collecting(t)
	w.plane.set(func(p *plane) {
		p.refs = wire.Refs{Sessions: []wire.SessionRef{{Session: "s1", Generation: 1}}, Snapshots: []string{"snap-1"}}
	})
	f.publish("snap-1")
	grant := w.grant("s1", wire.PurposeWork, "snap-1", sockets(wire.SocketModel))
	_, err := dial.Restore(t.Context(), w.socket, grant)
	must(t, err)
	r, err := dial.Sandbox(t.Context(), w.socket, grant)
	must(t, err)
	defer r.Client.Close()
	defer r.Sockets[wire.SocketModel].Close()
	mine := w.ways()
	must(t, os.MkdirAll(filepath.Join(w.root, "run", "ways", "0123456789abcdef0123", "x"), 0o710))
	clock.Advance(time.Minute)
	until(t, "the old one is gone", func() bool { return len(w.ways()) == 1 })
	if got := w.ways(); !slices.Equal(got, mine) {
		t.Errorf("%v is left, want %v", got, mine)
	}
}

// A daemon that passes something else than it says is not believed, and
// nothing it passed stays open.
func TestDialRefusesOddReplies(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "daemon")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	must(t, err)
	defer l.Close()
	listening, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "way"), Net: "unix"})
	must(t, err)
	defer listening.Close()
	lf, err := listening.File()
	must(t, err)
	defer lf.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer tcp.Close()
	tf, err := tcp.(*net.TCPListener).File()
	must(t, err)
	defer tf.Close()
	near, far, err := stream.Pair()
	must(t, err)
	defer near.Close()
	defer far.Close()
	way, other, pipe := int(lf.Fd()), int(tf.Fd()), int(far.Fd())
	const ok1 = `{"ok":true,"id":"x","sockets":["model"]}` + "\n"
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(entries)
	}
	for name, c := range map[string]struct {
		first string
		fds   []int
		then  string
		more  []int
	}{
		"missing":         {first: ok1},
		"too many":        {first: ok1, fds: []int{way, way}},
		"unnamed":         {first: `{"ok":true,"id":"x"}` + "\n", fds: []int{way}},
		"one for two":     {first: `{"ok":true,"id":"x","sockets":["model","egress"]}` + "\n", fds: []int{way}},
		"named twice":     {first: `{"ok":true,"id":"x","sockets":["model","model"]}` + "\n", fds: []int{way, way}},
		"without a name":  {first: `{"ok":true,"id":"x","sockets":[""]}` + "\n", fds: []int{way}},
		"another network": {first: ok1, fds: []int{other}},
		"not listening":   {first: ok1, fds: []int{pipe}},
		"a bad second":    {first: `{"ok":true,"id":"x","sockets":["model","egress"]}` + "\n", fds: []int{way, pipe}},
		"too late":        {first: `{"ok":true,"id":"x",`, then: `"sockets":["model"]}` + "\n", more: []int{way}},
		"twice":           {first: `{"ok":true,"id":"x",`, fds: []int{way}, then: `"sockets":["model"]}` + "\n", more: []int{way}},
		"a crowd":         {first: ok1, fds: slicesRepeat(way, 100)},
		"with a refusal":  {first: `{"ok":false,"error":{"code":"bad_request","message":"no"}}` + "\n", fds: []int{way}},
	} {
		t.Run(name, func(t *testing.T) {
			before := open()
			served := make(chan struct{})
			go func() {
				defer close(served)
				conn, err := l.AcceptUnix()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				b, oob := make([]byte, 1<<16), make([]byte, 256)
				_, n, _, _, err := conn.ReadMsgUnix(b, oob)
				if err != nil {
					t.Error(err)
					return
				}
				messages, _ := unix.ParseSocketControlMessage(oob[:n])
				for _, m := range messages {
					fds, _ := unix.ParseUnixRights(&m)
					for _, fd := range fds {
						unix.Close(fd)
					}
				}
				send := func(text string, fds []int) {
					var rights []byte
					if len(fds) > 0 {
						rights = unix.UnixRights(fds...)
					}
					_, _, _ = conn.WriteMsgUnix([]byte(text), rights, nil)
				}
				send(c.first, c.fds)
				if c.then != "" {
					send(c.then, c.more)
				}
				_, _ = io.Copy(io.Discard, conn) // until it is given up
			}()
			r, err := dial.Sandbox(t.Context(), socket, "grant")
			if code(err) != "bad_request" || r.Client != nil || len(r.Sockets) > 0 {
				t.Errorf("%+v, %v", r, err)
			}
			<-served
			until(t, "all descriptors are closed", func() bool { return open() <= before })
		})
	}
}

// refreshWithEgress has a snapshot made by setup commands that may reach what
// is named.
func (w *world) refreshWithEgress(allow []string, setup ...string) (*wire.SnapshotOffer, string) {
	w.t.Helper()
	work := w.refreshWork(1, "snap-1", setup...)
	work.Refresh.Egress = allow
	w.plane.give(work)
	select {
	case o := <-w.plane.offers:
		return &o, ""
	case r := <-w.plane.results:
		return nil, r.Words
	case <-time.After(60 * time.Second):
		w.t.Fatal("no result within a minute")
		return nil, ""
	}
}

func TestSetupReachesWhatIsDeclared(t *testing.T) {
	w := newWorld(t)
	w.start()
	uids := make(chan string, 8)
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		uids <- uidOf(egress.Command)
		fmt.Fprint(rw, "a package")
	}))
	defer srv.Close()
	allowed := fmt.Sprintf("packages.egress.test:%d", srv.Listener.Addr().(*net.TCPAddr).Port)
	fetch := fmt.Sprintf("mkdir -p built && curl -sSf http://%s/x -o built/x", allowed)

	offer, words := w.refreshWithEgress([]string{allowed}, fetch)
	if offer == nil {
		t.Fatalf("failed: %s", words)
	}
	want := fmt.Sprint(os.Getuid())
	if os.Geteuid() == 0 {
		uid, _ := sandboxAccount()
		want = fmt.Sprint(uid + 2)
	}
	if got := <-uids; got != want {
		t.Errorf("the proxy runs as user %q, want %s", got, want)
	}
	if got := uidOf(egress.Command); got != "" {
		t.Error("the proxy goes on after the refresh")
	}
	if got := w.ways(); len(got) > 0 {
		t.Errorf("sockets are left: %v", got)
	}
	grant := w.grant("s1", wire.PurposeWork, "snap-1")
	_, err := dial.Restore(t.Context(), w.socket, grant)
	must(t, err)
	if b, err := os.ReadFile(filepath.Join(w.root, "session", work("s1").String(), "tree/work/built/x")); string(b) != "a package" {
		t.Errorf("%q %v", b, err)
	}
	must(t, dial.Discard(t.Context(), w.socket, grant))
}

func TestRefusedEgressIsInTheWordsOfTheFailure(t *testing.T) {
	w := newWorld(t)
	w.start()
	for name, c := range map[string]struct {
		allow []string
		setup string
		words []string
	}{
		"not declared": {
			[]string{"packages.egress.test"}, "curl -sSf https://registry.egress.test/ || exit 3",
			[]string{"exit status 3", "the egress proxy refused registry.egress.test:443 (curl -sSf https://registry.egress.test/): add it to egress in .inspect.yml"},
		},
		"a private address": {
			[]string{"inner.egress.test"}, "curl -sSf http://inner.egress.test/ || exit 4",
			[]string{"exit status 4", "the egress proxy refused inner.egress.test:80", "not a public one"},
		},
		"a secret in the command": {
			[]string{"packages.egress.test"}, "curl -sSf -H 'X: ghs_0123456789abcdefABCDEF0123456789abcd' http://a.egress.test/ || exit 5",
			[]string{"refused a.egress.test:80 (curl -sSf -H"},
		},
		"nothing at all":  {nil, "curl -sSf http://packages.egress.test/", []string{"Could not resolve host"}},
		"a bad entry":     {[]string{"*"}, "true", []string{"start the egress proxy", "egress"}},
		"many refusals":   {[]string{"packages.egress.test"}, "for i in 1 2 3 4 5; do curl -s http://h$i.egress.test/; done; exit 1", []string{"h1.egress.test", "h3.egress.test", "and 2 others"}},
		"a literal":       {[]string{"packages.egress.test"}, "curl -sSf http://93.184.216.34/", []string{"93.184.216.34:80", "only the name of a host"}},
		"all is allowed":  {[]string{"packages.egress.test"}, "exit 9", []string{"exit status 9"}},
		"past the proxy":  {[]string{"packages.egress.test"}, "unset http_proxy; curl -sSf http://packages.egress.test/", []string{"Could not resolve host"}},
		"the socket file": {[]string{"packages.egress.test"}, "curl -sSf --unix-socket /run/inspect/sock/41710 http://x.egress.test/ || exit 6", []string{"exit status 6"}},
	} {
		t.Run(name, func(t *testing.T) {
			offer, words := w.refreshWithEgress(c.allow, c.setup)
			if offer != nil {
				t.Fatal("it was offered")
			}
			for _, want := range c.words {
				if !strings.Contains(words, want) {
					t.Errorf("words lack %q: %s", want, words)
				}
			}
			if strings.Contains(words, "ghs_0123456789") {
				t.Errorf("words tell a secret: %s", words)
			}
			if name == "all is allowed" && strings.Contains(words, "proxy") {
				t.Errorf("words of no use: %s", words)
			}
		})
	}
	if got := uidOf(egress.Command); got != "" {
		t.Error("a proxy is left")
	}
}

func TestRefreshWithoutAProxyProgram(t *testing.T) {
	for name, c := range map[string]struct{ binary, words string }{
		"none": {"", "not told which program"}, "missing": {"/no/such", "start the egress proxy"}, "another": {"/bin/true", "start the egress proxy"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.start(func(o *nodeOptions) { o.Binary = c.binary })
			if offer, words := w.refreshWithEgress([]string{"packages.egress.test"}, "true"); offer != nil || !strings.Contains(words, c.words) {
				t.Errorf("%+v %s", offer, words)
			}
			if got := w.ways(); len(got) > 0 {
				t.Errorf("sockets are left: %v", got)
			}
			// One that declares nothing needs none.
			if offer, words := w.refreshWithEgress(nil, "true"); offer == nil {
				t.Error(words)
			}
		})
	}
}

// uidOf is the user of the process of this test run whose first argument is
// word; empty: there is none.
func uidOf(word string) string {
	for _, pid := range pidsOf(word) {
		status, err := os.ReadFile("/proc/" + pid + "/status")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(status)) {
			f := strings.Fields(line)
			if len(f) == 5 && f[0] == "Uid:" {
				return f[1]
			}
		}
	}
	return ""
}

// pidsOf are the processes whose first argument is word.
func pidsOf(word string) (pids []string) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if cmd, err := os.ReadFile("/proc/" + e.Name() + "/cmdline"); err == nil && strings.HasSuffix(string(cmd), "\x00"+word+"\x00") {
			pids = append(pids, e.Name())
		}
	}
	return pids
}
