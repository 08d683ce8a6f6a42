// Package forward carries connections out of a sandbox. Inside, the init
// listens on ports of the loopback and copies each connection to a unix socket
// that was bound into the sandbox (Open). Outside, whoever serves such a socket
// may learn which command inside connects (Listener).
//
// Nothing of this is a boundary: what can be reached is decided by which
// sockets are bound into the sandbox and by who serves them. Commands inside
// may also speak to a socket without the init, so its word about a command is
// the sandbox's word and no more.
package forward

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Way is one port on the loopback inside and the socket it leads to.
type Way struct {
	Port   int
	Socket string // path, inside the sandbox
	// Named connections begin with one line that says who connects; the other
	// end is a Listener's.
	Named bool
}

// named is the word of a named way in its written form.
const named = "named"

// String is the form that Parse reads: PORT=PATH[,named].
func (w Way) String() string {
	s := strconv.Itoa(w.Port) + "=" + w.Socket
	if w.Named {
		s += "," + named
	}
	return s
}

// Parse reads PORT=PATH[,named].
func Parse(s string) (Way, error) {
	port, path, ok := strings.Cut(s, "=")
	path, word, more := strings.Cut(path, ",")
	n, err := strconv.Atoi(port)
	if !ok || err != nil || n < 1 || n > 65535 || !strings.HasPrefix(path, "/") || more && word != named {
		return Way{}, fmt.Errorf("%q is not of the form PORT=PATH[,%s]", s, named)
	}
	return Way{Port: n, Socket: path, Named: more}, nil
}

// name is the line a named connection begins with.
type name struct {
	PID     int    `json:"pid"`     // inside; 0: not found
	Command string `json:"command"` // its arguments, cut; empty: not found
}

// Bounds of a name.
const (
	maxCommand = 500     // bytes of Command
	maxLine    = 4 << 10 // bytes of the line; six for each of Command when all are escaped
)

var errLine = errors.New("a connection does not begin with the line that names its command")
