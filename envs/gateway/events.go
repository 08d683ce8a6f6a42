package gateway

import "bytes"

// maxEvent bounds one event of a stream, in bytes. The largest is the last one
// of responses, which repeats the whole answer.
const maxEvent = 16 << 20

// splitter cuts a stream of server-sent events, as it comes, into whole events:
// lines up to and with an empty one, ended by \n, \r\n or \r.
type splitter struct {
	buf    []byte
	from   int  // begin of the event in buf
	at     int  // next byte to look at
	filled bool // the line at hand is not empty
}

// add takes the next bytes of the stream.
func (s *splitter) add(b []byte) {
	if s.from > 0 {
		n := copy(s.buf, s.buf[s.from:])
		s.buf = s.buf[:n]
		s.at -= s.from
		s.from = 0
	}
	s.buf = append(s.buf, b...)
}

// next returns the next whole event with its empty line. It is valid until the
// next call of add.
func (s *splitter) next() ([]byte, bool) {
	for s.at < len(s.buf) {
		c := s.buf[s.at]
		if c != '\n' && c != '\r' {
			s.filled = true
			s.at++
			continue
		}
		end := s.at + 1
		if c == '\r' {
			if end == len(s.buf) {
				return nil, false // a \n may follow
			}
			if s.buf[end] == '\n' {
				end++
			}
		}
		s.at = end
		if s.filled {
			s.filled = false
			continue
		}
		ev := s.buf[s.from:end]
		s.from = end
		return ev, true
	}
	return nil, false
}

// rest is what no empty line has ended yet.
func (s *splitter) rest() []byte { return s.buf[s.from:] }

// dataOf is the data of an event, its lines put together.
func dataOf(ev []byte) []byte {
	var data []byte
	lines := 0
	for len(ev) > 0 {
		end := bytes.IndexAny(ev, "\r\n")
		line := ev
		if end >= 0 {
			line, ev = ev[:end], ev[end+1:]
		} else {
			ev = nil
		}
		value, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue
		}
		value = bytes.TrimPrefix(value, []byte(" "))
		if lines++; lines == 1 {
			data = value
			continue
		}
		if lines == 2 {
			data = bytes.Clone(data) // once: an event may have millions of lines
		}
		data = append(append(data, '\n'), value...)
	}
	return data
}
