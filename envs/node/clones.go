package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/sandbox"
	"inspect/envs/snapshot"
	"inspect/envs/wire"
)

// running is a sandbox this process started.
type running struct {
	sandbox Sandbox
	beside  string        // id of the sandbox it is a compartment of
	ways    *ways         // out of it
	over    chan struct{} // closed when it has ended
	end     wire.SandboxEnd
}

// open checks a grant and what it names. One of an attempt that was replaced is
// refused.
func (n *Node) open(grant, verb string, uid int) (wire.Grant, snapshot.CloneID, error) {
	g, err := wire.OpenGrant(n.o.GrantKey, grant, n.o.Name, verb, uid, n.clock.Now())
	if err != nil {
		return g, snapshot.CloneID{}, err
	}
	if g.PeerUID == wire.PeerRunner && !n.isRunner(uid, g) {
		return wire.Grant{}, snapshot.CloneID{}, refuse("unauthorized", "grant refused: the caller is not the runner of this attempt")
	}
	id := snapshot.CloneID{Session: g.Session, Generation: g.Generation, Purpose: g.Purpose}
	if g.Purpose != wire.PurposeWork && g.Purpose != wire.PurposeVerify {
		return g, id, badRequest("the grant is for no purpose that is known here")
	}
	if verb != wire.VerbDiscard && !wire.TierAtLeast(n.probe.Tier, g.Tier) {
		return g, id, refuse("tier", fmt.Sprintf("the session may only run in a sandbox of the tier %s or a stronger one, node %s has %s: start its daemon with --sandbox %s, or lower the floor",
			g.Tier, n.o.Name, n.probe.Tier, g.Tier))
	}
	if err := id.Check(); err != nil {
		return g, id, err
	}
	return g, id, n.fences.raise(id.Session, id.Generation)
}

// restore obeys a grant with the verb restore. Before anybody hears that there is
// no room the control plane does, so that the next attempt is not placed here.
func (n *Node) restore(ctx context.Context, uid int, grant string) (wire.RestoreReply, error) {
	reply, err := n.restoreGranted(ctx, uid, grant)
	if err != nil && asError(err).Code == "no_space" {
		n.tell(ctx)
	}
	return reply, err
}

func (n *Node) restoreGranted(ctx context.Context, uid int, grant string) (wire.RestoreReply, error) {
	begun := n.clock.Now()
	g, id, err := n.open(grant, wire.VerbRestore, uid)
	if err != nil {
		return wire.RestoreReply{}, err
	}
	if full := n.admission(ctx); full != nil {
		// One that is there is given again even then.
		if _, err := n.o.Store.Clone(ctx, id); errors.Is(err, snapshot.ErrNotFound) {
			return wire.RestoreReply{}, full
		} else if err != nil {
			return wire.RestoreReply{}, err
		}
	}
	var c snapshot.Clone
	if g.Fork == nil {
		c, err = n.o.Store.Restore(ctx, snapshot.SnapshotID(g.Snapshot), id, g.Limits.DiskBytes)
	} else {
		c, err = n.fork(ctx, g, id)
	}
	if err != nil {
		return wire.RestoreReply{}, err
	}
	d := n.clock.Now().Sub(begun)
	n.log.Info("restored", "clone", id.String(), "snapshot", g.Snapshot, "existed", c.Existed, "duration", d)
	return wire.RestoreReply{Commit: c.Commit, Store: n.o.Store.Name(), Tier: n.probe.Tier, Limits: n.probe.Limits, Duration: d}, nil
}

// fork makes a clone of what another was after a turn.
func (n *Node) fork(ctx context.Context, g wire.Grant, id snapshot.CloneID) (snapshot.Clone, error) {
	from := snapshot.CloneID{Session: g.Fork.Session, Generation: g.Fork.Generation, Purpose: wire.PurposeWork}
	if err := from.Check(); err != nil {
		return snapshot.Clone{}, err
	}
	if id.Purpose != wire.PurposeWork || from == id || g.Fork.Turn < 1 {
		return snapshot.Clone{}, badRequest("only a clone for work is made of a turn, and of another clone's")
	}
	return n.o.Store.Fork(ctx, from, g.Fork.Turn, id, g.Limits.DiskBytes)
}

// MaxTurns is how many turns of one clone are kept: what each has changed stays
// on the disk until the clone is discarded.
const MaxTurns = 20

