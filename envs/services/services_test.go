package services

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/sandbox"
	"inspect/envs/sandbox/dialer"
	"inspect/envs/sandbox/sandboxtest"
	"inspect/envs/sandbox/stream"
	"inspect/envs/spec"
	"inspect/envs/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(sandboxtest.Main(m)) }

// hurried is a clock on which a second and more pass twenty times as fast.
type hurried struct{}

const hurry = 20

func (hurried) Now() time.Time { return time.Now() }
func (hurried) After(d time.Duration) <-chan time.Time {
	if d >= time.Second {
		d /= hurry
	}
	return time.After(d)
}
func (hurried) NewTicker(d time.Duration) (t proc.Ticker) { return proc.System().NewTicker(d / hurry) }
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// box is a sandbox with a home and a workspace.
type box struct {
	t *testing.T
	l *sandbox.Launcher
	*stream.Client
	clock      proc.Clock
	running    *sandbox.Sandbox
	home, work string // outside

	mu     sync.Mutex
	events []wire.ServiceState
}

func newBox(t *testing.T, clock proc.Clock) *box {
	t.Helper()
	// The sandbox's uid must pass: t.TempDir's parent is closed to others.
	tmp, err := os.MkdirTemp("", "inspect-services")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	must(t, os.Chmod(tmp, 0o711))
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 {
		uid, gid = 64322, 64322
	}
	l, err := sandbox.New(sandbox.Options{
		Binary: sandboxtest.Init(t), RunDir: filepath.Join(tmp, "run"), CgroupRoot: "/inspect-test-services-" + filepath.Base(tmp),
		UID: uid, GID: gid, BestEffort: os.Getuid() != 0,
	})
	must(t, err)
	b := &box{t: t, l: l, clock: clock, home: filepath.Join(tmp, "home"), work: filepath.Join(tmp, "work")}
	for _, d := range []string{b.home, b.work} {
		must(t, os.Mkdir(d, 0o755))
		if os.Getuid() == 0 {
			must(t, os.Chown(d, uid, gid))
		}
	}
	near, far, err := stream.Pair()
	must(t, err)
	b.running, err = l.Start(t.Context(), sandbox.Spec{
		ID: "services", Control: far, Limits: wire.Limits{CPU: 2, MemoryBytes: 512 << 20, Pids: 200},
		Mounts: []sandbox.Mount{{Source: b.work, Target: sandbox.Workspace, Writable: true}, {Source: b.home, Target: sandbox.Home, Writable: true}},
	})
	must(t, err)
	b.Client = stream.NewClientClock(near, clock)
	t.Cleanup(func() {
		_ = b.Client.Close()
		if err := b.running.Kill(context.Background()); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *box) options() Options {
	return Options{
		Clock: b.clock, Redact: redact.New("hunter2-hunter2"),
		Event: func(s wire.ServiceState) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.events = append(b.events, s)
		},
	}
}

// told is what the events said so far, "name state".
func (b *box) told() (out []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.events {
		out = append(out, e.Name+" "+e.State)
	}
	return out
}

func (b *box) sh(line string) string {
	b.t.Helper()
	var out bytes.Buffer
	exit, err := b.Run(b.t.Context(), stream.Exec{Argv: []string{"sh", "-c", line}, Stdout: &out, Stderr: &out})
	if err != nil || exit.Code != 0 {
		b.t.Fatalf("%s: %+v %v\n%s", line, exit, err, out.String())
	}
	return strings.TrimSpace(out.String())
}

// alive counts the processes inside whose command line holds a word.
func (b *box) alive(word string) string {
	b.t.Helper()
	return b.sh(`n=0; for p in /proc/[0-9]*; do [ "${p#/proc/}" != $$ ] && { tr '\0' ' ' <$p/cmdline; } 2>/dev/null | grep -q '^` + word + `' && n=$((n+1)); done; echo $n`)
}

func TestServicesStartInOrderAndStopInReverse(t *testing.T) {
	b := newBox(t, proc.System())
	set, err := Start(t.Context(), b, []wire.Service{
		{Name: "first", Command: `echo "pid $$"; until [ -e "$HOME/go" ]; do sleep 0.01; done; touch $HOME/first; exec sleep 1001`, Ready: `touch "$HOME/go"; test -e "$HOME/first"`},
		{Name: "second", Command: `test -e "$HOME/first" || exit 9; touch $HOME/second; trap 'echo bye >"$HOME/second"; exit 0' USR1; echo $$ >"$HOME/pid"; while :; do sleep 0.01; done`, Ready: `test -e "$HOME/second"`, Stop: `kill -USR1 $(cat "$HOME/pid")`},
		{Name: "third", Command: `test -e "$HOME/second" || exit 9; echo "$WORD"; pwd; exec sleep 1003`},
	}, func() Options { o := b.options(); o.Env = []string{"WORD=hello"}; o.Dir = "/tmp"; return o }())
	must(t, err)
	if got := b.alive("sleep 100"); got != "2" {
		t.Errorf("%s of two run", got)
	}
	must(t, set.Stop(t.Context()))
	must(t, set.Stop(t.Context()))
	if logs := set.Logs(); len(logs) != 2 || logs[0].Service != "first" || !strings.HasPrefix(logs[0].Text, "pid ") || logs[1].Service != "third" || !strings.HasPrefix(logs[1].Text, "hello\n") {
		t.Errorf("logs %+v", logs)
	}
	want := []string{"first ready", "second ready", "third ready", "third stopped", "second stopped", "first stopped"}
	if d := cmp.Diff(want, b.told()); d != "" {
		t.Error(d)
	}
	for i, e := range b.events {
		if e.After <= 0 || e.Words != "" {
			t.Errorf("event %d: %+v", i, e)
		}
	}
	if got := b.events[3].Output; got != "hello\n/tmp" {
		t.Errorf("the third's log: %q", got)
	}
	if got := b.events[5].Output; !strings.HasPrefix(got, "pid ") {
		t.Errorf("the first's log: %q", got)
	}
	if got := b.sh(`cat "$HOME/second"`); got != "bye" {
		t.Errorf("the stop line did not end the second: %q", got)
	}
	if got := b.alive("sleep 100"); got != "0" {
		t.Errorf("%s still run", got)
	}
}

// apart is a place beside the sandbox with one secret.
func (b *box) apart(ctx context.Context, s wire.Service) (Apart, error) {
	near, far, err := stream.Pair()
	if err != nil {
		return Apart{}, err
	}
	sb, err := b.l.Start(ctx, sandbox.Spec{
		ID: "services-" + s.Name, Beside: "services", Control: far,
		Mounts: []sandbox.Mount{{Source: b.work, Target: sandbox.Workspace, Writable: true}, {Source: b.home, Target: sandbox.Home, Writable: true}},
	})
	if err != nil {
		near.Close()
		return Apart{}, err
	}
	c := stream.NewClientClock(near, b.clock)
	return Apart{Sandbox: c, Env: []string{s.Secrets[0] + "=hunter2-hunter2"}, Close: func() { _ = c.Close(); sb.Wait() }}, nil
}

// A service with secrets runs apart, is asked from outside and stopped inside
// its own place, and leaves nothing there.
func TestServiceWithSecrets(t *testing.T) {
	b := newBox(t, proc.System())
	list := []wire.Service{{
		Name: "db", Secrets: []string{"PASSWORD"}, Ready: `[ -z "$PASSWORD" ] && test -e "$HOME/up"`,
		Command: `trap 'echo bye >"$HOME/end"; exit 0' USR1; setsid sleep 1004 & echo $$ >/tmp/pid; echo "$PASSWORD"; touch "$HOME/up"; while :; do sleep 0.01; done`,
		Stop:    `[ -z "$PASSWORD" ] && kill -USR1 $(cat /tmp/pid)`,
	}}
	if _, err := Start(t.Context(), b, list, b.options()); err == nil || !strings.Contains(err.Error(), "no place where nobody else could read them") {
		t.Errorf("without such a place: %v", err)
	}
	if os.Getuid() != 0 {
		return // compartments are root's
	}
	o := b.options()
	o.Apart = func(context.Context, wire.Service) (Apart, error) { return Apart{}, errors.New("no secret today") }
	if _, err := Start(t.Context(), b, list, o); err == nil || err.Error() != "service db was not started: no secret today" {
		t.Errorf("%v", err)
	}
	for range 2 { // and it can be started again
		b.events = nil
		o.Apart = b.apart
		set, err := Start(t.Context(), b, list, o)
		must(t, err)
		if got := b.sh(`ls -d /proc/[0-9]* | wc -l; test -e /tmp/pid || echo none`); !strings.HasSuffix(got, "none") {
			t.Errorf("its /tmp is seen: %s", got)
		}
		must(t, set.Stop(t.Context()))
		if got := b.sh(`cat "$HOME/end"; rm "$HOME/end" "$HOME/up"`); got != "bye" {
			t.Errorf("the stop line did not end it: %q", got)
		}
		if d := cmp.Diff([]string{"db ready", "db stopped"}, b.told()); d != "" {
			t.Error(d)
		}
		if e := b.events[1]; e.Output != redact.Mark || e.Words != "" {
			t.Errorf("%+v", e)
		}
	}
}

// Services that do not listen to SIGTERM are waited for together.
func TestStubbornServicesStopTogether(t *testing.T) {
	b := newBox(t, hurried{})
	var list []wire.Service
	for i := range 8 {
		list = append(list, wire.Service{Name: fmt.Sprintf("s%d", i), Command: "trap '' TERM; while :; do sleep 0.05; done"})
	}
	set, err := Start(t.Context(), b, list, b.options())
	must(t, err)
	begun := time.Now()
	must(t, set.Stop(t.Context()))
	// One after the other they would take eight times the grace.
	if took := hurry * time.Since(begun); took > 8*grace-15*time.Second {
		t.Errorf("they took %s", took)
	}
	if n := len(b.told()); n != 16 {
		t.Errorf("told of: %v", b.told())
	}
}

func TestNoServices(t *testing.T) {
	set, err := Start(t.Context(), nil, nil, Options{})
	must(t, err)
	must(t, set.Stop(t.Context()))
}

// A service that does not become ready is named with what it said, and nothing
// stays that was started before it.
func TestServiceThatDoesNotStart(t *testing.T) {
	for name, c := range map[string]struct {
		service wire.Service
		words   []string
		timeout time.Duration
	}{
		"exits": {
			service: wire.Service{Command: "echo first; echo token hunter2-hunter2 >&2; echo FATAL: no such directory; exit 3", Ready: "false"},
			words:   []string{"service bad ended with exit status 3 before it was ready", "first", "FATAL: no such directory"},
		},
		"exits with nothing to ask": {service: wire.Service{Command: "exit 4"}, words: []string{"ended with exit status 4 before it was ready"}},
		"exits well":                {service: wire.Service{Command: "true", Ready: "sleep 0.2; false"}, words: []string{"ended with exit status 0 before it was ready"}},
		"killed":                    {service: wire.Service{Command: "kill -9 $$", Ready: "false"}, words: []string{"was ended by SIGKILL before it was ready"}},
		"no such thing":             {service: wire.Service{Command: "no-such-service --x", Ready: "false"}, words: []string{"exit status 127", "no-such-service"}},
		"never ready": {
			service: wire.Service{Command: "echo waiting; exec sleep 1000", Ready: "echo nobody there; exit 2"}, timeout: hurry * 500 * time.Millisecond,
			words: []string{"was not ready after 10s: echo nobody there; exit 2 failed with exit status 2: nobody there", "waiting"},
		},
		"probes hang": {
			service: wire.Service{Command: "exec sleep 1000", Ready: "sleep 1000"}, timeout: hurry * 1200 * time.Millisecond,
			words: []string{"sleep 1000 did not end"},
		},
		"nobody can ask": {
			service: wire.Service{Command: "exec sleep 1000", Port: 5432}, timeout: hurry * 500 * time.Millisecond,
			words: []string{"port 5432: there is no way to connect"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			clock := proc.System()
			if c.timeout > 0 {
				clock = hurried{}
			}
			b := newBox(t, clock)
			o := b.options()
			o.Timeout = c.timeout
			c.service.Name = "bad"
			set, err := Start(t.Context(), b, []wire.Service{{Name: "good", Command: "exec sleep 1001", Ready: "true"}, c.service, {Name: "never", Command: "touch $HOME/never; sleep 1002"}}, o)
			var bad *Error
			if !errors.As(err, &bad) || set != nil {
				t.Fatalf("%v, %v", set, err)
			}
			for _, w := range c.words {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the error lacks %q: %v", w, err)
				}
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error tells a secret: %v", err)
			}
			if d := cmp.Diff([]string{"good ready", "bad failed", "good stopped"}, b.told()); d != "" {
				t.Error(d)
			}
			if e := b.events[1]; "service bad "+e.Words+"\n"+e.Output != err.Error() && "service bad "+e.Words != err.Error() {
				t.Errorf("event %+v, error %v", e, err)
			}
			if got := b.alive("sleep 100"); got != "0" || b.sh("ls $HOME") != "" {
				t.Errorf("%s processes are left, home holds %q", got, b.sh("ls $HOME"))
			}
		})
	}
}

