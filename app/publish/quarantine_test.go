package publish

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"inspect/envs/proc"
	"inspect/envs/sandbox"
	"inspect/envs/sandbox/sandboxtest"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

func TestMain(m *testing.M) { os.Exit(sandboxtest.Main(m).Run()) }

// launchers numbers the cgroups of this test binary.
var launchers atomic.Int64

// sandboxed is a Quarantine of real sandboxes.
type sandboxed struct {
	launcher *sandbox.Launcher
}

func newSandboxed(t testing.TB) *sandboxed {
	t.Helper()
	l, err := sandbox.New(sandbox.Options{
		Binary: sandboxtest.Init(t), RunDir: openDir(t), CgroupRoot: fmt.Sprintf("/inspect-publish-test-%d-%d", os.Getpid(), launchers.Add(1)),
		UID: 65534, GID: 65534, BestEffort: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("the launcher leaves something behind: %v", err)
		}
	})
	return &sandboxed{l}
}

func (q *sandboxed) Run(ctx context.Context, c GitCommand) (int, error) {
	ours, theirs, err := stream.Pair()
	if err != nil {
		return 0, err
	}
	box, err := q.launcher.Start(ctx, sandbox.Spec{
		ID: c.ID,
		Mounts: []sandbox.Mount{
			{Source: c.Dir, Target: QuarantineDir, Writable: true},
			{Source: c.Mirror, Target: MirrorDir},
		},
		Limits: wire.Limits{CPU: 1, MemoryBytes: 2 << 30, Pids: 64}, Control: theirs,
	})
	theirs.Close()
	if err != nil {
		ours.Close()
		return 0, err
	}
	client := stream.NewClient(ours)
	exit, err := client.Run(ctx, stream.Exec{
		Argv: c.Argv, Env: c.Env, Dir: QuarantineDir, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr,
		Rlimits: stream.Rlimits{
			CPUSeconds: uint64(c.Limits.CPU / time.Second), AddressSpace: uint64(c.Limits.AddressSpace), FileSize: uint64(c.Limits.FileSize),
		},
	})
	client.Close()
	box.Wait()
	return exit.Code, err
}

// light is a Quarantine of bubblewrap alone, for tests that are about something
// else: the same paths and limits, less isolation, less time.
type light struct{}

func (light) Run(ctx context.Context, c GitCommand) (int, error) {
	argv := []string{
		"bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
		"--symlink", "usr/lib64", "/lib64", "--dev", "/dev", "--proc", "/proc", "--ro-bind", c.Mirror, MirrorDir, "--bind", c.Dir, QuarantineDir,
		"--chdir", QuarantineDir, "--", "/usr/bin/prlimit", fmt.Sprintf("--as=%d", c.Limits.AddressSpace),
		fmt.Sprintf("--cpu=%d", int(c.Limits.CPU.Seconds())), fmt.Sprintf("--fsize=%d", c.Limits.FileSize), "--",
	}
	res, err := proc.Run(ctx, proc.Command{Argv: append(argv, c.Argv...), Env: c.Env, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr})
	var exit *proc.ExitError
	if errors.As(err, &exit) {
		err = nil
	}
	return res.Code, err
}

// openDir is a fresh directory every account can pass through, as the
// directories of a real installation can be.
func openDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// gitDir is a repository of a test, driven by real git.
type gitDir struct {
	t    testing.TB
	path string
}

// newRepo makes a repository with one commit and a bare mirror of it.
func newRepo(t testing.TB) (work gitDir, mirror, base string) {
	t.Helper()
	dir := openDir(t)
	work = gitDir{t, filepath.Join(dir, "work")}
	work.must("", "git", "init", "-q", "-b", "main", work.path)
	work.write("go.mod", "module example\n")
	work.write("calc/add.go", "package calc\n\nfunc Add(a, b int) int { return a - b }\n")
	work.write("README.md", "# Example\n")
	work.write(".github/workflows/ci.yml", "on: push\n")
	base = work.commit("base")
	mirror = filepath.Join(dir, "mirrors", "77.git")
	if err := os.Mkdir(filepath.Dir(mirror), 0o755); err != nil {
		t.Fatal(err)
	}
	work.must("", "git", "clone", "-q", "--bare", work.path, mirror)
	return work, mirror, base
}

