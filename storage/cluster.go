package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrNotInstalled is the error of a machine without Postgres; its text is what to do.
var ErrNotInstalled = errors.New("no Postgres on this machine, run as root: apt-get install -y postgresql")

// account is whom the server runs as.
type account struct {
	name     string
	uid, gid int
	drop     bool // we are root and become it
}

// serverAccount chooses the account: ourselves, or the named one if we are root.
// initdb refuses root, and any uid without an entry in the password file.
func serverAccount(name string) (account, error) {
	if os.Geteuid() != 0 {
		u, err := user.LookupId(strconv.Itoa(os.Geteuid()))
		if err != nil {
			return account{}, fmt.Errorf("uid %d has no entry in /etc/passwd, which Postgres needs: run as a named account or pass --postgres-url", os.Geteuid())
		}
		return account{name: u.Username, uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return account{}, fmt.Errorf("%w, or pass --postgres-url: Postgres does not run as root and there is no account %q", ErrNotInstalled, name)
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	if err := errors.Join(err1, err2); err != nil {
		return account{}, err
	}
	return account{name: u.Username, uid: uid, gid: gid, drop: true}, nil
}

func (a account) credential() *syscall.Credential {
	if !a.drop {
		return nil
	}
	return &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid), Groups: []uint32{}}
}

// ownDirectory makes a directory that only the account can use.
func (a account) ownDirectory(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making Postgres' directory: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("closing Postgres' directory to others: %w", err)
	}
	if a.drop {
		if err := os.Chown(dir, a.uid, a.gid); err != nil {
			return fmt.Errorf("giving Postgres its directory: %w", err)
		}
	}
	return nil
}

// letPass lets the group of a further account through one of our directories.
func (a account) letPass(dir string, gid int) error {
	if err := errors.Join(os.Chown(dir, a.uid, gid), os.Chmod(dir, 0o710)); err != nil {
		return fmt.Errorf("letting group %d through to Postgres' socket: %w", gid, err)
	}
	return nil
}

// mayEnter says which directory on the way the account cannot pass.
func (a account) mayEnter(dir string) error {
	if !a.drop {
		return nil
	}
	for d := dir; ; d = filepath.Dir(d) {
		fi, err := os.Stat(d)
		if err != nil {
			return err
		}
		st := fi.Sys().(*syscall.Stat_t)
		bit := uint32(0o001)
		switch {
		case int(st.Uid) == a.uid:
			bit = 0o100
		case int(st.Gid) == a.gid:
			bit = 0o010
		}
		if st.Mode&bit == 0 {
			return fmt.Errorf("the account %q may not enter %s, where its database is to be kept: allow it (chmod o+x %s) or choose another data directory", a.name, d, d)
		}
		if d == filepath.Dir(d) {
			return nil
		}
	}
}

// findBinaries returns the directory of the Postgres programs: of the version
// that made the data, or the newest.
func findBinaries(data string) (string, error) {
	made := ""
	if b, err := os.ReadFile(filepath.Join(data, "PG_VERSION")); err == nil {
		made = strings.TrimSpace(string(b))
	}
	if made != "" {
		dir := filepath.Join("/usr/lib/postgresql", made, "bin")
		if _, err := os.Stat(filepath.Join(dir, "postgres")); err == nil {
			return dir, nil
		}
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	newest := func(p string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(p))))
		return n
	}
	slices.SortFunc(found, func(a, b string) int { return newest(b) - newest(a) })
	if len(found) == 0 {
		if p, err := exec.LookPath("postgres"); err == nil {
			if p, err = filepath.EvalSymlinks(p); err == nil {
				found = append(found, p)
			}
		}
	} else if made != "" {
		return "", fmt.Errorf("the database in %s was made by Postgres %s, which is not installed: install postgresql-%s or pass --postgres-url", data, made, made)
	}
	if len(found) == 0 {
		return "", fmt.Errorf("%w, or pass --postgres-url", ErrNotInstalled)
	}
	return filepath.Dir(found[0]), nil
}

// initCluster makes the data directory if it is not complete.
func initCluster(ctx context.Context, bin, data string, acc account) error {
	if _, err := os.Stat(filepath.Join(data, "PG_VERSION")); err == nil {
		return nil
	}
	// What an interrupted initdb left holds nothing; it is made beside and renamed.
	fresh := data + ".new"
	for _, d := range []string{data, fresh} {
		if err := os.RemoveAll(d); err != nil {
			return fmt.Errorf("clearing an unfinished database: %w", err)
		}
	}
	if err := acc.ownDirectory(fresh); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", fresh, "-U", postgresRole,
		"-A", "peer", "--no-sync", "--no-instructions", "--locale=C", "-E", "UTF8")
	cmd.Dir = fresh
	cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: acc.credential()}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("making the database: %w: %s", err, tail(string(out), 5))
	}
	// initdb was told not to wait for the disk; one sync here makes up for it.
	if d, err := os.Open(fresh); err == nil {
		_ = unix.Syncfs(int(d.Fd()))
		_ = d.Close()
	}
	if err := os.Rename(fresh, data); err != nil {
		return fmt.Errorf("making the database: %w", err)
	}
	return nil
}

// writeAccess lets our account, the server's, the client's and the named ones
// in, by the identity the kernel vouches for; nobody else. A client's account
// without a name is one that Postgres cannot be told of: then it is the
// socket's directory alone, which only these accounts can pass, that decides.
func writeAccess(data string, acc account, client int, more []string) error {
	me, err := user.LookupId(strconv.Itoa(os.Geteuid()))
	if err != nil {
		return fmt.Errorf("uid %d has no entry in /etc/passwd, which Postgres needs to know us by: pass --postgres-url", os.Geteuid())
	}
	method := "peer map=inspect"
	if client != 0 && acc.drop {
		if u, err := user.LookupId(strconv.Itoa(client)); err == nil {
			more = append(slices.Clone(more), u.Username)
		} else {
			method = "trust"
		}
	}
	var ident strings.Builder
	for _, name := range slices.Compact(slices.Sorted(slices.Values(append([]string{me.Username, acc.name}, more...)))) {
		if strings.ContainsAny(name, "\"\n ,") {
			return fmt.Errorf("the account name %q cannot be used with Postgres", name)
		}
		fmt.Fprintf(&ident, "inspect \"%s\" %s\n", name, postgresRole)
	}
	for name, text := range map[string]string{
		"pg_hba.conf":   "local all " + postgresRole + " " + method + "\n",
		"pg_ident.conf": ident.String(),
	} {
		path := filepath.Join(data, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return fmt.Errorf("writing who may use the database: %w", err)
		}
		if acc.drop {
			if err := os.Chown(path, acc.uid, acc.gid); err != nil {
				return fmt.Errorf("writing who may use the database: %w", err)
			}
		}
	}
	return nil
}
