package try

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"inspect/envs/proc"
)

// origin is a bare repository of our own that stands where a forge would: it
// holds the history of one commit of a person's repository, nodes fetch from
// it, and results are pushed to it.
type origin struct {
	dir    string
	branch string // the one it has: what sessions start from
	git    git
}

const originConfig = `[core]
	repositoryformatversion = 0
	filemode = true
	bare = true
	hooksPath = /dev/null
	logAllRefUpdates = false
[gc]
	auto = 0
[maintenance]
	auto = false
[uploadpack]
	allowAnySHA1InWant = true
[receive]
	denyDeletes = true
	shallowUpdate = true
`

// branchForm is what node daemons take for a branch; others get another name.
var branchForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_./+=@-]{0,199}$`)

// originBranch is what the branch that HEAD is on is called in the origin. No
// name may stand in the way of the branches that come to be there.
func originBranch(name string) string {
	bad := !branchForm.MatchString(name) || name == "inspect" || name == "inspect/work" || strings.HasPrefix(name, "inspect/work/") ||
		strings.Contains(name, "..") || strings.Contains(name, "//") || strings.Contains(name, "@{") || strings.Contains(name, "/.") ||
		strings.HasSuffix(name, "/") || strings.HasSuffix(name, ".") || strings.HasSuffix(name, ".lock") || strings.Contains(name, ".lock/")
	if bad {
		return "base"
	}
	return name
}

// address of the origin, for git.
func (o origin) address() string { return (&url.URL{Scheme: "file", Path: o.dir}).String() }

// copyOrigin makes the origin of a repository in dir. One that is there and
// complete is used as it is. The objects come through a pipe, from a git that
// runs as the repository's owner to one that runs as us.
func copyOrigin(ctx context.Context, r *Repository, dir string) (origin, error) {
	o := origin{dir: dir, branch: originBranch(r.Branch), git: git{dir: dir}}
	ref := "refs/heads/" + o.branch
	if at, err := o.git.line(ctx, "rev-parse", "--verify", "--quiet", ref); err == nil && at == r.Commit {
		return o, nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return o, err
	}
	shallow := ""
	if r.Shallow {
		body, err := os.ReadFile(filepath.Join(r.Common, "shallow"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return o, fmt.Errorf("read where the history is cut off: %w", err)
		}
		shallow = string(body)
	}
	err := o.fill(ctx, r, shallow)
	if err != nil && ctx.Err() == nil && r.partial(ctx) {
		// What is missing is not fetched; the commit alone may be complete.
		if rmErr := os.RemoveAll(dir); rmErr != nil {
			return o, rmErr
		}
		if err = o.fill(ctx, r, r.Commit+"\n"); err == nil {
			r.note("This is a partial clone, whose history is not complete here: the agent sees the commit, but none before it.")
		}
	}
	if err != nil {
		if ctx.Err() != nil {
			return o, context.Cause(ctx)
		}
		return o, r.incomplete(err)
	}
	if _, err := o.git.line(ctx, "update-ref", ref, r.Commit); err != nil {
		return o, fmt.Errorf("make the private copy: %s", said(err))
	}
	return o, nil
}

// fill makes the origin and brings the history in; shallow lists the commits it
// is cut off at.
func (o origin) fill(ctx context.Context, r *Repository, shallow string) error {
	_, err := git{}.run(ctx, gitCall{args: []string{"init", "--quiet", "--bare", "--template=", "--initial-branch=" + o.branch, o.dir}})
	if err != nil {
		return err
	}
	if err := os.Chmod(o.dir, 0o700); err != nil {
		return err
	}
	files := map[string]string{"config": originConfig}
	if shallow != "" {
		files["shallow"] = shallow
	}
	for name, body := range files {
		if err := os.WriteFile(filepath.Join(o.dir, name), []byte(body), 0o600); err != nil {
			return err
		}
	}
	var revs strings.Builder
	args := []string{"pack-objects", "--revs", "--stdout", "--delta-base-offset", "-q"}
	if shallow != "" {
		args = append(args, "--shallow")
		for line := range strings.Lines(shallow) {
			revs.WriteString("--shallow " + line)
		}
	}
	revs.WriteString(r.Commit + "\n")
	return pipe(ctx, r.git.command(gitCall{args: args, stdin: strings.NewReader(revs.String())}),
		o.git.command(gitCall{args: []string{"index-pack", "--stdin", "--strict"}}))
}

// partial says whether the repository is a partial clone.
func (r *Repository) partial(ctx context.Context) bool {
	out, _ := r.git.run(ctx, gitCall{args: []string{"config", "--get-regexp", `^(remote\..*\.promisor|extensions\.partialclone)$`}})
	return out != ""
}

// errBranch is the error of a repository that takes no branch.
var errBranch = errors.New("the branch could not be left in the repository")

// bringTries is how often it is tried to make the branch while somebody else
// holds a lock in the repository.
const bringTries = 20

// bring leaves the commit head of the origin in the person's repository as a
// new branch, and returns its name: the wanted one or, where that is taken,
// another. Nothing else in the repository changes: neither worktree nor index,
// HEAD, another branch, configuration or log. What was brought before is found
// again.
func (r *Repository) bring(ctx context.Context, o origin, want, head string) (string, error) {
	revs := head + "\n^" + r.Commit + "\n"
	err := pipe(ctx, o.git.command(gitCall{args: []string{"pack-objects", "--revs", "--stdout", "--thin", "-q"}, stdin: strings.NewReader(revs)}),
		r.git.command(gitCall{args: []string{"unpack-objects", "-q", "--strict"}}))
	if err != nil {
		return "", fmt.Errorf("%w: its objects were not taken: %s", errBranch, said(err))
	}
	for n := 1; ; n++ {
		taken, err := r.heads(ctx)
		if err != nil {
			return "", err
		}
		name, exists := freeName(want, head, taken)
		if exists {
			return name, nil
		}
		_, err = r.git.run(ctx, gitCall{args: []string{"update-ref", "--stdin"}, stdin: strings.NewReader("create refs/heads/" + name + " " + head + "\n")})
		if err == nil {
			at, err := r.git.line(ctx, "rev-parse", "--verify", "--quiet", "refs/heads/"+name+"^{commit}")
			if err != nil || at != head {
				return "", fmt.Errorf("%w: %s was made and cannot be read back", errBranch, name)
			}
			return name, nil
		}
		if status(err) < 0 || n >= bringTries {
			return "", fmt.Errorf("%w: %s", errBranch, said(err))
		}
		// Somebody was faster with the name, or works in the repository just now.
		if proc.Sleep(ctx, proc.System(), time.Duration(n)*50*time.Millisecond) != nil {
			return "", context.Cause(ctx)
		}
	}
}

// heads are the branches of the repository.
func (r *Repository) heads(ctx context.Context) (map[string]string, error) {
	out, err := r.git.run(ctx, gitCall{args: []string{"for-each-ref", "--format=%(objectname) %(refname)", "refs/heads/"}, limit: maxListing})
	if err != nil {
		return nil, fmt.Errorf("%w: its branches cannot be listed: %s", errBranch, said(err))
	}
	heads := map[string]string{}
	for line := range strings.Lines(out) {
		if sha, ref, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			heads[strings.TrimPrefix(ref, "refs/heads/")] = sha
		}
	}
	return heads, nil
}

// freeName is the wanted name, or the next like it that can be made beside the
// branches there are; exists: it is there already, at head.
func freeName(want, head string, taken map[string]string) (name string, exists bool) {
	dir, rest, _ := strings.Cut(want, "/")
	if _, is := taken[dir]; is {
		want = dir + "-" + rest // git has no branch below the name of a branch
	}
	for n := 1; ; n++ {
		name = want
		if n > 1 {
			name += "-" + strconv.Itoa(n)
		}
		if taken[name] == head {
			return name, true
		}
		if _, is := taken[name]; is {
			continue
		}
		below := false
		for t := range taken {
			below = below || strings.HasPrefix(t, name+"/")
		}
		if !below {
			return name, false
		}
	}
}
