package scheduler

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"inspect/envs/spec"
	"inspect/envs/wire"
)

// boundBy has the scheduler ask a floor that the test can change.
func (w *world) boundBy(b *func(spec.Spec) Bound) {
	w.o.Bound = func(id int64, name string, sp spec.Spec) (Bound, error) {
		if id != 42 || name != "octocat/hello" {
			w.t.Errorf("asked about %d %s", id, name)
		}
		return (*b)(sp), nil
	}
}

// What was tightened between the wish and its place counts; what was loosened does not.
func TestBoundAgainWhenPlaced(t *testing.T) {
	w := newWorld(t)
	tight := false
	bind := func(sp spec.Spec) Bound {
		if tight {
			sp.Limits.MemoryBytes = min(sp.Limits.MemoryBytes, 1<<30)
			sp.Limits.Budget = min(sp.Limits.Budget, spec.Dollar)
			sp.Limits.Concurrent = min(sp.Limits.Concurrent, 1)
			sp.Publish.MaxFiles = min(sp.Publish.MaxFiles, 3)
		}
		return Bound{Spec: sp}
	}
	w.boundBy(&bind)
	s := w.scheduler()
	first, second := w.create(s), w.create(s)
	w.look(s, first.ID)
	tight = true
	work := w.work(s, wire.WorkRefresh)
	if work.Refresh.Limits.MemoryBytes != 1<<30 {
		t.Errorf("a snapshot is prepared with %d bytes of memory", work.Refresh.Limits.MemoryBytes)
	}
	if err := s.Offer(context.Background(), "n1", offerOf(work)); err != nil {
		t.Fatal(err)
	}
	w.want(first.ID, Placing, "")
	if got := w.want(second.ID, Queued, ""); !strings.Contains(got.QueueReason, "limit 1 of octocat/hello reached") {
		t.Errorf("the second waits for %q", got.QueueReason)
	}
	tight = false
	w.look(s, first.ID)
	got, err := s.Spec(context.Background(), w.runner(s, first.ID))
	if err != nil || got.Limits.MemoryBytes != 1<<30 {
		t.Errorf("the runner is given %+v, %v", got.Limits, err)
	}
	sess := w.get(first.ID)
	sp, err := sessionSpec(sess)
	if err != nil || sp.Publish.MaxFiles != 3 || sess.Budget != int64(spec.Dollar) {
		t.Errorf("budget %d, %+v, %v", sess.Budget, sp.Publish, err)
	}
}

func TestDeniedWhileItWaited(t *testing.T) {
	w := newWorld(t)
	deny := ""
	bind := func(sp spec.Spec) Bound {
		if deny != "" && sp.Setup[0].Run == testSpec().Setup[0].Run {
			return Bound{Denied: deny}
		}
		return Bound{Spec: sp}
	}
	w.boundBy(&bind)
	s := w.scheduler()
	sess := w.create(s)
	other := w.create(s, func(n *NewSession) { n.Spec.Setup = spec.Steps("true") })
	w.look(s, sess.ID)
	deny = "The operator says no."
	w.look(s, sess.ID)
	if got := w.want(sess.ID, Stopped, ReasonDenied); got.Words != deny || got.Generation != 0 {
		t.Errorf("%+v", got)
	}
	// Its preparation, asked for before, is not begun any more.
	if work := w.work(s, wire.WorkRefresh); work.Refresh.Environment != other.EnvironmentID {
		t.Errorf("the node prepares %+v", work.Refresh)
	}
	late := w.create(s)
	w.look(s, late.ID)
	w.want(late.ID, Stopped, ReasonDenied)
	var building string
	if err := w.db.SQL().QueryRow("SELECT string_agg(environment_id, ' ') FROM snapshots WHERE state = 'building'").Scan(&building); err != nil || building != other.EnvironmentID {
		t.Errorf("%q are being built, %v", building, err)
	}
}

// An image is fetched only where the operator names it when the refresh begins.
func TestImageIsFetchedIfNamed(t *testing.T) {
	for _, pull := range []bool{true, false} {
		w := newWorld(t)
		bind := func(sp spec.Spec) Bound { return Bound{Spec: sp, Pull: pull} }
		w.boundBy(&bind)
		s := w.scheduler()
		sess := w.create(s, func(n *NewSession) { n.Spec.Image = "registry.example/dev@sha256:" + strings.Repeat("0", 64) })
		w.look(s, sess.ID)
		if r := w.work(s, wire.WorkRefresh).Refresh; r.Pull != pull || r.Image == "" {
			t.Errorf("the image %q is to be fetched: %v", r.Image, r.Pull)
		}
	}
}

