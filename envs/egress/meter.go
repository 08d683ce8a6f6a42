package egress

import (
	"errors"
	"fmt"
	"net"
	"sync"
)

// Meter counts what goes through one or more proxies, in both directions
// together, and lets no byte through beyond its limit.
type Meter struct {
	limit int64 // 0: none
	full  chan struct{}

	mu             sync.Mutex
	sent, received int64
	told           bool
}

// NewMeter returns a Meter with a limit in bytes; 0 means no limit.
func NewMeter(limit int64) *Meter { return &Meter{limit: limit, full: make(chan struct{})} }

// Used is how many bytes went out and came in so far.
func (m *Meter) Used() (sent, received int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sent, m.received
}

// Full says whether the limit is reached.
func (m *Meter) Full() bool {
	select {
	case <-m.full:
		return true
	default:
		return false
	}
}

// take counts n bytes at to, or as many of them as are left.
func (m *Meter) take(n int, to *int64) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.limit > 0 {
		left := m.limit - m.sent - m.received
		n = int(min(int64(n), left))
		if left <= int64(n) && !m.Full() {
			close(m.full)
		}
	}
	*to += int64(n)
	return n
}

// first is true once.
func (m *Meter) first() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.told
	m.told = true
	return !was
}

// reason is why nothing goes through any more.
func (m *Meter) reason() string {
	return fmt.Sprintf("the limit of %d MiB for what goes through the proxy is reached (limits: egress in .inspect.yml)", m.limit>>20)
}

var errFull = errors.New("the limit of bytes through the proxy is reached")

// metered is a connection to the outside.
type metered struct {
	net.Conn
	life *life
}

func (c *metered) Read(b []byte) (int, error) {
	if c.life.meter.Full() {
		return 0, errFull
	}
	n, err := c.Conn.Read(b)
	if got := c.life.meter.take(n, &c.life.meter.received); got < n {
		return got, errFull
	}
	return n, err
}

func (c *metered) Write(b []byte) (int, error) {
	if c.life.meter.Full() {
		return 0, errFull
	}
	may := c.life.meter.take(len(b), &c.life.meter.sent)
	n, err := c.Conn.Write(b[:may])
	if err == nil && n < len(b) {
		err = errFull
	}
	return n, err
}

func (c *metered) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return c.Close()
}

func (c *metered) Close() error {
	c.life.drop(c)
	return c.Conn.Close()
}
