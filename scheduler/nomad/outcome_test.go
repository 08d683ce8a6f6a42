package nomad

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"inspect/scheduler"
)

func alloc(client string, change ...func(*api.AllocationListStub)) *api.AllocationListStub {
	a := &api.AllocationListStub{ID: "a", ClientStatus: client, DesiredStatus: "run", CreateIndex: 10}
	for _, c := range change {
		c(a)
	}
	return a
}

func task(events ...*api.TaskEvent) func(*api.AllocationListStub) {
	return func(a *api.AllocationListStub) { a.TaskStates = map[string]*api.TaskState{taskName: {Events: events}} }
}

func ended(code, oom string) *api.TaskEvent {
	return &api.TaskEvent{Type: api.TaskTerminated, Details: map[string]string{"exit_code": code, "oom_killed": oom}}
}

// The table of what was measured: a status is not an outcome.
func TestOutcome(t *testing.T) {
	killing, killed := &api.TaskEvent{Type: api.TaskKilling}, &api.TaskEvent{Type: api.TaskKilled}
	described := func(s string) func(*api.AllocationListStub) {
		return func(a *api.AllocationListStub) { a.ClientDescription = s }
	}
	one := func(a *api.AllocationListStub) facts { return facts{Known: true, Allocs: []*api.AllocationListStub{a}} }
	for _, c := range []struct {
		name  string
		f     facts
		state scheduler.EngineState
		why   string
	}{
		{"no such job", facts{}, scheduler.EngineGone, "Nomad knows no such job"},
		{"it waits", facts{Known: true}, scheduler.EngineRunning, "it waits for a node"},
		{"stopped while it waited", facts{Known: true, Stopped: true, Dead: true}, scheduler.EngineGone, "stopped before it had a node"},
		{"given up", facts{Known: true, Dead: true}, scheduler.EngineGone, "Nomad gave it no node"},
		{"pending", one(alloc("pending")), scheduler.EngineRunning, ""},
		{"running", one(alloc("running")), scheduler.EngineRunning, ""},
		{"a status that is new to us", one(alloc("reconnecting")), scheduler.EngineRunning, ""},
		{"deregistered and still running", facts{Known: true, Stopped: true, Dead: true, Allocs: []*api.AllocationListStub{alloc("running")}}, scheduler.EngineRunning, ""},
		{"its node is away", one(alloc("unknown")), scheduler.EngineUnknown, "its node is away"},
		{"its node is lost", one(alloc("lost")), scheduler.EngineGone, "its node was lost"},
		{"exit 0", one(alloc("complete", task(ended("0", "false")))), scheduler.EngineGone, "its process ended with exit code 0"},
		{"exit 3", one(alloc("failed", task(ended("3", "false")))), scheduler.EngineGone, "its process ended with exit code 3"},
		{"exit 0 and another task failed", one(alloc("failed", task(ended("0", "false")))), scheduler.EngineGone, "its process ended with exit code 0"},
		{"deregistered", one(alloc("complete", task(killing, ended("137", "false"), killed))), scheduler.EngineGone, "cancelled"},
		{"too long", one(alloc("complete", described("allocation exceeded max_run_duration"), task(killing, ended("137", "false"), killed))), scheduler.EngineGone, "it took longer than its job may"},
		{"out of memory", one(alloc("failed", task(ended("137", "true")))), scheduler.EngineGone, "killed for want of memory"},
		{"out of memory, not seen", one(alloc("failed", task(ended("137", "false")))), scheduler.EngineGone, "its process ended with exit code 137"},
		{"no such program", one(alloc("failed", task(&api.TaskEvent{Type: api.TaskDriverFailure, DisplayMessage: "no such\nfile"}))), scheduler.EngineGone, "it could not be started: no such file"},
		{"not let into its directory", one(alloc("failed", task(&api.TaskEvent{
			Type: api.TaskDriverFailure, DisplayMessage: "failed to start command path=/x --- args=[" + strings.Repeat("a ", 200) + "]: fork/exec /x: permission denied",
		}))), scheduler.EngineGone, "it could not be started: …" + strings.Repeat("a ", 63) + "]: fork/exec /x: permission denied"},
		{"nothing is known", one(alloc("failed")), scheduler.EngineGone, "Nomad does not say why"},
		{"replaced", facts{Known: true, Allocs: []*api.AllocationListStub{
			alloc("running", func(a *api.AllocationListStub) { a.ID, a.CreateIndex = "b", 20 }), alloc("lost"),
		}}, scheduler.EngineGone, "its node was lost"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := state(c.f); got != c.state {
				t.Errorf("the state is %v, want %v", got, c.state)
			}
			if got := why(c.f); got != c.why {
				t.Errorf("it is because %q, want %q", got, c.why)
			}
		})
	}
}

