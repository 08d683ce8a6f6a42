package unpack

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"inspect/envs/wire"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// item is an entry of a layer or of an archive; only the kind of a plain file
// may be left out.
type item struct {
	name, body string
	kind       byte
	link       string
	mode       int64
	when       time.Time
	pax        map[string]string
}

func packed(t testing.TB, items ...item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range items {
		h := &tar.Header{Name: i.name, Typeflag: i.kind, Linkname: i.link, Mode: i.mode, ModTime: i.when, Size: int64(len(i.body)), PAXRecords: i.pax, Uid: 0, Gid: 4}
		if i.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if i.mode == 0 {
			h.Mode = 0o644
		}
		if i.kind == tar.TypeChar || i.kind == tar.TypeBlock {
			h.Devmajor, h.Devminor = 1, 3
		}
		must(t, w.WriteHeader(h))
		_, err := io.WriteString(w, i.body)
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// made is an image that can be spoilt before it is written.
type made struct {
	t       testing.TB
	layers  [][]byte // as they stand in the archive
	diffs   []string // digests of what they decompress to
	env     []string
	os      string
	blobs   map[string][]byte
	index   bool // the manifest is one of several platforms'
	members []item
}

func image(t testing.TB, layers ...[]byte) *made {
	m := &made{t: t, os: "linux", blobs: map[string][]byte{}, env: []string{"PATH=/opt/bin:/usr/bin", "LANG=C"}}
	for _, l := range layers {
		m.layers = append(m.layers, l)
		m.diffs = append(m.diffs, sum(l))
	}
	return m
}

func (m *made) put(b []byte) string {
	m.blobs[sum(b)] = b
	return sum(b)
}

func (m *made) json(v any) []byte {
	b, err := json.Marshal(v)
	must(m.t, err)
	return b
}

type descriptor struct {
	MediaType string            `json:"mediaType"`
	Digest    string            `json:"digest"`
	Size      int               `json:"size"`
	Platform  map[string]string `json:"platform,omitempty"`
}

func (m *made) config() []byte {
	diffs := []string{}
	for _, d := range m.diffs {
		diffs = append(diffs, "sha256:"+d)
	}
	return m.json(map[string]any{"os": m.os, "architecture": runtime.GOARCH, "config": map[string]any{"Env": m.env}, "rootfs": map[string]any{"type": "layers", "diff_ids": diffs}})
}

// layout is the image as an OCI layout in a tar, and its digest.
func (m *made) layout() (archive []byte, digest string) {
	config := m.config()
	man := map[string]any{"schemaVersion": 2, "config": descriptor{"application/vnd.oci.image.config.v1+json", "sha256:" + m.put(config), len(config), nil}}
	var layers []descriptor
	for _, l := range m.layers {
		layers = append(layers, descriptor{"application/vnd.oci.image.layer.v1.tar", "sha256:" + m.put(l), len(l), nil})
	}
	man["layers"] = layers
	b := m.json(man)
	top := descriptor{"application/vnd.oci.image.manifest.v1+json", "sha256:" + m.put(b), len(b), nil}
	if m.index {
		here := top
		here.Platform = map[string]string{"os": "linux", "architecture": runtime.GOARCH}
		other := top
		other.Digest, other.Platform = "sha256:"+strings.Repeat("1", 64), map[string]string{"os": "linux", "architecture": "vax"}
		b := m.json(map[string]any{"schemaVersion": 2, "manifests": []descriptor{other, here}})
		top = descriptor{"application/vnd.oci.image.index.v1+json", "sha256:" + m.put(b), len(b), nil}
	}
	items := append([]item{{name: "oci-layout", body: `{"imageLayoutVersion":"1.0.0"}`}}, m.members...)
	items = append(items, item{name: "index.json", body: string(m.json(map[string]any{"schemaVersion": 2, "manifests": []descriptor{top}}))})
	for digest, b := range m.blobs {
		items = append(items, item{name: "blobs/sha256/" + digest, body: string(b)})
	}
	return packed(m.t, items...), top.Digest
}

// saved is the image as docker save wrote it, and its digest.
func (m *made) saved() (archive []byte, digest string) {
	config := m.config()
	items := []item{{name: sum(config) + ".json", body: string(config)}}
	var names []string
	for i, l := range m.layers {
		names = append(names, fmt.Sprintf("layer%d/layer.tar", i))
		items = append(items, item{name: names[i], body: string(l)})
	}
	return packed(m.t, append(items, item{name: "manifest.json", body: string(m.json([]any{map[string]any{"Config": sum(config) + ".json", "RepoTags": []string{"x:1"}, "Layers": names}}))})...), "sha256:" + sum(config)
}

var small = Limits{Archive: 64 << 20, Bytes: 8 << 20, Files: 2000}

// unpacked unpacks an archive beside a directory that must stay as it is.
func unpacked(t testing.TB, archive []byte) (root string, info wire.Image, err error) {
	t.Helper()
	top := t.TempDir()
	outside := filepath.Join(top, "outside")
	must(t, os.Mkdir(outside, 0o755))
	must(t, os.WriteFile(filepath.Join(outside, "canary"), []byte("untouched"), 0o644))
	dir := filepath.Join(top, "work")
	must(t, os.Mkdir(dir, 0o755))
	digest, err := Receive(dir, bytes.NewReader(archive), small)
	if err == nil {
		info, err = Write(dir, small)
	} else {
		must(t, os.Remove(filepath.Join(dir, archiveFile)))
	}
	if err == nil && info.Digest != digest {
		t.Errorf("the image was said to be %s and is %s", digest, info.Digest)
	}
	left, rerr := os.ReadDir(outside)
	b, cerr := os.ReadFile(filepath.Join(outside, "canary"))
	st, serr := os.Stat(filepath.Join(outside, "canary"))
	if rerr != nil || cerr != nil || serr != nil || len(left) != 1 || string(b) != "untouched" || st.Mode() != 0o644 || st.Sys() == nil {
		t.Fatalf("what is outside was touched: %v %q %v %v", left, b, cerr, serr)
	}
	entries, lerr := os.ReadDir(dir)
	if lerr != nil || len(entries) > 1 || len(entries) == 1 && entries[0].Name() != RootDir {
		t.Fatalf("beside the tree there is %v", entries)
	}
	return filepath.Join(dir, RootDir), info, err
}

func read(t testing.TB, root, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	must(t, err)
	return string(b)
}

func gone(t testing.TB, root, name string) {
	t.Helper()
	if _, err := os.Lstat(filepath.Join(root, name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is there: %v", name, err)
	}
}

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, err := z.Write(b)
	must(t, errors.Join(err, z.Close()))
	return out.Bytes()
}

func zstandard(t testing.TB, b []byte) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	must(t, err)
	return z.EncodeAll(b, nil)
}

func TestLayersAreApplied(t *testing.T) {
	when := time.Date(2020, 2, 3, 4, 5, 6, 0, time.UTC)
	first := packed(t,
		item{name: "./", kind: tar.TypeDir, mode: 0o755}, item{name: "usr/", kind: tar.TypeDir, mode: 0o755}, item{name: "usr/bin/", kind: tar.TypeDir, mode: 0o555},
		item{name: "usr/bin/tool", body: "one", mode: 0o755, when: when}, item{name: "usr/bin/passwd", body: "root's", mode: 0o4755}, item{name: "usr/bin/wall", body: "tty's", mode: 0o2755},
		item{name: "bin", kind: tar.TypeSymlink, link: "usr/bin"}, item{name: "sbin", kind: tar.TypeSymlink, link: "/usr/bin"},
		item{name: "shared", kind: tar.TypeDir, mode: 0o7777}, item{name: "closed", body: "x", mode: 0o001},
		item{name: "dev/null", kind: tar.TypeChar}, item{name: "dev/sda", kind: tar.TypeBlock}, item{name: "run/pipe", kind: tar.TypeFifo},
		item{name: "etc/gone", body: "x"}, item{name: "etc/dir/below", body: "x"}, item{name: "data/old/a", body: "x"}, item{name: "data/b", body: "x"},
		item{name: "usr/bin/again", kind: tar.TypeLink, link: "usr/bin/tool"}, item{name: "replaced/by/a/file", body: "x"}, item{name: "capable", body: "x", pax: map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02", "SCHILY.xattr.user.x": "y"}},
	)
	second := packed(t,
		item{name: "bin/added", body: "through a link", mode: 0o755}, item{name: "sbin/more", body: "through another", mode: 0o755},
		item{name: "etc/.wh.gone"}, item{name: "etc/.wh.dir"}, item{name: "etc/.wh.never"}, item{name: "nowhere/.wh.x"},
		item{name: "data/new", body: "stays"}, item{name: "data/.wh..wh..opq"}, item{name: "data/newer", body: "stays"},
		item{name: "replaced", body: "a file"}, item{name: ".wh..wh.plnk", kind: tar.TypeDir},
	)
	m := image(t, first, second)
	m.layers[0] = gzipped(t, first)
	m.layers[1] = zstandard(t, second)
	m.env = append(m.env, "LD_PRELOAD=/evil.so", "bad name=x", "MULTI=a\nb", "novalue")
	m.index = true
	archive, digest := m.layout()
	root, info, err := unpacked(t, archive)
	must(t, err)
	if info.Digest != digest || info.Layers != 2 || info.Skipped != 3 || !slices.Equal(info.Env, []string{"PATH=/opt/bin:/usr/bin", "LANG=C"}) {
		t.Errorf("%+v, digest %s", info, digest)
	}
	for name, want := range map[string]string{
		"usr/bin/tool": "one", "usr/bin/again": "one", "usr/bin/added": "through a link", "usr/bin/more": "through another",
		"data/new": "stays", "data/newer": "stays", "replaced": "a file", "capable": "x",
	} {
		if got := read(t, root, name); got != want {
			t.Errorf("%s is %q", name, got)
		}
	}
	for _, name := range []string{"etc/gone", "etc/dir", "data/old", "data/b", "dev/null", "dev/sda", "run/pipe", "nowhere", ".wh..wh.plnk", "etc/.wh.gone"} {
		gone(t, root, name)
	}
	if to, err := os.Readlink(filepath.Join(root, "sbin")); err != nil || to != "/usr/bin" {
		t.Errorf("sbin leads to %q, %v", to, err)
	}
	must(t, filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		must(t, err)
		st, err := d.Info()
		must(t, err)
		if st.Mode()&(os.ModeSetuid|os.ModeSetgid|os.ModeSticky|os.ModeDevice|os.ModeNamedPipe) != 0 {
			t.Errorf("%s has the mode %s", p, st.Mode())
		}
		if d.IsDir() && st.Mode()&0o700 != 0o700 || d.Type().IsRegular() && st.Mode()&0o400 == 0 {
			t.Errorf("the owner cannot use %s: %s", p, st.Mode())
		}
		if n, _ := unix.Llistxattr(p, nil); n > 0 {
			t.Errorf("%s has extended attributes", p)
		}
		var sys unix.Stat_t
		must(t, unix.Lstat(p, &sys))
		if int(sys.Uid) != os.Geteuid() {
			t.Errorf("%s belongs to %d", p, sys.Uid)
		}
		return nil
	}))
	if st, err := os.Stat(filepath.Join(root, "usr/bin/tool")); err != nil || !st.ModTime().Equal(when) || st.Mode() != 0o755 {
		t.Errorf("%v %v", st.ModTime(), err)
	}

	archive, digest = image(t, first, second).saved()
	root, info, err = unpacked(t, archive)
	must(t, err)
	if info.Digest != digest || read(t, root, "usr/bin/added") != "through a link" {
		t.Errorf("%+v", info)
	}
}

