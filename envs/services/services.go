// Package services starts the services an environment declares inside a
// sandbox, one after the other, each when the one before is ready, and stops
// them in the reverse order. A sandbox and the declared services come in; a Set
// of running ones, their states and the ends of their logs go out. Everything
// of a service runs inside; what it says is bounded and redacted.
package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// Sandbox is what this package needs of one; *stream.Client is it. Run returns
// when the command has ended, at the latest some seconds after ctx or the
// sandbox has.
type Sandbox interface {
	Run(ctx context.Context, e stream.Exec) (stream.Exit, error)
}

// Options of Start.
type Options struct {
	// Event is told what becomes of each service, never twice at once and never
	// after Stop has returned. It must neither block for long nor call the Set.
	Event  func(wire.ServiceState)
	Redact *redact.Redactor
	Clock  proc.Clock // nil: the machine's
	// Timeout is how long one service may take to become ready; 0: DefaultTimeout.
	Timeout time.Duration
	Dir     string   // working directory inside; empty: the sandbox's own
	Env     []string // added to the sandbox's environment
	// Dial connects to a port on the sandbox's loopback, "localhost:5432". It
	// is needed for services that are asked by address or port.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Apart makes the place of a service that has secrets, which must not run
	// beside anybody who could look into it. Needed for such services.
	Apart func(ctx context.Context, s wire.Service) (Apart, error)
}

// Apart is a place for one command that has secrets: a sandbox of its own that
// shares the loopback of the other.
type Apart struct {
	Sandbox
	Env   []string // the secrets, "NAME=value", for that command alone
	Close func()   // ends whatever runs there and waits for that
}

// DefaultTimeout is how long a service may take to become ready when nobody said.
const DefaultTimeout = time.Minute

const (
	stopLine   = 20 * time.Second // for a stop line and the end it brings about
	patience   = 3 * time.Second  // with one service that is stopping before the next is asked to
	grace      = 10 * time.Second // between SIGTERM and SIGKILL
	earlyExit  = 300 * time.Millisecond
	lingering  = grace    // for the rest of its process group: the first of it may be a shell, which goes at once
	logKept    = 64 << 10 // bytes of a log; more than is shown, so that no secret is cut in two
	logShown   = 8 << 10  // bytes
	outputKept = 4 << 10  // bytes of what a probe or stop line printed
)

// Error is a service that could not be started, in words for a person.
type Error struct {
	Service string
	Words   string // "ended with exit status 1 before it was ready"
	Output  string // the last lines of its log; may be empty
}

func (e *Error) Error() string {
	words := "service " + e.Service + " " + e.Words
	if e.Output != "" {
		words += "\n" + e.Output
	}
	return words
}

// Set is a set of running services.
type Set struct {
	sb   Sandbox
	o    Options
	life context.Context // of the services; ended only one by one

	mu       sync.Mutex // of states and of calling Event
	services []*service // in the order they were started
	stopped  bool

	stop    sync.Once
	stopErr error
}

// service is one that was started.
type service struct {
	wire.Service
	place Apart // the sandbox it runs in
	log   *log
	begun time.Time
	end   context.CancelFunc // asks it to end
	done  chan struct{}      // closed when it has
	exit  stream.Exit        // set before
	err   error

	// Under the set's lock:
	ready, stopping, over bool
}

var errStopped = errors.New("the service was stopped")

