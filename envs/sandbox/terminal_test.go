package sandbox

import (
	"bufio"
	"io"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"inspect/envs/sandbox/stream"
)

// screen is what a terminal shows, line by line.
type screen struct {
	t *testing.T
	r *bufio.Reader
}

// await reads until a line that matches, and returns it.
func (s *screen) await(pattern string) string {
	s.t.Helper()
	seen := ""
	for {
		line, err := s.r.ReadString('\n')
		seen += line
		if line = strings.TrimRight(line, "\r\n"); regexp.MustCompile(pattern).MatchString(line) {
			return line
		}
		if err != nil {
			s.t.Fatalf("no line is %q: %v\n%s", pattern, err, seen)
		}
	}
}

// A command can be given a terminal: it is its controlling one, is typed at,
// changes its size, passes Ctrl-C on and ends with Ctrl-D.
func TestTerminal(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, nil)
		shown, screenEnd := io.Pipe()
		keysEnd, keys := io.Pipe()
		cmd, err := b.Client.Start(deadline(t), stream.Exec{
			Argv: []string{"sh", "-i"}, Env: []string{"PS1=", "TERM=dumb"}, Stdin: keysEnd, Stdout: screenEnd, TTY: &stream.Size{Rows: 30, Cols: 100},
		})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan stream.Exit, 1)
		go func() {
			exit, err := cmd.Wait()
			if err != nil {
				t.Error(err)
			}
			screenEnd.Close()
			ended <- exit
		}()
		s := &screen{t, bufio.NewReader(shown)}
		typed := func(line string) {
			t.Helper()
			if _, err := io.WriteString(keys, line); err != nil {
				t.Fatal(err)
			}
		}
		// Only its echo has the words apart.
		typed("stty -echo; tty; echo 'size' 'is' $(stty size); test -t 2 && echo 'error' 'too'\n")
		s.await(`^/dev/pts/[0-9]+$`)
		s.await(`^size is 30 100$`)
		s.await(`^error too$`)
		if err := cmd.Resize(stream.Size{Rows: 50, Cols: 200}); err != nil {
			t.Fatal(err)
		}
		typed("echo size is $(stty size)\n")
		s.await(`^size is 50 200$`)
		// Job control: what is typed as Ctrl-C ends the program, not the shell. (One
		// that is just being executed may miss it in gVisor: it waits first.)
		typed("trap 'echo shell goes on' INT; sh -c 'sleep 600 & echo waiting; wait'; echo status $?\n")
		s.await(`^waiting$`)
		typed("\x03")
		s.await(`status 130$`)
		typed("echo to the terminal >/dev/tty; exit 7\n")
		s.await(`^to the terminal$`)
		go func() { _, _ = io.Copy(io.Discard, s.r) }()
		if exit := <-ended; exit.Code != 7 {
			t.Errorf("%+v", exit)
		}
		keys.Close()

		// The end of the input is typed, and a command without one has none.
		var out strings.Builder
		exit, err := b.Client.Run(deadline(t), stream.Exec{Argv: []string{"sh", "-c", "cat; stty size; exit 3"}, Stdin: strings.NewReader("words\n"), Stdout: &out, TTY: &stream.Size{Rows: 1, Cols: 2}})
		if err != nil || exit.Code != 3 || !strings.Contains(out.String(), "words\r\n") || !strings.Contains(out.String(), "1 2\r\n") {
			t.Errorf("%+v, %v: %q", exit, err, out.String())
		}
		// Who does not listen ends with the signal all the same.
		sleeps, err := b.Client.Start(deadline(t), stream.Exec{Argv: []string{"sleep", "600"}, TTY: &stream.Size{Rows: 1, Cols: 1}})
		if err != nil {
			t.Fatal(err)
		}
		if err := sleeps.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if exit, err := sleeps.Wait(); err != nil || exit.Signal != "SIGKILL" {
			t.Errorf("%+v, %v", exit, err)
		}
		// A command without a terminal has none, and none to change.
		plain, err := b.Client.Start(deadline(t), stream.Exec{Argv: []string{"sh", "-c", "tty; : </dev/tty"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := plain.Resize(stream.Size{Rows: 9, Cols: 9}); err != nil {
			t.Error(err)
		}
		if exit, err := plain.Wait(); err != nil || exit.Code == 0 {
			t.Errorf("%+v, %v", exit, err)
		}
	})
}
