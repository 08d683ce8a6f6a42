package enginetest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// patience is how long anything may take.
const patience = 90 * time.Second

// Listener hears of every runner that an engine starts.
type Listener struct {
	path string

	mu      sync.Mutex
	started map[string][]*Process
	changed chan struct{} // closed and replaced when one has started
}

// Process is a runner that lives or lived.
type Process struct {
	Said Said
	// Ended is closed once the process is over: the kernel closes its end.
	Ended chan struct{}

	conn    net.Conn
	replies chan string
}

// Listen begins to listen. The listener ends with the test, and runners with it
// that are still there.
func Listen(t *testing.T) *Listener {
	t.Helper()
	l := &Listener{path: filepath.Join(t.TempDir(), "tell"), started: map[string][]*Process{}, changed: make(chan struct{})}
	socket, err := net.Listen("unix", l.path)
	if err != nil {
		t.Fatal(err)
	}
	var readers sync.WaitGroup
	readers.Go(func() {
		for {
			c, err := socket.Accept()
			if err != nil {
				return
			}
			readers.Go(func() { l.hear(c) })
		}
	})
	t.Cleanup(func() {
		_ = socket.Close()
		l.mu.Lock()
		for _, all := range l.started {
			for _, p := range all {
				_ = p.conn.Close()
			}
		}
		l.mu.Unlock()
		readers.Wait()
	})
	return l
}

// Args are the arguments that make a runner tell this listener.
func (l *Listener) Args() []string { return []string{"--tell", l.path} }

func (l *Listener) hear(c net.Conn) {
	defer c.Close()
	lines := bufio.NewScanner(c)
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() {
		return
	}
	p := &Process{Ended: make(chan struct{}), conn: c, replies: make(chan string, 1)}
	defer close(p.Ended)
	if json.Unmarshal(lines.Bytes(), &p.Said) != nil {
		return
	}
	l.mu.Lock()
	key := keyOf(p.Said.Session, p.Said.Generation)
	l.started[key] = append(l.started[key], p)
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	for lines.Scan() {
		p.replies <- lines.Text()
	}
}

func keyOf(session string, generation int) string { return fmt.Sprintf("%s/%d", session, generation) }

// Wait waits for the first process of an attempt.
func (l *Listener) Wait(t *testing.T, session string, generation int) *Process {
	t.Helper()
	deadline := time.After(patience)
	for {
		l.mu.Lock()
		all, changed := l.started[keyOf(session, generation)], l.changed
		l.mu.Unlock()
		if len(all) > 0 {
			return all[0]
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("attempt %d of session %s did not start in %s", generation, session, patience)
		}
	}
}

// Count says how many processes an attempt has had.
func (l *Listener) Count(session string, generation int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.started[keyOf(session, generation)])
}

// Tell orders a process to do something ("exit 3", "say TEXT"), and for what does
// not end it waits until it is done.
func (p *Process) Tell(t *testing.T, order string) {
	t.Helper()
	if _, err := fmt.Fprintln(p.conn, order); err != nil {
		t.Fatalf("telling a runner to %s: %v", order, err)
	}
	select {
	case <-p.replies:
	case <-p.Ended:
	case <-time.After(patience):
		t.Fatalf("a runner did not %s in %s", order, patience)
	}
}

// WaitEnd waits for its end.
func (p *Process) WaitEnd(t *testing.T) {
	t.Helper()
	select {
	case <-p.Ended:
	case <-time.After(patience):
		t.Fatalf("process %d of session %s lives on", p.Said.PID, p.Said.Session)
	}
}
