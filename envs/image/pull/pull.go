// Package pull fetches one container image, by its digest, from the registry its
// name says, as a process of its own without rights. In come the name, perhaps a
// credential for that registry alone, and whatever the registry answers, which
// is an enemy's. Out goes an archive (an OCI layout in a tar) with what this
// machine needs of the image, for package image to check again and unpack.
package pull

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"inspect/envs/egress"
	"inspect/envs/image/unpack"
	"inspect/envs/proc"
)

// Command is the first argument with which the inspect binary becomes Main.
const Command = "image-pull"

// Config is what Main is told on standard input, as one line of JSON.
type Config struct {
	Image string            `json:"image"`          // registry/repository@sha256:…
	Auth  *authn.AuthConfig `json:"auth,omitempty"` // for its registry; nil: as everybody
	Limit int64             `json:"limit"`          // bytes of the archive
	// Reach says which address ranges of the operator's own network the registry,
	// and the hosts it sends to, may be in.
	Reach egress.Config `json:"reach"`
	// Patience is how long the registry may send nothing, or next to nothing;
	// 0: a minute. It is for tests.
	Patience time.Duration `json:"patience,omitempty"`
}

const (
	maxConfig = 1 << 20 // bytes of the line of a Config
	leastPace = 1000    // bytes a second
)

// Reference reads an image's name. It must say its registry and its digest.
func Reference(image string) (name.Digest, error) {
	ref, err := name.NewDigest(image, name.StrictValidation)
	if err != nil || strings.Contains(image, "//") {
		return ref, fmt.Errorf("the name %.200q says no registry, repository and sha256 digest", image)
	}
	return ref, nil
}

// Main writes the archive to standard output, and why it could not to standard
// error. It returns the exit status.
func Main([]string) int {
	err := proc.KeepToItself() // others of this account hold other credentials
	if err == nil {
		err = child(os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func child(in io.Reader, out io.Writer) error {
	line, err := bufio.NewReader(io.LimitReader(in, maxConfig)).ReadBytes('\n')
	var c Config
	if err == nil {
		err = json.Unmarshal(line, &c)
	}
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	w := bufio.NewWriterSize(out, 1<<20)
	if err := Pull(context.Background(), c, w); err != nil {
		return err
	}
	return w.Flush()
}

// Pull writes the archive. The errors are in words for a person; some of them
// are the registry's.
func Pull(ctx context.Context, c Config, out io.Writer) (err error) {
	ref, err := Reference(c.Image)
	if err != nil {
		return err
	}
	base, err := egress.Transport(c.Reach)
	if err != nil {
		return err
	}
	defer base.CloseIdleConnections()
	if c.Patience <= 0 {
		c.Patience = time.Minute
	}
	base.ResponseHeaderTimeout = c.Patience
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	auth := authn.Anonymous
	if c.Auth != nil {
		auth = authn.FromConfig(*c.Auth)
	}
	puller, err := remote.NewPuller(
		remote.WithAuth(auth), remote.WithUserAgent("inspect"),
		remote.WithTransport(&guard{base: base, patience: c.Patience, end: cancel}),
	)
	if err != nil {
		return err
	}
	f := &fetch{of: puller, ref: ref, left: c.Limit, out: tar.NewWriter(out), written: map[v1.Hash]bool{}}
	err = f.image(ctx)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return inWords(ref, c.Auth != nil, err)
	}
	return nil
}

// inWords says what a person can do about an error.
func inWords(ref name.Digest, known bool, err error) error {
	registry := ref.Context().RegistryStr()
	var answer *transport.Error
	if !errors.As(err, &answer) {
		return err
	}
	switch answer.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		if known {
			return fmt.Errorf("%s does not let %s be read with the credential that the node has for it (--registry-auth)", registry, ref.Context().RepositoryStr())
		}
		return fmt.Errorf("%s does not let everybody read %s: give its node daemon a credential for it (--registry-auth of inspect serve or inspect node, or behind the -- of inspect nomad node-job)", registry, ref.Context().RepositoryStr())
	case http.StatusNotFound:
		return fmt.Errorf("%s has no %s with this digest: was it deleted, or is the name wrong?", registry, ref.Context().RepositoryStr())
	}
	return err
}

// fetch is one image on its way.
type fetch struct {
	of      *remote.Puller
	ref     name.Digest
	left    int64 // bytes
	out     *tar.Writer
	written map[v1.Hash]bool
}

// image writes what an OCI layout has: the index that names the image, its
// documents, and the layers.
func (f *fetch) image(ctx context.Context) error {
	top, b, err := f.document(ctx, f.ref)
	if err != nil {
		return err
	}
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{top}})
	if err != nil {
		return err
	}
	if err := f.put("index.json", index); err != nil {
		return err
	}
	desc := top
	for range unpack.MaxIndexes {
		if err := f.put(blobName(desc.Digest), b); err != nil {
			return err
		}
		if !desc.MediaType.IsIndex() {
			return f.manifest(ctx, desc, b)
		}
		index, err := v1.ParseIndexManifest(bytes.NewReader(b))
		if err != nil {
			return fmt.Errorf("read the image's index: %w", err)
		}
		next, err := unpack.Platform(index)
		if err != nil {
			return err
		}
		if desc, b, err = f.document(ctx, f.ref.Context().Digest(next.Digest.String())); err != nil {
			return err
		}
		desc.MediaType = next.MediaType // as unpacking reads it
	}
	return unpack.ErrIndexes
}

