package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"inspect/envs/image"
	"inspect/envs/sandbox"
)

// maxImage bounds an image's name with its digest, in bytes.
const maxImage = 400

// withImage puts an image in place of this machine's programs. ref is
// name@sha256:…; "" changes nothing.
func (n *Node) withImage(s *sandbox.Spec, ref string) error {
	if ref == "" {
		return nil
	}
	im, err := n.findImage(ref)
	if err != nil {
		return err
	}
	s.Root = im.Root
	s.Env = n.imageEnv(im.Env)
	return nil
}

// findImage finds an image by its digest alone: a name says nothing.
func (n *Node) findImage(ref string) (image.Image, error) {
	_, digest, _ := strings.Cut(ref, "@")
	im, err := n.images.Find(digest)
	if errors.Is(err, image.ErrMissing) {
		return im, failed("the image %s is not on this node; bring it there with: inspect env image import ARCHIVE", ref)
	}
	if err != nil {
		return im, fmt.Errorf("the image %s: %w", ref, err)
	}
	return im, nil
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
