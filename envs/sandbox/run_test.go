package sandbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"inspect/envs/sandbox/stream"
)

func TestExitAndSignals(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, nil)
		for script, want := range map[string]stream.Exit{
			"exit 0":          {Code: 0},
			"exit 42":         {Code: 42},
			"kill -SEGV $$":   {Code: 139, Signal: "SIGSEGV"},
			"kill -9 $$":      {Code: 137, Signal: "SIGKILL"},
			"ulimit -t 1; :;": {Code: 0},
		} {
			if r := b.sh(t, script); r.Code != want.Code || r.Signal != want.Signal {
				t.Errorf("%s: %+v, want %+v", script, r.Exit, want)
			}
		}
		r := b.sh(t, "head -c 30000000 /dev/zero | tail -n 1 > /dev/null")
		if r.MaxRSS < 20<<20 || r.Duration <= 0 || r.CPU <= 0 {
			t.Errorf("usage: %+v", r.Exit)
		}
	})
}

func TestWhatCannotBeStarted(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, nil)
		if err := os.WriteFile(filepath.Join(b.work, "plain"), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			e     stream.Exec
			words string
		}{
			{stream.Exec{Argv: []string{"no-such-program"}}, "no-such-program: program not found"},
			{stream.Exec{Argv: []string{"/no/such"}}, "program not found"},
			{stream.Exec{Argv: []string{"/workspace/plain"}}, "not executable"},
			{stream.Exec{Argv: []string{"true"}, Dir: "/no/such"}, "there is no directory /no/such"},
			{stream.Exec{Argv: []string{"true"}, Env: []string{"PATH=/nowhere"}}, "not found"},
			{stream.Exec{}, "no program was named"},
			{stream.Exec{Argv: []string{"true", strings.Repeat("x", 2<<20)}}, "too long"},
			{stream.Exec{Argv: []string{"true", strings.Repeat("x", 200<<10)}}, "too long"}, // more than Linux takes
		} {
			_, err := b.Run(deadline(t), c.e)
			var failed *stream.StartError
			if !errors.As(err, &failed) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("%.60v: error %v, want %q", c.e.Argv, err, c.words)
			}
		}
		if b.must(t, "echo alive") != "alive\n" {
			t.Error("the init does not serve any more")
		}
	})
}

func TestStreamsCarryEverything(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, nil)
		const size = 3 << 20
		in := make([]byte, size)
		src := rand.NewChaCha8([32]byte{1})
		_, _ = src.Read(in)
		sum := fmt.Sprintf("%x", sha256.Sum256(in))

		var out, errs bytes.Buffer
		x, err := b.Run(deadline(t), stream.Exec{
			Argv: []string{"sh", "-c", "tee /dev/stderr"}, Stdin: bytes.NewReader(in), Stdout: &out, Stderr: &errs,
		})
		if err != nil || x.Code != 0 {
			t.Fatal(x, err)
		}
		for name, got := range map[string]*bytes.Buffer{"stdout": &out, "stderr": &errs} {
			if h := fmt.Sprintf("%x", sha256.Sum256(got.Bytes())); h != sum {
				t.Errorf("%s: %d bytes, other ones than went in", name, got.Len())
			}
		}
		// The last words of a command that ends at once arrive, however often.
		for range 50 {
			if got := b.must(t, "echo last words"); got != "last words\n" {
				t.Fatalf("%q", got)
			}
		}
		// What it wrote just before its end is all there, though no one read yet.
		if r := b.sh(t, "head -c 65536 /dev/zero"); len(r.out) != 65536 {
			t.Errorf("%d bytes of a full pipe", len(r.out))
		}
		// No input is an empty one, and an unread one holds nothing up.
		if r := b.exec(t, stream.Exec{Argv: []string{"wc", "-c"}}); r.out != "0\n" {
			t.Errorf("no input: %q", r.out)
		}
		if r := b.exec(t, stream.Exec{Argv: []string{"true"}, Stdin: endless{}}); r.Code != 0 {
			t.Errorf("unread input: %+v", r)
		}
		if r := b.exec(t, stream.Exec{Argv: []string{"head", "-c", "1000000"}, Stdin: endless{}}); len(r.out) != 1_000_000 {
			t.Errorf("input without an end: %d bytes", len(r.out))
		}
		var both bytes.Buffer
		b.exec(t, stream.Exec{Argv: []string{"sh", "-c", "echo one; echo two >&2"}, Stdout: &both, Stderr: &both})
		if both.Len() != len("one\ntwo\n") {
			t.Errorf("one writer for both: %q", &both)
		}
	})
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// blocked is a writer that takes nothing until it is let go.
type blockedWriter struct{ begun, release chan struct{} }

