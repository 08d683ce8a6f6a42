package inside

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"
)

// DialWord asks for a connection to the loopback inside, see dialMain.
const DialWord = "dial"

// Dialled is what dialMain writes first when it is connected.
const Dialled = "+\n"

// dialTimeout bounds the wait for a connection that nobody answers.
const dialTimeout = 5 * time.Second

// dialMain makes one connection to a port of the loopback and joins it to
// standard input and output. It ends when the other side has closed, or when
// this side has and nothing more comes.
func dialMain(args []string) error {
	if len(args) != 1 {
		return errors.New("dial needs one HOST:PORT")
	}
	host, port, err := net.SplitHostPort(args[0])
	if err != nil {
		return fmt.Errorf("%q is not HOST:PORT", args[0])
	}
	addresses := []string{host}
	if strings.EqualFold(host, "localhost") {
		addresses = []string{"127.0.0.1", "::1"}
	}
	var c net.Conn
	for _, a := range addresses {
		if ip, perr := netip.ParseAddr(a); perr != nil || !ip.IsLoopback() {
			return fmt.Errorf("%s is not on the loopback", a)
		}
		if c, err = net.DialTimeout("tcp", net.JoinHostPort(a, port), dialTimeout); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.WriteString(os.Stdout, Dialled); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(c, os.Stdin)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(os.Stdout, c)
	return err
}
