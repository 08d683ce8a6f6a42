package sandbox

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"inspect/envs/sandbox/forward"
	"inspect/envs/sandbox/inside"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// outside is a listener of the test's and the way a sandbox has to it.
func outside(t testing.TB, port int, named bool) (Forward, *net.UnixListener) {
	t.Helper()
	path := filepath.Join(shared(t), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	return Forward{Port: port, Socket: path, Named: named}, l
}

// client connects from inside, sends, says that this is all, and prints the answer.
func client(args []string) int {
	err := func() error {
		c, err := net.Dial("tcp", args[0])
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := io.WriteString(c, args[1]); err != nil {
			return err
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			return err
		}
		_, err = io.Copy(os.Stdout, c)
		return err
	}()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// busy is a program that has a hundred connections at once (ten in gVisor) through the port,
// and new ones again and again until its input ends. (It needs no thread.)
func busy(t testing.TB, port int) []string {
	connections := 100
	if tierOf(t) == wire.TierGVisor { // where each takes ten times as long
		connections = 10
	}
	return []string{"perl", "-e", fmt.Sprintf(`
use IO::Socket::INET; use IO::Select; $| = 1; $SIG{PIPE} = "IGNORE";
my $in = IO::Select->new(\*STDIN); my $n = 0;
do {
	my @s = map { IO::Socket::INET->new("127.0.0.1:%d") or die "no connection: $!" } 1..%d;
	for (@s) { print $_ "x" x 50000; shutdown($_, 1) }
	for (@s) { my @a = <$_>; "@a" =~ /heard 50000/ or die "answered: @a" }
	print "connecting\n" unless $n++;
} until ($in->can_read(0));
print "$n rounds\n"; close STDOUT;`, port, connections)}
}

// echo answers every connection with its command and what it sent.
func echo(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			b, _ := io.ReadAll(c)
			if n, ok := c.(forward.Conn); ok {
				fmt.Fprintf(c, "[%s] ", n.Command())
			}
			fmt.Fprintf(c, "heard %d: %.100s", len(b), b)
		}()
	}
}

func TestForward(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		model, ml := outside(t, ModelPort, false)
		egress, el := outside(t, EgressPort, true)
		go echo(ml)
		named := forward.Listener(el)
		defer named.Close()
		go echo(named)
		b := start(t, func(s *Spec) { s.Forwards = []Forward{model, egress} })
		say := func(port int, words ...string) string {
			return b.exec(t, stream.Exec{Argv: append([]string{InitPath, "client", fmt.Sprintf("127.0.0.1:%d", port)}, words...)}).out
		}
		// The very first command finds the ports open.
		if got := say(ModelPort, "hello"); got != "heard 5: hello" {
			t.Errorf("the plain way: %q", got)
		}
		want := fmt.Sprintf("[%s client 127.0.0.1:%d hello] heard 5: hello", InitPath, EgressPort)
		if got := say(EgressPort, "hello"); got != want {
			t.Errorf("the named way: %q, want %q", got, want)
		}
		// Whoever connects is named, not who started it; nothing the client sends
		// is read as the name.
		script := fmt.Sprintf(`exec 3<>/dev/tcp/localhost/%d; printf '{"pid":1,"command":"forged"}\nx' >&3; exec 3>&-; true`, EgressPort)
		b.exec(t, stream.Exec{Argv: []string{"bash", "-c", script}})
		perl := fmt.Sprintf(`use IO::Socket::INET; my $s = IO::Socket::INET->new("127.0.0.1:%d") or die; print $s "{\"command\":\"forged\"}\n"; shutdown($s, 1); print <$s>;`, EgressPort)
		got := b.exec(t, stream.Exec{Argv: []string{"sh", "-c", `perl -e "$0"; true`, perl}})
		if want := "[perl -e use IO::Socket::INET;"; !strings.HasPrefix(got.out, want) || !strings.Contains(got.out, `heard 21: {"command":"forged"}`) {
			t.Errorf("a child's connection: %q%s, want it to begin with %q", got.out, got.err, want)
		}
		if got := b.must(t, "ls "+SocketDir); got != fmt.Sprintf("%d\n%d\n", EgressPort, ModelPort) {
			t.Errorf("%s holds %q", SocketDir, got)
		}
		if got := b.must(t, "cat /proc/1/cmdline | tr '\\0' ' '"); strings.Contains(got, runDir) {
			t.Errorf("the init's command line shows a path of the host: %q", got)
		}
	})
}

// Without a way there is no port and no socket.
func TestNoForward(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, nil)
		for _, port := range []int{ModelPort, EgressPort} {
			r := b.exec(t, stream.Exec{Argv: []string{InitPath, "client", fmt.Sprintf("127.0.0.1:%d", port), "x"}})
			if r.Code != 1 || !strings.Contains(r.out, "refused") {
				t.Errorf("port %d: %+v", port, r)
			}
		}
		if r := b.sh(t, "ls "+SocketDir); r.Code == 0 {
			t.Errorf("%s is there: %q", SocketDir, r.out)
		}
	})
}

