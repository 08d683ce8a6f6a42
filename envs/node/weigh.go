package node

import (
	"context"
	"math"
	"time"

	"inspect/envs/snapshot"
)

// weighed is what a clone was found to take of the disk, in bytes.
type weighed struct {
	created time.Time // of the clone
	at      time.Time
	bytes   int64 // 0: it could not be measured
}

// weighAgain is how long what was measured holds of a clone that nobody works in.
const weighAgain = 5 * time.Minute

// weighedOf fills in what weigh has found.
func (n *Node) weighedOf(clones []snapshot.Clone) {
	n.weighing.Lock()
	defer n.weighing.Unlock()
	for i, c := range clones {
		if w, ok := n.weights[c.ID]; ok && c.Bytes == 0 && w.created.Equal(c.Created) && !n.o.Launcher.Alive(c.ID.String()) {
			clones[i].Bytes = w.bytes
		}
	}
}

// weigh finds out what clones take of the disk where the store itself does not know: a
// person decides by it how long a failed session is kept. One in which a sandbox
// lives is still changing, and where files share their blocks a clone takes less
// than a measurement shows: both are left unknown. It measures one clone at most,
// so that the next state is told in time.
func (n *Node) weigh(ctx context.Context, clones []snapshot.Clone) {
	if n.o.Store.Forks() {
		return
	}
	n.weighing.Lock()
	old := n.weights
	n.weighing.Unlock()
	now, known := n.clock.Now(), map[snapshot.CloneID]weighed{}
	due := -1
	for i, c := range clones {
		w, ok := old[c.ID]
		ok = ok && w.created.Equal(c.Created)
		if c.Bytes > 0 && !ok || n.o.Launcher.Alive(c.ID.String()) {
			continue
		}
		if ok {
			known[c.ID] = w
			if now.Sub(w.at) < weighAgain {
				continue
			}
		}
		if due < 0 || known[c.ID].at.Before(known[clones[due].ID].at) {
			due = i
		}
	}
	if due >= 0 {
		ctx, cancel := context.WithTimeout(ctx, measureTime)
		defer cancel()
		c := clones[due]
		used, err := diskUsage(ctx, c.Path)
		if err != nil || used == math.MaxInt64 {
			used = 0
		}
		known[c.ID] = weighed{created: c.Created, at: now, bytes: used}
	}
	n.weighing.Lock()
	n.weights = known
	n.weighing.Unlock()
}
