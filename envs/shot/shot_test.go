package shot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inspect/envs/wire"
)

// chromium fails a test on a machine without one: make setup installs it.
func chromium(t *testing.T) string {
	t.Helper()
	path, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// site serves pages by their path.
func site(t *testing.T, pages map[string]string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func take(t *testing.T, o Options) (wire.Shot, image.Image) {
	t.Helper()
	o.Browser = chromium(t)
	if o.Page.Width == 0 {
		o.Page.Width, o.Page.Height = 400, 300
	}
	got, body, err := Take(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if body == nil {
		return got, nil
	}
	img, err := png.Decode(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return got, img
}

func TestPicture(t *testing.T) {
	base := site(t, map[string]string{"/": `<!doctype html><title> A  page </title><style>body{margin:0;background:#0f0} @keyframes k{from{opacity:0}} div{background:#00f;height:900px;animation:k 30s}</style><div></div>`})
	got, img := take(t, Options{Page: wire.Screenshot{URL: base + "/", Width: 390, Height: 844}})
	if got.Failed != "" || got.Status != 200 || got.Title != "A page" || got.Final != base+"/" || !strings.Contains(got.Browser, "/") || len(got.Errors)+len(got.Requests) > 0 {
		t.Errorf("%+v", got)
	}
	if b := img.Bounds(); b.Dx() != 390 || b.Dy() != 844 {
		t.Errorf("%v", b)
	}
	if _, _, blue, _ := img.At(100, 100).RGBA(); blue != 0xffff {
		t.Errorf("the animation is not at its end: %v", img.At(100, 100))
	}
	if _, img = take(t, Options{Page: wire.Screenshot{URL: base + "/", Width: 390, Height: 844, FullPage: true}}); img.Bounds().Dy() != 900 {
		t.Errorf("full page: %v", img.Bounds())
	}
}

func TestWhatTheBrowserSays(t *testing.T) {
	base := site(t, map[string]string{"/": `<!doctype html><script>
		console.error("bad thing", {a: 1}); console.log("fine");
		fetch("/gone"); new Image().src = "http://127.0.0.1:1/x.png"; alert("held up?");
		for (let i = 0; i < 100; i++) console.error("x".repeat(5000));
	</script>`})
	got, img := take(t, Options{Page: wire.Screenshot{URL: base + "/"}})
	if img == nil || got.Failed != "" {
		t.Fatalf("%+v", got)
	}
	all := strings.Join(got.Errors, "|")
	if len(got.Errors) != wire.MaxShotLines || got.MoreErrors != 51 || !strings.HasPrefix(all, "bad thing Object") || len(got.Errors[5]) > wire.MaxShotText {
		t.Errorf("%d %d %.100s", len(got.Errors), got.MoreErrors, all)
	}
	reqs := fmt.Sprint(got.Requests)
	if !strings.Contains(reqs, base+"/gone status 404") || !strings.Contains(reqs, "127.0.0.1:1/x.png net::ERR_") {
		t.Errorf("%s", reqs)
	}
}

func TestExceptionsAreErrors(t *testing.T) {
	base := site(t, map[string]string{"/": `<!doctype html><script>throw new Error("thrown")</script>`})
	if got, _ := take(t, Options{Page: wire.Screenshot{URL: base + "/"}}); len(got.Errors) != 1 || !strings.Contains(got.Errors[0], "Error: thrown") {
		t.Errorf("%+v", got)
	}
}

func TestPagesThatFail(t *testing.T) {
	base := site(t, map[string]string{"/": "<p>x", "/hangs": `<!doctype html><script>while (true) {}</script>`})
	for _, c := range []struct {
		page    wire.Screenshot
		want    string
		picture bool
	}{
		{wire.Screenshot{URL: "http://127.0.0.1:1/"}, "the page could not be loaded: net::ERR_", false},
		{wire.Screenshot{URL: base + "/gone"}, "the page was answered with status 404", true},
		{wire.Screenshot{URL: base + "/", WaitFor: "#never"}, "nothing that #never selects was visible within 3s", true},
		{wire.Screenshot{URL: base + "/hangs"}, "the page was not loaded within 3s", false},
	} {
		got, img := take(t, Options{Page: c.page, Wait: 3 * time.Second})
		if !strings.HasPrefix(got.Failed, c.want) || (img != nil) != c.picture {
			t.Errorf("%s: %q, picture %v", c.page.URL, got.Failed, img != nil)
		}
	}
}

func TestWaitFor(t *testing.T) {
	base := site(t, map[string]string{"/": `<!doctype html><body><script>setTimeout(() => { document.body.innerHTML = '<div id="late" style="background:#f00;height:300px">x</div>' }, 1500)</script>`})
	got, img := take(t, Options{Page: wire.Screenshot{URL: base + "/", WaitFor: "#late"}})
	if red, _, _, _ := img.At(200, 200).RGBA(); got.Failed != "" || red != 0xffff {
		t.Errorf("%+v %v", got, img.At(200, 200))
	}
}

func TestAPageWithoutEndIsCut(t *testing.T) {
	base := site(t, map[string]string{"/": `<!doctype html><div style="height:100000px;background:linear-gradient(red,blue)"></div>`})
	got, img := take(t, Options{Page: wire.Screenshot{URL: base + "/", FullPage: true}})
	if !got.Cut || img.Bounds().Dy() != wire.MaxShotHeight {
		t.Errorf("%+v %v", got, img.Bounds())
	}
}

func TestNoBrowser(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	home := t.TempDir()
	t.Setenv("HOME", home)
	if _, err := find(nil); !errors.Is(err, ErrNoBrowser) || !strings.Contains(err.Error(), "apt-get install chromium") {
		t.Errorf("%v", err)
	}
	dir := filepath.Join(home, ".cache/ms-playwright/chromium-1200/chrome-linux")
	chrome := filepath.Join(dir, "chrome")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(chrome, []byte("#!/bin/false\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if got, err := find(nil); got != chrome || err != nil {
		t.Errorf("%s %v", got, err)
	}
	if _, _, err := Take(context.Background(), Options{Browser: chrome, Page: wire.Screenshot{Width: 100, Height: 100}}); err == nil {
		t.Error("a browser that ends at once is no error")
	}
}
