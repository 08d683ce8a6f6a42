// Package install puts Inspect onto a machine: system accounts, directories,
// sample configuration and systemd units. Options come in; what is done, or
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
	"maps"
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

// Places on the machine. The units name them.
const (
	configDir = "/etc/inspect"
	unitDir   = "/etc/systemd/system"
	binary    = "/usr/local/bin/inspect"
	initFile  = "/usr/local/bin/inspect-init"
	// data is what the units and samples say.
	data = "/var/lib/inspect"
)

// ErrForeign is the error of something in the way that is not of this
// installation; the words say what to do.
var ErrForeign = errors.New("not of this installation")

// mark is in the first lines of every file that is ours to replace.
const mark = "Written by `inspect install`"

// Run installs. It looks at everything before it changes anything. Running it
// again completes an installation and brings program and units up to date.
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
		{w.o.Data, 0o711, []string{"private"}},
		{configDir, 0o700, []string{"inspect.env", "node.env"}},
	} {
		if err := w.directory(d.path, d.mode, d.mine); err != nil {
			return err
		}
	}
	w.env = append(w.env, "INSPECT_DATA="+w.o.Data)
	texts := w.samples()
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if err := w.sample(filepath.Join(configDir, name), texts[name]); err != nil {
			return err
		}
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
	units, err := docs.Files.ReadDir("systemd")
	if err != nil {
		return err
	}
	for _, u := range units {
		body, err := docs.Files.ReadFile("systemd/" + u.Name())
		if err != nil {
			return err
		}
		if err := w.file(filepath.Join(unitDir, u.Name()), body, 0o644); err != nil {
			return err
		}
	}
	return nil
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

// sample writes a configuration file that is the operator's from then on. One
// that is there must be for the same data directory.
func (w *work) sample(path, body string) error {
	there, err := os.ReadFile(w.at(path))
	if errors.Is(err, fs.ErrNotExist) {
		w.write(path, []byte(body), 0o600)
		return nil
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(there)) {
		for setting, want := range map[string]string{"INSPECT_DATA=": w.o.Data, "INSPECT_ROOT=": w.nodeRoot()} {
			if other, ok := strings.CutPrefix(strings.TrimSpace(line), setting); ok && other != want {
				return fmt.Errorf("%w: %s is of an installation in %s; install with --data for that one, or move the file away", ErrForeign, path, other)
			}
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
// units, its init by inspect.
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

// next says what is left to a person.
func (w *work) next() {
	head := "Next"
	if w.o.DryRun {
		head = "Nothing was changed. After an installation"
	}
	fmt.Fprintf(w.o.Out, `%s:
  1. Put the App's private key and the webhook secret into %[2]s/app.pem and %[2]s/webhook.secret (root, mode 600).
  2. Fill in %[2]s/inspect.env; for models copy %[2]s/models.yml.sample to models.yml.
  3. systemctl daemon-reload && systemctl enable --now inspect.service
  4. journalctl -u inspect: it says the address of people's pages and where their token is.
On a machine that only runs sessions: fill in %[2]s/node.env and enable inspect-node.service instead.
`, head, configDir)
}

// nodeRoot is the node daemon's part of the data directory.
func (w *work) nodeRoot() string { return filepath.Join(w.o.Data, "node") }

// samples are the configuration files by name.
func (w *work) samples() map[string]string {
	head := "# " + mark + "; yours to change. Every flag of `inspect %s` can be set here.\n"
	node := []string{"INSPECT_ROOT=" + w.nodeRoot()}
	for _, setting := range w.env { // it starts sandboxes and proxies, and nothing else
		if strings.HasPrefix(setting, "INSPECT_SANDBOX_") || strings.HasPrefix(setting, "INSPECT_EGRESS_") {
			node = append(node, setting)
		}
	}
	return map[string]string{
		"inspect.env": fmt.Sprintf(head, "serve") + strings.Join(w.env, "\n") + `
#INSPECT_GITHUB_APP_ID=12345
INSPECT_GITHUB_KEY_FILE=/etc/inspect/app.pem
INSPECT_WEBHOOK_SECRET_FILE=/etc/inspect/webhook.secret
#INSPECT_MODELS=/etc/inspect/models.yml
#INSPECT_POLICY=/etc/inspect/policy.yml
#INSPECT_PUBLIC_URL=https://inspect.example.com
INSPECT_LISTEN_HOOKS=127.0.0.1:7460
INSPECT_LISTEN_PEOPLE=127.0.0.1:7461
INSPECT_LISTEN_MACHINES=127.0.0.1:7462
`,
		"node.env": fmt.Sprintf(head, "node") + strings.Join(node, "\n") + `
#INSPECT_NAME=node-1
#INSPECT_CONTROL=https://inspect.example.com:7462
INSPECT_TOKEN_FILE=/etc/inspect/node.token
#INSPECT_GRANT_KEY=
#INSPECT_OWNER=
`,
	}
}
