package runner

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/egress"
	"inspect/envs/proc"
	"inspect/envs/wire"
)

// Options say which attempt to run and where everybody is.
type Options struct {
	ControlURL string // base address of the machines' API, e.g. "http://127.0.0.1:7462"
	Session    string
	Generation int
	// Secret is the one-time proof of identity. It comes from standard input
	// (ReadSecret), never from arguments or environment, and is forgotten once
	// it has been exchanged.
	Secret string
	// IdentityFile, if set, holds the proof of identity in place of Secret: a token
	// that the machine's cluster signs and renews. It is read anew each time.
	IdentityFile string
	// NodeSocket is the node daemon's unix socket; unused if Node is set.
	NodeSocket string
	// Spool is a directory for events and output that wait to be sent. It is
	// made if it is not there and removed at the end. It must belong to this
	// attempt alone.
	Spool string

	Node  Node              // nil: the daemon at NodeSocket
	HTTP  http.RoundTripper // nil: one of our own, without proxies
	Clock proc.Clock        // nil: the system's
	Log   *slog.Logger      // nil: nothing is logged

	pace      pace
	places    places
	maxBundle int64 // bytes; 0: wire.MaxBundleBytes
	egress    func(*egress.Options)
}

// pace is how often and how long things are done. Tests make it faster.
type pace struct {
	heartbeat  time.Duration // every 10 s
	turn       time.Duration // a bundle of committed work at least this often
	restore    time.Duration // most a restore may take
	sandbox    time.Duration // most a sandbox may take to start
	keepTurn   time.Duration // most the keeping of a turn may take
	boot       time.Duration // most the agent may take until it can be given a prompt
	service    time.Duration // most a declared service may take until it is ready
	sandboxEnd time.Duration // most its end may take to be told
	git        time.Duration // most one git command may take
	script     time.Duration // most one small command of ours may take
	interrupt  time.Duration // between asking the agent to stop and killing it
	report     time.Duration // kept free before EndDeadline to upload and report
	overtime   time.Duration // how long after EndDeadline the report is still tried
	discard    time.Duration // most the discarding at the end may take
	request    time.Duration // one ordinary call to the control plane
	poll       time.Duration // one long poll; the control plane answers within 25 s
	upload     time.Duration // one upload
	retryMax   time.Duration // longest pause between tries of a call
	events     time.Duration // pause of the event sender for each event sent
}

func (p *pace) setDefaults() {
	for _, d := range []struct {
		to *time.Duration
		is time.Duration
	}{
		{&p.heartbeat, 10 * time.Second},
		{&p.turn, time.Minute},
		{&p.restore, 10 * time.Minute},
		{&p.sandbox, 3 * time.Minute},
		{&p.keepTurn, 10 * time.Second},
		{&p.boot, 90 * time.Second},
		{&p.service, time.Minute},
		{&p.sandboxEnd, 15 * time.Second},
		{&p.git, 2 * time.Minute},
		{&p.script, 20 * time.Second},
		{&p.interrupt, 10 * time.Second},
		{&p.report, 30 * time.Second},
		{&p.overtime, 15 * time.Minute},
		{&p.discard, 30 * time.Second},
		{&p.request, 30 * time.Second},
		{&p.poll, 40 * time.Second},
		{&p.upload, 5 * time.Minute},
		{&p.retryMax, 5 * time.Second},
		{&p.events, 6 * time.Millisecond}, // 1/6 ms = 166/s, below wire.MaxEventsPerSecond
	} {
		if *d.to == 0 {
			*d.to = d.is
		}
	}
}

// places are directories inside the sandbox. They are fixed; only tests that
// have no sandbox change them.
type places struct {
	workspace string
	home      string
	mirror    string
}

func (p *places) setDefaults() {
	if p.workspace == "" {
		*p = places{workspace: "/workspace", home: "/home/agent", mirror: "/run/inspect/mirror.git"}
	}
}

// scratch is where our own files lie inside the sandbox.
func (p places) scratch() string { return p.home + "/.inspect" }

func (o *Options) check() error {
	u, err := url.Parse(o.ControlURL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("the control plane's address %q is not of the form http://host:port", o.ControlURL)
	case o.Session == "" || strings.ContainsAny(o.Session, "/\\ \t\n") || len(o.Session) > 64:
		return fmt.Errorf("%q is not a session", o.Session)
	case o.Generation < 1:
		return fmt.Errorf("%d is not a generation", o.Generation)
	case (o.Secret == "") == (o.IdentityFile == ""):
		return errors.New("this runner's identity is proved with either a one-time secret or the file of an identity")
	case o.Spool == "":
		return errors.New("there is no spool directory")
	case o.Node == nil && o.NodeSocket == "":
		return errors.New("there is no socket of the node daemon")
	}
	if o.Clock == nil {
		o.Clock = proc.System()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.maxBundle == 0 {
		o.maxBundle = wire.MaxBundleBytes
	}
	o.pace.setDefaults()
	o.places.setDefaults()
	return nil
}

// maxIdentity bounds an identity's file, in bytes.
const maxIdentity = 8 << 10

// readIdentity reads the token in the file of an identity. It may be just being
// written: an error or half a token is worth another try.
func readIdentity(path string) (string, error) {
	f, err := os.OpenFile(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open this runner's identity: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("read this runner's identity: %w", err)
	}
	if !st.Mode().IsRegular() || st.Size() > maxIdentity {
		return "", fmt.Errorf("%s is no file of at most %d bytes, so it is no identity", path, maxIdentity)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxIdentity))
	if err != nil {
		return "", fmt.Errorf("read this runner's identity: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", fmt.Errorf("%s holds no identity yet", path)
	}
	return token, nil
}

// maxSecret bounds the secret's line, in bytes.
const maxSecret = 4 << 10

// ReadSecret reads the one-time secret: the first line of r, which is the
// runner's standard input.
func ReadSecret(r io.Reader) (string, error) {
	line, err := bufio.NewReader(io.LimitReader(r, maxSecret)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read the one-time secret from standard input: %w", err)
	}
	if line = strings.TrimSpace(line); line == "" {
		return "", errors.New("standard input holds no one-time secret")
	}
	return line, nil
}
