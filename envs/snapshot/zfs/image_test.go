package zfs_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/snapshot"
	"inspect/envs/snapshot/zfs/zfstest"
)

// An image can be changed by nobody, is mounted again when it is not, and has
// no name of its own for what is not ours.
func TestImage(t *testing.T) {
	p := newPlace(t)
	s := p.open(t, "octocat")
	ctx := t.Context()
	id := snapshot.ImageID(strings.Repeat("a", 64))
	name := p.dataset + "/image/" + string(id)
	b, err := s.Prepare(ctx, "b", "")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(b.Path, "f"), []byte("x"), 0o644))

	// Broken off in the midst: it is a base, and can be discarded like one.
	run(t, "zfs", "set", `io.inspect:about={"created":"2026-01-02T03:04:05Z","base":"half","image":"`+string(id)+`"}`, func() string {
		_, err := s.Prepare(ctx, "half", "")
		must(t, err)
		return p.dataset + "/base/half"
	}())
	run(t, "zfs", "set", "readonly=on", p.dataset+"/base/half")
	if i, err := s.Image(ctx, id); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("half an image: %+v, %v", i, err)
	}
	must(t, s.Discard(ctx, snapshot.BaseID("half")))

	// One that is not ours has the name.
	run(t, "zfs", "create", "-o", "canmount=off", "-o", "mountpoint=none", name)
	for what, err := range map[string]error{
		"seal": second(s.Seal(ctx, b.ID, id)), "image": second(s.Image(ctx, id)), "discard": s.Discard(ctx, id), "sweep": s.Sweep(ctx),
	} {
		if !errors.Is(err, snapshot.ErrForeign) && what != "sweep" || what == "sweep" && err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	l, err := s.List(ctx)
	must(t, err)
	if !slices.Equal(l.Foreign, []string{"image/" + string(id)}) || !slices.Contains(datasets(t, p.dataset), "image/"+string(id)) {
		t.Errorf("list = %+v", l)
	}
	run(t, "zfs", "destroy", name)

	i, err := s.Seal(ctx, b.ID, id)
	must(t, err)
	readOnly := func(i snapshot.Image) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(i.Path, "g"), nil, 0o644); !errors.Is(err, unix.EROFS) {
			t.Errorf("written into an image: %v", err)
		}
		var fs unix.Statfs_t
		must(t, unix.Statfs(i.Path, &fs))
		if want := int64(unix.ST_NOSUID | unix.ST_NODEV | unix.ST_RDONLY); fs.Flags&want != want {
			t.Errorf("the image is mounted with flags %x", fs.Flags)
		}
		if got := content(t, filepath.Join(i.Path, "f")); got != "x" {
			t.Errorf("the image has %q", got)
		}
	}
	readOnly(i)
	if got := run(t, "zfs", "get", "-H", "-o", "value,source", "readonly", name); got != "on\tlocal" {
		t.Errorf("readonly is %q", got)
	}
	must(t, unmount(t, i.Path, 0))
	i, err = s.Image(ctx, id)
	must(t, err)
	readOnly(i)
	must(t, unmount(t, i.Path, 0))
	deadline := time.Now().Add(20 * time.Second) // zfs-fuse lets go of it a little later
	for _, err = zfstest.Try("zfs", "destroy", name); err != nil && time.Now().Before(deadline); _, err = zfstest.Try("zfs", "destroy", name) {
		time.Sleep(50 * time.Millisecond)
	}
	must(t, err)
	if i, err := s.Image(ctx, id); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("an image that somebody destroyed: %+v, %v", i, err)
	}
	if left := mounts(t, p.mounts); len(left) != 0 {
		t.Errorf("mounted: %v", left)
	}
}
