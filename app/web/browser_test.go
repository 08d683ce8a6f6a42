package web

import (
	"context"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"inspect/checks/evidence"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/scheduler"
)

// chrome is a real browser, which looks at pages as a person does.
type chrome struct {
	t    *testing.T
	ctx  context.Context
	base string // of the pages
}

// newChrome starts a browser and, for it, a server of the pages.
func newChrome(t *testing.T, pages http.Handler) *chrome {
	t.Helper()
	program := ""
	for _, name := range []string{"/usr/lib/chromium/chromium", "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		t.Fatal("there is no Chromium: make setup installs it")
	}
	server := httptest.NewServer(pages)
	t.Cleanup(server.Close)
	ctx, stop := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.DisableGPU, chromedp.NoSandbox)...)
	t.Cleanup(stop)
	ctx, end := chromedp.NewContext(ctx)
	t.Cleanup(end)
	c := &chrome{t: t, ctx: ctx, base: server.URL}
	c.do()
	return c
}

func (c *chrome) do(steps ...chromedp.Action[chromedp.Void]) {
	c.t.Helper()
	if err := chromedp.Do(c.ctx, steps...); err != nil {
		c.t.Fatal(err)
	}
}

// look changes how the person looks at pages.
func (c *chrome) look(width, height int, scheme string, scripts bool) {
	c.t.Helper()
	c.do(chromedp.EmulateViewport(int64(width), int64(height)), chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}); err != nil {
			return err
		}
		_, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !scripts})
		return err
	}))
}

func (c *chrome) open(path string) {
	c.t.Helper()
	c.do(chromedp.Navigate(c.base + path))
}

// operator opens the pages with the token.
func (c *chrome) operator() { c.open("/?token=" + accessToken) }

// cookies are those of somebody who is signed in.
func (c *chrome) cookies(jar map[string]*http.Cookie) {
	c.t.Helper()
	for _, k := range jar {
		if _, err := chromedp.Call(c.ctx, network.SetCookie, network.SetCookieParams{Name: k.Name, Value: k.Value, URL: c.base + "/"}); err != nil {
			c.t.Fatal(err)
		}
	}
}

func ask[T any](c *chrome, script string) T {
	c.t.Helper()
	v, err := chromedp.Run(c.ctx, chromedp.Evaluate[T](script))
	if err != nil {
		c.t.Fatalf("%v in %.300s", err, script)
	}
	return v
}

// keep writes a picture of the page for people, if they name a directory.
func (c *chrome) keep(name string) {
	c.t.Helper()
	dir := os.Getenv("INSPECT_TEST_PICTURES")
	if dir == "" {
		return
	}
	yes := true
	got, err := chromedp.Call(c.ctx, page.CaptureScreenshot, page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatPng, CaptureBeyondViewport: &yes, FromSurface: &yes})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), got.Data, 0o644)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// contrast lists texts whose contrast is less than WCAG 2.2 AA asks for, 4.5, or 3
// of large ones. A colour that is mixed in by the style sheet is computed as well.
const contrast = `(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (c) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); const d = canvas.getImageData(0, 0, 1, 1).data; return [d[0], d[1], d[2], d[3] / 255]; };
  const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const light = (c) => { const [r, g, b] = c.map(v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = (e) => { const layers = []; for (; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor)); return layers.reverse().reduce((under, l) => over(l, under), rgba(getComputedStyle(document.documentElement).colorScheme === "dark" ? "black" : "white")); };
  const bad = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n; n = walk.nextNode();) {
    const e = n.parentElement;
    if (!n.data.trim() || ["SCRIPT", "STYLE", "NOSCRIPT", "OPTION"].includes(e.tagName) || !e.checkVisibility()) continue;
    const s = getComputedStyle(e), under = ground(e);
    const ink = over(rgba(e instanceof SVGElement ? s.fill : s.color), under);
    const [a, b] = [light(ink), light(under)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05), size = parseFloat(s.fontSize), large = size >= 24 || size >= 18.66 && s.fontWeight >= 700;
    if (ratio < (large ? 3 : 4.5)) bad.push(ratio.toFixed(2) + " " + e.tagName + " " + n.data.trim().slice(0, 40));
  }
  return bad;
})()`

