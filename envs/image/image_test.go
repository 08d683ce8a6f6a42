package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"inspect/envs/sandbox"
	"inspect/envs/sandbox/sandboxtest"
	"inspect/envs/snapshot"
	dirstore "inspect/envs/snapshot/dir"
	"inspect/envs/wire"
)

func TestMain(m *testing.M) { os.Exit(sandboxtest.Main(m).Run()) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const testUID = 63217

// newStore is a store over real sandboxes.
func newStore(t *testing.T) *Store {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		must(t, os.Chmod(d, 0o711))
	}
	l, err := sandbox.New(sandbox.Options{
		Binary: sandboxtest.Init(t), RunDir: filepath.Join(dir, "run"), CgroupRoot: fmt.Sprintf("/inspect-image-test-%d", os.Getpid()), UID: testUID, GID: testUID, BestEffort: true,
	})
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	store, err := dirstore.Open(dirstore.Options{Root: filepath.Join(dir, "store"), Owner: "octocat"})
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	o := Options{Store: store, Start: func(ctx context.Context, s sandbox.Spec) (func() wire.SandboxEnd, error) {
		b, err := l.Start(ctx, s)
		if err != nil {
			return nil, err
		}
		return b.Wait, nil
	}}
	if os.Geteuid() == 0 {
		o.UID, o.GID = testUID, testUID
	}
	return New(o)
}

var imports atomic.Int64

func (s *Store) importIt(ctx context.Context, archive io.Reader) (Image, error) {
	base := fmt.Sprintf("image-%d", imports.Add(1))
	return s.Import(ctx, Job{Base: snapshot.BaseID(base), Sandbox: base, Room: 1 << 30}, archive)
}

// left is what is in the store.
func (s *Store) left(t *testing.T) (images, others int) {
	t.Helper()
	must(t, s.o.Store.Sweep(t.Context()))
	l, err := s.o.Store.List(t.Context())
	must(t, err)
	return len(l.Images), len(l.Bases) + len(l.Snapshots) + len(l.Clones) + len(l.Foreign)
}

// saved is an image of one layer as docker save wrote it, and its digest.
func saved(t *testing.T, layer ...*tar.Header) (archive []byte, digest string) {
	t.Helper()
	write := func(add func(*tar.Writer)) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		add(w)
		must(t, w.Close())
		return b.Bytes()
	}
	file := func(w *tar.Writer, name string, body []byte) {
		must(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(body))}))
		_, err := w.Write(body)
		must(t, err)
	}
	content := write(func(w *tar.Writer) {
		for _, h := range layer {
			h.Size = 0
			must(t, w.WriteHeader(h))
		}
		file(w, "etc/os-release", []byte("ID=test\n"))
	})
	sum := func(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }
	config, err := json.Marshal(map[string]any{
		"os": "linux", "architecture": runtime.GOARCH, "config": map[string]any{"Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sum(content)}},
	})
	must(t, err)
	return write(func(w *tar.Writer) {
		file(w, "c.json", config)
		file(w, "l.tar", content)
		file(w, "manifest.json", []byte(`[{"Config":"c.json","Layers":["l.tar"]}]`))
	}), "sha256:" + sum(config)
}

