package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
	"inspect/envs/snapshot"
	"inspect/envs/spec"
	"inspect/envs/wire"
)

// Bounds of a refresh.
const (
	defaultRefresh = 30 * time.Minute // if the work names no timeout
	maxSetup       = 64               // commands, and lines that load data
	maxSetupLine   = 16 << 10         // bytes of one
	maxServices    = 20
	maxEgress      = 200
	maxEgressEntry = 300 // bytes
)

// refreshError is a refresh that failed by what the repository brought, in
// words for a person.
type refreshError struct{ words string }

func (e *refreshError) Error() string { return e.words }

func failed(format string, args ...any) error { return &refreshError{fmt.Sprintf(format, args...)} }

// refresh prepares a snapshot: fetch → checkout, or sync of an earlier one →
// setup → services and load → scan → fsck → search for secrets → snapshot →
// proof. Whatever the repository brings runs in a sandbox. It is idempotent: a
// snapshot that is there already is proved again and offered. If it fails
// nothing of it stays, and the earlier snapshot is as it was. The caller holds
// the snapshot's name.
func (n *Node) refresh(ctx context.Context, work int64, w wire.RefreshWork) (*wire.SnapshotOffer, error) {
	id := snapshot.SnapshotID(w.Snapshot)
	if err := errors.Join(id.Check(), n.checkRefresh(w)); err != nil {
		return nil, fmt.Errorf("the refresh cannot be done: %w", err)
	}
	unlockEnv, err := n.environs.Lock(ctx, w.Environment)
	if err != nil {
		return nil, err
	}
	defer unlockEnv()

	timeout := w.Timeout
	if timeout <= 0 {
		timeout = defaultRefresh
	}
	parent := ctx
	ctx, cancel := proc.WithTimeout(ctx, n.clock, timeout)
	defer cancel()
	r := &refresher{n: n, work: work, w: w, meta: snapshot.Meta{
		Environment: w.Environment, Generation: w.Generation, Commit: w.Commit, ConfigDigest: w.ConfigDigest, Image: imageOf(w.Image),
	}, phases: map[string]time.Duration{}}
	defer r.forget()
	info, err := r.run(ctx)
	if err != nil && parent.Err() == nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		err = failed("preparing the environment took longer than %s and was stopped while in phase %s\n%v", timeout, r.phase, err)
	}
	if err != nil {
		return nil, r.safe(err)
	}
	return &wire.SnapshotOffer{
		Work: work, Snapshot: w.Snapshot, Environment: w.Environment, Generation: w.Generation, Commit: w.Commit,
		ConfigDigest: w.ConfigDigest, Store: n.o.Store.Name(), Bytes: info.Bytes, From: r.from, Phases: r.phases,
	}, nil
}