// document reads a manifest or an index, whose digest is checked.
func (f *fetch) document(ctx context.Context, ref name.Digest) (v1.Descriptor, []byte, error) {
	d, err := f.of.Get(ctx, ref)
	if err != nil {
		return v1.Descriptor{}, nil, err
	}
	return v1.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}, d.Manifest, nil
}

func (f *fetch) manifest(ctx context.Context, desc v1.Descriptor, b []byte) error {
	if !desc.MediaType.IsImage() {
		return fmt.Errorf("the registry has no image there, but a document of the kind %.100q", desc.MediaType)
	}
	m, err := v1.ParseManifest(bytes.NewReader(b))
	if err != nil {
		return fmt.Errorf("read the image's manifest: %w", err)
	}
	if len(m.Layers) > unpack.MaxLayers {
		return fmt.Errorf("the image has %d layers, %d are the most", len(m.Layers), unpack.MaxLayers)
	}
	if m.Config.Size > unpack.MaxDocument {
		return fmt.Errorf("the image's configuration has %d bytes, %d are the most", m.Config.Size, unpack.MaxDocument)
	}
	var sum int64
	for _, l := range append([]v1.Descriptor{m.Config}, m.Layers...) {
		if l.Size < 0 || l.Size > f.left-sum { // before any of it is fetched
			return fmt.Errorf("the image is larger than the %d MiB that may be fetched, or that there is room for", f.left>>20)
		}
		sum += l.Size
	}
	if err := f.blob(ctx, m.Config); err != nil {
		return fmt.Errorf("the image's configuration: %w", err)
	}
	for i, l := range m.Layers {
		if err := f.blob(ctx, l); err != nil {
			return fmt.Errorf("layer %d of %d: %w", i+1, len(m.Layers), err)
		}
	}
	return f.out.Close()
}

// blob writes a blob of exactly the size and digest that the manifest says.
func (f *fetch) blob(ctx context.Context, desc v1.Descriptor) error {
	if f.written[desc.Digest] {
		return nil
	}
	f.written[desc.Digest] = true
	// By its digest from the image's own repository: addresses of elsewhere that a
	// manifest can name are not gone to.
	l, err := f.of.Layer(ctx, f.ref.Context().Digest(desc.Digest.String()))
	if err != nil {
		return err
	}
	r, err := l.Compressed()
	if err != nil {
		return err
	}
	defer r.Close()
	if err := f.header(blobName(desc.Digest), desc.Size); err != nil {
		return err
	}
	if _, err := io.CopyN(f.out, r, desc.Size); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the registry sends less than the %d bytes it should have", desc.Size)
	} else if err != nil {
		return err
	}
	// Its digest is checked where its end is read.
	switch n, err := io.CopyN(io.Discard, r, 1); {
	case n > 0:
		return fmt.Errorf("the registry sends more than the %d bytes it should have", desc.Size)
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}

func (f *fetch) put(name string, b []byte) error {
	if err := f.header(name, int64(len(b))); err != nil {
		return err
	}
	_, err := f.out.Write(b)
	return err
}

func (f *fetch) header(name string, size int64) error {
	if f.left -= size; f.left < 0 {
		return errors.New("the image is larger than may be fetched")
	}
	return f.out.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size})
}

func blobName(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }
