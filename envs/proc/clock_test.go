package proc

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestFakeClock(t *testing.T) {
	f := NewFake(t0)
	at := f.After(time.Minute)
	tick := f.NewTicker(10 * time.Second)
	if f.Waiting() != 2 {
		t.Fatalf("%d timers wait, want 2", f.Waiting())
	}
	f.Advance(59 * time.Second)
	select {
	case <-at:
		t.Fatal("fired a second early")
	case <-tick.C():
	}
	select {
	case <-tick.C():
		t.Fatal("a ticker queued more than one tick")
	default:
	}
	f.Advance(time.Second)
	if got := <-at; !got.Equal(t0.Add(time.Minute)) {
		t.Errorf("fired at %v", got)
	}
	<-tick.C()
	tick.Stop()
	if f.Waiting() != 0 {
		t.Errorf("%d timers wait after all ended", f.Waiting())
	}
	<-f.After(0)
}

func TestSleepAndTimeout(t *testing.T) {
	f := NewFake(t0)
	ctx, cancel := WithTimeout(t.Context(), f, time.Minute)
	defer cancel()
	slept := make(chan error, 1)
	go func() { slept <- Sleep(ctx, f, time.Hour) }()
	if err := f.BlockUntil(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	f.Advance(time.Minute)
	if err := <-slept; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("sleep ended with %v, want the deadline", err)
	}
}

func TestBlockUntilGivesUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := NewFake(t0).BlockUntil(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestRetry(t *testing.T) {
	boom := errors.New("boom")
	half := func() float64 { return 0.5 } // no spread

	// run retries fn on a clock whose pauses take no time.
	run := func(t *testing.T, p Policy, fn func(n int) error) error {
		t.Helper()
		n := 0
		p.Rand = half
		return Retry(t.Context(), recording{NewFake(t0), new([]time.Duration)}, p,
			func(context.Context) error { n++; return fn(n) })
	}

	t.Run("doubles up to the most", func(t *testing.T) {
		var pauses []time.Duration
		f := NewFake(t0)
		n := 0
		err := Retry(t.Context(), recording{f, &pauses}, Policy{First: time.Second, Max: 3 * time.Second, Rand: half},
			func(context.Context) error {
				if n++; n <= 4 {
					return boom
				}
				return nil
			})
		want := []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 3 * time.Second}
		if err != nil || len(pauses) != len(want) {
			t.Fatalf("pauses %v, error %v", pauses, err)
		}
		for i := range want {
			if pauses[i] != want[i] {
				t.Errorf("pauses %v, want %v", pauses, want)
			}
		}
	})
	t.Run("attempts", func(t *testing.T) {
		err := run(t, Policy{Attempts: 3}, func(int) error { return boom })
		if !errors.Is(err, boom) || !strings.Contains(err.Error(), "after 3 tries") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("permanent", func(t *testing.T) {
		calls := 0
		err := run(t, Policy{}, func(n int) error { calls = n; return Permanent(boom) })
		if err != boom || calls != 1 {
			t.Errorf("got %v after %d calls", err, calls)
		}
	})
	t.Run("later wins over the most", func(t *testing.T) {
		var pauses []time.Duration
		n := 0
		_ = Retry(t.Context(), recording{NewFake(t0), &pauses}, Policy{Max: time.Second, Rand: half},
			func(context.Context) error {
				if n++; n == 1 {
					return Later(boom, time.Hour)
				}
				return nil
			})
		if len(pauses) != 1 || pauses[0] != time.Hour {
			t.Errorf("pauses %v, want one hour", pauses)
		}
	})
	t.Run("total", func(t *testing.T) {
		err := run(t, Policy{First: time.Second, Total: 10 * time.Second}, func(int) error { return boom })
		if !errors.Is(err, boom) || !strings.Contains(err.Error(), "after 4 tries in 7s") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		err := Retry(ctx, NewFake(t0), Policy{}, func(context.Context) error { cancel(); return boom })
		if !errors.Is(err, context.Canceled) || !errors.Is(err, boom) {
			t.Errorf("got %v, want both errors", err)
		}
	})
}

// recording is a fake clock whose timers fire at once and move it.
type recording struct {
	*Fake
	pauses *[]time.Duration
}

func (r recording) After(d time.Duration) <-chan time.Time {
	*r.pauses = append(*r.pauses, d)
	r.Advance(d)
	return r.Fake.After(0)
}
