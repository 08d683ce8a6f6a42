package nomad

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"inspect/envs/proc"
)

const (
	// listEvery is how often everything is listed whatever the events say: a
	// server drops them without a word.
	listEvery = time.Minute
	// listPause is the least time between two lists; a cluster that takes long to
	// answer gets more.
	listPause = 300 * time.Millisecond
)

// errBack says that Nomad's state is older than it was: its servers were set
// back to an earlier one, and the stream's index means nothing any more.
var errBack = errors.New("the state of Nomad has gone back")

// Run keeps what is known of the cluster up to date until ctx ends: by one list
// and one stream of events for all attempts. Without it every question goes to
// Nomad.
func (e *Engine) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		// A stream that held for a while begins anew without a pause.
		err := proc.Retry(ctx, e.o.Clock, proc.Policy{First: 500 * time.Millisecond, Max: 30 * time.Second}, func(ctx context.Context) error {
			held, err := e.follow(ctx)
			if ctx.Err() == nil {
				e.o.Log.Warn("the events of Nomad have ended; listing again", "error", err)
			}
			if held {
				return nil
			}
			return err
		})
		if err != nil {
			break
		}
	}
	return ctx.Err()
}

// follow lists everything and then lists again when an event says that
// something has changed. An event says no more than that: it may be late, old or
// repeated, and others are missing. held says whether it went well for a while.
func (e *Engine) follow(ctx context.Context) (held bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	last, err := e.list(ctx, true)
	if err != nil {
		return false, err
	}
	events, err := e.stream(ctx, last.index)
	if err != nil {
		return false, err
	}
	var soon <-chan time.Time // when the list that an event asks for is due
	minute := e.o.Clock.After(listEvery)
	for {
		whole := false
		select {
		case <-ctx.Done():
			return held, ctx.Err()
		case batch, ok := <-events:
			switch {
			case !ok:
				return held, errors.New("the stream of events was closed")
			case batch.Err != nil:
				return held, fmt.Errorf("reading the stream of events: %w", batch.Err)
			case soon == nil && batch.Index > last.index: // else it is of before the list
				soon = e.o.Clock.After(max(listPause, 4*last.took))
			}
			continue
		case <-soon:
		case <-minute:
			minute, whole = e.o.Clock.After(listEvery), true
		}
		now, err := e.list(ctx, whole)
		if err != nil {
			return held, err
		}
		if now.index < last.index {
			return held, errBack
		}
		last, soon, held = now, nil, true
	}
}

// listing is what there was in Nomad at one time, more or less.
type listing struct {
	index uint64 // of Nomad's jobs
	took  time.Duration
	jobs  map[string]facts // by id
	nodes map[string]*api.Node
}

// list reads all that is kept of the cluster, and keeps it; whole: also what
// others hold of the nodes.
func (e *Engine) list(ctx context.Context, whole bool) (l listing, err error) {
	ctx, cancel := context.WithTimeout(ctx, listEvery)
	defer cancel()
	begun := e.o.Clock.Now()
	number := e.cache.begin()
	before, _, _ := e.cache.machines(begun)
	if l.jobs, l.index, err = e.nomad.jobs(ctx); err != nil {
		return l, fmt.Errorf("listing Nomad's jobs: %w", err)
	}
	if l.nodes, err = e.nomad.nodes(ctx, e.o.NodePool, before); err != nil {
		return l, fmt.Errorf("listing Nomad's nodes: %w", err)
	}
	var held map[string]holding
	if whole {
		if held, err = e.nomad.held(ctx); err != nil {
			return l, fmt.Errorf("listing what others run in Nomad: %w", err)
		}
	}
	e.cache.take(number, begun, l.jobs, l.nodes, held)
	l.took = e.o.Clock.Now().Sub(begun)
	return l, nil
}

func (e *Engine) stream(ctx context.Context, index uint64) (<-chan *api.Events, error) {
	q, err := e.nomad.query(ctx, e.nomad.here())
	if err != nil {
		return nil, err
	}
	all := []string{"*"}
	events, err := e.nomad.EventStream().Stream(ctx, map[api.Topic][]string{
		api.TopicJob: all, api.TopicAllocation: all, api.TopicEvaluation: all, api.TopicNode: all,
	}, index, q)
	if err != nil {
		return nil, fmt.Errorf("asking for Nomad's events: %w", err)
	}
	return events, nil
}
