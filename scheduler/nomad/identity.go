package nomad

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v4"
	"github.com/hashicorp/nomad/api"

	"inspect/envs/proc"
	"inspect/scheduler"
	"inspect/scheduler/jwks"
)

// leeway is by how much clocks may differ.
const leeway = 30 * time.Second

const jwksPath = "/.well-known/jwks.json"

// newKeys are the cluster's. They come by the same verified way as all else that
// Nomad says.
func newKeys(clock proc.Clock, c *client) *jwks.Keys {
	return jwks.New(clock, func(ctx context.Context) ([]byte, error) {
		q, err := c.query(ctx, c.here())
		if err != nil {
			return nil, err
		}
		return c.raw(jwksPath, jwks.MaxSet, q)
	})
}

// claims are what Nomad says of a task in the identity that it signs.
type claims struct {
	Audience   jwt.ClaimStrings `json:"aud"`
	Expires    *jwt.NumericDate `json:"exp"`
	NotBefore  *jwt.NumericDate `json:"nbf"`
	Subject    string           `json:"sub"`
	Namespace  string           `json:"nomad_namespace"`
	Job        string           `json:"nomad_job_id"`
	Allocation string           `json:"nomad_allocation_id"`
	Task       string           `json:"nomad_task"`
}

// Valid implements jwt.Claims. It is not asked: check is, which has a clock.
func (claims) Valid() error { return errors.New("claims are checked elsewhere") }

// check says whether claims that are signed are of a runner of ours, and whose.
func (c claims) check(o Options, now time.Time) (session string, generation int, err error) {
	session, generation, ok := attemptOf(c.Job)
	switch {
	case !slices.Contains(c.Audience, Audience):
		return "", 0, fmt.Errorf("it is for %q", c.Audience)
	case c.Expires == nil || c.NotBefore == nil:
		return "", 0, errors.New("it does not say when it is good")
	case !now.Before(c.Expires.Add(leeway)):
		return "", 0, fmt.Errorf("it has expired at %s", c.Expires)
	case now.Add(leeway).Before(c.NotBefore.Time):
		return "", 0, fmt.Errorf("it is not good before %s", c.NotBefore)
	case c.Namespace != o.Namespace:
		return "", 0, fmt.Errorf("it is of the namespace %q", c.Namespace)
	case !ok:
		return "", 0, fmt.Errorf("its job %q is none of ours", c.Job)
	case c.Task != taskName:
		return "", 0, fmt.Errorf("it is of the task %q", c.Task)
	case c.Subject != strings.Join([]string{o.Region, o.Namespace, c.Job, groupName, taskName, identityName}, ":"):
		return "", 0, fmt.Errorf("its subject is %q", c.Subject)
	case c.Allocation == "":
		return "", 0, errors.New("it names no allocation")
	}
	return session, generation, nil
}

// Identify checks the identity that Nomad gave a runner: that the cluster signed
// it, that it is of a task of ours, and that its allocation is the one that we
// read from the job which we registered.
func (e *Engine) Identify(ctx context.Context, token string) (scheduler.Identity, error) {
	var c claims
	if err := e.keys.Verify(ctx, token, &c); errors.Is(err, jwks.ErrUntold) {
		return scheduler.Identity{}, errors.Join(scheduler.ErrIdentityUnknown, err)
	} else if err != nil {
		return scheduler.Identity{}, fmt.Errorf("the identity is not signed by the cluster: %w", err)
	}
	session, generation, err := c.check(e.o, e.o.Clock.Now())
	if err != nil {
		return scheduler.Identity{}, fmt.Errorf("the identity is refused: %w", err)
	}
	return e.placed(ctx, c, session, generation)
}

// placed finds the allocation that an identity names among what Nomad has of the
// job that we registered. The cache is not asked: it may not know it yet.
func (e *Engine) placed(ctx context.Context, c claims, session string, generation int) (scheduler.Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	unknown := func(err error) error { return errors.Join(scheduler.ErrIdentityUnknown, e.o.trouble(err)) }
	r := e.nomad.here()
	r.Job = c.Job
	j, err := e.nomad.job(ctx, r)
	if err != nil {
		return scheduler.Identity{}, unknown(err)
	}
	if !ours(j, session, generation) {
		return scheduler.Identity{}, fmt.Errorf("the identity is refused: its job %s is not one that we registered", c.Job)
	}
	allocs, err := e.nomad.allocations(ctx, r)
	if err != nil {
		return scheduler.Identity{}, unknown(err)
	}
	a := facts{Allocs: allocs}.attempt()
	if err := checkAllocation(a, c, e.o.Namespace); err != nil {
		return scheduler.Identity{}, fmt.Errorf("the identity is refused: %w", err)
	}
	n, err := e.nodeOf(ctx, a.NodeID)
	if err != nil {
		return scheduler.Identity{}, unknown(err)
	}
	return scheduler.Identity{Session: session, Generation: generation, Allocation: a.ID, Node: nameOf(n)}, nil
}

// checkAllocation refuses all but the first allocation of a job that nobody has
// changed since it was registered.
func checkAllocation(a *api.AllocationListStub, c claims, namespace string) error {
	switch {
	case a == nil || a.ID != c.Allocation:
		return fmt.Errorf("the allocation %q is not the one of its job", c.Allocation)
	case a.JobID != c.Job || a.Namespace != namespace || a.TaskGroup != groupName:
		return fmt.Errorf("the allocation %s is not of our job", a.ID)
	case a.JobVersion != 0:
		return fmt.Errorf("the allocation %s is of a job that somebody has changed", a.ID)
	case over(a):
		return fmt.Errorf("the allocation %s is over", a.ID)
	}
	return nil
}

func (e *Engine) nodeOf(ctx context.Context, id string) (*api.Node, error) {
	if nodes, _, ok := e.cache.machines(e.o.Clock.Now()); ok && nameOf(nodes[id]) != "" {
		return nodes[id], nil
	}
	return e.nomad.node(ctx, id)
}
