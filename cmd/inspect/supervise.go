package main

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/storage"
)

// supervised is what the supervisor of a split installation holds. It is root
// and does little: it starts three kinds of processes, the private Postgres and
// the control plane with an account of their own and the node daemon as root,
// starts again what is killed, and ends them in order. The ports are opened
// here and served by the control plane. What only root can read is handed to
// the control plane over a socket pair, on which it may ask for three more things:
// the policy file, the keys of secrets and Nomad's token as they are now. When this process is killed the control plane
// and Postgres are ended by the kernel; the node daemon, runners and sandboxes
// go on for the next supervisor.
type supervised struct {
	config serveConfig
	dirs   directories
	given  given
	binary string
	ports  ports
	lock   *os.File
	node   nodeProcess
	keys   keyText // of environments' secrets
	log    *slog.Logger
}

// Descriptors of the control plane's process.
const (
	handFD  = 3
	hooksFD = iota + 3
	peopleFD
	machinesFD
	lockFD // the data directory's: it is free when this process, too, has ended
)

// handed is the first line that the control plane is given.
type handed struct {
	Config serveConfig `json:"config"`
	Given  given       `json:"given"`
}

// What the control plane may ask for, a byte each: the files as they are now.
const (
	askPolicy = 'p'
	askKeys   = 'k' // of environments' secrets
	askNomad  = 'n' // Nomad's ACL token
)

// fileReply answers each byte of the control plane.
type fileReply struct {
	Body  []byte `json:"body"`
	Error string `json:"error,omitempty"`
}

// supervise runs it until ctx ends or the control plane cannot start.
func supervise(ctx context.Context, s supervised) error {
	if s.given.Database == "" {
		keeper, err := keepPostgres(ctx, s)
		if err != nil {
			return err
		}
		defer keeper.stop()
		s.given.Database = keeper.url
	}
	late, stopNode := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- s.node.run(late) }()
	err := s.keepControl(ctx)
	stopNode()
	return errors.Join(err, <-ended)
}

// keepControl keeps the control plane running. One that ends by itself at the
// first start has found something to be corrected; later, as when the database
// is away, it is started again like one that was killed.
func (s supervised) keepControl(ctx context.Context) error {
	wait := 100 * time.Millisecond
	for first := true; ; first = false {
		started := time.Now()
		err := s.control(ctx)
		var exit *exec.ExitError
		switch {
		case ctx.Err() != nil && (err == nil || errors.As(err, &exit)):
			return nil
		case !errors.As(err, &exit):
			return err
		case first && exit.Exited():
			return endedError(exit.ExitCode()) // and it has said why
		}
		if time.Since(started) > time.Minute {
			wait = 100 * time.Millisecond
		}
		s.log.Warn("the control plane ended and is started again", "error", err, "after", wait)
		if proc.Sleep(ctx, proc.System(), wait) != nil {
			return nil
		}
		wait = min(2*wait, 10*time.Second)
	}
}

// endedError is the end of a control plane that has said itself what was wrong.
type endedError int

func (endedError) Error() string   { return "" }
func (e endedError) ExitCode() int { return int(e) }

// drainLimit is what an orderly end of the control plane may take.
const drainLimit = 50 * time.Second

// control runs the control plane until it ends, or has ended because ctx did.
func (s supervised) control(ctx context.Context) error {
	ours, theirs, err := stream.Pair()
	if err != nil {
		return err
	}
	defer ours.Close()
	defer theirs.Close()
	files := []*os.File{theirs}
	for _, l := range s.ports.all() {
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			return err
		}
		defer f.Close()
		files = append(files, f)
	}
	cmd := exec.Command(s.binary, controlWord)
	cmd.Dir = "/"
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "INSPECT_") { // what they say is in the configuration
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = append(files, s.lock)
	uid := uint32(s.config.ControlUID)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, // Ctrl-C in a terminal is for us
		// It must not go on when nobody looks after it. An orderly end would stop
		// the runners, which the next supervisor finds again.
		Pdeathsig: syscall.SIGKILL,
		// The sandboxes' group may pass to the mirrors.
		Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: []uint32{uint32(s.config.SandboxUID)}},
	}
	if err := proc.StartBare(cmd); err != nil {
		return fmt.Errorf("start the control plane: %w", err)
	}
	theirs.Close()
	var handing sync.WaitGroup
	handing.Go(func() { s.hand(ours) })
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	defer func() {
		ours.Close()
		handing.Wait()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-done:
		return err
	case <-time.After(drainLimit):
		_ = cmd.Process.Kill()
		return <-done
	}
}

// hand gives the control plane what it needs and then answers for the policy
// file, the keys of secrets and Nomad's token, until its end.
func (s supervised) hand(c io.ReadWriter) {
	out := json.NewEncoder(c)
	if err := out.Encode(handed{Config: s.config, Given: s.given}); err != nil {
		return
	}
	one := make([]byte, 1)
	for {
		if _, err := io.ReadFull(c, one); err != nil {
			return
		}
		var reply fileReply
		var err error
		switch one[0] {
		case askPolicy:
			reply.Body, err = readBounded(s.config.PolicyFile, spec.MaxFloorBytes)
		case askKeys:
			var text string
			text, err = s.keys()
			reply.Body = []byte(text)
		case askNomad:
			var text string
			text, err = s.config.Nomad.token()
			reply.Body = []byte(text)
		default:
			return
		}
		if err != nil {
			reply.Error = err.Error()
		}
		if err := out.Encode(reply); err != nil {
			return
		}
	}
}

