package harnesstest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Repository returns what fills a directory with a git repository of these
// files, committed.
func Repository(t testing.TB, files map[string]string) func(dir string) {
	return func(dir string) {
		t.Helper()
		for name, text := range files {
			p := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, line := range []string{"init -q -b main", "add -A", "commit -q --allow-empty -m begin"} {
			Git(t, dir, strings.Fields(line)...)
		}
	}
}

// Git runs git in a directory and returns its output.
func Git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{
		"-c", "user.name=octocat", "-c", "user.email=octocat@example.com", "-c", "safe.directory=*", "-C", dir,
	}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return string(out)
}
