package try

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestBench(t *testing.T) {
	t.Parallel()
	dir := openTemp(t)
	files := small()
	files[".inspect.yml"] += "setup: [sleep 1, sleep 0.5]\nservices: {web: {command: exec python3 -m http.server 8000, port: 8000}}\n"
	r := newRepo(t, filepath.Join(dir, "parcel"), files)
	r.write(map[string]string{"later.txt": "later\n"})
	r.git("add", "later.txt")
	r.git("commit", "-qm", "Later")
	before := stateOf(t, r.path)
	cmd := exec.Command(program, "env", "bench", "--repo", r.path, "--runs", "2", "--behind", "1", "--json")
	cmd.Env = append(os.Environ(), "HOME="+dir, "TMPDIR="+dir)
	var says bytes.Buffer
	cmd.Stderr = &says
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, says.String())
	}
	untouched(t, "a bench", before, stateOf(t, r.path))
	var m Measured
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if c := m.Cold; c["clone"] <= 0 || c["setup 1"] < 1000 || c["setup 2"] < 500 || c["setup"] < c["setup 1"]+c["setup 2"] || c["services"] <= 0 || c["ready"] < c["clone"]+c["setup"] {
		t.Errorf("cold %v", c)
	}
	if s := m.Snapshot; s["restore"] <= 0 || s["drift"] <= 0 || s["services"] <= 0 || s["ready"] < s["restore"]+s["drift"] {
		t.Errorf("from the snapshot %v", s)
	}
	if !slices.Equal(m.Setup, []string{"sleep 1", "sleep 0.5"}) {
		t.Errorf("lines of setup %q", m.Setup)
	}
	var table strings.Builder
	if err := m.Write(&table); err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{"sleep 1 ", "sleep 0.5 ", "restore ", "drift ", "services ", "ready "} {
		if !strings.Contains(table.String(), row) {
			t.Errorf("no row %q in\n%s", row, table.String())
		}
	}
	if m.Runs != 2 || m.Behind != 1 || m.Store != "dir" || m.Commit != r.git("rev-parse", "HEAD") {
		t.Errorf("%+v", m)
	}
}