// A service with an address or a port is asked through Dial: one answer that
// never comes, and one that blames the server, do not make it ready.
func TestServiceThatIsAskedByAddress(t *testing.T) {
	var requests atomic.Int32
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch requests.Add(1) {
		case 1:
			<-r.Context().Done()
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 3:
			http.Redirect(w, r, "http://example.com/", http.StatusFound)
		default:
			t.Error("asked once more than needed")
		}
	}))
	defer web.Close()
	b := newBox(t, hurried{})
	o := b.options()
	o.Timeout = hurry * 20 * time.Second
	var dialled []string
	o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		dialled = append(dialled, addr)
		if len(dialled) == 4 {
			return nil, errors.New("connection refused")
		}
		return new(net.Dialer).DialContext(ctx, "tcp", web.Listener.Addr().String())
	}
	set, err := Start(t.Context(), b, []wire.Service{
		{Name: "page", Command: "exec sleep 1000", Ready: "http://localhost:5173/health", Port: 5173},
		{Name: "port", Command: "exec sleep 1000", Port: 5432},
	}, o)
	must(t, err)
	must(t, set.Stop(t.Context()))
	if got, want := strings.Join(dialled, " "), "localhost:5173 localhost:5173 localhost:5173 localhost:5432 localhost:5432"; got != want || requests.Load() != 3 {
		t.Errorf("%d requests, dialled %s", requests.Load(), got)
	}
	t.Run("never", func(t *testing.T) {
		b := newBox(t, hurried{})
		o := b.options()
		o.Timeout = hurry * 400 * time.Millisecond
		o.Dial = func(context.Context, string) (net.Conn, error) { return nil, errors.New("connection refused") }
		_, err := Start(t.Context(), b, []wire.Service{{Name: "page", Command: "exec sleep 1000", Ready: "http://127.0.0.1:1/"}}, o)
		if err == nil || !strings.Contains(err.Error(), `service page was not ready after 8s: Get "http://127.0.0.1:1/": connection refused`) {
			t.Error(err)
		}
	})
}

