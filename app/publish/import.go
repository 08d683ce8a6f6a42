package publish

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"inspect/app/policy"
	"inspect/envs/wire"
)

// Bounds of a result.
const (
	maxCommits      = 1000
	maxMessages     = 50        // commits whose messages are read
	maxMessageBytes = 64 << 10  // of all messages together
	maxHistoryBytes = 8 << 20   // of what git says about all commits
	maxRawBytes     = 32 << 20  // of the list of changed paths
	maxTreeBytes    = 512 << 20 // of the list of the base's paths, streamed
)

// Imported is what a bundle holds, as git in quarantine told it. Everything
// in it is still an enemy's text.
type Imported struct {
	Tip      string
	Tree     string // of Tip
	BaseTree string
	Commits  int      // from the base to Tip
	Messages []string // of at most maxMessages commits, oldest first
	Change   policy.Change
	Stats    []Stat
	Pack     string // name of the pack in the quarantine's objects/pack, "" if the bundle brought no object
}

// Stat is how many lines a change adds to and takes from one file.
type Stat struct {
	Path           string
	Added, Deleted int
	Binary         bool
}

// errBaseMissing is the error of a base commit the mirror does not have yet.
var errBaseMissing = errors.New("the base commit is not in the mirror yet")

// importBundle reads a bundle into the cell and describes what it would change
// on top of base. Of the text patch at most maxPatch bytes are read; a longer
// one is not searched for secrets, only counted as longer.
func (c *cell) importBundle(ctx context.Context, bundle io.Reader, base string, maxPatch int64) (Imported, error) {
	var im Imported
	r := bufio.NewReader(bundle)
	h, err := ReadHeader(r)
	if errors.Is(err, errHeader) {
		return im, refuse(ReasonBundle, "%s", strings.TrimPrefix(err.Error(), errHeader.Error()+": "))
	}
	if err != nil {
		return im, err
	}
	if im.BaseTree, err = c.checkPrerequisites(ctx, h, base); err != nil {
		return im, err
	}
	if im.Pack, err = c.indexPack(ctx, r); err != nil {
		return im, err
	}
	im.Tip, im.Tree = h.Tip, im.BaseTree
	if h.Tip == base {
		return im, nil
	}
	if err := c.readHistory(ctx, &im, base); err != nil {
		return im, err
	}
	return im, c.readChange(ctx, &im, base, maxPatch)
}

// checkPrerequisites asks that the bundle builds upon the base and upon
// nothing that is not part of the base's history. It looks at the mirror alone,
// which is ours, and returns the base's tree.
func (c *cell) checkPrerequisites(ctx context.Context, h Header, base string) (baseTree string, err error) {
	m := mirror(c.mirror)
	asked := []string{base, base + "^{tree}"}
	var others []string
	for _, p := range h.Prerequisites {
		if p != base {
			asked, others = append(asked, p), append(others, p)
		}
	}
	found, err := m.objects(ctx, asked)
	if err != nil {
		return "", err
	}
	if found[0].kind != "commit" || found[1].kind != "tree" {
		return "", errBaseMissing
	}
	if len(others) == len(h.Prerequisites) {
		return "", refuse(ReasonUnrelated, "The result does not build upon the commit the session was given (%.10s).", base)
	}
	for i, f := range found[2:] {
		if f.kind != "commit" {
			return "", refuse(ReasonBundle, "it builds upon %.10s, which the repository does not have", others[i])
		}
	}
	if len(others) > 0 {
		part, err := m.contains(ctx, base, others)
		if err != nil {
			return "", err
		}
		if !part {
			return "", refuse(ReasonBundle, "it builds upon commits that are not part of the base's history")
		}
	}
	return found[1].id, nil
}

var packLine = regexp.MustCompile(`^(?:pack|keep)\t([0-9a-f]{40})\n$`)

// indexPack gives the pack, and nothing else, to git.
func (c *cell) indexPack(ctx context.Context, pack io.Reader) (string, error) {
	out, err := c.text(ctx, pack, 128, "index-pack", "--stdin", "--fix-thin", "--strict", "--threads=1",
		"--max-input-size="+strconv.Itoa(wire.MaxBundleBytes))
	if err != nil {
		return "", err
	}
	m := packLine.FindStringSubmatch(out)
	if m == nil {
		return "", refuse(ReasonBundle, "git index-pack gave no name of a pack")
	}
	return m[1], nil
}

