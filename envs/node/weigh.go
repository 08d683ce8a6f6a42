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

// weigh says what clones take of the disk where the store itself does not know: a
// person decides by it how long a failed session is kept. One in which a sandbox
// lives is still changing, and where files share their blocks a clone takes less
// than a measurement shows: both are left unknown. One look measures one clone at
// most, so that no state waits for long.
func (n *Node) weigh(ctx context.Context, clones []snapshot.Clone) {
	if n.o.Store.Forks() {
		return
	}
	n.weighing.Lock()
	defer n.weighing.Unlock()
	now, known := n.clock.Now(), map[snapshot.CloneID]weighed{}
	due := -1
	for i, c := range clones {
		if c.Bytes > 0 || n.o.Launcher.Alive(c.ID.String()) {
			continue
		}
		if w, ok := n.weights[c.ID]; ok && w.created.Equal(c.Created) {
			clones[i].Bytes, known[c.ID] = w.bytes, w
			if now.Sub(w.at) < weighAgain {
				continue
			}
		}
		if due < 0 || known[c.ID].at.Before(known[clones[due].ID].at) {
			due = i
		}
	}
	n.weights = known
	if due < 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	c := &clones[due]
	used, err := diskUsage(ctx, c.Path)
	if err != nil || used == math.MaxInt64 {
		used = 0
	}
	c.Bytes = used
	known[c.ID] = weighed{created: c.Created, at: now, bytes: used}
}
