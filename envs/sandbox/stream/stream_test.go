package stream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"inspect/envs/proc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFrames(t *testing.T) {
	var b bytes.Buffer
	sent := []Frame{
		{TypeStdout, 7, []byte("hello")}, {TypeStdinEnd, 1 << 31, nil}, CreditFrame(3, 2, 1000), StdinCreditFrame(4, 9),
		{TypeStdin, 1, make([]byte, MaxData)},
	}
	for _, f := range sent {
		b.Write(f.Append(nil))
	}
	for _, want := range sent {
		got, err := ReadFrame(&b)
		if err != nil || got.Type != want.Type || got.ID != want.ID || !bytes.Equal(got.Payload, want.Payload) {
			t.Fatalf("%+v %v, want %+v", got, err, want)
		}
	}
	if _, err := ReadFrame(&b); err != io.EOF {
		t.Errorf("%v, want the end", err)
	}
}

func TestReadFrameRefuses(t *testing.T) {
	for name, in := range map[string][]byte{
		"a huge one":     {0xff, 0xff, 0xff, 0xff, byte(TypeStdout), 0, 0, 0, 1},
		"one too short":  {0, 0, 0, 4, byte(TypeStdout), 0, 0, 0, 1},
		"a byte too far": append([]byte{0, 0, 0x80, 6, byte(TypeStdout), 0, 0, 0, 1}, make([]byte, MaxData+1)...),
		"no such type":   {0, 0, 0, 5, 200, 0, 0, 0, 1},
		"an end with":    {0, 0, 0, 6, byte(TypeStdinEnd), 0, 0, 0, 1, 0},
	} {
		if _, err := ReadFrame(bytes.NewReader(in)); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ReadFrame(bytes.NewReader([]byte{0, 0, 0})); err != io.ErrUnexpectedEOF {
		t.Errorf("cut: %v", err)
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add(Frame{TypeStdout, 7, []byte("hello")}.Append(nil))
	f.Add([]byte{0, 0, 0, 5, 64, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		for {
			at := len(in) - r.Len()
			fr, err := ReadFrame(r)
			if err != nil {
				return
			}
			if got := fr.Append(nil); !bytes.Equal(got, in[at:len(in)-r.Len()]) {
				t.Fatalf("%x became %x", in[at:len(in)-r.Len()], got)
			}
		}
	})
}

func TestCredit(t *testing.T) {
	var c Credit
	if !c.Give(Window) || c.Give(1) || c.Give(-1) {
		t.Error("the window does not hold")
	}
	if n := c.Take(Window-1, nil); n != Window-1 {
		t.Errorf("took %d", n)
	}
	if n := c.Take(100, nil); n != 1 {
		t.Errorf("took %d, want the one left", n)
	}
	got := make(chan int)
	go func() { got <- c.Take(100, nil) }()
	c.Give(5)
	if n := <-got; n != 5 {
		t.Errorf("took %d, want 5", n)
	}
	done := make(chan struct{})
	go func() { got <- c.Take(100, done) }()
	close(done)
	if n := <-got; n != 0 {
		t.Errorf("took %d after done", n)
	}
	go func() { got <- c.Take(100, nil) }()
	c.End()
	if n := <-got; n != 0 {
		t.Errorf("took %d after the end", n)
	}
}

// peer is a scripted init.
type peer struct {
	t    *testing.T
	conn net.Conn
}

func pair(t *testing.T, clock proc.Clock, hello bool) (*Client, *peer) {
	t.Helper()
	ours, theirs := net.Pipe()
	c := NewClientClock(ours, clock)
	p := &peer{t, theirs}
	t.Cleanup(func() { theirs.Close(); c.Close() })
	if hello {
		f, _ := JSON(TypeHello, 0, Hello{Version})
		p.send(f)
	}
	return c, p
}

func (p *peer) send(f Frame) {
	p.t.Helper()
	if _, err := p.conn.Write(f.Append(nil)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) receive(want Type) Frame {
	p.t.Helper()
	f, err := ReadFrame(p.conn)
	if err != nil || f.Type != want {
		p.t.Fatalf("got %+v %v, want type %d", f, err, want)
	}
	return f
}

type outcome struct {
	exit Exit
	err  error
}

func run(ctx context.Context, c *Client, e Exec) <-chan outcome {
	ch := make(chan outcome, 1)
	go func() {
		x, err := c.Run(ctx, e)
		ch <- outcome{x, err}
	}()
	return ch
}

func exited(id uint32, code int) Frame {
	f, _ := JSON(TypeExit, id, Exited{Code: code})
	return f
}

func TestRunAgainstAPeer(t *testing.T) {
	c, p := pair(t, proc.System(), true)
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	done := run(t.Context(), c, Exec{Argv: []string{"x", "y"}, Env: []string{"A=b"}, Dir: "/d", Stdin: strings.NewReader("in"), Stdout: &out, Stderr: &errs})
	f := p.receive(TypeStart)
	var st Start
	if err := json.Unmarshal(f.Payload, &st); err != nil || st.Argv[1] != "y" || st.Env[0] != "A=b" || st.Dir != "/d" || !st.Stdin {
		t.Errorf("start %+v %v", st, err)
	}
	if got := p.receive(TypeStdin); string(got.Payload) != "in" || got.ID != f.ID {
		t.Errorf("stdin %+v", got)
	}
	p.receive(TypeStdinEnd)
	p.send(Frame{TypeStdout, f.ID, []byte("out")})
	if got := p.receive(TypeCredit); !bytes.Equal(got.Payload, []byte{1, 0, 0, 0, 3}) {
		t.Errorf("credit %v", got.Payload)
	}
	p.send(Frame{TypeStderr, f.ID, []byte("er")})
	p.receive(TypeCredit)
	p.send(exited(f.ID, 3))
	if o := <-done; o.err != nil || o.exit.Code != 3 || out.String() != "out" || errs.String() != "er" {
		t.Errorf("%+v %q %q", o, &out, &errs)
	}
}

func TestAPeerThatBreaksTheProtocol(t *testing.T) {
	overrun := func(p *peer, id uint32) {
		for range Window/MaxData + 1 {
			if _, err := p.conn.Write(Frame{TypeStdout, id, make([]byte, MaxData)}.Append(nil)); err != nil {
				return // refused, as it should be
			}
		}
	}
	for name, do := range map[string]func(p *peer, id uint32){
		"another's exit":    func(p *peer, id uint32) { p.send(exited(id+1, 0)) },
		"a client's frame":  func(p *peer, id uint32) { p.send(Frame{TypeSignal, id, []byte{9}}) },
		"an unreadable end": func(p *peer, id uint32) { p.send(Frame{TypeExit, id, []byte("{")}) },
		"a second end":      func(p *peer, id uint32) { p.send(exited(id, 0)); p.send(exited(id, 0)) },
		"too much credit":   func(p *peer, id uint32) { p.send(StdinCreditFrame(id, 1<<30)) },
		"too much output":   overrun,
		"a second hello":    func(p *peer, id uint32) { f, _ := JSON(TypeHello, 0, Hello{Version}); p.send(f) },
	} {
		t.Run(name, func(t *testing.T) {
			c, p := pair(t, proc.System(), true)
			release := make(chan struct{})
			done := run(t.Context(), c, Exec{Argv: []string{"x"}, Stdout: writerFunc(func(b []byte) (int, error) { <-release; return len(b), nil })})
			f := p.receive(TypeStart)
			go func() { _, _ = io.Copy(io.Discard, p.conn) }()
			do(p, f.ID)
			<-c.Done()
			close(release)
			if !errors.Is(c.Err(), ErrEnded) || !errors.Is(c.Err(), ErrProtocol) {
				t.Errorf("the stream's end: %v", c.Err())
			}
			if o := <-done; o.err != nil && !errors.Is(o.err, ErrEnded) {
				t.Errorf("the command's end: %+v", o)
			}
		})
	}
	t.Run("another version", func(t *testing.T) {
		c, p := pair(t, proc.System(), false)
		f, _ := JSON(TypeHello, 0, Hello{Version + 1})
		p.send(f)
		<-c.Done()
		if err := c.Ready(t.Context()); !errors.Is(err, ErrProtocol) {
			t.Errorf("%v", err)
		}
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestAnUnresponsivePeer(t *testing.T) {
	clock := proc.NewFake(time.Unix(0, 0))
	c, p := pair(t, clock, true)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := run(ctx, c, Exec{Argv: []string{"x"}})
	f := p.receive(TypeStart)
	cancel(why)
	if got := p.receive(TypeSignal); got.Payload[0] != byte(syscall.SIGTERM) {
		t.Errorf("signal %v", got.Payload)
	}
	if err := clock.BlockUntil(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	clock.Advance(Grace)
	p.receive(TypeDiscard)
	if got := p.receive(TypeSignal); got.Payload[0] != byte(syscall.SIGKILL) {
		t.Errorf("signal %v", got.Payload)
	}
	clock.Advance(unresponsiveAfter)
	if o := <-done; !errors.Is(o.err, why) || !errors.Is(o.err, ErrUnresponsive) {
		t.Errorf("%+v", o)
	}
	// A late word of that command hurts no one.
	p.send(Frame{TypeStdout, f.ID, []byte("late")})
	p.send(exited(f.ID, 0))
	again := run(t.Context(), c, Exec{Argv: []string{"y"}})
	f = p.receive(TypeStart)
	p.send(exited(f.ID, 0))
	if o := <-again; o.err != nil {
		t.Errorf("the next command: %v", o.err)
	}
}

func TestAPeerThatReadsNothing(t *testing.T) {
	c, _ := pair(t, proc.System(), true)
	ctx, cancel := context.WithCancel(t.Context())
	var all []<-chan outcome
	for range 40 { // more than the queue to the writer holds
		all = append(all, run(ctx, c, Exec{Argv: []string{"x"}, Grace: -1}))
	}
	cancel()
	_ = c.Close()
	for _, ch := range all {
		if o := <-ch; o.err == nil {
			t.Error("a command that never ran has succeeded")
		}
	}
}

func TestAWriterThatFails(t *testing.T) {
	c, p := pair(t, proc.System(), true)
	bad := errors.New("disk full")
	done := run(t.Context(), c, Exec{Argv: []string{"x"}, Stdout: writerFunc(func([]byte) (int, error) { return 0, bad })})
	f := p.receive(TypeStart)
	for range 2 { // the command goes on
		p.send(Frame{TypeStdout, f.ID, []byte("out")})
		p.receive(TypeCredit)
	}
	p.send(exited(f.ID, 5))
	if o := <-done; !errors.Is(o.err, bad) || o.exit.Code != 5 {
		t.Errorf("%+v", o)
	}
}

func TestTheEndOfTheStream(t *testing.T) {
	c, p := pair(t, proc.System(), true)
	done := run(t.Context(), c, Exec{Argv: []string{"x"}})
	p.receive(TypeStart)
	p.conn.Close()
	if o := <-done; !errors.Is(o.err, ErrEnded) || errors.Is(o.err, ErrProtocol) {
		t.Errorf("%+v", o)
	}
	if _, err := c.Run(t.Context(), Exec{Argv: []string{"x"}}); !errors.Is(err, ErrEnded) {
		t.Errorf("afterwards: %v", err)
	}
	if err := c.Ready(t.Context()); err != nil && !errors.Is(err, ErrEnded) {
		t.Errorf("ready: %v", err)
	}
}

func TestPairIsALifeline(t *testing.T) {
	ours, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(ours)
	theirs.Close()
	<-c.Done()
	if !errors.Is(c.Err(), ErrEnded) {
		t.Error(c.Err())
	}
	_ = c.Close()
	_ = c.Close()
}
