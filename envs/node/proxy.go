package node

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"inspect/checks/redact"
	"inspect/envs/egress"
	"inspect/envs/proc"
	"inspect/envs/wire"
)

// Bounds of a refresh's proxy.
const (
	proxyStart = 15 * time.Second // until it serves
	proxyGrace = 5 * time.Second  // after its input has ended
	maxRefused = 100              // refusals kept for the words of a failure; a few of them are shown
)

// refreshProxy is the egress proxy of one refresh: a process of its own, under
// an account of its own, that ends with the sandbox. It is not the daemon
// itself, which is root. A nil one does nothing.
type refreshProxy struct {
	n      *Node
	id     string // of the snapshot, for the log
	input  *os.File
	cancel context.CancelFunc
	ended  chan struct{} // then the rest is set
	err    error
	said   []byte // its last words

	ready            chan struct{}
	authority        []byte // once it is ready, see egress.Started
	allowed, refused int
	list             []wire.Egress // refusals, each once
	end              string        // what it said of itself, as that its limit is reached
}

// startProxy starts the proxy on the egress socket, if there is one, and
// returns when it serves. The secrets it adds are asked for here and go to it
// through its standard input.
func (r *refresher) startProxy(ctx context.Context, w *ways) (_ *refreshProxy, err error) {
	n, work := r.n, r.w
	i := slices.Index(w.names, wire.SocketEgress)
	if i < 0 {
		return nil, nil
	}
	if n.o.Binary == "" {
		return nil, errors.New("start the egress proxy: this node was not told which program that is")
	}
	settings := egress.Config{Allow: work.Egress, Internal: work.Internal, Limit: work.Limits.EgressBytes}
	if len(work.Inject) > 0 {
		names := egress.SecretNames(work.Inject)
		given, err := r.ask(ctx, "the egress proxy", names)
		if err != nil {
			return nil, err
		}
		values := map[string]string{}
		for i, name := range names {
			values[name] = given[i]
		}
		if settings.Inject, err = egress.Credentials(work.Inject, values); err != nil {
			return nil, failed("the credentials of the egress proxy: %v", err)
		}
	}
	config, err := json.Marshal(settings)
	if err != nil {
		return nil, err
	}
	in, input, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	// It must outlive ctx: the sandbox that uses it ends first.
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &refreshProxy{
		n: n, id: work.Snapshot, input: input, cancel: cancel, ended: make(chan struct{}), ready: make(chan struct{}),
	}
	c := proc.Command{
		Argv: []string{n.o.Binary, egress.Command}, Stdin: in, ExtraFiles: []*os.File{w.listeners[i]},
	}
	if os.Geteuid() == 0 {
		c.Credential = &proc.Credential{UID: n.o.EgressUID, GID: n.o.EgressGID}
	}
	out, told := io.Pipe()
	c.Stdout = told
	read := make(chan struct{})
	go func() {
		defer close(read)
		p.listen(out)
	}()
	go func() {
		defer close(p.ended)
		res, err := proc.Run(life, c)
		in.Close()
		told.Close()
		<-read
		p.err, p.said = err, res.Stderr
	}()
	// A child that does not read ends the write: in is closed then.
	_ = input.SetWriteDeadline(time.Now().Add(proxyStart))
	_, werr := input.Write(append(config, '\n'))
	select {
	case <-p.ready:
		return p, nil
	case <-p.ended:
		err = errors.Join(p.err, werr)
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-time.After(proxyStart):
		err = errors.New("it does not serve")
	}
	cancel()
	input.Close()
	<-p.ended
	if errors.Is(err, fs.ErrPermission) && c.Credential != nil {
		return nil, fmt.Errorf("start the egress proxy: user %d must be able to execute %s: %w", c.Credential.UID, n.o.Binary, err)
	}
	return nil, fmt.Errorf("start the egress proxy: %w", err)
}

// listen reads what the proxy says until its end.
func (p *refreshProxy) listen(out io.ReadCloser) {
	defer out.Close()
	lines := bufio.NewScanner(out)
	var started egress.Started
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &started) != nil {
		_, _ = io.Copy(io.Discard, out)
		return
	}
	p.authority = started.Authority
	close(p.ready)
	for lines.Scan() {
		var e wire.Egress
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue
		}
		if e.Allowed {
			p.allowed++
			continue
		}
		p.refused++
		if e.Host == "" {
			p.end = e.Reason
		} else if len(p.list) < maxRefused && !slices.Contains(p.list, e) {
			p.list = append(p.list, e)
		}
	}
	_, _ = io.Copy(io.Discard, out)
}

// stop ends the proxy and waits for it. The error is that of a proxy that ended
// before.
func (p *refreshProxy) stop() error {
	if p == nil {
		return nil
	}
	early := false
	select {
	case <-p.ended:
		early = true
	default:
	}
	p.input.Close()
	select {
	case <-p.ended:
	case <-time.After(proxyGrace):
	}
	p.cancel()
	<-p.ended
	p.n.log.Info("setup reached out", "snapshot", p.id, "allowed", p.allowed, "refused", p.refused)
	if early {
		return fmt.Errorf("the egress proxy ended before the setup: %w", errors.Join(p.err, errors.New(redact.OneLine(string(p.said), 300))))
	}
	return nil
}

// hint adds to the error of a failed setup what the proxy refused. It is
// called after stop.
func (p *refreshProxy) hint(err error) error {
	if p == nil || len(p.list) == 0 && p.end == "" {
		return err
	}
	const show = 3
	var words []string
	if p.end != "" {
		words = append(words, "the egress proxy: "+p.end)
	}
	for _, e := range p.list[:min(len(p.list), show)] {
		w := "the egress proxy refused " + net.JoinHostPort(e.Host, strconv.Itoa(e.Port))
		if e.Command != "" {
			w += " (" + redact.Cut(e.Command, 120) + ")"
		}
		if e.Reason == egress.NotListed {
			w += ": add it to egress in .inspect.yml"
		} else {
			w += ": " + e.Reason
		}
		words = append(words, w)
	}
	if len(p.list) > show {
		words = append(words, fmt.Sprintf("and %d others", len(p.list)-show))
	}
	return &hintedError{err, p.n.redactor.String(strings.Join(words, "; "))}
}

// hintedError is an error with what may be its reason.
type hintedError struct {
	error
	words string
}

func (e *hintedError) Error() string { return e.error.Error() + "\n(" + e.words + ")" }
func (e *hintedError) Unwrap() error { return e.error }
