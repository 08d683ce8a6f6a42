package egress

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"

	"inspect/envs/proc"
	"inspect/envs/wire"
)

// Command is the first argument with which the inspect binary becomes Main.
const Command = "egress-proxy"

// Config is what Main is told on standard input, as one line of JSON.
type Config struct {
	Allow  []string     `json:"allow"`
	Inject []Credential `json:"inject,omitempty"`
	Limit  int64        `json:"limit,omitempty"` // of a Meter
	// Internal as in Options.
	Internal []string `json:"internal,omitempty"`

	// The rest is for tests.
	AllowAddresses []string          `json:"allow_addresses,omitempty"`
	Resolve        map[string]string `json:"resolve,omitempty"` // if set, all the names there are
	Roots          string            `json:"roots,omitempty"`   // PEM
}

// Started is the first line that Main writes to standard output, as JSON, when
// it is about to serve. Each further one is a decision, wire.Egress as JSON.
type Started struct {
	Authority []byte `json:"authority,omitempty"` // as Proxy.Authority
}

// maxConfig bounds the line of a Config, in bytes.
const maxConfig = 1 << 20

// Main is a proxy as a process of its own, for which it needs no rights but
// those to the network: it serves the listener that is descriptor 3 until its
// standard input ends, and says on standard output what it decides. It returns
// the exit status.
func Main([]string) int {
	err := proc.KeepToItself() // other proxies of this account hold other credentials
	if err == nil {
		err = child(os.NewFile(3, "listener"), os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "egress proxy: %v\n", err)
		return 1
	}
	return 0
}

func child(socket *os.File, in io.Reader, out io.Writer) error {
	l, err := net.FileListener(socket)
	socket.Close()
	if err != nil {
		return fmt.Errorf("descriptor 3 is no listener: %w", err)
	}
	defer l.Close()
	r := bufio.NewReader(io.LimitReader(in, maxConfig))
	line, err := r.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	var c Config
	if err := json.Unmarshal(line, &c); err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	opt := c.options()
	opt.Allow, opt.Inject, opt.Meter = c.Allow, c.Inject, NewMeter(c.Limit)
	opt.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	enc := json.NewEncoder(out)
	opt.Decide = func(e wire.Egress) {
		if enc.Encode(e) != nil {
			cancel() // nobody listens any more
		}
	}
	p, err := New(opt)
	if err != nil {
		return err
	}
	if err := enc.Encode(Started{p.Authority()}); err != nil {
		return fmt.Errorf("say that the proxy is ready: %w", err)
	}
	go func() { // ends with its input, at the latest with this process
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	return p.Serve(ctx, l)
}

// options are what it says of addresses, names and authorities.
func (c Config) options() Options {
	opt := Options{Internal: c.Internal, AllowAddresses: c.AllowAddresses}
	if len(c.Resolve) > 0 {
		opt.Resolver = fixedNames(c.Resolve)
	}
	if c.Roots != "" {
		opt.Roots = x509.NewCertPool()
		opt.Roots.AppendCertsFromPEM([]byte(c.Roots))
	}
	return opt
}

// fixedNames resolves names by a table.
type fixedNames map[string]string

func (f fixedNames) LookupIP(_ context.Context, _, host string) ([]net.IP, error) {
	if ip := net.ParseIP(f[host[:len(host)-1]]); ip != nil {
		return []net.IP{ip}, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}
