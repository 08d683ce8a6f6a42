package publish

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"inspect/envs/proc"
)

// maxListBytes bounds what git says of a few folders.
const maxListBytes = 8 << 20

// mirror is the path of a repository's bare mirror. Only what the repository's
// own history holds is in it, fetched by us: git may look at it unconfined.
type mirror string

// git runs one command on the mirror and passes its output to out, or returns
// it if out is nil.
func (m mirror) git(ctx context.Context, stdin string, out io.Writer, limit int64, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, gitTimeout)
	defer cancel()
	res, err := proc.Run(ctx, proc.Command{
		Argv:   slices.Concat([]string{"git"}, args),
		Dir:    string(m),
		Env:    gitEnv(string(m), gitConfig),
		Stdin:  strings.NewReader(stdin),
		Stdout: out,
		Limit:  limit,
	})
	if err != nil {
		return "", fmt.Errorf("git %s on the mirror: %w", strings.Join(args[:min(len(args), 2)], " "), err)
	}
	if res.Truncated {
		return "", fmt.Errorf("git %s on the mirror: its output has more than %d bytes", args[0], limit)
	}
	return string(res.Stdout), nil
}

type object struct {
	id, kind string // kind is "" if the object does not exist
}

// objects asks for the kinds of objects, in order.
func (m mirror) objects(ctx context.Context, names []string) ([]object, error) {
	out, err := m.git(ctx, strings.Join(names, "\n")+"\n", nil, int64(len(names))*256, "cat-file", "--batch-check")
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if len(lines) != len(names) {
		return nil, fmt.Errorf("git cat-file on the mirror answered %d of %d questions", len(lines), len(names))
	}
	res := make([]object, len(names))
	for i, l := range lines {
		if f := strings.Fields(l); len(f) == 3 && isSHA(f[0]) {
			res[i] = object{f[0], f[1]}
		}
	}
	return res, nil
}

// contains says whether all commits are part of the history of tip.
func (m mirror) contains(ctx context.Context, tip string, commits []string) (bool, error) {
	out, err := m.git(ctx, strings.Join(commits, "\n")+"\n^"+tip+"\n", nil, 64, "rev-list", "--count", "--max-count=1", "--stdin")
	if err != nil {
		return false, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(out))
	return n == 0 && err == nil, err
}

// paths calls each for every path of a commit's tree.
func (m mirror) paths(ctx context.Context, commit string, each func(string)) error {
	_, err := m.git(ctx, "", &splitter{each: each}, maxTreeBytes, "ls-tree", "-r", "-z", "--name-only", "--full-tree", commit)
	return err
}

// mirrorFile is a file of a commit; a link or a submodule is none.
type mirrorFile struct {
	path, id string
	size     int64
}

// files are those of a commit that paths name; a path that ends in a slash names
// the files in a folder, none the root's.
func (m mirror) files(ctx context.Context, commit string, paths ...string) ([]mirrorFile, error) {
	args := slices.Concat([]string{"--literal-pathspecs", "ls-tree", "-z", "-l", "--full-tree", commit, "--"}, paths)
	out, err := m.git(ctx, "", nil, maxListBytes, args...)
	if err != nil {
		return nil, err
	}
	var list []mirrorFile
	for _, entry := range strings.Split(out, "\x00") {
		head, path, ok := strings.Cut(entry, "\t")
		f := strings.Fields(head)
		if !ok || len(f) != 4 || f[1] != "blob" || f[0] == "120000" || !isSHA(f[2]) {
			continue
		}
		size, err := strconv.ParseInt(f[3], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("git ls-tree on the mirror says %.100q", entry)
		}
		list = append(list, mirrorFile{path, f[2], size})
	}
	return list, nil
}
