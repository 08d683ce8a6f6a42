package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Only the init that was built with this program is taken, whatever its name says.
func TestInitOfThisBuild(t *testing.T) {
	defer func(was string) { initSum = was }(initSum)
	dir := t.TempDir()
	program, right, other := filepath.Join(dir, "inspect"), []byte("#!right"), []byte("#!other")
	put := func(name string, body []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, body, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ask := func() (path, said string) {
		var log bytes.Buffer
		path = initProgram(program, slog.New(slog.NewTextHandler(&log, nil)))
		return path, log.String()
	}
	put("inspect", []byte("#!inspect"))
	initSum = sumOf(right)
	if path, said := ask(); path != program || strings.Count(said, "\n") != 1 || !strings.Contains(said, "make build") {
		t.Errorf("alone: %s, said %q", path, said)
	}
	plain := put("inspect-init", other)
	put("inspect-init-"+short(initSum), other)
	if path, said := ask(); path != program || said == "" {
		t.Errorf("beside another build's: %s, said %q", path, said)
	}
	put("inspect-init", right)
	if path, said := ask(); path != plain || said != "" {
		t.Errorf("beside its own: %s, said %q", path, said)
	}
	initSum = "" // as go build makes it
	if path, _ := ask(); path != program {
		t.Errorf("a build that knows no init takes %s", path)
	}
}
