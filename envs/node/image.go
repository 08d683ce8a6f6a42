package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"inspect/envs/image"
	"inspect/envs/sandbox"
	"inspect/envs/snapshot"
	"inspect/envs/snapshot/tree"
	"inspect/envs/wire"
)

// maxImage bounds an image's name with its digest, in bytes.
const maxImage = 400

// withImage puts an image in place of this machine's programs. ref is
// name@sha256:…; "" changes nothing.
func (n *Node) withImage(ctx context.Context, s *sandbox.Spec, ref string) error {
	if ref == "" {
		return nil
	}
	im, err := n.findImage(ctx, ref)
	if err != nil {
		return err
	}
	s.Root = im.Root
	s.Env = n.imageEnv(im.Env)
	return nil
}

// findImage finds an image by its digest alone: a name says nothing.
func (n *Node) findImage(ctx context.Context, ref string) (image.Image, error) {
	_, digest, _ := strings.Cut(ref, "@")
	im, err := n.images.Find(ctx, digest)
	if errors.Is(err, image.ErrMissing) {
		return im, failed("the image %s is not on this node; bring it there with: inspect env image import ARCHIVE, or name it under images in the operator's policy to have it fetched from its registry", ref)
	}
	if err == nil {
		err = n.use(imageOf(ref))
	}
	if err != nil {
		return im, fmt.Errorf("the image %s: %w", ref, err)
	}
	return im, nil
}

// imageOf is the image that name@sha256:… names; "" if it names none.
func imageOf(ref string) snapshot.ImageID {
	_, digest, _ := strings.Cut(ref, "@")
	id, err := image.ID(digest)
	if err != nil {
		return ""
	}
	return id
}

// importImage unpacks an archive's image, which must have a digest unless that
// is empty.
func (n *Node) importImage(ctx context.Context, digest string, archive io.Reader) (wire.Image, error) {
	sp, err := n.o.Store.Space(ctx)
	if err != nil {
		return wire.Image{}, err
	}
	if words := n.refuses(sp); words != "" {
		return wire.Image{}, refuse("no_space", words)
	}
	base := "image-" + strings.ToLower(rand.Text())
	unlock, err := n.names.Lock(ctx, base) // a collection leaves it alone
	if err != nil {
		return wire.Image{}, err
	}
	defer unlock()
	begun := n.clock.Now()
	im, err := n.images.Import(ctx, image.Job{Base: snapshot.BaseID(base), Sandbox: refreshPrefix + base, Room: n.room(sp), Digest: digest}, archive)
	if err != nil {
		return wire.Image{}, err
	}
	n.log.Info("an image was brought", "image", im.Digest, "files", im.Files, "bytes", im.Bytes, "duration", n.clock.Now().Sub(begun))
	return im.Image, n.use(imageOf("@" + im.Digest))
}

func (n *Node) listImages(ctx context.Context) ([]wire.Image, error) {
	all, err := n.images.List(ctx)
	out := []wire.Image{}
	for _, im := range all {
		out = append(out, im.Image)
	}
	return out, err
}

// usedDir has a file for each image that was used, whose time says when.
func (n *Node) usedDir() string { return filepath.Join(n.o.Root, "images-used") }

// use notes that an image is used now.
func (n *Node) use(id snapshot.ImageID) error {
	path := filepath.Join(n.usedDir(), string(id))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	now := n.clock.Now()
	return errors.Join(f.Close(), os.Chtimes(path, now, now))
}

// collectImages removes what no snapshot and no clone needs, and nobody has used
// or brought for long.
func (n *Node) collectImages(ctx context.Context, l snapshot.Listing) error {
	needed := map[snapshot.ImageID]bool{}
	for _, s := range l.Snapshots {
		needed[s.Meta.Image] = true
	}
	for _, c := range l.Clones {
		needed[c.Image] = true
	}
	var errs []error
	for _, i := range l.Images {
		if needed[i.ID] {
			errs = append(errs, n.use(i.ID))
			continue
		}
		used := i.Created
		if st, err := os.Stat(filepath.Join(n.usedDir(), string(i.ID))); err == nil {
			used = st.ModTime()
		}
		if n.clock.Now().Sub(used) < keepUnused {
			continue
		}
		n.log.Info("collecting an image nobody needs", "image", string(i.ID), "used", used)
		if err := n.o.Store.Discard(ctx, i.ID); err != nil {
			errs = append(errs, fmt.Errorf("collect the image %s: %w", i.ID, err))
			continue
		}
		_ = os.Remove(filepath.Join(n.usedDir(), string(i.ID))) // of no use any more, and of no harm
	}
	return errors.Join(errs...)
}

// formerImage is what earlier versions, which kept images outside of the store,
// called one or what they were about to make one of.
var formerImage = regexp.MustCompile(`^([0-9a-f]{64}|tmp-.+)$`)

// collectFormerImages removes images that an earlier version unpacked, once no
// sandbox runs that could have begun in one.
func (n *Node) collectFormerImages(ctx context.Context, sandboxes []string) error {
	dir := filepath.Join(n.o.Root, "images")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || len(sandboxes) > 0 {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if formerImage.MatchString(e.Name()) {
			n.log.Info("collecting an image of an earlier version", "image", e.Name())
			errs = append(errs, tree.Remove(ctx, filepath.Join(dir, e.Name())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("collect images of an earlier version: %w", err)
	}
	_ = os.Remove(dir) // not if somebody else keeps something there
	return nil
}

// notFromImage are names of the environment that are the sandbox's own.
var notFromImage = []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR"}

// imageEnv is what the image's commands find: its own environment, and ours
// where it must be ours.
func (n *Node) imageEnv(env []string) (out []string) {
	path := sandbox.SearchPath
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		switch {
		case name == "PATH" && value != "":
			path = value
		case !slices.Contains(notFromImage, name) && !strings.HasPrefix(name, "INSPECT_") && !strings.HasPrefix(name, "GIT_"):
			out = append(out, e)
		}
	}
	for _, d := range n.o.Expose {
		if st, err := os.Stat(filepath.Join(d, "bin")); err == nil && st.IsDir() {
			path += ":" + filepath.Join(d, "bin")
		}
	}
	return append(out, "PATH="+path, "GIT_CONFIG_SYSTEM="+insideConfig)
}
