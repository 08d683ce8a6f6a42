package unpack

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Bounds of an archive's own files.
const (
	maxMembers  = 10_000  // files in the archive
	MaxDocument = 4 << 20 // bytes of a manifest, index or configuration
	MaxIndexes  = 4       // an index may name an index
)

// archive is a tar whose files can be read in any order.
type archive struct {
	r     io.ReaderAt
	files map[string]*io.SectionReader
}

// openArchive notes where each plain file of the tar stands. Links, of which
// `docker save` has some, are not followed: an old archive with them is refused
// when the file is missed.
func openArchive(r io.ReaderAt, size int64) (*archive, error) {
	a := &archive{r: r, files: map[string]*io.SectionReader{}}
	from := io.NewSectionReader(r, 0, size)
	t := tar.NewReader(from)
	for n := 0; ; n++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return a, nil
		}
		if err != nil {
			return nil, fmt.Errorf("it is no tar archive, or it is damaged: %w", err)
		}
		if n >= maxMembers {
			return nil, fmt.Errorf("the archive holds more than %d files", maxMembers)
		}
		if h.Typeflag != tar.TypeReg || sparse(h) {
			continue
		}
		at, err := from.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		name := path.Clean("/" + h.Name)[1:]
		if _, twice := a.files[name]; twice {
			return nil, fmt.Errorf("the archive holds %.100q twice", name)
		}
		a.files[name] = io.NewSectionReader(r, at, h.Size)
	}
}

// sparse files are shorter in the archive than they say.
func sparse(h *tar.Header) bool {
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}

func (a *archive) open(name string) (*io.SectionReader, error) {
	f, ok := a.files[path.Clean("/" + name)[1:]]
	if !ok {
		return nil, fmt.Errorf("the archive lacks %.100q", name)
	}
	return io.NewSectionReader(f, 0, f.Size()), nil
}

// blob opens what has this digest, and reads all of it to be sure.
func (a *archive) blob(digest v1.Hash) (*io.SectionReader, error) {
	if digest.Algorithm != "sha256" || !hexDigest().MatchString(digest.Hex) {
		return nil, fmt.Errorf("%.100q is no sha256 digest", digest.String())
	}
	f, err := a.open("blobs/sha256/" + digest.Hex)
	if err != nil {
		return nil, err
	}
	return f, check(f, digest)
}

