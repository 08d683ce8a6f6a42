// Package node is the node daemon: the one privileged process of a machine. It
// prepares snapshots of environments (refresh), restores and discards clones,
// starts sandboxes on behalf of runners, keeps the trusted mirrors and collects
// what nobody needs any more.
//
// In come work and references from the control plane (/node/v1) and grants the
// control plane signed, which runners bring over a unix socket. Out go
// snapshots that were proved, clones, sandboxes and the node's state. It obeys
// nobody without a grant. Whatever a repository brings runs in a sandbox only;
// git runs outside only in the mirrors, where no sandbox can write.
//
// All state is on disk and in the kernel (trees, mirrors, cgroups), so a daemon
// that was killed goes on where it was; sandboxes do not notice.
package node

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"inspect/checks/redact"
	"inspect/envs/image"
	"inspect/envs/proc"
	"inspect/envs/sandbox"
	"inspect/envs/snapshot"
	"inspect/envs/snapshot/locks"
	"inspect/envs/wire"
)

// ErrStopAll, as the cause of the context given to Run, means that the whole
// product stops: the daemon's sandboxes are ended too.
var ErrStopAll = errors.New("everything is stopped")

// Options of New. Fields without a default must be set.
type Options struct {
	Name       string            // of the node, as the control plane knows it
	Root       string            // mirrors and the daemon's own files; made if needed
	Socket     string            // path of the unix socket runners come to; at most 107 bytes
	ControlURL string            // of the control plane's machine listener
	Token      string            // bearer token of this node
	GrantKey   ed25519.PublicKey // of the control plane
	GitBase    string            // the one place repositories are fetched from; default https://github.com

	Store    snapshot.Store
	Launcher Launcher

	SandboxUID, SandboxGID int
	// EgressUID and EgressGID are who the proxy of a refresh runs as, if this is
	// root; default the sandboxes' plus two. Binary is the program it is started
	// from, as "egress-proxy": the inspect binary, which that user must be able
	// to execute. Without it a refresh that declares egress fails.
	EgressUID, EgressGID int
	Binary               string
	// MirrorUID and MirrorGID are who git runs as in the mirrors, if this is
	// root; default the sandboxes' plus four.
	MirrorUID, MirrorGID int
	// RegistryAuth is a file with credentials for registries of images, in the form
	// of docker's config.json, which only this account can read. It is read at each
	// use; empty: there are none. Images are fetched as the mirrors' account.
	RegistryAuth string
	// ControlUID is the account of a control plane on this machine that is not
	// root: what it may ask for with VerbRun and VerbQuarantine. 0: there is none.
	ControlUID int
	Runners    Runners // whom VerbRun reaches; nil: runners are started elsewhere
	// Quarantines starts the sandboxes of VerbQuarantine, over directories below
	// QuarantineDir that belong to ControlUID, as QuarantineUID and the
	// sandboxes' group. nil: there are none.
	Quarantines   Launcher
	QuarantineDir string
	QuarantineUID int
	Expose        []string // host directories shown in sandboxes whose bin is put on PATH

	MinFree      int64         // bytes; below it nothing is restored or refreshed. Default 1 GiB; negative: no floor
	Grace        time.Duration // age under which nothing is collected; default 10 min
	CollectEvery time.Duration // default 1 min
	StateEvery   time.Duration // default 10 s
	Refreshes    int           // at the same time; default 1

	// Advertise tells the engine's agent on this machine what the node has. It is
	// called when that has changed, and every AdvertiseEvery; at the end with a zero
	// Advert: nothing is to be placed here. nil: nobody is told.
	Advertise      func(context.Context, Advert) error
	AdvertiseEvery time.Duration // default 3 min

	HTTP     http.RoundTripper // default: one without proxies
	Redactor *redact.Redactor  // known secrets; default none but the patterns
	Clock    proc.Clock        // default proc.System()
	Log      *slog.Logger      // default: nothing is logged
}

