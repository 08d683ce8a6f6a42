package node_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"inspect/envs/node/dial"
	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
	"inspect/envs/snapshot"
	"inspect/envs/wire"
)

// imagePrograms are what an image must hold, and what git calls to read a mirror.
var imagePrograms = []string{"sh", "git", "git-upload-pack", "find", "cat", "chmod", "cp", "mkdir", "rm"}

// savedImage is an image of some of this machine's programs, as docker save
// wrote it, and what a repository calls it.
func savedImage(t *testing.T, programs ...string) (archive []byte, ref string) {
	t.Helper()
	files := map[string][]byte{}
	var put func(string)
	put = func(name string) {
		if files[name] != nil {
			return
		}
		body, err := os.ReadFile(name)
		must(t, err)
		files[name] = body
		f, err := elf.NewFile(bytes.NewReader(body))
		must(t, err)
		for _, s := range f.Progs {
			if s.Type == elf.PT_INTERP {
				b, err := io.ReadAll(s.Open())
				must(t, err)
				put(strings.TrimRight(string(b), "\x00"))
			}
		}
		libs, err := f.ImportedLibraries()
		must(t, err)
		for _, l := range libs {
			found, _ := filepath.Glob("/lib/*-linux-gnu/" + l)
			for _, name := range found {
				put(name)
			}
		}
	}
	for _, p := range programs {
		path, err := proc.LookPath(p, []string{"PATH=" + proc.DefaultPath})
		must(t, err)
		put(path)
		if p == "sh" {
			put("/bin/sh") // git asks for it by this name
		}
	}
	pack := func(files map[string][]byte) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for name, body := range files {
			must(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(body))}))
			_, err := w.Write(body)
			must(t, err)
		}
		must(t, w.Close())
		return b.Bytes()
	}
	sum := func(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }
	files["/etc/image"] = []byte("mine\n")
	layer := pack(files)
	config, err := json.Marshal(map[string]any{
		"os": "linux", "architecture": runtime.GOARCH,
		"config": map[string]any{"Env": []string{"PATH=/opt/image:/usr/bin:/bin", "OF_IMAGE=yes", "HOME=/evil", "GIT_DIR=/evil", "LD_PRELOAD=/evil.so"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sum(layer)}},
	})
	must(t, err)
	return pack(map[string][]byte{"c.json": config, "l.tar": layer, "manifest.json": []byte(`[{"Config":"c.json","Layers":["l.tar"]}]`)}), "dev@sha256:" + sum(config)
}

// awaited waits until the daemon serves.
func (w *world) awaited() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	_, err := dial.Space(ctx, w.socket)
	must(w.t, err)
}

// importImage does what `inspect env image import` does.
func (w *world) importImage(archive []byte) {
	w.t.Helper()
	w.awaited()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	_, err := dial.ImportImage(ctx, w.socket, bytes.NewReader(archive))
	must(w.t, err)
}

