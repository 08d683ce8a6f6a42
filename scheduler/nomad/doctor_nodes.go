package nomad

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// nodes looks at the machines that sessions could run on, and what their node
// daemons say of themselves.
func (d *doctor) nodes(ctx context.Context) {
	list, _, err := d.client.Nodes().List(d.query(ctx))
	if err != nil {
		return // said with the rights
	}
	var pool []*api.NodeListStub
	for _, n := range list {
		if n.NodePool == d.o.NodePool && slices.ContainsFunc(d.o.Datacenter, func(glob string) bool { ok, _ := path.Match(glob, n.Datacenter); return ok }) {
			pool = append(pool, n)
		}
	}
	if len(pool) == 0 {
		d.say(FindingFail, "nodes", "no machine of the %d that Nomad has is in node pool %s and one of the datacenters %s: set client { node_pool = %q } on those that sessions shall run on",
			len(list), d.o.NodePool, strings.Join(d.o.Datacenter, ", "), d.o.NodePool)
		return
	}
	slices.SortFunc(pool, func(a, b *api.NodeListStub) int { return strings.Compare(a.Name, b.Name) })
	d.versions(pool)
	by := map[string]string{} // our name -> Nomad's
	for i, n := range pool {
		if i == maxExamined {
			d.say(FindingWarn, "nodes", "there are %d in the pool, the first %d were looked at", len(pool), maxExamined)
			break
		}
		d.node(ctx, n, by)
	}
	d.sayKillTimeouts()
	for _, k := range d.known {
		if _, ok := by[k.Name]; !ok && len(pool) <= maxExamined && k.Alive && !k.Draining {
			d.say(FindingWarn, "node "+k.Name, "its node daemon is connected to us, and no machine of the pool has inspect.node = %s: no session is placed there; does it have --nomad-address, and may its token write nodes?", k.Name)
		}
	}
}

func (d *doctor) versions(pool []*api.NodeListStub) {
	oldest, words := [3]int{}, ""
	for _, n := range pool {
		v, ok := versionOf(n.Version)
		if !ok {
			d.say(FindingWarn, "version", "node %s says its is %q", n.Name, n.Version)
		} else if words == "" || older(v, oldest) {
			oldest, words = v, n.Version
		}
	}
	switch {
	case words == "":
	case older(oldest, oldestVersion):
		d.say(FindingFail, "version", "a node has Nomad %s, and 1.8.0 is the oldest that keeps the attempt of a machine that is away", words)
	case older(oldest, limitVersion):
		d.say(FindingWarn, "version", "the oldest node has Nomad %s; from 2.0.3 on Nomad itself ends a job at its time, too (max_run_duration), before only we do", words)
	default:
		d.say(FindingOK, "version", "the oldest node has Nomad %s", words)
	}
}

// killTimeouts are what the agents of nodes say of max_kill_timeout.
type killTimeouts struct {
	enough  int
	unasked []string // nodes
}

// killTimeout is a setting of each node that only its own agent tells, if it can
// be reached from here and the token may read agents.
func (d *doctor) killTimeout(ctx context.Context, n *api.Node) {
	set, err := d.maxKillTimeout(ctx, n)
	switch {
	case err != nil:
		d.kill.unasked = append(d.kill.unasked, n.Name)
	case set > 0 && set < killTimeout:
		d.say(FindingWarn, "node "+n.Name, "it has max_kill_timeout = %s: runners that are ended get less than the %s they ask for to upload what they have", set, killTimeout)
	default:
		d.kill.enough++
	}
}

// maxKillTimeout asks the agent of a node. The token goes in clear to no other
// machine.
func (d *doctor) maxKillTimeout(ctx context.Context, n *api.Node) (time.Duration, error) {
	o := d.o
	o.Address = "http://" + n.HTTPAddr
	if n.TLSEnabled {
		o.Address, o.ServerName = "https://"+n.HTTPAddr, "client."+o.Region+".nomad"
	}
	if err := o.checkAddress(); err != nil {
		return 0, err
	}
	c, err := newClient(o)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	q, err := c.query(ctx, c.here())
	if err != nil {
		return 0, err
	}
	var self struct {
		Config struct {
			Client struct{ MaxKillTimeout string }
		}
	}
	if _, err := c.Raw().Query("/v1/agent/self", &self, q); err != nil {
		return 0, err
	}
	if self.Config.Client.MaxKillTimeout == "" {
		return 0, nil // Nomad's own, which is as long as ours
	}
	return time.ParseDuration(self.Config.Client.MaxKillTimeout)
}