// Node is a node daemon.
type Node struct {
	instance  string        // of this process
	announced chan struct{} // closed when the control plane knows of this process
	telling   chan struct{} // held while it is told of this node
	adverts   chan Advert   // the newest, for whoever tells it
	o         Options
	clock     proc.Clock
	log       *slog.Logger
	control   *control
	mirrors   *mirrors
	images    *image.Store
	redactor  *redact.Redactor
	probe     sandbox.Probe
	fences    fences

	ways     wayKeeper
	ids      locks.Keyed   // sandbox ids: start and discard one after the other
	environs locks.Keyed   // environments: refreshes never overlap
	pulls    locks.Keyed   // digests of images: each is fetched once
	names    locks.Keyed   // snapshots a refresh works on: held while it does
	slots    chan struct{} // refreshes at the same time

	mu        sync.Mutex
	running   map[string]*running // sandboxes this process started
	working   map[int64]bool      // work items in hand
	ofModules map[int64]*mirrors  // by the repository that they are submodules of
	secrets   map[string]int      // values that refreshes were given, by how many of them
	offered   map[snapshot.SnapshotID]time.Time

	weighing sync.Mutex
	weights  map[snapshot.CloneID]weighed
}

// New checks the options. Nothing is started or written.
func New(o Options) (*Node, error) {
	switch {
	case o.Name == "":
		return nil, errors.New("node daemon: the node has no name")
	case o.Root == "" || o.Socket == "":
		return nil, errors.New("node daemon: the data directory or the socket's path is missing")
	case len(o.Socket) > 107: // sun_path: unix(7)
		return nil, fmt.Errorf("node daemon: the socket's path has %d bytes, the system allows 107: choose a shorter data directory than that of %s", len(o.Socket), o.Socket)
	case len(o.GrantKey) != ed25519.PublicKeySize:
		return nil, errors.New("node daemon: the control plane's grant key is missing")
	case o.Store == nil || o.Launcher == nil:
		return nil, errors.New("node daemon: no snapshot store or no sandbox launcher was given")
	case os.Geteuid() == 0 && (o.SandboxUID <= 0 || o.SandboxGID <= 0):
		return nil, errors.New("node daemon: the sandbox's uid and gid must be those of an unprivileged account")
	}
	if o.GitBase == "" {
		o.GitBase = "https://github.com"
	}
	base, err := parseGitBase(o.GitBase)
	if err != nil {
		return nil, fmt.Errorf("node daemon: %w", err)
	}
	if o.MinFree == 0 {
		o.MinFree = 1 << 30
	}
	if o.EgressUID == 0 {
		o.EgressUID, o.EgressGID = o.SandboxUID+2, o.SandboxGID+2
	}
	if o.MirrorUID == 0 {
		o.MirrorUID, o.MirrorGID = o.SandboxUID+4, o.SandboxGID+4
	}
	def(&o.Grace, 10*time.Minute)
	def(&o.CollectEvery, time.Minute)
	def(&o.StateEvery, 10*time.Second)
	def(&o.AdvertiseEvery, 3*time.Minute)
	if o.Refreshes <= 0 {
		o.Refreshes = 1
	}
	if o.HTTP == nil {
		// No proxy from the environment: the token is for the control plane alone.
		o.HTTP = &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 4,
			IdleConnTimeout:     90 * time.Second,
		}
	}
	if o.Redactor == nil {
		o.Redactor = redact.New()
	}
	if o.Clock == nil {
		o.Clock = proc.System()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Root, err = filepath.Abs(o.Root)
	if err != nil {
		return nil, fmt.Errorf("node daemon: %w", err)
	}
	c, err := newControl(o.ControlURL, o.Token, o.HTTP)
	if err != nil {
		return nil, fmt.Errorf("node daemon: %w", err)
	}
	var account *proc.Credential
	if os.Geteuid() == 0 && base.Scheme != schemeFile { // a person's own clone only that person may read
		account = &proc.Credential{UID: o.MirrorUID, GID: o.MirrorGID}
	}
	return &Node{
		o: o, clock: o.Clock, log: o.Log, control: c, redactor: o.Redactor,
		mirrors: &mirrors{
			dir: filepath.Join(o.Root, "mirrors"), gitBase: base, clock: o.Clock,
			token: func(ctx context.Context, r wire.Remote) (wire.GitToken, error) {
				return c.gitToken(ctx, wire.GitTokenRequest{RepositoryID: r.RepositoryID})
			},
			locks: map[int64]chan struct{}{}, ready: map[int64]bool{}, account: account,
		},
		images: image.New(image.Options{
			Store: o.Store, UID: o.SandboxUID, GID: o.SandboxGID,
			Start: func(ctx context.Context, s sandbox.Spec) (func() wire.SandboxEnd, error) {
				b, err := o.Launcher.Start(ctx, s)
				if err != nil {
					return nil, err
				}
				return b.Wait, nil
			},
		}),
		fences:   fences{dir: filepath.Join(o.Root, "generations")},
		slots:    make(chan struct{}, o.Refreshes),
		instance: rand.Text(), announced: make(chan struct{}), telling: make(chan struct{}, 1), adverts: make(chan Advert, 1),
		ofModules: map[int64]*mirrors{},
		running:   map[string]*running{}, working: map[int64]bool{}, secrets: map[string]int{}, offered: map[snapshot.SnapshotID]time.Time{},
	}, nil
}

