package dialog

import (
	"bytes"
	"io"
	"sync"
)

// lines cuts what is written to it into lines. One longer than maxLine is left
// out. It is not safe for concurrent writers.
type lines struct {
	line func([]byte) // without its end; only good during the call
	long func(n int)  // a line of n bytes was left out

	buf     []byte
	dropped int // bytes of the line that is left out
}

func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			l.keep(p)
			return n, nil
		}
		l.keep(p[:i])
		l.end()
		p = p[i+1:]
	}
}

func (l *lines) keep(p []byte) {
	if l.dropped > 0 || len(l.buf)+len(p) > maxLine {
		l.dropped += len(l.buf) + len(p)
		l.buf = nil
		return
	}
	l.buf = append(l.buf, p...)
}

// end ends the line that was begun.
func (l *lines) end() {
	if l.dropped > 0 {
		l.long(l.dropped)
		l.dropped = 0
		return
	}
	if len(l.buf) > 0 {
		l.line(bytes.TrimSpace(l.buf))
		l.buf = l.buf[:0]
	}
}

// feed is a program's standard input: what is added to it is read by whoever
// reads, adding never waits.
type feed struct {
	most  int // bytes that may wait to be read
	mu    sync.Mutex
	more  *sync.Cond
	buf   []byte
	ended bool
}

func newFeed(most int) *feed {
	f := &feed{most: most}
	f.more = sync.NewCond(&f.mu)
	return f
}

// False: too much waits already.
func (f *feed) add(p []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return true
	}
	if len(f.buf)+len(p) > f.most {
		return false
	}
	f.buf = append(f.buf, p...)
	f.more.Signal()
	return true
}

// end lets the reader come to an end after what was added.
func (f *feed) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	f.more.Broadcast()
}

func (f *feed) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.buf) == 0 && !f.ended {
		f.more.Wait()
	}
	if len(f.buf) == 0 {
		return 0, io.EOF
	}
	n := copy(p, f.buf)
	f.buf = f.buf[n:]
	return n, nil
}