func (d *doctor) sayKillTimeouts() {
	if d.kill.enough > 0 {
		d.say(FindingOK, "kill timeout", "the %s that runners ask for are granted by %d nodes", killTimeout, d.kill.enough)
	}
	if len(d.kill.unasked) > 0 {
		some := d.kill.unasked[:min(len(d.kill.unasked), 5)]
		d.say(FindingOK, "kill timeout", "max_kill_timeout of %d nodes is told by their own agents only, which do not tell it here (%s): it must be at least %s where it is set; a token that may read agents, and https to them, would show it",
			len(d.kill.unasked), strings.Join(some, ", "), killTimeout)
	}
}

// node looks at one of them.
func (d *doctor) node(ctx context.Context, n *api.NodeListStub, by map[string]string) {
	what := "node " + n.Name
	if n.Status != api.NodeStatusReady {
		d.say(FindingWarn, what, "Nomad says it is %s (%s)", n.Status, n.StatusDescription)
		return
	}
	if info := n.Drivers[driver]; info == nil || !info.Detected || !info.Healthy {
		d.say(FindingFail, what, "the driver %s is not enabled there: plugin %q { config { enabled = true } } in the agent's configuration", driver, driver)
	}
	full, _, err := d.client.Nodes().Info(n.ID, d.query(ctx))
	if err != nil {
		d.say(FindingFail, what, "it cannot be read: %v", plain(err))
		return
	}
	d.killTimeout(ctx, full)
	name := full.Meta[MetaNode]
	if name == "" {
		d.say(FindingFail, what, "no node daemon advertises itself there, so no session is placed on it: run inspect node there, by `inspect nomad node-job` or as a unit, with --nomad-address and a token that may write nodes")
		return
	}
	if other, twice := by[name]; twice {
		d.say(FindingFail, what, "it says inspect.node = %s, and so does %s: each machine needs a name of its own", name, other)
		return
	}
	by[name] = n.Name
	if n.Drain || n.SchedulingEligibility != api.NodeSchedulingEligible {
		d.say(FindingWarn, what, "Nomad drains it or may place nothing on it: no new session starts there")
	}
	if d.known == nil {
		d.say(FindingOK, what, "inspect.node = %s, %s", name, advertised(full.Meta))
		return
	}
	i := slices.IndexFunc(d.known, func(k KnownNode) bool { return k.Name == name })
	switch {
	case i < 0:
		d.say(FindingFail, what, "it says inspect.node = %s, which is not known here: `inspect node add %s`", name, name)
	case !d.known[i].Alive:
		d.say(FindingFail, what, "its node daemon (%s) was not heard of lately: does it run, and does it reach the control plane?", name)
	case d.known[i].Draining:
		d.say(FindingOK, what, "%s is being drained: no new sessions", name)
	default:
		d.say(FindingOK, what, "its node daemon %s is connected, %s", name, advertised(full.Meta))
		d.snapshots(what, full.Meta, d.known[i])
	}
}

// snapshots compares what a node advertises with what we know to be there.
func (d *doctor) snapshots(what string, meta map[string]string, k KnownNode) {
	for _, env := range slices.Sorted(maps.Keys(k.Snapshots)) {
		switch has, want := meta[MetaSnapshot+env], k.Snapshots[env]; {
		case has == want:
			d.say(FindingOK, what, "snapshot of %s at %.12s", env, want)
		case has == "":
			d.say(FindingWarn, what, "the snapshot of %s at %.12s is not advertised; sessions find it later than they could", env, want)
		default:
			d.say(FindingWarn, what, "the snapshot of %s is advertised at %.12s, and the newest is at %.12s", env, has, want)
		}
	}
}

// advertised counts.
func advertised(meta map[string]string) string {
	n := 0
	for k := range meta {
		if strings.HasPrefix(k, MetaSnapshot) {
			n++
		}
	}
	free, err := strconv.ParseInt(meta[MetaFree], 10, 64)
	if err != nil {
		return fmt.Sprintf("%d snapshots", n)
	}
	return fmt.Sprintf("%d snapshots, %d GiB free", n, free>>30)
}
