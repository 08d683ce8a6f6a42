package web

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"

	"inspect/envs/wire"
)

// many inserts events of a session, after those that are there.
func (s *site) many(session string, from, n int) {
	s.t.Helper()
	s.sql(`INSERT INTO events (session_id, seq, generation, kind, data, at, hash) SELECT $1, i, 1, 'tool', $4::jsonb, $5, '' FROM generate_series($2::int, $2::int + $3::int - 1) i`,
		session, from, n, s.json(wire.Tool{Name: "bash", Title: "go test ./...", Command: "go test ./...", Output: "ok\n"}), s.clock.Now())
	s.sql(`UPDATE sessions SET events_count = $2 WHERE id = $1`, session, from+n-1)
}

// loads is how long pages took to load, as the browser says, the least of a few.
func (c *chrome) loads(path string) time.Duration {
	c.t.Helper()
	least := time.Hour
	for range 5 {
		c.open(path)
		ms := ask[float64](c, `performance.getEntriesByType("navigation")[0].duration`)
		least = min(least, time.Duration(ms*float64(time.Millisecond)))
	}
	return least
}

// A page shows so many events, however many there are: its size is bounded, and so
// is what it takes to open it, compared with the smallest page there is.
func TestPageOfManyEvents(t *testing.T) {
	s := newSite(t)
	s.session("few", "few")
	s.many("few", 1, 10)
	s.session("many", "many")
	s.many("many", 1, 20_000)
	s.sql(`ANALYZE events`)
	c := newChrome(t, s)
	c.operator()
	c.look(1280, 900, "light", true)
	nothing, few, many := c.loads("/sessions/none"), c.loads("/sessions/few?still"), c.loads("/sessions/many?still")
	nodes := ask[int](c, `document.querySelectorAll("*").length`)
	t.Logf("an empty page %s, 10 events %s, 20,000 events %s with %d elements (%.1f times)", nothing, few, many, nodes, float64(many)/float64(nothing))
	if shown := ask[int](c, `document.querySelectorAll("#events > li").length`); shown != eventsOnPage || nodes > 2000 {
		t.Errorf("%d events and %d elements are on the page", shown, nodes)
	}
	if many > 40*nothing {
		t.Errorf("20,000 events take %s to open, an empty page %s", many, nothing)
	}
	// All of them can be reached from it.
	c.do(chromedp.Click(chromedp.CSS(`a[href*="before="]`)))
	c.do(chromedp.WaitVisible(chromedp.CSS(fmt.Sprintf(`#events > li[value="%d"]`, 20_000-eventsOnPage))))
}

// busy is how long the page's thread has computed so far, whatever else the machine
// does, and how much of that was spent on style and layout.
func (c *chrome) busy() (all, layout time.Duration) {
	c.t.Helper()
	r, err := chromedp.Call(c.ctx, performance.GetMetrics, cdp.Empty{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, m := range r.Metrics {
		d := time.Duration(m.Value * float64(time.Second))
		switch m.Name {
		case "TaskDuration":
			all = d
		case "LayoutDuration", "RecalcStyleDuration":
			layout += d
		}
	}
	return all, layout
}

// A page that follows a session keeps up with more events than a runner may send,
// and does not grow.
func TestPageKeepsUp(t *testing.T) {
	const before, each, rounds = 100, 1000, 10
	s := newSite(t)
	s.session("open", "open")
	s.sql(`UPDATE sessions SET state = 'working', started_at = $1 WHERE id = 'open'`, s.clock.Now())
	s.many("open", 1, before)
	c := newChrome(t, s)
	c.operator()
	c.look(1280, 900, "light", true)
	c.open("/sessions/open")
	last := func() int { return ask[int](c, `+document.querySelector("#events > li:last-child").value`) }
	if _, err := chromedp.Call(c.ctx, performance.Enable, performance.EnableParams{TimeDomain: performance.EnableTimeDomainThreadTicks}); err != nil {
		t.Fatal(err)
	}
	var worst time.Duration
	wasBusy, wasLayout := c.busy()
	begun := time.Now()
	for i := range rounds {
		s.many("open", before+1+i*each, each)
		told := time.Now()
		for want := before + (i+1)*each; last() < want; {
			if time.Since(told) > 30*time.Second {
				t.Fatalf("the page shows event %d after 30 s, not %d", last(), want)
			}
			s.clock.Advance(liveLook) // the stream looks again; the browser does the rest in its own time
		}
		worst = max(worst, time.Since(told))
	}
	took := time.Since(begun)
	busy, layout := c.busy()
	busy, layout = (busy-wasBusy)/(rounds*each), (layout-wasLayout)/(rounds*each)
	nodes, kept := ask[int](c, `document.querySelectorAll("*").length`), ask[int](c, `document.querySelectorAll("#events > li").length`)
	t.Logf("%d events in %s, %.0f a second; at most %s behind; the page computes %s for each, of which %s layout; %d elements", each*rounds, took, each*rounds/took.Seconds(), worst, busy, layout, nodes)
	if busy > time.Second/1000/2 { // with a thousand in a second
		t.Errorf("the page computes %s for each event", busy)
	}
	if kept > liveKept || nodes > 8*liveKept {
		t.Errorf("the page has %d events and %d elements", kept, nodes)
	}
	if gap := ask[int](c, `[...document.querySelectorAll("#events > li")].filter((e, i, all) => i && +e.value !== +all[i - 1].value + 1).length`); gap != 0 {
		t.Errorf("%d gaps in what it shows", gap)
	}
}