func def(d *time.Duration, v time.Duration) {
	if *d <= 0 {
		*d = v
	}
}

// Run serves until ctx ends and returns when everything it started has ended,
// except sandboxes: those go on without the daemon, unless the context's cause
// is ErrStopAll. The error says why the daemon could not start; after a start
// it is nil.
func (n *Node) Run(ctx context.Context) error {
	unlock, err := n.prepare(ctx)
	if err != nil {
		return fmt.Errorf("start the node daemon: %w", err)
	}
	defer unlock()
	srv, err := n.listen()
	if err != nil {
		return fmt.Errorf("start the node daemon: %w", err)
	}
	// Serving first: what an earlier daemon left is reclaimed in the background.
	var wg sync.WaitGroup
	for _, loop := range []func(context.Context){srv.serve, n.advertise, n.advertLoop, n.workLoop, n.collectLoop} {
		wg.Go(func() { loop(ctx) })
	}
	n.log.Info("node daemon is serving", "node", n.o.Name, "socket", n.o.Socket, "store", n.o.Store.Name(), "tier", n.probe.Tier, "limits", n.probe.Limits)
	wg.Wait()
	n.withdraw(context.WithoutCancel(ctx))
	if errors.Is(context.Cause(ctx), ErrStopAll) {
		n.stopRunners(context.WithoutCancel(ctx))
		n.stopSandboxes(context.WithoutCancel(ctx))
	}
	return nil
}

