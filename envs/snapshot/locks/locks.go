// Package locks holds what every snapshot store needs, and the node daemon too:
// calls for one id run one after the other, and a store belongs to one process
// at a time.
package locks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/snapshot"
)

// Keyed makes calls for one key run one after the other. The zero value is
// ready for use.
type Keyed struct {
	mu    sync.Mutex
	locks map[string]*lock
}

type lock struct {
	held chan struct{} // capacity 1
	uses int
}

// Lock waits for the key's turn or the context's end, whose cause is the error.
func (k *Keyed) Lock(ctx context.Context, key string) (unlock func(), err error) {
	l := k.use(key)
	if ctx.Err() != nil {
		k.leave(key, l)
		return nil, context.Cause(ctx)
	}
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; k.leave(key, l) }, nil
	case <-ctx.Done():
		k.leave(key, l)
		return nil, context.Cause(ctx)
	}
}

// Try is Lock that does not wait: ok is false if the key is locked.
func (k *Keyed) Try(key string) (unlock func(), ok bool) {
	l := k.use(key)
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; k.leave(key, l) }, true
	default:
		k.leave(key, l)
		return nil, false
	}
}

func (k *Keyed) use(key string) *lock {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.locks[key]
	if l == nil {
		l = &lock{held: make(chan struct{}, 1)}
		if k.locks == nil {
			k.locks = map[string]*lock{}
		}
		k.locks[key] = l
	}
	l.uses++
	return l
}

func (k *Keyed) leave(key string, l *lock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.uses--; l.uses == 0 {
		delete(k.locks, key)
	}
}

// A process that was killed may have left a child that was not a program of its
// own yet: until it is, it has the lock, too.
const (
	filePatience = 10 * time.Second
	fileLook     = 50 * time.Millisecond
)

// File takes the lock file at path, making it if needed, until it is closed. An
// error that wraps snapshot.ErrBusy: another process has it, and kept it for ten
// seconds.
func File(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for until := time.Now().Add(filePatience); ; time.Sleep(fileLook) {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(until) {
			break
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("another process has the store open: %w", snapshot.ErrBusy)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