// keepTurn obeys a grant with the verb turn.
func (n *Node) keepTurn(ctx context.Context, uid int, r wire.TurnRequest) error {
	_, id, err := n.open(r.Grant, wire.VerbTurn, uid)
	if err != nil {
		return err
	}
	if id.Purpose != wire.PurposeWork || r.Turn < 1 {
		return badRequest("turns are of clones for work, and counted from 1")
	}
	if r.Turn > MaxTurns {
		return refuse("too_large", fmt.Sprintf("of one attempt the first %d turns are kept, this is turn %d", MaxTurns, r.Turn))
	}
	unlock, err := n.ids.Lock(ctx, id.String())
	if err != nil {
		return err
	}
	defer unlock()
	begun := n.clock.Now()
	if err := n.o.Store.KeepTurn(ctx, id, r.Turn); err != nil {
		return err
	}
	n.log.Info("kept a turn", "clone", id.String(), "turn", r.Turn, "duration", n.clock.Now().Sub(begun))
	return nil
}

// discardGranted obeys a grant with the verb discard.
func (n *Node) discardGranted(ctx context.Context, uid int, grant string) error {
	_, id, err := n.open(grant, wire.VerbDiscard, uid)
	if err != nil {
		return err
	}
	return n.discard(ctx, id)
}

// discard ends what runs in a clone, then removes it.
func (n *Node) discard(ctx context.Context, id snapshot.CloneID) error {
	unlock, err := n.ids.Lock(ctx, id.String())
	if err != nil {
		return err
	}
	defer unlock()
	if err := n.end(ctx, id.String()); err != nil {
		return fmt.Errorf("end the sandbox of %s before it is discarded: %w", id, err)
	}
	if err := n.o.Store.Discard(ctx, id); err != nil {
		return err
	}
	n.log.Info("discarded", "clone", id.String())
	return nil
}

