package node

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"inspect/checks/redact"
	"inspect/envs/sandbox"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// maxModules is how many submodules of one repository are fetched.
const maxModules = 32

// module is a submodule of a repository at a commit.
type module struct {
	name, path string
	url        string // as it is fetched, below the git base
	commit     string
}

// remote is where it is fetched from. Its mirror is named after its address, in
// a place of the repository it is part of: who may see that sees no more of the
// submodule than its own commits need.
func (s module) remote() wire.Remote {
	sum := sha256.Sum256([]byte(s.url))
	return wire.Remote{RepositoryID: int64(binary.BigEndian.Uint64(sum[:8])>>1 | 1), URL: s.url, Branch: "main"}
}

// inside is the address of its mirror in a sandbox.
func (s module) inside() string {
	return "file://" + sandbox.ModulesPath + "/" + strconv.FormatInt(s.remote().RepositoryID, 10) + ".git"
}

// modulesDir has the mirrors of a repository's submodules.
func (n *Node) modulesDir(repository int64) string {
	return filepath.Join(n.o.Root, "modules", strconv.FormatInt(repository, 10))
}

// modules are the mirrors of a repository's submodules.
func (n *Node) modules(repository int64) (*mirrors, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if m := n.ofModules[repository]; m != nil {
		return m, nil
	}
	m := &mirrors{
		dir: n.modulesDir(repository), gitBase: n.mirrors.gitBase, clock: n.clock, account: n.mirrors.account,
		token: func(ctx context.Context, r wire.Remote) (wire.GitToken, error) {
			return n.control.gitToken(ctx, wire.GitTokenRequest{RepositoryID: repository, URL: r.URL})
		},
		locks: map[int64]chan struct{}{}, ready: map[int64]bool{},
	}
	if err := m.prepare(); err != nil {
		return nil, fmt.Errorf("the directory of submodules' mirrors: %w", err)
	}
	n.ofModules[repository] = m
	return m, nil
}

// fetchModules brings the submodules of a commit into mirrors of their own, as
// everybody may read them or with a token that the control plane gives. What
// cannot be fetched, or may not, is left out and told in the log. Submodules of
// submodules are not looked for.
func (n *Node) fetchModules(ctx context.Context, r wire.Remote, commit string) (there []module, err error) {
	found, left, err := n.mirrors.modulesAt(ctx, r, commit)
	if err != nil || len(found)+len(left) == 0 {
		return nil, err
	}
	m, err := n.modules(r.RepositoryID)
	if err != nil {
		return nil, err
	}
	for _, s := range found {
		// Before it is fetched: a collection looks at this when it has it locked.
		now := n.clock.Now()
		if err := os.Chtimes(m.path(s.remote().RepositoryID), now, now); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		err := m.Fetch(ctx, s.remote(), s.commit)
		var own *fetchError
		switch {
		case errors.As(err, &own) && own.anonymous:
			n.log.Warn("a submodule cannot be read: list it under submodules in the operator's policy, if it is private",
				"repository", r.RepositoryID, "commit", commit, "submodule", s.path, "url", s.url, "error", err)
		case errors.As(err, &own):
			left = append(left, fmt.Sprintf("%s: %v", s.path, err))
		case err != nil:
			return nil, fmt.Errorf("fetch the submodule %s: %w", s.path, err)
		default:
			there = append(there, s)
		}
	}
	if len(left) > 0 {
		n.log.Warn("submodules are left out", "repository", r.RepositoryID, "commit", commit, "which", listed(left))
	}
	return there, nil
}

// collectModules removes mirrors of submodules that no commit has asked for
// for long; what is asked for again is fetched again.
func (n *Node) collectModules(ctx context.Context) error {
	found, err := filepath.Glob(filepath.Join(n.o.Root, "modules", "*", "*.git"))
	if err != nil {
		return err
	}
	unused := func(path string) bool {
		st, err := os.Lstat(path)
		return err == nil && n.clock.Now().Sub(st.ModTime()) >= keepUnused
	}
	var errs []error
	for _, path := range found {
		repository, rerr := strconv.ParseInt(filepath.Base(filepath.Dir(path)), 10, 64)
		id, ierr := strconv.ParseInt(strings.TrimSuffix(filepath.Base(path), ".git"), 10, 64)
		if rerr != nil || ierr != nil || !unused(path) {
			continue
		}
		errs = append(errs, func() error {
			m, err := n.modules(repository)
			if err != nil {
				return err
			}
			unlock, err := m.lock(ctx, id)
			if err != nil {
				return err
			}
			defer unlock()
			if !unused(path) {
				return nil
			}
			n.log.Info("collecting the mirror of a submodule that nobody asks for", "repository", repository, "mirror", path)
			return m.remove(id)
		}())
	}
	return errors.Join(errs...)
}

