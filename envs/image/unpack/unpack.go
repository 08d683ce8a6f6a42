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
)

// Bounds of an image that no limit raises.
const (
	maxLayers = 256 // a registry takes 127
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

// Info is what is known of an unpacked image.
type Info struct {
	Digest  string   `json:"digest"` // sha256:…, by which the image is asked for
	Env     []string `json:"env,omitempty"`
	Layers  int      `json:"layers"`
	Files   int64    `json:"files"`   // entries of all layers
	Bytes   int64    `json:"bytes"`   // of all files
	Skipped int64    `json:"skipped"` // devices and pipes that were left out
}

// Word asks the init binary for Main.
const Word = "unpack"

// Names in the directory Main works in.
const (
	RootDir     = "root"    // the tree
	archiveFile = "archive" // the archive while it is worked on
)

// Main reads an archive from standard input, unpacks it into root in the given
// directory and writes Info to standard output.
func Main(args []string) error {
	if len(args) != 1 {
		return errors.New("unpack: expected a directory")
	}
	info, err := Into(args[0], os.Stdin, DefaultLimits())
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(info)
}

// Into unpacks an archive into a fresh directory root in dir. When it fails, dir
// is left for the caller to remove.
func Into(dir string, from io.Reader, limit Limits) (Info, error) {
	f, err := os.OpenFile(filepath.Join(dir, archiveFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return Info{}, err
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil { // it ends with this process
		return Info{}, err
	}
	size, err := io.Copy(f, &budget{from, limit.Archive})
	if err != nil {
		return Info{}, fmt.Errorf("read the archive: %w", err)
	}
	a, err := openArchive(f, size)
	if err != nil {
		return Info{}, err
	}
	s, err := a.find()
	if err != nil {
		return Info{}, err
	}
	root := filepath.Join(dir, RootDir)
	if err := os.Mkdir(root, 0o755); err != nil {
		return Info{}, err
	}
	if err := distinguishesCase(root); err != nil {
		return Info{}, err
	}
	t, err := openTree(root)
	if err != nil {
		return Info{}, err
	}
	defer t.Close()
	u := &unpacker{tree: t, limit: limit}
	for i, l := range s.layers {
		if err := u.layer(l, s.config.RootFS.DiffIDs[i]); err != nil {
			return Info{}, fmt.Errorf("layer %d of %d: %w", i+1, len(s.layers), err)
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