// controls are all that a keyboard has to reach, by their place in the page.
const controls = `(() => {
  const all = [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary")].filter(e => e.checkVisibility());
  all.forEach((e, i) => { e.dataset.control = i; });
  return all.length;
})()`

// focused is the control that has the focus, -1 for another element that has it
// (a scrollable part), and whether that is visible.
const focused = `(() => {
  const e = document.activeElement, s = e && getComputedStyle(e);
  if (!e || e === document.body) return [-2, 1];
  const shown = parseFloat(s.outlineWidth) > 0 && s.outlineStyle !== "none";
  return [e.dataset.control === undefined ? -1 : +e.dataset.control, shown ? 1 : 0];
})()`

const outside = `(() => {
  const w = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= w) return [];
  return ["the page is " + document.documentElement.scrollWidth + " wide"].concat([...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > w + 1 && !e.closest(".wide, pre")).slice(0, 5).map(e => e.tagName + "." + e.className + " " + e.textContent.trim().slice(0, 30)));
})()`

const landmarks = `(() => {
  const bad = [], count = (s) => document.querySelectorAll(s).length;
  for (const [s, n] of [["main", 1], ["h1", 1], ["html[lang]", 1], ["title", 1]]) if (count(s) !== n) bad.push(count(s) + " of " + s);
  for (const e of document.querySelectorAll("input:not([type=hidden]), select, textarea")) if (!e.labels.length && !e.ariaLabel) bad.push("no label: " + e.outerHTML.slice(0, 80));
  for (const e of document.querySelectorAll("img")) if (!e.alt) bad.push("no alternative: " + e.src);
  for (const e of document.querySelectorAll("button, a[href]")) if (!(e.textContent.trim() || e.ariaLabel || e.querySelector("img[alt]"))) bad.push("no name: " + e.outerHTML.slice(0, 80));
  let level = 0;
  for (const h of document.querySelectorAll("h1, h2, h3, h4")) { const l = +h.tagName[1]; if (l > level + 1) bad.push(h.tagName + " after h" + level + ": " + h.textContent); level = l; }
  const ids = [...document.querySelectorAll("[id]")].map(e => e.id); ids.forEach((id, i) => { if (ids.indexOf(id) !== i) bad.push("id twice: " + id); });
  return bad;
})()`

// pages is a house with a session of each kind, and who is signed in there.
func housed(t *testing.T) (*house, *chrome) {
	t.Helper()
	h, b := newHouse(t, "http://127.0.0.1:7461")
	h.richly("rich")
	h.sql(`UPDATE sessions SET state = 'working', started_at = $1, events_count = 40 WHERE id = 'open'`, h.clock.Now())
	for i := range 40 {
		h.event("open", i+1, "tool", wire.Tool{Name: "bash", Title: "go test ./...", Command: "go test ./...", Output: "ok\n", Duration: time.Second})
	}
	b.signIn("/")
	c := newChrome(t, h)
	c.cookies(b.jar)
	return h, c
}