// prepare makes the directories, takes the lock and asks the launcher what it can do.
func (n *Node) prepare(ctx context.Context) (unlock func(), err error) {
	for _, d := range []string{n.o.Root, filepath.Dir(n.o.Socket), n.usedDir()} {
		// 0711: runners and sandboxes of other uids pass, and need not list.
		if err := os.MkdirAll(d, 0o711); err != nil {
			return nil, err
		}
	}
	if err := n.mirrors.prepare(); err != nil {
		return nil, fmt.Errorf("the directory of mirrors: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(n.o.Root, "node.lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("another node daemon uses %s", n.o.Root)
	}
	unlock = func() { lock.Close() }
	if n.probe, err = n.o.Launcher.Probe(ctx); err != nil {
		unlock()
		return nil, fmt.Errorf("this machine cannot isolate a sandbox: %w", err)
	}
	tmp := n.gitConfigPath() + ".new"
	if err := errors.Join(os.WriteFile(tmp, []byte(gitConfig), 0o644), os.Chmod(tmp, 0o644), os.Rename(tmp, n.gitConfigPath())); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// advertise tells the control plane of this node until ctx ends.
func (n *Node) advertise(ctx context.Context) {
	known, usable, announced := true, true, false
	for ctx.Err() == nil {
		n.telling <- struct{}{}
		l, sp, away := n.look(ctx)
		if ok := away == nil; ok != usable && ctx.Err() == nil {
			usable = ok
			if ok {
				n.log.Info("the store of snapshots can be used again")
			} else {
				n.log.Warn("the store of snapshots cannot be used: nothing is placed here until it can", "error", away)
			}
		}
		var err error
		if away == nil {
			n.offer(n.advertOf(l, sp))
			err = n.control.state(ctx, n.stateOf(l, sp))
		} else {
			n.offer(Advert{})
			err = n.control.state(ctx, n.stateWithout(away))
		}
		<-n.telling
		n.weigh(ctx, l.Clones) // told the next time: nobody waits for it
		if err == nil && away == nil && !announced {
			announced = true
			close(n.announced)
		}
		if ok := err == nil; ok != known && ctx.Err() == nil {
			known = ok
			if ok {
				n.log.Info("the control plane takes this node's state again")
			} else {
				n.log.Warn("this node's state could not be told; going on", "error", err)
			}
		}
		wait := n.o.StateEvery
		if !announced {
			wait = min(wait, time.Second)
		}
		if proc.Sleep(ctx, n.clock, wait) != nil {
			return
		}
	}
}

// tell tells the control plane of this node now, if that takes no longer than
// tellTimeout; else it is told in its turn.
func (n *Node) tell(ctx context.Context) {
	ctx, cancel := proc.WithTimeout(ctx, n.clock, tellTimeout)
	defer cancel()
	select {
	case n.telling <- struct{}{}: // what is told later was seen later
		defer func() { <-n.telling }()
	case <-ctx.Done():
		return
	}
	s, err := n.state(ctx)
	if err == nil {
		err = n.control.state(ctx, s)
	}
	if err != nil {
		n.log.Warn("the control plane could not be told at once that there is no room", "error", err)
	}
}

const tellTimeout = 5 * time.Second

func (n *Node) state(ctx context.Context) (wire.NodeState, error) {
	l, sp, err := n.look(ctx)
	if err != nil {
		return wire.NodeState{}, err
	}
	return n.stateOf(l, sp), nil
}

// look is what the store has.
func (n *Node) look(ctx context.Context) (snapshot.Listing, snapshot.Space, error) {
	l, err := n.o.Store.List(ctx)
	if err != nil {
		return l, snapshot.Space{}, err
	}
	n.weighedOf(l.Clones)
	sp, err := n.o.Store.Space(ctx)
	return l, sp, err
}

// stateWithout is that of a node whose store cannot be used. What is in it is not
// known then, which is not the same as nothing.
func (n *Node) stateWithout(away error) wire.NodeState {
	s := n.stateOf(snapshot.Listing{}, snapshot.Space{})
	s.Clones, s.Snapshots = nil, nil
	s.Refuses = redact.Cut(fmt.Sprintf("node %s cannot use its store of snapshots: %v", n.o.Name, away), maxRefuses)
	return s
}

// maxRefuses bounds, in bytes, why a node takes nothing.
const maxRefuses = 500

func (n *Node) stateOf(l snapshot.Listing, sp snapshot.Space) wire.NodeState {
	s := wire.NodeState{
		Node: n.o.Name, Instance: n.instance, Version: wire.Version, Store: n.o.Store.Name(), Forks: n.o.Store.Forks(), Tier: n.probe.Tier, Limits: n.probe.Limits,
		FreeBytes: sp.Free, TotalBytes: sp.Total, Refuses: n.refuses(sp), Clones: []wire.Clone{}, Snapshots: []string{}, Work: []int64{},
	}
	n.mu.Lock()
	for id := range n.working {
		s.Work = append(s.Work, id)
	}
	n.mu.Unlock()
	slices.Sort(s.Work)
	for _, c := range l.Clones {
		if c.ID.Purpose != snapshot.PurposeProof {
			s.Clones = append(s.Clones, snapshot.CloneOf(c))
		}
	}
	for _, i := range l.Snapshots {
		s.Snapshots = append(s.Snapshots, string(i.ID))
	}
	return s
}