// A repository's image takes the place of the machine's programs: in setup, in
// the sandbox of the agent and in that of verification.
func TestImageOfARepository(t *testing.T) {
	w := newWorld(t)
	archive, ref := savedImage(t, imagePrograms...)
	w.start()
	w.importImage(archive)
	work := w.refreshWork(1, "snap-1", `test -e /etc/image && test "$OF_IMAGE" = yes && test "$HOME" = /home/agent && test -z "$GIT_DIR$LD_PRELOAD" && ! test -e /usr/bin/perl && mkdir built && cat /etc/image >built/it`)
	work.Refresh.Image = ref
	w.plane.give(work)
	select {
	case <-w.plane.offers:
	case r := <-w.plane.results:
		t.Fatalf("the refresh failed: %s", r.Words)
	case <-time.After(time.Minute):
		t.Fatal("no offer within a minute")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, purpose := range []string{wire.PurposeWork, wire.PurposeVerify} {
		grant := w.grant("abcdefghij", purpose, "snap-1", func(g *wire.Grant) { g.Image = ref })
		if _, err := dial.Restore(ctx, w.socket, grant); err != nil {
			t.Fatal(err)
		}
		c, ends, err := dialSandbox(ctx, w.socket, grant)
		must(t, err)
		var out bytes.Buffer
		exit, err := c.Run(ctx, stream.Exec{Argv: []string{"sh", "-c", `cat /etc/image built/it; echo "$PATH $OF_IMAGE"; git status --short; echo x >/usr/bin/x`}, Stdout: &out})
		must(t, err)
		if want := "mine\nmine\n/opt/image:/usr/bin:/bin yes\n"; out.String() != want || exit.Code == 0 {
			t.Errorf("%s: %q, exit %d", purpose, out.String(), exit.Code)
		}
		must(t, c.Close())
		<-ends
	}
	// Again it is the same, and the only one.
	w.importImage(archive)
	all, err := dial.Images(ctx, w.socket)
	must(t, err)
	if _, digest, _ := strings.Cut(ref, "@"); len(all) != 1 || all[0].Digest != digest || len(w.listed("image")) != 1 || len(w.listed("base")) != 0 {
		t.Errorf("the node has the images %+v, the store %q and %q", all, w.listed("image"), w.listed("base"))
	}
}

// At gVisor's tier an image is unpacked at that tier.
func TestImportAtGVisor(t *testing.T) {
	w := newWorld(t)
	w.tier = wire.TierGVisor
	w.start()
	archive, _ := savedImage(t, "cat")
	w.importImage(archive)
	all, err := dial.Images(t.Context(), w.socket)
	must(t, err)
	if len(all) != 1 {
		t.Fatalf("the node has the images %+v", all)
	}
	b, err := os.ReadFile(filepath.Join(w.tree("image", strings.TrimPrefix(all[0].Digest, "sha256:")), "root", "etc", "image"))
	if err != nil || string(b) != "mine\n" {
		t.Errorf("%q, %v", b, err)
	}
}

// An archive that will not do, one that ends before its end, and one whose sender
// goes away leave nothing, and say why.
func TestImportThatWillNotDo(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.awaited()
	archive, _ := savedImage(t, "cat")
	for words, body := range map[string]io.Reader{
		"no tar":  strings.NewReader("hello"),
		"damaged": bytes.NewReader(archive[:len(archive)/2]),
	} {
		if im, err := dial.ImportImage(t.Context(), w.socket, body); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %+v, %v", words, im, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	gone := readerFunc(func([]byte) (int, error) {
		cancel()
		return 0, io.ErrUnexpectedEOF
	})
	if im, err := dial.ImportImage(ctx, w.socket, io.MultiReader(bytes.NewReader(archive), gone)); err == nil {
		t.Errorf("whose sender went away: %+v", im)
	}
	until(t, "nothing is left", func() bool { return len(w.listed("base"))+len(w.listed("image")) == 0 })
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// A daemon that is killed during an import leaves no image, and what it leaves is
// collected.
func TestKilledDuringAnImport(t *testing.T) {
	w := newWorld(t)
	daemon := w.serve()
	archive, ref := savedImage(t, "cat")
	reached, killed, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		// It gets everything but the end.
		_, err := dial.ImportImage(t.Context(), w.socket, io.MultiReader(bytes.NewReader(archive), readerFunc(func([]byte) (int, error) {
			close(reached)
			<-killed
			return 0, io.EOF
		})))
		ended <- err
	}()
	<-reached
	kill(t, daemon, syscall.SIGKILL)
	close(killed)
	if err := <-ended; err == nil {
		t.Error("an import by a daemon that was killed succeeded")
	}
	if len(w.listed("base")) != 1 || len(w.listed("image")) != 0 {
		t.Fatalf("left are %q and %q", w.listed("base"), w.listed("image"))
	}
	w.serve(func(d *daemonOptions) { d.CollectEvery = 10 * time.Millisecond })
	until(t, "what is left is collected", func() bool { return len(w.listed("base")) == 0 })
	w.importImage(archive)
	if _, digest, _ := strings.Cut(ref, "@sha256:"); !slices.Equal(w.listed("image"), []string{digest}) {
		t.Errorf("images: %q", w.listed("image"))
	}
}

