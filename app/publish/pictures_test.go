package publish

import (
	"bytes"
	"context"
	"image"
	"image/color"
	"image/png"
	"strings"
	"testing"

	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/storage"
)

// drawn is a PNG with a spot and, in its file, more than a picture.
func drawn(t *testing.T, spot bool) []byte {
	t.Helper()
	img := image.NewRGBA(image.Rect(0, 0, 40, 30))
	for i := range img.Pix {
		img.Pix[i] = 255
	}
	if spot {
		img.Set(3, 3, color.RGBA{255, 0, 0, 255})
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	b.WriteString("<script>not ours</script>")
	return b.Bytes()
}

// Pictures before, after and where they differ are evidence, written anew; what
// the runner sent is not listed, and what is no picture is said.
func TestPicturesAreKept(t *testing.T) {
	w := newWorld(t)
	page := &spec.Screenshot{URL: "http://localhost/", Width: 1280, Height: 800}
	s := w.session(w.fixed(), func(s *storage.Session, sp *spec.Spec, o *wire.Outcome) {
		s.State = scheduler.Failed
		shot := func(name, sum string) wire.VerifyResult {
			return wire.VerifyResult{Name: name, Run: page.Line(), Report: spec.ReportScreenshot, Reports: []wire.ReportFile{{Path: wire.ShotPicture, SHA256: sum}}}
		}
		before, after := w.put(s.ID, drawn(t, false)), w.put(s.ID, drawn(t, true))
		sp.Verify = nil
		for _, name := range []string{"home", "same", "bad"} {
			sp.Verify = append(sp.Verify, spec.Verify{Name: name, Run: page.Line(), Report: spec.ReportScreenshot, Screenshot: page})
		}
		o.Results = []wire.VerifyResult{shot("home", after), shot("same", before), shot("bad", w.put(s.ID, []byte("<svg onload=alert(1)>")))}
		o.Base = &wire.Column{Results: []wire.VerifyResult{shot("home", before), shot("same", before)}}
	})
	kept, err := w.p.Keep(context.Background(), s)
	w.ok(err)
	m := kept.Manifest
	if len(m.Screenshots) != 3 {
		t.Fatalf("%+v", m.Screenshots)
	}
	home, same, bad := m.Screenshots[0], m.Screenshots[1], m.Screenshots[2]
	if home.Changed != 1 || home.Pixels != 1200 || home.URL != page.URL || home.Before == nil || home.After == nil || home.Difference == nil || home.Words != "" {
		t.Errorf("%+v", home)
	}
	if same.Changed != 0 || same.Difference != nil || same.Before.SHA256 != same.After.SHA256 {
		t.Errorf("%+v", same)
	}
	if bad.After != nil || !strings.Contains(bad.Words, "No picture of the result: it is no PNG") || !strings.Contains(bad.Words, "No picture of the base: verification did not run there.") {
		t.Errorf("%+v", bad)
	}
	var names []string
	for _, f := range m.Files {
		names = append(names, f.Name)
	}
	all := strings.Join(names, " ")
	for _, name := range []string{"screenshot-home-before.png", "screenshot-home-after.png", "screenshot-home-difference.png", "screenshot-same-after.png"} {
		if !strings.Contains(all, name) {
			t.Errorf("%s is not among %s", name, all)
			continue
		}
		if body := w.file(s.ID, name); strings.Contains(body, "script") || !strings.HasPrefix(body, "\x89PNG") {
			t.Errorf("%s is not ours: %q", name, body)
		}
	}
	if strings.Contains(all, "picture.png") || strings.Contains(all, "difference-same") || strings.Contains(all, "screenshot-bad") {
		t.Errorf("%s", all)
	}
}
