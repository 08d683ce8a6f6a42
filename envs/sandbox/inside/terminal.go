package inside

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"inspect/envs/sandbox/stream"
)

// endOfInput is what is typed for the end of a terminal's input: Ctrl-D.
const endOfInput = 4

// openTerminal makes a terminal: two of our ends of it, to read what is shown
// and to type, and the command's.
func openTerminal(size stream.Size) (screen, keys, tty *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, nil, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, nil, err
	}
	if err := setSize(fd, size); err != nil {
		return nil, nil, nil, err
	}
	other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, nil, nil, err
	}
	slave, err := unix.Open(fmt.Sprintf("/dev/pts/%d", number), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		unix.Close(other)
		return nil, nil, nil, err
	}
	return os.NewFile(uintptr(fd), "terminal"), os.NewFile(uintptr(other), "terminal"), os.NewFile(uintptr(slave), "tty"), nil
}

func setSize(fd int, s stream.Size) error {
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Cols})
}

// terminal is a command's, as long as it can be changed in size.
type terminal struct {
	mu     sync.Mutex
	screen *os.File // nil: there is none, or not any more
}

func (t *terminal) open(screen *os.File) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.screen = screen
}

func (t *terminal) close() { t.open(nil) }

// resize does nothing for a command without a terminal.
func (c *command) resize(s stream.Size) {
	c.term.mu.Lock()
	defer c.term.mu.Unlock()
	if c.term.screen != nil {
		_ = setSize(int(rawFD(c.term.screen)), s)
	}
}
