package main

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"inspect/app/publish"
	"inspect/envs/node"
	"inspect/envs/node/dial"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/scheduler/local"
)

// A control plane that is not root has the node daemon do what needs root, with
// grants that it signs itself and that its account alone may use.

// nodeSide reaches the local node daemon.
type nodeSide struct {
	name   string // of the node
	socket string
	key    ed25519.PrivateKey
	uid    int // ours
}

// orderLife is how long a grant to ourselves is good for.
const orderLife = 5 * time.Minute

func (n nodeSide) grant(g wire.Grant) (string, error) {
	g.Node, g.PeerUID, g.Expires = n.name, n.uid, time.Now().Add(orderLife)
	return wire.SignGrant(n.key, g)
}

// run asks for what to be done with an attempt's runner, and waits for a daemon
// that is away, as long as patience lasts.
func (n nodeSide) run(ctx context.Context, patience time.Duration, what, session string, generation int, secret string) (wire.RunReply, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	grant, err := n.grant(wire.Grant{Verbs: []string{wire.VerbRun}, Session: session, Generation: generation})
	if err != nil {
		return wire.RunReply{}, err
	}
	return dial.Run(ctx, n.socket, what, grant, secret)
}

// nodeEngine is the local engine behind the node daemon, which starts runners
// as accounts of their own. It implements scheduler.Engine.
type nodeEngine struct{ nodeSide }

var _ scheduler.Engine = nodeEngine{}

// attemptRef is what is stored to find an attempt again. It names the attempt
// and nothing that runs: what that is the daemon knows, and believes nobody.
type attemptRef struct {
	Dir string `json:"dir"` // SESSION-gGENERATION, as the local engine's own reference has it
}

var attemptName = regexp.MustCompile(`^([a-z0-9]{1,64})-g([1-9][0-9]{0,8})$`)

func (nodeEngine) Name() string { return "local" }

func (e nodeEngine) Start(ctx context.Context, a scheduler.Attempt) (json.RawMessage, error) {
	name := fmt.Sprintf("%s-g%d", a.Session, a.Generation)
	if !attemptName.MatchString(name) {
		return nil, fmt.Errorf("attempt %d of session %q cannot be run", a.Generation, a.Session)
	}
	if _, err := e.run(ctx, 30*time.Second, "start", a.Session, a.Generation, a.Secret); err != nil {
		return nil, err
	}
	return json.Marshal(attemptRef{Dir: name})
}

func (e nodeEngine) State(ctx context.Context, ref json.RawMessage) (scheduler.EngineState, error) {
	session, generation, err := attemptOf(ref)
	if err != nil {
		return scheduler.EngineUnknown, err
	}
	r, err := e.run(ctx, 5*time.Second, "state", session, generation, "")
	switch {
	case err != nil:
		return scheduler.EngineUnknown, err
	case r.Running:
		return scheduler.EngineRunning, nil
	}
	return scheduler.EngineGone, nil
}

func (e nodeEngine) Stop(ctx context.Context, ref json.RawMessage) error {
	session, generation, err := attemptOf(ref)
	if err != nil {
		return err
	}
	_, err = e.run(ctx, time.Minute, "stop", session, generation, "")
	return err
}

func (e nodeEngine) Logs(ctx context.Context, ref json.RawMessage, max int) ([]byte, error) {
	session, generation, err := attemptOf(ref)
	if err != nil {
		return nil, err
	}
	r, err := e.run(ctx, 5*time.Second, "logs", session, generation, "")
	return r.Log[len(r.Log)-min(len(r.Log), max):], err
}

