package proc

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Clock is where time comes from. Code that waits or stamps takes one, so that
// a test can move it. Implementations are safe for concurrent use.
type Clock interface {
	// Now is the current time.
	Now() time.Time
	// After sends the time once, d from now; at once if d ≤ 0.
	After(d time.Duration) <-chan time.Time
	// NewTicker ticks every d until stopped; a slow reader loses ticks. It
	// panics if d ≤ 0, as the standard one does.
	NewTicker(d time.Duration) Ticker
}

// Ticker is a repeating timer of a Clock.
type Ticker interface {
	C() <-chan time.Time
	Stop()
}

// System is the machine's clock.
func System() Clock { return systemClock{} }

type systemClock struct{}

func (systemClock) Now() time.Time                         { return time.Now() }
func (systemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }
func (systemClock) NewTicker(d time.Duration) Ticker       { return systemTicker{time.NewTicker(d)} }

type systemTicker struct{ t *time.Ticker }

func (t systemTicker) C() <-chan time.Time { return t.t.C }
func (t systemTicker) Stop()               { t.t.Stop() }

// Sleep waits d on clock, or returns the context's cause if that ends first.
func Sleep(ctx context.Context, clock Clock, d time.Duration) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	select {
	case <-clock.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// WithTimeout is context.WithTimeout on a Clock: the context ends d from now
// with context.DeadlineExceeded as its cause. The cancel function must be
// called; it waits for the timer's goroutine.
func WithTimeout(ctx context.Context, clock Clock, d time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	timer := clock.After(d)
	go func() {
		defer close(done)
		select {
		case <-timer:
			cancel(context.DeadlineExceeded)
		case <-out.Done():
		}
	}()
	return out, func() {
		cancel(context.Canceled)
		<-done
	}
}

// Fake is a clock that stands still until a test moves it.
type Fake struct {
	mu      sync.Mutex
	now     time.Time
	waiting []*fakeTimer
	changed chan struct{} // closed and replaced whenever waiting grows
}

type fakeTimer struct {
	at    time.Time
	every time.Duration // 0 for After
	c     chan time.Time
}

// NewFake returns a clock that shows t0.
func NewFake(t0 time.Time) *Fake {
	return &Fake{now: t0, changed: make(chan struct{})}
}

// Now is the time the test has set.
func (f *Fake) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// After fires when the test has moved the clock by d.
func (f *Fake) After(d time.Duration) <-chan time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &fakeTimer{at: f.now.Add(d), c: make(chan time.Time, 1)}
	if d <= 0 {
		t.c <- f.now
		return t.c
	}
	f.add(t)
	return t.c
}

// NewTicker ticks once for each Advance that passes one or more of its times.
func (f *Fake) NewTicker(d time.Duration) Ticker {
	if d <= 0 {
		panic("proc: ticker with an interval that is not positive")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &fakeTimer{at: f.now.Add(d), every: d, c: make(chan time.Time, 1)}
	f.add(t)
	return &fakeTicker{f: f, t: t}
}

func (f *Fake) add(t *fakeTimer) {
	f.waiting = append(f.waiting, t)
	close(f.changed)
	f.changed = make(chan struct{})
}

type fakeTicker struct {
	f *Fake
	t *fakeTimer
}

func (t *fakeTicker) C() <-chan time.Time { return t.t.c }

func (t *fakeTicker) Stop() {
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	for i, w := range t.f.waiting {
		if w == t.t {
			t.f.waiting = append(t.f.waiting[:i], t.f.waiting[i+1:]...)
			return
		}
	}
}

// Advance moves the clock by d and fires what falls due.
func (f *Fake) Advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set(f.now.Add(d))
}

// Set moves the clock to t, which may lie in the past.
func (f *Fake) Set(t time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set(t)
}

func (f *Fake) set(t time.Time) {
	f.now = t
	var keep []*fakeTimer
	for _, w := range f.waiting {
		if w.at.After(t) {
			keep = append(keep, w)
			continue
		}
		select {
		case w.c <- t:
		default: // a slow reader loses ticks
		}
		if w.every > 0 {
			for !w.at.After(t) {
				w.at = w.at.Add(w.every)
			}
			keep = append(keep, w)
		}
	}
	f.waiting = keep
}

// Waiting is how many timers and tickers are pending.
func (f *Fake) Waiting() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.waiting)
}

// BlockUntil returns when at least n timers and tickers are pending: the way
// for a test to know that the code under test has begun to wait. The error is
// the context's.
func (f *Fake) BlockUntil(ctx context.Context, n int) error {
	for {
		f.mu.Lock()
		have, changed := len(f.waiting), f.changed
		f.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.Join(errors.New("the code under test did not begin to wait"), context.Cause(ctx))
		}
	}
}