// Layers that want to reach what is outside, or to be larger than they are.
// Each is applied, or refused with words; unpacked looks at what is outside.
func TestHostileLayers(t *testing.T) {
	dir := func(name string) item { return item{name: name, kind: tar.TypeDir, mode: 0o755} }
	link := func(name, to string) item { return item{name: name, kind: tar.TypeSymlink, link: to} }
	hard := func(name, to string) item { return item{name: name, kind: tar.TypeLink, link: to} }
	file := func(name string) item { return item{name: name, body: "pwned"} }
	up := strings.Repeat("../", 20)
	var deep, wide []item
	for i := range 20 {
		deep = append(deep, link(fmt.Sprintf("l%d", i+1), fmt.Sprintf("l%d/%s", i, strings.Repeat("d/", 200))))
	}
	for i := range 3000 {
		wide = append(wide, item{name: fmt.Sprintf("f%d", i)})
	}
	for name, test := range map[string]struct {
		layers [][]item
		words  string            // of the refusal; empty: it is applied
		files  map[string]string // then in the tree
	}{
		"up":                                     {[][]item{{file("../outside/canary")}}, "leads out", nil},
		"up from below":                          {[][]item{{file("a/../../../outside/canary")}}, "leads out", nil},
		"absolute":                               {[][]item{{file("/etc/x")}}, "", map[string]string{"etc/x": "pwned"}},
		"through a link up":                      {[][]item{{link("l", up+"outside"), file("l/x")}}, "", map[string]string{"outside/x": "pwned"}},
		"through a link of another layer":        {[][]item{{link("l", "../../outside")}, {file("l/x")}}, "", map[string]string{"outside/x": "pwned"}},
		"through an absolute link":               {[][]item{{link("l", "/tmp")}, {file("l/pwned-by-image")}}, "", map[string]string{"tmp/pwned-by-image": "pwned"}},
		"through /proc/self/root":                {[][]item{{link("l", "/proc/self/root/tmp")}, {file("l/x")}}, "", map[string]string{"proc/self/root/tmp/x": "pwned"}},
		"through links to links":                 {[][]item{{link("a", "b"), link("b", "/c"), dir("c")}, {file("a/x")}}, "", map[string]string{"c/x": "pwned"}},
		"through links that end nowhere":         {[][]item{{link("a", "b"), link("b", "a")}, {file("a/x")}}, "levels of symbolic links", nil},
		"over a link":                            {[][]item{{link("l", "../../outside/canary")}, {file("l")}}, "", map[string]string{"l": "pwned"}},
		"a folder over a link":                   {[][]item{{link("l", "../../outside")}, {dir("l"), file("l/x")}}, "", map[string]string{"l/x": "pwned"}},
		"mode of a link's target":                {[][]item{{link("l", "../../outside/canary")}, {item{name: "l", kind: tar.TypeDir, mode: 0o777}}}, "", nil},
		"through a file":                         {[][]item{{file("a")}, {file("a/b")}}, "no directory", nil},
		"hard link out":                          {[][]item{{hard("h", "../outside/canary")}}, "leads out", nil},
		"hard link to an absolute path":          {[][]item{{hard("h", "/etc/passwd")}}, "no such file", nil},
		"hard link through a link":               {[][]item{{link("l", "../../outside"), hard("h", "l/canary")}}, "no such file", nil},
		"hard link to a link":                    {[][]item{{link("l", "../../outside/canary"), hard("h", "l")}, {file("h")}}, "no plain file", nil},
		"hard link to a folder":                  {[][]item{{dir("d"), hard("h", "d")}}, "no plain file", nil},
		"hard link to itself":                    {[][]item{{file("a"), hard("a", "a")}}, "", map[string]string{"a": "pwned"}},
		"hard link to nothing":                   {[][]item{{hard("h", "")}}, "directory", nil},
		"written through a hard link":            {[][]item{{file("a"), hard("b", "a")}, {item{name: "b", body: "changed"}}}, "", map[string]string{"a": "pwned", "b": "changed"}},
		"whiteout of ..":                         {[][]item{{item{name: "a/.wh..."}, file("b")}}, "removes nothing", nil},
		"whiteout of .":                          {[][]item{{item{name: "a/.wh.."}, file("b")}}, "removes nothing", nil},
		"whiteout of nothing":                    {[][]item{{item{name: ".wh."}}}, "removes nothing", nil},
		"whiteout through a link":                {[][]item{{link("l", "../../outside")}, {item{name: "l/.wh.canary"}}}, "", nil},
		"whiteout of a link":                     {[][]item{{link("l", "../../outside"), file("k")}, {item{name: ".wh.l"}}}, "", map[string]string{"k": "pwned"}},
		"opaque through a link":                  {[][]item{{link("l", "../../outside")}, {item{name: "l/.wh..wh..opq"}}}, "", nil},
		"opaque root":                            {[][]item{{file("a"), link("l", "/")}, {item{name: ".wh..wh..opq"}, file("b")}}, "", map[string]string{"b": "pwned"}},
		"a whiteout is no file":                  {[][]item{{item{name: ".wh.x", body: "#!/bin/sh", mode: 0o4755}, file("b")}}, "", map[string]string{"b": "pwned"}},
		"what this layer made stays":             {[][]item{{file("a")}, {file("d/a"), item{name: ".wh.d"}, item{name: "d/.wh.a"}}}, "", map[string]string{"d/a": "pwned", "a": "pwned"}},
		"a name of 256 bytes":                    {[][]item{{file(strings.Repeat("n", 256))}}, "255 bytes", nil},
		"a path of 300 folders":                  {[][]item{{file(strings.Repeat("d/", 300) + "x")}}, "deep", nil},
		"a path too long":                        {[][]item{{file(strings.Repeat("dddddddddddddddddddd/", 200) + "x")}}, "too long", nil},
		"deep through links":                     {[][]item{{dir("l0")}, append(deep, file("l20/x"))}, "deep", nil},
		"too many files":                         {[][]item{wide}, "more than 2000 files", nil},
		"too many bytes":                         {[][]item{{item{name: "a", body: strings.Repeat("x", 5<<20)}, item{name: "b", body: strings.Repeat("x", 5<<20)}}}, "more than may be unpacked", nil},
		"too many bytes, of one file, again":     {[][]item{{item{name: "a", body: strings.Repeat("x", 5<<20)}}, {item{name: "a", body: strings.Repeat("x", 5<<20)}}}, "more than may be unpacked", nil},
		"case and form of characters are names":  {[][]item{{item{name: "A", body: "1"}, item{name: "a", body: "2"}, item{name: "\u00e9", body: "3"}, item{name: "e\u0301", body: "4"}}}, "", map[string]string{"A": "1", "a": "2", "\u00e9": "3", "e\u0301": "4"}},
		"odd names":                              {[][]item{{item{name: "new\nline\x1b[2J\xff", body: "x"}}}, "", map[string]string{"new\nline\x1b[2J\xff": "x"}},
		"a device to write to":                   {[][]item{{item{name: "null", kind: tar.TypeChar}}, {file("null/x")}}, "", map[string]string{"null/x": "pwned"}},
		"a sparse file of 1 TiB":                 {[][]item{{item{name: "s", body: "1\n1099511627775\n1\n" + strings.Repeat("\x00", 494) + "x", pax: nil}}}, "", nil},
		"a link whose target is a terabyte long": {[][]item{{link("l", strings.Repeat("a/", 2500))}}, "too long", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var layers [][]byte
			for _, l := range test.layers {
				layers = append(layers, packed(t, l...))
			}
			archive, _ := image(t, layers...).layout()
			root, _, err := unpacked(t, archive)
			switch {
			case test.words == "" && err != nil:
				t.Fatal(err)
			case test.words != "" && (err == nil || !strings.Contains(err.Error(), test.words)):
				t.Fatalf("%v, should be refused with %q", err, test.words)
			}
			for name, want := range test.files {
				if got := read(t, root, name); got != want {
					t.Errorf("%q is %q, want %q", name, got, want)
				}
			}
		})
	}
}