// The same with a real server, through the sandbox's init.
func TestServiceThatIsAskedInside(t *testing.T) {
	b := newBox(t, proc.System())
	o := b.options()
	o.Dial = func(ctx context.Context, addr string) (net.Conn, error) { return dialer.Dial(ctx, b, addr) }
	const server = `exec /usr/bin/python3 -c "
import http.server
class H(http.server.BaseHTTPRequestHandler):
    n = 0
    def do_GET(self):
        H.n += 1
        self.send_response(503 if H.n < 3 else 404)
        self.end_headers()
http.server.HTTPServer(('127.0.0.1', 8000), H).serve_forever()"`
	set, err := Start(t.Context(), b, []wire.Service{
		{Name: "page", Command: server, Ready: "http://127.0.0.1:8000/"},
		{Name: "port", Command: "exec sleep 1000", Port: 8000},
	}, o)
	must(t, err)
	must(t, set.Stop(t.Context()))
	if got := strings.Count(b.events[3].Output, "GET / HTTP/1.1"); got != 3 {
		t.Errorf("%d requests: %s", got, b.events[3].Output)
	}
}

// However early a service is asked to end, nothing of it is left out: not even
// what it is about to start.
func TestServiceIsStoppedAtOnce(t *testing.T) {
	b := newBox(t, proc.System())
	o := b.options()
	var early time.Duration // not to wait for anything: to come at every moment of its start
	o.Dial = func(context.Context, string) (net.Conn, error) {
		time.Sleep(early)
		c, _ := net.Pipe()
		return c, nil
	}
	for i := range 60 {
		early = time.Duration(i) * 200 * time.Microsecond
		set, err := Start(t.Context(), b, []wire.Service{{Name: "port", Command: "sleep 1000; sleep 1000", Port: 1}}, o)
		must(t, err)
		must(t, set.Stop(t.Context()))
		if last := b.events[len(b.events)-1]; last.State != StateStopped || last.Words != "" {
			t.Fatalf("%+v", last)
		}
	}
}

