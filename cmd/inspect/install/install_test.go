package install

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"inspect/docs"
)

var accounts = []Account{
	{Name: "inspect", UID: 64000, For: "control plane", Setting: "INSPECT_CONTROL_UID"},
	{Name: "inspect-sandbox", UID: 64001, For: "sandboxes", Setting: "INSPECT_SANDBOX_UID"},
	{Name: "inspect-postgres", For: "private database", Setting: "INSPECT_POSTGRES_USER"},
}

// tree is an empty machine and a program to install.
func tree(t *testing.T, passwd string) (root string, o Options, out *bytes.Buffer) {
	t.Helper()
	root = t.TempDir()
	for name, body := range map[string]string{"passwd": passwd, "group": "", "shadow": "", "gshadow": ""} {
		put(t, filepath.Join(root, "etc", name), body)
	}
	dir := t.TempDir()
	program, small := filepath.Join(dir, "inspect"), filepath.Join(dir, "inspect-init")
	put(t, program, "#!/bin/true\n")
	put(t, small, "#!/bin/sh\n")
	built := filepath.Join(t.TempDir(), "runsc") // a link beside the program, as make setup leaves it
	put(t, built, "built here")
	if err := os.Symlink(built, filepath.Join(filepath.Dir(program), "runsc")); err != nil {
		t.Fatal(err)
	}
	out = &bytes.Buffer{}
	return root, Options{Root: root, Data: data, Binary: program, Init: small, Accounts: accounts, Out: out}, out
}

func put(t *testing.T, path, body string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(body), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// all lists a tree with modes, but not what useradd keeps for itself.
func all(t *testing.T, root string) map[string]fs.FileMode {
	t.Helper()
	out := map[string]fs.FileMode{}
	if err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if rel := strings.TrimPrefix(path, root); rel != "" && !strings.HasSuffix(rel, "-") {
			out[rel] = st.Mode().Perm()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestInstall(t *testing.T) {
	root, o, out := tree(t, "root:x:0:0:root:/root:/bin/sh\n")
	before := all(t, root)
	o.DryRun = true
	if err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	dry := out.String()
	if got := all(t, root); len(got) != len(before) || read(t, root+"/etc/passwd") != "root:x:0:0:root:/root:/bin/sh\n" {
		t.Errorf("a dry run changed something: %v", got)
	}
	if os.Geteuid() != 0 {
		o.DryRun = false
		if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "root") {
			t.Errorf("an ordinary user can install: %v", err)
		}
		return
	}
	o.DryRun = false
	out.Reset()
	put(t, root+"/etc/group", "inspect-sandbox:x:64001:\n") // as an interrupted run leaves it
	if err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	plan, _, _ := strings.Cut(dry, "Nothing was changed")
	if done, _, _ := strings.Cut(out.String(), "Next:"); done != plan || !strings.Contains(plan, "inspect-sandbox") {
		t.Errorf("it did\n%s\nand would have done\n%s", done, plan)
	}
	got := all(t, root)
	for path, mode := range map[string]fs.FileMode{
		"/var/lib/inspect": 0o711, "/etc/inspect": 0o700, "/etc/inspect/inspect.env": 0o600,
		"/etc/inspect/models.yml.sample": 0o600, "/usr/local/bin/inspect": 0o755, "/usr/local/bin/inspect-init": 0o755,
		"/etc/systemd/system/inspect.service": 0o644, "/usr/local/bin/runsc": 0o755,
	} {
		if got[path] != mode {
			t.Errorf("%s has mode %04o, want %04o", path, got[path], mode)
		}
	}
	_, byID, err := passwd(filepath.Join(root, "etc/passwd"))
	if err != nil || byID[64000] != "inspect" || byID[64001] != "inspect-sandbox" || !strings.Contains(read(t, root+"/etc/passwd"), "inspect-postgres:x:") {
		t.Errorf("accounts %v, %v", byID, err)
	}
	env := read(t, root+"/etc/inspect/inspect.env")
	for _, line := range []string{"INSPECT_DATA=/var/lib/inspect", "INSPECT_CONTROL_UID=64000", "INSPECT_POSTGRES_USER=inspect-postgres"} {
		if !strings.Contains(env, line+"\n") {
			t.Errorf("inspect.env lacks %s:\n%s", line, env)
		}
	}

	// Again: nothing to do, and what was edited stays.
	put(t, root+"/etc/inspect/inspect.env", env+"INSPECT_GITHUB_APP_ID=7\n")
	out.Reset()
	if err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out.String(), "Next:") || !strings.Contains(read(t, root+"/etc/inspect/inspect.env"), "APP_ID=7") {
		t.Errorf("a second run did\n%s", out)
	}
	// An upgrade replaces program and units.
	put(t, o.Binary, "#!/bin/false\n")
	put(t, o.Init, "#!/bin/sh -e\n")
	put(t, root+"/etc/systemd/system/inspect.service", "# "+mark+" long ago\n")
	if err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if read(t, root+"/usr/local/bin/inspect") != "#!/bin/false\n" || read(t, root+"/usr/local/bin/inspect-init") != "#!/bin/sh -e\n" || strings.Contains(read(t, root+"/etc/systemd/system/inspect.service"), "long ago") {
		t.Error("an upgrade left the old program or unit")
	}
}

// What is another's is left alone, and nothing is done by halves.
func TestInstallRefuses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("an ordinary user cannot make another's files")
	}
	for name, c := range map[string]struct {
		passwd string
		edit   func(root string, o *Options)
		words  string
	}{
		"account id taken": {passwd: "hubot:x:64001:64001::/:/bin/sh\n", words: "64001 belongs to hubot"},
		"another's ids":    {passwd: "inspect:x:500:500::/:/bin/sh\n", words: "has the ids 500:500"},
		"group id taken":   {edit: func(root string, o *Options) { put(t, root+"/etc/group", "octo:x:64001:\n") }, words: "group id 64001 belongs to octo"},
		"another's group":  {edit: func(root string, o *Options) { put(t, root+"/etc/group", "inspect:x:77:\n") }, words: "has the id 77"},
		"an alias of root": {passwd: "inspect-postgres:x:0:0::/:/bin/sh\n", words: "is root"},
		"a user's own": {edit: func(root string, o *Options) {
			_ = os.MkdirAll(root+data, 0o755)
			_ = os.Chown(root+data, 1000, 1000)
		}, words: "belongs to account id 1000"},
		"another's directory": {edit: func(root string, o *Options) { put(t, root+data+"/photos/cat", "") }, words: "nothing in it is Inspect's"},
		"a link": {edit: func(root string, o *Options) {
			_ = os.MkdirAll(root+"/var/lib", 0o755)
			_ = os.Symlink("/tmp", root+data)
		}, words: "not a directory"},
		"another installation": {edit: func(root string, o *Options) {
			put(t, root+"/etc/inspect/inspect.env", "INSPECT_DATA=/srv/inspect\n")
		}, words: "installation in /srv/inspect"},
		"another's unit": {edit: func(root string, o *Options) { put(t, root+"/etc/systemd/system/inspect.service", "[Service]\n") }, words: "was not written by"},
		"odd data":       {edit: func(root string, o *Options) { o.Data = "/srv/my data" }, words: "without spaces"},
		"relative data":  {edit: func(root string, o *Options) { o.Data = "data" }, words: "absolute"},
	} {
		t.Run(name, func(t *testing.T) {
			root, o, _ := tree(t, c.passwd)
			if c.edit != nil {
				c.edit(root, &o)
			}
			before := all(t, root)
			err := Run(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), c.words) {
				t.Errorf("%v", err)
			}
			if after := all(t, root); len(after) != len(before) {
				t.Errorf("it changed something: %v", after)
			}
		})
	}
}

