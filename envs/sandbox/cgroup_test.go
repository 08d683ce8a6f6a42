package sandbox

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"inspect/envs/sandbox/inside"
	"inspect/envs/wire"
)

const hybridMounts = `
30 20 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
34 30 0:30 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
35 30 0:31 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
36 30 0:32 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
37 30 0:29 / /var/lib/elsewhere/memory rw - cgroup cgroup rw,memory
`

func TestFindCgroups(t *testing.T) {
	c, err := findCgroups(strings.NewReader(strings.TrimSpace(hybridMounts)), "inspect/a")
	if err != nil {
		t.Fatal(err)
	}
	if c.isV2() || c.root != "/inspect/a" {
		t.Errorf("%+v", c)
	}
	want := []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/freezer", "/sys/fs/cgroup/unified"}
	if got := c.mounts(); !slices.Equal(got, want) {
		t.Errorf("mounts %v", got)
	}
	c, err = findCgroups(strings.NewReader("31 30 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate"), "/inspect")
	if err != nil || !c.isV2() || c.unified != "/sys/fs/cgroup" {
		t.Errorf("%+v %v", c, err)
	}
	for mounts, words := range map[string]string{
		"": "no cgroup hierarchy is mounted",
		"33 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory": "controller pids",
	} {
		if _, err := findCgroups(strings.NewReader(mounts), "/inspect"); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v, want %q", mounts, err, words)
		}
	}
}

// fakeV2 is a directory that looks like a unified hierarchy.
func fakeV2(t *testing.T, id string, files map[string]string) *group {
	t.Helper()
	c := &cgroups{root: "/inspect", unified: t.TempDir()}
	g := c.group(id)
	if err := os.MkdirAll(g.dir(c.unified), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(g.dir(c.unified), name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

func TestUnifiedLimitsAndCounts(t *testing.T) {
	g := fakeV2(t, "a", map[string]string{
		"memory.max": "", "pids.max": "", "cpu.max": "", // no memory.swap.max: a kernel without swap accounting
		"memory.events": "low 0\nhigh 1\nmax 7\noom 3\noom_kill 2\n", "pids.events": "max 9\n",
	})
	if err := g.limit(wire.Limits{CPU: 1.5, MemoryBytes: 1 << 30, Pids: 100}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"memory.max": "1073741824", "pids.max": strconv.Itoa(100 + inside.ReservedPids), "cpu.max": "150000 100000"} {
		got, err := os.ReadFile(filepath.Join(g.dir(g.c.unified), name))
		if err != nil || string(got) != want {
			t.Errorf("%s: %q %v, want %q", name, got, err, want)
		}
	}
	if oom, pids := g.counts(); oom != 2 || pids != 9 {
		t.Errorf("counts %d %d", oom, pids)
	}
	if err := os.Mkdir(filepath.Join(g.c.unified, "inspect", "another-root"), 0o755); err != nil {
		t.Fatal(err)
	}
	ids, err := g.c.list()
	if err != nil || !slices.Equal(ids, []string{"a"}) {
		t.Errorf("list %v %v", ids, err)
	}
	// A limit that cannot be set is never left out.
	if err := fakeV2(t, "b", nil).limit(wire.Limits{MemoryBytes: 1 << 30}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the controller: %v", err)
	}
}

func TestUnifiedControllersAreHandedDown(t *testing.T) {
	dir := t.TempDir()
	c := &cgroups{root: "/inspect/x", unified: dir}
	if err := c.prepare(); err == nil || !strings.Contains(err.Error(), "hand the controllers") {
		t.Errorf("%v", err)
	}
	for _, d := range []string{"", "inspect", "inspect/x"} {
		if err := os.WriteFile(filepath.Join(dir, d, "cgroup.subtree_control"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.prepare(); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"", "inspect", "inspect/x"} {
		if b, _ := os.ReadFile(filepath.Join(dir, d, "cgroup.subtree_control")); string(b) != "+memory +pids +cpu" {
			t.Errorf("%q: %q", d, b)
		}
	}
}

// Each of the two ways alone ends whatever is in a group, sessions of their own
// and those who heed no signal included.
func TestBothWaysToEnd(t *testing.T) {
	c, err := machineCgroups(cgroupRoot)
	if !root {
		if err == nil {
			t.Error("an ordinary user has made a cgroup")
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func(*group){
		"cgroup.kill": func(g *group) {
			if err := writeFile(filepath.Join(g.dir(c.unified), "cgroup.kill"), "1"); err != nil {
				t.Error(err)
			}
		},
		"freeze and kill": (*group).freezeAndKill,
	} {
		t.Run(name, func(t *testing.T) {
			g := c.group(newID(t))
			if name == "cgroup.kill" && c.unified == "" {
				t.Log("this machine has no unified hierarchy")
				return
			}
			if err := g.create(deadline(t), wire.Limits{}); err != nil {
				t.Fatal(err)
			}
			crowd := exec.Command("sh", append([]string{"-c", `for f; do echo 0 > "$f"; done
				for i in 1 2 3 4 5; do setsid sh -c 'trap "" TERM; sleep 1000; :' & done; echo up; exec sleep 1000`, "sh"}, g.procs()...)...)
			out, err := crowd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := crowd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(out, make([]byte, len("up\n"))); err != nil {
				t.Fatal(err)
			}
			if n := len(g.pids()); n < 6 {
				t.Errorf("only %d processes are in the group", n)
			}
			end(g)
			_ = crowd.Wait()
			for ctx := deadline(t); len(g.pids()) > 0; {
				if ctx.Err() != nil {
					t.Fatalf("%v are left", g.pids())
				}
			}
			if err := g.remove(deadline(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestBlocked(t *testing.T) {
	for name, bad := range map[string]string{
		"kernel/unprivileged_userns_clone":             "0",
		"kernel/apparmor_restrict_unprivileged_userns": "1",
		"user/max_user_namespaces":                     "0",
	} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		write := func(v string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(v+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		write("5")
		if got := blocked(dir); got != "" {
			t.Errorf("%s is fine: %q", name, got)
		}
		write(bad)
		if got := blocked(dir); !strings.Contains(got, "sysctl -w "+strings.ReplaceAll(name, "/", ".")) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// Where it is said which version this machine has, that is the one that is used.
func TestVersionOfCgroups(t *testing.T) {
	want := os.Getenv(cgroupsEnv) // by make test-cgroup2
	if want == "" {
		want = "1"
		if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
			want = "2"
		}
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := findCgroups(f, "/inspect-test")
	if err != nil {
		t.Fatal(err)
	}
	if got := map[bool]string{true: "2", false: "1"}[c.isV2()]; got != want {
		t.Errorf("version %s carries the limits, not %s", got, want)
	}
}