var (
	moduleName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_./+@ -]{0,200}$`)
	// sshForm is how .gitmodules often names what https can be had from too.
	sshForm = regexp.MustCompile(`^(?:ssh://)?git@([A-Za-z0-9.-]+)[:/](.+)$`)
)

// modulesAt reads which submodules a commit of a mirror has, and says of which
// none is fetched, and why. The file that lists them is an enemy's.
func (m *mirrors) modulesAt(ctx context.Context, r wire.Remote, commit string) (found []module, left []string, err error) {
	p := m.path(r.RepositoryID)
	if _, err := m.git(ctx, p, nil, "cat-file", "-e", commit+":.gitmodules"); err != nil {
		return nil, nil, ctx.Err()
	}
	res, err := m.git(ctx, p, nil, "config", "--blob", commit+":.gitmodules", "-z", "--get-regexp", `^submodule\..*\.(path|url)$`)
	if err != nil {
		return nil, []string{".gitmodules cannot be read"}, ctx.Err()
	}
	var names []string
	paths, urls := map[string]string{}, map[string]string{}
	for entry := range strings.SplitSeq(string(res.Stdout), "\x00") {
		key, value, _ := strings.Cut(entry, "\n")
		name, isPath := strings.CutSuffix(strings.TrimPrefix(key, "submodule."), ".path")
		if isPath {
			names, paths[name] = append(names, name), value
		} else if name, isURL := strings.CutSuffix(name, ".url"); isURL {
			urls[name] = value
		}
	}
	for i, name := range names {
		at := paths[name]
		address, problem := m.moduleURL(r.URL, urls[name])
		switch {
		case i >= maxModules:
			return found, append(left, fmt.Sprintf("%d more: at most %d are fetched", len(names)-i, maxModules)), nil
		case !moduleName.MatchString(name) || !moduleName.MatchString(at) || path.Clean(at) != at || strings.Contains(name, "..") || strings.Contains(at, ".."):
			problem = "its name or path is not taken"
		}
		if problem == "" {
			s := module{name: name, path: at, url: address}
			if err := m.check(s.remote()); err != nil {
				problem = err.Error()
			} else if s.commit, err = m.pinned(ctx, p, commit, at); err != nil {
				return nil, nil, err
			} else if s.commit == "" {
				continue // listed, but not part of this commit
			} else {
				found = append(found, s)
				continue
			}
		}
		left = append(left, redact.OneLine(at, 100)+": "+problem)
	}
	return found, left, nil
}

// pinned is the commit of the submodule at a path; empty: there is none.
func (m *mirrors) pinned(ctx context.Context, mirror, commit, at string) (string, error) {
	res, err := m.git(ctx, mirror, nil, "ls-tree", "-z", "--full-tree", commit, "--", at)
	if err != nil {
		return "", err
	}
	// 160000 commit <id> TAB <path> NUL
	f := strings.Fields(string(res.Stdout))
	if len(f) < 3 || f[0] != "160000" || !commitPattern.MatchString(f[2]) {
		return "", nil
	}
	return f[2], nil
}

// moduleURL is the address of a submodule as it is fetched: with the scheme of
// the git base, whatever stands in the file.
func (m *mirrors) moduleURL(parent, raw string) (address, problem string) {
	if m.gitBase.Scheme == schemeFile {
		return "", "submodules are not fetched from directories"
	}
	if ssh := sshForm.FindStringSubmatch(raw); ssh != nil {
		if !strings.EqualFold(ssh[1], m.gitBase.Hostname()) {
			return "", fmt.Sprintf("its address is not below %s", m.gitBase)
		}
		raw = m.gitBase.Scheme + "://" + m.gitBase.Host + "/" + ssh[2]
	}
	if strings.HasPrefix(raw, "./") || strings.HasPrefix(raw, "../") {
		u, err := url.Parse(parent)
		if err != nil {
			return "", "the address of its repository cannot be read"
		}
		u.Path = path.Join(u.Path, raw)
		raw = u.String()
	}
	return strings.TrimSuffix(raw, "/"), ""
}

// submodules checks out the submodules that were fetched, from their mirrors.
// What git tracks in them is as committed afterwards.
func (r *refresher) submodules(ctx context.Context, c *stream.Client) error {
	for _, s := range r.modules {
		for _, argv := range [][]string{
			quietly("config", "submodule."+s.name+".url", s.inside()),
			quietly("config", "submodule."+s.name+".active", "true"),
			quietly("submodule", "--quiet", "update", "--force", "--checkout", "--", s.path),
		} {
			e := stream.Exec{Argv: argv, Env: []string{"GIT_ALLOW_PROTOCOL=file"}}
			if err := r.command(ctx, c, "checking out the submodule "+s.path, words(argv), e); err != nil {
				return err
			}
		}
	}
	return nil
}
