package unpack

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"inspect/envs/wire"
)

// Bounds of an image that no limit raises.
const (
	MaxLayers = 256 // a registry takes 127
	maxDepth  = 255 // directories
	maxEnv    = 64 << 10
)

// Limits bound what is unpacked.
type Limits struct {
	Archive int64 // bytes of the archive
	Bytes   int64 // of all files
	Files   int64 // entries of all layers
}

// DefaultLimits are room for images that hold whole tool chains.
func DefaultLimits() Limits {
	return Limits{Archive: 16 << 30, Bytes: 32 << 30, Files: 2_000_000}
}

// Word asks the init binary for Main.
const Word = "unpack"

// Names in the directory Main works in.
const (
	RootDir     = "root"    // the tree
	archiveFile = "archive" // until it is unpacked
)

// The steps of Main.
const (
	StepReceive = "receive"
	StepWrite   = "write"
)

// Main does one step in the given directory. StepReceive reads an archive from
// standard input, keeps it there and writes the digest that its image is said to
// have to standard output. StepWrite unpacks that archive into root there,
// removes it, and writes a wire.Image as JSON.
func Main(args []string) error {
	if len(args) != 2 {
		return errors.New("unpack: expected a step and a directory")
	}
	switch step, dir := args[0], args[1]; step {
	case StepReceive:
		digest, err := Receive(dir, os.Stdin, DefaultLimits())
		if err != nil {
			return err
		}
		_, err = fmt.Println(digest)
		return err
	case StepWrite:
		im, err := Write(dir, DefaultLimits())
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(im)
	default:
		return fmt.Errorf("unpack: unknown step %q", step)
	}
}

// Receive keeps an archive in dir and says which digest its image is said to
// have.
func Receive(dir string, from io.Reader, limit Limits) (digest string, err error) {
	f, err := os.OpenFile(filepath.Join(dir, archiveFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	defer f.Close()
	size, err := io.Copy(f, &budget{from, limit.Archive})
	if err != nil {
		return "", fmt.Errorf("read the archive: %w", err)
	}
	a, err := openArchive(f, size)
	if err != nil {
		return "", err
	}
	h, err := a.claimed()
	return h.String(), err
}

// Write unpacks the archive that was received into a fresh directory root in
// dir. When it fails, dir is left for the caller to remove.
func Write(dir string, limit Limits) (wire.Image, error) {
	f, err := os.Open(filepath.Join(dir, archiveFile))
	if err != nil {
		return wire.Image{}, err
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil { // it ends with this process
		return wire.Image{}, err
	}
	st, err := f.Stat()
	if err != nil {
		return wire.Image{}, err
	}
	a, err := openArchive(f, st.Size())
	if err != nil {
		return wire.Image{}, err
	}
	s, err := a.find()
	if err != nil {
		return wire.Image{}, err
	}
	root := filepath.Join(dir, RootDir)
	if err := os.Mkdir(root, 0o755); err != nil {
		return wire.Image{}, err
	}
	if err := distinguishesCase(root); err != nil {
		return wire.Image{}, err
	}
	t, err := openTree(root)
	if err != nil {
		return wire.Image{}, err
	}
	defer t.Close()
	u := &unpacker{tree: t, limit: limit}
	for i, l := range s.layers {
		if err := u.layer(l, s.config.RootFS.DiffIDs[i]); err != nil {
			return wire.Image{}, fmt.Errorf("layer %d of %d: %w", i+1, len(s.layers), err)
		}
	}
	u.info.Digest, u.info.Layers = s.digest.String(), len(s.layers)
	u.info.Env = environment(s.config.Config.Env)
	return u.info, nil
}

// distinguishesCase asks that a file system keeps names apart that images have
// in two cases: otherwise one layer could overwrite what another one made.
func distinguishesCase(dir string) error {
	for _, name := range []string{"case-A", "caf\u00e9"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			return err
		}
	}
	defer os.Remove(filepath.Join(dir, "case-A"))
	defer os.Remove(filepath.Join(dir, "caf\u00e9"))
	for _, other := range []string{"case-a", "cafe\u0301"} {
		if _, err := os.Lstat(filepath.Join(dir, other)); err == nil {
			return errors.New("the file system takes names for one another that differ in case or in the form of their characters; keep images on another one")
		}
	}
	return nil
}

var envName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })

// environment is what of an image's environment is given to commands: plain
// names, no line breaks, and nothing that is loaded into every program.
func environment(env []string) (out []string) {
	left := maxEnv
	for _, e := range env {
		name, value, ok := strings.Cut(e, "=")
		if !ok || !envName().MatchString(name) || strings.HasPrefix(name, "LD_") || strings.ContainsAny(value, "\x00\n\r") {
			continue
		}
		if left -= len(e); left < 0 {
			break
		}
		out = append(out, e)
	}
	return out
}