// end kills the sandbox with that id, whoever started it, with what is beside
// it. The caller holds the id.
func (n *Node) end(ctx context.Context, id string) error {
	n.mu.Lock()
	var all []*running
	for other, r := range n.running {
		if other == id || r.beside == id {
			all = append(all, r)
		}
	}
	n.mu.Unlock()
	for _, r := range all {
		if err := r.sandbox.Kill(ctx); err != nil {
			return err
		}
		select {
		case <-r.over:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return n.o.Launcher.Reap(ctx, id)
}

// start starts a sandbox over a tree. One with the same id that still runs is
// ended first: who asks again holds the lifeline no more. The caller holds the
// id; img is the image whose programs are inside, "" for this machine's;
// control is closed in any case. The listeners of sockets are in the
// result's ways; who does not pass them on lets go of them. compartments
// is how many are to run beside it at a time. authority is given
// the sockets before the sandbox starts and returns the certificate of the
// authority it is to trust because of them; nil: there is none.
func (n *Node) start(ctx context.Context, id, tree string, repository int64, img string, limits wire.Limits, sockets []string, compartments int, control *os.File, authority func(*ways) ([]byte, error)) (*running, error) {
	if err := n.end(ctx, id); err != nil {
		control.Close()
		return nil, fmt.Errorf("end the earlier sandbox %s: %w", id, err)
	}
	spec, err := n.sandboxSpec(id, tree, repository, limits, control)
	if err == nil {
		err = n.withImage(ctx, &spec, img)
	}
	if err != nil {
		control.Close()
		return nil, err
	}
	w, err := n.makeWays(id, sockets)
	if err != nil {
		control.Close()
		return nil, err
	}
	trusted, err := authority(w)
	if err = errors.Join(err, w.believe(trusted)); err != nil {
		control.Close()
		w.letGo()
		w.remove()
		return nil, err
	}
	w.apply(&spec)
	spec.Compartments = min(compartments, maxBeside)
	return n.launch(ctx, spec, w)
}

// launch starts what a spec describes and keeps account of it.
func (n *Node) launch(ctx context.Context, spec sandbox.Spec, w *ways) (*running, error) {
	id, trouble := spec.ID, n.watched(&spec)
	sb, err := n.o.Launcher.Start(ctx, spec)
	if err != nil {
		w.letGo()
		w.remove()
		return nil, fmt.Errorf("start sandbox %s: %w", id, err)
	}
	r := &running{sandbox: sb, beside: spec.Beside, ways: w, over: make(chan struct{})}
	n.mu.Lock()
	n.running[id] = r
	n.mu.Unlock()
	// It ends with its sandbox, which may outlive Run: see there.
	go func() {
		r.end = n.endOf(sb.Wait(), spec, trouble)
		w.remove()
		n.mu.Lock()
		if n.running[id] == r {
			delete(n.running, id)
		}
		n.mu.Unlock()
		close(r.over)
	}()
	return r, nil
}

// stopSandboxes ends every sandbox of this node.
func (n *Node) stopSandboxes(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	left := map[string]bool{}
	n.mu.Lock()
	for id := range n.running {
		left[id] = true
	}
	n.mu.Unlock()
	ids, err := n.o.Launcher.List()
	if err != nil {
		n.log.Warn("sandboxes could not be listed", "error", err)
	}
	for _, id := range ids {
		if _, _, mine := ours(id); mine {
			left[id] = true
		}
	}
	for id := range left {
		if err := n.end(ctx, id); err != nil {
			n.log.Warn("a sandbox could not be ended", "sandbox", id, "error", err)
		}
	}
}

// sandboxConn serves one sandbox request and keeps the connection until the
// sandbox has ended. It owns c and the descriptors.
func (n *Node) sandboxConn(ctx context.Context, c *net.UnixConn, uid int, head []byte, files []*os.File, granted func()) {
	defer c.Close()
	id, r, err := func() (string, *running, error) {
		line, all, err := readLine(c, head, files)
		files = all
		defer func() { closeAll(files) }() // twice for the one that was used, harmless
		if err != nil {
			return "", nil, err
		}
		return n.startGranted(ctx, uid, line, files)
	}()
	_ = c.SetWriteDeadline(time.Now().Add(helloTimeout))
	if err != nil {
		n.log.Warn("refused to start a sandbox", "uid", uid, "error", err)
		_ = json.NewEncoder(c).Encode(wire.SandboxReply{Error: asError(err)})
		return
	}
	granted()
	if err := sendReply(c, wire.SandboxReply{OK: true, ID: id, Sockets: r.ways.names}, r.ways.listeners); err != nil {
		n.log.Warn("who asked for a sandbox is gone; its lifeline decides", "sandbox", id, "error", err)
	}
	r.ways.letGo() // theirs alone now: when they end, nobody listens
	select {
	case <-r.over:
		_ = c.SetWriteDeadline(time.Now().Add(helloTimeout))
		_ = json.NewEncoder(c).Encode(r.end)
	case <-ctx.Done(): // the sandbox goes on without us
	}
}

func (n *Node) startGranted(ctx context.Context, uid int, line []byte, files []*os.File) (string, *running, error) {
	var req wire.SandboxRequest
	if err := json.Unmarshal(line, &req); err != nil {
		return "", nil, badRequest("the request is not JSON")
	}
	if req.Quarantine {
		return n.startQuarantine(ctx, uid, req.Grant, files)
	}
	g, id, err := n.open(req.Grant, wire.VerbSandbox, uid)
	if err != nil {
		return "", nil, err
	}
	if err := oneStream(files); err != nil {
		return "", nil, err
	}
	if err := checkSockets(g.Sockets); err != nil {
		return "", nil, err
	}
	if req.Beside != "" && !compartmentPattern.MatchString(req.Beside) {
		return "", nil, badRequest("what is to run beside the sandbox has no proper name")
	}
	unlock, err := n.ids.Lock(ctx, id.String())
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	c, err := n.o.Store.Clone(ctx, id)
	if err != nil {
		return "", nil, fmt.Errorf("a sandbox needs its clone restored first: %w", err)
	}
	if g.Fork == nil && string(c.Snapshot) != g.Snapshot {
		return "", nil, badRequest("the clone was made from another snapshot than the grant names")
	}
	if req.Beside != "" {
		r, err := n.startBeside(ctx, id.String(), req.Beside, c.Path, g.RepositoryID, g.Image, g.Limits, g.Sockets, files[0])
		return compartmentID(id.String(), req.Beside), r, err
	}
	r, err := n.start(ctx, id.String(), c.Path, g.RepositoryID, g.Image, g.Limits, g.Sockets, g.Compartments, files[0],
		func(*ways) ([]byte, error) { return []byte(req.Authority), nil })
	return id.String(), r, err
}

// sendReply sends a reply with descriptors that come with its first byte.
func sendReply(c *net.UnixConn, reply wire.SandboxReply, files []*os.File) error {
	line, err := json.Marshal(reply)
	if err != nil {
		return err
	}
	var rights []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			raw, err := f.SyscallConn()
			if err != nil {
				return err
			}
			// The files stay open until this function has returned.
			if err := raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) }); err != nil {
				return err
			}
		}
		rights = unix.UnixRights(fds...)
	}
	line = append(line, '\n')
	sent, _, err := c.WriteMsgUnix(line, rights, nil)
	if err == nil && sent < len(line) {
		_, err = c.Write(line[sent:])
	}
	return err
}

// oneStream refuses anything but one descriptor, the control stream.
func oneStream(files []*os.File) error {
	if len(files) != 1 {
		return badRequest(fmt.Sprintf("%d descriptors were passed, it must be the one control stream", len(files)))
	}
	return isStream(files[0])
}

// isStream refuses anything but one end of a unix stream socketpair.
func isStream(f *os.File) error {
	no := badRequest("the descriptor is not a unix stream socket")
	raw, err := f.SyscallConn()
	if err != nil {
		return no
	}
	domain, kind := 0, 0
	var derr, kerr error
	if err := raw.Control(func(fd uintptr) {
		domain, derr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
		kind, kerr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TYPE)
	}); err != nil {
		return no
	}
	if derr != nil || kerr != nil || domain != unix.AF_UNIX || kind != unix.SOCK_STREAM {
		return no
	}
	return nil
}
