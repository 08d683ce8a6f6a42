package forward

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestParse(t *testing.T) {
	for _, s := range []string{"41710=/run/a,named", "80=/x", "65535=/a/b=c"} {
		w, err := Parse(s)
		if err != nil || w.String() != s {
			t.Errorf("%q: %+v %v", s, w, err)
		}
	}
	for _, s := range []string{"", "80", "x=/a", "0=/a", "65536=/a", "80=a", "80=/a,other", "80=/a,", "-1=/a", "80=/a,named,named"} {
		if w, err := Parse(s); err == nil {
			t.Errorf("%q became %+v", s, w)
		}
	}
}

// outside is a unix listener and the way to it.
func outside(t testing.TB, named bool) (*net.UnixListener, Way) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return l, Way{Port: freePort(t), Socket: path, Named: named}
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func open(t testing.TB, ways ...Way) *Server {
	t.Helper()
	s, err := Open(ways)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func dialWay(t testing.TB, w Way) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", w.Port))
	must(t, err)
	t.Cleanup(func() { c.Close() })
	must(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	return c.(*net.TCPConn)
}

func accept(t testing.TB, l net.Listener) net.Conn {
	t.Helper()
	got := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
		}
		got <- c
	}()
	select {
	case c := <-got:
		t.Cleanup(func() { c.Close() })
		must(t, c.SetDeadline(time.Now().Add(20*time.Second)))
		return c
	case <-time.After(20 * time.Second):
		t.Fatal("no connection arrived")
		return nil
	}
}

// Each side can end what it sends and still hear the other.
func TestHalfClose(t *testing.T) {
	l, w := outside(t, false)
	open(t, w)
	for _, first := range []string{"inside", "outside"} {
		in := dialWay(t, w)
		out := accept(t, l).(*net.UnixConn)
		var a, b interface {
			io.ReadWriter
			CloseWrite() error
		} = in, out
		if first == "outside" {
			a, b = b, a
		}
		sent := bytes.Repeat([]byte("0123456789abcdef"), 200_000/16)
		go func() { _, _ = a.Write(sent); _ = a.CloseWrite() }()
		got, err := io.ReadAll(b)
		if err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%s first: %d bytes of %d arrived, %v", first, len(got), len(sent), err)
		}
		go func() { _, _ = b.Write(sent); _ = b.CloseWrite() }()
		got, err = io.ReadAll(a)
		if err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%s first, the answer: %d bytes of %d arrived, %v", first, len(got), len(sent), err)
		}
	}
}

// A server that answers without reading all of a request is heard.
func TestAnswerBeforeTheRequestIsRead(t *testing.T) {
	l, w := outside(t, false)
	open(t, w)
	in := dialWay(t, w)
	out := accept(t, l)
	_, err := in.Write([]byte("begin"))
	must(t, err)
	_, err = io.ReadFull(out, make([]byte, 5))
	must(t, err)
	_, err = out.Write([]byte("too large"))
	must(t, err)
	must(t, out.Close())
	got, err := io.ReadAll(in)
	if string(got) != "too large" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestNobodyOutside(t *testing.T) {
	l, w := outside(t, true)
	open(t, w)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
	in := dialWay(t, w)
	if n, err := in.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("%d bytes, %v; want the end", n, err)
	}
	// A later listener is reached again.
	must(t, os.Remove(w.Socket))
	l2, err := net.ListenUnix("unix", &net.UnixAddr{Name: w.Socket, Net: "unix"})
	must(t, err)
	defer l2.Close()
	dialWay(t, w)
	accept(t, l2)
}

func TestResetsPassThrough(t *testing.T) {
	l, w := outside(t, false)
	open(t, w)
	in := dialWay(t, w)
	out := accept(t, l)
	must(t, in.SetLinger(0))
	must(t, in.Close())
	if _, err := io.ReadAll(out); err != nil {
		t.Errorf("after the client's reset: %v", err)
	}
}

// More connections than there is room for wait and are served in the end.
func TestManyConnections(t *testing.T) {
	l, w := outside(t, false)
	open(t, w)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); c.Close() }()
		}
	}()
	var wg sync.WaitGroup
	for i := range maxConns + 100 {
		wg.Go(func() {
			c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", w.Port))
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(30 * time.Second))
			word := []byte(fmt.Sprintf("connection %d", i))
			if _, err := c.Write(word); err != nil {
				t.Error(err)
				return
			}
			got := make([]byte, len(word))
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, word) {
				t.Errorf("connection %d: %q %v", i, got, err)
			}
		})
	}
	wg.Wait()
}