// An image goes when neither a snapshot nor a clone needs it, and nobody has used
// it for long.
func TestImagesAreCollected(t *testing.T) {
	w, f, clock := collecting(t)
	w.plane.set(func(p *plane) { p.refs = wire.Refs{Snapshots: []string{"with"}} })
	image := func(digit string) snapshot.ImageID { return snapshot.ImageID(strings.Repeat(digit, 64)) }
	for _, digit := range []string{"1", "2", "3"} {
		_, err := f.store.Prepare(t.Context(), snapshot.BaseID("image-"+digit), "")
		must(t, err)
		_, err = f.store.Seal(t.Context(), snapshot.BaseID("image-"+digit), image(digit))
		must(t, err)
	}
	_, err := f.store.Prepare(t.Context(), "with", "")
	must(t, err)
	_, err = f.store.Snapshot(t.Context(), "with", "with", snapshot.Meta{Environment: "env-1", Image: image("1")})
	must(t, err)
	images := func() (all []string) {
		l, err := f.store.List(t.Context())
		must(t, err)
		for _, i := range l.Images {
			all = append(all, string(i.ID)[:1])
		}
		return all
	}
	clock.Advance(29 * 24 * time.Hour)
	w.roundsWithin(clock)
	if got := images(); len(got) != 3 {
		t.Fatalf("images %q", got)
	}
	// Brought again, which is a use.
	must(t, os.WriteFile(filepath.Join(w.root, "images-used", string(image("2"))), nil, 0o600))
	must(t, os.Chtimes(filepath.Join(w.root, "images-used", string(image("2"))), clock.Now(), clock.Now()))
	clock.Advance(2 * 24 * time.Hour)
	w.roundsWithin(clock)
	if got := images(); !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("images %q", got)
	}
	// The snapshot goes; its image stays for a while, as if used until then.
	w.plane.set(func(p *plane) { p.refs = wire.Refs{} })
	clock.Advance(29 * 24 * time.Hour)
	w.roundsWithin(clock)
	if _, snapshots, _ := f.names(); len(snapshots) != 0 || !slices.Equal(images(), []string{"1"}) {
		t.Errorf("snapshots %q, images %q", snapshots, images())
	}
	clock.Advance(31 * 24 * time.Hour)
	w.roundsWithin(clock)
	if got := images(); len(got) != 0 {
		t.Errorf("images %q", got)
	}
}

// An image that is not there, or that holds too little, is told in words.
func TestImageThatWillNotDo(t *testing.T) {
	w := newWorld(t)
	archive, ref := savedImage(t, "cat")
	nearly, ofNearly := savedImage(t, "git-upload-pack", "sh", "git", "find", "cat", "mkdir", "rm") // enough for a refresh
	w.start()
	w.importImage(archive)
	w.importImage(nearly)
	for i, test := range []struct{ ref, words string }{
		{"registry.example/dev@sha256:" + strings.Repeat("0", 64), "is not on this node; bring it there with: inspect env image import"},
		{ref, "must hold sh, git"},
		{ofNearly, "there is no chmod\nthere is no cp"},
		{"dev@sha256:../../../etc", "no digest"},
		{"dev", "no digest"},
	} {
		work := w.refreshWork(int64(i+1), "snap-"+string(rune('a'+i)))
		work.Refresh.Image = test.ref
		w.plane.give(work)
		select {
		case o := <-w.plane.offers:
			t.Fatalf("%s: %+v", test.ref, o)
		case r := <-w.plane.results:
			if r.OK || !strings.Contains(r.Words, test.words) {
				t.Errorf("%s: %q", test.ref, r.Words)
			}
		case <-time.After(time.Minute):
			t.Fatal("no answer within a minute")
		}
	}
}
