package nomad

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inspect/fixtures/nomadd"
	"inspect/scheduler"
	"inspect/scheduler/enginetest"
)

func play(t *testing.T, d *nomadd.Double, s nomadd.Script) *nomadd.Played {
	t.Helper()
	p, err := d.Play(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.End)
	return p
}

func stateIs(t *testing.T, e *Engine, ref json.RawMessage, want scheduler.EngineState) {
	t.Helper()
	waitFor(t, "the state", func() bool {
		got, err := e.State(t.Context(), ref)
		return err == nil && got == want
	})
}

// What Nomad refuses is told in words, and asked again with success.
func TestTroubleInWords(t *testing.T) {
	d := double(t, nomadd.Options{Token: "00000000-0000-0000-0000-000000000001"})
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("00000000-0000-0000-0000-000000000001")
	l := enginetest.Listen(t)
	o := options(t, d.URL(), l.Args()...)
	o.Token = tokenIn(file)
	e := asking(t, o)
	for _, c := range []struct {
		name         string
		begin, after func()
		words        string
	}{
		{"another token", func() { write("00000000-0000-0000-0000-000000000002") }, func() { write("00000000-0000-0000-0000-000000000001") }, "does not know the token"},
		{"no token", func() { write("") }, func() { write("00000000-0000-0000-0000-000000000001") }, "Nomad"},
		{"an expired token", func() { d.ExpireToken(true) }, func() { d.ExpireToken(false) }, "has expired"},
		{"no namespace", func() { d.Namespace(testSpace, false) }, func() { d.Namespace(testSpace, true) }, "Nomad has no namespace " + testSpace},
		{"no leader", func() { d.LoseLeader(true) }, func() { d.LoseLeader(false) }, "no leader"},
		{"away", func() { _ = d.Down() }, func() { _ = d.Up() }, "Nomad does not answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := enginetest.Attempt()
			c.begin()
			ref, err := e.Start(t.Context(), a)
			c.after()
			var trouble *scheduler.EngineTrouble
			if !errors.As(err, &trouble) || !strings.Contains(trouble.Words, c.words) {
				t.Fatalf("it is started as %s, %v", ref, err)
			}
			if strings.Contains(trouble.Words, "127.0.0.1") || strings.Contains(trouble.Words, "00000000") {
				t.Errorf("the words tell too much: %s", trouble.Words)
			}
			if ref, err = e.Start(t.Context(), a); err != nil {
				t.Fatalf("once that is over: %v", err)
			}
			t.Cleanup(func() { _ = e.Forget(context.WithoutCancel(t.Context()), ref) })
			l.Wait(t, a.Session, 1)
		})
	}
	t.Run("no node pool", func(t *testing.T) {
		o.NodePool = "other"
		_, err := asking(t, o).Start(t.Context(), enginetest.Attempt())
		var trouble *scheduler.EngineTrouble
		if !errors.As(err, &trouble) || trouble.Words != "Nomad has no node pool other" {
			t.Fatalf("%v", err)
		}
	})
}

