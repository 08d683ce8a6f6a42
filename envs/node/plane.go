package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/sandbox"
	"inspect/envs/wire"
)

// Runners starts, finds and ends the runners of attempts on this machine, each
// by session and generation. Runners outlive the daemon.
type Runners interface {
	// Start begins an attempt's runner with its one-time secret, or finds the one
	// it began before.
	Start(ctx context.Context, session string, generation int, secret string) error
	// Running says whether it lives. One that never was does not.
	Running(ctx context.Context, session string, generation int) (bool, error)
	// Stop ends it with all it has started. Not found is success.
	Stop(ctx context.Context, session string, generation int) error
	// Log is the end of what it wrote, at most max bytes.
	Log(ctx context.Context, session string, generation int, max int) ([]byte, error)
	// List is every attempt whose runner is known here, living or not.
	List(ctx context.Context) ([]wire.RunnerState, error)
	// Forget ends one like Stop, and lets what is kept of it go.
	Forget(ctx context.Context, session string, generation int) error
	// StopAll ends every runner of this installation.
	StopAll(ctx context.Context)
	// RunsAs is the account of a living runner.
	RunsAs(session string, generation int) (uid int, ok bool)
}

// openControl checks a grant that only the control plane's own account may use.
func (n *Node) openControl(grant, verb string, uid int) (wire.Grant, error) {
	g, err := wire.OpenGrant(n.o.GrantKey, grant, n.o.Name, verb, uid, n.clock.Now())
	if err != nil {
		return g, err
	}
	if n.o.ControlUID == 0 || uid != n.o.ControlUID || g.PeerUID != uid {
		return wire.Grant{}, refuse("unauthorized", "grant refused: only the control plane of this machine may "+verb)
	}
	if verb == wire.VerbRun && n.o.Runners == nil || verb == wire.VerbQuarantine && n.o.Quarantines == nil {
		return wire.Grant{}, badRequest("this node daemon was started without what is needed to " + verb)
	}
	return g, nil
}

// isRunner says whether uid is the account of the living runner of the grant's attempt.
func (n *Node) isRunner(uid int, g wire.Grant) bool {
	if n.o.Runners == nil {
		return false
	}
	runs, ok := n.o.Runners.RunsAs(g.Session, g.Generation)
	return ok && runs == uid
}

func (n *Node) runStart(ctx context.Context, g wire.Grant, secret string) (wire.RunReply, error) {
	if secret == "" || strings.ContainsAny(secret, "\n\x00") || len(secret) > 256 {
		return wire.RunReply{}, badRequest("a runner is started with its one-time secret, one line of at most 256 bytes")
	}
	if err := n.fences.raise(g.Session, g.Generation); err != nil {
		return wire.RunReply{}, err
	}
	return wire.RunReply{Running: true}, n.o.Runners.Start(ctx, g.Session, g.Generation, secret)
}

func (n *Node) runState(ctx context.Context, g wire.Grant, _ string) (wire.RunReply, error) {
	running, err := n.o.Runners.Running(ctx, g.Session, g.Generation)
	return wire.RunReply{Running: running}, err
}

func (n *Node) runStop(ctx context.Context, g wire.Grant, _ string) (wire.RunReply, error) {
	return wire.RunReply{}, n.o.Runners.Stop(ctx, g.Session, g.Generation)
}

func (n *Node) runStopAll(ctx context.Context, _ wire.Grant, _ string) (wire.RunReply, error) {
	n.o.Runners.StopAll(ctx)
	return wire.RunReply{}, ctx.Err()
}

func (n *Node) runLogs(ctx context.Context, g wire.Grant, _ string) (wire.RunReply, error) {
	log, err := n.o.Runners.Log(ctx, g.Session, g.Generation, wire.MaxRunnerLog)
	return wire.RunReply{Log: log}, err
}

func (n *Node) runList(ctx context.Context, _ wire.Grant, _ string) (wire.RunReply, error) {
	list, err := n.o.Runners.List(ctx)
	return wire.RunReply{List: list}, err
}

