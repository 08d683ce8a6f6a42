// Package image keeps the container images of a node as root file systems that
// sandboxes are given read-only. In comes an archive of an image, from a file
// or from a registry; it is read and unpacked in a sandbox, as the account that
// will own the tree (package unpack). Out goes a directory named by the image's
// digest, put in its place in one step when it is complete.
package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"inspect/checks/redact"
	"inspect/envs/image/unpack"
	"inspect/envs/proc"
	"inspect/envs/sandbox"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// ErrMissing is the error of an image that is not on this node.
var ErrMissing = errors.New("the image is not on this node")

// Options of a Store. All must be set.
type Options struct {
	Dir string // of the images; made if needed. Every directory above it must let the sandboxes' account pass
	// UID and GID of sandboxes; they own what is unpacked. Ignored unless this is root.
	UID, GID int
	// Start starts a sandbox; wait returns when all in it has ended.
	Start func(context.Context, sandbox.Spec) (wait func() wire.SandboxEnd, err error)
}

// Store is the images of one node. It is safe for concurrent use, also by
// several processes.
type Store struct{ o Options }

// New makes a Store. Nothing is read or written.
func New(o Options) *Store { return &Store{o} }

// Image is an unpacked image.
type Image struct {
	unpack.Info
	Root string `json:"-"` // directory of the tree
}

