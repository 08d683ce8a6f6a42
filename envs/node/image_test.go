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
	"strings"
	"testing"
	"time"

	"inspect/envs/image"
	"inspect/envs/node/dial"
	"inspect/envs/proc"
	"inspect/envs/sandbox"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

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

// importImage does what `inspect env image import` does.
func (w *world) importImage(archive []byte) {
	w.t.Helper()
	must(w.t, os.MkdirAll(w.root, 0o711))
	o, done, err := realOptions(w.daemonOptions(), testLog(w.t))
	must(w.t, err)
	defer done()
	_, err = image.New(image.Options{Dir: filepath.Join(w.root, "images"), UID: o.SandboxUID, GID: o.SandboxGID, Start: func(ctx context.Context, s sandbox.Spec) (func() wire.SandboxEnd, error) {
		b, err := o.Launcher.Start(ctx, s)
		if err != nil {
			return nil, err
		}
		return b.Wait, nil
	}}).Import(context.Background(), bytes.NewReader(archive), "")
	must(w.t, err)
}

// A repository's image takes the place of the machine's programs: in setup, in
// the sandbox of the agent and in that of verification.
func TestImageOfARepository(t *testing.T) {
	w := newWorld(t)
	archive, ref := savedImage(t, "sh", "git", "git-upload-pack", "find", "cat", "mkdir", "rm")
	w.importImage(archive)
	w.start()
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
}

// An image that is not there, or that holds too little, is told in words.
func TestImageThatWillNotDo(t *testing.T) {
	w := newWorld(t)
	archive, ref := savedImage(t, "cat")
	w.importImage(archive)
	w.start()
	for i, test := range []struct{ ref, words string }{
		{"registry.example/dev@sha256:" + strings.Repeat("0", 64), "is not on this node; bring it there with: inspect env image import"},
		{ref, "must hold sh, git"},
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
