package proc

import "io"

// Head is a writer that keeps the first N bytes and drops the rest without an
// error. It is not safe for concurrent writers.
type Head struct {
	N   int64
	buf []byte
	cut bool
}

func (h *Head) Write(p []byte) (int, error) {
	room := h.N - int64(len(h.buf))
	if int64(len(p)) > room {
		h.cut = true
		h.buf = append(h.buf, p[:room]...)
	} else {
		h.buf = append(h.buf, p...)
	}
	return len(p), nil
}

// Bytes returns what was kept.
func (h *Head) Bytes() []byte { return h.buf }

// Cut reports whether something was dropped.
func (h *Head) Cut() bool { return h.cut }

// Tail is a writer that keeps the last N bytes and drops the rest without an
// error. It is not safe for concurrent writers.
type Tail struct {
	N   int64
	buf []byte
	cut bool
}

func (t *Tail) Write(p []byte) (int, error) {
	n := len(p)
	if int64(len(p)) > t.N {
		t.cut = true
		p = p[int64(len(p))-t.N:]
		t.buf = t.buf[:0]
	}
	t.buf = append(t.buf, p...)
	if over := int64(len(t.buf)) - t.N; over > t.N { // compact seldom: at twice the size
		t.cut = true
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return n, nil
}

// Bytes returns what was kept.
func (t *Tail) Bytes() []byte {
	if over := int64(len(t.buf)) - t.N; over > 0 {
		return t.buf[over:]
	}
	return t.buf
}

// Cut reports whether something was dropped.
func (t *Tail) Cut() bool { return t.cut || int64(len(t.buf)) > t.N }

// passing hands on the first left bytes and drops the rest.
type passing struct {
	w    io.Writer
	left int64
	cut  bool
}

func (p *passing) Write(b []byte) (int, error) {
	n := len(b)
	if int64(n) > p.left {
		p.cut = true
		b = b[:p.left]
	}
	p.left -= int64(len(b))
	if len(b) > 0 {
		if _, err := p.w.Write(b); err != nil {
			return 0, err
		}
	}
	return n, nil
}
