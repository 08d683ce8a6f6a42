package storage_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"inspect/storage"
	"inspect/storage/storagetest"
)

// helperEnv makes the test binary start a Postgres in the named directory,
// say so, and wait to be killed.
const helperEnv = "STORAGE_TEST_POSTGRES_DIR"

func helper(dir string) int {
	pg, err := storage.StartPostgres(context.Background(), dir, nil)
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	fmt.Println("ready", pg.URL())
	<-pg.Exited()
	return 0
}

// startHelper returns a process that owns a Postgres in dir.
func startHelper(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helperEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	buf := make([]byte, 4096)
	n, _ := out.Read(buf)
	if !strings.HasPrefix(string(buf[:n]), "ready") {
		t.Fatalf("the helper said %q", buf[:n])
	}
	return cmd
}

func start(t *testing.T, dir string) *storage.Postgres {
	t.Helper()
	pg, err := storage.StartPostgres(context.Background(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pg.Stop(context.Background()) })
	return pg
}

func postmaster(t *testing.T, dir string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestPrivatePostgresKeepsItsData(t *testing.T) {
	ctx := context.Background()
	dir := storagetest.Dir(t)
	pg := start(t, dir)
	db, err := storage.Open(ctx, pg.URL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Q().UpsertNode(ctx, storage.UpsertNodeParams{Name: "kept", TokenHash: []byte("h")}); err != nil {
		t.Fatal(err)
	}
	var tcp string
	if err := db.SQL().QueryRow("SHOW listen_addresses").Scan(&tcp); err != nil || tcp != "" {
		t.Fatalf("it listens on %q (%v)", tcp, err)
	}
	db.Close()
	if fi, err := os.Stat(filepath.Join(dir, "sock")); err != nil || fi.Mode().Perm() != 0o700 {
		t.Fatalf("the socket's directory: %v %v", fi.Mode(), err)
	}
	if os.Geteuid() == 0 {
		fi, err := os.Stat(filepath.Join("/proc", strconv.Itoa(postmaster(t, dir))))
		if err != nil || fi.Sys().(*syscall.Stat_t).Uid == 0 {
			t.Fatalf("Postgres runs as root (%v)", err)
		}
	}
	if _, err := storage.StartPostgres(ctx, dir, nil); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Fatalf("a second server in one directory: %v", err)
	}
	if err := pg.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	again := start(t, dir)
	db, err = storage.Open(ctx, again.URL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if name, err := db.Q().NodeByToken(ctx, []byte("h")); err != nil || name != "kept" {
		t.Fatalf("after a restart: %q, %v", name, err)
	}
}

func TestPostgresIsNotForOtherAccounts(t *testing.T) {
	if os.Geteuid() != 0 {
		// Only root can try to connect as somebody else; the directory's mode is
		// checked above.
		return
	}
	dir := storagetest.Dir(t)
	pg := start(t, dir)
	_ = os.Chmod(filepath.Join(dir, "sock"), 0o755) // even if the directory were open
	cmd := exec.Command("psql", pg.URL(), "-c", "SELECT 1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(strings.ToLower(string(out)), "peer authentication failed") {
		t.Fatalf("another account: %v: %s", err, out)
	}
}

func TestPostgresAfterItsParentWasKilled(t *testing.T) {
	dir := storagetest.Dir(t)
	cmd := startHelper(t, dir)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	start(t, dir) // in the moment in which the old one stops itself
}

func TestPostgresAfterBothWereKilled(t *testing.T) {
	dir := storagetest.Dir(t)
	cmd := startHelper(t, dir)
	_ = syscall.Kill(postmaster(t, dir), syscall.SIGKILL)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	start(t, dir)
}

func TestPostgresThatOutlivedItsParentIsStopped(t *testing.T) {
	dir := storagetest.Dir(t)
	cmd := startHelper(t, dir)
	pid := postmaster(t, dir)
	// Frozen, it does not hear of its parent's death.
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	start(t, dir)
	if now := postmaster(t, dir); now == pid {
		t.Fatal("the old server serves on")
	}
}

func TestStalePidFileOfAnotherProgram(t *testing.T) {
	dir := storagetest.Dir(t)
	pg := start(t, dir)
	if err := pg.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	// A living process of the same account that is no Postgres.
	cmd := exec.Command("sleep", "60")
	if fi, err := os.Stat(data); err != nil {
		t.Fatal(err)
	} else if st := fi.Sys().(*syscall.Stat_t); os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: st.Uid, Gid: st.Gid}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	stale := fmt.Sprintf("%d\n%s\n1\n5432\n%s\n\n\nready\n", cmd.Process.Pid, data, filepath.Join(dir, "sock"))
	if err := os.WriteFile(filepath.Join(data, "postmaster.pid"), []byte(stale), 0o644); err != nil {
		t.Fatal(err)
	}
	start(t, dir)
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Fatalf("a stranger was ended: %v", err)
	}
}

