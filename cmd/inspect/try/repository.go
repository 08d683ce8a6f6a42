package try

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"inspect/envs/proc"
)

// Repository is a person's repository. It is only looked at, by git that runs
// as its owner; the one thing that is ever written into it is one new branch
// (see bring).
type Repository struct {
	Path   string // as people know it: the worktree, or the bare repository
	Top    string // of the worktree; empty if there is none
	Common string // git's directory, shared by all worktrees
	Commit string // what is worked on
	Branch string // that HEAD is on, or a name for a commit that is on none

	Shallow bool     // the history is cut off
	Notes   []string // what of the commit the agent does not see, a sentence each
	Pending []string // what of the worktree is not part of the commit

	git   git      // on the worktree's own git directory
	names []string // of the commit's plain files
	modes map[string]string
}

// maxListing bounds the list of a commit's files, in bytes.
const maxListing = 256 << 20

// openRepository looks at the repository that path lies in, at the given commit;
// empty: HEAD of the worktree. The error is a Usage for everything a person can
// put right.
func openRepository(ctx context.Context, path, commit string) (*Repository, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, Usagef("--repo %s: %v", path, err)
	}
	if st, err := os.Stat(abs); err != nil {
		return nil, Usagef("there is no repository at %s: %v", plain(path, 1000), errors.Unwrap(err))
	} else if !st.IsDir() {
		return nil, Usagef("%s is no directory: give the directory of a git repository", path)
	}
	r := &Repository{Path: abs}
	if err := r.find(ctx, abs); err != nil {
		return nil, err
	}
	if err := r.mayWrite(ctx); err != nil {
		return nil, err
	}
	if err := r.head(ctx, commit); err != nil {
		return nil, err
	}
	if err := r.list(ctx); err != nil {
		return nil, err
	}
	if commit == "" {
		r.pending(ctx)
	}
	return r, nil
}

// find finds out where git's directories are and what kind of repository it is.
func (r *Repository) find(ctx context.Context, path string) error {
	var err error
	if r.git.account, r.git.home, err = ownerOf(path); err != nil {
		return err
	}
	ask := func(args ...string) (string, error) {
		out, err := r.git.run(ctx, gitCall{args: append([]string{"rev-parse", "--path-format=absolute"}, args...), at: path})
		return strings.TrimSuffix(out, "\n"), err
	}
	kind, err := ask("--is-bare-repository", "--is-inside-work-tree", "--show-object-format", "--is-shallow-repository")
	switch {
	case errors.Is(err, proc.ErrNotFound):
		return Setup("git is not installed: apt-get install -y git")
	case errors.Is(err, os.ErrPermission):
		return Usagef("the account that owns %s (uid %d) cannot enter it; git is run as that account", path, r.git.account.UID)
	case err != nil && strings.Contains(said(err), "not a git repository"):
		return Usagef("%s is not in a git repository; commit it to one first (git init, git add, git commit)", path)
	case err != nil:
		return Usagef("git cannot read the repository at %s: %s", path, said(err))
	}
	facts := strings.Fields(kind)
	if len(facts) != 4 {
		return fmt.Errorf("git rev-parse in %s said %q", path, kind)
	}
	if facts[2] != "sha1" {
		return Usagef("the repository at %s names its objects by %s, which Inspect does not support yet: it needs SHA-1, git's default", path, facts[2])
	}
	r.Shallow = facts[3] == "true"
	if facts[1] == "true" {
		if r.Top, err = ask("--show-toplevel"); err != nil {
			return Usagef("git cannot find the root of the worktree at %s: %s", path, said(err))
		}
		r.Path = r.Top
	}
	if r.git.dir, err = ask("--absolute-git-dir"); err != nil {
		return err
	}
	if r.Common, err = ask("--git-common-dir"); err != nil {
		return err
	}
	// Whoever owns the repository, not the directory somebody stands in.
	r.git.account, r.git.home, err = ownerOf(r.Common)
	return err
}

