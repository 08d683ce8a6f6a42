package runner

import (
	"context"
	"errors"
	"sync"

	"inspect/envs/wire"
)

// upload is a blob on its way to the control plane.
type upload struct {
	blob   blob
	bundle bool
	turn   int
	tip    string
	keep   bool // the blob is needed here afterwards

	unchanged bool // there is no bundle: in this turn nothing was committed
}

// uploader sends blobs one after the other, in the order in which they came,
// while the attempt goes on. The control plane may be away for as long as it
// likes; a bundle that waits is replaced by a later one.
type uploader struct {
	control *control
	events  *eventLog

	mu      sync.Mutex
	queue   []upload
	busy    bool
	sent    int64            // bytes of artifacts
	turns   int              // turns queued so far
	asked   int              // the last prompt that was given to the agent
	done    int              // the last that it was done with
	waiting upload           // a turn that counts when the agent is asked for more; without a number: none
	lost    bool             // the bundle of the last turn did not arrive
	refused map[string]error // by sha256: why it is not there
	known   map[string]bool  // artifacts queued before, by sha256
	last    upload           // the last bundle that arrived
	changed chan struct{}

	queuedResult bool
}

func newUploader(c *control, l *eventLog) *uploader {
	return &uploader{
		control: c, events: l,
		refused: map[string]error{}, known: map[string]bool{}, changed: make(chan struct{}),
	}
}

func (u *uploader) signal() {
	close(u.changed)
	u.changed = make(chan struct{})
}

// artifact queues output. Empty output is sent too: that a command said nothing
// is evidence.
func (u *uploader) artifact(b blob) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sent+b.size > wire.MaxArtifactBytes {
		u.refused[b.sha256] = errors.New("the session has as many artifacts as it may have")
		b.remove()
		return
	}
	if u.known[b.sha256] {
		b.remove()
		return
	}
	u.known[b.sha256] = true
	u.sent += b.size
	u.queue = append(u.queue, upload{blob: b})
	u.signal()
}

// result queues the work that was taken, the first time it is called, and
// returns the number of its turn; 0: there is none. Without any work it is a turn
// like others in which nothing was committed since tip.
func (u *uploader) result(t taken, tip string) (turn int) {
	u.mu.Lock()
	done := u.queuedResult
	u.queuedResult = true
	u.mu.Unlock()
	if done {
		return 0
	}
	if t.patch.path != "" {
		u.artifact(t.patch)
	}
	if t.bundle.path == "" {
		return u.nothing(t, tip)
	}
	return u.bundle(t.bundle, t.tip, true)
}

// bundle queues the bundle of one more turn and returns its number, counted
// from 1. Bundles that still wait are not needed any more.
func (u *uploader) bundle(b blob, tip string, keep bool) (turn int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	rest, dropped := u.queue[:0], false
	for _, q := range u.queue {
		if q.bundle {
			if dropped = true; !q.keep {
				q.blob.remove()
			}
			continue
		}
		rest = append(rest, q)
	}
	if u.waiting.turn > 0 && !keep {
		if u.turns++; !dropped {
			rest = append(rest, u.waiting)
		}
	}
	u.waiting = upload{}
	u.turns++
	u.queue = append(rest, upload{blob: b, bundle: true, turn: u.turns, tip: tip, keep: keep})
	u.signal()
	return u.turns
}

// prompted notes that the agent was given a prompt, or is done with it.
func (u *uploader) prompted(p wire.Prompted) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if p.Done {
		u.done = max(u.done, p.Prompt)
		return
	}
	u.asked = max(u.asked, p.Prompt)
	u.count()
}

// unchanged notes that a prompt was done without anything being committed since
// tip, and returns the number of that turn. It is that of the result if the agent
// is asked for nothing more: what it has left uncommitted is in that.
func (u *uploader) unchanged(tip string) (turn int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.waiting = upload{bundle: true, unchanged: true, turn: u.turns + 1, tip: tip}
	turn = u.waiting.turn
	u.count()
	return turn
}

// nothing is the last turn of an agent that has done nothing.
func (u *uploader) nothing(t taken, tip string) (turn int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if t.err != nil || t.tip != "" || u.asked == 0 {
		return 0
	}
	u.turns++
	u.queue = append(u.queue, upload{bundle: true, unchanged: true, turn: u.turns, tip: tip})
	u.waiting = upload{}
	u.signal()
	return u.turns
}

// count queues the turn that waits if the agent has more to do.
func (u *uploader) count() {
	if u.waiting.turn == 0 || u.asked <= u.done {
		return
	}
	u.turns++
	u.queue = append(u.queue, u.waiting)
	u.waiting = upload{}
	u.signal()
}

// send sends until ctx ends.
func (u *uploader) send(ctx context.Context) error {
	for {
		u.mu.Lock()
		if len(u.queue) == 0 {
			u.busy = false
			u.signal()
			changed := u.changed
			u.mu.Unlock()
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		next := u.queue[0]
		u.queue = u.queue[1:]
		u.busy = true
		u.mu.Unlock()

		var err error
		if next.unchanged {
			// What it stands on has arrived, or else there is nothing to return to.
			if !u.lost {
				u.events.add(wire.EventTurn, wire.Turn{Turn: next.turn, Tip: next.tip})
			}
			continue
		}
		if next.bundle {
			err = u.control.putBundle(ctx, next.turn, next.tip, next.blob)
		} else {
			err = u.control.putArtifact(ctx, next.blob)
		}
		if ctx.Err() != nil && err != nil {
			return nil
		}
		if !next.keep {
			next.blob.remove()
		}
		u.mu.Lock()
		if next.bundle {
			u.lost = err != nil
		}
		switch {
		case err != nil:
			u.refused[next.blob.sha256] = err
		case next.bundle:
			u.last = next
		}
		u.mu.Unlock()
		switch {
		case err != nil && next.bundle:
			u.events.note("The control plane did not take the bundle of turn %d: %v.", next.turn, err)
		case err != nil:
			u.events.note("The control plane did not take %d bytes of output: %v.", next.blob.size, err)
		case next.bundle:
			u.events.add(wire.EventTurn, wire.Turn{
				Turn: next.turn, Tip: next.tip, SHA256: next.blob.sha256, Bytes: next.blob.size,
			})
		}
	}
}

// drain waits until everything queued has been sent or refused.
func (u *uploader) drain(ctx context.Context) error {
	for {
		u.mu.Lock()
		done, changed := len(u.queue) == 0 && !u.busy, u.changed
		u.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// lastBundle is the sha256 and tip of the last bundle that arrived; empty if none did.
func (u *uploader) lastBundle() (sha256, tip string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.last.blob.sha256, u.last.tip
}

// refusal is why the blob with this hash is not at the control plane; nil if
// it is there or was never sent.
func (u *uploader) refusal(sha256 string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.refused[sha256]
}
