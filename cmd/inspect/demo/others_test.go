package demo

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/wire"
)

// stranger is an account of this machine that has nothing to do with us.
const stranger = 64999

// asAccount runs fn as another account, with its own group and no other. fn
// must not start goroutines: only its thread is changed.
func asAccount(uid int, fn func()) error {
	done := make(chan error, 1)
	go func() { // the thread ends with it
		runtime.LockOSThread()
		id := uintptr(uid)
		for _, call := range [][4]uintptr{{unix.SYS_SETGROUPS}, {unix.SYS_SETRESGID, id, id, id}, {unix.SYS_SETRESUID, id, id, id}} {
			if _, _, no := unix.RawSyscall(call[0], call[1], call[2], call[3]); no != 0 {
				done <- no
				return
			}
		}
		fn()
		done <- nil
	}()
	return <-done
}

// process is one of an installation's.
type process struct {
	pid, parent, uid int
	argv             []string
	status           string
}

func (p process) role() string {
	switch {
	case len(p.argv) > 1 && strings.Contains(filepath.Base(p.argv[0]), "inspect") && slices.Contains([]string{"serve", "node", "runner", "control-plane", "egress-proxy"}, p.argv[1]):
		return p.argv[1]
	case len(p.argv) > 1 && filepath.Base(p.argv[0]) == "init" && p.argv[1] == "egress-proxy":
		return "egress-proxy"
	case strings.HasPrefix(filepath.Base(p.argv[0]), "postgres"):
		return "postgres"
	}
	return "sandbox"
}

// family is the process with that id and all that descend from it.
func family(t *testing.T, root int) (all []process) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	children := map[int][]process{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		status, err := os.ReadFile(filepath.Join("/proc", e.Name(), "status"))
		line, err2 := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || err2 != nil || len(line) == 0 {
			continue
		}
		p := process{pid: pid, argv: strings.Split(strings.TrimRight(string(line), "\x00"), "\x00"), status: string(status)}
		p.parent, _ = strconv.Atoi(p.says("PPid:"))
		p.uid, _ = strconv.Atoi(p.says("Uid:"))
		if pid == root {
			all = append(all, p)
		}
		children[p.parent] = append(children[p.parent], p)
	}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i].pid]...)
	}
	return all
}

// says is the first word of a line of a process's status.
func (p process) says(key string) string {
	for line := range strings.Lines(p.status) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == key {
			return f[1]
		}
	}
	return ""
}

// theirSockets are the inodes of the sockets that processes hold.
func theirSockets(all []process) map[string]bool {
	inodes := map[string]bool{}
	for _, p := range all {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.pid))
		for _, fd := range fds {
			link, _ := os.Readlink(fd)
			if in, ok := strings.CutPrefix(link, "socket:["); ok {
				inodes[strings.TrimSuffix(in, "]")] = true
			}
		}
	}
	return inodes
}

// rows are the words of the lines of a table of the kernel's, without its head.
func rows(t *testing.T, file string) (out [][]string) {
	t.Helper()
	body, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(body)) {
		out = append(out, strings.Fields(line))
	}
	return out[1:]
}

// listening are the paths and the addresses at which any of the processes
// listens, in this network namespace.
func listening(t *testing.T, all []process) (paths, addresses []string) {
	t.Helper()
	inodes := theirSockets(all)
	for _, f := range rows(t, "/proc/net/unix") {
		if len(f) >= 7 && f[3] == "00010000" && inodes[f[6]] { // __SO_ACCEPTCON
			path := "an unnamed socket"
			if len(f) > 7 {
				path = f[7]
			}
			paths = append(paths, path)
		}
	}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6", "/proc/net/udp", "/proc/net/udp6"} {
		for _, f := range rows(t, table) {
			open := f[3] == "0A" || strings.Contains(table, "udp")
			if !open || !inodes[f[9]] {
				continue
			}
			host, port, _ := strings.Cut(f[1], ":")
			n, err := strconv.ParseUint(port, 16, 16)
			raw, err2 := hex.DecodeString(host)
			if err != nil || err2 != nil {
				t.Fatalf("%s: %v", table, f)
			}
			slices.Reverse(raw)
			addresses = append(addresses, net.JoinHostPort(net.IP(raw).String(), strconv.Itoa(int(n))))
		}
	}
	return paths, addresses
}

// open may be read by everybody: programs, and git's configuration in
// sandboxes. Everything else of a data directory is closed.
func open(rel string) bool {
	for _, p := range []string{"bin", "node/run/init", "node/run/inspect", "node/run/quarantine/init", "node/gitconfig"} {
		if rel == p || strings.HasPrefix(rel, p+"/") {
			return true
		}
	}
	return false
}