// Start starts the services in their order and returns when the last is ready.
// ctx bounds only that; the services run until Stop or the end of the sandbox,
// and Stop must be called. An *Error is a service that did not become ready,
// any other error a sandbox or context that ended; nothing runs then any more.
// Without services it does nothing.
func Start(ctx context.Context, sb Sandbox, list []wire.Service, o Options) (*Set, error) {
	if o.Clock == nil {
		o.Clock = proc.System()
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	set := &Set{sb: sb, o: o, life: context.WithoutCancel(ctx)}
	if len(list) == 0 {
		return set, nil
	}
	if err := set.clear(ctx); err != nil {
		return nil, err
	}
	for _, w := range list {
		if err := set.start(ctx, w); err != nil {
			_ = set.Stop(context.WithoutCancel(ctx))
			return nil, err
		}
	}
	return set, nil
}

// stale removes what services of another time left and their successors stumble
// over. In a fresh pid namespace numbers are small, so the process that such a
// file names is usually there and is something else. What the repository itself
// tracks stays.
const stale = `for d in "$HOME" "$PWD" /var/lib; do
  [ -d "$d" ] || continue
  find "$d" -xdev -maxdepth 7 \( -name .git -o -name node_modules -o -name .cache -o -path "$HOME/go/pkg" \) -prune -o -type f \
    \( -name postmaster.pid -o -name '.s.PGSQL.*.lock' -o -name '*.sock.lock' -o -path '*/tmp/pids/*.pid' \) -exec sh -c '
      for f do git -C "${f%/*}" ls-files --error-unmatch -- "${f##*/}" >/dev/null 2>&1 || rm -f -- "$f"; done' sh {} +
done`

func (set *Set) clear(ctx context.Context) error {
	_, err := set.sb.Run(ctx, set.exec([]string{"sh", "-c", stale}))
	if err != nil {
		return fmt.Errorf("remove the pid files of earlier services: %w", err)
	}
	return nil
}

func (set *Set) exec(argv []string) stream.Exec {
	return stream.Exec{Argv: argv, Dir: set.o.Dir, Env: set.o.Env}
}

// start starts one service and waits until it is ready.
func (set *Set) start(ctx context.Context, w wire.Service) error {
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("service %s was not started: %w", w.Name, err)
	}
	place, err := set.place(ctx, w)
	if err != nil {
		return fmt.Errorf("service %s was not started: %w", w.Name, err)
	}
	life, end := context.WithCancelCause(set.life)
	s := &service{
		Service: w, place: place, log: &log{}, begun: set.o.Clock.Now(), done: make(chan struct{}),
		end: func() { end(errStopped) },
	}
	set.mu.Lock()
	set.services = append(set.services, s)
	set.mu.Unlock()
	go set.run(life, s)

	ready, cancel := proc.WithTimeout(ctx, set.o.Clock, set.o.Timeout)
	defer cancel()
	lack := set.awaitReady(ready, s)
	set.mu.Lock()
	over := s.over
	if !over && lack == nil {
		s.ready = true
		set.tell(wire.ServiceState{Name: w.Name, State: StateReady, After: set.o.Clock.Now().Sub(s.begun)})
	}
	set.mu.Unlock()
	switch {
	case over && gone(s.err):
		return fmt.Errorf("service %s: %w", w.Name, s.err)
	case over:
		return set.failed(s, s.ending()+" before it was ready")
	case lack == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("service %s is not ready: %w", w.Name, context.Cause(ctx))
	case errors.Is(lack, stream.ErrEnded):
		return fmt.Errorf("service %s: %w", w.Name, lack)
	}
	// Its log is complete only when it has ended.
	_, _ = set.finish(context.WithoutCancel(ctx), s, false)
	return set.failed(s, fmt.Sprintf("was not ready after %s: %v", set.o.Timeout, lack))
}

// place is where a service runs.
func (set *Set) place(ctx context.Context, w wire.Service) (Apart, error) {
	if len(w.Secrets) == 0 {
		return Apart{Sandbox: set.sb, Close: func() {}}, nil
	}
	if set.o.Apart == nil {
		return Apart{}, errors.New("it has secrets, and there is no place where nobody else could read them")
	}
	return set.o.Apart(ctx, w)
}

// failed tells of a service that did not become ready.
func (set *Set) failed(s *service, words string) *Error {
	e := &Error{Service: s.Name, Words: set.o.Redact.String(words), Output: set.tail(s)}
	set.mu.Lock()
	defer set.mu.Unlock()
	set.tell(wire.ServiceState{Name: s.Name, State: StateFailed, After: set.o.Clock.Now().Sub(s.begun), Words: e.Words, Output: e.Output})
	return e
}

// run is a service's life.
func (set *Set) run(life context.Context, s *service) {
	e := set.exec(Shell(s.Command))
	// A command that is more than one program is a shell in front of the real
	// one, which the signal ends at once.
	e.Stdout, e.Stderr, e.Grace, e.Group = s.log, s.log, grace, true
	e.Env = slices.Concat(e.Env, s.place.Env)
	s.exit, s.err = s.place.Run(life, e)
	set.mu.Lock()
	defer set.mu.Unlock()
	s.over = true
	close(s.done)
	if s.ready && !s.stopping && !gone(s.err) {
		set.tell(wire.ServiceState{
			Name: s.Name, State: StateFailed, After: set.o.Clock.Now().Sub(s.begun),
			Words: set.o.Redact.String(s.ending() + " while it was needed"), Output: set.tail(s),
		})
	}
}

// States of a service in events.
const (
	StateReady   = "ready"   // After: since its start
	StateFailed  = "failed"  // it ended by itself or did not become ready
	StateStopped = "stopped" // by us. After: how long that took
)

// tell is called with the lock held.
func (set *Set) tell(st wire.ServiceState) {
	if set.o.Event != nil && !set.stopped {
		set.o.Event(st)
	}
}

// gone says whether a command ended because its sandbox did.
func gone(err error) bool { return errors.Is(err, stream.ErrEnded) }

// ending says how a service ended.
func (s *service) ending() string {
	var cannot *stream.StartError
	switch {
	case errors.As(s.err, &cannot):
		return "could not be started: " + cannot.Words
	case s.exit.Signal != "":
		return "was ended by " + s.exit.Signal
	case s.err != nil:
		return "ended: " + s.err.Error()
	}
	return fmt.Sprintf("ended with exit status %d", s.exit.Code)
}

func (set *Set) tail(s *service) string {
	return redact.Tail(redact.Visible(set.o.Redact.String(s.log.String())), logShown)
}

