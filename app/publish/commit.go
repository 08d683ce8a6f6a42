package publish

import (
	"bytes"
	"context"
	"crypto/sha1" // git's own checksum of its files, not ours
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"inspect/app/policy"
	"inspect/envs/proc"
)

// trusted is a bare repository of our own: made by us, with our configuration,
// over the mirror's objects. Of the quarantine only checked packs come in.
// Its git runs outside of any sandbox, on objects that policy has let pass.
type trusted struct {
	dir    string
	mirror string
	local  bool // it is pushed to a repository of this machine
}

func newTrusted(dir, mirror string) (*trusted, error) {
	t := &trusted{dir: filepath.Join(dir, "trusted.git"), mirror: mirror}
	for _, d := range []string{"", "objects", "objects/info", "objects/pack", "refs", "refs/heads"} {
		if err := os.Mkdir(filepath.Join(t.dir, d), 0o700); err != nil {
			return nil, fmt.Errorf("make the repository to push from: %w", err)
		}
	}
	return t, bareFiles(t.dir, mirror, mirror, 0o600)
}

// adopt copies the quarantined pack. What git in the sandbox left behind is
// not believed: both files must be plain files of bounded size whose checksums
// agree with their content and with each other.
func (t *trusted) adopt(cellDir, pack string) error {
	from := filepath.Join(cellDir, "repo.git", "objects", "pack", "pack-"+pack)
	to := filepath.Join(t.dir, "objects", "pack", "pack-"+pack)
	sum, err := copyChecked(from+".pack", to+".pack", packFile)
	if err != nil {
		return err
	}
	named, err := copyChecked(from+".idx", to+".idx", indexFile)
	if err != nil {
		return err
	}
	if !bytes.Equal(sum, named) {
		return refuse(ReasonBundle, "the index git made does not belong to its pack")
	}
	return nil
}

const (
	packFile  = "PACK"
	indexFile = "\xfftOc"
)

// copyChecked copies a file that ends in the SHA-1 of what stands before, and
// returns the checksum of the pack: a pack's own, or the one an index names.
func copyChecked(from, to, magic string) ([]byte, error) {
	// O_NOFOLLOW, O_NONBLOCK: neither a link nor a pipe left by an intruder.
	in, err := os.OpenFile(from, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("take over the result's objects: %w", err)
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return nil, fmt.Errorf("take over the result's objects: %w", err)
	}
	size := info.Size()
	if !info.Mode().IsRegular() || size > gitFile || size < 2*sha1.Size+8 {
		return nil, refuse(ReasonBundle, "git left no plain file behind")
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return nil, fmt.Errorf("take over the result's objects: %w", err)
	}
	defer out.Close()
	h := sha1.New()
	tail := &proc.Tail{N: 2 * sha1.Size}
	head := &proc.Head{N: 8}
	if err := copyBody(io.MultiWriter(out, tail, head), h, in, size); err != nil {
		return nil, err
	}
	if err := out.Close(); err != nil {
		return nil, fmt.Errorf("take over the result's objects: %w", err)
	}
	end := tail.Bytes()
	if string(head.Bytes()[:4]) != magic || binary.BigEndian.Uint32(head.Bytes()[4:]) != 2 || !bytes.Equal(h.Sum(nil), end[sha1.Size:]) {
		return nil, refuse(ReasonBundle, "what git left behind is damaged")
	}
	if magic == packFile {
		return end[sha1.Size:], nil
	}
	return end[:sha1.Size], nil
}

// copyBody copies size bytes and hashes all but the checksum at their end.
func copyBody(out io.Writer, h hash.Hash, in io.Reader, size int64) error {
	if _, err := io.CopyN(io.MultiWriter(out, h), in, size-sha1.Size); err != nil {
		return fmt.Errorf("take over the result's objects: %w", err)
	}
	if _, err := io.CopyN(out, in, sha1.Size); err != nil {
		return fmt.Errorf("take over the result's objects: %w", err)
	}
	return nil
}

// git runs one command in the trusted repository.
func (t *trusted) git(ctx context.Context, stdin string, env []string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, gitTimeout)
	defer cancel()
	res, err := proc.Run(ctx, proc.Command{
		Argv:  slices.Concat([]string{"git"}, args),
		Dir:   t.dir,
		Env:   slices.Concat(gitEnv(t.dir, gitConfig), env),
		Stdin: strings.NewReader(stdin),
		Limit: maxRawBytes,
	})
	if err != nil {
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	if res.Truncated {
		return "", fmt.Errorf("git %s: its output is too long", args[0])
	}
	return string(res.Stdout), nil
}

// tree makes the tree to push: the base's, with every change that was judged
// and is not withheld. Nothing else can be in it. Without anything withheld it
// must be the verified one.
func (t *trusted) tree(ctx context.Context, im Imported, withheld []string) (string, error) {
	env := []string{"GIT_INDEX_FILE=" + filepath.Join(t.dir, "result.index")}
	if _, err := t.git(ctx, "", env, "read-tree", im.BaseTree); err != nil {
		return "", err
	}
	var gone, there strings.Builder
	for _, e := range im.Change.Entries {
		switch {
		case slices.Contains(withheld, e.Path):
		case e.NewMode == policy.ModeNone:
			fmt.Fprintf(&gone, "0 %040d\t%s\x00", 0, e.Path)
		default:
			fmt.Fprintf(&there, "%06o %s\t%s\x00", e.NewMode, e.NewSHA, e.Path)
		}
	}
	if _, err := t.git(ctx, gone.String()+there.String(), env, "update-index", "-z", "--index-info"); err != nil {
		return "", err
	}
	out, err := t.git(ctx, "", env, "write-tree")
	if err != nil {
		return "", err
	}
	tree := strings.TrimSpace(out)
	if len(withheld) == 0 && tree != im.Tree {
		return "", refuse(ReasonBundle, "its trees are not as git writes them")
	}
	return tree, nil
}

// Identity is who a commit is made by.
type Identity struct {
	Name, Email string
}

// commit makes the one commit that is pushed. The same arguments always give
// the same commit.
func (t *trusted) commit(ctx context.Context, tree, base, message string, who Identity, at time.Time) (string, error) {
	date := fmt.Sprintf("@%d +0000", at.Unix())
	env := []string{
		"GIT_AUTHOR_NAME=" + who.Name, "GIT_AUTHOR_EMAIL=" + who.Email, "GIT_AUTHOR_DATE=" + date,
		"GIT_COMMITTER_NAME=" + who.Name, "GIT_COMMITTER_EMAIL=" + who.Email, "GIT_COMMITTER_DATE=" + date,
	}
	out, err := t.git(ctx, message, env, "commit-tree", tree, "-p", base)
	if err != nil {
		return "", err
	}
	sha := strings.TrimSpace(out)
	if !isSHA(sha) {
		return "", errors.New("git commit-tree gave no commit")
	}
	return sha, nil
}

// unsafeInIdentity are characters that end a name or an address in git.
var unsafeInIdentity = regexp.MustCompile(`[\x00-\x1f\x7f<>]`)

func identity(name, email string) Identity {
	return Identity{unsafeInIdentity.ReplaceAllString(name, ""), unsafeInIdentity.ReplaceAllString(email, "")}
}
