package nomad

import (
	"context"

	"github.com/hashicorp/nomad/api"
)

// What is asked of Nomad, each in one call or a few that belong together. All
// are read from the leader.

// facts asks for everything about one job.
func (c *client) facts(ctx context.Context, r ref) (facts, error) {
	j, err := c.job(ctx, r)
	if j == nil || err != nil {
		return facts{}, err
	}
	allocs, err := c.allocations(ctx, r)
	if err != nil {
		return facts{}, err
	}
	return facts{Known: true, Stopped: value(j.Stop), Dead: value(j.Status) == "dead", Allocs: allocs}, nil
}

// job asks for one job; nil if there is none.
func (c *client) job(ctx context.Context, r ref) (*api.Job, error) {
	q, err := c.query(ctx, r)
	if err != nil {
		return nil, err
	}
	j, _, err := c.Jobs().Info(r.Job, q)
	if missing(err) {
		return nil, nil
	}
	return j, err
}

// allocations asks for those of one job, of its earlier versions too.
func (c *client) allocations(ctx context.Context, r ref) ([]*api.AllocationListStub, error) {
	q, err := c.query(ctx, r)
	if err != nil {
		return nil, err
	}
	allocs, _, err := c.Jobs().Allocations(r.Job, true, q)
	if missing(err) {
		return nil, nil
	}
	return allocs, err
}

func (c *client) evaluations(ctx context.Context, r ref) ([]*api.Evaluation, error) {
	q, err := c.query(ctx, r)
	if err != nil {
		return nil, err
	}
	evals, _, err := c.Jobs().Evaluations(r.Job, q)
	if missing(err) {
		return nil, nil
	}
	return evals, err
}

// jobs lists every job of ours, by id, with the index of Nomad's state.
func (c *client) jobs(ctx context.Context) (map[string]facts, uint64, error) {
	q, err := c.query(ctx, c.here())
	if err != nil {
		return nil, 0, err
	}
	q.Prefix = jobPrefix
	stubs, meta, err := c.Jobs().List(q)
	if err != nil {
		return nil, 0, err
	}
	if q, err = c.query(ctx, c.here()); err != nil {
		return nil, 0, err
	}
	allocs, _, err := c.Allocations().List(q)
	if err != nil {
		return nil, 0, err
	}
	by := map[string][]*api.AllocationListStub{}
	for _, a := range allocs {
		by[a.JobID] = append(by[a.JobID], a)
	}
	out := map[string]facts{}
	for _, stub := range stubs {
		if _, _, ok := attemptOf(stub.ID); ok {
			out[stub.ID] = factsOf(stub, by[stub.ID])
		}
	}
	return out, meta.LastIndex, nil
}

// nodes lists those of our node pool. One that has not changed since it was
// asked for before is taken from there: the list does not have its metadata.
func (c *client) nodes(ctx context.Context, pool string, before map[string]*api.Node) (map[string]*api.Node, error) {
	q, err := c.query(ctx, c.here())
	if err != nil {
		return nil, err
	}
	stubs, _, err := c.Nodes().List(q)
	if err != nil {
		return nil, err
	}
	out := map[string]*api.Node{}
	for _, stub := range stubs {
		if stub.NodePool != pool && pool != api.NodePoolAll {
			continue
		}
		n := before[stub.ID]
		if n == nil || n.ModifyIndex != stub.ModifyIndex {
			if n, err = c.node(ctx, stub.ID); err != nil {
				return nil, err
			}
		}
		if n != nil {
			out[stub.ID] = n
		}
	}
	return out, nil
}

// node asks for one node; nil if there is none.
func (c *client) node(ctx context.Context, id string) (*api.Node, error) {
	q, err := c.query(ctx, c.here())
	if err != nil {
		return nil, err
	}
	n, _, err := c.Nodes().Info(id, q)
	if missing(err) {
		return nil, nil
	}
	return n, err
}

// held sums what allocations hold on each node that are not attempts of ours,
// as far as the token lets us see them.
func (c *client) held(ctx context.Context) (map[string]holding, error) {
	q, err := c.query(ctx, ref{Namespace: api.AllNamespacesNamespace, Region: c.region})
	if err != nil {
		return nil, err
	}
	q.Params["resources"] = "true"
	q.Filter = `ClientStatus == "running" or ClientStatus == "pending" or ClientStatus == "unknown"`
	allocs, _, err := c.Allocations().List(q)
	if err != nil {
		return nil, err
	}
	out := map[string]holding{}
	for _, a := range allocs {
		if _, _, attempt := attemptOf(a.JobID); attempt && a.Namespace == c.namespace || a.AllocatedResources == nil {
			continue
		}
		h := out[a.NodeID]
		for _, t := range a.AllocatedResources.Tasks {
			h.mhz += t.Cpu.CpuShares
			h.memory += t.Memory.MemoryMB * mib
		}
		out[a.NodeID] = h
	}
	return out, nil
}

// holding is what is taken of a node.
type holding struct {
	mhz    int64
	memory int64 // bytes
}
