package opencode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"inspect/envs/harness"
	"inspect/envs/harness/dialog"
	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

const (
	// bootTime bounds the start, from the command to the first answer.
	// On two idle cores it takes about three seconds, on a busy machine many more.
	bootTime = 2 * time.Minute
	// primeTime bounds the throw-away prompt on top of that.
	primeTime = 30 * time.Second
	// pollTime bounds a question that is asked again: one asked while the server
	// starts may never be answered (10 minutes seen).
	pollTime = time.Second
	// callTime bounds the others, abortTime the one that waits for commands to end.
	callTime  = 30 * time.Second
	abortTime = 8 * time.Second
	// stopGrace is how long the server may take to end when asked.
	stopGrace = 5 * time.Second
	// pollEvery is the pause between two tries.
	pollEvery = 50 * time.Millisecond
	// reconnectAfter is the pause before the events are asked for again.
	reconnectAfter = 200 * time.Millisecond
)

// Ports above those of the gateway and the proxy, away from what a repository's
// services like to have. Which one is tried is left to chance: another program
// may have taken it already.
const (
	firstPort = 41720
	ports     = 2000
	portTries = 5
)

// missingError is the error of a program that is not there.
type missingError struct{ words string }

func (e *missingError) Error() string { return e.words }

// bootError is the error of one that did not come up.
type bootError struct{ words string }

func (e *bootError) Error() string { return "OpenCode could not be started: " + e.words }

// server is a running `opencode serve`.
type server struct {
	*api
	stop context.CancelCauseFunc // asks it to end
	over chan struct{}           // closed when it has ended
	exit stream.Exit             // set before over is closed, like err
	err  error
	said *proc.Tail

	wg     sync.WaitGroup // listener and primer
	life   context.Context
	quit   context.CancelFunc // ends life
	redial chan struct{}
}

// errStopped is the cause of a server's end that was asked for.
var errStopped = errors.New("its work is done")

// starter starts servers.
type starter struct {
	sb       harness.Sandbox
	in       harness.Input
	clock    proc.Clock
	password string
	untuned  bool // this one's runtime has other options than those we know
}

func (s *starter) home() string { return path.Join(s.in.Home, ".inspect", "opencode") }

// start starts a server and waits until it answers. life is how long it may
// live, ctx bounds the wait. again: it goes on with the data of an earlier one.
func (s *starter) start(life, ctx context.Context, again bool) (*server, error) {
	for try := 1; ; try++ {
		srv, err := s.try(life, ctx, again)
		var boot *bootError
		switch {
		case !errors.As(err, &boot) || try == portTries:
		case taken(boot.words):
			continue
		case !s.untuned && strings.Contains(boot.words, "BUN_JSC_"):
			s.untuned = true
			continue
		}
		return srv, err
	}
}

// taken recognises a port that another program has.
func taken(words string) bool {
	return strings.Contains(words, "ServeError") || strings.Contains(words, "EADDRINUSE")
}

func (s *starter) try(life, ctx context.Context, again bool) (*server, error) {
	run, stop := context.WithCancelCause(life)
	port := firstPort + rand.IntN(ports)
	srv := &server{
		api:  newAPI(s.sb, s.clock, port, s.password, s.in.Dir),
		stop: stop, over: make(chan struct{}), said: &proc.Tail{N: 2 << 10}, redial: make(chan struct{}, 1),
	}
	srv.life, srv.quit = context.WithCancel(life)
	how, tuned := "fresh", "tuned"
	if again {
		how = "again"
	}
	if s.untuned {
		tuned = "untuned"
	}
	heard := &listening{yes: make(chan struct{})}
	env := append(dialog.Environment(s.in), "OPENCODE_SERVER_PASSWORD="+s.password)
	go func() {
		defer close(srv.over)
		srv.exit, srv.err = s.sb.Run(run, stream.Exec{
			Argv: []string{
				"sh", "-c", launchScript, "sh", s.home(), how, strconv.Itoa(port),
				config(s.in, s.home()), guardScript, shellScript, tuned,
			},
			Env: env, Dir: s.in.Home, Stdout: heard, Stderr: srv.said, Grace: stopGrace,
		})
	}()
	ctx, cancel := proc.WithTimeout(ctx, s.clock, bootTime)
	defer cancel()
	select {
	case <-heard.yes:
	case <-srv.over:
		srv.end()
		return nil, srv.ended()
	case <-ctx.Done():
		srv.end()
		return nil, s.late(ctx)
	}
	for srv.health(ctx) != nil {
		select {
		case <-s.clock.After(pollEvery):
		case <-srv.over:
			srv.end()
			return nil, srv.ended()
		case <-ctx.Done():
			srv.end()
			return nil, s.late(ctx)
		}
	}
	return srv, nil
}

