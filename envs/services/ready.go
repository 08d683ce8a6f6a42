package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
)

// Pauses between two probes, and what the first may take. Each may take twice as
// long as the one before: one that hangs must not keep the next from succeeding,
// and one that waits itself, on a slow machine, must get its time.
const (
	firstPause = 100 * time.Millisecond
	longPause  = time.Second
	shellProbe = 10 * time.Second
	httpProbe  = 5 * time.Second
	portProbe  = 2 * time.Second
)

// awaitReady probes a service until it is ready or has ended; that it has ended
// is the caller's to see. The error says what it lacks.
func (set *Set) awaitReady(ctx context.Context, s *service) error {
	probe, limit := set.probe(s)
	if probe == nil { // nothing to ask: it is ready if it stays
		select {
		case <-s.done:
		case <-set.o.Clock.After(earlyExit):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		return nil
	}
	var lack error
	for pause := firstPause; ; pause = min(pause*3/2, longPause) {
		one, cancel := proc.WithTimeout(ctx, set.o.Clock, limit)
		err := probe(one)
		if one.Err() != nil {
			limit *= 2
		}
		cancel()
		switch {
		case err == nil:
			return nil
		case gone(err):
			return err
		case ctx.Err() == nil || lack == nil: // else the last answer says more
			lack = err
		}
		select {
		case <-s.done:
			return lack
		case <-ctx.Done():
			return lack
		case <-set.o.Clock.After(pause):
		}
	}
}

// probe is how a service is asked, nil if there is nothing to ask.
func (set *Set) probe(s *service) (ask func(context.Context) error, limit time.Duration) {
	switch {
	case strings.HasPrefix(s.Ready, "http://"):
		return func(ctx context.Context) error { return set.askHTTP(ctx, s.Ready) }, httpProbe
	case s.Ready != "":
		return func(ctx context.Context) error { return set.askShell(ctx, s.Ready) }, shellProbe
	case s.Port > 0:
		return func(ctx context.Context) error {
			// By name: a service may listen on one family of addresses only.
			conn, err := set.dial(ctx, fmt.Sprintf("localhost:%d", s.Port))
			if err != nil {
				return fmt.Errorf("port %d: %w", s.Port, err)
			}
			return conn.Close()
		}, portProbe
	}
	return nil, 0
}

func (set *Set) dial(ctx context.Context, addr string) (net.Conn, error) {
	if set.o.Dial == nil {
		return nil, errors.New("there is no way to connect into the sandbox")
	}
	return set.o.Dial(ctx, addr)
}

// askHTTP asks for a page once. Any answer that does not blame the server will do.
func (set *Set) askHTTP(ctx context.Context, url string) error {
	t := &http.Transport{
		DialContext:            func(ctx context.Context, _, addr string) (net.Conn, error) { return set.dial(ctx, addr) },
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: 64 << 10,
	}
	defer t.CloseIdleConnections()
	client := &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("%s is no address: %w", url, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !gone(err) {
			return fmt.Errorf("%s did not answer", url)
		}
		return err
	}
	resp.Body.Close()
	if resp.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("%s answered with status %d", url, resp.StatusCode)
	}
	return nil
}

func (set *Set) askShell(ctx context.Context, line string) error {
	out := &proc.Tail{N: outputKept}
	e := set.exec(Shell(line))
	e.Stdout, e.Stderr, e.Grace = out, out, -1
	exit, err := set.sb.Run(ctx, e)
	line = redact.OneLine(line, 200)
	var cannot *stream.StartError
	switch {
	case gone(err), errors.As(err, &cannot):
		return err
	case err != nil:
		return fmt.Errorf("%s did not end", line)
	case exit.Code != 0:
		return errors.New(strings.TrimRight(fmt.Sprintf("%s failed with exit status %d: %s", line, exit.Code, lastLine(out.Bytes())), ": "))
	}
	return nil
}
