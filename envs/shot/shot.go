// Package shot takes a picture of a page with the Chromium that is there, and
// says what the browser said: errors of the console, requests that failed. It
// runs inside a sandbox, as the account of the commands there, for verification
// and for the agent. The page is not trusted: what it can make the record say is
// bounded, and it cannot hold the program up.
package shot

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"inspect/envs/wire"
)

// Options of a picture.
type Options struct {
	Page    wire.Screenshot
	Browser string // path of the program; empty: it is looked for, see Find
	// Wait is how long the page may take to load, and to show what is waited for,
	// each; 0: 30 s.
	Wait time.Duration
	// NoSandbox has the browser do without a sandbox of its own, which cannot be
	// made inside one of ours.
	NoSandbox bool
}

// atRest is how long no request must go on for a page to be at rest, and
// longestRest how long that is waited for: some pages never are.
const (
	atRest      = 500 * time.Millisecond
	longestRest = 5 * time.Second
	lastSteps   = 20 * time.Second // for drawing and reading back
)

// Take opens the page and takes its picture, a PNG. What is wrong with the page
// is in the record; an error means that no browser could be made to look at it.
func Take(ctx context.Context, o Options) (wire.Shot, []byte, error) {
	out := wire.Shot{
		URL: text(o.Page.URL), Width: o.Page.Width, Height: o.Page.Height, FullPage: o.Page.FullPage, WaitFor: text(o.Page.WaitFor),
	}
	if o.Browser == "" {
		var err error
		if o.Browser, err = Find(); err != nil {
			return out, nil, err
		}
	}
	if o.Wait <= 0 {
		o.Wait = 30 * time.Second
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(o.Browser), chromedp.DisableGPU,
		chromedp.WindowSize(o.Page.Width, o.Page.Height), chromedp.Flag("hide-scrollbars", true))
	if o.NoSandbox {
		opts = append(opts, chromedp.NoSandbox)
	}
	// Whatever the page does, this is the end.
	ctx, cancel := context.WithTimeout(ctx, 2*o.Wait+longestRest+lastSteps+30*time.Second)
	defer cancel()
	ctx, stop := chromedp.NewExecAllocator(ctx, opts...)
	defer stop()
	ctx, closeTab := chromedp.NewContext(ctx)
	defer closeTab()
	t := tab{ctx: ctx, wait: o.Wait, page: o.Page, seen: newSeen()}
	if err := t.open(); err != nil {
		return out, nil, fmt.Errorf("start %s: %w", o.Browser, err)
	}
	if v, err := chromedp.CallBrowser(ctx, browser.GetVersion, cdp.Empty{}); err == nil {
		out.Browser = text(v.Product)
	}
	out.Failed = t.load()
	var picture []byte
	var answers bool
	if out.Final, out.Title, answers = t.where(); answers && t.seen.status() != 0 {
		var err error
		picture, out.Cut, err = t.picture()
		if err != nil && out.Failed == "" {
			out.Failed = "the page could not be drawn: " + sentence(err)
		}
	}
	t.seen.tell(&out)
	if out.Failed == "" && out.Status >= 400 {
		out.Failed = fmt.Sprintf("the page was answered with status %d", out.Status)
	}
	if len(picture) > wire.MaxShotBytes {
		picture, out.Failed = nil, fmt.Sprintf("the picture is longer than %d MiB", wire.MaxShotBytes>>20)
	}
	out.Failed = text(out.Failed)
	return out, picture, nil
}

// tab is the one page that is open.
type tab struct {
	ctx  context.Context
	wait time.Duration
	page wire.Screenshot
	seen *seen
}

// within runs a step that may take so long.
func (t *tab) within(d time.Duration, steps ...chromedp.Action[chromedp.Void]) error {
	ctx, cancel := context.WithTimeout(t.ctx, d)
	defer cancel()
	return chromedp.Do(ctx, steps...)
}

func (t *tab) open() error {
	// Starts the browser: a deadline on this context would be the browser's.
	if err := chromedp.Do(t.ctx); err != nil {
		return err
	}
	if err := chromedp.Listen(t.ctx, t.event); err != nil {
		return err
	}
	return t.within(lastSteps, chromedp.Func(func(ctx context.Context, tg *chromedp.Target) error {
		_, err := cdp.Call(ctx, tg, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
			Width: int64(t.page.Width), Height: int64(t.page.Height), DeviceScaleFactor: 1,
		})
		if err != nil {
			return err
		}
		// Two pictures of the same page should be the same.
		_, err = cdp.Call(ctx, tg, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-reduced-motion", Value: "reduce"}, {Name: "prefers-color-scheme", Value: "light"}},
		})
		return err
	}))
}

