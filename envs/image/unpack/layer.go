package unpack

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"inspect/envs/wire"
)

// Names of a layer that say what is gone of the layers below (OCI image
// specification, "layer.md").
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
	reserved = ".wh..wh." // of an older storage driver, no files of the image
)

// zstdMemory bounds what decompressing may take, in bytes.
const zstdMemory = 256 << 20

// unpacker applies layers to a tree.
type unpacker struct {
	tree  *tree
	limit Limits
	info  wire.Image
	made  map[string]bool // paths of this layer, those above them included
}

// budget passes on bytes until there were too many.
type budget struct {
	r    io.Reader
	left int64
}

func (b *budget) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, errTooLarge
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n, errTooLarge
	}
	return n, err
}

var errTooLarge = errors.New("it holds more than may be unpacked: it is too large, or made to fill the disk")

// layer applies one layer, whose uncompressed bytes must have the digest.
func (u *unpacker) layer(blob io.Reader, digest v1.Hash) error {
	plain, done, err := decompress(blob)
	if err != nil {
		return err
	}
	defer done()
	sum := sha256.New()
	// Headers count as well: a layer of nothing else is bounded too.
	all := &budget{plain, u.limit.Bytes + int64(u.limit.Files)*4096}
	from := io.TeeReader(all, sum)
	u.made = map[string]bool{}
	t := tar.NewReader(from)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("it is damaged: %w", err)
		}
		if err := u.entry(h, t); err != nil {
			return fmt.Errorf("%.200q: %w", h.Name, err)
		}
	}
	if _, err := io.Copy(io.Discard, from); err != nil { // what follows the archive's end counts in its digest
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); digest.Algorithm != "sha256" || got != digest.Hex {
		return fmt.Errorf("its content has the digest sha256:%s, the image's configuration says %.80s", got, digest)
	}
	return nil
}

// decompress looks at the first bytes, not at what the image says of itself.
func decompress(r io.Reader) (plain io.Reader, done func(), err error) {
	b := bufio.NewReaderSize(r, 64<<10)
	magic, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, nil, fmt.Errorf("decompress: %w", err)
		}
		return z, func() {}, nil
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(zstdMemory), zstd.WithDecoderMaxWindow(zstdMemory/2))
		if err != nil {
			return nil, nil, fmt.Errorf("decompress: %w", err)
		}
		return z, z.Close, nil
	}
	return b, func() {}, nil
}

// entry applies one entry of a layer.
func (u *unpacker) entry(h *tar.Header, body io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	path, err := clean(h.Name)
	if err != nil || path == "" { // the root itself is as it is
		return err
	}
	if u.info.Files++; u.info.Files > u.limit.Files {
		return fmt.Errorf("the image has more than %d files", u.limit.Files)
	}
	parent, name := "", path
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		parent, name = path[:i], path[i+1:]
	}
	if strings.HasPrefix(name, whiteout) {
		return u.whiteout(parent, name)
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
	default: // devices, pipes, and what nobody knows
		u.info.Skipped++
		return nil
	}
	at, err := u.tree.dir(parent, true)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	// The target first: it could be what is about to be replaced.
	target, link := -1, ""
	if h.Typeflag == tar.TypeLink {
		if target, link, err = u.linked(h.Linkname); err != nil {
			return err
		}
		defer unix.Close(target)
		if same(target, link, at, name) {
			return nil
		}
	}
	if h.Typeflag == tar.TypeDir {
		if fd, err := openDir(at, name); err == nil {
			defer unix.Close(fd)
			u.mark(path)
			return unix.Fchmodat(at, name, dirMode(h), 0)
		}
	}
	if _, err := remove(at, name, path, func(string) bool { return false }); err != nil {
		return err
	}
	u.mark(path)
	switch h.Typeflag {
	case tar.TypeDir:
		if err := unix.Mkdirat(at, name, 0o700); err != nil {
			return err
		}
		return unix.Fchmodat(at, name, dirMode(h), 0)
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) >= unix.PathMax {
			return errors.New("the link leads to nothing, or its target is too long")
		}
		return unix.Symlinkat(h.Linkname, at, name)
	case tar.TypeLink:
		return unix.Linkat(target, link, at, name, 0)
	}
	return u.file(h, at, name, body)
}