// run runs git in the repository with a plain environment.
func (g gitDir) run(stdin string, argv ...string) (string, error) {
	dir := g.path
	if _, err := os.Stat(dir); err != nil {
		dir = "/"
	}
	res, err := proc.Run(context.Background(), proc.Command{
		Argv: argv, Dir: dir, Stdin: strings.NewReader(stdin), Limit: 1 << 30,
		Env: []string{
			"PATH=" + proc.DefaultPath, "HOME=/nonexistent", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
			"GIT_AUTHOR_NAME=hubot", "GIT_AUTHOR_EMAIL=hubot@example.com", "GIT_AUTHOR_DATE=@1700000000 +0000",
			"GIT_COMMITTER_NAME=hubot", "GIT_COMMITTER_EMAIL=hubot@example.com", "GIT_COMMITTER_DATE=@1700000000 +0000",
		},
	})
	return string(res.Stdout), err
}

func (g gitDir) must(stdin string, argv ...string) string {
	g.t.Helper()
	out, err := g.run(stdin, argv...)
	if err != nil {
		g.t.Fatalf("%q: %v", argv, err)
	}
	return strings.TrimSpace(out)
}

func (g gitDir) write(name, content string) {
	g.t.Helper()
	full := filepath.Join(g.path, name)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		g.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
		g.t.Fatal(err)
	}
}

// commit commits all that is there and returns the commit.
func (g gitDir) commit(message string) string {
	g.t.Helper()
	g.must("", "git", "add", "-A")
	g.must(message, "git", "commit", "-q", "--allow-empty", "-F", "-")
	return g.must("", "git", "rev-parse", "HEAD")
}

// pack is the pack of all that tip has and the given commits do not.
func (g gitDir) pack(tip string, without ...string) []byte {
	g.t.Helper()
	revs := tip + "\n"
	for _, w := range without {
		revs += "^" + w + "\n"
	}
	out, err := g.run(revs, "git", "pack-objects", "-q", "--revs", "--thin", "--stdout")
	if err != nil {
		g.t.Fatal(err)
	}
	return []byte(out)
}

// bundle is the bundle of tip over base as a runner makes it.
func (g gitDir) bundle(tip, base string) []byte {
	g.t.Helper()
	return join([]byte(signatureV2+"-"+base+" base\n"+tip+" "+ResultRef+"\n\n"), g.pack(tip, base))
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// entry is one line of a tree object.
type entry struct {
	mode, name, id string
}

// tree writes a tree object to the letter, whatever git thinks of it.
func (g gitDir) tree(entries ...entry) string {
	g.t.Helper()
	var b bytes.Buffer
	for _, e := range entries {
		fmt.Fprintf(&b, "%s %s\x00", e.mode, e.name)
		raw, err := hex.DecodeString(e.id)
		if err != nil || len(raw) != 20 {
			g.t.Fatalf("%q is no object id", e.id)
		}
		b.Write(raw)
	}
	return g.must(b.String(), "git", "hash-object", "-t", "tree", "-w", "--stdin", "--literally")
}

func (g gitDir) blob(content string) string {
	g.t.Helper()
	return g.must(content, "git", "hash-object", "-w", "--stdin")
}

// commitTree makes a commit of a tree.
func (g gitDir) commitTree(tree string, parents ...string) string {
	g.t.Helper()
	argv := []string{"git", "commit-tree", tree}
	for _, p := range parents {
		argv = append(argv, "-p", p)
	}
	return g.must("work\n", argv...)
}