// A runsc that is another's stays, and what the machine lacks is said.
func TestInstallSaysWhatIsLeft(t *testing.T) {
	root, o, out := tree(t, "")
	o.DryRun = true
	t.Setenv("PATH", "/usr/bin")
	run := func() string {
		t.Helper()
		out.Reset()
		if err := Run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if got := run(); !strings.Contains(got, "write /usr/local/bin/runsc") || !strings.Contains(got, "apt-get install bubblewrap git postgresql (") {
		t.Error(got)
	}
	for _, name := range []string{"/usr/bin/git", "/usr/lib/postgresql/15/bin/initdb"} {
		put(t, root+name, "")
		if err := os.Chmod(root+name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put(t, root+"/usr/bin/bwrap", "") // not executable
	put(t, root+runsc, "a container engine's")
	if got := run(); strings.Contains(got, "write "+runsc) || !strings.Contains(got, runsc+" is another one") || !strings.Contains(got, "apt-get install bubblewrap\n") {
		t.Error(got)
	}
	if err := errors.Join(os.Chmod(root+"/usr/bin/bwrap", 0o755), os.Remove(filepath.Join(filepath.Dir(o.Binary), "runsc"))); err != nil {
		t.Fatal(err)
	}
	if got := run(); strings.Contains(got, "runsc") || strings.Contains(got, "apt-get") {
		t.Error(got)
	}
}

// The unit is what systemd understands, without a complaint.
func TestUnit(t *testing.T) {
	dir := t.TempDir()
	body, err := docs.Files.ReadFile("systemd/" + unit)
	if err != nil {
		t.Fatal(err)
	}
	text := string(body)
	// A mount namespace of the unit's own would outlive it in sandboxes.
	for _, bad := range []string{"PrivateTmp=yes", "ProtectSystem=strict", "ProtectSystem=full", "ProtectHome=yes", "ReadWritePaths", "PrivateDevices", "MountFlags", "StateDirectory"} {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, bad) {
				t.Error(line)
			}
		}
	}
	if !strings.Contains(text, "KillMode=process\n") || !strings.Contains(text, mark) {
		t.Error("it does not say KillMode=process, or who wrote it")
	}
	// The program is not on the machine that verifies.
	file := filepath.Join(dir, unit)
	put(t, file, strings.ReplaceAll(text, "ExecStart="+binary, "ExecStart=/bin/true"))
	wellFormed(t, file)
	systemd, err := exec.LookPath("systemd-analyze")
	if err != nil {
		return
	}
	out, err := exec.Command(systemd, "verify", file).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, dir) || strings.Contains(line, "inspect") {
			t.Errorf("systemd-analyze: %s", line)
		}
	}
	if err != nil && len(out) == 0 {
		t.Error(err)
	}
}

// wellFormed is the check where there is no systemd: known sections, lines of
// the form KEY=VALUE, each key once but for those that add up.
func wellFormed(t *testing.T, file string) {
	t.Helper()
	seen := map[string]bool{}
	for line := range strings.Lines(read(t, file)) {
		line = strings.TrimSpace(line)
		key, _, ok := strings.Cut(line, "=")
		switch {
		case line == "" || line[0] == '#' || line == "[Unit]" || line == "[Service]" || line == "[Install]":
		case !ok || strings.ContainsAny(key, " \t") || seen[key] && key != "EnvironmentFile":
			t.Errorf("%s: %q", filepath.Base(file), line)
		}
		seen[key] = ok
	}
}
