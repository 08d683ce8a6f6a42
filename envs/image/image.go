// Package image keeps the container images of a node as root file systems that
// sandboxes are given read-only. In comes an archive of an image; it is read and
// unpacked in a sandbox, as the account that will own the tree (package unpack).
// Out goes an image of the node's store, named by its digest, which is there
// whole or not at all.
package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"inspect/checks/redact"
	"inspect/envs/image/unpack"
	"inspect/envs/proc"
	"inspect/envs/sandbox"
	"inspect/envs/sandbox/stream"
	"inspect/envs/snapshot"
	"inspect/envs/snapshot/locks"
	"inspect/envs/wire"
)

// ErrMissing is the error of an image that is not on this node.
var ErrMissing = errors.New("the image is not on this node")

// Options of a Store. All must be set.
type Options struct {
	Store snapshot.Store // where the images are
	// UID and GID of sandboxes; they own what is unpacked. Ignored unless this is root.
	UID, GID int
	// Start starts a sandbox; wait returns when all in it has ended.
	Start func(context.Context, sandbox.Spec) (wait func() wire.SandboxEnd, err error)
}

// Store is the images of one node. It is safe for concurrent use.
type Store struct {
	o       Options
	digests locks.Keyed // what is being unpacked: each once
}

// New makes a Store. Nothing is read or written.
func New(o Options) *Store { return &Store{o: o} }

// Image is an unpacked image.
type Image struct {
	wire.Image
	Root string // directory of the tree
}

const (
	infoFile = "image.json"
	maxInfo  = 1 << 20 // bytes
)

// ID is the name in a store of the image with a digest, sha256:…
func ID(digest string) (snapshot.ImageID, error) {
	hex, ok := strings.CutPrefix(digest, "sha256:")
	if id := snapshot.ImageID(hex); ok && id.Check() == nil {
		return id, nil
	}
	return "", fmt.Errorf("%.100q is no digest of an image", digest)
}

// Find finds the image with a digest, sha256:…; the error is ErrMissing if
// there is none.
func (s *Store) Find(ctx context.Context, digest string) (Image, error) {
	id, err := ID(digest)
	if err != nil {
		return Image{}, err
	}
	kept, err := s.o.Store.Image(ctx, id)
	if errors.Is(err, snapshot.ErrNotFound) {
		return Image{}, ErrMissing
	}
	if err != nil {
		return Image{}, err
	}
	b, err := os.ReadFile(filepath.Join(kept.Path, infoFile))
	if err != nil {
		return Image{}, err
	}
	im := Image{Root: filepath.Join(kept.Path, unpack.RootDir)}
	if err := json.Unmarshal(b, &im.Image); err != nil || im.Digest != digest {
		return Image{}, fmt.Errorf("the image in %s is damaged", kept.Path)
	}
	return im, nil
}

// List is all images of this node.
func (s *Store) List(ctx context.Context) ([]Image, error) {
	l, err := s.o.Store.List(ctx)
	if err != nil {
		return nil, err
	}
	var out []Image
	for _, i := range l.Images {
		im, err := s.Find(ctx, "sha256:"+string(i.ID))
		switch {
		case err == nil:
			out = append(out, im)
		case !errors.Is(err, ErrMissing): // gone meanwhile
			return nil, err
		}
	}
	return out, nil
}

// Job is how one import is to be done.
type Job struct {
	Base    snapshot.BaseID // where; gone afterwards
	Sandbox string          // id of the sandbox that unpacks
	Room    int64           // bytes that it may take on disk
	Digest  string          // sha256:…, that the image must have; empty: any
}

// most is how many bytes the archive and what is in it may take together.
func (j Job) most() int64 {
	limit := unpack.DefaultLimits()
	return min(limit.Archive+limit.Bytes, j.Room)
}

