package dir_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// runAs runs this test binary's tests that match run as another user.
func runAs(t *testing.T, uid uint32, run string) {
	t.Helper()
	tmp, err := os.MkdirTemp("", "inspect-dir-test")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	if err := os.Chown(tmp, int(uid), int(uid)); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	body, err := os.ReadFile(self) // the build's own place may be closed to others
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(tmp, "test")
	if err := os.WriteFile(bin, body, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), bin, "-test.run", run, "-test.v")
	cmd.Dir = tmp
	cmd.Env = []string{"TMPDIR=" + tmp, "HOME=" + tmp, "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: []uint32{}}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestConformance") {
		t.Errorf("%v\n%s", err, out)
	}
}
