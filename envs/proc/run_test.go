package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func sh(script string) Command { return Command{Argv: []string{"sh", "-c", script}} }

func TestRunKeepsOutputAndStatus(t *testing.T) {
	res, err := Run(t.Context(), sh("echo out; echo first >&2; echo why >&2; exit 3"))
	var exit *ExitError
	if !errors.As(err, &exit) || res.Code != 3 || res.Signal != "" {
		t.Fatalf("got %+v, %v; want status 3", res, err)
	}
	if want := "sh ended with status 3: why"; err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	if string(res.Stdout) != "out\n" || string(res.Stderr) != "first\nwhy\n" {
		t.Errorf("stdout %q, stderr %q", res.Stdout, res.Stderr)
	}
}

func TestRunInheritsNothing(t *testing.T) {
	t.Setenv("CANARY", "secret")
	for _, env := range [][]string{nil, {}} {
		c := Command{Argv: []string{"/usr/bin/env"}, Env: env}
		res, err := Run(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(res.Stdout, []byte("CANARY")) {
			t.Errorf("Env %v: the caller's environment was inherited", env)
		}
	}
}

func TestRunBoundsOutput(t *testing.T) {
	c := sh("head -c 100000 /dev/zero | tr '\\0' a; echo END; head -c 100000 /dev/zero | tr '\\0' b >&2; echo END >&2")
	c.Limit = 1000
	res, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if string(res.Stdout) != strings.Repeat("a", 1000) {
		t.Errorf("stdout is not the first 1000 bytes")
	}
	if string(res.Stderr) != strings.Repeat("b", 996)+"END\n" {
		t.Errorf("stderr is not the last 1000 bytes: %d", len(res.Stderr))
	}
	if !res.Truncated {
		t.Error("Truncated is not set")
	}

	var one bytes.Buffer
	c.Stdout, c.Stderr = &one, &one
	if _, err := Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if one.Len() != 1000 {
		t.Errorf("%d bytes were passed to a shared writer, want 1000", one.Len())
	}
}

func TestRunKillsTheGroup(t *testing.T) {
	left := filepath.Join(t.TempDir(), "left")
	// The grandchild holds the output pipe: Run must not wait for its minute.
	_, err := Run(t.Context(), sh("sleep 60 & echo $! > "+left+"; exit 0"))
	if err != nil {
		t.Fatal(err)
	}
	assertGone(t, left)
}

func TestRunContextEnd(t *testing.T) {
	dir := t.TempDir()
	ready := filepath.Join(dir, "ready")
	why := errors.New("the session was stopped")
	for _, tc := range []struct {
		name, script string
		grace        time.Duration
		code         int
	}{
		{"at once", "trap '' TERM; echo $$ > %s; sleep 60 & wait", 0, 137},
		{"obeys SIGTERM", "trap 'exit 7' TERM; echo $$ > %s; sleep 60 & wait", time.Hour, 7},
	} {
		t.Run(tc.name, func(t *testing.T) {
			os.Remove(ready)
			if err := syscall.Mkfifo(ready, 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				_, _ = os.ReadFile(ready) // returns when the script has written
				cancel(why)
			}()
			c := sh(fmt.Sprintf(tc.script, ready))
			c.Grace = tc.grace
			res, err := Run(ctx, c)
			if !errors.Is(err, why) {
				t.Errorf("error %v, want the context's cause", err)
			}
			if res.Code != tc.code {
				t.Errorf("status %d, want %d", res.Code, tc.code)
			}
		})
	}
	t.Run("stubborn after the grace", func(t *testing.T) {
		os.Remove(ready)
		if err := syscall.Mkfifo(ready, 0o600); err != nil {
			t.Fatal(err)
		}
		clock := NewFake(time.Unix(0, 0))
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			_, _ = os.ReadFile(ready)
			cancel(why)
			if clock.BlockUntil(t.Context(), 1) == nil {
				clock.Advance(5 * time.Second)
			}
		}()
		c := sh("trap '' TERM; echo x > " + ready + "; while :; do sleep 1; done")
		c.Grace, c.Clock = 5*time.Second, clock
		res, err := Run(ctx, c)
		if !errors.Is(err, why) || res.Signal != "SIGKILL" {
			t.Errorf("got %+v, %v; want SIGKILL", res, err)
		}
	})
}

func TestRunNotFound(t *testing.T) {
	for _, c := range []Command{
		{Argv: []string{"no-such-program-here"}},
		{Argv: []string{"/no/such/program"}},
		{Argv: []string{"sh"}, Env: []string{"PATH=."}},
	} {
		if _, err := Run(t.Context(), c); !errors.Is(err, ErrNotFound) {
			t.Errorf("%v: error %v, want ErrNotFound", c.Argv, err)
		}
	}
	if _, err := Run(t.Context(), Command{}); err == nil {
		t.Error("a command without a program was accepted")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, sh("exit 0")); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

func TestRunCredentialAndStdin(t *testing.T) {
	if os.Getuid() != 0 {
		// An ordinary user can only become itself.
		res, err := Run(t.Context(), Command{Argv: []string{"id", "-u"}})
		if err != nil || strings.TrimSpace(string(res.Stdout)) != strconv.Itoa(os.Getuid()) {
			t.Fatalf("got %q, %v", res.Stdout, err)
		}
		return
	}
	c := sh("id -u; id -G; cat")
	c.Credential = &Credential{UID: 61234, GID: 61235}
	c.Stdin = strings.NewReader("from stdin")
	c.Dir = "/"
	res, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if want := "61234\n61235\nfrom stdin"; string(res.Stdout) != want {
		t.Errorf("got %q, want %q", res.Stdout, want)
	}
}

func assertGone(t *testing.T, pidFile string) {
	t.Helper()
	b, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	// The kernel tells the end of a process on its descriptor.
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const most = 10_000 // milliseconds
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, most)
		if err == unix.EINTR {
			continue
		}
		if n != 1 {
			t.Errorf("process %d of the group lives on (%v)", pid, err)
		}
		return
	}
}

func ExampleRun() {
	res, err := Run(context.Background(), Command{Argv: []string{"echo", "hello"}})
	fmt.Printf("%q %v\n", res.Stdout, err)
	// Output: "hello\n" <nil>
}