const (
	infoFile   = "image.json"
	tempPrefix = "tmp-"
	maxInfo    = 1 << 20 // bytes
)

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// Find finds the image with a digest, sha256:…; the error is ErrMissing if
// there is none.
func (s *Store) Find(digest string) (Image, error) {
	if !digestForm.MatchString(digest) {
		return Image{}, fmt.Errorf("%.100q is no digest of an image", digest)
	}
	dir := filepath.Join(s.o.Dir, strings.TrimPrefix(digest, "sha256:"))
	b, err := os.ReadFile(filepath.Join(dir, infoFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Image{}, ErrMissing
	}
	if err != nil {
		return Image{}, err
	}
	im := Image{Root: filepath.Join(dir, unpack.RootDir)}
	if err := json.Unmarshal(b, &im.Info); err != nil || im.Digest != digest {
		return Image{}, fmt.Errorf("the image in %s is damaged: remove the directory and import it again", dir)
	}
	return im, nil
}

// List is all images of this node.
func (s *Store) List() ([]Image, error) {
	entries, err := os.ReadDir(s.o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Image
	for _, e := range entries {
		if digest := "sha256:" + e.Name(); digestForm.MatchString(digest) {
			im, err := s.Find(digest)
			if err != nil {
				return nil, err
			}
			out = append(out, im)
		}
	}
	return out, nil
}

// Import unpacks the one image in an archive: an OCI layout in a tar, or what
// docker save writes. An image that is there already stays as it is. want, if
// set, is the digest it must have. The errors are about the archive, in words
// for a person.
func (s *Store) Import(ctx context.Context, archive io.Reader, want string) (_ Image, err error) {
	dir, lock, err := s.temp()
	if err != nil {
		return Image{}, fmt.Errorf("make a directory for the image: %w", err)
	}
	defer lock.Close()
	defer func() {
		// Not there any more if it was put in its place.
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	info, err := s.unpack(ctx, filepath.Base(dir), dir, archive)
	if err != nil {
		return Image{}, err
	}
	switch {
	case !digestForm.MatchString(info.Digest):
		return Image{}, errors.New("the image has no digest")
	case want != "" && info.Digest != want:
		return Image{}, fmt.Errorf("the archive holds the image %s, not %s", info.Digest, want)
	}
	if err := s.place(dir, info); err != nil {
		return Image{}, fmt.Errorf("keep the image: %w", err)
	}
	return s.Find(info.Digest)
}

// temp makes a directory for one import, locked while that lasts, and removes
// those of imports that were killed.
func (s *Store) temp() (dir string, lock *os.File, err error) {
	if err := os.MkdirAll(s.o.Dir, 0o711); err != nil {
		return "", nil, err
	}
	all, err := locked(s.o.Dir, unix.LOCK_EX)
	if err != nil {
		return "", nil, err
	}
	defer all.Close()
	old, err := filepath.Glob(filepath.Join(s.o.Dir, tempPrefix+"*"))
	if err != nil {
		return "", nil, err
	}
	for _, o := range old {
		l, err := locked(o, unix.LOCK_EX|unix.LOCK_NB)
		if err != nil {
			continue // somebody works there
		}
		err = os.RemoveAll(o)
		l.Close()
		if err != nil {
			return "", nil, err
		}
	}
	if dir, err = os.MkdirTemp(s.o.Dir, tempPrefix); err != nil {
		return "", nil, err
	}
	if lock, err = locked(dir, unix.LOCK_EX); err != nil {
		return "", nil, err
	}
	if os.Geteuid() == 0 {
		err = os.Chown(dir, s.o.UID, s.o.GID)
	}
	if err != nil {
		lock.Close()
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, lock, nil
}

func locked(dir string, how int) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// What unpacking may take.
const (
	unpackCPU    = 2
	unpackMemory = 1 << 30
	unpackPids   = 64
	saidBytes    = 2 << 10 // kept of its complaint
)

// unpack reads the archive in a sandbox that has nothing but dir.
func (s *Store) unpack(ctx context.Context, name, dir string, archive io.Reader) (unpack.Info, error) {
	near, far, err := stream.Pair()
	if err != nil {
		return unpack.Info{}, err
	}
	limit := unpack.DefaultLimits()
	wait, err := s.o.Start(ctx, sandbox.Spec{
		ID: "image-" + name, UID: s.o.UID, GID: s.o.GID,
		Mounts:  []sandbox.Mount{{Source: dir, Target: sandbox.Workspace, Writable: true}},
		Limits:  wire.Limits{CPU: unpackCPU, MemoryBytes: unpackMemory, Pids: unpackPids, DiskBytes: limit.Archive + limit.Bytes},
		Control: far,
	})
	if err != nil {
		near.Close()
		return unpack.Info{}, err
	}
	c := stream.NewClient(near)
	out, said := &proc.Head{N: maxInfo}, &proc.Tail{N: saidBytes}
	exit, err := c.Run(ctx, stream.Exec{
		Argv: []string{sandbox.InitPath, "sandbox-init", unpack.Word, sandbox.Workspace}, Dir: "/", Stdin: archive, Stdout: out, Stderr: said,
	})
	_ = c.Close()
	end := wait()
	switch words := strings.TrimPrefix(strings.TrimSpace(string(said.Bytes())), "sandbox init: "); {
	case end.DiskFull:
		return unpack.Info{}, errors.New("the image is larger than may be unpacked")
	case end.OOM > 0:
		return unpack.Info{}, errors.New("the image takes more memory to read than is given to it")
	case err != nil:
		return unpack.Info{}, err
	case exit.Signal != "":
		return unpack.Info{}, fmt.Errorf("reading the image was ended by %s", exit.Signal)
	case exit.Code != 0:
		return unpack.Info{}, errors.New(redact.Visible(words))
	}
	var info unpack.Info
	if err := json.Unmarshal(out.Bytes(), &info); err != nil {
		return unpack.Info{}, errors.New("the sandbox did not say what it unpacked")
	}
	return info, nil
}

// place puts a complete image where it is found.
func (s *Store) place(dir string, info unpack.Info) error {
	if st, err := os.Lstat(filepath.Join(dir, unpack.RootDir)); err != nil || !st.IsDir() {
		return errors.New("there is no tree")
	}
	if os.Geteuid() == 0 { // from here on it is ours
		if err := os.Chown(dir, 0, 0); err != nil {
			return err
		}
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return err
	}
	b, err := json.Marshal(info)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, infoFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	to := filepath.Join(s.o.Dir, strings.TrimPrefix(info.Digest, "sha256:"))
	err = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTEMPTY) {
		return nil // another import was first
	}
	return err
}