// event is called for all that the browser tells, and must not wait.
func (t *tab) event(ev any) {
	if _, ok := ev.(*page.EventJavascriptDialogOpening); ok {
		// It would hold the page up. Ends with the browser at the latest.
		go func() {
			_, _ = chromedp.Call(t.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
		}()
		return
	}
	t.seen.event(ev)
}

// load opens the page and waits for what is waited for. The words say what went
// wrong; none: nothing did.
func (t *tab) load() string {
	err := t.within(t.wait, chromedp.Navigate(t.page.URL))
	var failed *chromedp.LoadError
	switch {
	case errors.As(err, &failed):
		return "the page could not be loaded: " + failed.ErrorText
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("the page was not loaded within %s", t.wait)
	case err != nil:
		return "the page could not be loaded: " + sentence(err)
	}
	words := ""
	if t.page.WaitFor != "" {
		err := t.within(t.wait, chromedp.WaitVisible(chromedp.CSS(t.page.WaitFor)))
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			words = fmt.Sprintf("nothing that %s selects was visible within %s", t.page.WaitFor, t.wait)
		case err != nil:
			words = fmt.Sprintf("%s could not be waited for: %s", t.page.WaitFor, sentence(err))
		}
	}
	t.seen.rest(t.ctx)
	return words
}

// still has fonts loaded and everything that moves at its end.
const still = `(async () => {
  await Promise.race([document.fonts.ready, new Promise(f => setTimeout(f, 3000))]);
  for (const a of document.getAnimations()) { try { a.finish() } catch { a.cancel() } }
  const s = document.createElement('style');
  s.textContent = '* { caret-color: transparent !important }';
  document.documentElement.append(s);
  await new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)));
  s.remove();
})()`

// picture draws the page. cut says that the page is higher than the picture.
func (t *tab) picture() (png []byte, cut bool, err error) {
	ctx, cancel := context.WithTimeout(t.ctx, lastSteps)
	defer cancel()
	// A page without scripts, or one whose own are in the way, is drawn as it is.
	quick, done := context.WithTimeout(ctx, lastSteps/4)
	_ = chromedp.Do(quick, chromedp.Evaluate[chromedp.Void](still, chromedp.EvalAwaitPromise))
	done()
	yes := true
	p := page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatPng, FromSurface: &yes}
	if t.page.FullPage {
		m, err := chromedp.Call(ctx, page.GetLayoutMetrics, cdp.Empty{})
		if err != nil {
			return nil, false, err
		}
		height := float64(t.page.Height)
		if m.CSSContentSize != nil {
			height = max(height, math.Ceil(m.CSSContentSize.Height))
		}
		if most := float64(min(wire.MaxShotHeight, wire.MaxShotPixels/t.page.Width)); height > most {
			height, cut = most, true
		}
		p.CaptureBeyondViewport = &yes
		p.Clip = &page.Viewport{Width: float64(t.page.Width), Height: height, Scale: 1}
	}
	got, err := chromedp.Call(ctx, page.CaptureScreenshot, p)
	return got.Data, cut, err
}

// where is the address and the title that the page has come to. One that does not
// answer cannot be drawn either.
func (t *tab) where() (final, title string, ok bool) {
	ctx, cancel := context.WithTimeout(t.ctx, lastSteps/4)
	defer cancel()
	final, err := chromedp.Run(ctx, chromedp.Location())
	if err == nil {
		title, err = chromedp.Run(ctx, chromedp.Title())
	}
	return text(final), text(title), err == nil
}

func sentence(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "it took too long"
	}
	return err.Error()
}

// Inside says whether this runs inside a sandbox of ours.
func Inside() bool {
	_, err := os.Stat("/run/inspect/init")
	return err == nil
}

// text is a text of the page's, bounded and on one line.
func text(s string) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "\uFFFD")), " ")
	if len(s) <= wire.MaxShotText {
		return s
	}
	s = s[:wire.MaxShotText-len("…")]
	return strings.ToValidUTF8(s, "") + "…"
}