var hexDigest = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{64}$`) })

// check reads f, whose digest must be want, and goes back to its beginning.
func check(f *io.SectionReader, want v1.Hash) error {
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); want.Algorithm != "sha256" || got != want.Hex {
		return fmt.Errorf("what is said to be %.80s has the digest sha256:%s: the archive is damaged or forged", want, got)
	}
	_, err := f.Seek(0, io.SeekStart)
	return err
}

func document(f *io.SectionReader) ([]byte, error) {
	if f.Size() > MaxDocument {
		return nil, fmt.Errorf("a document of the archive has %d bytes, %d are the most", f.Size(), MaxDocument)
	}
	return io.ReadAll(f)
}

// source is an image found in an archive: its layers, the lowest first.
type source struct {
	digest v1.Hash // by which the image is asked for
	config *v1.ConfigFile
	layers []*io.SectionReader
}

// find finds the one image in the archive.
func (a *archive) find() (*source, error) {
	if a.isLayout() {
		return a.layout()
	}
	return a.saved()
}

// claimed is the digest that the one image in the archive is said to have; only
// find checks it.
func (a *archive) claimed() (v1.Hash, error) {
	if a.isLayout() {
		top, err := a.top()
		return top.Digest, err
	}
	named, err := a.named()
	if err != nil {
		return v1.Hash{}, err
	}
	_, digest, err := a.configOf(named.Config)
	return digest, err
}

func (a *archive) isLayout() bool {
	_, ok := a.files["index.json"]
	return ok
}

// top is what a layout's index.json names.
func (a *archive) top() (v1.Descriptor, error) {
	f, err := a.open("index.json")
	if err != nil {
		return v1.Descriptor{}, err
	}
	index, err := a.index(f)
	if err != nil {
		return v1.Descriptor{}, err
	}
	if len(index.Manifests) != 1 {
		return v1.Descriptor{}, fmt.Errorf("the archive holds %d images: make one of just the image you want", len(index.Manifests))
	}
	return index.Manifests[0], nil
}

// savedImage names the files of an image.
type savedImage struct {
	Config string
	Layers []string
}

// named is what the manifest.json of docker save names.
func (a *archive) named() (one savedImage, err error) {
	if _, ok := a.files["manifest.json"]; !ok {
		return one, errors.New("the archive is neither an OCI layout (it has no index.json) nor what docker save writes (it has no manifest.json)")
	}
	f, err := a.open("manifest.json")
	if err != nil {
		return one, err
	}
	b, err := document(f)
	if err != nil {
		return one, err
	}
	var list []savedImage
	if err := json.Unmarshal(b, &list); err != nil {
		return one, fmt.Errorf("read manifest.json: %w", err)
	}
	if len(list) != 1 {
		return one, fmt.Errorf("the archive holds %d images: save just the one you want", len(list))
	}
	return list[0], nil
}

// configOf is an image's configuration in what docker save wrote, and its
// digest.
func (a *archive) configOf(name string) (*io.SectionReader, v1.Hash, error) {
	config, err := a.open(name)
	if err != nil {
		return nil, v1.Hash{}, err
	}
	h := sha256.New()
	if _, err := io.Copy(h, config); err != nil {
		return nil, v1.Hash{}, err
	}
	_, err = config.Seek(0, io.SeekStart)
	return config, v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}, err
}

// layout reads an OCI layout. What index.json names is the image's digest; if
// that is an index of several platforms, this machine's is taken.
func (a *archive) layout() (*source, error) {
	top, err := a.top()
	if err != nil {
		return nil, err
	}
	desc := top
	for range MaxIndexes {
		f, err := a.blob(desc.Digest)
		if err != nil {
			return nil, err
		}
		if !desc.MediaType.IsIndex() {
			return a.manifest(top.Digest, f)
		}
		index, err := a.index(f)
		if err != nil {
			return nil, err
		}
		if desc, err = Platform(index); err != nil {
			return nil, err
		}
	}
	return nil, ErrIndexes
}

// Platform is what of an image's index is for this machine.
func Platform(index *v1.IndexManifest) (v1.Descriptor, error) {
	i := slices.IndexFunc(index.Manifests, func(d v1.Descriptor) bool {
		return d.Platform != nil && d.Platform.OS == "linux" && d.Platform.Architecture == runtime.GOARCH
	})
	if i < 0 {
		return v1.Descriptor{}, fmt.Errorf("the image has nothing for linux/%s", runtime.GOARCH)
	}
	return index.Manifests[i], nil
}

// ErrIndexes is the error of an image with more indexes below one another than
// are followed.
var ErrIndexes = errors.New("the image's indexes name one another")

func (a *archive) index(f *io.SectionReader) (*v1.IndexManifest, error) {
	b, err := document(f)
	if err != nil {
		return nil, err
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("read the image's index: %w", err)
	}
	return index, nil
}

func (a *archive) manifest(digest v1.Hash, f *io.SectionReader) (*source, error) {
	b, err := document(f)
	if err != nil {
		return nil, err
	}
	m, err := v1.ParseManifest(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("read the image's manifest: %w", err)
	}
	s := &source{digest: digest}
	config, err := a.blob(m.Config.Digest)
	if err != nil {
		return nil, fmt.Errorf("the image's configuration: %w", err)
	}
	if s.config, err = readConfig(config); err != nil {
		return nil, err
	}
	for i, l := range m.Layers {
		if i >= MaxLayers {
			break // checkLayers says so
		}
		blob, err := a.blob(l.Digest)
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", i+1, err)
		}
		s.layers = append(s.layers, blob)
	}
	return s, s.checkLayers(len(m.Layers))
}

// saved reads what docker save wrote before it wrote OCI layouts. There is no
// manifest of a registry in it: the image's digest is that of its configuration,
// as `docker image inspect --format {{.Id}}` shows it.
func (a *archive) saved() (*source, error) {
	named, err := a.named()
	if err != nil {
		return nil, err
	}
	config, digest, err := a.configOf(named.Config)
	if err != nil {
		return nil, err
	}
	s := &source{digest: digest}
	if s.config, err = readConfig(config); err != nil {
		return nil, err
	}
	for i, name := range named.Layers {
		if i >= MaxLayers {
			break
		}
		l, err := a.open(name)
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", i+1, err)
		}
		s.layers = append(s.layers, l)
	}
	return s, s.checkLayers(len(named.Layers))
}

func readConfig(f *io.SectionReader) (*v1.ConfigFile, error) {
	b, err := document(f)
	if err != nil {
		return nil, err
	}
	c, err := v1.ParseConfigFile(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("read the image's configuration: %w", err)
	}
	if c.OS != "linux" || c.Architecture != runtime.GOARCH {
		return nil, fmt.Errorf("the image is for %.40q/%.40q, this machine is linux/%s", c.OS, c.Architecture, runtime.GOARCH)
	}
	return c, nil
}

func (s *source) checkLayers(n int) error {
	switch {
	case n == 0:
		return errors.New("the image has no layers")
	case n > MaxLayers:
		return fmt.Errorf("the image has %d layers, %d are the most", n, MaxLayers)
	case n != len(s.config.RootFS.DiffIDs):
		return fmt.Errorf("the image has %d layers, its configuration names %d", n, len(s.config.RootFS.DiffIDs))
	}
	return nil
}