// Every other account of this machine, that of another session's runner
// included, is refused at every socket, port, directory and process of a
// running installation. They are looked for, not listed: a new one is met by
// this test, too. And each part of the installation is an account of its own.
func TestOtherAccountsAreRefusedEverywhere(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("an ordinary user's installation has one account")
	}
	long := small("--delay", "5m")
	long[".inspect.yml"] = strings.ReplaceAll(long[".inspect.yml"], "timeout: 15s", "timeout: 10m")
	s := openStage(t, map[string]map[string]string{
		"one": long, "two": long,
		"setup": {"x": "y", ".inspect.yml": "version: 1\nsetup: [\"sleep 600\"]\negress: [npm]\nverify: [{name: unit, run: \"true\"}]\n"},
	})
	ctx := patienceOf(t, 5*time.Minute)
	ids := map[string]string{}
	for _, repo := range []string{"one", "two"} {
		ids[repo] = s.of(ctx, repo, s.ask(repo, "Too dear"))
	}
	for _, id := range ids {
		s.until(ctx, id, "working", func(v sessionView) bool { return v.State == "working" })
	}
	s.serve.mu.Lock()
	serve := s.serve.cmd.Process.Pid
	s.serve.mu.Unlock()
	var all []process
	if err := await(ctx, "no proxy of a setup", nil, func() (bool, error) {
		all = family(t, serve)
		return slices.ContainsFunc(all, func(p process) bool { return p.role() == "egress-proxy" }), nil
	}); err != nil {
		t.Fatal(err)
	}

	runners := accounts(t, all, ids)
	secrets := map[string]string{"the webhook secret": canarySecret}
	for _, name := range []string{"people.token", "node.token", "grant.seed"} {
		body, err := os.ReadFile(filepath.Join(s.serve.data, "private", name))
		if err != nil {
			t.Fatal(err)
		}
		secrets[name] = strings.TrimSpace(string(body))
	}
	control := all[slices.IndexFunc(all, func(p process) bool { return p.role() == "control-plane" })].uid
	for name, uid := range map[string]int{"a stranger": stranger, "another session's runner": runners["two"], "nobody": 65534} {
		t.Run(name, func(t *testing.T) {
			filesAreClosed(t, s.serve.data, uid, "spool/"+ids["two"]+"-g1/own")
			processesAreClosed(t, all, uid)
			socketsAreClosed(t, all, uid, s.serve.data)
		})
	}
	// The control plane itself has nothing but what is its own.
	if err := asAccount(control, func() {
		for _, closed := range []string{"private", "private/node.token", "spool/" + ids["one"] + "-g1/own", "postgres/data/PG_VERSION", "node/daemon.lock"} {
			if f, err := os.Open(filepath.Join(s.serve.data, closed)); err == nil {
				f.Close()
				t.Errorf("the control plane can open %s", closed)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	grantsAreBound(t, s, runners, control, ids["one"])
	portsAreClosed(t, s, all, ids["one"])
	for _, p := range all {
		line := strings.Join(p.argv, " ")
		for what, secret := range secrets {
			if strings.Contains(line, secret) {
				t.Errorf("%s is among the arguments of %s", what, p.role())
			}
		}
	}
}

// accounts checks who runs as whom and returns the accounts of the runners.
func accounts(t *testing.T, all []process, ids map[string]string) map[string]int {
	t.Helper()
	of := map[string]map[int]bool{}
	runners := map[string]int{}
	for _, p := range all {
		role := p.role()
		if of[role] == nil {
			of[role] = map[int]bool{}
		}
		of[role][p.uid] = true
		if root := role == "serve" || role == "node"; root != (p.uid == 0) {
			t.Errorf("%s (%s) runs as %d", role, strings.Join(p.argv, " "), p.uid)
		}
		if role == "control-plane" || role == "runner" {
			for _, set := range []string{"CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"} {
				if has := p.says(set); has != "0000000000000000" {
					t.Errorf("%s has %s %s", role, set, has)
				}
			}
			if p.says("NoNewPrivs:") != "1" {
				t.Errorf("%s may gain privileges", role)
			}
		}
		for repo, id := range ids {
			if role == "runner" && slices.Contains(p.argv, id) {
				runners[repo] = p.uid
			}
		}
	}
	seen := map[int]string{}
	for _, role := range []string{"serve", "node", "control-plane", "postgres", "runner", "sandbox", "egress-proxy"} {
		if len(of[role]) == 0 {
			t.Errorf("no process is a %s", role)
		}
		for uid := range of[role] {
			if other, ok := seen[uid]; ok && uid != 0 {
				t.Errorf("%s and %s both run as %d", role, other, uid)
			}
			seen[uid] = role
		}
	}
	if len(of["runner"]) != len(ids) {
		t.Errorf("the runners of %d sessions run as %v", len(ids), of["runner"])
	}
	return runners
}

// filesAreClosed tries to read, list, write and make every file of a directory.
func filesAreClosed(t *testing.T, data string, uid int, but string) {
	t.Helper()
	type entry struct {
		rel string
		dir bool
	}
	var entries []entry
	if err := filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // it is a running installation
			}
			return err
		}
		rel, err := filepath.Rel(data, path)
		if d.IsDir() || d.Type().IsRegular() {
			entries = append(entries, entry{rel, d.IsDir()})
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if len(entries) < 100 {
		t.Fatalf("only %d files were found", len(entries))
	}
	var wrong []string
	if err := asAccount(uid, func() {
		for _, e := range entries {
			mine := uid >= 60600 && uid < 60700 && (e.rel == but || strings.HasPrefix(e.rel, but+"/"))
			if mine {
				continue
			}
			path := filepath.Join(data, e.rel)
			if fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err == nil {
				unix.Close(fd)
				if !open(e.rel) {
					wrong = append(wrong, "can read "+e.rel)
				}
			}
			if !e.dir {
				if fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err == nil {
					unix.Close(fd)
					wrong = append(wrong, "can write "+e.rel)
				}
			} else if err := unix.Mkdir(filepath.Join(path, "planted"), 0o755); err == nil {
				_ = unix.Rmdir(filepath.Join(path, "planted"))
				wrong = append(wrong, "can put something into "+e.rel)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	if len(wrong) > 0 {
		t.Errorf("account %d %s", uid, strings.Join(wrong[:min(len(wrong), 20)], "; "))
	}
}

// processesAreClosed tries to look into every process and to end it.
func processesAreClosed(t *testing.T, all []process, uid int) {
	t.Helper()
	if err := asAccount(uid, func() {
		for _, p := range all {
			if p.uid == uid {
				continue
			}
			for _, name := range []string{"environ", "mem", "maps", "fd", "cwd", "root", "exe"} {
				path := fmt.Sprintf("/proc/%d/%s", p.pid, name)
				fd, err := unix.Open(path, unix.O_RDONLY, 0)
				if err == nil {
					buf := make([]byte, 16)
					n, rerr := unix.Read(fd, buf)
					unix.Close(fd)
					if n == 0 && rerr == nil || rerr != nil && !errors.Is(rerr, unix.EISDIR) {
						continue // opened, and nothing came of it
					}
					t.Errorf("account %d can open %s of %s", uid, name, p.role())
				}
			}
			if err := unix.Kill(p.pid, 0); !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ESRCH) {
				t.Errorf("account %d can send signals to %s: %v", uid, p.role(), err)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// socketsAreClosed tries to connect to every unix socket: those in the data
// directory and those at which a process listens. The node daemon's may be
// knocked at by all; grantsAreBound sees what it answers.
func socketsAreClosed(t *testing.T, all []process, uid int, data string) {
	t.Helper()
	paths := map[string]bool{}
	if err := filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type() == fs.ModeSocket {
			paths[path] = true
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	made, _ := listening(t, all)
	for _, path := range made {
		switch {
		case strings.HasPrefix(path, "/proc/self/fd/"): // through an open directory of the data directory
		case filepath.IsAbs(path):
			paths[path] = true
		default:
			t.Errorf("a socket that everybody may connect to, or that cannot be told: %s", path)
		}
	}
	node := filepath.Join(data, "node", "node.sock")
	if !paths[node] || len(paths) < 3 {
		t.Fatalf("only these sockets were found: %v", paths)
	}
	if err := asAccount(uid, func() {
		for path := range paths {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err != nil {
				t.Error(err)
				return
			}
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
			unix.Close(fd)
			if path == node && err != nil || path != node && !errors.Is(err, unix.EACCES) {
				t.Errorf("account %d at %s: %v", uid, path, err)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// grantsAreBound shows the node daemon a grant that is good, as each account.
func grantsAreBound(t *testing.T, s *stage, runners map[string]int, control int, session string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.serve.data, "private", "grant.seed"))
	if err != nil {
		t.Fatal(err)
	}
	seed, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	sign := func(g wire.Grant) string {
		g.Node, g.Session, g.Generation, g.Purpose, g.Expires = "local", session, 1, wire.PurposeVerify, time.Now().Add(time.Minute)
		text, err := wire.SignGrant(ed25519.NewKeyFromSeed(seed), g)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	discard := sign(wire.Grant{Verbs: []string{wire.VerbDiscard}, PeerUID: wire.PeerRunner})
	state := sign(wire.Grant{Verbs: []string{wire.VerbRun}, PeerUID: control})
	for _, c := range []struct {
		who         string
		uid         int
		path, grant string
		status      int
	}{
		{"its own runner", runners["one"], "/discard", discard, 200},
		{"another session's runner", runners["two"], "/discard", discard, 401},
		{"a stranger", stranger, "/discard", discard, 401},
		{"the control plane", control, "/discard", discard, 401},
		{"the control plane", control, "/run/state", state, 200},
		{"a runner", runners["one"], "/run/state", state, 401},
		{"a stranger", stranger, "/run/stop-all", state, 401},
		{"a stranger", stranger, "/restore", "", 401},
	} {
		var status int
		err := asAccount(c.uid, func() { status, err = knock(filepath.Join(s.serve.data, "node", "node.sock"), c.path, c.grant) })
		if err != nil || status != c.status {
			t.Errorf("%s at %s of the node: %d, %v; want %d", c.who, c.path, status, err, c.status)
		}
	}
}

// knock makes one request at a unix socket, on this thread.
func knock(socket, path, grant string) (int, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	body, err := json.Marshal(wire.RunRequest{Grant: grant})
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequest(http.MethodPost, "http://node"+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	if err := req.Write(c); err != nil {
		return 0, err
	}
	res, err := http.ReadResponse(bufio.NewReader(c), req)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

// portsAreClosed asks every port for everything without a credential, and with
// a wrong one. A port that is not one of the three listeners is one too many.
func portsAreClosed(t *testing.T, s *stage, all []process, session string) {
	t.Helper()
	at := map[string]string{}
	for i, flag := range s.serve.argv {
		if name, ok := strings.CutPrefix(flag, "--listen-"); ok {
			at[s.serve.argv[i+1]] = name
		}
	}
	requests := map[string][]string{
		"hooks":  {"POST /webhooks/github", "GET /webhooks/github", "GET /", "GET /metrics", "GET /sessions.json", "GET /debug/pprof/", "POST /runner/v1/token", "GET /node/v1/refs"},
		"people": {"GET /", "GET /sessions.json", "GET /sessions/" + session, "GET /sessions/" + session + ".json", "GET /metrics", "GET /debug/pprof/", "GET /nodes.json", "GET /node/v1/refs"},
		"machines": {
			"POST /runner/v1/token", "GET /runner/v1/spec", "POST /runner/v1/events", "GET /runner/v1/directives", "POST /runner/v1/heartbeat", "POST /runner/v1/outcome",
			"PUT /runner/v1/bundle/1", "PUT /runner/v1/artifacts/" + strings.Repeat("a", 64),
			"GET /node/v1/refs", "GET /node/v1/work", "POST /node/v1/token", "POST /node/v1/state", "POST /node/v1/snapshots",
			"POST /model/v1/chat/completions", "POST /model/v1/messages", "POST /model/v1/responses", "GET /metrics", "GET /", "GET /debug/pprof/",
		},
	}
	_, addresses := listening(t, all)
	found := map[string]bool{}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, address := range addresses {
		name, ok := at[address]
		if !ok {
			t.Errorf("a port that nobody has thought of: %s", address)
			continue
		}
		found[name] = true
		for _, r := range requests[name] {
			method, path, _ := strings.Cut(r, " ")
			for _, token := range []string{"", "Bearer " + session + ".1.AAAA"} {
				req, err := http.NewRequestWithContext(context.Background(), method, "http://"+address+path, strings.NewReader(`{"session":"`+session+`","generation":1,"secret":"wrong","repository_id":1}`))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("X-GitHub-Event", "issues")
				req.Header.Set("X-GitHub-Delivery", "0b7c3a52-0000-4000-8000-000000000001")
				req.Header.Set(wire.HeaderVersion, strconv.Itoa(wire.Version))
				if token != "" {
					req.Header.Set("Authorization", token)
				}
				res, err := client.Do(req)
				if err != nil {
					t.Errorf("%s %s: %v", name, r, err)
					continue
				}
				res.Body.Close()
				if res.StatusCode < 400 || res.StatusCode >= 500 {
					t.Errorf("%s %s, Authorization %q: %s", name, r, token, res.Status)
				}
			}
		}
	}
	if len(found) != 3 {
		t.Errorf("found the listeners %v", found)
	}
}
