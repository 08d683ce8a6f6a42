package storetest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"inspect/envs/snapshot"
)

func imageID(digit string) snapshot.ImageID { return snapshot.ImageID(strings.Repeat(digit, 64)) }

func images(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	ctx := t.Context()
	one := imageID("1")
	b, err := s.Prepare(ctx, "b1", "")
	must(t, err)
	write(t, b.Path, "root/bin/sh", "program")
	must(t, os.Chmod(filepath.Join(b.Path, "root/bin/sh"), 0o755))
	must(t, os.Chmod(b.Path, 0o711))
	// Until it is sealed there is no image, also for who opens the store anew.
	must(t, s.Close())
	s = open(t, "a", "octocat")
	must(t, s.Sweep(ctx))
	if i, err := s.Image(ctx, one); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("an image that was not sealed: %+v, %v", i, err)
	}
	for what, err := range map[string]error{
		"seal of nothing": second(s.Seal(ctx, "never", one)), "image that never was": second(s.Image(ctx, imageID("0"))),
	} {
		if !errors.Is(err, snapshot.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, bad := range []snapshot.ImageID{"", "..", "sha256:" + one, one[1:], one + "1", snapshot.ImageID(strings.Repeat("A", 64))} {
		for what, err := range map[string]error{
			"seal": second(s.Seal(ctx, b.ID, bad)), "image": second(s.Image(ctx, bad)), "discard": s.Discard(ctx, bad),
		} {
			if !errors.Is(err, snapshot.ErrName) {
				t.Errorf("%s of %q: %v", what, bad, err)
			}
		}
	}

	sealed, err := s.Seal(ctx, b.ID, one)
	must(t, err)
	again, err := s.Seal(ctx, b.ID, one)
	must(t, err)
	found, err := s.Image(ctx, one)
	must(t, err)
	l, err := s.List(ctx)
	must(t, err)
	if len(l.Images) != 1 || len(l.Bases)+len(l.Snapshots)+len(l.Clones)+len(l.Foreign) != 0 {
		t.Fatalf("list = %+v", l)
	}
	for _, i := range []snapshot.Image{sealed, again, found, l.Images[0]} {
		if i.ID != one || i.Path != sealed.Path || !i.Created.Equal(sealed.Created) || i.Created.IsZero() {
			t.Errorf("%+v is not %+v", i, sealed)
		}
	}
	if get(t, sealed.Path, "root/bin/sh") != "program" || stat(t, sealed.Path, "root/bin/sh").Mode&0o777 != 0o755 || stat(t, sealed.Path, ".").Mode&0o777 != 0o711 {
		t.Error("the image is not what was prepared")
	}

	// The name is taken: of several at once one has it, and the others keep theirs.
	two := imageID("2")
	var bases []snapshot.Base
	for _, id := range []snapshot.BaseID{"x", "y", "z"} {
		b, err := s.Prepare(ctx, id, "")
		must(t, err)
		write(t, b.Path, "f", string(id))
		bases = append(bases, b)
	}
	errs := make([]error, len(bases))
	var wg sync.WaitGroup
	for n, b := range bases {
		wg.Go(func() { _, errs[n] = s.Seal(ctx, b.ID, two) })
	}
	wg.Wait()
	won := 0
	refs := []snapshot.Ref{two}
	for n, b := range bases {
		switch {
		case errs[n] == nil:
			won++
			i, err := s.Image(ctx, two)
			must(t, err)
			if got := get(t, i.Path, "f"); got != string(b.ID) {
				t.Errorf("base %s became an image with %q", b.ID, got)
			}
		case !errors.Is(errs[n], snapshot.ErrExists) || get(t, b.Path, "f") != string(b.ID):
			t.Errorf("base %s: %v", b.ID, errs[n])
		default:
			refs = append(refs, b.ID)
		}
	}
	if won != 1 {
		t.Errorf("%d bases became one image", won)
	}

	// A base may have the name of one that became an image.
	_, err = s.Prepare(ctx, b.ID, "")
	must(t, err)
	if _, err := s.Seal(ctx, b.ID, one); !errors.Is(err, snapshot.ErrExists) {
		t.Errorf("seal under a taken name: %v", err)
	}
	must(t, s.Close())
	s = open(t, "a", "hubot")
	for what, err := range map[string]error{
		"image": second(s.Image(ctx, one)), "discard": s.Discard(ctx, one), "seal": func() error {
			_, err := s.Prepare(ctx, "hubots", "")
			must(t, err)
			_, err = s.Seal(ctx, "hubots", one)
			return errors.Join(err, s.Discard(ctx, snapshot.BaseID("hubots")))
		}(),
	} {
		if !errors.Is(err, snapshot.ErrForeign) {
			t.Errorf("%s of another installation: %v", what, err)
		}
	}
	must(t, s.Sweep(ctx))
	must(t, s.Close())
	s = open(t, "a", "octocat")
	found, err = s.Image(ctx, one)
	must(t, err)
	if get(t, found.Path, "root/bin/sh") != "program" || found.Path != sealed.Path {
		t.Errorf("opened again: %+v", found)
	}

	// Discarded and made anew.
	must(t, s.Discard(ctx, one))
	must(t, s.Discard(ctx, one))
	if i, err := s.Image(ctx, one); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("a discarded image: %+v, %v", i, err)
	}
	_, err = s.Seal(ctx, b.ID, one)
	must(t, err)
	found, err = s.Image(ctx, one)
	must(t, err)
	if got := read(t, found.Path); len(got) != 0 {
		t.Errorf("the image made anew has %q", got)
	}
	nothingLeft(t, s, append(refs, one)...)
}