// postgresKeeper keeps the private Postgres running.
type postgresKeeper struct {
	url  string
	stop func()
}

func keepPostgres(ctx context.Context, s supervised) (*postgresKeeper, error) {
	pg, err := startPostgres(ctx, s.config, s.dirs, s.log)
	if err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-run.Done():
				stopPostgres(ctx, pg, s.log)
				return
			case <-pg.Exited():
			}
			s.log.Warn("the private database ended and is started again", "error", pg.Stop(run))
			if pg = s.restartPostgres(run); pg == nil {
				return
			}
		}
	}()
	return &postgresKeeper{url: pg.URL(), stop: func() { cancel(); <-done }}, nil
}

// restartPostgres tries until the server runs or ctx has ended, then nil.
func (s supervised) restartPostgres(ctx context.Context) *storage.Postgres {
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		pg, err := startPostgres(ctx, s.config, s.dirs, s.log)
		if err == nil {
			return pg
		}
		s.log.Error("the private database could not be started", "error", err, "again after", wait)
		if proc.Sleep(ctx, proc.System(), wait) != nil {
			return nil
		}
	}
}

// controlWord is the command of the control plane's process.
const controlWord = "control-plane"

func controlCommand() *cobra.Command {
	return &cobra.Command{
		Use: controlWord, Short: "The control plane's process (started by inspect serve)", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runControl(cmd.Context()) },
	}
}

// runControl is the control plane of a split installation.
func runControl(ctx context.Context) error {
	if os.Geteuid() == 0 {
		return usagef("%s is started by inspect serve, as an account of its own", controlWord)
	}
	if err := proc.KeepToItself(); err != nil {
		return err
	}
	for fd := handFD; fd <= lockFD; fd++ {
		unix.CloseOnExec(fd) // nothing that is started here has a use for them
	}
	boss, err := newBoss(os.NewFile(handFD, "supervisor"))
	if err != nil {
		return err
	}
	var h handed
	if err := boss.read(&h); err != nil {
		return fmt.Errorf("read what the supervisor hands over: %w", err)
	}
	var p ports
	for fd, to := range map[uintptr]*net.Listener{hooksFD: &p.hooks, peopleFD: &p.people, machinesFD: &p.machines} {
		f := os.NewFile(fd, "port")
		*to, err = net.FileListener(f)
		f.Close()
		if err != nil {
			return fmt.Errorf("take over a port: %w", err)
		}
	}
	defer p.Close()
	redactor := redact.New()
	log := newLog(h.Config.LogFormat, redactor)
	floor, err := openFloorBy(h.Config.PolicyFile, log, boss.policy)
	if err != nil {
		return usageError{err}
	}
	dirs := placesIn(h.Config.Data)
	side := nodeSide{name: h.Config.NodeName, socket: dirs.nodeSocket, key: ed25519.NewKeyFromSeed(h.Given.GrantSeed), uid: os.Getuid()}
	here := plane{
		config: h.Config, dirs: dirs, given: h.Given, ports: p, floor: floor, keys: boss.keys, redactor: redactor, log: log,
		quarantine: nodeQuarantine{nodeSide: side, dir: dirs.publish},
	}
	if n := h.Config.Nomad; h.Config.Engine == engineNomad {
		here.runnerUID = h.Config.RunnerUID
		here.engine, here.watch, err = nomadEngine(n.options(h.Given.Nomad, p.control(), boss.nomadToken, redactor, log))
		if err != nil {
			return err
		}
		return here.run(ctx)
	}
	engine := nodeEngine{side}
	here.engine, here.stopRunners, here.runnerUID = engine, engine.stopAll, wire.PeerRunner
	return here.run(ctx)
}

// boss is the control plane's end of what hand serves.
type boss struct {
	mu sync.Mutex
	c  net.Conn
	r  *bufio.Reader
}

func newBoss(f *os.File) (*boss, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("%s is started by inspect serve: %w", controlWord, err)
	}
	return &boss{c: c, r: bufio.NewReader(c)}, nil
}

func (b *boss) read(to any) error {
	line, err := b.r.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, to)
}

// policy asks for the policy file as it is now.
func (b *boss) policy() ([]byte, error) { return b.ask(askPolicy) }

// keys asks for the keys of secrets as they are now.
func (b *boss) keys() (string, error) {
	text, err := b.ask(askKeys)
	return string(text), err
}

// nomadToken asks for Nomad's ACL token as it is now.
func (b *boss) nomadToken() (string, error) {
	text, err := b.ask(askNomad)
	return string(text), err
}

func (b *boss) ask(what byte) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = b.c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := b.c.Write([]byte{what}); err != nil {
		return nil, err
	}
	var reply fileReply
	if err := b.read(&reply); err != nil {
		return nil, err
	}
	if reply.Error != "" {
		return nil, errors.New(reply.Error)
	}
	return reply.Body, nil
}
