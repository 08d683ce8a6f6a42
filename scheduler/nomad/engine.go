package nomad

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"inspect/scheduler"
	"inspect/scheduler/jwks"
)

// Engine runs attempts as jobs of a Nomad cluster. All of its state is in
// Nomad: any number of control planes may have one for the same cluster.
type Engine struct {
	o     Options
	base  *api.Job // the template; nil: none
	nomad *client
	cache *cache
	keys  *jwks.Keys
}

var (
	_ scheduler.Engine     = (*Engine)(nil)
	_ scheduler.Placer     = (*Engine)(nil)
	_ scheduler.Identifier = (*Engine)(nil)
)

// New returns an engine. It asks Nomad nothing yet; Run keeps it informed.
func New(o Options) (*Engine, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	e := &Engine{o: o, cache: newCache()}
	if len(o.Template) > 0 {
		if e.base, err = parseTemplate(o.Template); err != nil {
			return nil, fmt.Errorf("the template of Nomad jobs cannot be used: %w", err)
		}
	}
	if e.nomad, err = newClient(o); err != nil {
		return nil, err
	}
	e.keys = newKeys(o.Clock, e.nomad)
	return e, nil
}

// Name implements scheduler.Engine.
func (e *Engine) Name() string { return "nomad" }

// Start registers an attempt's job, or finds the one that was registered
// before, by whomever. An error that is not the attempt's own is a
// *scheduler.EngineTrouble.
func (e *Engine) Start(ctx context.Context, a scheduler.Attempt) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	j, err := e.o.job(a, e.base, e.limits(), e.o.Clock.Now())
	if err != nil {
		return nil, err
	}
	w, err := e.nomad.write(ctx, e.nomad.here())
	if err != nil {
		return nil, e.o.trouble(err)
	}
	_, _, err = e.nomad.Jobs().RegisterOpts(j, &api.RegisterOptions{EnforceIndex: true}, w)
	switch _, body, ok := answered(err); {
	case err == nil:
		e.cache.touch(*j.ID)
	case ok && strings.Contains(body, taken):
		if err := e.readBack(ctx, a, *j.ID); err != nil {
			return nil, err
		}
	default:
		return nil, e.refused(ctx, err)
	}
	return e.o.ref(*j.ID)
}

// refused is trouble that finds out what is wrong with the token: only to that
// question Nomad answers that it has expired. What it does not know it refuses there, too.
func (e *Engine) refused(ctx context.Context, err error) error {
	if status, _, _ := answered(err); status != http.StatusForbidden {
		return e.o.trouble(err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	q, tokenErr := e.nomad.query(ctx, e.nomad.here())
	if tokenErr != nil {
		return e.o.trouble(tokenErr)
	}
	_, _, self := e.nomad.ACLTokens().Self(q)
	_, body, ok := answered(self)
	switch {
	case !ok: // it is one
		return e.o.trouble(err)
	case strings.Contains(body, tokenExpired):
		return e.o.trouble(self)
	}
	return &scheduler.EngineTrouble{Words: tokenUnknown, Cause: errors.Join(err, self)}
}

// readBack makes sure that the job which there is already is the attempt's.
func (e *Engine) readBack(ctx context.Context, a scheduler.Attempt, id string) error {
	r := e.nomad.here()
	r.Job = id
	j, err := e.nomad.job(ctx, r)
	if err != nil {
		return e.o.trouble(err)
	}
	if !ours(j, a.Session, a.Generation) {
		return &scheduler.EngineTrouble{Words: fmt.Sprintf("Nomad has a job %s that Inspect did not register", id)}
	}
	return nil
}

// limits says whether the cluster knows max_run_duration. The nodes act on it,
// and no server is older than its nodes; one that does not know it ignores it.
func (e *Engine) limits() bool {
	nodes, _, _ := e.cache.machines(e.o.Clock.Now())
	for _, n := range nodes {
		if !knowsLimit(n.Attributes["nomad.version"]) {
			return false
		}
	}
	return true
}

// State says whether an attempt still runs, or waits for a node. While its node
// is away it is unknown.
func (e *Engine) State(ctx context.Context, stored json.RawMessage) (scheduler.EngineState, error) {
	f, err := e.facts(ctx, stored)
	if err != nil {
		return scheduler.EngineUnknown, err
	}
	return state(f), nil
}

// facts are what is known of an attempt's job; before it is said to be gone
// Nomad is asked.
func (e *Engine) facts(ctx context.Context, stored json.RawMessage) (facts, error) {
	r, err := readRef(stored)
	if err != nil {
		return facts{}, err
	}
	if f, ok := e.cache.job(r.Job, e.o.Clock.Now()); ok && r.Namespace == e.o.Namespace && r.Region == e.o.Region {
		return f, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	f, err := e.nomad.facts(ctx, r)
	return f, e.refused(ctx, err)
}

// Stop deregisters an attempt's job: Nomad ends its process, for which that has
// as long as its kill timeout. No such job is success.
func (e *Engine) Stop(ctx context.Context, stored json.RawMessage) error {
	return e.deregister(ctx, stored, false)
}

// Forget removes an attempt's job from Nomad.
func (e *Engine) Forget(ctx context.Context, stored json.RawMessage) error {
	return e.deregister(ctx, stored, true)
}

// deregister is not done by stopping the allocation: Nomad would start another.
func (e *Engine) deregister(ctx context.Context, stored json.RawMessage, purge bool) error {
	r, err := readRef(stored)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	w, err := e.nomad.write(ctx, r)
	if err != nil {
		return e.refused(ctx, err)
	}
	_, _, err = e.nomad.Jobs().Deregister(r.Job, purge, w)
	if err != nil && !missing(err) {
		return e.refused(ctx, err)
	}
	e.cache.touch(r.Job)
	return nil
}

// List asks Nomad for every attempt that it knows of.
func (e *Engine) List(ctx context.Context) ([]scheduler.Listed, error) {
	now, err := e.list(ctx, false)
	if err != nil {
		return nil, e.refused(ctx, err)
	}
	var out []scheduler.Listed
	for id, f := range now.jobs {
		session, generation, _ := attemptOf(id)
		l := scheduler.Listed{Session: session, Generation: generation, State: state(f), Words: why(f)}
		if a := f.attempt(); a != nil {
			l.Node = nameOf(now.nodes[a.NodeID])
		}
		if l.Ref, err = e.o.ref(id); err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b scheduler.Listed) int {
		return cmp.Or(cmp.Compare(a.Session, b.Session), cmp.Compare(a.Generation, b.Generation))
	})
	return out, nil
}

// nameOf says as what a node is registered with us; empty: it is not.
func nameOf(n *api.Node) string {
	if n == nil || !nodeForm.MatchString(n.Meta[MetaNode]) {
		return ""
	}
	return n.Meta[MetaNode]
}