// Pages are for everybody: in light and dark, on a phone, with a keyboard alone,
// without scripts.
func TestPagesInABrowser(t *testing.T) {
	h, c := housed(t)
	paths := map[string]string{
		"list": "/", "session": "/sessions/rich", "working": "/sessions/open", "report": "/report", "missing": "/sessions/nothing",
	}
	for _, name := range []string{"list", "session", "working", "report", "missing"} {
		t.Run(name, func(t *testing.T) {
			c := &chrome{t, c.ctx, c.base}
			for _, scheme := range []string{"light", "dark"} {
				c.look(1280, 900, scheme, false)
				c.open(paths[name])
				c.keep(name + "-" + scheme)
				ask[chromedp.Void](c, `document.querySelectorAll("details").forEach(d => { d.open = true })`)
				for _, bad := range ask[[]string](c, contrast) {
					t.Errorf("%s: too little contrast: %s", scheme, bad)
				}
			}
			for _, bad := range ask[[]string](c, landmarks) {
				t.Error(bad)
			}
			c.keyboard()
			c.look(390, 844, "light", false)
			c.open(paths[name])
			c.keep(name + "-phone")
			for _, bad := range ask[[]string](c, outside) {
				t.Errorf("on a phone: %s", bad)
			}
			ask[chromedp.Void](c, `document.querySelectorAll("details").forEach(d => { d.open = true })`)
			for _, bad := range ask[[]string](c, outside) {
				t.Errorf("on a phone, unfolded: %s", bad)
			}
		})
	}
	t.Run("locked", func(t *testing.T) {
		c := newChrome(t, h)
		for _, scheme := range []string{"light", "dark"} {
			c.look(390, 844, scheme, false)
			c.open("/sessions/rich")
			c.keep("locked-" + scheme)
			for _, script := range []string{contrast, landmarks, outside} {
				for _, bad := range ask[[]string](c, script) {
					t.Errorf("%s: %s", scheme, bad)
				}
			}
		}
		c.keyboard()
	})
}

// keyboard goes through a page by its keys alone.
func (c *chrome) keyboard() {
	c.t.Helper()
	want := ask[int](c, controls)
	reached, hidden := map[int]bool{}, []int{}
	for range want + 200 {
		c.do(chromedp.KeyEvent(kb.Tab))
		f := ask[[2]int](c, focused)
		if f[0] == -2 {
			break
		}
		if f[0] >= 0 {
			reached[f[0]] = true
		}
		if f[1] == 0 {
			hidden = append(hidden, f[0])
		}
	}
	if len(reached) != want {
		var missed []int
		for i := range want {
			if !reached[i] {
				missed = append(missed, i)
			}
		}
		c.t.Errorf("the keyboard reaches %d of %d controls; not %v, such as %s", len(reached), want, missed, ask[string](c, fmt.Sprintf(`document.querySelector("[data-control='%d']").outerHTML.slice(0, 100)`, missed[0])))
	}
	if len(hidden) > 0 {
		c.t.Errorf("the focus is not to be seen at %v", hidden)
	}
}

// Forms are forms: without scripts a press arrives, with what keeps other pages
// from sending it.
func TestPressWithoutScripts(t *testing.T) {
	h, c := housed(t)
	c.look(1280, 900, "light", false)
	c.open("/sessions/open")
	c.do(chromedp.SendKeys(chromedp.CSS("#ask"), "Please also "+evil))
	if _, err := chromedp.Run(c.ctx, chromedp.WaitEvent(page.LoadEventFired, nil, chromedp.Click(chromedp.CSS("button[value=request]")))); err != nil {
		t.Fatal(err)
	}
	if len(h.hub.pressed) != 1 || h.hub.pressed[0].Text != "Please also "+evil {
		t.Fatalf("%+v", h.hub.pressed)
	}
	// The same form without its mark is refused.
	c.open("/sessions/open")
	c.look(1280, 900, "light", true)
	ask[chromedp.Void](c, `document.querySelectorAll("input[name=form]").forEach(i => { i.value = "x" })`)
	if _, err := chromedp.Run(c.ctx, chromedp.WaitEvent(page.LoadEventFired, nil, chromedp.Click(chromedp.CSS("button[value=stop]")))); err != nil {
		t.Fatal(err)
	}
	if text := ask[string](c, `document.body.textContent`); len(h.hub.pressed) != 1 || !strings.Contains(text, "Not from here") {
		t.Errorf("%+v %.400s", h.hub.pressed, strings.Join(strings.Fields(text), " "))
	}
}

