package scheduler

import (
	"context"
	"sync"
	"time"
)

// wakes lets long polls of this process notice at once what was written for
// them here. What another process wrote they find at their next look.
type wakes struct {
	mu sync.Mutex
	ch map[string]chan struct{}
}

// pollEvery is how often a long poll looks by itself.
const pollEvery = time.Second

// longPoll bounds a long poll, below the patience of clients and proxies.
const longPoll = 25 * time.Second

// on returns a channel that is closed at the next wake of key.
func (w *wakes) on(key string) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, ok := w.ch[key]
	if !ok {
		if w.ch == nil {
			w.ch = map[string]chan struct{}{}
		}
		c = make(chan struct{})
		w.ch[key] = c
	}
	return c
}

func (w *wakes) wake(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c, ok := w.ch[key]; ok {
		close(c)
		delete(w.ch, key)
	}
}

// poll calls look until it says that it found something, fails, or longPoll
// has passed; then it returns nil.
func (s *Scheduler) poll(ctx context.Context, key string, look func(context.Context) (found bool, err error)) error {
	deadline := s.clock.Now().Add(longPoll)
	for {
		woken := s.wakes.on(key)
		found, err := look(ctx)
		if err != nil || found {
			return err
		}
		left := deadline.Sub(s.clock.Now())
		if left <= 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-woken:
		case <-s.clock.After(min(left, pollEvery)):
		}
	}
}
