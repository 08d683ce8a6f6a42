package main

import (
	"crypto/ed25519"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inspect/envs/wire"
)

func TestSceneIsOpenedOnlyWhileItIsKept(t *testing.T) {
	s := newShelf(t)
	data := t.TempDir()
	open := func(session string) (string, time.Time, error) {
		return openScene(t.Context(), s.db.Q(), data, session)
	}
	wrong := func(session, words string) {
		t.Helper()
		if _, _, err := open(session); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", session, err)
		}
	}
	wrong("abc", "grant.seed")
	if err := os.MkdirAll(placesIn(data).private, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(placesIn(data).private, "grant.seed")); err == nil {
		t.Fatal("looking made a key that no node obeys")
	}
	key, err := grantKey(placesIn(data).private)
	if err != nil {
		t.Fatal(err)
	}
	text, until, err := open("abc")
	if err != nil {
		t.Fatal(err)
	}
	public := key.Public().(ed25519.PublicKey)
	g, err := wire.OpenGrant(public, text, "n1", wire.VerbSandbox, os.Getuid(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if g.Session != "abcdefgh22" || g.Generation != 1 || g.Purpose != wire.PurposeWork || len(g.Sockets) != 0 || !g.Expires.Equal(until) {
		t.Errorf("grant %+v", g)
	}
	for _, verb := range []string{wire.VerbRestore, wire.VerbDiscard, wire.VerbTurn, wire.VerbRun} {
		if _, err := wire.OpenGrant(public, text, "n1", verb, os.Getuid(), time.Now()); err == nil {
			t.Errorf("the grant is good for %s", verb)
		}
	}
	if _, err := wire.OpenGrant(public, text, "n1", wire.VerbSandbox, os.Getuid()+1, time.Now()); err == nil {
		t.Error("the grant is good for somebody else")
	}
	wrong("work", "until it has ended")
	s.sql(`UPDATE attempts SET keep_until = now() - interval '1 second' WHERE session_id = 'abcdefgh22'`)
	wrong("abc", "keep_failed")
	s.sql(`UPDATE attempts SET keep_until = now() + interval '1 hour', reaped_at = now() WHERE session_id = 'abcdefgh22'`)
	wrong("abc", "keep_failed")
}