func TestServiceThatDiesLater(t *testing.T) {
	b := newBox(t, proc.System())
	o := b.options()
	died := make(chan wire.ServiceState, 10)
	o.Event = func(s wire.ServiceState) {
		if s.State != StateReady {
			died <- s
		}
	}
	set, err := Start(t.Context(), b, []wire.Service{
		{Name: "a", Command: "exec sleep 1000"},
		{Name: "b", Command: `echo up; until [ -e "$HOME/die" ]; do sleep 0.01; done; echo PANIC hunter2-hunter2; exit 6`, Ready: "true"},
	}, o)
	must(t, err)
	if got := set.Failed(); got != nil {
		t.Errorf("failed: %v", got)
	}
	b.sh(`touch "$HOME/die"`)
	e := <-died
	if e.Name != "b" || e.State != StateFailed || e.Words != "ended with exit status 6 while it was needed" || !strings.HasPrefix(e.Output, "up\nPANIC ") || strings.Contains(e.Output, "hunter2") {
		t.Errorf("%+v", e)
	}
	if got := set.Failed(); len(got) != 1 || got[0] != "service b ended with exit status 6" {
		t.Errorf("failed: %q", got)
	}
	must(t, set.Stop(t.Context()))
	if e := <-died; e.Name != "a" || e.State != StateStopped || len(died) != 0 {
		t.Errorf("%+v and %d more", e, len(died))
	}
}