func TestLeastTier(t *testing.T) {
	w := newWorld(t)
	bind := func(sp spec.Spec) Bound { return Bound{Spec: sp, Tier: wire.TierGVisor} }
	w.boundBy(&bind)
	s := w.scheduler()
	sess := w.create(s)
	state := func(tier string) {
		t.Helper()
		if err := s.NodeState(context.Background(), "n1", wire.NodeState{Version: 1, Tier: tier, Work: []int64{}}); err != nil {
			t.Fatal(err)
		}
	}
	for tier, has := range map[string]string{"": "none yet", "bubblewrap 0.8.0": "bubblewrap"} {
		state(tier)
		w.look(s, sess.ID)
		if got := w.want(sess.ID, Queued, ""); !strings.Contains(got.QueueReason, "tier gvisor") || !strings.Contains(got.QueueReason, "n1 has "+has) {
			t.Errorf("with %q it waits for %q", tier, got.QueueReason)
		}
	}
	var asked int
	if err := w.db.SQL().QueryRow("SELECT count(*) FROM node_work").Scan(&asked); err != nil || asked != 0 {
		t.Errorf("%d pieces of work for a node that does not suit, %v", asked, err)
	}
	state("gvisor release-20261110.0")
	w.look(s, sess.ID)
	w.prepare(s)
	w.want(sess.ID, Placing, "")
	w.look(s, sess.ID)
	got, err := s.Spec(context.Background(), w.runner(s, sess.ID))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{got.WorkGrant, got.VerifyGrant} {
		g, err := wire.OpenGrant(publicKey(w), text, "n1", wire.VerbSandbox, 1234, w.clock.Now())
		if err != nil || g.Tier != wire.TierGVisor {
			t.Errorf("grant %+v, %v", g, err)
		}
	}
}

// The node is told before the sandbox starts how many commands have secrets,
// which sandboxes of the tier gvisor must know.
func TestGrantsTellOfCommandsWithSecrets(t *testing.T) {
	v, _ := newVault(t)
	v.setAll()
	bind := func(sp spec.Spec) Bound { return Bound{Spec: sp, Tier: wire.TierGVisor} }
	v.boundBy(&bind)
	s := v.scheduler()
	if err := s.NodeState(context.Background(), "n1", wire.NodeState{Version: 1, Tier: "gvisor release-20261110.0", Work: []int64{}}); err != nil {
		t.Fatal(err)
	}
	_, r := v.running(s, naming)
	got, err := s.Spec(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{got.WorkGrant, got.VerifyGrant} {
		g, err := wire.OpenGrant(publicKey(v.world), text, "n1", wire.VerbSandbox, 1234, v.clock.Now())
		if err != nil || g.Compartments != 3 { // a setup command, a service and a verification command
			t.Errorf("grant %+v, %v", g, err)
		}
	}
}

// A fork with a model that nobody offers ends with words, and not after three attempts.
func TestForkWithAModelThatIsNotThere(t *testing.T) {
	w := newWorld(t)
	w.o.ModelAPI = func(model, kind string) (string, error) {
		if model != "there" {
			return "", fmt.Errorf("the model %q is not configured; there are: there", model)
		}
		return wire.APIChat, nil
	}
	s := w.scheduler()
	src := w.worked(s)
	for model, want := range map[string]struct {
		state  State
		reason string
	}{"bogus": {Stopped, ReasonDenied}, "there": {Placing, ""}} {
		w.nodeAlive(s)
		sess, err := w.fork(Point{Session: src.ID, Turn: 2}, spec.Harness{Model: model})
		if err != nil {
			t.Fatal(err)
		}
		w.look(s, sess.ID)
		got := w.want(sess.ID, want.state, want.reason)
		if want.reason != "" && !strings.Contains(got.Words, `the model "bogus" is not configured; there are: there`) {
			t.Errorf("it was told %q", got.Words)
		}
	}
}