func TestUnfinishedInitIsBegunAgain(t *testing.T) {
	dir := storagetest.Dir(t)
	for _, d := range []string{"data", "data.new"} {
		if err := os.MkdirAll(filepath.Join(dir, d, "base"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	start(t, dir)
}

func TestPostgresRefusesInWords(t *testing.T) {
	ctx := context.Background()
	long := filepath.Join(storagetest.Dir(t), strings.Repeat("x", 90))
	if _, err := storage.StartPostgres(ctx, long, nil); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Fatalf("a long path: %v", err)
	}
	if os.Geteuid() == 0 {
		closed := storagetest.Dir(t)
		if err := os.Chmod(closed, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := storage.StartPostgres(ctx, filepath.Join(closed, "pg"), nil); err == nil || !strings.Contains(err.Error(), "may not enter "+closed) {
			t.Fatalf("a closed directory: %v", err)
		}
	}
	other := storagetest.Dir(t)
	if err := os.MkdirAll(filepath.Join(other, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(other, "data", "PG_VERSION"), []byte("7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := storage.StartPostgres(ctx, other, nil); err == nil || !strings.Contains(err.Error(), "Postgres 7") {
		t.Fatalf("data of another version: %v", err)
	}
	if _, err := storage.Open(ctx, "postgres://inspect:geheim@/x?host=/nowhere&sslmode=perhaps", nil); err == nil || strings.Contains(err.Error(), "geheim") {
		t.Fatalf("a bad URL: %v", err)
	}
}

func TestPostgresEndsWhenStopRunsOutOfTime(t *testing.T) {
	pg := start(t, storagetest.Dir(t))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = pg.Stop(ctx)
	select {
	case <-pg.Exited():
	case <-time.After(30 * time.Second):
		t.Fatal("it runs on")
	}
}

// A further account may connect, whether it has a name or not; others may not.
func TestPostgresForAnotherAccount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start it for another account")
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	named, err := strconv.Atoi(nobody.Uid)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		uid  int
		says string // in pg_hba.conf
	}{"with a name": {named, "peer map=inspect"}, "without": {64350, "trust"}} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "inspect-pg")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			if err := os.Chmod(dir, 0o711); err != nil {
				t.Fatal(err)
			}
			pg, err := storage.StartPostgresWith(t.Context(), storage.PostgresOptions{Dir: filepath.Join(dir, "pg"), ClientUID: c.uid})
			if err != nil {
				t.Fatal(err)
			}
			defer pg.Stop(context.Background())
			hba, err := os.ReadFile(filepath.Join(dir, "pg", "data", "pg_hba.conf"))
			if err != nil || !strings.Contains(string(hba), c.says) {
				t.Errorf("pg_hba.conf says %q, %v", hba, err)
			}
			psql := func(uid int) (string, error) {
				cmd := exec.Command("psql", "-At", "-c", "SELECT current_user", pg.URL())
				cmd.Dir = "/"
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid), Groups: []uint32{}}}
				out, err := cmd.CombinedOutput()
				return strings.TrimSpace(string(out)), err
			}
			for _, uid := range []int{0, c.uid} {
				if out, err := psql(uid); err != nil || out != "inspect" {
					t.Errorf("account %d: %q, %v", uid, out, err)
				}
			}
			if out, err := psql(64351); err == nil || !strings.Contains(out, "Permission denied") {
				t.Errorf("a stranger: %q, %v", out, err)
			}
		})
	}
}
