// Package install puts Inspect onto a machine: system accounts, directories,
// sample configuration and a systemd unit. Options come in; what is done, or
// would be, is written line by line. It starts nothing, and a second run
// changes nothing that an operator has edited.
package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"inspect/docs"
	"inspect/envs/proc"
)

// Account is one that the installation needs.
type Account struct {
	Name    string
	UID     int    // and group id; 0: any system account's
	For     string // in words
	Setting string // of inspect.env that says its id; with UID 0 its name; "": none
}

// Options of Run.
type Options struct {
	Root     string // a file tree to install into; empty: this machine
	Data     string // directory of everything Inspect keeps
	Binary   string // this program
	Init     string // inspect-init of the same build; empty: there is none
	Accounts []Account
	DryRun   bool
	Out      io.Writer
}

// Places on the machine. The unit names them.
const (
	configDir = "/etc/inspect"
	unitDir   = "/etc/systemd/system"
	unit      = "inspect.service"
	binary    = "/usr/local/bin/inspect"
	initFile  = "/usr/local/bin/inspect-init"
	runsc     = "/usr/local/bin/runsc" // where --runsc looks
	// data is what the samples say.
	data = "/var/lib/inspect"
)

// ErrForeign is the error of something in the way that is not of this
// installation; the words say what to do.
var ErrForeign = errors.New("not of this installation")

// mark is in the first lines of every file that is ours to replace.
const mark = "Written by `inspect install`"

// Run installs. It looks at everything before it changes anything. Running it
// again completes an installation and brings program and unit up to date.
func Run(ctx context.Context, o Options) error {
	if !o.DryRun && os.Geteuid() != 0 {
		return errors.New("only root can install: run it as root, or with --dry-run to see what it would do")
	}
	if !filepath.IsAbs(o.Data) || filepath.Clean(o.Data) != o.Data || strings.ContainsAny(o.Data, " \"'\\\n%$") {
		return fmt.Errorf("the data directory %q must be an absolute path without spaces, quotes, $ and %%", o.Data)
	}
	w := work{o: o}
	if err := w.look(); err != nil {
		return err
	}
	for _, step := range w.steps {
		fmt.Fprintln(o.Out, step.words)
		if o.DryRun {
			continue
		}
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.words, err)
		}
	}
	w.next()
	return nil
}

type step struct {
	words string
	do    func(ctx context.Context) error
}

type work struct {
	o     Options
	steps []step
	env   []string // of inspect.env: what is settled here
	left  []string // to a person
}

// at is where a path of the machine lies.
func (w *work) at(path string) string { return filepath.Join("/", w.o.Root, path) }

func (w *work) add(do func(context.Context) error, format string, args ...any) {
	w.steps = append(w.steps, step{fmt.Sprintf(format, args...), do})
}

// look finds what is to be done and what is in the way.
func (w *work) look() error {
	if err := w.accounts(); err != nil {
		return err
	}
	for _, d := range []struct {
		path string
		mode fs.FileMode
		mine []string // one of these is in it, if there is anything
	}{
		{w.o.Data, 0o711, []string{"private", "node"}},
		{configDir, 0o700, []string{"inspect.env"}},
	} {
		if err := w.directory(d.path, d.mode, d.mine); err != nil {
			return err
		}
	}
	w.env = append(w.env, "INSPECT_DATA="+w.o.Data)
	if err := w.settings(); err != nil {
		return err
	}
	models, err := docs.Files.ReadFile("models.yml")
	if err != nil {
		return err
	}
	if err := w.file(filepath.Join(configDir, "models.yml.sample"), append([]byte("# "+mark+", as an example.\n"), models...), 0o600); err != nil {
		return err
	}
	if err := w.program(binary, w.o.Binary); err != nil {
		return err
	}
	if w.o.Init != "" {
		if err := w.program(initFile, w.o.Init); err != nil {
			return err
		}
	}
	if err := w.runsc(); err != nil {
		return err
	}
	body, err := docs.Files.ReadFile("systemd/" + unit)
	if err != nil {
		return err
	}
	return w.file(filepath.Join(unitDir, unit), body, 0o644)
}