func (e nodeEngine) List(ctx context.Context) ([]scheduler.Listed, error) {
	r, err := e.run(ctx, 20*time.Second, "list", "", 0, "")
	if err != nil {
		return nil, err
	}
	var out []scheduler.Listed
	for _, one := range r.List {
		l := scheduler.Listed{Session: one.Session, Generation: one.Generation, State: scheduler.EngineGone, Node: localNode}
		if one.Running {
			l.State = scheduler.EngineRunning
		}
		if l.Ref, err = json.Marshal(attemptRef{Dir: fmt.Sprintf("%s-g%d", one.Session, one.Generation)}); err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

func (e nodeEngine) Forget(ctx context.Context, ref json.RawMessage) error {
	session, generation, err := attemptOf(ref)
	if err != nil {
		return err
	}
	_, err = e.run(ctx, time.Minute, "forget", session, generation, "")
	return err
}

// stopAll ends every runner of this machine.
func (e nodeEngine) stopAll(ctx context.Context) {
	_, _ = e.run(ctx, 20*time.Second, "stop-all", "", 0, "") // the daemon does it again at its own end
}

func attemptOf(ref json.RawMessage) (session string, generation int, err error) {
	var r attemptRef
	if err := json.Unmarshal(ref, &r); err != nil {
		return "", 0, fmt.Errorf("what the runner runs as cannot be read: %w", err)
	}
	m := attemptName.FindStringSubmatch(r.Dir)
	if m == nil {
		return "", 0, fmt.Errorf("what the runner runs as cannot be read: %q", r.Dir)
	}
	generation, err = strconv.Atoi(m[2])
	return m[1], generation, err
}

// nodeQuarantine has the node daemon start the sandboxes in which git runs over
// hostile data. It implements publish.Quarantine.
type nodeQuarantine struct {
	nodeSide
	dir string // of quarantines
}

func (q nodeQuarantine) Run(ctx context.Context, c publish.GitCommand) (int, error) {
	name, err := filepath.Rel(q.dir, c.Dir)
	if err != nil {
		return 0, fmt.Errorf("quarantine: %w", err)
	}
	repository, err := strconv.ParseInt(strings.TrimSuffix(filepath.Base(c.Mirror), ".git"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("quarantine: %s is no mirror: %w", c.Mirror, err)
	}
	grant, err := q.grant(wire.Grant{
		Verbs: []string{wire.VerbQuarantine}, Session: c.ID, Directory: name, RepositoryID: repository, Limits: quarantineLimits,
	})
	if err != nil {
		return 0, fmt.Errorf("quarantine: %w", err)
	}
	box, err := dial.Quarantine(ctx, q.socket, grant)
	if err != nil {
		return 0, fmt.Errorf("quarantine: %w", err)
	}
	code, err := runGit(ctx, box.Client, c)
	select {
	case <-box.Ends: // or the daemon has ended, and the lifeline with the client
	case <-time.After(quarantineEnd):
		err = errors.Join(err, errors.New("the sandbox does not end"))
	}
	if err != nil {
		return 0, fmt.Errorf("quarantine: %w", err)
	}
	return code, nil
}

// runners are those of the local engine, for the node daemon that runs it.
type runners struct{ *local.Engine }

var _ node.Runners = runners{}

func (r runners) Start(ctx context.Context, session string, generation int, secret string) error {
	_, err := r.Engine.Start(ctx, scheduler.Attempt{Session: session, Generation: generation, Secret: secret})
	return err
}

func (r runners) Running(ctx context.Context, session string, generation int) (bool, error) {
	ref, ok := r.Find(session, generation)
	if !ok {
		return false, nil
	}
	state, err := r.State(ctx, ref)
	return state == scheduler.EngineRunning, err
}

func (r runners) Stop(ctx context.Context, session string, generation int) error {
	ref, ok := r.Find(session, generation)
	if !ok {
		return nil
	}
	return r.Engine.Stop(ctx, ref)
}

func (r runners) Log(ctx context.Context, session string, generation int, max int) ([]byte, error) {
	ref, ok := r.Find(session, generation)
	if !ok {
		return nil, nil
	}
	return r.Logs(ctx, ref, max)
}

func (r runners) List(ctx context.Context) ([]wire.RunnerState, error) {
	list, err := r.Engine.List(ctx)
	var out []wire.RunnerState
	for _, l := range list {
		// One that cannot be told may live.
		out = append(out, wire.RunnerState{Session: l.Session, Generation: l.Generation, Running: l.State != scheduler.EngineGone})
	}
	return out, err
}

func (r runners) Forget(ctx context.Context, session string, generation int) error {
	ref, ok := r.Find(session, generation)
	if !ok {
		return nil
	}
	return r.Engine.Forget(ctx, ref)
}
