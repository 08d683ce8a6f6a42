package nomad

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"

	"github.com/hashicorp/nomad/api"

	"inspect/scheduler"
)

// Room is what the nodes of our pool have that run a node daemon of ours.
func (e *Engine) Room(ctx context.Context) ([]scheduler.NodeRoom, error) {
	nodes, held, ok := e.cache.machines(e.o.Clock.Now())
	if !ok {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		if _, err := e.list(ctx, true); err != nil {
			return nil, e.refused(ctx, err)
		}
		nodes, held, _ = e.cache.machines(e.o.Clock.Now())
	}
	var out []scheduler.NodeRoom
	for id, n := range nodes {
		if nameOf(n) != "" {
			out = append(out, e.o.room(n, held[id]))
		}
	}
	slices.SortFunc(out, func(a, b scheduler.NodeRoom) int { return cmp.Compare(a.Node, b.Node) })
	return out, nil
}

func (o Options) room(n *api.Node, others holding) scheduler.NodeRoom {
	mhz, memory := capacity(n)
	perCore := float64(o.MHzPerCore)
	return scheduler.NodeRoom{
		Node: nameOf(n), Eligible: o.eligible(n),
		CPU: float64(mhz) / perCore, Memory: memory,
		OthersCPU: float64(others.mhz) / perCore, OthersMemory: others.memory,
		Overhead: int64(inMiB(o.RunnerMemory)) * mib,
	}
}

// capacity is what Nomad may give away of a node: MHz and bytes.
func capacity(n *api.Node) (mhz, memory int64) {
	if r := n.NodeResources; r != nil {
		mhz, memory = r.Cpu.CpuShares, r.Memory.MemoryMB*mib
	}
	if r := n.ReservedResources; r != nil {
		mhz, memory = mhz-int64(r.Cpu.CpuShares), memory-int64(r.Memory.MemoryMB)*mib
	}
	return max(mhz, 0), max(memory, 0)
}

// eligible says whether a node takes attempts now.
func (o Options) eligible(n *api.Node) bool {
	d := n.Drivers[driver]
	return n.Status == api.NodeStatusReady && n.SchedulingEligibility == api.NodeSchedulingEligible &&
		!n.Drain && n.DrainStrategy == nil && d != nil && d.Healthy &&
		slices.ContainsFunc(o.Datacenter, func(pattern string) bool {
			ok, err := path.Match(pattern, n.Datacenter)
			return ok && err == nil
		})
}

// knowsLimit says whether a node of a version ends groups by max_run_duration.
func knowsLimit(version string) bool {
	n := make([]int, 3)
	_, err := fmt.Sscanf(version, "%d.%d.%d", &n[0], &n[1], &n[2])
	return err == nil && slices.Compare(n, []int{2, 0, 3}) >= 0
}