// Import unpacks the one image in an archive: an OCI layout in a tar, or what
// docker save writes. An image that is there already, or that another import is
// just unpacking, is not unpacked again. The errors are about the archive, in
// words for a person, or the store's.
func (s *Store) Import(ctx context.Context, job Job, archive io.Reader) (_ Image, err error) {
	base, err := s.o.Store.Prepare(ctx, job.Base, "")
	if err != nil {
		return Image{}, fmt.Errorf("make room for the image: %w", err)
	}
	defer func() {
		// Not there any more if it became the image.
		err = errors.Join(err, s.o.Store.Discard(context.WithoutCancel(ctx), job.Base))
	}()
	if err := s.o.Store.Bound(ctx, job.Base, job.most()); err != nil {
		return Image{}, fmt.Errorf("make room for the image: %w", err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(base.Path, s.o.UID, s.o.GID); err != nil {
			return Image{}, err
		}
	}
	var im Image
	unlock := func() {}
	defer func() { unlock() }()
	err = s.inSandbox(ctx, job, base.Path, func(step func(string, io.Reader) ([]byte, error)) error {
		said, err := step(unpack.StepReceive, archive)
		if err != nil {
			return err
		}
		digest := strings.TrimSpace(string(said))
		if _, err := ID(digest); err != nil {
			return err
		}
		if job.Digest != "" && digest != job.Digest {
			return fmt.Errorf("the image is %s and not %s", digest, job.Digest)
		}
		release, err := s.digests.Lock(ctx, digest)
		if err != nil {
			return err
		}
		unlock = release
		if im, err = s.Find(ctx, digest); !errors.Is(err, ErrMissing) {
			return err
		}
		if said, err = step(unpack.StepWrite, nil); err != nil {
			return err
		}
		if err := json.Unmarshal(said, &im.Image); err != nil || im.Digest != digest {
			return errors.New("the sandbox did not say what it unpacked")
		}
		return nil
	})
	switch {
	case err != nil:
		return Image{}, err
	case im.Root != "":
		return im, nil // it is there
	}
	if err := s.keep(ctx, base, im.Image); err != nil {
		return Image{}, fmt.Errorf("keep the image: %w", err)
	}
	return s.Find(ctx, im.Digest)
}

// What unpacking may take.
const (
	unpackCPU    = 2
	unpackMemory = 1 << 30
	unpackPids   = 64
	saidBytes    = 2 << 10 // kept of its complaint
)

// inSandbox runs fn with a way to take the steps of unpack, in a sandbox that has
// nothing but dir.
func (s *Store) inSandbox(ctx context.Context, job Job, dir string, fn func(step func(string, io.Reader) ([]byte, error)) error) error {
	near, far, err := stream.Pair()
	if err != nil {
		return err
	}
	wait, err := s.o.Start(ctx, sandbox.Spec{
		ID: job.Sandbox, UID: s.o.UID, GID: s.o.GID,
		Mounts:  []sandbox.Mount{{Source: dir, Target: sandbox.Workspace, Writable: true}},
		Limits:  wire.Limits{CPU: unpackCPU, MemoryBytes: unpackMemory, Pids: unpackPids, DiskBytes: job.most()},
		Control: far,
	})
	if err != nil {
		near.Close()
		return err
	}
	c := stream.NewClient(near)
	err = fn(func(name string, stdin io.Reader) ([]byte, error) {
		out, said := &proc.Head{N: maxInfo}, &proc.Tail{N: saidBytes}
		exit, err := c.Run(ctx, stream.Exec{
			Argv: []string{sandbox.InitPath, "sandbox-init", unpack.Word, name, sandbox.Workspace}, Dir: "/", Stdin: stdin, Stdout: out, Stderr: said,
		})
		switch {
		case err != nil:
			return nil, err
		case exit.Signal != "":
			return nil, fmt.Errorf("reading the image was ended by %s", exit.Signal)
		case exit.Code != 0:
			return nil, errors.New(redact.Visible(strings.TrimPrefix(strings.TrimSpace(string(said.Bytes())), "sandbox init: ")))
		}
		return out.Bytes(), nil
	})
	_ = c.Close()
	end := wait()
	switch {
	case err == nil:
		return nil
	case end.DiskFull:
		return errors.New("the image is larger than may be unpacked, or than there is room for")
	case end.OOM > 0:
		return errors.New("the image takes more memory to read than is given to it")
	}
	return err
}

// keep makes a base, in which an image was unpacked, that image.
func (s *Store) keep(ctx context.Context, base snapshot.Base, info wire.Image) error {
	if st, err := os.Lstat(filepath.Join(base.Path, unpack.RootDir)); err != nil || !st.IsDir() {
		return errors.New("there is no tree")
	}
	if os.Geteuid() == 0 { // from here on it is ours
		if err := os.Chown(base.Path, 0, 0); err != nil {
			return err
		}
	}
	if err := os.Chmod(base.Path, 0o711); err != nil {
		return err
	}
	b, err := json.Marshal(info)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(base.Path, infoFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	id, err := ID(info.Digest)
	if err != nil {
		return err
	}
	_, err = s.o.Store.Seal(ctx, base.ID, id)
	return err
}
