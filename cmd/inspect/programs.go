package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/proc"
	"inspect/envs/sandbox"
	"inspect/envs/spec"
)

// Programs of this machine in sandboxes. There only what lies under /usr is
// seen, and what is exposed, with the bin of each exposed directory on PATH.
// Agents and toolchains often lie elsewhere: in a home directory, where another
// account may not even pass.

// agentProgram is what is known of an agent's program.
type agentProgram struct {
	install string   // the line that installs it
	native  []string // where npm keeps the native program, below a node_modules
	home    []string // where its own installer keeps it, below a home directory
}

func agentPrograms() map[string]agentProgram {
	arch, triple := "x64", "x86_64-unknown-linux-musl"
	if runtime.GOARCH == "arm64" {
		arch, triple = "arm64", "aarch64-unknown-linux-musl"
	}
	return map[string]agentProgram{
		spec.HarnessOpenCode: {
			install: "npm install -g opencode-ai",
			native:  []string{"opencode-linux-" + arch + "/bin/opencode", "opencode-linux-" + arch + "-baseline/bin/opencode", "opencode-linux-" + arch + "-musl/bin/opencode"},
			home:    []string{".opencode/bin/opencode", ".local/bin/opencode"},
		},
		spec.HarnessCodex: {
			install: "npm install -g @openai/codex",
			native:  []string{"@openai/codex-linux-" + arch + "/vendor/" + triple + "/bin/codex", "@openai/codex-linux-" + arch + "/vendor/" + triple + "/codex/codex", "@openai/codex/vendor/" + triple + "/codex/codex"},
			home:    []string{".local/bin/codex", ".cargo/bin/codex"},
		},
		spec.HarnessClaude: {
			install: "npm install -g @anthropic-ai/claude-code",
			native:  []string{"@anthropic-ai/claude-code-linux-" + arch + "/claude", "@anthropic-ai/claude-code-linux-" + arch + "-musl/claude"},
			home:    []string{".local/bin/claude", ".claude/local/claude"},
		},
	}
}

// programs finds programs of this machine and shows them in sandboxes.
type programs struct {
	given map[string]string // path of an agent's program by its kind, from --program
	path  string            // PATH to look in
	home  string
	uid   int // of sandboxes
}

// newPrograms reads the values of --program.
func newPrograms(flags []string, uid int) (programs, error) {
	p := programs{given: map[string]string{}, path: os.Getenv("PATH"), uid: uid}
	p.home, _ = os.UserHomeDir() // without one, one place less is looked at
	for _, f := range flags {
		kind, path, ok := strings.Cut(f, "=")
		if _, known := agentPrograms()[kind]; !ok || !known || path == "" {
			return p, usagef("--program: expected opencode=PATH, codex=PATH or claude=PATH, but found %q", f)
		}
		abs, err := filepath.Abs(path)
		if err != nil {
			return p, usagef("--program %s: %w", f, err)
		}
		p.given[kind] = abs
	}
	return p, nil
}

// agent finds the native program of an agent: one file that needs nothing else.
func (p programs) agent(kind string) (string, error) {
	a, known := agentPrograms()[kind]
	if !known {
		return "", fmt.Errorf("there is no agent %q", kind)
	}
	if path := p.given[kind]; path != "" {
		if native, err := p.nativeOf(path, a); err == nil {
			return native, nil
		}
		return "", usagef("--program %s=%s: expected the native program of %s (an ELF file), or npm's script beside it", kind, path, kind)
	}
	var places []string
	for _, dir := range filepath.SplitList(p.path) {
		if filepath.IsAbs(dir) {
			places = append(places, filepath.Join(dir, kind))
		}
	}
	if p.home != "" {
		for _, in := range a.home {
			places = append(places, filepath.Join(p.home, in))
		}
	}
	for _, place := range places {
		if native, err := p.nativeOf(place, a); err == nil {
			return native, nil
		}
	}
	for _, root := range p.npmRoots() {
		if native := nativeBelow(root, a); native != "" {
			return native, nil
		}
	}
	return "", setupError{fmt.Errorf("%s is not installed: %s (or name its native program with --program %s=PATH)", kind, a.install, kind)}
}