func (n *Node) runForget(ctx context.Context, g wire.Grant, _ string) (wire.RunReply, error) {
	return wire.RunReply{}, n.o.Runners.Forget(ctx, g.Session, g.Generation)
}

// stopRunners ends every runner of this node, and what is left of quarantines.
func (n *Node) stopRunners(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if n.o.Runners != nil {
		n.o.Runners.StopAll(ctx)
	}
	if n.o.Quarantines == nil {
		return
	}
	ids, err := n.o.Quarantines.List()
	if err != nil {
		n.log.Warn("quarantines could not be listed", "error", err)
	}
	for _, id := range ids {
		if err := n.o.Quarantines.Reap(ctx, id); err != nil {
			n.log.Warn("a quarantine could not be ended", "sandbox", id, "error", err)
		}
	}
}

// Paths inside a quarantine; package publish knows them too.
const (
	quarantineInside = "/quarantine"
	quarantinePrefix = "quarantine-"
)

// quarantineForm is what a grant can name: nothing that climbs or hides.
var quarantineForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,79}(/[a-z0-9][a-z0-9-]{0,79})?$`)

// startQuarantine obeys a grant with the verb quarantine: a sandbox without any
// way out over one directory of the control plane's and one mirror.
func (n *Node) startQuarantine(ctx context.Context, uid int, grant string, files []*os.File) (string, *running, error) {
	g, err := n.openControl(grant, wire.VerbQuarantine, uid)
	if err != nil {
		return "", nil, err
	}
	if err := oneStream(files); err != nil {
		return "", nil, err
	}
	// The id is the caller's, and this launcher has a control group of its own:
	// it can be that of no sandbox of a session.
	id := g.Session
	if !strings.HasPrefix(id, quarantinePrefix) || g.RepositoryID <= 0 || len(g.Sockets) > 0 {
		return "", nil, badRequest("the grant does not name a quarantine and a repository")
	}
	dir, err := n.quarantineDir(g.Directory)
	if err != nil {
		return "", nil, badRequest(fmt.Sprintf("the directory %q cannot be a quarantine: %v", g.Directory, err))
	}
	unlock, err := n.ids.Lock(ctx, id)
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	if err := n.o.Quarantines.Reap(ctx, id); err != nil {
		return "", nil, fmt.Errorf("end the earlier %s: %w", id, err)
	}
	sb, err := n.o.Quarantines.Start(ctx, sandbox.Spec{
		ID: id, UID: n.o.QuarantineUID, GID: n.o.SandboxGID,
		Mounts: []sandbox.Mount{
			{Source: dir, Target: quarantineInside, Writable: true},
			{Source: n.mirrors.path(g.RepositoryID), Target: sandbox.MirrorPath},
		},
		Limits: g.Limits, Control: files[0],
	})
	if err != nil {
		return "", nil, err
	}
	r := &running{sandbox: sb, ways: &ways{n: n}, over: make(chan struct{})}
	go func() {
		r.end = sb.Wait()
		close(r.over)
	}()
	return id, r, nil
}

// quarantineDir is the path of a directory that the control plane made below
// the one for quarantines. Every step of it is its own, and none is a link.
func (n *Node) quarantineDir(name string) (string, error) {
	if !quarantineForm.MatchString(name) {
		return "", errors.New("it is not of the form NAME or NAME/NAME")
	}
	at, err := unix.Open(n.o.QuarantineDir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer func() { unix.Close(at) }()
	for step := range strings.SplitSeq(name, "/") {
		next, err := unix.Openat(at, step, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return "", err
		}
		unix.Close(at)
		at = next
		var st unix.Stat_t
		if err := unix.Fstat(at, &st); err != nil {
			return "", err
		}
		if int(st.Uid) != n.o.ControlUID {
			return "", fmt.Errorf("%s is not the control plane's", step)
		}
	}
	return filepath.Join(n.o.QuarantineDir, name), nil
}
