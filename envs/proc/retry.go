package proc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Policy is how often and how long something is tried again.
type Policy struct {
	// Attempts is the most tries in all; 0 means until the context or Total
	// ends.
	Attempts int
	// First is the pause after the first failure (0: 100 ms); it doubles each
	// time up to Max (0: 30 s).
	First, Max time.Duration
	// Total ends the tries once this much time has passed since the first
	// one began; 0 means no bound.
	Total time.Duration
	// Rand gives numbers in [0,1) that spread each pause over ±20 %; nil is
	// the process's own generator.
	Rand func() float64
}

type permanent struct{ err error }

func (p *permanent) Error() string { return p.err.Error() }
func (p *permanent) Unwrap() error { return p.err }

// Permanent marks an error that no repetition will cure; Retry returns the
// error itself at once. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanent{err}
}

type later struct {
	err error
	d   time.Duration
}

func (l *later) Error() string { return l.err.Error() }
func (l *later) Unwrap() error { return l.err }

// Later marks an error whose source said when to come back: the next pause is
// at least d, whatever the policy's Max.
func Later(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &later{err, d}
}

// Retry calls fn until it returns nil or a Permanent error, the policy is used
// up, or ctx ends. The error is fn's last one; if the context ended, it wraps
// the context's cause as well.
func Retry(ctx context.Context, clock Clock, p Policy, fn func(context.Context) error) error {
	if p.First <= 0 {
		p.First = 100 * time.Millisecond
	}
	if p.Max <= 0 {
		p.Max = 30 * time.Second
	}
	spread := p.Rand
	if spread == nil {
		spread = rand.Float64
	}
	begun := clock.Now()
	pause := min(p.First, p.Max)
	for n := 1; ; n++ {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		err := fn(ctx)
		if err == nil {
			return nil
		}
		var perm *permanent
		if errors.As(err, &perm) {
			return perm.err
		}
		if p.Attempts > 0 && n >= p.Attempts {
			return fmt.Errorf("after %d tries: %w", n, err)
		}
		wait := time.Duration(float64(pause) * (0.8 + 0.4*spread()))
		var l *later
		if errors.As(err, &l) && l.d > wait {
			wait = l.d
		}
		if p.Total > 0 && clock.Now().Add(wait).Sub(begun) > p.Total {
			return fmt.Errorf("after %d tries in %s: %w", n, clock.Now().Sub(begun).Round(time.Millisecond), err)
		}
		if cause := Sleep(ctx, clock, wait); cause != nil {
			return fmt.Errorf("%w (last try: %w)", cause, err)
		}
		pause = min(pause*2, p.Max)
	}
}