func (w *blockedWriter) Write(b []byte) (int, error) {
	select {
	case w.begun <- struct{}{}:
	default:
	}
	<-w.release
	return len(b), nil
}

func TestANoisyCommandHoldsUpNobody(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, nil)
		ctx, cancel := context.WithCancel(deadline(t))
		defer cancel()
		w := &blockedWriter{make(chan struct{}, 1), make(chan struct{})}
		var noisy []*stream.Command
		for range 4 {
			cmd, err := b.Client.Start(ctx, stream.Exec{Argv: []string{"yes"}, Stdout: w, Stderr: io.Discard, Grace: -1})
			if err != nil {
				t.Fatal(err)
			}
			noisy = append(noisy, cmd)
		}
		loud, err := b.Client.Start(ctx, stream.Exec{Argv: []string{"yes"}, Stdout: io.Discard, Grace: -1})
		if err != nil {
			t.Fatal(err)
		}
		noisy = append(noisy, loud)
		<-w.begun
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				var out bytes.Buffer
				x, err := b.Run(deadline(t), stream.Exec{Argv: []string{"echo", fmt.Sprint(i)}, Stdout: &out})
				if err != nil || x.Code != 0 || out.String() != fmt.Sprintf("%d\n", i) {
					t.Errorf("%d: %q %+v %v", i, &out, x, err)
				}
			})
		}
		wg.Wait()
		cancel()
		// The blocked ones have ended inside, though their reader still sleeps.
		for b.must(t, "cat /proc/[0-9]*/comm | grep -c yes || true") != "0\n" {
			if deadline(t).Err() != nil {
				t.Fatal("a noisy command outlives its context")
			}
		}
		close(w.release)
		for _, cmd := range noisy {
			if _, err := cmd.Wait(); !errors.Is(err, context.Canceled) || errors.Is(err, stream.ErrUnresponsive) {
				t.Errorf("%v", err)
			}
		}
	})
}

func TestContextEndsACommand(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, nil)
		for _, c := range []struct {
			name, script string
			grace        time.Duration
			code         int
		}{
			{"obeys", "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 1000 & wait $!; done", 0, 3},
			{"its children too", "sh -c 'trap \"\" TERM; sleep 1000' & trap 'exit 4' TERM; echo up; wait", 0, 4},
			{"stubborn", "trap '' TERM; echo up; while :; do sleep 1; done", 100 * time.Millisecond, 137},
			{"at once", "trap 'exit 5' TERM; echo up; while :; do sleep 1000 & wait; done", -1, 137},
		} {
			t.Run(c.name, func(t *testing.T) {
				why := errors.New("enough")
				ctx, cancel := context.WithCancelCause(deadline(t))
				w := newWatcher("up")
				go func() { <-w.seen; cancel(why) }()
				x, err := b.Run(ctx, stream.Exec{Argv: []string{"sh", "-c", c.script}, Stdout: w, Grace: c.grace})
				if !errors.Is(err, why) || x.Code != c.code {
					t.Errorf("%+v %v, want status %d", x, err, c.code)
				}
				ctx = deadline(t)
				for b.must(t, "cat /proc/[0-9]*/comm | grep -c sleep || true") != "0\n" { // it may not be reaped yet
					if ctx.Err() != nil {
						t.Fatal("processes of its group are left")
					}
				}
			})
		}
	})
}