// richly inserts a session as it is after a good day: what a reviewer sees.
func (s *site) richly(id string) {
	s.t.Helper()
	if s.blobs == nil {
		s.t.Fatal("the site has no store")
	}
	s.session(id, "Parcels over 30 kg are priced as if they weighed 30 kg")
	put := func(content string) string { return s.blob(id, content) }
	shot := func(name string, price string) evidence.Picture {
		img := image.NewRGBA(image.Rect(0, 0, 640, 400))
		for y := range 400 {
			for x := range 640 {
				img.Set(x, y, color.RGBA{uint8(240 - y/8), 244, 250, 255})
			}
		}
		for i := range len(price) * 40 {
			for y := 180; y < 230; y++ {
				img.Set(200+i, y, color.RGBA{20, 60, 120, 255})
			}
		}
		var b strings.Builder
		if err := png.Encode(&b, img); err != nil {
			s.t.Fatal(err)
		}
		sum := put(b.String())
		s.sql(`INSERT INTO evidence (session_id, name, sha256, bytes) VALUES ($1, $2, $3, $4)`, id, name, sum, b.Len())
		return evidence.Picture{SHA256: sum, Width: 640, Height: 400}
	}
	before, after, difference := shot("screenshot-home-before.png", "1234"), shot("screenshot-home-after.png", "123456"), shot("screenshot-home-difference.png", "12")
	out := put("ok")
	patch := put("diff --git a/price.go b/price.go\n--- a/price.go\n+++ b/price.go\n@@ -10,5 +10,8 @@ func Price(weight int) int {\n \tif weight <= 0 {\n \t\treturn 0\n \t}\n-\treturn table[min(weight, 30)]\n+\tif weight > 30 {\n+\t\treturn table[30] + (weight-30)*extra\n+\t}\n+\treturn table[weight]\n }\n")
	failed := evidence.Tests{Passed: 211, Failed: 1, Failures: []evidence.Failure{{Package: "parcel", Test: "TestHeavy", Output: "price_test.go:21: Price(31) = 1200, want 1250"}}}
	m := evidence.Manifest{
		Session: id, Verdict: evidence.Verdict{Kind: evidence.Passed, Words: "213 pass", Passed: 213, Fixed: 1, Old: []string{"unit: parcel TestLimits"},
			Notes: []string{"home: 1 console error that the base does not have: TypeError: price is undefined"}},
		Checks: []evidence.Check{
			{Name: "unit", Run: "go test -json ./...", Report: "gotest", Passed: true, Words: "212 tests passed", Duration: 14 * time.Second, Stdout: out, Stderr: out, Tests: &evidence.Tests{Passed: 212}},
			{Name: "home", Run: "inspect shot http://127.0.0.1:5173/", Report: "screenshot", Passed: true, Words: "status 200, 1280 x 800", Duration: 2 * time.Second, Stdout: out,
				Shot: &evidence.Shot{URL: "http://127.0.0.1:5173/", Status: 200, Errors: []string{"TypeError: price is undefined"}, Requests: []string{"http://127.0.0.1:5173/logo.svg: status 404"}}},
		},
		Base:      []evidence.Check{{Name: "unit", Words: "1 of 212 tests failed", Duration: 13 * time.Second, Tests: &failed}, {Name: "home", Passed: true, Words: "status 200, 1280 x 800"}},
		BaseTests: []evidence.Check{{Name: "unit", Words: "1 of 212 tests failed", Tests: &failed}, {Name: "home", Passed: true, Words: "status 200, 1280 x 800"}},
		Screenshots: []evidence.Screenshot{{Name: "home", URL: "http://127.0.0.1:5173/", Before: &before, After: &after, Difference: &difference, Changed: 8192, Pixels: 256000},
			{Name: "basket", URL: "http://127.0.0.1:5173/basket", Words: "No picture of the base: the page could not be loaded: net::ERR_CONNECTION_REFUSED."}},
		Risks:    []string{"go.mod gains a dependency: example.com/money v1.2.0"},
		Change:   evidence.Change{Files: []evidence.ChangedFile{{Path: "price.go", Added: 4, Deleted: 1}, {Path: "internal/a/very/long/path/that/goes/on/and/on/for/a/phone/price_table_test.go", Added: 21}}, Added: 25, Deleted: 1},
		Snapshot: evidence.Snapshot{ID: "snap-7-42", Commit: strings.Repeat("b", 40), Store: "zfs", Age: time.Hour, Restore: 120 * time.Millisecond},
		Harness:  evidence.Harness{Kind: "opencode", Label: "opencode"}, Sandbox: evidence.Sandbox{Tier: "bubblewrap 0.8.0", Limits: "enforced"},
		Agent: evidence.Agent{ToolCalls: 14, Commands: 6, FilesTouched: 3},
		Model: evidence.Model{Name: "anthropic/claude-sonnet", Calls: 7, InputTokens: 120_345, OutputTokens: 2_310, Cost: 123_400_000, Priced: true, Budget: 5_000_000_000, PricesAsOf: "2026-11-01"},
	}
	body, _, err := m.Encode()
	if err != nil {
		s.t.Fatal(err)
	}
	manifest := put(string(body))
	for name, sum := range map[string]string{"manifest.json": manifest, "change.patch": patch} {
		s.sql(`INSERT INTO evidence (session_id, name, sha256, bytes) VALUES ($1, $2, $3, 500)`, id, name, sum)
	}
	receipt := scheduler.Receipt{Branch: "inspect/12-heavy-parcels", HeadSHA: strings.Repeat("c", 40), Tree: strings.Repeat("d", 40), PullRequest: 13,
		URL: "https://github.com/octocat/parcel/pull/13", Evidence: manifest, EventsHead: strings.Repeat("e", 64), EventsCount: 30}
	s.sql(`UPDATE sessions SET spec = $2, state = 'delivered', words = 'Pushed and read back; draft pull request #13 is open.', generation = 1, receipt = $3, outcome = $4, branch = 'inspect/12-heavy-parcels',
		pull_request = 13, check_run_id = 77, started_at = $5, finished_at = $5, reported_at = $5, events_count = 30 WHERE id = $1`,
		id, s.json(spec.Spec{Harness: spec.Harness{Kind: "opencode"}}), s.json(receipt), s.json(wire.Outcome{Kind: "verified", Times: wire.Times{Restore: 120 * time.Millisecond, Work: 3 * time.Minute, Verify: 20 * time.Second}}), s.clock.Now())
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 30 {
		s.event(id, i+1, "tool", wire.Tool{Name: "bash", Title: "go test ./...", Command: "go test ./...", Output: strings.Repeat("ok ", 1+r.IntN(200)), Duration: time.Second})
	}
}