// Permissions that are kept. Who owns the tree must be able to read it and to
// go on unpacking; nobody becomes another by executing something in it.
func dirMode(h *tar.Header) uint32  { return uint32(h.Mode)&0o777 | 0o700 }
func fileMode(h *tar.Header) uint32 { return uint32(h.Mode)&0o777 | 0o400 }

func (u *unpacker) file(h *tar.Header, at int, name string, body io.Reader) error {
	if h.Size < 0 || h.Size > u.limit.Bytes-u.info.Bytes {
		return errTooLarge
	}
	fd, err := unix.Openat(at, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	n, err := io.CopyN(f, body, h.Size)
	u.info.Bytes += n
	if err == nil {
		err = unix.Fchmod(fd, fileMode(h))
	}
	if err == nil && !h.ModTime.IsZero() { // programs compare it, Python its caches
		when := unix.NsecToTimespec(h.ModTime.UnixNano())
		err = unix.UtimesNanoAt(at, name, []unix.Timespec{when, when}, unix.AT_SYMLINK_NOFOLLOW)
	}
	return errors.Join(err, f.Close())
}

// linked opens the directory of a hard link's target, which must be a plain
// file of the tree.
func (u *unpacker) linked(to string) (at int, name string, err error) {
	path, err := clean(to)
	if err != nil {
		return -1, "", fmt.Errorf("the hard link's target: %w", err)
	}
	parent, name := "", path
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		parent, name = path[:i], path[i+1:]
	}
	if name == "" {
		return -1, "", errors.New("the hard link leads to a directory")
	}
	at, err = u.tree.dir(parent, false)
	if err != nil {
		return -1, "", fmt.Errorf("the hard link's target: %w", err)
	}
	var st unix.Stat_t
	err = unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errors.New("it is no plain file")
	}
	if err != nil {
		unix.Close(at)
		return -1, "", fmt.Errorf("the hard link's target: %w", err)
	}
	return at, name, nil
}

// same says whether both names are one and the same file.
func same(at1 int, name1 string, at2 int, name2 string) bool {
	var a, b unix.Stat_t
	return unix.Fstatat(at1, name1, &a, unix.AT_SYMLINK_NOFOLLOW) == nil && unix.Fstatat(at2, name2, &b, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		a.Dev == b.Dev && a.Ino == b.Ino
}

// whiteout removes what earlier layers made.
func (u *unpacker) whiteout(parent, name string) error {
	gone := strings.TrimPrefix(name, whiteout)
	if strings.HasPrefix(name, reserved) && name != opaque {
		return nil
	}
	if name != opaque && (gone == "" || gone == "." || gone == "..") {
		return errors.New("it removes nothing that has a name")
	}
	at, err := u.tree.dir(parent, false)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, errNoDirectory) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(at)
	keep := func(path string) bool { return u.made[path] }
	if name == opaque {
		_, err = empty(at, parent, keep)
		return err
	}
	path := gone
	if parent != "" {
		path = parent + "/" + gone
	}
	_, err = remove(at, gone, path, keep)
	return err
}

// mark notes that this layer made a path.
func (u *unpacker) mark(path string) {
	for !u.made[path] {
		u.made[path] = true
		i := strings.LastIndexByte(path, '/')
		if i < 0 {
			return
		}
		path = path[:i]
	}
}

// clean makes a name of a layer a relative path; "" is the root. A name that
// goes up is refused, not followed.
func clean(name string) (string, error) {
	if len(name) >= unix.PathMax {
		return "", errors.New("its name is too long")
	}
	if strings.ContainsRune(name, 0) {
		return "", errors.New("its name holds a zero byte")
	}
	parts := split(name)
	if len(parts) > maxDepth {
		return "", fmt.Errorf("it is more than %d directories deep", maxDepth)
	}
	for _, p := range parts {
		switch {
		case p == "..":
			return "", errors.New("its name leads out of the image")
		case len(p) > 255:
			return "", errors.New("a part of its name is longer than 255 bytes")
		}
	}
	return strings.Join(parts, "/"), nil
}