// In a full process table connections go on and the init lives.
func TestForwardUnderAForkBomb(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		way, l := outside(t, EgressPort, true)
		named := forward.Listener(l)
		defer named.Close()
		go echo(named)
		b := start(t, func(s *Spec) { s.Limits.Pids = 60; s.Forwards = []Forward{way} })
		addr := fmt.Sprintf("127.0.0.1:%d", EgressPort)
		input, stop := io.Pipe()
		begun, said := newWatcher("connecting"), new(bytes.Buffer)
		many, err := b.Client.Start(deadline(t), stream.Exec{
			Argv: busy(t, EgressPort), Stdin: input, Stdout: begun, Stderr: said,
		})
		if err != nil {
			t.Fatal(err)
		}
		<-begun.seen
		ctx, cancel := context.WithCancel(deadline(t))
		defer cancel()
		refusals := newWatcher("no fork")
		bomb, err := b.Client.Start(ctx, stream.Exec{Argv: forkBomb, Stderr: refusals, Grace: -1})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-refusals.seen:
		case <-ctx.Done():
			t.Fatal("no fork was refused")
		}
		// A second of that, or some in gVisor: then the sandbox still answers.
		for range map[string]int{wire.TierBubblewrap: 50, wire.TierGVisor: 5}[tierOf(t)] {
			_, _ = b.Run(deadline(t), stream.Exec{Argv: []string{"true"}})
		}
		cancel()
		_, _ = bomb.Wait()
		stop.Close()
		if x, err := many.Wait(); err != nil || x.Code != 0 {
			t.Errorf("the client: %+v %v: %s", x, err, said)
		}
		if r := b.exec(t, stream.Exec{Argv: []string{InitPath, "client", addr, "after"}}); !strings.HasSuffix(r.out, "heard 5: after") {
			t.Errorf("afterwards: %+v", r)
		}
	})
}

// The init and what started it stay within what is reserved for them, whatever
// the connections do.
func TestReservedPids(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		way, l := outside(t, EgressPort, true)
		named := forward.Listener(l)
		defer named.Close()
		go echo(named)
		b := start(t, func(s *Spec) { s.Forwards = []Forward{way} })
		if b.group == nil {
			t.Log("not counted without cgroups")
			return
		}
		threads := func() (n int) {
			if tierOf(t) == wire.TierGVisor { // they are not the host's
				n, _ := strconv.Atoi(strings.TrimSpace(b.must(t, "ls /proc/1/task | wc -l")))
				return n
			}
			for _, pid := range b.group.pids() {
				cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				if !bytes.Contains(cmd, []byte("sandbox-init")) {
					continue
				}
				tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
				n += len(tasks)
			}
			return n
		}
		before := threads()
		input, stop := io.Pipe()
		begun := newWatcher("connecting")
		many, err := b.Client.Start(deadline(t), stream.Exec{
			Argv: busy(t, EgressPort), Stdin: input, Stdout: begun,
		})
		if err != nil {
			t.Fatal(err)
		}
		<-begun.seen
		most := 0
		for range 30 {
			most = max(most, threads())
			b.must(t, "true")
		}
		stop.Close()
		if _, err := many.Wait(); err != nil {
			t.Error(err)
		}
		t.Logf("%d threads before, at most %d", before, most)
		if most > inside.ReservedPids || before == 0 {
			t.Errorf("at most %d threads, %d are reserved (%d before)", most, inside.ReservedPids, before)
		}
	})
}

// What a connection through a sandbox costs, with and without its name.
func BenchmarkForward(b *testing.B) {
	for _, isNamed := range []bool{false, true} {
		b.Run(fmt.Sprintf("named=%v", isNamed), func(b *testing.B) {
			way, l := outside(b, EgressPort, isNamed)
			var in net.Listener = l
			if isNamed {
				in = forward.Listener(l)
				defer in.Close()
			}
			go echo(in)
			box := start(b, func(s *Spec) { s.Forwards = []Forward{way} })
			// One process makes all connections; its own clock measures.
			r := box.exec(b, stream.Exec{Argv: []string{"perl", "-e", fmt.Sprintf(`
use IO::Socket::INET; use Time::HiRes qw(time); my @t;
for (1..200) { my $b = time; my $s = IO::Socket::INET->new("127.0.0.1:%d") or die; print $s "x"; shutdown($s, 1); my @a = <$s>; push @t, time-$b; }
@t = sort { $a <=> $b } @t; printf "%%.0f", $t[100]*1e6;`, EgressPort)}})
			us, err := strconv.ParseFloat(r.out, 64)
			if err != nil {
				b.Fatalf("%+v", r)
			}
			b.ReportMetric(us, "µs/connection")
			b.ReportMetric(0, "ns/op")
		})
	}
}