// A picture is shown only if the manifest names it, as a picture and nothing else.
func TestPicturesAreShown(t *testing.T) {
	h, b := newHouse(t, "http://127.0.0.1:7461")
	h.richly("rich")
	b.signIn("/")
	body := b.send("GET", "/sessions/rich", nil).Body.String()
	_, rest, ok := strings.Cut(body, `<img src="`)
	if !ok || !strings.Contains(body, "3.2 % of the pixels changed") || !strings.Contains(body, "TypeError") {
		t.Fatalf("the page shows no picture: %s", body)
	}
	at, _, _ := strings.Cut(rest, `"`)
	w := b.send("GET", at, nil)
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "image/png" || w.Header().Get("X-Content-Type-Options") != "nosniff" ||
		w.Header().Get("Content-Security-Policy") != "sandbox; default-src 'none'" || !strings.HasPrefix(w.Body.String(), "\x89PNG") {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	manifest := slices.Collect(func(yield func(string) bool) {
		_, rest, _ := strings.Cut(body, "/files/")
		sum, _, _ := strings.Cut(rest, "?")
		yield(sum)
	})[0]
	for _, path := range []string{"/sessions/rich/pictures/" + manifest, "/sessions/open/pictures/" + filepath.Base(at), "/sessions/hidden/pictures/" + filepath.Base(at), "/sessions/rich/pictures/x"} {
		if w := b.send("GET", path, nil); w.Code != http.StatusNotFound {
			t.Errorf("%s is %d", path, w.Code)
		}
	}
	c := newChrome(t, h)
	c.cookies(b.jar)
	c.open("/sessions/rich#screenshots")
	c.do(chromedp.Poll[chromedp.Void](`[...document.images].every(i => { i.loading = "eager"; return i.complete && i.naturalWidth === 640 })`))
}
