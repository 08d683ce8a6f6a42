package nomad

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"inspect/scheduler"
)

// Waits says what an attempt has no node for.
func (e *Engine) Waits(ctx context.Context, stored json.RawMessage) (scheduler.Wait, error) {
	f, err := e.facts(ctx, stored)
	if err != nil || len(f.Allocs) > 0 || state(f) == scheduler.EngineGone {
		return scheduler.Wait{}, err
	}
	r, err := readRef(stored)
	if err != nil {
		return scheduler.Wait{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	j, err := e.nomad.job(ctx, r)
	if err != nil || j == nil {
		return scheduler.Wait{}, e.refused(ctx, err)
	}
	evals, err := e.nomad.evaluations(ctx, r)
	if err != nil {
		return scheduler.Wait{}, e.refused(ctx, err)
	}
	nodes, _, ok := e.cache.machines(e.o.Clock.Now())
	if !ok {
		if nodes, err = e.nomad.nodes(ctx, e.o.NodePool, nodes); err != nil {
			return scheduler.Wait{}, e.refused(ctx, err)
		}
	}
	return e.o.wait(evals, needOf(j), nodes), nil
}

// need is what a job wants of one node.
type need struct {
	mhz    int64
	memory int64 // bytes, the runner's included
}

func needOf(j *api.Job) (n need) {
	for _, g := range j.TaskGroups {
		for _, t := range g.Tasks {
			if r := t.Resources; r != nil {
				n.mhz += int64(value(r.CPU))
				n.memory += int64(value(r.MemoryMB)) * mib
			}
		}
	}
	return n
}

// wait reads what Nomad's evaluations of a job without an allocation say.
func (o Options) wait(evals []*api.Evaluation, want need, nodes map[string]*api.Node) scheduler.Wait {
	w := scheduler.Wait{Waiting: true, Words: "Nomad has not looked for a node yet"}
	var newest *api.Evaluation
	for _, e := range evals {
		if e.FailedTGAllocs[groupName] != nil && (newest == nil || e.ModifyIndex >= newest.ModifyIndex) {
			newest = e
		}
	}
	if newest == nil {
		return w
	}
	w.Words, w.Never = o.lacks(newest.FailedTGAllocs[groupName], want, nodes)
	return w
}

// lacks says why no node was found. never: none of those that take attempts
// could ever, even if it were empty.
func (o Options) lacks(m *api.AllocationMetric, want need, nodes map[string]*api.Node) (words string, never bool) {
	var ready, takers []*api.Node
	for _, n := range nodes {
		if o.eligible(n) {
			ready = append(ready, n)
			if nameOf(n) != "" {
				takers = append(takers, n)
			}
		}
	}
	switch {
	case len(nodes) == 0:
		return "there is no node in the node pool " + o.NodePool, false
	case len(ready) == 0:
		return "no node of the node pool " + o.NodePool + " is ready", false
	case len(takers) == 0:
		return "no node has a node daemon of Inspect", false
	}
	fits := func(enough func(mhz, memory int64) bool) bool {
		return slices.ContainsFunc(takers, func(n *api.Node) bool { return enough(capacity(n)) })
	}
	switch {
	case !fits(func(_, memory int64) bool { return memory >= want.memory }):
		return "no node with " + size(want.memory-int64(inMiB(o.RunnerMemory))*mib), true
	case !fits(func(mhz, _ int64) bool { return mhz >= want.mhz }):
		return fmt.Sprintf("no node with %.3g cores", float64(want.mhz)/float64(o.MHzPerCore)), true
	case !fits(func(mhz, memory int64) bool { return mhz >= want.mhz && memory >= want.memory }):
		return fmt.Sprintf("no node with %s and %.3g cores", size(want.memory-int64(inMiB(o.RunnerMemory))*mib), float64(want.mhz)/float64(o.MHzPerCore)), true
	}
	if len(m.DimensionExhausted) > 0 {
		var of []string
		for _, dim := range slices.Sorted(maps.Keys(m.DimensionExhausted)) {
			of = append(of, quote(dim))
		}
		return "all nodes are full: " + strings.Join(of, ", "), false
	}
	if len(m.QuotaExhausted) > 0 {
		return "Nomad's quota is used up: " + quote(strings.Join(m.QuotaExhausted, ", ")), false
	}
	return filtered(m.ConstraintFiltered)
}

// filtered names the constraint that shuts most nodes out. Nomad does not always
// say which: it remembers kinds of nodes that did not fit.
func filtered(by map[string]int) (words string, never bool) {
	names := slices.SortedFunc(maps.Keys(by), func(a, b string) int { return cmp.Or(cmp.Compare(by[b], by[a]), cmp.Compare(a, b)) })
	for _, name := range names {
		if name != "computed class ineligible" {
			return "no node fits the condition " + quote(name), true
		}
	}
	return "no node fits", false
}

// size in words, such as 32 GiB.
func size(bytes int64) string {
	if bytes >= 1<<30 {
		return fmt.Sprintf("%.4g GiB", float64(bytes)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", inMiB(bytes))
}
