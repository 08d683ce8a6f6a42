package nomad

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/fixtures/nomadd"
	"inspect/scheduler"
	"inspect/scheduler/enginetest"
	"inspect/storage"
	"inspect/storage/storagetest"
)

// noForge is what a GitHub is told by a plane: nothing is published here.
type noForge struct{}

func (noForge) Publish(context.Context, storage.Session) (scheduler.Published, error) {
	return scheduler.Published{}, errors.New("nothing is to be published")
}
func (noForge) Report(context.Context, storage.Session) error { return nil }
func (noForge) GitToken(context.Context, int64, int64) (wire.GitToken, error) {
	return wire.GitToken{Token: "ghs_none"}, nil
}
func (noForge) GitTokenDone(context.Context, int64) {}

// slots of the planes.
const slots = 8

// newPlane is a control plane on a database: an engine and a scheduler.
func newPlane(t *testing.T, db *storage.DB, blobs *storage.Blobs, o Options) *scheduler.Scheduler {
	t.Helper()
	s, err := scheduler.New(scheduler.Options{
		DB: db, Blobs: blobs, Effects: noForge{}, Engine: running(t, o), Log: o.Log,
		GrantKey: ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, 32)), RunnerUID: os.Geteuid(),
		Limits: scheduler.Limits{Total: slots}, Times: scheduler.Times{NodeSilence: time.Hour},
		CloneURL: func(storage.Repository) string { return "https://git.example/octocat/hello.git" },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("a control plane ended: %v", err)
		}
	})
	return s
}

// submit makes a session the way intake does.
func submit(t *testing.T, s *scheduler.Scheduler, db *storage.DB, n int) (id string) {
	t.Helper()
	sp := spec.Default()
	sp.Harness = spec.Harness{Kind: "command", Command: "scripted"}
	sp.Limits.CPU, sp.Limits.MemoryBytes, sp.Limits.Concurrent = 0.05, 16<<20, 100
	err := db.InTx(t.Context(), func(tx *storage.Tx) error {
		env, err := s.EnsureEnvironment(t.Context(), tx, 42, sp, "main", strings.Repeat("1", 40))
		if err != nil {
			return err
		}
		row, err := s.Create(t.Context(), tx, scheduler.NewSession{
			InstallationID: 7, RepositoryID: 42, IssueNumber: n, IntentKey: fmt.Sprint("label:", n), RequesterID: 1, RequesterLogin: "octocat",
			Title: "A bug", Request: "fix it", Prompt: "Fix the bug.", BaseBranch: "main", BaseSHA: strings.Repeat("1", 40),
			EnvironmentID: env, Spec: sp, SpecSource: spec.FileName,
		})
		id = row.ID
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// snapshot plays the node daemon that prepares the one that is asked for.
func snapshot(t *testing.T, s *scheduler.Scheduler) {
	t.Helper()
	waitFor(t, "the order to prepare a snapshot", func() bool {
		work, err := s.NextWork(t.Context(), testNode)
		if err != nil {
			t.Fatal(err)
		}
		if work == nil || work.Refresh == nil {
			return false
		}
		r := work.Refresh
		if err := s.Offer(t.Context(), testNode, wire.SnapshotOffer{
			Work: work.ID, Snapshot: r.Snapshot, Environment: r.Environment, Generation: r.Generation,
			Commit: r.Commit, ConfigDigest: r.ConfigDigest, Store: "dir", Bytes: 10,
		}); err != nil {
			t.Fatal(err)
		}
		return true
	})
}

// On two control planes over one database, whose every look at a session races
// with the other's, 50 sessions have one attempt each, of one process, which is
// let in by whichever plane it asks.
func TestRealTwoControlPlanes(t *testing.T) {
	const sessions = 50
	addr := os.Getenv("NOMAD_ADDR")
	var d *nomadd.Double
	if addr == "" {
		d = double(t, nomadd.Options{})
		addr = d.URL()
	} else {
		prepare(t, options(t, addr))
	}
	db := storagetest.New(t)
	blobs, err := storage.OpenBlobs(t.Context(), "file://"+filepath.Join(t.TempDir(), "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = blobs.Close() })
	if _, err := db.SQL().Exec("INSERT INTO repositories (id, installation_id, owner, name, default_branch) VALUES (42, 7, 'octocat', 'hello', 'main')"); err != nil {
		t.Fatal(err)
	}
	runners := enginetest.Listen(t)
	planes := []*scheduler.Scheduler{
		newPlane(t, db, blobs, options(t, addr, runners.Args()...)), newPlane(t, db, blobs, options(t, addr, runners.Args()...)),
	}
	token := sha256.Sum256([]byte("the node's"))
	if err := planes[0].RegisterNode(t.Context(), testNode, token[:]); err != nil {
		t.Fatal(err)
	}
	if err := planes[0].NodeState(t.Context(), testNode, wire.NodeState{Node: testNode, Version: wire.Version, Work: []int64{}}); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for i := range sessions {
		ids = append(ids, submit(t, planes[i%2], db, i))
		if i == 0 {
			snapshot(t, planes[0])
		}
	}
	for i, id := range ids {
		var both sync.WaitGroup
		for _, s := range planes { // somebody looks at it all the time: whoever is late is told so
			both.Go(func() { _ = s.Reconcile(t.Context(), id) })
		}
		both.Wait()
		p := runners.Wait(t, id, 1)
		end(t, planes[i%2], p)
		p.Tell(t, "exit 0")
	}
	for _, id := range ids {
		waitFor(t, "the end of session "+id, func() bool {
			sess, err := db.Q().GetSession(t.Context(), id)
			return err == nil && scheduler.Terminal(sess.State) && sess.ReportedAt.Valid
		})
		attempts := 0
		if err := db.SQL().QueryRow("SELECT count(*) FROM attempts WHERE session_id = $1", id).Scan(&attempts); err != nil {
			t.Fatal(err)
		}
		sess, err := db.Q().GetSession(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if n := runners.Count(id, 1); sess.State != scheduler.Failed || sess.Generation != 1 || attempts != 1 || n != 1 || runners.Count(id, 2) != 0 {
			t.Errorf("session %s is %s (%s) in attempt %d of %d, which had %d processes", id, sess.State, sess.Words, sess.Generation, attempts, n)
		}
	}
	waitFor(t, "Nomad to have been told to forget the jobs", func() bool {
		unreaped := 0
		err := db.SQL().QueryRow("SELECT count(*) FROM attempts WHERE stopped_at IS NULL").Scan(&unreaped)
		return err == nil && unreaped == 0
	})
	if d != nil {
		for job, n := range d.StartedAll(testSpace) {
			if n != 1 {
				t.Errorf("the job %s was started %d times", job, n)
			}
		}
	}
}

// end has a runner prove itself and say what came of its attempt.
func end(t *testing.T, s *scheduler.Scheduler, p *enginetest.Process) {
	t.Helper()
	reply, err := s.Exchange(t.Context(), wire.TokenRequest{Session: p.Said.Session, Generation: p.Said.Generation, JWT: p.Said.Identity})
	if err != nil {
		t.Fatalf("the runner of session %s was not let in: %v", p.Said.Session, err)
	}
	r, err := s.Authenticate(t.Context(), reply.Token)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Outcome(t.Context(), r, wire.Outcome{Kind: wire.OutcomeFailed, Reason: "agent", Words: "The agent did nothing."}); err != nil {
		t.Fatalf("the outcome of session %s: %v", p.Said.Session, err)
	}
}
