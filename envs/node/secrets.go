package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/sandbox"
	"inspect/envs/sandbox/search"
	"inspect/envs/sandbox/stream"
	"inspect/envs/services"
	"inspect/envs/wire"
)

// Bounds of the search for secrets.
const (
	searchTime = 10 * time.Minute
	maxFound   = 1 << 20 // bytes of what it says
)

// box is the sandbox that prepares a base, while it runs.
type box struct {
	id, tree string
	limits   wire.Limits
	sockets  []string
}

// secret is one value that this refresh was given.
type secret struct{ name, value string }

// place is where one step runs: in the refresh's own sandbox or, if it has
// secrets, apart. name tells the places apart and is no service's.
func (r *refresher) place(ctx context.Context, c *stream.Client, name, whose string, s wire.Step) (services.Apart, error) {
	if len(s.Secrets) == 0 {
		return services.Apart{Sandbox: c, Close: func() {}}, nil
	}
	return r.apart(ctx, name, whose, s.Secrets)
}

// apart makes a place of its own beside the refresh's sandbox for one command
// that has secrets: what other commands left running does not see it.
func (r *refresher) apart(ctx context.Context, name, whose string, secrets []string) (services.Apart, error) {
	n := r.n
	near, far, err := stream.Pair()
	if err != nil {
		return services.Apart{}, err
	}
	run, err := n.startBeside(ctx, r.box.id, name, r.box.tree, r.w.Remote.RepositoryID, r.w.Image, r.box.limits, r.box.sockets, far)
	if err != nil {
		near.Close()
		return services.Apart{}, fmt.Errorf("start a place of its own for %s: %w", whose, err)
	}
	c := stream.NewClient(near)
	shut := func() {
		_ = c.Close()
		<-run.over // its lifeline is closed; at the latest with the refresh's sandbox
	}
	values, err := r.ask(ctx, whose, secrets)
	if err != nil {
		shut()
		return services.Apart{}, err
	}
	place := services.Apart{Sandbox: c, Close: shut}
	for i, v := range values {
		place.Env = append(place.Env, secrets[i]+"="+v)
	}
	n.log.Info("handing out secrets", "snapshot", r.w.Snapshot, "to", whose, "names", secrets)
	return place, nil
}

// ask asks the control plane for values. From here on they are taken out of
// what is said of this refresh, and looked for in what it has made.
func (r *refresher) ask(ctx context.Context, whose string, names []string) ([]string, error) {
	var values map[string]string
	err := r.n.insist(ctx, "ask for secrets", func(ctx context.Context) (err error) {
		values, err = r.n.control.secrets(ctx, r.work, names)
		return err
	})
	var refused *wire.Error
	if errors.As(err, &refused) {
		return nil, failed("the secrets of %s: %s", whose, refused.Message)
	}
	if err != nil {
		return nil, fmt.Errorf("the secrets of %s: %w", whose, err)
	}
	var out []string
	for _, name := range names {
		v, ok := values[name]
		if !ok || strings.ContainsRune(v, 0) {
			return nil, failed("the secret %s of %s has no value that can be used", name, whose)
		}
		r.remember(secret{name, v})
		out = append(out, v)
	}
	return out, nil
}

func (r *refresher) remember(s secret) {
	if slices.Contains(r.given, s) {
		return
	}
	r.given = append(r.given, s)
	r.n.hide(s.value)
}

// forget is for the end of the refresh. Another may use the same secret.
func (r *refresher) forget() {
	for _, s := range r.given {
		r.n.forget(s.value)
	}
}

// hide has a value taken out of all that is said here, until as many calls of
// forget.
func (n *Node) hide(value string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.secrets[value]++
	n.redactor.Add(value)
}

func (n *Node) forget(value string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.secrets[value]--; n.secrets[value] <= 0 {
		delete(n.secrets, value)
		n.redactor.Forget(value)
	}
}

// safe is err without the values, which are forgotten before it is told.
func (r *refresher) safe(err error) error {
	if len(r.given) == 0 {
		return err
	}
	return &safeError{err, r.n.redactor.String(err.Error())}
}

type safeError struct {
	error
	words string
}