// An answer that is lost, or another's job a moment earlier, is the same success.
func TestStartReadsBack(t *testing.T) {
	d := double(t, nomadd.Options{})
	l := enginetest.Listen(t)
	e := running(t, options(t, d.URL(), l.Args()...))
	a := enginetest.Attempt()
	play(t, d, nomadd.Script{Scenario: nomadd.AnswerLost, Method: "PUT", Path: "/v1/jobs"})
	if ref, err := e.Start(t.Context(), a); err == nil {
		t.Fatalf("the answer was not lost: %s", ref)
	}
	ref, err := e.Start(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	l.Wait(t, a.Session, 1)
	if n := d.Started(testSpace, "inspect-"+a.Session+"-g1"); n != 1 {
		t.Errorf("it was started %d times", n)
	}
	if err := e.Forget(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
}

// A node that is away keeps its attempt; what Nomad starts in its place once it
// has given the node up is nobody's.
func TestNodeAway(t *testing.T) {
	pool := env("INSPECT_TEST_NOMAD_POOL", "default")
	d := double(t, nomadd.Options{Nodes: []nomadd.Node{
		{Name: "n1", Pool: pool, Meta: map[string]string{MetaNode: "node-a"}}, {Name: "n2", Pool: pool, Meta: map[string]string{MetaNode: "node-b"}},
	}})
	l := enginetest.Listen(t)
	e := running(t, options(t, d.URL(), l.Args()...))
	a, ref, p := proven(t, e, l)
	id, _ := jobID(a.Session, 1)
	on := d.Allocations(testSpace, id)[0].NodeName
	play(t, d, nomadd.Script{Scenario: nomadd.NodeKilled, Target: on})
	stateIs(t, e, ref, scheduler.EngineUnknown)
	if n := d.Started(testSpace, id); n != 1 {
		t.Fatalf("it was started %d times", n)
	}
	play(t, d, nomadd.Script{Scenario: nomadd.NodeBack, Target: on})
	stateIs(t, e, ref, scheduler.EngineRunning)
	play(t, d, nomadd.Script{Scenario: nomadd.NodeKilled, Target: on})
	play(t, d, nomadd.Script{Scenario: nomadd.LostAfterOver, Target: on})
	stateIs(t, e, ref, scheduler.EngineGone)
	waitFor(t, "the replacement", func() bool { return l.Count(a.Session, 1) == 2 })
	second := d.Allocations(testSpace, id)[1].ID
	token := ""
	waitFor(t, "its identity", func() (ok bool) {
		var err error
		token, err = d.Token(second, identityName)
		return err == nil
	})
	if got, err := e.Identify(t.Context(), token); err == nil {
		t.Errorf("the replacement proves %+v", got)
	}
	if got, err := e.Identify(t.Context(), p.Said.Identity); err == nil {
		t.Errorf("what was lost proves %+v", got)
	}
	if err := e.Stop(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
}

// However events come, or do not, what is told is what Nomad has.
func TestEventsAreHints(t *testing.T) {
	for _, scenario := range []nomadd.Scenario{
		nomadd.StreamClosed, nomadd.StreamRepeats, nomadd.IndexBack, nomadd.ServerRestarted,
	} {
		t.Run(string(scenario), func(t *testing.T) {
			d := double(t, nomadd.Options{})
			l := enginetest.Listen(t)
			e := running(t, options(t, d.URL(), l.Args()...))
			_, ref, p := proven(t, e, l)
			stateIs(t, e, ref, scheduler.EngineRunning)
			play(t, d, nomadd.Script{Scenario: scenario})
			p.Tell(t, "exit 0")
			p.WaitEnd(t)
			stateIs(t, e, ref, scheduler.EngineGone)
		})
	}
}

// No feasible node is told in words, and is no loss.
func TestWaitsForANode(t *testing.T) {
	d := double(t, nomadd.Options{})
	l := enginetest.Listen(t)
	e := running(t, options(t, d.URL(), l.Args()...))
	a := enginetest.Attempt()
	a.Memory = 100 << 30
	ref, err := e.Start(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "words", func() bool {
		w, err := e.Waits(t.Context(), ref)
		return err == nil && w == scheduler.Wait{Waiting: true, Never: true, Words: "no node with 100 GiB"}
	})
	stateIs(t, e, ref, scheduler.EngineRunning)
	if err := e.Stop(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	if w, err := e.Waits(t.Context(), ref); err != nil || w.Waiting {
		t.Errorf("once it is stopped it waits: %+v, %v", w, err)
	}
	stateIs(t, e, ref, scheduler.EngineGone)
	play(t, d, nomadd.Script{Scenario: nomadd.NoFeasibleNode})
	waitFor(t, "no room", func() bool {
		room, err := e.Room(t.Context())
		return err == nil && len(room) == 1 && !room[0].Eligible
	})
}

// A node with the snapshot is preferred, then the one that was expected.
func TestPrefersTheSnapshot(t *testing.T) {
	pool := env("INSPECT_TEST_NOMAD_POOL", "default")
	commit := strings.Repeat("ab", 20)
	d := double(t, nomadd.Options{Nodes: []nomadd.Node{
		{Name: "n1", Pool: pool}, // no daemon of ours
		{Name: "n2", Pool: pool, Meta: map[string]string{MetaNode: "node-b"}},
		{Name: "n3", Pool: pool, Meta: map[string]string{MetaNode: "node-c", MetaSnapshot + "env-1-ab": commit}},
	}})
	l := enginetest.Listen(t)
	e := running(t, options(t, d.URL(), l.Args()...))
	for environment, want := range map[string]string{"env-1-ab": "node-c", "env-2-ab": "node-b"} {
		a := enginetest.Attempt()
		a.Environment, a.Commit, a.Node = environment, commit, "node-b"
		ref, err := e.Start(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		p := l.Wait(t, a.Session, 1)
		if got, err := e.Identify(t.Context(), p.Said.Identity); err != nil || got.Node != want {
			t.Errorf("%s is on %q (%v), want %s", environment, got.Node, err, want)
		}
		if err := e.Forget(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
	}
}

// A list that was begun before we changed a job does not bring back what was.
func TestCacheReadsOwnWrites(t *testing.T) {
	c := newCache()
	at := time.Now()
	lists := func(number uint64) {
		c.take(number, at, map[string]facts{"a": {Known: true}, "b": {Known: true}}, nil, nil)
	}
	knows := func(job string, want bool) {
		t.Helper()
		if _, ok := c.job(job, at); ok != want {
			t.Fatalf("%s is known: %v", job, ok)
		}
	}
	lists(c.begin())
	knows("a", true)
	late := c.begin()
	c.touch("a")
	knows("a", false)
	lists(late)
	knows("a", false)
	knows("b", true)
	later := c.begin()
	lists(later)
	knows("a", true)
	lists(late) // comes after the newer one, and is not taken
	knows("a", true)
	if _, ok := c.job("a", at.Add(cacheLife)); ok {
		t.Error("an old list is believed")
	}
}

// What is wrong with Nomad while a session waits, for room or for its node, is
// told in words too, and is over when that is.
func TestTroubleWhileASessionWaits(t *testing.T) {
	d := double(t, nomadd.Options{Token: "00000000-0000-0000-0000-000000000001"})
	l := enginetest.Listen(t)
	o := options(t, d.URL(), l.Args()...)
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("00000000-0000-0000-0000-000000000001")
	o.Token = tokenIn(file)
	e := asking(t, o)
	a := enginetest.Attempt()
	a.Memory = 100 << 30
	ref, err := e.Start(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Forget(context.WithoutCancel(t.Context()), ref) })
	for _, c := range []struct {
		name         string
		begin, after func()
		words        string
	}{
		{"an expired token", func() { d.ExpireToken(true) }, func() { d.ExpireToken(false) }, "has expired"},
		{"another token", func() { write("00000000-0000-0000-0000-000000000002") }, func() { write("00000000-0000-0000-0000-000000000001") }, "does not know the token"},
		{"no leader", func() { d.LoseLeader(true) }, func() { d.LoseLeader(false) }, "no leader"},
		{"away", func() { _ = d.Down() }, func() { _ = d.Up() }, "Nomad does not answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := asking(t, o) // with nothing in its cache
			c.begin()
			_, waits := e.Waits(t.Context(), ref)
			_, state := e.State(t.Context(), ref)
			_, room := e.Room(t.Context())
			c.after()
			for what, err := range map[string]error{"its node": waits, "its end": state, "room": room} {
				var trouble *scheduler.EngineTrouble
				if !errors.As(err, &trouble) || !strings.Contains(trouble.Words, c.words) {
					t.Errorf("waiting for %s: %v", what, err)
				}
			}
			if w, err := e.Waits(t.Context(), ref); err != nil || w.Words != "no node with 100 GiB" {
				t.Errorf("once that is over: %+v, %v", w, err)
			}
			if _, err := e.Room(t.Context()); err != nil {
				t.Errorf("once that is over: %v", err)
			}
		})
	}
}