var servicePattern = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,39}$`)

func (n *Node) checkRefresh(w wire.RefreshWork) error {
	switch {
	case w.Environment == "" || len(w.Environment) > 256:
		return errors.New("it names no environment")
	case w.From != "" && snapshot.SnapshotID(w.From).Check() != nil || w.From == w.Snapshot:
		return errors.New("it is to go on from what can be no other snapshot")
	case !commitPattern.MatchString(w.Commit):
		return errors.New("its commit is not a full commit id")
	case len(w.Image) > maxImage:
		return errors.New("its image has too long a name")
	case len(w.ConfigDigest) > 256:
		return errors.New("its configuration digest is too long")
	case len(w.Setup) > maxSetup:
		return fmt.Errorf("it has %d setup commands, at most %d are run", len(w.Setup), maxSetup)
	case len(w.Load) > maxSetup:
		return fmt.Errorf("it has %d lines that load data, at most %d are run", len(w.Load), maxSetup)
	case len(w.Services) > maxServices:
		return fmt.Errorf("it has %d services, at most %d are started", len(w.Services), maxServices)
	case len(w.Egress) > maxEgress:
		return fmt.Errorf("it has %d entries of egress, at most %d are allowed", len(w.Egress), maxEgress)
	}
	var lines []string
	for _, s := range slices.Concat(w.Setup, w.Load) {
		lines = append(lines, s.Run)
	}
	for _, name := range named(w) {
		if !spec.IsSecretName(name) {
			return fmt.Errorf("it names a secret %q, which is no name of one", redact.Cut(name, 60))
		}
	}
	for _, svc := range w.Services {
		if !servicePattern.MatchString(svc.Name) || svc.Command == "" || svc.Port < 0 || svc.Port > 65535 {
			return fmt.Errorf("a service has no proper name, command or port: %q", redact.Cut(svc.Name, 60))
		}
		lines = append(lines, svc.Command, svc.Ready, svc.Stop)
	}
	for _, line := range lines {
		if len(line) > maxSetupLine || strings.ContainsRune(line, 0) {
			return fmt.Errorf("a setup command, service or load line is longer than %d bytes or holds a zero byte", maxSetupLine)
		}
	}
	if len(w.Inject) > maxEgress {
		return fmt.Errorf("it has %d credentials to add, at most %d are allowed", len(w.Inject), maxEgress)
	}
	for _, e := range w.Egress {
		if e == "" || len(e) > maxEgressEntry {
			return errors.New("an entry of egress is empty or too long")
		}
	}
	// The proof's clone is named after the snapshot.
	return proofOf(w).Check()
}

func proofOf(w wire.RefreshWork) snapshot.CloneID {
	return snapshot.CloneID{Session: w.Snapshot, Generation: max(w.Generation, 0), Purpose: snapshot.PurposeProof}
}

// refresher is one refresh.
type refresher struct {
	n       *Node
	work    int64 // id of the work item
	w       wire.RefreshWork
	box     box
	given   []secret // by the control plane
	meta    snapshot.Meta
	modules []module // submodules that were fetched
	from    string   // snapshot it goes on from; empty: afresh
	phase   string
	phases  map[string]time.Duration
}

// in runs one phase and notes how long it took, in all if it is tried again.
func (r *refresher) in(phase string, fn func() error) error {
	r.phase = phase
	begun := r.n.clock.Now()
	err := fn()
	r.phases[phase] += r.n.clock.Now().Sub(begun)
	return err
}

func (r *refresher) run(ctx context.Context) (snapshot.Info, error) {
	n := r.n
	l, err := n.o.Store.List(ctx)
	if err != nil {
		return snapshot.Info{}, err
	}
	for _, s := range l.Snapshots {
		if s.ID != snapshot.SnapshotID(r.w.Snapshot) {
			continue
		}
		if s.Meta != r.meta {
			return snapshot.Info{}, fmt.Errorf("snapshot %s is there already and was made of something else", s.ID)
		}
		// Made before, perhaps by a daemon that was killed before it told. If
		// that made it afresh after all, it is made afresh once more than needed.
		r.from = r.w.From
		return s, r.proveOrDiscard(ctx)
	}
	if err := n.admission(ctx); err != nil {
		return snapshot.Info{}, err
	}
	if r.w.Image != "" { // before anything is fetched for it
		if err := r.in("image", func() error { return n.bringImage(ctx, r.w) }); err != nil {
			return snapshot.Info{}, err
		}
	}
	err = r.in("fetch", func() error {
		err := n.mirrors.Fetch(ctx, r.w.Remote, r.w.Commit)
		if err == nil {
			r.modules, err = n.fetchModules(ctx, r.w.Remote, r.w.Commit)
		}
		return err
	})
	if err != nil {
		return snapshot.Info{}, err
	}
	info, err := r.build(ctx, l.Snapshots)
	if err != nil {
		return snapshot.Info{}, err
	}
	return info, r.proveOrDiscard(ctx)
}

// build makes the snapshot, from the one that the work names if that is there.
// What does not work out on top of what earlier setups left is tried once more
// afresh: setup need not be made to run twice over the same files.
func (r *refresher) build(ctx context.Context, there []snapshot.Info) (snapshot.Info, error) {
	n := r.n
	if i := slices.IndexFunc(there, func(s snapshot.Info) bool { return r.w.From != "" && string(s.ID) == r.w.From }); i >= 0 {
		from := there[i]
		var err error
		if from.Meta.Environment != r.w.Environment || from.Meta.ConfigDigest != r.w.ConfigDigest {
			err = errors.New("it is of another environment or configuration")
		} else {
			r.from = r.w.From
			var info snapshot.Info
			var brought *refreshError
			info, err = r.buildOn(ctx, &from)
			if err == nil || ctx.Err() != nil || !errors.As(err, &brought) && !errors.Is(err, snapshot.ErrNotFound) {
				return info, err
			}
		}
		n.log.Warn("the refresh cannot go on from the earlier snapshot; preparing afresh", "snapshot", r.w.Snapshot, "from", r.w.From, "phase", r.phase, "error", err)
		r.from = ""
	}
	return r.buildOn(ctx, nil)
}

// buildOn makes the base, lets a sandbox fill it, and publishes it in the store.
// from is the snapshot it goes on from; nil: none.
func (r *refresher) buildOn(ctx context.Context, from *snapshot.Info) (info snapshot.Info, err error) {
	n := r.n
	base := snapshot.BaseID(r.w.Snapshot)
	// One a killed daemon left. It is ours: the store says so or refuses.
	if err := n.discardBase(ctx, base); err != nil {
		return info, fmt.Errorf("remove an earlier try: %w", err)
	}
	var b snapshot.Base
	if from != nil {
		err = r.in("clone", func() error { b, err = n.o.Store.Prepare(ctx, base, from.ID); return err })
	} else {
		b, err = n.o.Store.Prepare(ctx, base, "")
	}
	if err != nil {
		return info, err
	}
	if limit := r.w.Limits.DiskBytes; limit > 0 {
		// What is measured is known late: until then setup could fill what others need.
		if err := n.o.Store.Bound(ctx, base, limit); err != nil {
			return info, errors.Join(err, n.discardBase(context.WithoutCancel(ctx), base))
		}
	}
	defer func() {
		if err == nil {
			return
		}
		// The base is ours to remove: Prepare made it. It is gone already if
		// it became a snapshot.
		if derr := n.discardBase(context.WithoutCancel(ctx), base); derr != nil {
			n.log.Warn("the base of a failed refresh stays for now", "base", base, "error", derr)
		}
	}()
	if from == nil {
		err = n.makeDirs(b.Path)
	}
	if err != nil {
		return info, err
	}
	err = r.inSandbox(ctx, refreshPrefix+r.w.Snapshot, b.Path, true, func(c *stream.Client) error {
		if from != nil {
			err = r.in("sync", func() error { return r.sync(ctx, c, from.Meta.Commit) })
		} else {
			err = r.in("checkout", func() error { return r.checkout(ctx, c) })
		}
		if err != nil {
			return err
		}
		if err := r.in("setup", func() error { return r.setup(ctx, c) }); err != nil {
			return err
		}
		return r.data(ctx, c)
	})
	if err == nil {
		// Nothing of setup or of a service runs any more, however it was started.
		err = r.inSandbox(ctx, refreshPrefix+r.w.Snapshot, b.Path, false, func(c *stream.Client) error {
			if err := r.in("scan", func() error { return r.scan(ctx, c) }); err != nil {
				return err
			}
			return r.in("fsck", func() error { return r.fsck(ctx, c) })
		})
	}
	if err == nil {
		err = r.in("secrets", func() error { return r.search(ctx, b.Path) })
	}
	if err != nil {
		return info, err
	}
	err = r.in("snapshot", func() error {
		info, err = n.o.Store.Snapshot(ctx, base, snapshot.SnapshotID(r.w.Snapshot), r.meta)
		return err
	})
	if err == nil && info.LeftOutCount > 0 {
		n.log.Info("the snapshot has names that are no files; clones will not have them", "snapshot", r.w.Snapshot, "count", info.LeftOutCount, "names", info.LeftOut)
	}
	return info, err
}

// makeDirs makes the directories of a base that are mounted in sandboxes.
func (n *Node) makeDirs(base string) error {
	for _, d := range []string{workDir, homeDir, libDir} {
		p := filepath.Join(base, d)
		if err := os.Mkdir(p, 0o755); err != nil {
			return err
		}
		if os.Geteuid() == 0 {
			if err := os.Chown(p, n.o.SandboxUID, n.o.SandboxGID); err != nil {
				return err
			}
		}
	}
	return nil
}

// proveOrDiscard restores the snapshot once and looks at the result. One that
// cannot be restored is never offered.
func (r *refresher) proveOrDiscard(ctx context.Context) error {
	err := r.in("proof", func() error { return r.prove(ctx) })
	if err == nil {
		return nil
	}
	// Also when the refresh is only stopped: it is done again from the start.
	if derr := r.n.o.Store.Discard(context.WithoutCancel(ctx), snapshot.SnapshotID(r.w.Snapshot)); derr != nil {
		r.n.log.Warn("an unproved snapshot stays for now", "snapshot", r.w.Snapshot, "error", derr)
	}
	return fmt.Errorf("the snapshot was made but is no good: %w", err)
}

func (r *refresher) prove(ctx context.Context) error {
	n, id := r.n, proofOf(r.w)
	if err := n.discard(ctx, id); err != nil {
		return err
	}
	c, err := n.o.Store.Restore(ctx, snapshot.SnapshotID(r.w.Snapshot), id, 0)
	if err != nil {
		return err
	}
	defer func() {
		if err := n.discard(context.WithoutCancel(ctx), id); err != nil {
			n.log.Warn("the clone of a proof stays for now", "clone", id.String(), "error", err)
		}
	}()
	return r.inSandbox(ctx, id.String(), c.Path, false, func(c *stream.Client) error { return r.verifyTree(ctx, c) })
}

// inSandbox runs fn with a fresh sandbox over a tree and returns when
// everything in the sandbox has ended. Only if it is for setup it has the
// environment's egress.
func (r *refresher) inSandbox(ctx context.Context, id, tree string, setup bool, fn func(*stream.Client) error) error {
	n := r.n
	unlock, err := n.ids.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	near, far, err := stream.Pair()
	if err != nil {
		return err
	}
	limits := r.w.Limits
	limits.Timeout = 0 // the refresh has its own
	var sockets []string
	if setup && len(r.w.Egress) > 0 {
		sockets = []string{wire.SocketEgress}
	}
	compartments := 0
	if setup {
		compartments = withSecrets(r.w)
	}
	var proxy *refreshProxy
	run, err := n.start(ctx, id, tree, r.w.Remote.RepositoryID, r.w.Image, limits, sockets, compartments, far, func(w *ways) (authority []byte, err error) {
		if proxy, err = r.startProxy(ctx, w); proxy != nil {
			authority = proxy.authority
		}
		return authority, err
	})
	if err != nil {
		near.Close()
		return errors.Join(err, proxy.stop())
	}
	c := stream.NewClient(near)
	run.ways.letGo()
	ferr := c.Ready(ctx)
	if ferr == nil {
		r.box = box{id: id, tree: tree, limits: limits, sockets: sockets}
		ferr = fn(c)
	}
	_ = c.Close()
	if err := n.end(context.WithoutCancel(ctx), id); err != nil {
		return errors.Join(ferr, fmt.Errorf("end sandbox %s: %w", id, err), proxy.stop())
	}
	<-run.over
	perr := proxy.stop()
	if ferr != nil {
		return errors.Join(proxy.hint(hint(ferr, run.end)), perr)
	}
	return perr
}

// hint adds what the kernel knows about why a command failed.
func hint(err error, end wire.SandboxEnd) error {
	var words []string
	if end.OOM > 0 {
		words = append(words, fmt.Sprintf("the memory limit was reached and %d processes were killed for it", end.OOM))
	}
	if end.PidsHit > 0 {
		words = append(words, "the limit of processes was reached")
	}
	if end.DiskFull {
		words = append(words, "the disk limit was reached")
	}
	if end.Store != "" {
		words = append(words, end.Store)
	}
	if len(words) == 0 {
		return err
	}
	return fmt.Errorf("%w (%s)", err, strings.Join(words, "; "))
}

// discardBase ends what prepares a base and removes it.
func (n *Node) discardBase(ctx context.Context, id snapshot.BaseID) error {
	sandboxID := refreshPrefix + string(id)
	unlock, err := n.ids.Lock(ctx, sandboxID)
	if err != nil {
		return err
	}
	defer unlock()
	if err := n.end(ctx, sandboxID); err != nil {
		return err
	}
	return n.o.Store.Discard(ctx, id)
}
