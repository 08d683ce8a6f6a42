package nomad

import (
	"maps"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
)

// cacheLife is how long a list is believed. It is made anew every minute, so
// that an older one means that Nomad does not answer.
const cacheLife = 3 * time.Minute

// cache holds the newest list of what Nomad has. What is not in it is asked for.
type cache struct {
	mu    sync.Mutex
	at    time.Time // when the list that is held was asked for; zero: none
	jobs  map[string]facts
	nodes map[string]*api.Node
	held  map[string]holding // by node, of what is not ours
	lists uint64             // so many were begun
	taken uint64             // the number of the one that is held
	// touched are jobs that we have changed since: by the number of the last list
	// that was begun before. No such list knows of it for certain.
	touched map[string]uint64
}

func newCache() *cache { return &cache{touched: map[string]uint64{}} }

// begin numbers a list that is about to be made.
func (c *cache) begin() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists++
	return c.lists
}

// touch forgets what is known of a job because we have just changed it.
func (c *cache) touch(job string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.jobs, job)
	c.touched[job] = c.lists
}

// take replaces what is held by a list, if that is not older. held may be nil:
// as before.
func (c *cache) take(list uint64, at time.Time, jobs map[string]facts, nodes map[string]*api.Node, held map[string]holding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if list < c.taken {
		return
	}
	jobs = maps.Clone(jobs)
	for job, last := range c.touched {
		if last < list {
			delete(c.touched, job)
		} else {
			delete(jobs, job)
		}
	}
	c.taken, c.at, c.jobs, c.nodes = list, at, jobs, nodes
	if held != nil {
		c.held = held
	}
}

// job returns what is known of a job; false if it must be asked for.
func (c *cache) job(id string, now time.Time) (facts, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, ok := c.jobs[id]
	return f, ok && now.Sub(c.at) < cacheLife
}

// machines returns the nodes and what is held of them; false if they must be
// asked for. The maps are not changed any more.
func (c *cache) machines(now time.Time) (map[string]*api.Node, map[string]holding, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes, c.held, !c.at.IsZero() && now.Sub(c.at) < cacheLife
}