// Failed returns, for each service that ended by itself while it was needed,
// how it ended.
func (set *Set) Failed() (words []string) {
	set.mu.Lock()
	defer set.mu.Unlock()
	for _, s := range set.services {
		if s.over && s.ready && !s.stopping {
			words = append(words, set.o.Redact.String("service "+s.Name+" "+s.ending()))
		}
	}
	return words
}

// Stop stops the services in reverse order and returns when all of them have
// ended: each by its stop line if it has one, then by SIGTERM, at last by
// SIGKILL. One that takes long does not hold up the others for long: the next
// is asked to stop when it has ended or three seconds have passed. The error is
// that of a service which may still run; a sandbox that has ended is none.
// Calling it again does nothing.
func (set *Set) Stop(ctx context.Context) error {
	set.stop.Do(func() {
		errs := make([]error, len(set.services))
		var wg sync.WaitGroup
		for i, s := range slices.Backward(set.services) {
			ended := make(chan struct{})
			wg.Go(func() {
				defer close(ended)
				errs[i] = set.stopOne(ctx, s)
			})
			select {
			case <-ended:
			case <-set.o.Clock.After(patience):
			}
		}
		wg.Wait()
		set.mu.Lock()
		set.stopped = true
		set.mu.Unlock()
		set.stopErr = errors.Join(errs...)
	})
	return set.stopErr
}

func (set *Set) stopOne(ctx context.Context, s *service) error {
	set.mu.Lock()
	over, ready := s.over, s.ready
	s.stopping = !over
	set.mu.Unlock()
	begun := set.o.Clock.Now()
	words, err := set.finish(ctx, s, ready)
	if over || !ready || gone(s.err) {
		return err // it was told already, or there is nobody to tell of
	}
	set.mu.Lock()
	defer set.mu.Unlock()
	set.tell(wire.ServiceState{
		Name: s.Name, State: StateStopped, After: set.o.Clock.Now().Sub(begun),
		Words: set.o.Redact.String(words), Output: set.tail(s),
	})
	return err
}

// finish ends one service with its process group. The words say what
// was not as it should be.
func (set *Set) finish(ctx context.Context, s *service, byLine bool) (words string, err error) {
	if byLine && s.Stop != "" && !s.isDone() {
		words = set.stopByLine(ctx, s)
	}
	s.end() // SIGTERM, and SIGKILL after the grace
	<-s.done
	s.place.Close()
	switch {
	case gone(s.err):
		return "", nil
	case errors.Is(s.err, stream.ErrUnresponsive):
		return words, fmt.Errorf("service %s does not end: %w", s.Name, s.err)
	case s.exit.Signal == "SIGKILL" && errors.Is(s.err, errStopped):
		words = also(words, fmt.Sprintf("it did not end within %s after SIGTERM and was killed", grace))
	}
	return words, nil
}

func also(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

func (s *service) isDone() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// stopByLine runs the stop line and waits for the end it should bring about. It
// runs where the service does, whose number and sockets it may need, but without
// the secrets.
func (set *Set) stopByLine(caller context.Context, s *service) (words string) {
	ctx, cancel := proc.WithTimeout(caller, set.o.Clock, stopLine)
	defer cancel()
	out := &proc.Tail{N: outputKept}
	e := set.exec(Shell(s.Stop))
	e.Stdout, e.Stderr, e.Grace = out, out, -1
	exit, err := s.place.Run(ctx, e)
	switch {
	case gone(err):
		return ""
	case caller.Err() != nil:
		return "there was no time for its stop line"
	case ctx.Err() != nil:
		return fmt.Sprintf("its stop line did not end within %s", stopLine)
	case err != nil:
		return "its stop line could not be run: " + err.Error()
	case exit.Code != 0:
		return strings.TrimSpace(fmt.Sprintf("its stop line failed with exit status %d: %s", exit.Code, lastLine(out.Bytes())))
	}
	select {
	case <-s.done:
		return ""
	case <-ctx.Done():
		if caller.Err() != nil {
			return "there was no time for the end after its stop line"
		}
		return fmt.Sprintf("its stop line succeeded but it did not end within %s", stopLine)
	}
}

// prelude lets a shell find the programs of services that packages do not put
// on the PATH, and makes the directories where they expect to put sockets. The
// newest version of PostgreSQL comes first, and behind the PATH, so that a
// repository's own goes first; RabbitMQ's own programs come before the wrappers
// of their names, which insist on another account.
const prelude = `p=
for d in /usr/lib/postgresql/*/bin; do if [ -d "$d" ]; then p=":$d$p"; fi; done
PATH="$PATH$p"
if [ -d /usr/lib/rabbitmq/bin ]; then PATH="/usr/lib/rabbitmq/bin:$PATH"; fi
export PATH
mkdir -p /run/postgresql /run/mysqld 2>/dev/null
`

// Shell is the argument vector that runs a shell line where the programs of
// services are found: initdb, pg_ctl and others are on no ordinary PATH.
func Shell(line string) []string {
	return []string{"sh", "-c", prelude + `exec sh -c "$1"`, "sh", line}
}
