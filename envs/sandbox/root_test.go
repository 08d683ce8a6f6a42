package sandbox

import (
	"bytes"
	"context"
	"debug/elf"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// imageTree is a small userland: some programs of this machine with what they
// are linked to.
func imageTree(t *testing.T, programs ...string) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	for dir := root; dir != "/"; dir = filepath.Dir(dir) {
		must(t, os.MkdirAll(dir, 0o755))
		if dir != root {
			_ = os.Chmod(dir, 0o755)
		}
		if filepath.Dir(dir) == os.TempDir() {
			break
		}
	}
	put := func(name string) {
		body, err := os.ReadFile(name)
		must(t, err)
		must(t, os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755))
		must(t, os.WriteFile(filepath.Join(root, name), body, 0o755))
	}
	for _, p := range programs {
		path, err := proc.LookPath(p, []string{"PATH=" + proc.DefaultPath})
		must(t, err)
		put(path)
		f, err := elf.Open(path)
		must(t, err)
		libs, err := f.ImportedLibraries()
		must(t, err)
		for _, s := range f.Progs {
			if s.Type == elf.PT_INTERP {
				b, err := io.ReadAll(s.Open())
				must(t, err)
				put(strings.TrimRight(string(b), "\x00"))
			}
		}
		must(t, f.Close())
		for _, l := range libs {
			found, _ := filepath.Glob("/lib/*-linux-gnu/" + l)
			for _, name := range found {
				put(name)
			}
		}
	}
	return root
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A sandbox with an image has the image's files and none of the host's, and
// what a sandbox always has stands before what the image has there.
func TestImage(t *testing.T) { eachTier(t, testImage) }

func testImage(t *testing.T) {
	tree := imageTree(t, "dash", "cat", "touch")
	for name, body := range map[string]string{
		"etc/os-release": "ID=image\n", "etc/passwd": "root:evil\n", "opt/tool/bin/x": "x\n", "var/lib/data": "old\n", "srv/here": "y\n", "run/inspect/init": "evil\n",
		"workspace/image": "hidden\n", "home/other/file": "z\n", "home/agent/.profile": "evil\n", "tmp/image": "hidden\n", "dev/null": "a file\n", "proc/cpuinfo": "evil\n",
	} {
		must(t, os.MkdirAll(filepath.Join(tree, filepath.Dir(name)), 0o755))
		must(t, os.WriteFile(filepath.Join(tree, name), []byte(body), 0o644))
	}
	must(t, os.MkdirAll(filepath.Join(tree, "var"), 0o755))
	must(t, os.Symlink("/etc", filepath.Join(tree, "sys")))      // a place of ours is a link in the image
	must(t, os.Symlink("/srv", filepath.Join(tree, "var/tmp")))  // and so is this
	must(t, os.Symlink("/../../etc", filepath.Join(tree, "up"))) // leads to the image's own
	work := filepath.Join(filepath.Dir(tree), "work")
	must(t, os.Mkdir(work, 0o755))
	if root {
		must(t, os.Chown(work, testUID, testGID))
	}
	l := theLauncher(t)
	near, far, err := stream.Pair()
	must(t, err)
	box, err := l.Start(t.Context(), Spec{
		ID: "image", Root: tree, Control: far, Env: []string{"PATH=/usr/bin:/bin"}, Limits: wire.Limits{CPU: 1, MemoryBytes: 256 << 20, Pids: 50},
		Mounts: []Mount{{Source: work, Target: Workspace, Writable: true}},
	})
	must(t, err)
	c := stream.NewClient(near)
	run := func(line string) string {
		t.Helper()
		var out bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), patience(30*time.Second))
		defer cancel()
		_, err := c.Run(ctx, stream.Exec{Argv: []string{"dash", "-c", line}, Stdout: &out, Stderr: &out})
		must(t, err)
		return out.String()
	}
	for _, c := range []struct{ line, want string }{
		{"cat /etc/os-release /opt/tool/bin/x /srv/here /up/os-release", "ID=image\nx\ny\nID=image\n"},
		{"cat /var/lib/data /home/other/file", "old\nz\n"},
		{"echo /workspace/* /home/agent/.p* /tmp/*", "/workspace/* /home/agent/.p* /tmp/*\n"},
		{"echo gone >/dev/null; echo $?", "0\n"},
		{"touch /workspace/a /tmp/b /home/agent/c /var/tmp/d; echo $?", "0\n"}, // after the line that finds nothing
	} {
		if got := run(c.line); got != c.want {
			t.Errorf("%s: %q, want %q", c.line, got, c.want)
		}
	}
	for _, line := range []string{"touch /x", "touch /etc/x", "touch /srv/x", "touch /opt/tool/bin/x", "touch /var/lib/x", "cat /etc/ssl/openssl.cnf", "[ -e /usr/share ]", "[ -e /sys/kernel ]"} {
		if got := run(line + " && echo done"); strings.Contains(got, "done") {
			t.Errorf("%s: %q", line, got)
		}
	}
	if got := run("cat /etc/passwd"); strings.Contains(got, "evil") || !strings.Contains(got, InsideUser) {
		t.Errorf("the accounts are %q", got)
	}
	if got := run("cat /proc/cpuinfo /run/inspect/gone"); strings.Contains(got, "evil") {
		t.Errorf("/proc is the image's: %q", got)
	}
	must(t, c.Close())
	box.Wait()
	entries, err := os.ReadDir(tree)
	must(t, err)
	if slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == "x" }) {
		t.Error("the image was changed")
	}
}

// An image without a shell says so by the command that needs it.
func TestImageWithoutAShell(t *testing.T) {
	tree := imageTree(t, "cat")
	near, far, err := stream.Pair()
	must(t, err)
	box, err := theLauncher(t).Start(t.Context(), Spec{ID: "no-shell", Root: tree, Control: far})
	must(t, err)
	c := stream.NewClient(near)
	_, err = c.Run(t.Context(), stream.Exec{Argv: []string{"sh", "-c", "true"}})
	if err == nil || !strings.Contains(err.Error(), "sh") {
		t.Errorf("%v", err)
	}
	must(t, c.Close())
	box.Wait()
}
