package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"inspect/envs/proc"
)

// native makes a small program at path.
func native(t *testing.T, path string) {
	t.Helper()
	in, err := os.Open("/usr/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

func script(t *testing.T, path, body string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(body), 0o755); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, to, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}

// The native program of an agent is found however npm or its own installer laid
// it out.
func TestAgentPrograms(t *testing.T) {
	for name, c := range map[string]struct {
		kind string
		make func(dir string) (want string)
	}{
		"native on PATH": {"opencode", func(dir string) string {
			native(t, dir+"/bin/opencode")
			return dir + "/bin/opencode"
		}},
		"npm -g, linked by postinstall": {"opencode", func(dir string) string {
			native(t, dir+"/lib/node_modules/opencode-ai/bin/opencode.exe")
			link(t, "../lib/node_modules/opencode-ai/bin/opencode.exe", dir+"/bin/opencode")
			return dir + "/lib/node_modules/opencode-ai/bin/opencode.exe"
		}},
		"npm -g, nested": {"codex", func(dir string) string {
			script(t, dir+"/lib/node_modules/@openai/codex/bin/codex.js", "#!/usr/bin/env node\n")
			link(t, "../lib/node_modules/@openai/codex/bin/codex.js", dir+"/bin/codex")
			in := dir + "/lib/node_modules/@openai/codex/node_modules/" + agentPrograms()["codex"].native[0]
			native(t, in)
			return in
		}},
		"npm, hoisted": {"claude", func(dir string) string {
			script(t, dir+"/node_modules/@anthropic-ai/claude-code/cli.js", "#!/usr/bin/env node\n")
			link(t, "../node_modules/@anthropic-ai/claude-code/cli.js", dir+"/bin/claude")
			in := dir + "/node_modules/" + agentPrograms()["claude"].native[0]
			native(t, in)
			return in
		}},
		"own installer": {"opencode", func(dir string) string {
			native(t, dir+"/home/.opencode/bin/opencode")
			return dir + "/home/.opencode/bin/opencode"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			want := c.make(dir)
			p := programs{given: map[string]string{}, path: dir + "/bin", home: dir + "/home"}
			got, err := p.agent(c.kind)
			if err != nil || got != want {
				t.Errorf("%q %v, want %q", got, err, want)
			}
			given, err := newPrograms([]string{c.kind + "=" + want}, 0)
			if err != nil {
				t.Fatal(err)
			}
			given.path, given.home = "", ""
			if got, err := given.agent(c.kind); err != nil || got != want {
				t.Errorf("named: %q %v", got, err)
			}
		})
	}
}

func TestAgentMissing(t *testing.T) {
	dir := t.TempDir()
	script(t, dir+"/bin/opencode", "#!/usr/bin/env node\n")
	p := programs{given: map[string]string{"codex": dir + "/bin/opencode"}, path: dir + "/bin", home: dir}
	_, err := p.agent("opencode")
	var coded interface{ ExitCode() int }
	if !errors.As(err, &coded) || coded.ExitCode() != exitSetup || !strings.Contains(err.Error(), "npm install -g opencode-ai") {
		t.Errorf("%v", err)
	}
	if _, err := p.agent("codex"); !errors.As(err, &coded) || coded.ExitCode() != exitUsage {
		t.Errorf("%v", err)
	}
	for _, bad := range []string{"x", "opencode=", "magic=/bin/true", "=/bin/true"} {
		if _, err := newPrograms([]string{bad}, 0); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// What is lent is the one file; the original keeps its mode, and a second time
// costs nothing.
func TestLendAgent(t *testing.T) {
	dir := t.TempDir()
	from := dir + "/secret/bin/opencode"
	native(t, from)
	if err := os.Chmod(from, 0o700); err != nil {
		t.Fatal(err)
	}
	script(t, dir+"/secret/bin/token", "x")
	p := programs{}
	var homes []string
	for range 2 {
		home, err := p.lendAgent(dir+"/lent", "opencode", from)
		if err != nil {
			t.Fatal(err)
		}
		homes = append(homes, home)
	}
	entries, err := os.ReadDir(homes[0] + "/bin")
	if err != nil || homes[0] != homes[1] || len(entries) != 1 || entries[0].Name() != "opencode" {
		t.Fatalf("%v %v %v", homes, entries, err)
	}
	if st, err := os.Stat(homes[0] + "/bin/opencode"); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("%v %v", st, err)
	}
	if st, err := os.Stat(from); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the original: %v %v", st, err)
	}
}

// A toolchain outside of what sandboxes see is shown as a whole where it has a
// directory to itself, and a home directory never is.
func TestToolchain(t *testing.T) {
	dir := t.TempDir()
	home := dir + "/home"
	native(t, dir+"/opt/zig/bin/zig")
	native(t, home+"/.rustup/toolchains/stable/bin/ferro")
	native(t, home+"/.tools/bin/single")
	script(t, home+"/.tools/bin/scripted", "#!/bin/sh\n")
	script(t, home+"/.tools/credentials", "secret")
	native(t, home+"/src/project/deep/bin/deep") // beside a repository's .env, perhaps
	link(t, home+"/.tools/bin/single", home+"/bin/linked")
	p := programs{path: strings.Join([]string{dir + "/opt/zig/bin", home + "/.rustup/toolchains/stable/bin", home + "/.tools/bin", home + "/bin", home + "/src/project/deep/bin"}, ":"), home: home, uid: os.Getuid()}
	lent := dir + "/lent"
	for name, want := range map[string]string{"sh": "", "git": "", "zig": dir + "/opt/zig", "ferro": home + "/.rustup/toolchains/stable", "./run.sh": ""} {
		got, err := p.toolchain(t.Context(), lent, name, nil)
		if err == nil && want != "" && !p.reachable(want) {
			want = got // root in a closed directory: second names of its files
			if !strings.HasPrefix(got, lent) {
				t.Errorf("%s: %s", name, got)
			}
		}
		if err != nil || got != want {
			t.Errorf("%s: %q %v, want %q", name, got, err, want)
		}
		if got != "" {
			if again, err := p.toolchain(t.Context(), lent, name, []string{got}); again != "" || err != nil {
				t.Errorf("%s is not seen where it is shown: %q %v", name, again, err)
			}
		}
	}
	for _, name := range []string{"single", "linked", "deep"} {
		got, err := p.toolchain(t.Context(), lent, name, nil)
		if err != nil || !strings.HasPrefix(got, lent) {
			t.Fatalf("%s: %q %v", name, got, err)
		}
		if entries, _ := os.ReadDir(got + "/bin"); len(entries) != 1 || entries[0].Name() != name {
			t.Errorf("%s: %v", name, entries)
		}
	}
	for _, name := range []string{"scripted", "nowhere"} {
		if got, err := p.toolchain(t.Context(), lent, name, nil); !errors.Is(err, proc.ErrNotFound) {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	expose, err := p.provide(t.Context(), lent, nil, []string{"zig"}, []string{"ferro", "nowhere", "cd"})
	if err != nil || len(expose) != 2 {
		t.Errorf("%v %v", expose, err)
	}
	_, err = p.provide(t.Context(), lent, nil, []string{"zig", "nowhere"}, nil)
	var coded interface{ ExitCode() int }
	if !errors.As(err, &coded) || coded.ExitCode() != exitSetup || !strings.Contains(err.Error(), "not on this machine: nowhere") {
		t.Errorf("%v", err)
	}
}

// Files that get second names stay as they are.
func TestLendTree(t *testing.T) {
	dir := t.TempDir()
	native(t, dir+"/from/bin/x")
	script(t, dir+"/from/lib/closed", "x")
	script(t, dir+"/from/share/doc/long", "x")
	link(t, "../lib/closed", dir+"/from/bin/link")
	if err := os.Chmod(dir+"/from/lib/closed", 0o600); err != nil {
		t.Fatal(err)
	}
	to, err := lendTree(t.Context(), dir+"/lent", dir+"/from")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	err = filepath.WalkDir(to, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(to, path)
			names = append(names, rel)
		}
		return err
	})
	if err != nil || !slices.Equal(names, []string{"bin/link", "bin/x", "lib/closed"}) {
		t.Errorf("%v %v", names, err)
	}
	if st, err := os.Stat(dir + "/from/lib/closed"); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the original: %v %v", st, err)
	}
	if st, err := os.Stat(to + "/lib/closed"); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("the copy: %v %v", st, err)
	}
}