// However a service resists, it is gone in the end, and the event says how.
func TestStubbornServices(t *testing.T) {
	for name, c := range map[string]struct {
		command, stop, words string
	}{
		"a stop line that fails":     {`exec sleep 1000`, `echo cannot; exit 2`, "its stop line failed with exit status 2: cannot"},
		"a stop line that hangs":     {`exec sleep 1000`, `sleep 1000`, "its stop line did not end within 20s"},
		"a stop line of no use":      {`exec sleep 1000`, `true`, "its stop line succeeded but it did not end within 20s"},
		"no stop line":               {`exec sleep 1000`, "", ""},
		"SIGTERM means nothing":      {`trap '' TERM; while :; do sleep 1000; done`, "", "it did not end within 10s after SIGTERM and was killed"},
		"a child means to stay":      {`(trap '' TERM; while :; do sleep 1000; done) & exec sleep 1000`, "", "it did not end within 10s after SIGTERM and was killed"},
		"the shell goes first":       {`sh -c 'trap "sleep 0.1; touch $HOME/clean; exit" TERM; while :; do sleep 0.01; done'; true`, "", ""},
		"a stop line, then children": {`sleep 1000 & echo $$ >$HOME/pid; wait`, `kill -9 $(cat $HOME/pid)`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			clock := proc.System()
			if strings.Contains(c.words, "0s") { // the words are about a wait
				clock = hurried{}
			}
			b := newBox(t, clock)
			set, err := Start(t.Context(), b, []wire.Service{{Name: "s", Command: c.command, Stop: c.stop}}, b.options())
			must(t, err)
			must(t, set.Stop(t.Context()))
			if len(b.events) != 2 || b.events[1].State != StateStopped || b.events[1].Words != c.words {
				t.Errorf("%+v", b.events)
			}
			if got := b.alive("sleep 1000"); got != "0" {
				t.Errorf("%s processes are left", got)
			}
			if name == "the shell goes first" {
				b.sh("test -e $HOME/clean")
			}
		})
	}
}

// A stop whose time is over does not run stop lines.
func TestStopWithoutTime(t *testing.T) {
	b := newBox(t, proc.System())
	set, err := Start(t.Context(), b, []wire.Service{{Name: "s", Command: "exec sleep 1000", Stop: "touch $HOME/asked"}}, b.options())
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must(t, set.Stop(ctx))
	if b.alive("sleep 1000") != "0" || b.sh("ls $HOME") != "" || b.events[1].Words != "there was no time for its stop line" {
		t.Errorf("%+v", b.events)
	}
}

