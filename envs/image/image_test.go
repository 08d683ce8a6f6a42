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
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"inspect/envs/sandbox"
	"inspect/envs/sandbox/inside"
	"inspect/envs/wire"
)

// The test binary is its sandboxes' init as well.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "sandbox-init" {
		os.Exit(inside.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

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
	self, err := os.Executable()
	must(t, err)
	l, err := sandbox.New(sandbox.Options{
		Binary: self, RunDir: filepath.Join(dir, "run"), CgroupRoot: fmt.Sprintf("/inspect-image-test-%d", os.Getpid()), UID: testUID, GID: testUID, BestEffort: true,
	})
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	o := Options{Dir: filepath.Join(dir, "images"), Start: func(ctx context.Context, s sandbox.Spec) (func() wire.SandboxEnd, error) {
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

func (s *Store) files(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(s.o.Dir)
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
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
	if _, err := s.Find(digest); !errors.Is(err, ErrMissing) {
		t.Fatal(err)
	}
	if l, err := s.List(); err != nil || len(l) != 0 {
		t.Fatal(l, err)
	}
	im, err := s.Import(context.Background(), bytes.NewReader(archive), digest)
	must(t, err)
	if im.Digest != digest || im.Skipped != 1 || len(im.Env) != 1 || im.Layers != 1 {
		t.Errorf("%+v", im)
	}
	found, err := s.Find(digest)
	if err != nil || found.Root != im.Root {
		t.Errorf("%+v %v", found, err)
	}
	if l, err := s.List(); err != nil || len(l) != 1 || l[0].Digest != digest {
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

	// Again, at the same time: one image, nothing beside it.
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if again, err := s.Import(context.Background(), bytes.NewReader(archive), ""); err != nil || again.Root != im.Root {
				t.Errorf("%+v %v", again, err)
			}
		})
	}
	all.Wait()
	if got := s.files(t); len(got) != 1 {
		t.Errorf("left are %v", got)
	}
}

func TestImportRefuses(t *testing.T) {
	s := newStore(t)
	good, _ := saved(t)
	evil, _ := saved(t, &tar.Header{Name: "../../x", Typeflag: tar.TypeReg, Mode: 0o644})
	for name, test := range map[string]struct {
		archive []byte
		want    string
		words   string
	}{
		"no archive":    {[]byte("\x1b[2Jhello"), "", "no tar"},
		"another image": {good, "sha256:" + strings.Repeat("0", 64), "not sha256:0000"},
		"a way out":     {evil, "", "leads out of the image"},
	} {
		t.Run(name, func(t *testing.T) {
			im, err := s.Import(context.Background(), bytes.NewReader(test.archive), test.want)
			if err == nil || !strings.Contains(err.Error(), test.words) || strings.ContainsAny(err.Error(), "\x1b\x00") {
				t.Errorf("%+v %v", im, err)
			}
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	stuck := reader(func() { cancel() })
	if _, err := s.Import(ctx, stuck, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if got := s.files(t); len(got) != 0 {
		t.Errorf("left are %v", got)
	}
	for _, bad := range []string{"", "sha256:", "sha256:../../etc", "sha512:" + strings.Repeat("0", 128), strings.Repeat("0", 64)} {
		if _, err := s.Find(bad); err == nil || errors.Is(err, ErrMissing) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// What an import that was killed has left is gone with the next.
func TestKilledImport(t *testing.T) {
	s := newStore(t)
	dir, lock, err := s.temp()
	must(t, err)
	must(t, os.MkdirAll(filepath.Join(dir, "root", "deep"), 0o755))
	archive, _ := saved(t)
	_, err = s.Import(context.Background(), bytes.NewReader(archive), "")
	must(t, err)
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("an import that goes on lost its directory: %v", err)
	}
	must(t, lock.Close()) // as its end does
	_, err = s.Import(context.Background(), bytes.NewReader(archive), "")
	must(t, err)
	if got := s.files(t); len(got) != 1 {
		t.Errorf("left are %v", got)
	}
}

// reader calls then at its first read and gives nothing.
type reader func()

func (r reader) Read(p []byte) (int, error) {
	r()
	<-make(chan struct{})
	return 0, nil
}