func TestSignal(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, nil)
		w := newWatcher("up", "got it")
		cmd, err := b.Client.Start(deadline(t), stream.Exec{
			Argv: []string{"sh", "-c", "trap 'exit 6' USR1; echo up; while :; do sleep 1000 & wait $!; done"}, Stdout: w,
		})
		if err != nil {
			t.Fatal(err)
		}
		<-w.seen
		if err := cmd.Signal(syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		if x, err := cmd.Wait(); err != nil || x.Code != 6 {
			t.Errorf("%+v %v", x, err)
		}
		if err := cmd.Signal(syscall.SIGUSR1); err != nil {
			t.Errorf("after its end: %v", err)
		}
	})
}

// The end of a command is the end of its group; only who left it stays.
func TestTheGroupEndsWithItsLeader(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, nil)
		begun := time.Now()
		r := b.sh(t, "sleep 1000 & "+leaveGroup+"echo done")
		if r.out != "done\n" || time.Since(begun) > patience(20*time.Second) {
			t.Errorf("%q after %s", r.out, time.Since(begun))
		}
		ctx := deadline(t)
		for b.must(t, "cat /proc/[0-9]*/comm | grep -c sleep") != "1\n" { // grep counts the one that left
			if ctx.Err() != nil {
				t.Fatal("the group lives on")
			}
		}
	})
}

func TestRlimits(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, nil)
		sh := func(l stream.Rlimits, script string) result {
			return b.exec(t, stream.Exec{Argv: []string{"sh", "-c", script}, Rlimits: l})
		}
		r := sh(stream.Rlimits{CPUSeconds: 5, AddressSpace: 300 << 20, FileSize: 1 << 20, OpenFiles: 33},
			"ulimit -t; ulimit -v; ulimit -f; ulimit -n; ulimit -H -v; ulimit -c; echo $0 $HOME")
		if want := "5\n307200\n2048\n33\n307200\n0\nsh /home/agent\n"; r.out != want {
			t.Errorf("limits %q, want %q (%s)", r.out, want, r.err)
		}
		if r := sh(stream.Rlimits{CPUSeconds: 1}, "while :; do :; done"); r.Signal != "SIGKILL" && r.Signal != "SIGXCPU" {
			t.Errorf("a second of CPU: %+v", r.Exit)
		}
		if r := sh(stream.Rlimits{AddressSpace: 64 << 20}, "head -c 200000000 /dev/zero | tail -n 1 | wc -c"); r.out == "200000000\n" {
			t.Errorf("64 MiB of address space: %+v", r)
		}
		if r := sh(stream.Rlimits{FileSize: 1000}, "head -c 5000 /dev/zero > f; stat -c %s f"); !strings.Contains(r.out, "1000") {
			t.Errorf("file size: %+v", r)
		}
		if r := b.sh(t, "ulimit -v; ulimit -t"); r.out != "unlimited\nunlimited\n" {
			t.Errorf("a command without limits has %q", r.out)
		}
		_, err := b.Run(deadline(t), stream.Exec{Argv: []string{"no-such"}, Rlimits: stream.Rlimits{CPUSeconds: 1}})
		var failed *stream.StartError
		if !errors.As(err, &failed) {
			t.Errorf("a program that is not there, with limits: %v", err)
		}
	})
}

func TestManyAtOnce(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, func(s *Spec) { s.Limits.Pids = 400 })
		hold, err := b.Client.Start(deadline(t), stream.Exec{Argv: []string{"sleep", "1000"}})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				var out bytes.Buffer
				x, err := b.Run(deadline(t), stream.Exec{Argv: []string{"cat"}, Stdin: strings.NewReader(fmt.Sprint(i)), Stdout: &out})
				if err != nil || x.Code != 0 || out.String() != fmt.Sprint(i) {
					t.Errorf("%d: %q %+v %v", i, &out, x, err)
				}
			})
		}
		wg.Wait()
		_ = b.Client.Close()
		if _, err := hold.Wait(); !errors.Is(err, stream.ErrEnded) {
			t.Errorf("a command of an ended sandbox: %v", err)
		}
	})
}

