package zfs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/proc"
	"inspect/envs/snapshot"
	"inspect/envs/snapshot/zfs"
)

// The tests run on a real pool in a file, with a zfs-fuse daemon of their own
// in a mount namespace of their own; with INSPECT_TEST_OPENZFS set on the
// OpenZFS of the kernel.
const (
	insideEnv  = "INSPECT_TEST_ZFS_INSIDE"
	childEnv   = "INSPECT_TEST_ZFS_CHILD"
	openZFSEnv = "INSPECT_TEST_OPENZFS"
)

const (
	poolName  = "inspecttest"
	poolBytes = 4 << 30
)

// world is where the tests run.
var world struct {
	dir    string // of this run
	daemon *exec.Cmd
	ended  chan struct{} // closed when the daemon has
	roots  atomic.Int64
}

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(childEnv) != "":
		os.Exit(child())
	case os.Geteuid() != 0:
		fmt.Println("pools need root: nothing is tested")
		os.Exit(0)
	case os.Getenv(insideEnv) == "":
		os.Exit(again())
	}
	os.Exit(inside(m))
}

// again runs this program in a mount namespace of its own.
func again() int {
	args := os.Args[1:]
	if os.Getenv(openZFSEnv) == "" {
		args = append(args, "-test.timeout=20m") // with words, before whoever waits for all tests gives up
	}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	err := cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func inside(m *testing.M) int {
	err := func() (err error) {
		world.dir, err = os.MkdirTemp("", "inspect-zfs-test")
		if err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if os.Getenv(openZFSEnv) == "" {
			// A pool in memory: what these tests wait for is not the disk. The
			// kernel would not find it, since it does not know this namespace.
			if err := unix.Mount("tmpfs", world.dir, "tmpfs", 0, "size=6g"); err != nil {
				return err
			}
			for _, d := range []string{"/run/zfs", "/run/lock/zfs", "/var/lib/zfs"} {
				if err := os.MkdirAll(d, 0o755); err != nil {
					return err
				}
				if err := unix.Mount("tmpfs", d, "tmpfs", 0, ""); err != nil {
					return err
				}
			}
			if err := startDaemon(); err != nil {
				return err
			}
		}
		return makePool(poolName, filepath.Join(world.dir, "pool"), poolBytes)
	}()
	if err != nil {
		fmt.Fprintf(os.Stderr, "no ZFS to test on (apt-get install zfs-fuse): %v\n", err)
		return 1
	}
	code := m.Run()
	if _, err := try("zpool", "destroy", "-f", poolName); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	stopDaemon()
	_ = unix.Unmount(world.dir, unix.MNT_DETACH)
	if err := os.RemoveAll(world.dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

func makePool(name, file string, bytes int64) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(bytes), f.Close()); err != nil {
		return err
	}
	_, err = try("zpool", "create", "-m", "none", "-O", "canmount=off", name, file)
	return err
}

// startDaemon starts zfs-fuse and returns when it answers.
func startDaemon() error {
	cmd := exec.Command("zfs-fuse", "--no-daemon", "--no-kstat-mount")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	world.ended = make(chan struct{})
	go func() {
		// The signal comes when this thread ends, which is with this goroutine.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(world.ended)
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	world.daemon = cmd
	deadline := time.Now().Add(20 * time.Second)
	for {
		_, err := try("zfs", "list")
		if err == nil || strings.Contains(err.Error(), "no datasets available") {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("zfs-fuse does not answer: %w", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// stopDaemon kills the daemon, as a crash would.
func stopDaemon() {
	if world.daemon != nil {
		_ = world.daemon.Process.Kill()
		<-world.ended
		world.daemon = nil
	}
}

func try(argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	res, err := proc.Run(ctx, proc.Command{Argv: argv, Env: []string{"PATH=" + proc.DefaultPath, "LC_ALL=C"}})
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	return strings.TrimSuffix(string(res.Stdout), "\n"), nil
}

// run runs zfs, zpool or another program; the test ends if it fails.
func run(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := try(argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// place is a root dataset and a directory for mounts.
type place struct{ dataset, mounts string }

// newPlace is a place that nothing else has.
func newPlace(t testing.TB) place {
	t.Helper()
	n := strconv.FormatInt(world.roots.Add(1), 10)
	p := place{poolName + "/r" + n, filepath.Join(world.dir, "m"+n)}
	t.Cleanup(func() { p.clear(t) })
	return p
}

// clear destroys everything at the place; what a test leaves mounted or held
// must not stop the next.
func (p place) clear(t testing.TB) {
	for _, m := range mounts(t, p.mounts) {
		_ = unmount(t, m.path, unix.MNT_DETACH)
	}
	if _, err := try("zfs", "get", "type", p.dataset); err != nil {
		return
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		_, err := try("zfs", "destroy", "-R", p.dataset)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("clear: %v", err)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (p place) open(t testing.TB, owner string) *zfs.Store {
	t.Helper()
	return p.openWith(t, zfs.Options{Owner: owner})
}

func (p place) openWith(t testing.TB, o zfs.Options) *zfs.Store {
	t.Helper()
	o.Dataset, o.Mounts = p.dataset, p.mounts
	s, err := zfs.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// unmount unmounts, when zfs-fuse has answered everything: it would answer
// nothing more after that.
func unmount(t testing.TB, path string, flags int) error {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for err := zfs.Answered(path); err != nil; err = zfs.Answered(path) {
		if time.Now().After(deadline) {
			t.Error(err)
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return unix.Unmount(path, flags)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

type mounted struct{ path, source string }

// mounts are those below dir.
func mounts(t testing.TB, dir string) (all []mounted) {
	t.Helper()
	body, err := os.ReadFile("/proc/self/mounts")
	must(t, err)
	for line := range strings.Lines(string(body)) {
		if f := strings.Fields(line); strings.HasPrefix(f[1], dir+"/") {
			all = append(all, mounted{f[1], f[0]})
		}
	}
	return all
}

// datasets are the names below a dataset, snapshots too, without the root's own.
func datasets(t *testing.T, root string) (names []string) {
	t.Helper()
	for line := range strings.Lines(run(t, "zfs", "list", "-H", "-r", "-t", "all", "-o", "name", "-s", "name", root)) {
		if rel, ok := strings.CutPrefix(strings.TrimSpace(line), root+"/"); ok {
			names = append(names, rel)
		}
	}
	return names
}

// publish makes a snapshot of one file.
func publish(t *testing.T, s snapshot.Store, id, content string) snapshot.Info {
	t.Helper()
	b, err := s.Prepare(t.Context(), snapshot.BaseID(id), "")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(b.Path, "f"), []byte(content), 0o644))
	info, err := s.Snapshot(t.Context(), b.ID, snapshot.SnapshotID(id), snapshot.Meta{Commit: "c-" + id})
	must(t, err)
	return info
}

func content(t *testing.T, path string) string {
	t.Helper()
	body, err := os.ReadFile(path)
	must(t, err)
	return string(body)
}