// late says why the wait for a start ended.
func (s *starter) late(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return &bootError{fmt.Sprintf("it did not answer within %s", bootTime)}
}

var colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// prime has OpenCode load all it needs for a turn, by one that costs nothing:
// the gateway answers it itself. That it fails is no matter. What is left of it
// is cleared away later.
func (srv *server) prime(ctx context.Context) {
	id, err := srv.create(ctx, bootTime, "ready")
	if err != nil {
		return
	}
	failed := srv.ask(ctx, primeTime, id, wire.ReadyModel, "Say ok.") != nil
	srv.wg.Go(func() {
		if failed {
			_ = srv.abort(srv.life, id)
		}
		_ = srv.remove(srv.life, id)
	})
}

// end stops the server and waits for that.
func (srv *server) end() {
	srv.quit()
	srv.wg.Wait()
	srv.api.close()
	srv.stop(errStopped)
	<-srv.over
}

// ended says why a server that was not asked to is at its end.
func (srv *server) ended() error {
	var start *stream.StartError
	said := strings.TrimSpace(colours.ReplaceAllString(string(srv.said.Bytes()), ""))
	switch {
	case errors.As(srv.err, &start):
		return &missingError{start.Words}
	case srv.err != nil:
		return srv.err
	case srv.exit.Code == 127:
		return &missingError{said}
	}
	how := fmt.Sprintf("it ended with status %d", srv.exit.Code)
	if srv.exit.Signal != "" {
		how = "it was ended by " + srv.exit.Signal
	}
	if said != "" {
		how += ": " + said
	}
	return &bootError{how}
}

// tune sends the server's events to out until the server is ended; a nil one
// says that a stream begins, and that some may have been missed before it.
func (srv *server) tune(out chan<- *event) {
	ctx := srv.life
	send := func(e *event) {
		select {
		case out <- e:
		case <-ctx.Done():
		}
	}
	srv.wg.Go(func() {
		for ctx.Err() == nil {
			once, cancel := context.WithCancel(ctx)
			broken := make(chan struct{})
			srv.wg.Go(func() {
				select {
				case <-srv.redial:
					cancel()
				case <-broken:
				}
			})
			_ = srv.listen(once, func() { send(nil) }, func(e event) { send(&e) })
			close(broken)
			cancel()
			select {
			case <-srv.clock.After(reconnectAfter):
			case <-ctx.Done():
			}
		}
	})
}

// retune has the events asked for anew.
func (srv *server) retune() {
	select {
	case srv.redial <- struct{}{}:
	default:
	}
}

// listening waits for the word that the server listens.
type listening struct {
	yes  chan struct{}
	line []byte
	said bool
}

var listens = regexp.MustCompile(`opencode server listening on http://127\.0\.0\.1:\d+\n`)

func (l *listening) Write(p []byte) (int, error) {
	if !l.said {
		l.line = append(l.line, p...)
		if listens.Match(l.line) {
			l.said, l.line = true, nil
			close(l.yes)
		} else if i := bytes.LastIndexByte(l.line, '\n'); i >= 0 || len(l.line) > 1<<10 {
			l.line = l.line[max(i+1, len(l.line)-1<<10):]
		}
	}
	return len(p), nil
}
