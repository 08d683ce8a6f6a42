package stream

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Version is the version of the frames; init says it in its Hello.
const Version = 1

// Bounds of the protocol, in bytes where not said otherwise.
const (
	Window     = 256 << 10 // unacknowledged data of one stream of one command
	MaxData    = 32 << 10  // data in one frame
	MaxStart   = 1 << 20   // a Start frame: argument vector and environment
	MaxWords   = 4 << 10   // text of a Failed frame
	MaxRunning = 256       // commands at once
)

// Type tells what a frame is.
type Type byte

// Frames to the init.
const (
	TypeStart    Type = 1 // payload: Start as JSON
	TypeStdin    Type = 2 // payload: data
	TypeStdinEnd Type = 3 // no payload
	TypeSignal   Type = 4 // payload: one byte, the signal's number; goes to the command's group
	TypeCredit   Type = 5 // payload: one byte stream (1, 2), uint32 bytes consumed
	TypeDiscard  Type = 6 // no payload; nobody reads the output any more, drop it
	TypeResize   Type = 7 // payload: uint16 rows, uint16 columns of the command's terminal
)

// Frames from the init.
const (
	TypeHello       Type = 64 // first frame, id 0; payload: Hello as JSON
	TypeStdout      Type = 65 // payload: data
	TypeStderr      Type = 66 // payload: data
	TypeStdinCredit Type = 67 // payload: uint32 bytes consumed
	TypeStdinGone   Type = 68 // the command reads no more input
	TypeFailed      Type = 69 // the command could not be started; payload: words
	TypeExit        Type = 70 // payload: Exited as JSON; the last frame of its id
)

// Frame is one message. ID is the command it is about, chosen by the client.
type Frame struct {
	Type    Type
	ID      uint32
	Payload []byte
}

// Start is the payload of TypeStart.
type Start struct {
	Argv    []string `json:"argv"`
	Env     []string `json:"env,omitempty"` // added to the sandbox's own; the last of a name wins
	Dir     string   `json:"dir,omitempty"`
	Stdin   bool     `json:"stdin,omitempty"` // false: /dev/null
	Group   bool     `json:"group,omitempty"` // after SIGTERM it lasts as long as its process group
	TTY     *Size    `json:"tty,omitempty"`   // it has a terminal of that size; what it writes there comes as standard output
	Rlimits Rlimits  `json:"rlimits"`
}

// Rlimits bound each process of one command. Zero leaves a limit as it is.
type Rlimits struct {
	CPUSeconds   uint64 `json:"cpu_seconds,omitempty"`   // of CPU time, then SIGKILL
	AddressSpace uint64 `json:"address_space,omitempty"` // bytes
	FileSize     uint64 `json:"file_size,omitempty"`     // bytes of one file
	OpenFiles    uint64 `json:"open_files,omitempty"`
}

// Size is a terminal's.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Hello is the payload of TypeHello.
type Hello struct {
	Version int `json:"version"`
}

// Exited is the payload of TypeExit.
type Exited struct {
	Code     int           `json:"code"`             // exit status, 128+signal if a signal ended it
	Signal   string        `json:"signal,omitempty"` // "SIGKILL", …
	Duration time.Duration `json:"duration"`
	CPU      time.Duration `json:"cpu"`     // user and system time of the command and its waited-for children
	MaxRSS   int64         `json:"max_rss"` // bytes
}

// ErrProtocol is the error of a stream that does not keep to the protocol.
var ErrProtocol = errors.New("the control stream does not keep to its protocol")

const headerBytes = 9 // uint32 length of the rest, type, uint32 id

