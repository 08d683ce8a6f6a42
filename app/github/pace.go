package github

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"inspect/envs/proc"
)

// What GitHub asks for, and how we keep within it.
const (
	maxConcurrent = 20               // GitHub: ≤ 100 at once, for all that use the App
	maxPerHour    = 450              // GitHub: 500 content-creating requests an hour
	firstSilence  = time.Minute      // GitHub: at least a minute when it does not say how long
	maxSilence    = 15 * time.Minute // growth of that silence ends here
	farthest      = 90 * time.Minute // no answer makes us wait longer than that
	writeSpacing  = 1 * time.Second  // GitHub: at least a second between writes
	window        = 60 * time.Minute // of maxPerHour
	maxPoints     = 800              // GitHub: 900 a minute, a read is one and a write five
	writePoints   = 5
	pointsWindow  = 60 * time.Second // of maxPoints
	spreadOf      = 0.1              // of a wait is added at most, so that not everybody comes back at once
	maxSpread     = 30 * time.Second
	oneMoment     = 1 * time.Second // least wait when told to wait
)

// pace is the budget of one installation. Reads share a number of slots;
// writes go one after another with a pause between them; nothing goes while
// GitHub has asked for silence.
type pace struct {
	clock   proc.Clock
	spacing time.Duration
	rand    func() float64 // in [0,1)
	slots   chan struct{}
	series  chan struct{}

	mu      sync.Mutex
	until   time.Time   // silence
	strikes int         // silences in a row whose length GitHub did not say
	last    time.Time   // end of the last write
	writes  []time.Time // of the last hour
	points  []spent     // of the last minute
	sum     int         // of points
}

type spent struct {
	at     time.Time
	points int
}

func newPace(clock proc.Clock, spacing time.Duration, rand func() float64) *pace {
	return &pace{
		clock: clock, spacing: spacing, rand: rand,
		slots:  make(chan struct{}, maxConcurrent),
		series: make(chan struct{}, 1),
	}
}

// enter waits until a request may be sent; leave must be called when its
// answer is read. The error is *RateLimited or the context's.
func (p *pace) enter(ctx context.Context, write bool) (leave func(), err error) {
	if err := p.silent(); err != nil {
		return nil, err
	}
	lane := p.slots
	if write {
		lane = p.series
	}
	select {
	case lane <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if write {
		err = p.space(ctx)
	}
	if err == nil {
		err = p.spend(ctx, write)
	}
	if err != nil {
		<-lane
		return nil, err
	}
	if err := p.silent(); err != nil { // it may have begun while we waited
		<-lane
		return nil, err
	}
	return func() {
		if write {
			p.mu.Lock()
			p.last = p.clock.Now()
			p.writes = append(p.writes, p.last)
			p.mu.Unlock()
		}
		<-lane
	}, nil
}

func (p *pace) silent() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clock.Now().Before(p.until) {
		return &RateLimited{Until: p.until}
	}
	return nil
}

// space waits for the pause between two writes and keeps the hourly budget.
func (p *pace) space(ctx context.Context) error {
	p.mu.Lock()
	now := p.clock.Now()
	for len(p.writes) > 0 && now.Sub(p.writes[0]) >= window {
		p.writes = p.writes[1:]
	}
	if len(p.writes) >= maxPerHour {
		until := p.writes[0].Add(window)
		p.mu.Unlock()
		return &RateLimited{Until: until}
	}
	wait := time.Duration(0)
	if !p.last.IsZero() && p.spacing > 0 {
		wait = p.spacing - now.Sub(p.last)
	}
	p.mu.Unlock()
	if wait <= 0 {
		return nil
	}
	return proc.Sleep(ctx, p.clock, wait)
}

// spend takes a request's points from the minute's budget, and waits for them
// if they are spent.
func (p *pace) spend(ctx context.Context, write bool) error {
	cost := 1
	if write {
		cost = writePoints
	}
	for {
		p.mu.Lock()
		now := p.clock.Now()
		for len(p.points) > 0 && now.Sub(p.points[0].at) >= pointsWindow {
			p.sum -= p.points[0].points
			p.points = p.points[1:]
		}
		if p.sum+cost <= maxPoints {
			p.points = append(p.points, spent{now, cost})
			p.sum += cost
			p.mu.Unlock()
			return nil
		}
		wait := pointsWindow - now.Sub(p.points[0].at)
		p.mu.Unlock()
		if err := proc.Sleep(ctx, p.clock, wait); err != nil {
			return err
		}
	}
}

// note learns from an answer. It returns the limit if the answer was one.
// 403 and 429 both may be; the order of the signs is GitHub's: Retry-After,
// then x-ratelimit-reset when nothing remains, then at least a minute.
func (p *pace) note(a *answer) *RateLimited {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	spent := a.header.Get("X-RateLimit-Remaining") == "0"
	reset, hasReset := epoch(a.header.Get("X-RateLimit-Reset"))
	if !limited(a, spent) {
		if a.status < 400 { // 304 too: it is free, and says how the budget stands
			p.strikes = 0
			if spent && hasReset && reset.After(now) {
				p.silence(now, reset)
			}
		}
		return nil
	}
	after, hasAfter := retryAfter(a.header.Get("Retry-After"), now)
	switch {
	case hasAfter:
		p.silence(now, after)
	case spent && hasReset:
		p.silence(now, reset)
	default:
		d := firstSilence << min(p.strikes, 8)
		p.strikes++
		p.silence(now, now.Add(min(d, maxSilence)))
	}
	return &RateLimited{Until: p.until}
}

func (p *pace) silence(now, until time.Time) {
	if least := now.Add(oneMoment); until.Before(least) {
		until = least
	}
	if most := now.Add(farthest); until.After(most) {
		until = most
	}
	until = until.Add(min(time.Duration(p.rand()*spreadOf*float64(until.Sub(now))), maxSpread))
	if until.After(p.until) {
		p.until = until
	}
}

func limited(a *answer, spent bool) bool {
	switch a.status {
	case http.StatusTooManyRequests:
		return true
	case http.StatusForbidden:
		return spent || a.header.Get("Retry-After") != "" || saysLimit(a.body)
	}
	return false
}

func saysLimit(body []byte) bool {
	b := bytes.ToLower(body)
	for _, s := range []string{"rate limit", "rate-limit", "abuse detection", "#abuse-rate-limits"} {
		if bytes.Contains(b, []byte(s)) {
			return true
		}
	}
	return false
}

func epoch(s string) (time.Time, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 {
		return time.Time{}, false
	}
	return time.Unix(n, 0), true
}

// retryAfter reads seconds or an HTTP date.
func retryAfter(s string, now time.Time) (time.Time, bool) {
	if s == "" {
		return time.Time{}, false
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && n >= 0 {
		return now.Add(time.Duration(min(n, int64(farthest/time.Second))) * time.Second), true
	}
	if t, err := http.ParseTime(s); err == nil {
		return t, true
	}
	return time.Time{}, false
}