func TestCloseEndsEverything(t *testing.T) {
	l, w := outside(t, true)
	s := open(t, w)
	in := dialWay(t, w)
	out := accept(t, l)
	must(t, s.Close())
	if _, err := in.Read(make([]byte, 1)); err == nil {
		t.Error("the client's connection is open")
	}
	if _, err := io.ReadAll(out); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", w.Port)); err == nil {
		t.Error("the port is open")
	}
}

func TestPortTaken(t *testing.T) {
	_, w := outside(t, false)
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", w.Port))
	must(t, err)
	defer l.Close()
	_, other := outside(t, false)
	if s, err := Open([]Way{other, w}); err == nil {
		s.Close()
		t.Fatal("a port that is taken was opened")
	}
	if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", other.Port)); err == nil {
		c.Close()
		t.Error("the first way stayed open")
	}
}

// The whole way of a name: this very process connects, over IPv4, IPv6 and with
// an IPv4 address on an IPv6 socket.
func TestNames(t *testing.T) {
	l, w := outside(t, true)
	open(t, w)
	d := Listener(l)
	defer d.Close()
	for _, addr := range []string{"127.0.0.1", "::1", "::ffff:127.0.0.1"} {
		in, err := net.Dial("tcp", net.JoinHostPort(addr, fmt.Sprint(w.Port)))
		if err != nil && addr == "::1" {
			continue // a machine without IPv6
		}
		must(t, err)
		defer in.Close()
		forged := `{"pid":1,"command":"forged"}` + "\n"
		_, err = in.Write([]byte(forged))
		must(t, err)
		must(t, in.(*net.TCPConn).CloseWrite())
		c := accept(t, d)
		got, err := io.ReadAll(c)
		if err != nil || string(got) != forged {
			t.Errorf("%s: what the client sent became %q, %v", addr, got, err)
		}
		if cmd := c.(Conn).Command(); cmd != clean(strings.Join(os.Args, " ")) || !strings.Contains(cmd, "forward.test") {
			t.Errorf("%s: the command is %q", addr, cmd)
		}
	}
}

func TestWhoOfNobody(t *testing.T) {
	a, b := netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("127.0.0.1:2")
	if n := who(a, b); n != (name{}) {
		t.Errorf("%+v", n)
	}
}

func TestTableForm(t *testing.T) {
	for in, want := range map[string][2]string{
		"127.0.0.1:41710": {"0100007F:A2EE", "0000000000000000FFFF00000100007F:A2EE"},
		"[::1]:80":        {"", "00000000000000000000000001000000:0050"},
	} {
		a := netip.MustParseAddrPort(in)
		if got := tableForm(a, true); got != want[1] {
			t.Errorf("%s: %s, want %s", in, got, want[1])
		}
		if got := tableForm(a, false); want[0] != "" && got != want[0] {
			t.Errorf("%s: %s, want %s", in, got, want[0])
		}
	}
}

// A table of connections that goes on for ever is given up.
func TestLongTable(t *testing.T) {
	begun := time.Now()
	if got := inodeIn(endless{}, "x", "y", begun.Add(20*time.Millisecond)); got != "" {
		t.Errorf("found %q", got)
	}
	if d := time.Since(begun); d > 10*time.Second {
		t.Errorf("it took %s", d)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return copy(b, "   1: 0100007F:A2EE z\n"), nil }

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"npm ci":                          "npm ci",
		"a\nb\x00c\x1b[31mred\u202e":      "a bcred",
		"\xff\xfe":                        "\uFFFD\uFFFD",
		strings.Repeat("ä", 400):          strings.Repeat("ä", 250),
		"x" + strings.Repeat("ä", 400):    "x" + strings.Repeat("ä", 249),
		strings.Repeat(" ", 4000) + "end": "end",
	} {
		if got := clean(in); got != want || !utf8.ValidString(got) || len(got) > maxCommand {
			t.Errorf("%q became %q", in, got)
		}
	}
	// However it is written, a name fits its line.
	b, err := json.Marshal(name{PID: 1 << 30, Command: strings.Repeat("<", maxCommand)})
	if err != nil || len(b) >= maxLine {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// What does not begin with its line is closed, and holds up nobody.
func TestHostileLines(t *testing.T) {
	l, w := outside(t, true)
	d := Listener(l)
	defer d.Close()
	call := func(send string, end bool) net.Conn {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: w.Socket, Net: "unix"})
		must(t, err)
		t.Cleanup(func() { c.Close() })
		_, _ = c.Write([]byte(send)) // it may be closed before all is sent
		if end {
			must(t, c.CloseWrite())
		}
		must(t, c.SetDeadline(time.Now().Add(20*time.Second)))
		return c
	}
	slow := call(`{"pid":`, false)
	for _, send := range []string{
		"", "\n", "GET / HTTP/1.1\r\n\r\n", "{}", "[]\n", `"x"` + "\n", "{\"pid\":\"1\"}\n", "{\"command\":5}\n", "{}{}\n",
		strings.Repeat("x", maxLine), `{"command":"` + strings.Repeat("x", maxLine) + "\"}\n",
	} {
		c := call(send, true)
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%.40q was answered", send)
		}
	}
	for send, want := range map[string][2]string{
		"{}\nrest":                                    {"", "rest"},
		"{\"pid\":0,\"command\":\"\"}\n":              {"", ""},
		"{\"command\":\"a\\nb\\u001b[1m\"}\n{}\n":     {"a b", "{}\n"},
		"{\"pid\":-5,\"command\":\"\xff\",\"x\":1}\n": {"\uFFFD", ""},
	} {
		call(send, true)
		c := accept(t, d)
		got, err := io.ReadAll(c)
		if cmd := c.(Conn).Command(); err != nil || cmd != want[0] || string(got) != want[1] {
			t.Errorf("%q: command %q, rest %q, %v", send, cmd, got, err)
		}
	}
	if n, err := slow.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Error("the slow one was answered")
	}
}

