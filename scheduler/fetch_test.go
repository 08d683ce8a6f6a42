package scheduler

import (
	"context"
	"errors"
	"testing"
	"time"

	"inspect/envs/wire"
	"inspect/storage"
)

// A commit is fetched once by whoever asks how often, and again after it was
// fetched: the mirror may have gone since.
func TestFetch(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	for range 2 {
		if err := s.Fetch(ctx, "n1", 42, "main", "", baseSHA); err != nil {
			t.Fatal(err)
		}
	}
	work := w.work(s, wire.WorkFetch)
	if f := work.Fetch; f.Commit != baseSHA || f.Remote != (wire.Remote{RepositoryID: 42, URL: "https://git.example/octocat/hello.git", Branch: "main"}) || f.Since != "" {
		t.Errorf("%+v", f)
	}
	if err := s.Fetch(ctx, "n1", 42, "main", "", baseSHA); err != nil { // the node is at it
		t.Fatal(err)
	}
	open := func() int {
		rows, err := s.db.Q().OpenWork(ctx, "n1")
		if err != nil {
			t.Fatal(err)
		}
		return len(rows)
	}
	if n := open(); n != 1 {
		t.Errorf("%d works", n)
	}
	if err := s.WorkDone(ctx, "n1", work.ID, wire.WorkResult{OK: true}); err != nil {
		t.Fatal(err)
	}
	if n := open(); n != 0 {
		t.Errorf("%d works after it was done", n)
	}
	if err := s.Fetch(ctx, "n1", 42, "main", "", baseSHA); err != nil {
		t.Fatal(err)
	}
	if again := w.work(s, wire.WorkFetch); again.ID != work.ID {
		t.Errorf("work %d, want %d again", again.ID, work.ID)
	}
	if err := s.Fetch(ctx, "n1", 4711, "main", "", baseSHA); err == nil {
		t.Error("a repository nobody knows")
	}
}

// The node of the control plane fetches the base of a session that works
// elsewhere, and of no other.
func TestTheBaseIsFetchedToWhereResultsAreRead(t *testing.T) {
	ctx := context.Background()
	for _, mirrors := range []string{"", "n1", "home"} {
		w := newWorld(t)
		w.o.MirrorNode = mirrors
		s := w.scheduler()
		if err := s.RegisterNode(ctx, "home", hashOf("home")); err != nil {
			t.Fatal(err)
		}
		_, r := w.running(s)
		if _, err := s.Spec(ctx, r); err != nil {
			t.Fatal(err)
		}
		rows, err := s.db.Q().OpenWork(ctx, "home")
		if err != nil || (len(rows) == 1) != (mirrors == "home") {
			t.Errorf("%q: %d works, %v", mirrors, len(rows), err)
		}
	}
}

func TestAddNode(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	add := func(name, token string, replace bool) error {
		return s.db.InTx(ctx, func(tx *storage.Tx) error { return AddNode(ctx, tx, name, hashOf(token), replace) })
	}
	if err := add("n7", "one", false); err != nil {
		t.Fatal(err)
	}
	if err := add("n7", "two", false); !errors.Is(err, ErrNodeThere) {
		t.Errorf("twice: %v", err)
	}
	if name, err := s.AuthenticateNode(ctx, "one"); name != "n7" {
		t.Errorf("%q %v", name, err)
	}
	if err := add("n7", "two", true); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AuthenticateNode(ctx, "one"); codeOf(err) != codeUnauthorized {
		t.Errorf("the old token: %v", err)
	}
	if err := add("N 8", "x", false); err == nil {
		t.Error("a bad name was taken")
	}
	// It has said nothing yet, and so is not alive.
	n, err := s.db.Q().GetNode(ctx, "n7")
	if err != nil || s.alive(n) || n.SeenAt.Valid && time.Since(n.SeenAt.Time) < time.Hour {
		t.Errorf("%+v %v", n, err)
	}
}