// npmRoots are where npm keeps packages for everybody.
func (p programs) npmRoots() []string {
	roots := []string{"/usr/local/lib/node_modules", "/usr/lib/node_modules"}
	if p.home != "" {
		for _, in := range []string{".npm-global", ".local", ".npm-packages"} {
			roots = append(roots, filepath.Join(p.home, in, "lib/node_modules"))
		}
	}
	return roots
}

// nativeOf is the native program that path is, or that the script at path
// starts.
func (p programs) nativeOf(path string, a agentProgram) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	if isELF(real) {
		return real, nil
	}
	for dir := filepath.Dir(real); dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if filepath.Base(dir) == "node_modules" {
			if native := nativeBelow(dir, a); native != "" {
				return native, nil
			}
		} else if native := nativeBelow(filepath.Join(dir, "node_modules"), a); native != "" {
			return native, nil
		}
	}
	return "", fmt.Errorf("%s is not a native program: %w", path, fs.ErrNotExist)
}

// nativeBelow looks for an agent's program in a node_modules: as a package of
// its own, or below the package that brings it.
func nativeBelow(root string, a agentProgram) string {
	wrapper := strings.TrimPrefix(a.install, "npm install -g ")
	for _, dir := range []string{root, filepath.Join(root, wrapper, "node_modules")} {
		for _, in := range a.native {
			if path := filepath.Join(dir, in); isELF(path) {
				return path
			}
		}
	}
	return ""
}

// isELF says whether a file is a program that the kernel itself can run.
func isELF(path string) bool {
	st, err := os.Stat(path)
	if err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var magic [4]byte
	_, err = io.ReadFull(f, magic[:])
	return err == nil && bytes.Equal(magic[:], []byte("\x7fELF"))
}

// lendAgent makes a directory below dir whose bin holds the one program, and
// returns it: what lies beside the program is not shown. The same file is taken
// once.
func (p programs) lendAgent(dir, kind, path string) (string, error) {
	st, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%d\n%d", path, st.Size(), st.ModTime().UnixNano()))
	home := filepath.Join(dir, kind+"-"+hex.EncodeToString(sum[:6]))
	to := filepath.Join(home, "bin", kind)
	if _, err := os.Stat(to); err == nil {
		return home, nil
	}
	if err := openDirs(dir, home, filepath.Join(home, "bin")); err != nil {
		return "", err
	}
	if strings.HasPrefix(path, "/usr/") {
		return home, os.Symlink(path, to)
	}
	tmp := to + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := linkOrCopy(path, tmp, st); err != nil {
		return "", fmt.Errorf("copy %s to where sandboxes see it: %w", path, err)
	}
	return home, os.Rename(tmp, to)
}

// linkOrCopy gives a file a second name if everybody may run it, and copies it
// otherwise, sharing blocks where the file system can.
func linkOrCopy(from, to string, st fs.FileInfo) error {
	if st.Mode().Perm()&0o555 == 0o555 && os.Link(from, to) == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	if unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) != nil {
		_, err = io.Copy(out, in)
	}
	mode := st.Mode().Perm() | 0o444
	if mode&0o111 != 0 {
		mode |= 0o111
	}
	return errors.Join(err, out.Chmod(mode), out.Close())
}

