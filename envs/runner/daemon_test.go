package runner

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"inspect/envs/node"
	"inspect/envs/snapshot"
	"inspect/envs/snapshot/dir"
	"inspect/envs/wire"
)

// realNode runs the node daemon itself over a dir store that holds the sample
// as snapshot snap-1.
type realNode struct {
	w      *world
	root   string
	socket string
	key    ed25519.PrivateKey
	plane  *httptest.Server
	cancel context.CancelCauseFunc
	ended  chan error
	store  *dir.Store
}

func newRealNode(t *testing.T, w *world) *realNode {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(w.node.dir, "node")
	r := &realNode{w: w, root: root, socket: filepath.Join(root, "node.sock"), key: key}
	r.plane = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/node/v1/refs":
			_ = json.NewEncoder(rw).Encode(wire.Refs{
				Sessions: []wire.SessionRef{{Session: w.spec.Session, Generation: 1}}, Snapshots: []string{"snap-1"},
			})
		case "/node/v1/work":
			select {
			case <-q.Context().Done():
			case <-time.After(5 * time.Second):
				rw.WriteHeader(http.StatusNoContent)
			}
		default:
			rw.WriteHeader(http.StatusNoContent)
		}
	}))
	t.Cleanup(func() { r.plane.CloseClientConnections(); r.plane.Close() })
	for _, d := range []string{root, root + "/mirrors"} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	mirror := filepath.Join(root, "mirrors", strconv.FormatInt(w.spec.RepositoryID, 10)+".git")
	if _, err := hostGit("/", "git", "clone", "-q", "--bare", w.sample.mirror, mirror); err != nil {
		t.Fatal(err)
	}
	r.prepare(t) // before there is a daemon, which would take what is half made for what a dead one left
	r.start(t)
	t.Cleanup(func() { r.stop(t, node.ErrStopAll) })
	return r
}

// prepare makes the snapshot that sessions start from.
func (r *realNode) prepare(t *testing.T) {
	t.Helper()
	store, err := dir.Open(dir.Options{Root: r.root, Owner: "installation-1"})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	base, err := store.Prepare(t.Context(), "snap-1", "")
	if err != nil {
		t.Fatal(err)
	}
	script := `set -e; mkdir -p "$2/work" "$2/home"; cp -a "$1/." "$2/work"`
	if os.Geteuid() == 0 {
		script += `; chown -R ` + strconv.Itoa(testUID) + `:` + strconv.Itoa(testUID) + ` "$2/work" "$2/home"`
	}
	if _, err := hostGit("/", "sh", "-c", script, "sh", r.w.sample.snapshot, base.Path); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Snapshot(t.Context(), "snap-1", "snap-1", snapshot.Meta{Environment: "env-7-1", Generation: 1, Commit: r.w.sample.first}); err != nil {
		t.Fatal(err)
	}
}

// start starts a daemon; it goes on where an earlier one was.
func (r *realNode) start(t *testing.T) {
	t.Helper()
	store, err := dir.Open(dir.Options{Root: r.root, Owner: "installation-1"})
	if err != nil {
		t.Fatal(err)
	}
	uid := testUID
	if os.Geteuid() != 0 {
		uid = os.Getuid()
	}
	n, err := node.New(node.Options{
		Name: "node-1", Root: r.root, Socket: r.socket, ControlURL: r.plane.URL, Token: "node-token",
		GrantKey: r.key.Public().(ed25519.PublicKey), Store: store, Launcher: node.Sandboxes(theLauncher(t)),
		SandboxUID: uid, SandboxGID: uid, MinFree: -1, Log: r.w.opt.Log,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	r.store, r.cancel, r.ended = store, cancel, make(chan error, 1)
	go func() { r.ended <- n.Run(ctx) }()
}

func (r *realNode) stop(t *testing.T, why error) {
	t.Helper()
	r.cancel(why)
	if err := <-r.ended; err != nil {
		t.Errorf("the node daemon ended with: %v", err)
	}
	if err := r.store.Close(); err != nil {
		t.Error(err)
	}
}

func (r *realNode) grant(t *testing.T, purpose string) string {
	t.Helper()
	g, err := wire.SignGrant(r.key, wire.Grant{
		Verbs: []string{wire.VerbRestore, wire.VerbSandbox, wire.VerbDiscard}, Node: "node-1", Session: r.w.spec.Session,
		Generation: 1, Purpose: purpose, Environment: "env-7-1", Snapshot: "snap-1", RepositoryID: r.w.spec.RepositoryID,
		Limits: r.w.node.limits, Compartments: 2, PeerUID: os.Getuid(), Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// The whole way with the real node daemon, which is away for a while: once
// while the agent works, and once more when the work is to be taken.
func TestWithTheNodeDaemon(t *testing.T) {
	w := newWorld(t, "--mode", "hang")
	r := newRealNode(t, w)
	w.opt.Node, w.opt.NodeSocket = nil, r.socket
	w.spec.WorkGrant, w.spec.VerifyGrant = r.grant(t, wire.PurposeWork), r.grant(t, wire.PurposeVerify)
	w.beside(func() {
		w.control.awaitOutput("hanging")
		r.stop(t, context.Canceled) // its sandboxes live on
		w.control.order(wire.Directive{Kind: wire.DirectiveFinish})
		r.start(t)
	})
	if err := w.run(); err != nil {
		t.Fatal(err)
	}
	o := w.control.result
	if o == nil || o.Kind != wire.OutcomeVerified || len(o.Results) != 1 || o.Results[0].ExitCode != 0 {
		t.Fatalf("outcome %+v", o)
	}
	restores := 0
	for _, e := range w.control.events() {
		if e.Kind == wire.EventRestore {
			restores++
			if !strings.Contains(string(e.Data), `"store":"dir"`) || !strings.Contains(string(e.Data), "bubblewrap") {
				t.Errorf("restore %s", e.Data)
			}
		}
	}
	if restores != 2 {
		t.Errorf("%d restores", restores)
	}
	list, err := r.store.List(t.Context())
	if err != nil || len(list.Clones) != 0 {
		t.Errorf("clones are left: %+v, %v", list.Clones, err)
	}
	if ids, err := theLauncher(t).List(); err != nil || len(ids) != 0 {
		t.Errorf("sandboxes are left: %v, %v", ids, err)
	}
}