func TestWait(t *testing.T) {
	o := someOptions(t)
	node := func(change ...func(*api.Node)) *api.Node {
		n := &api.Node{
			Status: "ready", SchedulingEligibility: "eligible", Datacenter: "dc1", Meta: map[string]string{MetaNode: "node-a"},
			Drivers:           map[string]*api.DriverInfo{driver: {Detected: true, Healthy: true}},
			NodeResources:     &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 9000}, Memory: api.NodeMemoryResources{MemoryMB: 17 << 10}},
			ReservedResources: &api.NodeReservedResources{Cpu: api.NodeReservedCpuResources{CpuShares: 1000}, Memory: api.NodeReservedMemoryResources{MemoryMB: 1 << 10}},
		}
		for _, c := range change {
			c(n)
		}
		return n
	}
	small := need{mhz: 1000, memory: 4<<30 + 256*mib}
	failed := func(m api.AllocationMetric) []*api.Evaluation {
		return []*api.Evaluation{
			{Status: "complete", ModifyIndex: 2, FailedTGAllocs: map[string]*api.AllocationMetric{groupName: {ConstraintFiltered: map[string]int{"old": 1}}}},
			{Status: "blocked", ModifyIndex: 3, FailedTGAllocs: map[string]*api.AllocationMetric{groupName: &m}},
		}
	}
	for _, c := range []struct {
		name  string
		evals []*api.Evaluation
		want  need
		nodes []*api.Node
		words string
		never bool
	}{
		{"not looked at", nil, small, []*api.Node{node()}, "Nomad has not looked for a node yet", false},
		{"no node", failed(api.AllocationMetric{}), small, nil, "there is no node in the node pool inspect", false},
		{"down", failed(api.AllocationMetric{}), small, []*api.Node{node(func(n *api.Node) { n.Status = "down" })}, "no node of the node pool inspect is ready", false},
		{"draining", failed(api.AllocationMetric{}), small, []*api.Node{node(func(n *api.Node) { n.Drain = true })}, "no node of the node pool inspect is ready", false},
		{"no driver", failed(api.AllocationMetric{}), small, []*api.Node{node(func(n *api.Node) { n.Drivers = nil })}, "no node of the node pool inspect is ready", false},
		{"no daemon", failed(api.AllocationMetric{}), small, []*api.Node{node(func(n *api.Node) { n.Meta = nil })}, "no node has a node daemon of Inspect", false},
		{"too large", failed(api.AllocationMetric{DimensionExhausted: map[string]int{"memory": 1}}), need{mhz: 1, memory: 32<<30 + 256*mib}, []*api.Node{node()}, "no node with 32 GiB", true},
		{"too large but for what is reserved", failed(api.AllocationMetric{}), need{mhz: 1, memory: 16<<30 + 256*mib}, []*api.Node{node()}, "no node with 16 GiB", true},
		{"too fast", failed(api.AllocationMetric{DimensionExhausted: map[string]int{"cpu": 1}}), need{mhz: 12000, memory: 1}, []*api.Node{node()}, "no node with 12 cores", true},
		{"full", failed(api.AllocationMetric{DimensionExhausted: map[string]int{"memory": 2, "cpu": 1}}), small, []*api.Node{node()}, "all nodes are full: cpu, memory", false},
		{"a quota", failed(api.AllocationMetric{QuotaExhausted: []string{"agents"}}), small, []*api.Node{node()}, "Nomad's quota is used up: agents", false},
		{"a condition", failed(api.AllocationMetric{ConstraintFiltered: map[string]int{"computed class ineligible": 5, "${node.class} = big": 2}}), small, []*api.Node{node()}, "no node fits the condition ${node.class} = big", true},
		{"nothing said", failed(api.AllocationMetric{}), small, []*api.Node{node()}, "no node fits", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			nodes := map[string]*api.Node{}
			for _, n := range c.nodes {
				nodes["id"] = n
			}
			got := o.wait(c.evals, c.want, nodes)
			if want := (scheduler.Wait{Waiting: true, Never: c.never, Words: c.words}); got != want {
				t.Errorf("it waits as %+v, want %+v", got, want)
			}
		})
	}
	if got := o.room(node(), holding{mhz: 500, memory: 1 << 30}); got != (scheduler.NodeRoom{
		Node: "node-a", Eligible: true, CPU: 8, Memory: 16 << 30, OthersCPU: 0.5, OthersMemory: 1 << 30, Overhead: 256 << 20,
	}) {
		t.Errorf("its room is %+v", got)
	}
	for version, knows := range map[string]bool{"2.0.3": true, "2.1.0": true, "3.0.0-beta.1": true, "2.0.2": false, "1.10.5": false, "": false, "x": false, "2.0.3+ent": true} {
		if knowsLimit(version) != knows {
			t.Errorf("%q knows max_run_duration: %v", version, !knows)
		}
	}
}