// accounts makes those that are not there. One that is must be as is needed.
func (w *work) accounts() error {
	byName, byID, err := passwd(w.at("/etc/passwd"))
	if err != nil {
		return err
	}
	groups, err := entries(w.at("/etc/group"))
	if err != nil {
		return err
	}
	for _, a := range w.o.Accounts {
		if a.Setting != "" {
			value := a.Name
			if a.UID != 0 {
				value = strconv.Itoa(a.UID)
			}
			w.env = append(w.env, a.Setting+"="+value)
		}
		if there, ok := byName[a.Name]; ok {
			if a.UID != 0 && (there.uid != a.UID || there.gid != a.UID) {
				return fmt.Errorf("%w: the account %s has the ids %d:%d, it must have %d:%d; give it these (usermod, groupmod) or remove it",
					ErrForeign, a.Name, there.uid, there.gid, a.UID, a.UID)
			}
			if there.uid == 0 {
				return fmt.Errorf("%w: the account %s is root", ErrForeign, a.Name)
			}
			continue
		}
		if name, ok := byID[a.UID]; ok && a.UID != 0 {
			return fmt.Errorf("%w: account id %d belongs to %s, and %s needs it; give %s another", ErrForeign, a.UID, name, a.Name, name)
		}
		id, there := "", false
		for _, g := range groups {
			if there = there || g[0] == a.Name; g[0] == a.Name {
				id = g[2]
			} else if g[2] == strconv.Itoa(a.UID) && a.UID != 0 {
				return fmt.Errorf("%w: group id %d belongs to %s, and %s needs it; give %s another", ErrForeign, a.UID, g[0], a.Name, g[0])
			}
		}
		if there && a.UID != 0 && id != strconv.Itoa(a.UID) {
			return fmt.Errorf("%w: the group %s has the id %s, it must have %d; give it this one (groupmod) or remove it", ErrForeign, a.Name, id, a.UID)
		}
		w.addAccount(a, there)
	}
	return nil
}

// addAccount makes a group and an account with the same id.
func (w *work) addAccount(a Account, hasGroup bool) {
	group := []string{"groupadd", "--system"}
	user := []string{"useradd", "--system", "--no-create-home", "--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin",
		"--comment", "Inspect, " + a.For, "--gid", a.Name}
	if a.UID != 0 {
		group = append(group, "--gid", strconv.Itoa(a.UID))
		user = append(user, "--uid", strconv.Itoa(a.UID))
	}
	if w.o.Root != "" {
		group, user = append(group, "--prefix", w.at("")), append(user, "--prefix", w.at(""))
	}
	w.add(func(ctx context.Context) error {
		for _, argv := range [][]string{group, user} {
			if hasGroup && argv[0] == group[0] {
				continue
			}
			if _, err := proc.Run(ctx, proc.Command{Argv: append(argv, a.Name)}); err != nil {
				return err
			}
		}
		return nil
	}, "make the system account %s (%s)", a.Name, a.For)
}

type ids struct{ uid, gid int }

// passwd reads who is there. A file tree without the file has nobody.
func passwd(path string) (byName map[string]ids, byID map[int]string, err error) {
	byName, byID = map[string]ids{}, map[int]string{}
	lines, err := entries(path)
	for _, f := range lines {
		uid, err1 := strconv.Atoi(f[2])
		gid, err2 := strconv.Atoi(f[3])
		if errors.Join(err1, err2) == nil {
			byName[f[0]], byID[uid] = ids{uid, gid}, f[0]
		}
	}
	return byName, byID, err
}

// entries are the fields of the lines of /etc/passwd or /etc/group, at least four.
func entries(path string) (out [][]string, err error) {
	body, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for line := range strings.Lines(string(body)) {
		if f := strings.Split(strings.TrimSpace(line), ":"); len(f) >= 4 {
			out = append(out, f)
		}
	}
	return out, nil
}

// directory makes a directory of root's. One that is there must be root's and,
// unless it is empty, hold something that only we put there.
func (w *work) directory(path string, mode fs.FileMode, mine []string) error {
	full := w.at(path)
	st, err := os.Lstat(full)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		w.add(func(context.Context) error {
			return errors.Join(os.MkdirAll(filepath.Dir(full), 0o755), os.MkdirAll(full, mode), os.Chmod(full, mode))
		}, "make %s (root, %04o)", path, mode)
		return nil
	case err != nil:
		return err
	case !st.IsDir():
		return fmt.Errorf("%w: %s is there and is not a directory", ErrForeign, path)
	case st.Sys().(*syscall.Stat_t).Uid != 0:
		return fmt.Errorf("%w: %s belongs to account id %d, not to root; whoever owns it runs Inspect there, or move it away", ErrForeign, path, st.Sys().(*syscall.Stat_t).Uid)
	}
	entries, err := os.ReadDir(full)
	if err != nil {
		return err
	}
	known := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return slices.Contains(mine, e.Name()) })
	if len(entries) > 0 && !known {
		return fmt.Errorf("%w: %s is not empty, and nothing in it is Inspect's; move it away or choose another directory", ErrForeign, path)
	}
	if st.Mode().Perm() != mode {
		w.add(func(context.Context) error { return os.Chmod(full, mode) }, "set the mode of %s to %04o", path, mode)
	}
	return nil
}