// What is said to be one thing and is another.
func TestHostileImages(t *testing.T) {
	layer := packed(t, item{name: "a", body: "x"})
	archiveOf := func(change func(*made)) []byte {
		m := image(t, layer)
		change(m)
		b, _ := m.layout()
		return b
	}
	replace := func(archive []byte, old, with string) []byte {
		if bytes.Count(archive, []byte(old)) == 0 || len(old) != len(with) {
			t.Fatalf("%q is not in the archive", old)
		}
		return bytes.ReplaceAll(archive, []byte(old), []byte(with))
	}
	good, _ := image(t, layer).layout()
	zeros := packed(t, item{name: "zeros", body: strings.Repeat("\x00", 64<<20)})
	for name, test := range map[string]struct {
		archive []byte
		words   string
	}{
		"nothing":                     {nil, "neither"},
		"no tar":                      {[]byte(strings.Repeat("hello", 500)), "no tar"},
		"cut":                         {good[:len(good)-3000], "archive"},
		"another tar":                 {packed(t, item{name: "x"}), "neither"},
		"a file twice":                {archiveOf(func(m *made) { m.members = []item{{name: "./oci-layout"}} }), "twice"},
		"index.json is a link":        {packed(t, item{name: "index.json", kind: tar.TypeSymlink, link: "/etc/passwd"}), "neither"},
		"a layer that is a link":      {packed(t, item{name: "manifest.json", body: `[{"Config":"c","Layers":["l"]}]`}, item{name: "l", kind: tar.TypeSymlink, link: "/etc/passwd"}), "lacks"},
		"layers out of the archive":   {packed(t, item{name: "manifest.json", body: `[{"Config":"../../../etc/passwd","Layers":["/etc/passwd"]}]`}), "lacks"},
		"two images":                  {packed(t, item{name: "manifest.json", body: `[{"Config":"c"},{"Config":"d"}]`}), "holds 2 images"},
		"no images":                   {packed(t, item{name: "manifest.json", body: `[]`}), "holds 0 images"},
		"manifest.json is no JSON":    {packed(t, item{name: "manifest.json", body: `{{{`}), "manifest.json"},
		"a layer of another digest":   {replace(good, "\x00x\x00", "\x00y\x00"), "digest"},
		"a config that was changed":   {replace(good, `"LANG=C"`, `"LANG=D"`), "digest"},
		"a manifest that was changed": {replace(good, `"schemaVersion":2}`, `"schemaVersion":3}`), "digest"},
		"a layer that is another":     {archiveOf(func(m *made) { m.diffs[0] = strings.Repeat("a", 64) }), "digest"},
		"a layer too few":             {archiveOf(func(m *made) { m.diffs = append(m.diffs, m.diffs[0]) }), "names 2"},
		"no layers":                   {archiveOf(func(m *made) { m.layers, m.diffs = nil, nil }), "no layers"},
		"another system":              {archiveOf(func(m *made) { m.os = "windows" }), "this machine is"},
		"300 layers":                  {archiveOf(func(m *made) { m.layers, m.diffs = slices.Repeat(m.layers, 300), slices.Repeat(m.diffs, 300) }), "300 layers"},
		"a layer that is no tar":      {archiveOf(func(m *made) { b := bytes.Repeat([]byte("hello"), 500); m.layers[0], m.diffs[0] = b, sum(b) }), "damaged"},
		"a layer cut off":             {archiveOf(func(m *made) { b := layer[:512]; m.layers[0], m.diffs[0] = b, sum(b) }), ""},
		"gzip cut off":                {archiveOf(func(m *made) { m.layers[0] = gzipped(t, layer)[:40] }), "EOF"},
		"a bomb of gzip":              {archiveOf(func(m *made) { m.layers[0], m.diffs[0] = gzipped(t, zeros), sum(zeros) }), "more than may be unpacked"},
		"a bomb of zstd":              {archiveOf(func(m *made) { m.layers[0], m.diffs[0] = zstandard(t, zeros), sum(zeros) }), "more than may be unpacked"},
		"a bomb behind the layer": {archiveOf(func(m *made) {
			b := append(bytes.Clone(layer), zeros...)
			m.layers[0], m.diffs[0] = gzipped(t, b), sum(b)
		}), "more than may be unpacked"},
		"a document of 8 MiB":          {archiveOf(func(m *made) { m.env = []string{"X=" + strings.Repeat("x", 8<<20)} }), "document"},
		"an archive that is too large": {packed(t, item{name: "x", body: strings.Repeat("x", 65<<20)}), "more than may be unpacked"},
		"digest that is a path":        {packed(t, item{name: "index.json", body: `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":1,"digest":"sha256:../../../../etc/passwd"}]}`}), ""},
		"an index of itself": {func() []byte {
			m := image(t, layer)
			// Cannot be: a digest of itself. An index that names nothing but indexes can.
			next := descriptor{"application/vnd.oci.image.index.v1+json", "sha256:" + strings.Repeat("2", 64), 1, map[string]string{"os": "linux", "architecture": runtime.GOARCH}}
			for range 6 {
				b := m.json(map[string]any{"schemaVersion": 2, "manifests": []descriptor{next}})
				next.Digest = "sha256:" + m.put(b)
			}
			items := []item{{name: "index.json", body: string(m.json(map[string]any{"schemaVersion": 2, "manifests": []descriptor{next}}))}}
			for d, b := range m.blobs {
				items = append(items, item{name: "blobs/sha256/" + d, body: string(b)})
			}
			return packed(t, items...)
		}(), "name one another"},
	} {
		t.Run(name, func(t *testing.T) {
			_, info, err := unpacked(t, test.archive)
			if err == nil || !strings.Contains(err.Error(), test.words) {
				t.Errorf("%+v, %v, should be refused with %q", info, err, test.words)
			}
		})
	}
}