func (e *safeError) Error() string { return e.words }
func (e *safeError) Unwrap() error { return e.error }

// named are all secrets that the work names, those that the proxy adds too.
func named(w wire.RefreshWork) (out []string) {
	for _, s := range slices.Concat(w.Setup, w.Load) {
		out = append(out, s.Secrets...)
	}
	for _, s := range w.Services {
		out = append(out, s.Secrets...)
	}
	for _, i := range w.Inject {
		out = append(out, i.Secret)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// withSecrets is how many commands are given some.
func withSecrets(w wire.RefreshWork) (n int) {
	for _, s := range slices.Concat(w.Setup, w.Load) {
		n += min(len(s.Secrets), 1)
	}
	for _, s := range w.Services {
		n += min(len(s.Secrets), 1)
	}
	return n
}

// search looks for the environment's secrets in everything that the setup may
// have written, and for credentials that programs keep at home. Nothing of it runs any more; the search runs in a sandbox of
// its own that can read the tree alone.
func (r *refresher) search(ctx context.Context, tree string) error {
	names := named(r.w)
	if len(names) > 0 {
		// A value that has changed meanwhile was remembered when it was handed out.
		if _, err := r.ask(ctx, "the environment", names); err != nil {
			return err
		}
	}
	n, id := r.n, refreshPrefix+r.w.Snapshot
	unlock, err := n.ids.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if err := n.end(ctx, id); err != nil {
		return err
	}
	near, far, err := stream.Pair()
	if err != nil {
		return err
	}
	spec, err := n.sandboxSpec(id, tree, 0, r.w.Limits, far)
	if err != nil {
		return errors.Join(err, near.Close(), far.Close())
	}
	q := search.Request{Home: sandbox.Home, Limit: searchTime}
	for i := range spec.Mounts {
		if m := &spec.Mounts[i]; m.Writable {
			m.Writable = false
			if m.Target == sandbox.Home || len(names) > 0 {
				q.Dirs = append(q.Dirs, m.Target)
			}
		}
	}
	for _, s := range r.given {
		q.Secrets = append(q.Secrets, search.Secret{Name: s.name, Value: s.value})
	}
	run, err := n.launch(ctx, spec, &ways{n: n})
	if err != nil {
		return errors.Join(err, near.Close())
	}
	c := stream.NewClient(near)
	hits, err := r.searched(ctx, c, q)
	_ = c.Close()
	<-run.over
	if err != nil {
		return failed("looking for secrets in what setup has made: %v", hint(err, run.end))
	}
	if len(hits) > 0 {
		return failed("setup leaves what no snapshot may hold: %s. Have setup remove it or never write it: "+
			"what is handed to a step is in its environment, and credentials for registries can be added by the egress proxy (header_from)",
			strings.Join(hits, "; "))
	}
	return nil
}

// searched runs the search and puts what it found into words.
func (r *refresher) searched(ctx context.Context, c *stream.Client, q search.Request) (words []string, err error) {
	in, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	out, said := &proc.Head{N: maxFound}, &proc.Tail{N: outputTail}
	exit, err := c.Run(ctx, stream.Exec{
		Argv: []string{sandbox.InitPath, "sandbox-init", search.Word}, Dir: "/",
		Stdin: bytes.NewReader(in), Stdout: out, Stderr: said,
	})
	if err != nil {
		return nil, err
	}
	for d := json.NewDecoder(bytes.NewReader(out.Bytes())); ; {
		var h search.Hit
		if d.Decode(&h) != nil {
			break
		}
		where := redact.OneLine(r.n.redactor.String(h.Path), 300)
		if h.Secret != "" {
			words = append(words, fmt.Sprintf("the secret %s is in the %s of %s", h.Secret, h.What, where))
		} else {
			words = append(words, where+" "+h.What)
		}
	}
	if exit.Code != 0 && len(words) == 0 {
		return nil, fmt.Errorf("the search ended with status %d: %s", exit.Code, redact.OneLine(string(said.Bytes()), 300))
	}
	const show = 5
	if len(words) > show {
		words = append(words[:show], fmt.Sprintf("and %d more", len(words)-show))
	}
	return words, nil
}