func TestImport(t *testing.T) {
	s := newStore(t)
	archive, digest := saved(t,
		&tar.Header{Name: "root/", Typeflag: tar.TypeDir, Mode: 0o700, Uid: 0},
		&tar.Header{Name: "su", Typeflag: tar.TypeReg, Mode: 0o6755, Uid: 0},
		&tar.Header{Name: "dev/mem", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 1},
		&tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/proc/1/environ"},
	)
	ctx := t.Context()
	if _, err := s.Find(ctx, digest); !errors.Is(err, ErrMissing) {
		t.Fatal(err)
	}
	if l, err := s.List(ctx); err != nil || len(l) != 0 {
		t.Fatal(l, err)
	}
	im, err := s.importIt(ctx, bytes.NewReader(archive))
	must(t, err)
	if im.Digest != digest || im.Skipped != 1 || len(im.Env) != 1 || im.Layers != 1 {
		t.Errorf("%+v", im)
	}
	found, err := s.Find(ctx, digest)
	if err != nil || found.Root != im.Root {
		t.Errorf("%+v %v", found, err)
	}
	if l, err := s.List(ctx); err != nil || len(l) != 1 || l[0].Digest != digest {
		t.Errorf("%+v %v", l, err)
	}
	owner := os.Geteuid()
	if owner == 0 {
		owner = testUID
	}
	must(t, filepath.WalkDir(im.Root, func(p string, d fs.DirEntry, err error) error {
		must(t, err)
		st, err := d.Info()
		must(t, err)
		if uid := int(st.Sys().(*syscall.Stat_t).Uid); uid != owner || st.Mode()&(os.ModeSetuid|os.ModeSetgid|os.ModeDevice) != 0 {
			t.Errorf("%s belongs to %d, %s", p, uid, st.Mode())
		}
		return nil
	}))
	if st, err := os.Stat(filepath.Dir(im.Root)); err != nil || int(st.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		t.Errorf("the sandboxes' account owns the image's directory: %v", err)
	}

	// Again: nothing beside it, and nothing is unpacked.
	must(t, os.WriteFile(filepath.Join(im.Root, "witness"), nil, 0o600))
	if again, err := s.importIt(ctx, bytes.NewReader(archive)); err != nil || again.Root != im.Root {
		t.Errorf("%+v %v", again, err)
	}
	if _, err := os.Stat(filepath.Join(im.Root, "witness")); err != nil {
		t.Error("the image was unpacked again")
	}
	if images, others := s.left(t); images != 1 || others != 0 {
		t.Errorf("left are %d images and %d others", images, others)
	}
}

// Imports of one image at the same time unpack it once.
func TestImportsAtOnce(t *testing.T) {
	s := newStore(t)
	counted := &countedStore{Store: s.o.Store}
	s.o.Store = counted
	one, _ := saved(t)
	other, _ := saved(t, &tar.Header{Name: "other", Typeflag: tar.TypeReg, Mode: 0o644})
	archives := [][]byte{one, one, one, other, other}
	// The end of each comes when all have begun to be received.
	var begun, all sync.WaitGroup
	begun.Add(len(archives))
	roots := make([]string, len(archives))
	for i, archive := range archives {
		all.Go(func() {
			im, err := s.importIt(t.Context(), io.MultiReader(bytes.NewReader(archive), reader(func() { begun.Done(); begun.Wait() })))
			if err != nil {
				t.Error(err)
			}
			roots[i] = im.Root
		})
	}
	all.Wait()
	if n := counted.seals.Load(); n != 2 || roots[0] != roots[1] || roots[0] != roots[2] || roots[3] != roots[4] || roots[0] == roots[3] {
		t.Errorf("%d times two images were unpacked, to %q", n, roots)
	}
	if images, others := s.left(t); images != 2 || others != 0 {
		t.Errorf("left are %d images and %d others", images, others)
	}
}

type countedStore struct {
	snapshot.Store
	seals atomic.Int64
}

func (s *countedStore) Seal(ctx context.Context, base snapshot.BaseID, id snapshot.ImageID) (snapshot.Image, error) {
	s.seals.Add(1)
	return s.Store.Seal(ctx, base, id)
}

func TestImportRefuses(t *testing.T) {
	s := newStore(t)
	evil, _ := saved(t, &tar.Header{Name: "../../x", Typeflag: tar.TypeReg, Mode: 0o644})
	half, _ := saved(t)
	for name, test := range map[string]struct {
		archive []byte
		words   string
	}{
		"no archive": {[]byte("\x1b[2Jhello"), "no tar"},
		"a way out":  {evil, "leads out of the image"},
		"half of it": {half[:len(half)/2], "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			im, err := s.importIt(t.Context(), bytes.NewReader(test.archive))
			if err == nil || !strings.Contains(err.Error(), test.words) || strings.ContainsAny(err.Error(), "\x1b\x00") {
				t.Errorf("%+v %v", im, err)
			}
		})
	}
	// What is interrupted while it is received leaves nothing.
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := s.importIt(ctx, reader(func() { cancel(); <-make(chan struct{}) })); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if images, others := s.left(t); images+others != 0 {
		t.Errorf("left are %d images and %d others", images, others)
	}
	for _, bad := range []string{"", "sha256:", "sha256:../../etc", "sha512:" + strings.Repeat("0", 128), strings.Repeat("0", 64)} {
		if _, err := s.Find(t.Context(), bad); err == nil || errors.Is(err, ErrMissing) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// reader calls then at its first read and is at its end.
type reader func()

func (r reader) Read(p []byte) (int, error) {
	r()
	return 0, io.EOF
}
