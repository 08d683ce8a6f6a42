// Package sandboxtest gives tests the program that sandboxes are started with. A
// test binary can be that itself, but takes several times as long to begin, twice
// for each command in a sandbox, and on a machine where processes are dear that is
// half of what such tests cost.
package sandboxtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// pathVar hands the program on to what a test starts.
const pathVar = "INSPECT_TEST_INIT"

var (
	building sync.Mutex
	dir      string
)

// Main is for TestMain: it removes the program when the tests are over.
func Main(m interface{ Run() int }) M { return M{m} }

// M is a testing.M that does so.
type M struct{ m interface{ Run() int } }

// Run runs the tests.
func (m M) Run() int {
	code := m.m.Run()
	building.Lock()
	defer building.Unlock()
	if dir != "" {
		_ = os.RemoveAll(dir)
		_ = os.Unsetenv(pathVar)
		dir = ""
	}
	return code
}

// Init is the program's path; the first call of a test binary builds it.
func Init(t testing.TB) string {
	t.Helper()
	path, err := Program()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Program is Init for what a test starts.
func Program() (string, error) {
	building.Lock()
	defer building.Unlock()
	if path := os.Getenv(pathVar); path != "" {
		return path, nil
	}
	made, err := os.MkdirTemp("", "inspect-init-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(made, "inspect-init")
	cmd := exec.Command("go", "build", "-ldflags=-w", "-o", path, "inspect/cmd/inspect-init")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		_ = os.RemoveAll(made)
		return "", fmt.Errorf("build inspect-init: %w: %s", err, out)
	}
	dir = made
	return path, os.Setenv(pathVar, path)
}