// settings writes inspect.env, which is the operator's from then on. One that
// is there must be for the same data directory.
func (w *work) settings() error {
	path := filepath.Join(configDir, "inspect.env")
	there, err := os.ReadFile(w.at(path))
	if errors.Is(err, fs.ErrNotExist) {
		w.write(path, []byte("# "+mark+"; yours to change. Every flag of `inspect serve` can be set here.\n"+strings.Join(w.env, "\n")+`
#INSPECT_GITHUB_APP_ID=12345
INSPECT_GITHUB_KEY_FILE=/etc/inspect/app.pem
INSPECT_WEBHOOK_SECRET_FILE=/etc/inspect/webhook.secret
#INSPECT_MODELS=/etc/inspect/models.yml
#INSPECT_POLICY=/etc/inspect/policy.yml
#INSPECT_PUBLIC_URL=https://inspect.example.com
INSPECT_LISTEN_HOOKS=127.0.0.1:7460
INSPECT_LISTEN_PEOPLE=127.0.0.1:7461
INSPECT_LISTEN_MACHINES=127.0.0.1:7462
`), 0o600)
		return nil
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(there)) {
		if other, ok := strings.CutPrefix(strings.TrimSpace(line), "INSPECT_DATA="); ok && other != w.o.Data {
			return fmt.Errorf("%w: %s is of an installation in %s; install with --data for that one, or move the file away", ErrForeign, path, other)
		}
	}
	return nil
}

// file writes a file of ours, or brings it up to date.
func (w *work) file(path string, body []byte, mode fs.FileMode) error {
	there, err := os.ReadFile(w.at(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case bytes.Equal(there, body):
		return nil
	case !bytes.Contains(there[:min(len(there), 1024)], []byte(mark)):
		return fmt.Errorf("%w: %s was not written by inspect install; move it away", ErrForeign, path)
	}
	w.write(path, body, mode)
	return nil
}

// program copies a program of this build to where it is expected: inspect by the
// unit, its init by inspect.
func (w *work) program(path, from string) error {
	body, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("read this program: %w", err)
	}
	there, err := os.ReadFile(w.at(path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil && bytes.Equal(there, body) {
		return nil
	}
	w.write(path, body, 0o755)
	return nil
}

// write puts a file in its place as a whole.
func (w *work) write(path string, body []byte, mode fs.FileMode) {
	full := w.at(path)
	w.add(func(context.Context) error {
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			return err
		}
		tmp := full + ".new"
		if err := errors.Join(os.WriteFile(tmp, body, mode), os.Chmod(tmp, mode)); err != nil {
			return err
		}
		return os.Rename(tmp, full)
	}, "write %s (root, %04o)", path, mode)
}

// runsc copies gVisor's program, if it was built beside this one. Another that
// is there may be a container engine's: it stays.
func (w *work) runsc() error {
	body, err := os.ReadFile(filepath.Join(filepath.Dir(w.o.Binary), "runsc"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read gVisor's program: %w", err)
	}
	there, err := os.ReadFile(w.at(runsc))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		w.write(runsc, body, 0o755)
	case err != nil:
		return err
	case !bytes.Equal(there, body):
		w.left = append(w.left, fmt.Sprintf("%s is another one than was built here, and stays. For `--sandbox gvisor` replace it, or name one with INSPECT_RUNSC in %s/inspect.env.", runsc, configDir))
	}
	return nil
}

// missing are the Debian packages of programs that are needed and not there.
func (w *work) missing() (packages []string) {
	path := filepath.SplitList(os.Getenv("PATH"))
	versions, _ := filepath.Glob(w.at("/usr/lib/postgresql/*/bin")) // the pattern is good
	for i, v := range versions {
		versions[i] = strings.TrimPrefix(v, w.at(""))
	}
	for _, p := range []struct {
		name, program string
		dirs          []string
	}{{"bubblewrap", "bwrap", path}, {"git", "git", path}, {"postgresql", "initdb", append(versions, path...)}} {
		if !slices.ContainsFunc(p.dirs, func(dir string) bool {
			st, err := os.Stat(w.at(filepath.Join(dir, p.program)))
			return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
		}) {
			packages = append(packages, p.name)
		}
	}
	return packages
}

// next says what is left to a person.
func (w *work) next() {
	head := "Next"
	if w.o.DryRun {
		head = "Nothing was changed. After an installation"
	}
	steps := w.left
	if missing := w.missing(); len(missing) > 0 {
		words := "apt-get install " + strings.Join(missing, " ")
		if slices.Contains(missing, "postgresql") {
			words += " (postgresql not if INSPECT_POSTGRES_URL names a server of your own)"
		}
		steps = append(steps, words)
	}
	steps = append(steps,
		fmt.Sprintf("Put the App's private key and the webhook secret into %[1]s/app.pem and %[1]s/webhook.secret (root, mode 600).", configDir),
		fmt.Sprintf("Fill in %[1]s/inspect.env; for models copy %[1]s/models.yml.sample to models.yml.", configDir),
		"systemctl daemon-reload && systemctl enable --now "+unit,
		"journalctl -u inspect: it says the address of people's pages and where their token is.",
	)
	fmt.Fprintf(w.o.Out, "%s:\n", head)
	for i, step := range steps {
		fmt.Fprintf(w.o.Out, "  %d. %s\n", i+1, step)
	}
}