// ReadFrame reads one frame. The payload is the caller's. The error is io.EOF
// only between frames, and wraps ErrProtocol for a frame longer than its type
// allows or of a type that does not exist.
func ReadFrame(r io.Reader) (Frame, error) {
	var h [headerBytes]byte
	if _, err := io.ReadFull(r, h[:1]); err != nil {
		return Frame{}, err
	}
	if _, err := io.ReadFull(r, h[1:]); err != nil {
		return Frame{}, unexpected(err)
	}
	n := binary.BigEndian.Uint32(h[:4])
	f := Frame{Type: Type(h[4]), ID: binary.BigEndian.Uint32(h[5:])}
	limit, known := f.Type.limit()
	if !known {
		return f, fmt.Errorf("%w: frame of type %d", ErrProtocol, f.Type)
	}
	if n < headerBytes-4 || n-(headerBytes-4) > uint32(limit) {
		return f, fmt.Errorf("%w: frame of type %d with %d bytes", ErrProtocol, f.Type, n)
	}
	f.Payload = make([]byte, n-(headerBytes-4))
	if _, err := io.ReadFull(r, f.Payload); err != nil {
		return f, unexpected(err)
	}
	return f, nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (t Type) limit() (bytes int, known bool) {
	switch t {
	case TypeStart:
		return MaxStart, true
	case TypeStdin, TypeStdout, TypeStderr:
		return MaxData, true
	case TypeStdinEnd, TypeStdinGone, TypeDiscard:
		return 0, true
	case TypeSignal:
		return 1, true
	case TypeCredit:
		return 5, true
	case TypeStdinCredit, TypeResize:
		return 4, true
	case TypeHello, TypeExit:
		return 1 << 10, true
	case TypeFailed:
		return MaxWords, true
	}
	return 0, false
}

// Append encodes f after b. It panics if the payload is longer than the type
// allows: the sender's mistake.
func (f Frame) Append(b []byte) []byte {
	if limit, known := f.Type.limit(); !known || len(f.Payload) > limit {
		panic(fmt.Sprintf("stream: frame of type %d with %d bytes", f.Type, len(f.Payload)))
	}
	b = binary.BigEndian.AppendUint32(b, uint32(headerBytes-4+len(f.Payload)))
	b = append(b, byte(f.Type))
	b = binary.BigEndian.AppendUint32(b, f.ID)
	return append(b, f.Payload...)
}

// JSON is a frame whose payload is v as JSON.
func JSON(t Type, id uint32, v any) (Frame, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return Frame{}, err
	}
	if limit, _ := t.limit(); len(b) > limit {
		return Frame{}, fmt.Errorf("%d bytes are more than the %d a message may have", len(b), limit)
	}
	return Frame{Type: t, ID: id, Payload: b}, nil
}

// CreditFrame acknowledges n bytes of stream (1 standard output, 2 standard error).
func CreditFrame(id uint32, stream byte, n int) Frame {
	return Frame{Type: TypeCredit, ID: id, Payload: binary.BigEndian.AppendUint32([]byte{stream}, uint32(n))}
}

// ResizeFrame changes the size of a command's terminal.
func ResizeFrame(id uint32, s Size) Frame {
	return Frame{Type: TypeResize, ID: id, Payload: binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, s.Rows), s.Cols)}
}

// StdinCreditFrame acknowledges n bytes of standard input.
func StdinCreditFrame(id uint32, n int) Frame {
	return Frame{Type: TypeStdinCredit, ID: id, Payload: binary.BigEndian.AppendUint32(nil, uint32(n))}
}

// Credit is what one side may still send of one stream. The zero value has
// none; it is safe for concurrent use.
type Credit struct {
	mu     sync.Mutex
	have   int
	ended  bool
	change chan struct{} // non-nil while someone waits
}

// Give adds n. It reports false if more than Window would be outstanding.
func (c *Credit) Give(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n < 0 || c.have > Window-n {
		return false
	}
	c.have += n
	c.wake()
	return true
}

// End lets all present and future calls of Take return 0.
func (c *Credit) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.wake()
}

func (c *Credit) wake() {
	if c.change != nil {
		close(c.change)
		c.change = nil
	}
}

// Take waits until there is credit and takes at most n of it; 0 means End or
// the closing of done.
func (c *Credit) Take(n int, done <-chan struct{}) int {
	for {
		c.mu.Lock()
		if c.ended {
			c.mu.Unlock()
			return 0
		}
		if c.have > 0 {
			n = min(n, c.have)
			c.have -= n
			c.mu.Unlock()
			return n
		}
		if c.change == nil {
			c.change = make(chan struct{})
		}
		change := c.change
		c.mu.Unlock()
		select {
		case <-change:
		case <-done:
			return 0
		}
	}
}

// Pair returns the two ends of a control stream: ours for NewClient, theirs
// for the sandbox. Both are closed on exec. Whoever starts the sandbox closes
// theirs afterwards, or the end of the sandbox will not be noticed.
func Pair() (ours, theirs *os.File, err error) {
	fds, err := syscall.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make the control stream: %w", err)
	}
	// Non-blocking, so that Close ends a Read that is going on.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, fmt.Errorf("make the control stream: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control"), nil
}
