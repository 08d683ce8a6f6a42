package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"inspect/envs/spec"
	"inspect/storage"
)

// Where there is room for a session is decided here, when the engine has
// several machines: a node has what its engine says, without what others and
// our own attempts hold.

// placer is the engine as one that has several machines, or nil.
func (s *Scheduler) placer() Placer {
	p, _ := s.o.Engine.(Placer)
	return p
}

// share is a part of a node.
type share struct {
	cpu    float64 // cores
	memory int64   // bytes
}

func (a share) covers(b share) bool { return a.cpu >= b.cpu-1e-9 && a.memory >= b.memory }

func (a share) minus(b share) share { return share{a.cpu - b.cpu, a.memory - b.memory} }

func needOf(l spec.Limits) share { return share{l.CPU, l.MemoryBytes} }

// room is that of one node: all that attempts of ours can have of it, and what
// is left now. What is left is negative where more is promised than there is.
type room struct {
	eligible  bool
	all, left share
	overhead  int64 // bytes, of each attempt
}

// rooms of the nodes; nil where the engine has only its own machine.
type rooms map[string]*room

// take has a node's room held for one that needs it.
func (r rooms) take(node string, need share) {
	if at := r[node]; at != nil {
		at.left = at.left.minus(share{need.cpu, need.memory + at.overhead})
	}
}

// has tells whether a node has room now.
func (r rooms) has(node string, need share) bool {
	at := r[node]
	return r == nil || at != nil && at.left.covers(share{need.cpu, need.memory + at.overhead})
}

// memoryLeft orders nodes with room; bytes.
func (r rooms) memoryLeft(node string) int64 {
	if at := r[node]; at != nil {
		return at.left.memory
	}
	return 0
}

// open are the nodes that take sessions now, and why there are none.
func (r rooms) open(nodes []storage.Node) (out []storage.Node, wait string) {
	var shut []string
	for _, n := range nodes {
		switch at := r[n.Name]; {
		case n.Draining:
			shut = append(shut, n.Name+" is draining")
		case r != nil && at == nil:
			shut = append(shut, n.Name+" is no node of the cluster")
		case r != nil && !at.eligible:
			shut = append(shut, n.Name+" is not ready or draining in the cluster")
		default:
			out = append(out, n)
		}
	}
	if len(out) > 0 || len(shut) == 0 {
		return out, ""
	}
	if n := len(shut); n > 3 {
		shut = append(shut[:3], fmt.Sprintf("and %d more", n-3))
	}
	return nil, "no node takes sessions now: " + strings.Join(shut, ", ")
}

// fit are the nodes that could take a session if nothing of ours ran there, and
// why there are none.
func (r rooms) fit(nodes []storage.Node, need share) (out []storage.Node, wait string) {
	if r == nil || len(nodes) == 0 {
		return nodes, ""
	}
	cpu, memory := false, false
	for _, n := range nodes {
		at := r[n.Name]
		fits := share{need.cpu, need.memory + at.overhead}
		cpu = cpu || at.all.covers(share{cpu: fits.cpu, memory: at.all.memory})
		memory = memory || at.all.covers(share{cpu: at.all.cpu, memory: fits.memory})
		if at.all.covers(fits) {
			out = append(out, n)
		}
	}
	switch {
	case len(out) > 0:
		return out, ""
	case !memory && cpu:
		return nil, "no node with " + memoryWords(need.memory)
	case !cpu && memory:
		return nil, "no node with " + coreWords(need.cpu)
	}
	return nil, "no node with " + need.words()
}

func (a share) words() string { return memoryWords(a.memory) + " and " + coreWords(a.cpu) }

func memoryWords(n int64) string {
	switch {
	case n%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 10<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", (n+1<<20-1)>>20)
}

func coreWords(n float64) string {
	if n == 1 {
		return "1 core"
	}
	return fmt.Sprintf("%g cores", n)
}

// asked is what the engine said last of its nodes. An engine that cannot be
// asked is asked again after growing waits.
type asked struct {
	mu    sync.Mutex
	list  []NodeRoom
	words string // why it could not be asked
	tries int
	next  time.Time
}

// roomLimit bounds one question for room.
const roomLimit = 10 * time.Second

// askRoom asks the engine what its nodes have. In place of an answer there are
// words for people.
func (s *Scheduler) askRoom(ctx context.Context) (list []NodeRoom, words string) {
	p := s.placer()
	if p == nil {
		return nil, ""
	}
	s.asked.mu.Lock()
	defer s.asked.mu.Unlock()
	if s.asked.words != "" && s.clock.Now().Before(s.asked.next) {
		return nil, s.asked.words
	}
	actx, cancel := context.WithTimeout(ctx, roomLimit)
	defer cancel()
	list, err := p.Room(actx)
	if ctx.Err() != nil {
		return nil, "the control plane is stopping"
	}
	if err != nil {
		s.log.Warn("the engine cannot be asked for room", "error", err)
		s.asked.words, s.asked.next = s.engineWords(err), s.clock.Now().Add(backoff(s.asked.tries, 30*time.Second))
		s.asked.tries++
		return nil, s.asked.words
	}
	s.asked.list, s.asked.words, s.asked.tries = list, "", 0
	return list, ""
}

// engineWords are for people who wait for the engine.
func (s *Scheduler) engineWords(err error) string {
	var t *EngineTrouble
	if errors.As(err, &t) && t.Words != "" {
		return clip(s.o.Redactor.String(t.Words), 400)
	}
	return s.o.Engine.Name() + " cannot be reached"
}

// shut tells whether the engine said last that a node takes nothing new.
func (s *Scheduler) shut(node string) bool {
	s.asked.mu.Lock()
	defer s.asked.mu.Unlock()
	return slices.ContainsFunc(s.asked.list, func(r NodeRoom) bool { return r.Node == node && !r.Eligible })
}

// roomLeft is the nodes' room without what our own attempts hold, also those
// whose end the engine has not confirmed.
func roomLeft(ctx context.Context, q *storage.Queries, list []NodeRoom) (rooms, error) {
	out := rooms{}
	for _, r := range list {
		all := share{r.CPU - r.OthersCPU, r.Memory - r.OthersMemory}
		out[r.Node] = &room{eligible: r.Eligible, all: all, left: all, overhead: r.Overhead}
	}
	live, err := q.LiveAttempts(ctx)
	if err != nil {
		return nil, fmt.Errorf("adding up what attempts hold: %w", err)
	}
	for _, a := range live {
		var sp spec.Spec
		if err := json.Unmarshal(a.Spec, &sp); err != nil {
			return nil, fmt.Errorf("the stored configuration of a session on node %s cannot be read: %w", a.Node, err)
		}
		out.take(a.Node, needOf(sp.Limits))
	}
	return out, nil
}