func TestListenerCloses(t *testing.T) {
	l, w := outside(t, true)
	d := Listener(l)
	if d.Addr().String() != l.Addr().String() {
		t.Error("another address")
	}
	waiting, err := net.Dial("unix", w.Socket)
	must(t, err)
	defer waiting.Close()
	named, err := net.Dial("unix", w.Socket)
	must(t, err)
	defer named.Close()
	_, err = named.Write([]byte("{}\n"))
	must(t, err)
	must(t, d.Close())
	must(t, d.Close())
	if _, err := d.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	for _, c := range []net.Conn{waiting, named} {
		must(t, c.SetDeadline(time.Now().Add(20*time.Second)))
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a connection stayed open")
		}
	}
}

func FuzzReadName(f *testing.F) {
	f.Add([]byte("{\"pid\":1,\"command\":\"npm ci\"}\nGET"))
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		n, rest, err := readName(&fixed{b: in})
		if err != nil {
			return
		}
		line, after, found := bytes.Cut(in, []byte("\n"))
		if !found || len(line) >= maxLine || !utf8.ValidString(n.Command) || len(n.Command) > maxCommand || strings.ContainsAny(n.Command, "\n\r\x1b\x00") {
			t.Fatalf("%q became %+v", in, n)
		}
		if !bytes.HasPrefix(after, rest) {
			t.Fatalf("%q: the rest became %q", in, rest)
		}
	})
}

// fixed is a connection on which b arrives, one byte more with each read.
type fixed struct {
	net.Conn
	b    []byte
	size int
}

func (c *fixed) SetReadDeadline(time.Time) error { return nil }

func (c *fixed) Read(b []byte) (int, error) {
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	c.size++
	n := copy(b[:min(len(b), c.size)], c.b)
	c.b = c.b[n:]
	return n, nil
}

// What the way through the init costs: a connection, a byte there and back.
func BenchmarkConnect(b *testing.B) {
	for _, kind := range []string{"direct", "plain", "named"} {
		b.Run(kind, func(b *testing.B) {
			l, w := outside(b, kind == "named")
			var in net.Listener = l
			if kind == "named" {
				in = Listener(l)
				defer in.Close()
			}
			go func() {
				for {
					c, err := in.Accept()
					if err != nil {
						return
					}
					go func() { _, _ = io.Copy(c, c); c.Close() }()
				}
			}()
			network, addr := "unix", w.Socket
			if kind != "direct" {
				open(b, w)
				network, addr = "tcp", fmt.Sprintf("127.0.0.1:%d", w.Port)
			}
			one := make([]byte, 1)
			for b.Loop() {
				c, err := net.Dial(network, addr)
				must(b, err)
				_, err = c.Write(one)
				must(b, err)
				_, err = io.ReadFull(c, one)
				must(b, err)
				c.Close()
			}
		})
	}
}

// How fast data goes through.
func BenchmarkCopy(b *testing.B) {
	l, w := outside(b, false)
	open(b, w)
	in := dialWay(b, w)
	out := accept(b, l)
	_ = in.SetDeadline(time.Time{})
	_ = out.SetDeadline(time.Time{})
	go func() { _, _ = io.Copy(io.Discard, out) }()
	block := make([]byte, 64<<10)
	b.SetBytes(int64(len(block)))
	for b.Loop() {
		_, err := in.Write(block)
		must(b, err)
	}
}