// contents reads small blobs, in order. None may be larger than limit.
func (c *cell) contents(ctx context.Context, ids []string, limit int64) ([]string, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	out, err := c.text(ctx, strings.NewReader(strings.Join(ids, "\n")+"\n"), int64(len(ids))*(limit+128), "cat-file", "--batch")
	if err != nil {
		return nil, err
	}
	res := make([]string, 0, len(ids))
	for _, id := range ids {
		line, rest, ok := strings.Cut(out, "\n")
		f := strings.Fields(line)
		if !ok || len(f) != 3 || f[0] != id || f[1] != "blob" {
			return nil, refuse(ReasonBundle, "git cat-file did not give a file's content")
		}
		size, err := strconv.ParseInt(f[2], 10, 64)
		if err != nil || size < 0 || size > limit || int64(len(rest)) < size+1 {
			return nil, refuse(ReasonBundle, "git cat-file gave a content of the wrong size")
		}
		res = append(res, rest[:size])
		out = rest[size+1:]
	}
	return res, nil
}

// smallOf tells which blobs are no larger than limit.
func (c *cell) smallOf(ctx context.Context, ids []string, limit int64) (map[string]bool, error) {
	small := map[string]bool{}
	if len(ids) == 0 {
		return small, nil
	}
	out, err := c.text(ctx, strings.NewReader(strings.Join(ids, "\n")+"\n"), int64(len(ids))*128, "cat-file", "--batch-check=%(objectname) %(objecttype) %(objectsize)")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 3 || f[1] != "blob" {
			return nil, refuse(ReasonBundle, "git cat-file did not give a file's size")
		}
		size, err := strconv.ParseInt(f[2], 10, 64)
		small[f[0]] = err == nil && size >= 0 && size <= limit
	}
	return small, nil
}

// readHistory reads the commits between the base and the tip: that the tip is
// one and descends from the base, its tree, and the messages, oldest first.
func (c *cell) readHistory(ctx context.Context, im *Imported, base string) error {
	out, err := c.text(ctx, nil, maxHistoryBytes, "log", "-z", "--reverse", "--left-right", "--no-color", "--no-notes", "--no-decorate",
		"--no-show-signature", "--no-mailmap", "--format=%m %H %T%n%B", "--max-count="+strconv.Itoa(maxCommits+1), base+"..."+im.Tip)
	if err != nil {
		return err
	}
	left := maxMessageBytes
	im.Tree = ""
	for _, commit := range strings.Split(out, "\x00") {
		line, message, _ := strings.Cut(commit, "\n")
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if len(f) != 3 || !isSHA(f[1]) || !isSHA(f[2]) {
			return refuse(ReasonBundle, "the list of its commits cannot be read")
		}
		if f[0] != ">" {
			return refuse(ReasonUnrelated, "The result does not descend from the commit the session was given (%.10s).", base)
		}
		if f[1] == im.Tip {
			im.Tree = f[2]
		}
		if im.Commits++; im.Commits > maxCommits {
			return refuse(ReasonBundle, "it holds more than %d commits", maxCommits)
		}
		message = strings.TrimSpace(strings.ToValidUTF8(message, "\uFFFD"))
		if left -= len(message); message != "" && left >= 0 && len(im.Messages) < maxMessages {
			im.Messages = append(im.Messages, message)
		}
	}
	if im.Tree == "" {
		return refuse(ReasonBundle, "its ref is not a commit")
	}
	im.Change.Messages = im.Messages
	return nil
}

// patchForPeople writes the change as a patch that `git apply` takes, for the
// evidence; paths, if any, bound it. It is the enemy's text: redact it.
func (c *cell) patchForPeople(ctx context.Context, w io.Writer, im Imported, paths []string) (complete bool, err error) {
	args := []string{"diff-tree", "-r", "-p", "--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv",
		"--no-color", "--src-prefix=a/", "--dst-prefix=b/", im.BaseTree, im.Tree}
	if len(paths) > 0 {
		args = append(append(args, "--"), paths...)
	}
	exit, err := c.git(ctx, nil, w, wire.MaxBundleBytes, args...)
	switch {
	case errors.Is(err, errOverflow):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("make a patch: %w", err)
	case exit != 0:
		return false, refuse(ReasonBundle, "git diff-tree ended with status %d", exit)
	}
	return true, nil
}