// openDirs makes directories that everybody can enter.
func openDirs(dirs ...string) error {
	for _, d := range dirs {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(d, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// provide finds and shows what agents and commands need, see try.Options.
func (p programs) provide(ctx context.Context, dir string, agents, needed, optional []string) ([]string, error) {
	if err := openDirs(dir); err != nil {
		return nil, err
	}
	var expose []string
	for _, kind := range agents {
		path, err := p.agent(kind)
		if err != nil {
			return nil, err
		}
		home, err := p.lendAgent(dir, kind, path)
		if err != nil {
			return nil, err
		}
		expose = append(expose, home)
	}
	var missing []string
	for _, name := range append(slices.Clone(needed), optional...) {
		home, err := p.toolchain(ctx, dir, name, expose)
		switch {
		case errors.Is(err, proc.ErrNotFound) && slices.Contains(needed, name):
			missing = append(missing, name)
		case errors.Is(err, proc.ErrNotFound):
		case err != nil:
			return nil, err
		case home != "" && !slices.Contains(expose, home):
			expose = append(expose, home)
		}
	}
	if len(missing) > 0 {
		return nil, setupError{fmt.Errorf("what the repository's commands begin with is not on this machine: %s; install it, or give other commands with --setup and --verify", strings.Join(missing, ", "))}
	}
	return expose, nil
}

// lendAgents shows the agents that are installed here in the sandboxes of a
// `serve`. The one it works with by default must be among them.
func lendAgents(c serveConfig, dir string) ([]string, error) {
	p, err := newPrograms(c.Programs, c.SandboxUID)
	if err != nil {
		return nil, err
	}
	if err := openDirs(dir); err != nil {
		return nil, err
	}
	var expose []string
	for _, kind := range []string{spec.HarnessOpenCode, spec.HarnessCodex, spec.HarnessClaude} {
		path, err := p.agent(kind)
		if err != nil {
			if p.given[kind] != "" || c.ModelsFile != "" && c.Harness == kind {
				return nil, err
			}
			continue // a repository that asks for it is told
		}
		home, err := p.lendAgent(dir, kind, path)
		if err != nil {
			return nil, err
		}
		expose = append(expose, home)
	}
	return expose, nil
}

// goBin is on the PATH of sandboxes in any case.
const goBin = "/usr/local/go/bin"

// toolchain is the directory to expose so that sandboxes find a program; empty
// if they find it already. The error is proc.ErrNotFound if this machine does
// not have it.
func (p programs) toolchain(ctx context.Context, dir, name string, exposed []string) (string, error) {
	if strings.Contains(name, "/") {
		return "", nil // of the repository, or named by its place
	}
	seen := []string{"PATH=" + sandbox.SearchPath + ":" + goBin}
	for _, e := range exposed {
		seen[0] += ":" + filepath.Join(e, "bin")
	}
	if path, err := proc.LookPath(name, seen); err == nil && p.visible(path, exposed) {
		return "", nil
	}
	path, err := proc.LookPath(name, []string{"PATH=" + p.path})
	if err != nil {
		return "", err
	}
	path, whole := p.behind(ctx, name, path)
	home := filepath.Dir(filepath.Dir(path))
	switch {
	case filepath.Base(filepath.Dir(path)) != "bin", home == "/":
		return "", fmt.Errorf("%s: %w where a sandbox could see it (%s)", name, proc.ErrNotFound, path)
	case !whole && !managed(home) && p.private(home):
		// What lies beside it is nobody's business: the one program, if it stands alone.
		if !isELF(path) {
			return "", fmt.Errorf("%s: %w where a sandbox could see it (%s)", name, proc.ErrNotFound, path)
		}
		return p.lendAgent(dir, name, path)
	case p.reachable(home):
		return home, nil
	}
	return lendTree(ctx, dir, home)
}

// private says whether a directory may hold more than programs: a home
// directory and whatever lies below one.
func (p programs) private(dir string) bool {
	for _, home := range []string{p.home, "/root", "/home"} {
		if home != "" && home != "/" && strings.HasPrefix(dir+"/", home+"/") {
			return true
		}
	}
	return false
}

// managed says whether a directory is one version that a version manager keeps
// below a home: programs and their libraries, nothing of a person's.
func managed(dir string) bool {
	for _, in := range []string{"/.nvm/versions/", "/.fnm/node-versions/", "/.local/share/fnm/node-versions/", "/.volta/tools/image/", "/.asdf/installs/",
		"/.local/share/mise/installs/", "/.rbenv/versions/", "/.pyenv/versions/", "/.rustup/toolchains/", "/.sdkman/candidates/"} {
		if strings.Contains(dir+"/", in) {
			return true
		}
	}
	return false
}

// visible says whether what a path leads to is seen in sandboxes.
func (p programs) visible(path string, exposed []string) bool {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false
	}
	for _, root := range append([]string{"/usr", "/bin", "/sbin", "/lib"}, exposed...) {
		if strings.HasPrefix(real, root+"/") {
			return true
		}
	}
	return false
}

// behind is the program that really runs where a link or a shim of a version
// manager stands on PATH. whole: it is part of a toolchain that has a directory
// to itself.
func (p programs) behind(ctx context.Context, name, path string) (program string, whole bool) {
	ask := func(argv ...string) (string, bool) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		res, err := proc.Run(ctx, proc.Command{Argv: argv, Dir: "/", Env: os.Environ()})
		out := strings.TrimSpace(string(res.Stdout))
		return out, err == nil && filepath.IsAbs(out)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return path, false
	}
	switch {
	case filepath.Base(real) == "rustup":
		if which, ok := ask(real, "which", name); ok {
			return which, true
		}
	case filepath.Base(filepath.Dir(path)) == "shims" && strings.Contains(path, "/.pyenv/"):
		if which, ok := ask("pyenv", "which", name); ok {
			return which, true
		}
	case name == "go" || name == "gofmt":
		if root, ok := ask(filepath.Join(filepath.Dir(path), "go"), "env", "GOROOT"); ok {
			return filepath.Join(root, "bin", name), true
		}
	}
	if home := filepath.Dir(filepath.Dir(path)); strings.HasPrefix(real, home+"/") && !strings.HasPrefix(home+"/", "/usr/") {
		return path, false // where it links to is shown with it
	}
	return real, false
}

// reachable says whether the sandboxes' account can pass to a directory.
func (p programs) reachable(dir string) bool {
	if os.Geteuid() != 0 {
		return true // it is our own account
	}
	for d := dir; ; d = filepath.Dir(d) {
		var st syscall.Stat_t
		if err := syscall.Stat(d, &st); err != nil || int(st.Uid) != p.uid && st.Mode&0o001 == 0 {
			return false
		}
		if d == filepath.Dir(d) {
			return true
		}
	}
}

// maxLent bounds what of a toolchain is copied where its files cannot get a
// second name, in bytes.
const maxLent = 4 << 30

// lendTree gives the files of a toolchain second names below dir, where the
// sandboxes' account can read them.
func lendTree(ctx context.Context, dir, home string) (string, error) {
	sum := sha256.Sum256([]byte(home))
	to := filepath.Join(dir, filepath.Base(home)+"-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(to); err == nil {
		return to, nil
	}
	tmp := to + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return "", err
	}
	var copied int64
	err := filepath.WalkDir(home, func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(home, path)
		if err != nil {
			return err
		}
		if d.IsDir() && (rel == "share/doc" || rel == "share/man") {
			return filepath.SkipDir
		}
		target := filepath.Join(tmp, rel)
		switch {
		case d.IsDir():
			return openDirs(target)
		case d.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		case !d.Type().IsRegular():
			return nil
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		if st.Mode().Perm()&0o444 == 0o444 && os.Link(path, target) == nil {
			return nil
		}
		if copied += st.Size(); copied > maxLent {
			return fmt.Errorf("it has more than %d GiB", maxLent>>30)
		}
		return linkOrCopy(path, target, st)
	})
	if err != nil {
		return "", errors.Join(fmt.Errorf("show %s in sandboxes: %w", home, err), os.RemoveAll(tmp))
	}
	return to, os.Rename(tmp, to)
}