// mayWrite asks before anything is done whether a branch could be left there.
func (r *Repository) mayWrite(ctx context.Context) error {
	for _, name := range []string{"objects", "refs"} {
		dir := filepath.Join(r.Common, name)
		_, err := proc.Run(ctx, proc.Command{Argv: []string{"test", "-w", dir}, Dir: "/", Credential: r.git.account})
		if status(err) > 0 {
			return Usagef("no branch can be left in %s: %s may not write to %s", r.Path, r.who(), dir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// who is the account git runs as, for people.
func (r *Repository) who() string {
	uid := os.Geteuid()
	if r.git.account != nil {
		uid = r.git.account.UID
	}
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return "uid " + strconv.Itoa(uid)
}

// head finds the commit to work on.
func (r *Repository) head(ctx context.Context, commit string) error {
	branch, err := r.git.line(ctx, "symbolic-ref", "--quiet", "HEAD")
	if err != nil && status(err) != 1 {
		return Usagef("git cannot read HEAD of %s: %s", r.Path, said(err))
	}
	branch = strings.TrimPrefix(branch, "refs/heads/")
	name := "HEAD"
	if commit != "" {
		name, branch = commit, ""
	}
	r.Commit, err = r.git.line(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", name+"^{commit}")
	switch {
	case err != nil && commit != "":
		return Usagef("%s has no commit %s", r.Path, plain(commit, 80))
	case err != nil && branch != "":
		if _, err := r.git.line(ctx, "rev-parse", "--verify", "--quiet", "refs/heads/"+branch); err != nil {
			return Usagef("%s has no commit yet on its branch %s: commit something first, that is what the agent works on", r.Path, plain(branch, 80))
		}
		fallthrough
	case err != nil:
		return Usagef("the commit that HEAD of %s names cannot be read; git fsck tells more", r.Path)
	}
	r.Branch = branch
	if branch == "" {
		r.Branch = "(no branch)"
	}
	return nil
}

// list reads the names of the commit's files, and what of them the agent will
// not see.
func (r *Repository) list(ctx context.Context) error {
	out, err := r.git.run(ctx, gitCall{args: []string{"ls-tree", "-r", "-z", "--full-tree", r.Commit}, limit: maxListing})
	if err != nil {
		return r.incomplete(err)
	}
	r.modes = map[string]string{}
	var submodules []string
	for entry := range strings.SplitSeq(out, "\x00") {
		about, name, ok := strings.Cut(entry, "\t")
		if !ok {
			continue
		}
		mode, _, _ := strings.Cut(about, " ")
		switch mode {
		case "160000":
			submodules = append(submodules, name)
		case "100644", "100755":
			r.names = append(r.names, name)
		}
		if !strings.Contains(name, "/") || mode == "100644" && strings.HasSuffix(name, "/.gitattributes") {
			r.modes[name] = mode
		}
	}
	switch n := len(submodules); {
	case n == 1:
		r.note("The content of the submodule %s is not available to the agent.", plain(submodules[0], 100))
	case n > 1:
		r.note("The contents of %d submodules are not available to the agent: %s.", n, plain(strings.Join(submodules, ", "), 200))
	}
	if r.lfs(ctx) {
		r.note("Files kept in Git LFS are pointers for the agent: their contents are not in the repository's history.")
	}
	if r.Shallow {
		r.note("The history of this clone is cut off (shallow), and so is what the agent sees of it.")
	}
	return nil
}

func (r *Repository) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

func (r *Repository) pend(format string, args ...any) {
	r.Pending = append(r.Pending, fmt.Sprintf(format, args...))
}

// maxAttributes bounds how many .gitattributes are looked into.
const maxAttributes = 50

// lfs says whether some of the files are pointers into Git LFS.
func (r *Repository) lfs(ctx context.Context) bool {
	looked := 0
	for name := range r.modes {
		if name != ".gitattributes" && !strings.HasSuffix(name, "/.gitattributes") {
			continue
		}
		if looked++; looked > maxAttributes {
			return false
		}
		if body, ok := r.read(ctx, name, 1<<20); ok && strings.Contains(string(body), "filter=lfs") {
			return true
		}
	}
	return false
}

// read is the content of a plain file of the commit, not longer than limit.
func (r *Repository) read(ctx context.Context, name string, limit int64) ([]byte, bool) {
	res, err := proc.Run(ctx, r.git.command(gitCall{args: []string{"cat-file", "blob", r.Commit + ":" + name}, limit: limit}))
	return res.Stdout, err == nil && !res.Truncated
}

// incomplete is the error of a commit that cannot be read as a whole.
func (r *Repository) incomplete(err error) error {
	return Usagef("%.10s in %s cannot be read completely: %s; get what is missing first (in a partial clone: git fetch --refetch --no-filter; git fsck tells more)",
		r.Commit, r.Path, said(err))
}

// states of a repository in the middle of something, by the file that tells.
var states = []struct{ file, words string }{
	{"rebase-merge", "a rebase"}, {"rebase-apply", "a rebase"}, {"MERGE_HEAD", "a merge"},
	{"CHERRY_PICK_HEAD", "a cherry-pick"}, {"REVERT_HEAD", "a revert"}, {"BISECT_LOG", "a bisection"},
}

// pending notes what is in the worktree and not in the commit.
func (r *Repository) pending(ctx context.Context) {
	if r.Top == "" {
		return
	}
	for _, s := range states {
		if _, err := os.Lstat(filepath.Join(r.git.dir, s.file)); err == nil {
			r.pend("In %s %s is not finished; what is worked on is the commit that HEAD is at now.", r.Path, s.words)
			break
		}
	}
	filters, err := r.filters(ctx)
	if err != nil {
		r.pend("Whether there are uncommitted changes could not be told (%s); they are not part of this.", said(err))
		return
	}
	out, err := r.git.run(ctx, gitCall{
		args: []string{"status", "--porcelain=v1", "-z", "--untracked-files=normal", "--ignore-submodules=dirty", "--no-renames"},
		at:   r.Top, limit: 16 << 20, asUser: true, with: filters,
	})
	if err != nil {
		r.pend("Whether there are uncommitted changes could not be told (%s); they are not part of this.", said(err))
		return
	}
	switch n := strings.Count(out, "\x00"); {
	case n == 1:
		r.pend("1 uncommitted change is not part of this; commit it first if it should be.")
	case n > 1:
		r.pend("%d uncommitted changes are not part of this; commit them first if they should be.", n)
	}
}

// filters are settings that take the commands out of every filter there is: to
// look at a file git would run that of the repository's own configuration, and
// that of LFS would write.
func (r *Repository) filters(ctx context.Context) (settings []string, err error) {
	out, err := r.git.run(ctx, gitCall{
		args: []string{"config", "--null", "--name-only", "--get-regexp", `^filter\..*\.(clean|process|required)$`}, at: r.Top, asUser: true,
	})
	if err != nil && status(err) != 1 { // 1: there are none
		return nil, err
	}
	for key := range strings.SplitSeq(out, "\x00") {
		switch {
		case strings.HasSuffix(key, ".required"):
			settings = append(settings, key+"=false")
		case key != "":
			settings = append(settings, key+"=")
		}
	}
	return settings, nil
}

// id names the repository at the commit in a database: an environment is never
// that of another commit.
func (r *Repository) id() int64 {
	sum := sha256.Sum256([]byte(r.Common + "\x00" + r.Commit))
	return int64(binary.BigEndian.Uint64(sum[:8])>>1 | 1)
}

// name is what the repository is called, for people.
func (r *Repository) name() string {
	n := strings.TrimSuffix(filepath.Base(r.Path), ".git")
	if n = plain(n, 100); n == "" {
		n = "repository"
	}
	return n
}

// quote is a word as a shell takes it.
func quote(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@%", c)
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
