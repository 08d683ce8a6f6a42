package scheduler

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"inspect/checks/redact"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/scheduler/audit"
	"inspect/scheduler/secrets"
	"inspect/storage"
	"inspect/storage/seal"
	"inspect/storage/storagetest"
)

// vault is a world with secrets, and what it logged.
type vault struct {
	*world
	store *secrets.Store
	hello secrets.Scope
	log   bytes.Buffer
	deny  string // the operator allows no secret of this name
}

func newVault(t *testing.T) (*vault, *Scheduler) {
	t.Helper()
	v := &vault{world: newWorld(t)}
	red, key := redact.New(), seal.NewKey()
	log := slog.New(slog.NewTextHandler(&v.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	v.store = secrets.New(secrets.Options{DB: v.db, Redactor: red, Clock: v.clock, Log: log, Keys: func() (*seal.Keys, error) { return seal.ParseKeys(key) }})
	v.o.Secrets, v.o.Redactor, v.o.Log = v.store, red, log
	v.o.SecretsAllowed = func(r storage.Repository, names []string) error {
		for _, n := range names {
			if n == v.deny {
				return fmt.Errorf("the secret %s is not allowed in %s", n, r.Name)
			}
		}
		return nil
	}
	var err error
	if v.hello, err = v.store.Repository(context.Background(), "octocat/hello"); err != nil {
		t.Fatal(err)
	}
	return v, v.scheduler()
}

func (v *vault) set(name, value string) secrets.Change {
	v.t.Helper()
	c, err := v.store.Set(context.Background(), v.hello, name, []byte(value), "monalisa")
	if err != nil {
		v.t.Fatal(err)
	}
	return c
}

func (v *vault) remove(name string) secrets.Change {
	v.t.Helper()
	c, err := v.store.Remove(context.Background(), v.hello, name)
	if err != nil {
		v.t.Fatal(err)
	}
	return c
}

// setAll gives every secret of naming a value.
func (v *vault) setAll() {
	for _, n := range []string{"SETUP", "LOAD", "SERVICE", "VERIFY", "PROXY"} {
		v.set(n, "value of "+n)
	}
}

// naming names a secret at each place there is.
func naming(n *NewSession) {
	n.Spec.Setup = []spec.Step{{Run: "make", Secrets: []string{"SETUP"}}}
	n.Spec.Data = spec.Data{Provenance: "synthetic", Load: []spec.Step{{Run: "seed", Secrets: []string{"LOAD"}}}}
	n.Spec.Services = []spec.Service{{Name: "web", Command: "web", Secrets: []string{"SERVICE"}}}
	n.Spec.Verify[0].Secrets = []string{"VERIFY"}
	n.Spec.Egress = []string{"npm.internal.example"}
	n.Spec.Inject = []spec.Injection{{Host: "npm.internal.example", Header: "Authorization", Secret: "PROXY"}}
}

func (v *vault) snapshot(id string) storage.Snapshot {
	v.t.Helper()
	sn, err := v.db.Q().GetSnapshot(context.Background(), id)
	if err != nil {
		v.t.Fatal(err)
	}
	return sn
}

// given prepares the next snapshot the way a node does that asks for its
// secrets, and publishes it.
func (v *vault) given(s *Scheduler) string {
	v.t.Helper()
	work := v.work(s, wire.WorkRefresh)
	for _, name := range refreshSecrets(work.Refresh) {
		if _, err := s.NodeSecrets(context.Background(), "n1", work.ID, []string{name}); err != nil {
			v.t.Fatal(err)
		}
	}
	if err := s.Offer(context.Background(), "n1", offerOf(work)); err != nil {
		v.t.Fatal(err)
	}
	return work.Refresh.Snapshot
}

func TestRunnerGetsWhatItsSessionNames(t *testing.T) {
	ctx := context.Background()
	v, s := newVault(t)
	v.setAll()
	v.set("UNNAMED", "value of UNNAMED")
	sess, r := v.running(s, naming)
	got, err := s.Secrets(ctx, r, []string{"SERVICE", "VERIFY", "PROXY"})
	if want := map[string]string{"SERVICE": "value of SERVICE", "VERIFY": "value of VERIFY", "PROXY": "value of PROXY"}; err != nil || !maps.Equal(got.Values, want) {
		t.Fatalf("got %v, %v", got, err)
	}
	refused := func(code, words string, r Runner, names ...string) {
		t.Helper()
		got, err := s.Secrets(ctx, r, names)
		if codeOf(err) != code || !strings.Contains(err.Error(), words) || got.Values != nil {
			t.Errorf("%v: got %v, %v", names, got, err)
		}
	}
	for _, name := range []string{"LOAD", "UNNAMED", "service", ""} { // (setup may run again)
		refused(codeForbidden, fmt.Sprintf("does not name the secret %q", name), r, "SERVICE", name)
	}
	refused(codeBadRequest, "at most", r, make([]string, maxSecretNames+1)...)

	// The chain says what was given, once for each version, and no value.
	given := func() (out []string) {
		t.Helper()
		_, events, err := Chain(ctx, v.db.Q(), sess.ID)
		if err == nil {
			err = events(func(e audit.Event) error {
				var d struct {
					To, Node string
					Versions map[string]int64
				}
				if e.Kind != EventSecrets {
					return nil
				}
				if err := json.Unmarshal(e.Data, &d); err != nil || d.To != "runner" || d.Node != "n1" || e.Number != nil || e.Generation != 1 || strings.Contains(string(e.Data), "value") {
					t.Errorf("recorded: %+v, %s, %v", e, e.Data, err)
				}
				out = append(out, strings.Join(slices.Sorted(maps.Keys(d.Versions)), " "))
				return nil
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if _, err := s.Secrets(ctx, r, []string{"PROXY", "VERIFY"}); err != nil {
		t.Fatal(err)
	}
	if got, want := given(), []string{"PROXY SERVICE VERIFY"}; !slices.Equal(got, want) {
		t.Errorf("recorded as given: %q, want %q", got, want)
	}

	// Another session, of the same repository, names none of them.
	_, other := v.running(s)
	refused(codeForbidden, "does not name", other, "SERVICE")
	refused(codeStale, "given up", Runner{Session: sess.ID, Generation: 2}, "SERVICE")
	refused(codeStale, "given up", Runner{Session: "aaaaaaaaaa", Generation: 1}, "SERVICE")

	v.deny = "VERIFY" // the operator tightened the policy meanwhile
	refused(codeForbidden, "the secret VERIFY is not allowed in hello", r, "SERVICE", "VERIFY")
	v.deny = ""

	if c := v.remove("VERIFY"); c.Same {
		t.Error("removed and the same")
	}
	refused(codeNotFound, "secret VERIFY is not set: `inspect secrets set VERIFY --repository octocat/hello`", r, "SERVICE", "VERIFY")
	v.set("VERIFY", "another value")
	if got, err := s.Secrets(ctx, r, []string{"VERIFY"}); err != nil || got.Values["VERIFY"] != "another value" {
		t.Errorf("got %v, %v", got, err)
	}

	if got, want := given(), []string{"PROXY SERVICE VERIFY", "VERIFY"}; !slices.Equal(got, want) {
		t.Errorf("recorded as given: %q, want %q", got, want)
	}
	if _, _, err := CheckChain(ctx, v.db.Q(), sess.ID, nil); err != nil {
		t.Error(err)
	}

	v.verified(s, r) // its outcome is there: it needs no more
	refused(codeStale, "given up", r, "SERVICE")
	v.look(s, sess.ID)
	refused(codeStale, "given up", r, "SERVICE")
	if strings.Contains(v.log.String(), "value of ") || strings.Contains(v.log.String(), "another value") {
		t.Error("a value was logged")
	}
}

func TestAttemptThatWasGivenUpGetsNothing(t *testing.T) {
	v, s := newVault(t)
	v.setAll()
	sess, r := v.running(s, naming)
	v.engine.kill(sess.ID)
	v.look(s, sess.ID) // back in the queue, and placed anew
	if _, err := s.Secrets(context.Background(), r, []string{"SERVICE"}); codeOf(err) != codeStale {
		t.Errorf("the first attempt: %v", err)
	}
	v.look(s, sess.ID)
	if _, err := s.Secrets(context.Background(), v.runner(s, sess.ID), []string{"SERVICE"}); err != nil {
		t.Errorf("the second: %v", err)
	}
}

func TestNodeGetsWhatItsWorkNames(t *testing.T) {
	ctx := context.Background()
	v, s := newVault(t)
	if err := s.RegisterNode(ctx, "n2", hashOf("token of n2")); err != nil {
		t.Fatal(err)
	}
	v.setAll()
	v.create(s, naming)
	refused := func(code, node string, id int64, names ...string) {
		t.Helper()
		if got, err := s.NodeSecrets(ctx, node, id, names); codeOf(err) != code || got.Values != nil {
			t.Errorf("%s, %d, %v: got %v, %v", node, id, names, got, err)
		}
	}
	var id int64
	if err := v.db.SQL().QueryRow("SELECT id FROM node_work").Scan(&id); err != nil {
		t.Fatal(err)
	}
	refused(codeNotFound, "n1", id, "SETUP") // which nobody has taken
	work := v.work(s, wire.WorkRefresh)
	got, err := s.NodeSecrets(ctx, "n1", work.ID, []string{"SETUP", "PROXY"})
	if want := map[string]string{"SETUP": "value of SETUP", "PROXY": "value of PROXY"}; err != nil || !maps.Equal(got.Values, want) {
		t.Fatalf("got %v, %v", got, err)
	}
	for _, name := range []string{"LOAD", "SERVICE"} {
		if _, err := s.NodeSecrets(ctx, "n1", work.ID, []string{name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	refused(codeNotFound, "n2", work.ID, "SETUP")
	refused(codeNotFound, "n1", work.ID+1, "SETUP")
	refused(codeForbidden, "n1", work.ID, "VERIFY")
	v.deny = "SETUP"
	refused(codeForbidden, "n1", work.ID, "SETUP")
	v.deny = ""
	v.clock.Advance(2 * time.Minute) // the lease has run out
	refused(codeNotFound, "n1", work.ID, "SETUP")
	v.nodeAlive(s)
	again := v.work(s, wire.WorkRefresh)
	if err := s.Offer(ctx, "n1", offerOf(again)); err != nil {
		t.Fatal(err)
	}
	refused(codeNotFound, "n1", again.ID, "SETUP") // which is done
}

func TestNothingStartsWithoutItsSecrets(t *testing.T) {
	ctx := context.Background()
	v, s := newVault(t)
	n := NewSession{Spec: testSpec()}
	naming(&n)
	ensure := func() error {
		return v.db.InTx(ctx, func(tx *storage.Tx) error {
			_, err := s.EnsureEnvironment(ctx, tx, 42, n.Spec, "main", baseSHA)
			return err
		})
	}
	var p *secrets.Problem
	if err := ensure(); !errors.As(err, &p) || strings.Count(err.Error(), "`inspect secrets set ") != 5 {
		t.Fatalf("without any: %v", err)
	}
	v.setAll()
	sess := v.create(s, naming)
	v.remove("VERIFY")
	v.look(s, sess.ID)
	const words = "secret VERIFY is not set: `inspect secrets set VERIFY --repository octocat/hello`"
	if got := v.want(sess.ID, Queued, ""); got.QueueReason != words {
		t.Fatalf("queue reason %q", got.QueueReason)
	}
	v.given(s)
	if got := v.want(sess.ID, Queued, ""); got.QueueReason != words {
		t.Fatalf("queue reason %q", got.QueueReason)
	}
	v.set("VERIFY", "value of VERIFY")
	v.look(s, sess.ID)
	v.want(sess.ID, Placing, "")

	v.o.Secrets = nil // `inspect try`
	none := v.scheduler()
	err := v.db.InTx(ctx, func(tx *storage.Tx) error {
		_, err := none.EnsureEnvironment(ctx, tx, 42, n.Spec, "main", baseSHA)
		return err
	})
	if !errors.As(err, &p) {
		t.Errorf("where no secrets are kept: %v", err)
	}
}

func TestChangedSecretRetiresSnapshots(t *testing.T) {
	ctx := context.Background()
	for name, c := range map[string]struct {
		change  func(v *vault) secrets.Change
		retires bool
	}{
		"setup's":     {func(v *vault) secrets.Change { return v.set("SETUP", "another value") }, true},
		"load's":      {func(v *vault) secrets.Change { return v.set("LOAD", "another value") }, true},
		"a service's": {func(v *vault) secrets.Change { return v.set("SERVICE", "another value") }, true},
		"the proxy's": {func(v *vault) secrets.Change { return v.set("PROXY", "another value") }, true},
		"verify's":    {func(v *vault) secrets.Change { return v.set("VERIFY", "another value") }, false},
		"none's":      {func(v *vault) secrets.Change { return v.set("UNNAMED", "another value") }, false},
		"the same":    {func(v *vault) secrets.Change { return v.set("SETUP", "value of SETUP") }, false},
		"removed":     {func(v *vault) secrets.Change { return v.remove("SETUP") }, true},
		"of all, which the repository's own hides": {func(v *vault) secrets.Change {
			c, err := v.store.Set(ctx, secrets.All, "SETUP", []byte("value of all"), "monalisa")
			if err != nil {
				v.t.Fatal(err)
			}
			return c
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			v, s := newVault(t)
			v.setAll()
			running, r := func() (storage.Session, Runner) {
				sess := v.create(s, naming)
				v.given(s)
				v.look(s, sess.ID)
				return v.get(sess.ID), v.runner(s, sess.ID)
			}()
			was := running.SnapshotID
			if got := string(v.snapshot(was).Secrets); strings.Count(got, ":") != 4 || strings.Contains(got, "VERIFY") {
				t.Fatalf("recorded %s", got)
			}
			change := c.change(v)
			sn := v.snapshot(was)
			if retired := sn.State == snapshotRetired && !sn.IsCurrent; retired != c.retires || (len(change.Retired) == 1) != c.retires {
				t.Fatalf("snapshot is %s (current: %v), retired %v", sn.State, sn.IsCurrent, change.Retired)
			}
			v.want(running.ID, Placing, "") // what runs goes on
			if _, err := s.Secrets(ctx, r, []string{"SERVICE"}); err != nil {
				t.Errorf("what runs gets no secrets: %v", err)
			}
			refs, err := s.Refs(ctx, "n1")
			if err != nil || len(refs.Snapshots) != 1 || refs.Snapshots[0] != was {
				t.Errorf("the node is told to keep %v (%v)", refs.Snapshots, err)
			}
			if err := s.Sweep(ctx); err != nil {
				t.Fatal(err)
			}
			rows, err := v.db.Q().OpenWork(ctx, "n1")
			if err != nil {
				t.Fatal(err)
			}
			if asked := len(rows) == 1; asked != (c.retires && name != "removed") {
				t.Fatalf("%d refreshes were asked for", len(rows))
			}
			if name == "removed" || !c.retires {
				return
			}
			next := v.create(s, naming)
			v.look(s, next.ID)
			v.want(next.ID, Queued, "")
			fresh := v.given(s)
			if got := v.want(next.ID, Placing, ""); got.SnapshotID != fresh || fresh == was {
				t.Errorf("the next session has snapshot %s, not %s", got.SnapshotID, fresh)
			}
			v.verified(s, r)
			v.look(s, running.ID)
			v.sql("UPDATE attempts SET reaped_at = now() WHERE session_id = $1", running.ID)
			if refs, err := s.Refs(ctx, "n1"); err != nil || len(refs.Snapshots) != 1 || refs.Snapshots[0] != fresh {
				t.Errorf("when it is free the node is told to keep %v (%v)", refs.Snapshots, err)
			}
		})
	}
}

func TestRefreshBegunBeforeTheChangeIsNotPublished(t *testing.T) {
	ctx := context.Background()
	v, s := newVault(t)
	v.setAll()
	sess := v.create(s, naming)
	work := v.work(s, wire.WorkRefresh)
	if _, err := s.NodeSecrets(ctx, "n1", work.ID, []string{"SETUP"}); err != nil {
		t.Fatal(err)
	}
	v.set("LOAD", "another value") // which the node has not got yet
	if sn := v.snapshot(work.Refresh.Snapshot); sn.State != snapshotBuilding {
		t.Fatalf("snapshot is %s", sn.State)
	}
	if got, err := s.NodeSecrets(ctx, "n1", work.ID, []string{"LOAD"}); err != nil || got.Values["LOAD"] != "another value" {
		t.Fatalf("got %v, %v", got, err)
	}
	v.set("SETUP", "another value")
	if _, err := s.NodeSecrets(ctx, "n1", work.ID, []string{"SERVICE"}); codeOf(err) != codeNotFound {
		t.Errorf("it goes on with two versions: %v", err)
	}
	if err := s.Offer(ctx, "n1", offerOf(work)); err != nil {
		t.Fatal(err)
	}
	if sn := v.snapshot(work.Refresh.Snapshot); sn.State != snapshotRetired || sn.IsCurrent {
		t.Fatalf("snapshot is %s, current: %v", sn.State, sn.IsCurrent)
	}
	if w, err := v.db.Q().GetWorkByKey(ctx, "refresh:"+work.Refresh.Snapshot); err != nil || w.State != workFailed || w.Words == "" {
		t.Errorf("the work is %s: %q (%v)", w.State, w.Words, err)
	}
	v.want(sess.ID, Queued, "")
	v.given(s)
	if got := v.want(sess.ID, Placing, ""); got.SnapshotID == work.Refresh.Snapshot {
		t.Error("the session runs on the old one")
	}
}

// during runs fn in a transaction that has taken the lock of secrets, once
// waits stands at that lock, and returns what came of both.
func (v *vault) during(lock func(*storage.Queries) error, waits func() error, fn func(*storage.Queries) error) error {
	done := make(chan error, 1)
	err := v.db.InLockTx(context.Background(), func(tx *storage.Tx) error {
		if err := lock(tx.Q()); err != nil {
			return err
		}
		go func() { done <- waits() }()
		for stands := false; !stands; {
			select {
			case err := <-done:
				return fmt.Errorf("it did not wait (%w)", errors.Join(err, errors.New("and is over")))
			default:
			}
			if err := v.db.SQL().QueryRow("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))").Scan(&stands); err != nil {
				return err
			}
		}
		return fn(tx.Q())
	})
	if err != nil {
		return err
	}
	return <-done
}

// A change waits for who is about to decide by a version, and the other way round.
func TestChangeAndDeliveryDoNotPassEachOther(t *testing.T) {
	ctx := context.Background()
	v, s := newVault(t)
	v.setAll()
	sess := v.create(s, naming)
	work := v.work(s, wire.WorkRefresh)
	share := func(q *storage.Queries) error { return q.ShareSecrets(ctx) }
	alone := func(q *storage.Queries) error { return q.LockSecrets(ctx) }
	nothing := func(*storage.Queries) error { return nil }
	for name, waits := range map[string]func() error{
		"a node's delivery": func() error { return second(s.NodeSecrets(ctx, "n1", work.ID, []string{"LOAD"})) },
		"the queue":         func() error { return s.admit(ctx) },
		"another change":    func() error { return second(v.store.Set(ctx, v.hello, "UNNAMED", []byte("12345678"), "monalisa")) },
		"a removal":         func() error { return second(v.store.Remove(ctx, v.hello, "VERIFY")) },
	} {
		if err := v.during(alone, waits, nothing); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	err := v.during(share, func() error {
		return second(v.store.Set(ctx, v.hello, "SETUP", []byte("another value"), "monalisa"))
	}, func(q *storage.Queries) error { // as NodeSecrets does, whose record is not committed yet
		repo, err := q.GetRepositoryRow(ctx, 42)
		if err != nil {
			return err
		}
		got, err := v.store.Values(ctx, q, repo, []string{"SETUP"})
		if err != nil {
			return err
		}
		return q.AddSnapshotSecrets(ctx, storage.AddSnapshotSecretsParams{ID: work.Refresh.Snapshot, Versions: got.Versions()})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Offer(ctx, "n1", offerOf(work)); err != nil {
		t.Fatal(err)
	}
	if sn := v.snapshot(work.Refresh.Snapshot); sn.State != snapshotRetired {
		t.Errorf("snapshot is %s", sn.State)
	}
	v.want(sess.ID, Queued, "")
}

// A repository that has another owner has no snapshot with the former's secrets.
func TestRepositoryThatWasGivenAway(t *testing.T) {
	ctx := context.Background()
	v, s := newVault(t)
	v.sql("INSERT INTO installations (id, account) VALUES (7, 'octocat')")
	owner, err := v.store.Owner(ctx, "octocat")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.store.Set(ctx, owner, "SETUP", []byte("the owner's value"), "monalisa"); err != nil {
		t.Fatal(err)
	}
	named := func(n *NewSession) { n.Spec.Setup[0].Secrets = []string{"SETUP"} }
	v.create(s, named)
	was := v.given(s)
	v.sql("UPDATE repositories SET installation_id = 8, owner = 'hubot' WHERE id = 42")
	if _, err := v.store.Set(ctx, secrets.All, "SETUP", []byte("everybody's value"), "monalisa"); err != nil {
		t.Fatal(err)
	}
	sess := v.create(s, named)
	v.look(s, sess.ID)
	v.want(sess.ID, Queued, "")
	if sn := v.snapshot(was); sn.State != snapshotRetired {
		t.Errorf("snapshot is %s", sn.State)
	}
}

// What an enemy's runner or a node says is kept without the values.
func TestValuesAreTakenOutOfWhatMachinesSay(t *testing.T) {
	ctx := context.Background()
	const canary = "canary/5f3c+9a71&d2"
	v, s := newVault(t)
	v.setAll()
	_, r := v.running(s, naming)
	v.set("VERIFY", canary) // after it began, and it has not asked for it
	forms := []string{canary, base64.StdEncoding.EncodeToString([]byte("xy" + canary + "z")), url.QueryEscape(canary)}
	said := strings.Join(forms, " ")
	events := []wire.Event{
		{Number: 1, Kind: wire.EventMessage, At: v.clock.Now(), Data: map[string]any{"text": said}},
		{Number: 2, Kind: wire.EventTool, At: v.clock.Now(), Data: map[string]any{"name": "bash", "command": said, "files": []string{said}, "output": said}},
		{Number: 3, Kind: wire.EventNote, At: v.clock.Now(), Data: wire.Note{Words: "before " + said + " after"}},
	}
	if reply, err := s.AppendEvents(ctx, r, events); err != nil || reply.Acked != 3 {
		t.Fatalf("acked %d, %v", reply.Acked, err)
	}
	if _, err := s.Secrets(ctx, r, []string{"VERIFY", "SERVICE"}); err != nil {
		t.Fatal(err)
	}
	output := "output of a command: " + canary
	if err := s.PutArtifact(ctx, r, sumOf(output), strings.NewReader(output)); codeOf(err) != codeBadRequest || !strings.Contains(err.Error(), "the value of a secret") {
		t.Errorf("an artifact with a value: %v", err)
	}
	if _, err := v.blobs.Get(ctx, r.Session, sumOf(output)); !errors.Is(err, storage.ErrBlobMissing) {
		t.Errorf("it was kept all the same: %v", err)
	}
	if err := s.Outcome(ctx, r, wire.Outcome{Kind: wire.OutcomeFailed, Words: said, Results: []wire.VerifyResult{{Name: "unit", Run: said}}}); err != nil {
		t.Fatal(err)
	}
	v.look(s, r.Session)
	v.set("SETUP", canary+" too")
	v.create(s, naming, func(n *NewSession) { n.Spec.Setup[0].Run = "make all" })
	work := v.work(s, wire.WorkRefresh)
	if _, err := s.NodeSecrets(ctx, "n1", work.ID, []string{"SETUP"}); err != nil {
		t.Fatal(err)
	}
	if err := s.WorkDone(ctx, "n1", work.ID, wire.WorkResult{Words: "setup said " + said}); err != nil {
		t.Fatal(err)
	}
	dump := storagetest.Dump(t, v.db)
	if n := strings.Count(dump, "before [redacted]"); n != 1 || !strings.Contains(dump, "setup said [redacted]") {
		t.Errorf("the words around are lost")
	}
	for where, text := range map[string]string{"database": dump, "log": v.log.String()} {
		if redact.New(canary).Known(text) != text || strings.Contains(text, "value of S") {
			t.Errorf("the %s holds a value", where)
		}
	}
}

// What another process set is known before a result is judged and told.
func TestValuesAreKnownBeforeAnythingLeaves(t *testing.T) {
	const canary = "canary-5f3c9a71d2"
	v, s := newVault(t)
	sess, r := v.running(s)
	v.verified(s, r)
	v.set("UNNAMED", canary)
	var saw string
	v.effects.set(func(f *fakeEffects) {
		f.answer = func(storage.Session) (Published, error) {
			saw = v.o.Redactor.Known(canary)
			return Published{Refusal: &Refusal{State: Failed, Reason: "secrets", Words: "It holds a secret."}}, nil
		}
	})
	v.look(s, sess.ID)
	v.want(sess.ID, Failed, "secrets")
	if saw != redact.Mark {
		t.Error("a result was judged by somebody who does not know the secret")
	}
}
