package node_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"inspect/envs/node"
	"inspect/envs/node/dial"
	"inspect/envs/snapshot"
	"inspect/envs/wire"
)

// turning is a store that can keep turns, in that it remembers what was asked.
type turning struct {
	snapshot.Store
	mu    sync.Mutex
	kept  []string
	forks []string
}

func (s *turning) KeepTurn(ctx context.Context, c snapshot.CloneID, turn int) error {
	if _, err := s.Clone(ctx, c); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := fmt.Sprintf("%s@%d", c, turn); !slices.Contains(s.kept, k) {
		s.kept = append(s.kept, k)
	}
	return nil
}

func (s *turning) Fork(ctx context.Context, from snapshot.CloneID, turn int, c snapshot.CloneID, room int64) (snapshot.Clone, error) {
	s.mu.Lock()
	there := slices.Contains(s.kept, fmt.Sprintf("%s@%d", from, turn))
	s.forks = append(s.forks, fmt.Sprintf("%s@%d %s %d", from, turn, c, room))
	s.mu.Unlock()
	if !there {
		return snapshot.Clone{}, fmt.Errorf("turn %d of %s: %w", turn, from, snapshot.ErrNotFound)
	}
	return s.Restore(ctx, "snap-1", c, room)
}

func turns(g *wire.Grant) { g.Verbs = append(g.Verbs, wire.VerbTurn) }

func forkOf(session string, turn int) func(*wire.Grant) {
	return func(g *wire.Grant) {
		g.Fork, g.Snapshot, g.Generation = &wire.Fork{Session: session, Generation: 1, Turn: turn}, "snap-of-another-time", 2
	}
}

func TestTurnsAreKeptAndForked(t *testing.T) {
	var store *turning
	w, f := newFakeWorld(t, func(o *nodeOptions) {
		store = &turning{Store: o.Store}
		o.Store = store
	})
	f.publish("snap-1")
	f.restore("snap-1", "s1")
	ctx := t.Context()
	keep := w.grant("s1", wire.PurposeWork, "snap-1", turns)
	for _, turn := range []int{1, 2, 2, node.MaxTurns} {
		must(t, dial.KeepTurn(ctx, w.socket, keep, turn))
	}
	for name, c := range map[string]struct {
		grant string
		turn  int
		code  string
	}{
		"one too many":   {keep, node.MaxTurns + 1, "too_large"},
		"turn 0":         {keep, 0, "bad_request"},
		"without verb":   {w.grant("s1", wire.PurposeWork, "snap-1"), 3, "unauthorized"},
		"verification":   {w.grant("s1", wire.PurposeVerify, "snap-1", turns), 3, "bad_request"},
		"no clone":       {w.grant("s9", wire.PurposeWork, "snap-1", turns), 3, "not_found"},
		"another's peer": {w.grant("s1", wire.PurposeWork, "snap-1", turns, func(g *wire.Grant) { g.PeerUID++ }), 3, "unauthorized"},
	} {
		if err := dial.KeepTurn(ctx, w.socket, c.grant, c.turn); code(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}

	fork := w.grant("s2", wire.PurposeWork, "", forkOf("s1", 2))
	for range 2 {
		_, err := dial.Restore(ctx, w.socket, fork)
		must(t, err)
	}
	box, _, err := dialSandbox(ctx, w.socket, fork)
	if err != nil {
		t.Fatalf("a sandbox over a fork: %v", err)
	}
	defer box.Close()
	for name, c := range map[string]struct {
		grant string
		code  string
	}{
		"no such turn":   {w.grant("s3", wire.PurposeWork, "", forkOf("s1", 9)), "not_found"},
		"turn 0":         {w.grant("s3", wire.PurposeWork, "", forkOf("s1", 0)), "bad_request"},
		"no session":     {w.grant("s3", wire.PurposeWork, "", forkOf("../s1", 1)), "bad_request"},
		"to be verified": {w.grant("s3", wire.PurposeVerify, "", forkOf("s1", 1)), "bad_request"},
		"of itself":      {w.grant("s4", wire.PurposeWork, "", forkOf("s4", 1), func(g *wire.Grant) { g.Generation = 1 }), "bad_request"},
	} {
		if _, err := dial.Restore(ctx, w.socket, c.grant); code(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	want := "s1-g1-work@2 s2-g2-work 1073741824"
	if got := strings.Join(store.kept, " "); got != "s1-g1-work@1 s1-g1-work@2 s1-g1-work@20" || store.forks[0] != want || store.forks[1] != want {
		t.Errorf("kept %s; forks %q", got, store.forks)
	}
}

// A store that would have to copy the clone says so, and nothing else happens.
func TestTurnsAreNotSupportedByEveryStore(t *testing.T) {
	w, f := newFakeWorld(t)
	f.publish("snap-1")
	f.restore("snap-1", "s1")
	if err := dial.KeepTurn(t.Context(), w.socket, w.grant("s1", wire.PurposeWork, "snap-1", turns), 1); code(err) != "unsupported" {
		t.Errorf("%v", err)
	}
	if _, err := dial.Restore(t.Context(), w.socket, w.grant("s2", wire.PurposeWork, "", forkOf("s1", 1))); code(err) != "unsupported" {
		t.Errorf("%v", err)
	}
}
