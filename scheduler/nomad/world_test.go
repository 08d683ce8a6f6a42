package nomad

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"go.uber.org/goleak"

	"inspect/fixtures/nomadd"
	"inspect/scheduler/enginetest"
	"inspect/storage/storagetest"
)

func TestMain(m *testing.M) {
	if enginetest.IsRunner() {
		os.Exit(enginetest.Runner())
	}
	goleak.VerifyTestMain(storagetest.Main(m))
}

// cluster is where tests of real processes run: the double, or the agent at
// NOMAD_ADDR, which must be on this machine and allow raw_exec.
func cluster(t *testing.T) (addr string) {
	t.Helper()
	if addr := os.Getenv("NOMAD_ADDR"); addr != "" {
		prepare(t, options(t, addr))
		return addr
	}
	return double(t, nomadd.Options{}).URL()
}

// double returns a double of a cluster whose one node is registered with us.
func double(t *testing.T, o nomadd.Options) *nomadd.Double {
	t.Helper()
	o.Dir, o.Namespaces = t.TempDir(), []string{testSpace}
	if o.Nodes == nil {
		o.Nodes = []nomadd.Node{{Name: "n1", Pool: env("INSPECT_TEST_NOMAD_POOL", "default"), Meta: map[string]string{MetaNode: testNode}}}
	}
	d, err := nomadd.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("closing the double: %v", err)
		}
	})
	return d
}

const testSpace = "inspect-test"

// options are of an engine that runs this very binary in a cluster.
func options(t *testing.T, addr string, args ...string) Options {
	t.Helper()
	bin, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Address: addr, Namespace: testSpace, NodePool: env("INSPECT_TEST_NOMAD_POOL", "default"), Token: tokenIn(os.Getenv("NOMAD_TOKEN_FILE")),
		Binary: bin, ControlURL: "http://127.0.0.1:1", NodeSocket: "/run/node.sock", Args: args, RunnerMemory: 64 * mib,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// running returns an engine that is kept informed until the test ends.
func running(t *testing.T, o Options) *Engine {
	t.Helper()
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = e.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		e.nomad.Close()
	})
	return e
}

// asking returns an engine that nobody keeps informed.
func asking(t *testing.T, o Options) *Engine {
	t.Helper()
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.nomad.Close)
	return e
}

const testNode = "node-a"

// prepare makes the namespace of the tests and registers the agent's node with us.
func prepare(t *testing.T, o Options) {
	t.Helper()
	o, err := o.complete()
	if err != nil {
		t.Fatal(err)
	}
	// Who makes namespaces and metadata may do more than an engine.
	if token := os.Getenv("NOMAD_TOKEN"); token != "" {
		o.Token = func() (string, error) { return token, nil }
	}
	c, err := newClient(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	w, err := c.write(t.Context(), c.here())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Namespaces().Register(&api.Namespace{Name: o.Namespace}, w); err != nil {
		t.Fatalf("making the namespace: %v", err)
	}
	q, err := c.query(t.Context(), c.here())
	if err != nil {
		t.Fatal(err)
	}
	nodes, _, err := c.Nodes().List(q)
	if err != nil || len(nodes) == 0 {
		t.Fatalf("the cluster has no node: %v", err)
	}
	if _, err := c.Nodes().Meta().Apply(&api.NodeMetaApplyRequest{NodeID: nodes[0].ID, Meta: map[string]*string{MetaNode: new(testNode)}}, q); err != nil {
		t.Fatalf("setting the node's metadata: %v", err)
	}
	waitFor(t, "the node's metadata", func() bool {
		n, err := c.node(t.Context(), nodes[0].ID)
		return err == nil && nameOf(n) == testNode
	})
}

// waitFor asks again and again for what a cluster does in its own time.
func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !is(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

// tokenIn reads a token's file; nil: there is none.
func tokenIn(path string) func() (string, error) {
	if path == "" {
		return nil
	}
	return func() (string, error) {
		b, err := os.ReadFile(path)
		return strings.TrimSpace(string(b)), err
	}
}