func TestStaleFilesAreRemoved(t *testing.T) {
	b := newBox(t, proc.System())
	b.sh(`mkdir -p "$HOME/pg" "$HOME/a/b/c/data" "tmp/pids" "fixture" node_modules/x
		echo 1 >"$HOME/pg/postmaster.pid"; echo 1 >"$HOME/a/b/c/data/postmaster.pid"; touch "$HOME/.s.PGSQL.5432.lock" "$HOME/mysqld.sock.lock" "$HOME/other.pid"
		touch tmp/pids/server.pid fixture/postmaster.pid postmaster.pid node_modules/x/postmaster.pid
		git init -q . && git add -f fixture/postmaster.pid`)
	set, err := Start(t.Context(), b, []wire.Service{{Name: "s", Command: "exec sleep 1000"}}, b.options())
	must(t, err)
	must(t, set.Stop(t.Context()))
	got := b.sh(`find "$HOME" . -name .git -prune -o -type f -print | sort`)
	if want := "./fixture/postmaster.pid\n./node_modules/x/postmaster.pid\n/home/agent/other.pid"; got != want {
		t.Errorf("left:\n%s\nwant:\n%s", got, want)
	}
}

func TestSandboxEnds(t *testing.T) {
	t.Run("while starting", func(t *testing.T) {
		b := newBox(t, proc.System())
		go func() {
			for {
				if _, err := os.Stat(filepath.Join(b.home, "up")); err == nil {
					_ = b.running.Kill(context.Background())
					return
				}
				time.Sleep(time.Millisecond) // polls; what it waits for has no signal
			}
		}()
		_, err := Start(t.Context(), b, []wire.Service{{Name: "s", Command: "touch $HOME/up; exec sleep 1000", Ready: "sleep 1000"}}, b.options())
		var bad *Error
		if !errors.Is(err, stream.ErrEnded) || errors.As(err, &bad) {
			t.Errorf("%v", err)
		}
	})
	t.Run("while running", func(t *testing.T) {
		b := newBox(t, proc.System())
		set, err := Start(t.Context(), b, []wire.Service{{Name: "s", Command: "exec sleep 1000", Stop: "true"}}, b.options())
		must(t, err)
		must(t, b.running.Kill(t.Context()))
		must(t, set.Stop(t.Context()))
		if d := cmp.Diff([]string{"s ready"}, b.told()); d != "" {
			t.Error(d)
		}
	})
}

func TestStartIsGivenUp(t *testing.T) {
	b := newBox(t, proc.System())
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the session was stopped")
	o := b.options()
	o.Event = func(s wire.ServiceState) {
		if s.State == StateReady {
			cancel(why)
		}
	}
	_, err := Start(ctx, b, []wire.Service{{Name: "a", Command: "exec sleep 1000"}, {Name: "b", Command: "exec sleep 1000", Ready: "false"}}, o)
	var bad *Error
	if !errors.Is(err, why) || errors.As(err, &bad) {
		t.Errorf("%v", err)
	}
	if got := b.alive("sleep 1000"); got != "0" {
		t.Errorf("%s processes are left", got)
	}
}

func TestNoisyServiceIsBounded(t *testing.T) {
	b := newBox(t, proc.System())
	set, err := Start(t.Context(), b, []wire.Service{{Name: "s", Command: `head -c 3000000 /dev/zero | tr '\0' x; echo; seq 100000; printf '\033[31mthe end\033[0m'; touch $HOME/said; exec sleep 1000`, Ready: "test -e $HOME/said"}}, b.options())
	must(t, err)
	must(t, set.Stop(t.Context()))
	out := b.events[1].Output
	if len(out) > logShown+100 || !strings.HasSuffix(out, "100000\nthe end") {
		t.Errorf("%d bytes: …%.200q", len(out), out[max(0, len(out)-100):])
	}
}

func TestProgramsAreFound(t *testing.T) {
	if _, err := os.Stat("/usr/lib/postgresql"); err != nil {
		t.Fatal("there is no PostgreSQL; make test installs it")
	}
	b := newBox(t, proc.System())
	var out bytes.Buffer
	_, err := b.Run(t.Context(), stream.Exec{Argv: Shell("command -v pg_ctl; command -v rabbitmq-server; test -w /run/postgresql && echo writable"), Stdout: &out})
	must(t, err)
	if got := out.String(); !strings.HasSuffix(got, "/bin/pg_ctl\n/usr/lib/rabbitmq/bin/rabbitmq-server\nwritable\n") {
		t.Errorf("found %q", got)
	}
}

// The file's rules name the sandbox's own ports.
func TestOurPortsAreTaken(t *testing.T) {
	for _, port := range []int{sandbox.EgressPort, sandbox.ModelPort} {
		_, problems := spec.Parse(fmt.Appendf(nil, "version: 1\nservices: {a: {command: x, port: %d}}\n", port))
		if len(problems) != 1 {
			t.Errorf("port %d: %v", port, problems)
		}
	}
}