// A peer that breaks the protocol ends its own sandbox and nothing else.
func TestInitRefusesNonsense(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		for name, bytes := range map[string][]byte{
			"a length":        {0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0},
			"a type":          {0, 0, 0, 5, 99, 0, 0, 0, 0},
			"no JSON":         stream.Frame{Type: stream.TypeStart, ID: 1, Payload: []byte("{")}.Append(nil),
			"an init's frame": append(startFrame(1, "sleep", "9"), stream.Frame{Type: stream.TypeExit, ID: 1}.Append(nil)...),
			"a number twice":  append(startFrame(1, "sleep", "9"), startFrame(1, "sleep", "9")...),
			"too much credit": append(startFrame(1, "sleep", "9"), stream.CreditFrame(1, 1, 1<<30).Append(nil)...),
			"credit nowhere":  append(startFrame(1, "sleep", "9"), stream.CreditFrame(1, 9, 1).Append(nil)...),
			"too much input":  flood(),
		} {
			t.Run(name, func(t *testing.T) {
				ours, theirs, err := stream.Pair()
				if err != nil {
					t.Fatal(err)
				}
				defer ours.Close()
				sb, err := theLauncher(t).Start(deadline(t), testSpec(t, shared(t), theirs))
				if err != nil {
					t.Fatal(err)
				}
				_, _ = ours.Write(bytes)
				if end := sb.Wait(); end.ExitCode != 125 || !strings.Contains(sb.Words(), "does not keep to its protocol") {
					t.Errorf("%+v %q", end, sb.Words())
				}
			})
		}
	})
}

// A command that is full to the brim of output nobody takes still ends, once
// the client says that nobody will.
func TestDiscard(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		ours, theirs, err := stream.Pair()
		if err != nil {
			t.Fatal(err)
		}
		sb, err := theLauncher(t).Start(deadline(t), testSpec(t, shared(t), theirs))
		if err != nil {
			ours.Close()
			t.Fatal(err)
		}
		defer sb.Wait()
		defer ours.Close()
		_ = ours.SetDeadline(time.Now().Add(patience(30 * time.Second)))
		send := func(b []byte) {
			t.Helper()
			if _, err := ours.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		send(startFrame(1, "yes"))
		for got := 0; got < stream.Window; {
			f, err := stream.ReadFrame(ours)
			if err != nil {
				t.Fatal(err)
			}
			if f.Type == stream.TypeStdout {
				got += len(f.Payload)
			}
		}
		send(stream.Frame{Type: stream.TypeSignal, ID: 1, Payload: []byte{9}}.Append(nil))
		send(startFrame(2, "true")) // ends later, but nothing holds its end up
		if f, err := stream.ReadFrame(ours); err != nil || f.Type != stream.TypeExit || f.ID != 2 {
			t.Fatalf("%+v %v, want the second command's end", f, err)
		}
		send(stream.Frame{Type: stream.TypeDiscard, ID: 1}.Append(nil))
		if f, err := stream.ReadFrame(ours); err != nil || f.Type != stream.TypeExit || f.ID != 1 {
			t.Fatalf("%+v %v, want the first command's end", f, err)
		}
	})
}

func startFrame(id uint32, argv ...string) []byte {
	f, err := stream.JSON(stream.TypeStart, id, stream.Start{Argv: argv, Stdin: true})
	if err != nil {
		panic(err)
	}
	return f.Append(nil)
}

func flood() []byte {
	b := startFrame(1, "sleep", "9")
	for range 2 + stream.Window/stream.MaxData + (1<<20)/stream.MaxData {
		b = stream.Frame{Type: stream.TypeStdin, ID: 1, Payload: make([]byte, stream.MaxData)}.Append(b)
	}
	return b
}
