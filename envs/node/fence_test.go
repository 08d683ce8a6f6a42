package node_test

import (
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"inspect/envs/node/dial"
	"inspect/envs/snapshot"
	"inspect/envs/wire"
)

func ofGeneration(g int) func(*wire.Grant) {
	return func(gr *wire.Grant) {
		gr.Generation = g
		gr.Verbs = append(gr.Verbs, wire.VerbTurn)
	}
}

// A node that has served an attempt, or was told that one is over, obeys no grant
// of an earlier one, also after its daemon was started again.
func TestGrantsOfReplacedAttempts(t *testing.T) {
	w := newWorld(t)
	f := w.startFake()
	f.publish("snap-1")
	refused := func(when, grant string) {
		t.Helper()
		for verb, err := range map[string]error{
			"restore": second(dial.Restore(t.Context(), w.socket, grant)),
			"sandbox": third(dialSandbox(t.Context(), w.socket, grant)),
			"discard": dial.Discard(t.Context(), w.socket, grant),
		} {
			var e *wire.Error
			if !errors.As(err, &e) || e.Code != "stale_generation" || !strings.Contains(e.Message, "has been replaced") {
				t.Errorf("%s: %s: %v", when, verb, err)
			}
		}
		if status, said := ask(t, w.socket, os.Geteuid(), "/turn", wire.TurnRequest{Grant: grant, Turn: 1}); status != http.StatusConflict {
			t.Errorf("%s: turn: %d %s", when, status, said)
		}
	}
	restored := func(grant string) {
		t.Helper()
		if _, err := dial.Restore(t.Context(), w.socket, grant); err != nil {
			t.Fatal(err)
		}
	}
	one := w.grant("s1", wire.PurposeWork, "snap-1", ofGeneration(1))
	two := w.grant("s1", wire.PurposeWork, "snap-1", ofGeneration(2))
	restored(one)
	restored(w.grant("s1", wire.PurposeVerify, "snap-1", ofGeneration(2)))
	refused("after the next attempt's", one)
	refused("after the next attempt's, for verification", w.grant("s1", wire.PurposeVerify, "snap-1", ofGeneration(1)))
	if _, err := f.store.Clone(t.Context(), snapshot.CloneID{Session: "s1", Generation: 1, Purpose: wire.PurposeWork}); err != nil {
		t.Errorf("an old attempt's grant discarded something: %v", err)
	}
	other := w.grant("s2", wire.PurposeWork, "snap-1", ofGeneration(1))
	restored(other) // another session is not concerned

	// What was served is known to the next daemon, which nobody tells of it.
	f.stop()
	f = w.startFake()
	refused("after a restart", one)
	restored(two)

	// The control plane gave the other attempt up, and it went elsewhere.
	w.plane.set(func(p *plane) {
		p.refs = wire.Refs{Snapshots: []string{"snap-1"}, Over: []wire.SessionRef{{Session: "s2", Generation: 1}, {Session: "s1", Generation: 1}}}
	})
	f.stop()
	f = w.startFake(func(o *nodeOptions) { o.CollectEvery = 100 * time.Millisecond })
	w.plane.collected(t)
	refused("after it was told", other)
	restored(two)
	f.stop()
}

func second[T any](_ T, err error) error { return err }

func third[T, U any](_ T, _ U, err error) error { return err }
