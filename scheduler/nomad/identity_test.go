package nomad

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v4"

	"inspect/envs/proc"
	"inspect/fixtures/nomadd"
	"inspect/scheduler"
	"inspect/scheduler/enginetest"
	"inspect/scheduler/jwks"
)

// proven starts an attempt and returns what its runner shows.
func proven(t *testing.T, e *Engine, l *enginetest.Listener) (scheduler.Attempt, json.RawMessage, *enginetest.Process) {
	t.Helper()
	a := enginetest.Attempt()
	ref, err := e.Start(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Forget(context.WithoutCancel(t.Context()), ref) })
	p := l.Wait(t, a.Session, a.Generation)
	if p.Said.Identity == "" {
		t.Fatal("the runner has no identity")
	}
	return a, ref, p
}

// On the double, or with NOMAD_ADDR on a real agent.
func TestRealIdentity(t *testing.T) {
	addr := cluster(t)
	l := enginetest.Listen(t)
	e := running(t, options(t, addr, l.Args()...))
	a, ref, p := proven(t, e, l)
	got, err := e.Identify(t.Context(), p.Said.Identity)
	if err != nil {
		t.Fatal(err)
	}
	if got.Session != a.Session || got.Generation != 1 || got.Allocation == "" || got.Node != testNode {
		t.Errorf("it proves %+v", got)
	}
	// It is no use once the attempt is over.
	p.Tell(t, "exit 0")
	p.WaitEnd(t)
	waitFor(t, "the end", func() bool {
		s, err := e.State(t.Context(), ref)
		return err == nil && s == scheduler.EngineGone
	})
	if got, err := e.Identify(t.Context(), p.Said.Identity); err == nil || errors.Is(err, scheduler.ErrIdentityUnknown) {
		t.Errorf("after the end it proves %+v, %v", got, err)
	}
	// Nor in another namespace's eyes.
	o := options(t, addr)
	o.Namespace = "default"
	if got, err := asking(t, o).Identify(t.Context(), p.Said.Identity); err == nil {
		t.Errorf("in another namespace it proves %+v", got)
	}
}

func TestIdentityRefused(t *testing.T) {
	d := double(t, nomadd.Options{})
	l := enginetest.Listen(t)
	e := running(t, options(t, d.URL(), l.Args()...))
	a, _, p := proven(t, e, l)
	_, _, other := proven(t, e, l)
	id, _ := jobID(a.Session, 1)
	alloc := d.Allocations(testSpace, id)[0].ID
	otherClaims := claimsOf(t, other.Said.Identity)
	good, err := d.Claims(alloc, taskName, nomadd.Identity{Name: identityName, Audience: []string{Audience}, TTL: time.Hour}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	at := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	for _, c := range []struct {
		name   string
		change map[string]any // nil: taken out
		ok     bool
	}{
		{name: "as it is", ok: true},
		{name: "several audiences", change: map[string]any{"aud": []string{"vault.io", "inspect"}}, ok: true},
		{name: "expired within the leeway", change: map[string]any{"exp": at(-20 * time.Second)}, ok: true},
		{name: "early within the leeway", change: map[string]any{"nbf": at(20 * time.Second)}, ok: true},
		{name: "another audience", change: map[string]any{"aud": "vault.io"}},
		{name: "part of an audience", change: map[string]any{"aud": "inspector"}},
		{name: "no audience", change: map[string]any{"aud": nil}},
		{name: "expired", change: map[string]any{"exp": at(-31 * time.Second)}},
		{name: "without an end", change: map[string]any{"exp": nil}},
		{name: "end zero", change: map[string]any{"exp": 0}},
		{name: "not yet", change: map[string]any{"nbf": at(40 * time.Second)}},
		{name: "without a beginning", change: map[string]any{"nbf": nil}},
		{name: "another namespace", change: map[string]any{"nomad_namespace": "default"}},
		{name: "another namespace all over", change: map[string]any{"nomad_namespace": "default", "sub": "global:default:" + id + ":session:runner:inspect"}},
		{name: "another region", change: map[string]any{"sub": "west:" + testSpace + ":" + id + ":session:runner:inspect"}},
		{name: "another group", change: map[string]any{"sub": "global:" + testSpace + ":" + id + ":other:runner:inspect"}},
		{name: "another task", change: map[string]any{"nomad_task": "other"}},
		{name: "another task's subject", change: map[string]any{"sub": "global:" + testSpace + ":" + id + ":session:other:inspect"}},
		{name: "the default identity", change: map[string]any{"sub": "global:" + testSpace + ":" + id + ":session:runner:default"}},
		{name: "a longer subject", change: map[string]any{"sub": "global:" + testSpace + ":" + id + ":session:runner:inspect:x"}},
		{name: "no subject", change: map[string]any{"sub": nil}},
		{name: "another job", change: map[string]any{"nomad_job_id": otherClaims["nomad_job_id"]}},
		{name: "a job that is none of ours", change: map[string]any{"nomad_job_id": "web"}},
		{name: "a job that looks like ours", change: map[string]any{"nomad_job_id": id + "/periodic-1"}},
		{name: "another's allocation", change: map[string]any{"nomad_allocation_id": otherClaims["nomad_allocation_id"]}},
		{name: "no allocation", change: map[string]any{"nomad_allocation_id": nil}},
		{name: "an allocation that is not", change: map[string]any{"nomad_allocation_id": "00000000-0000-0000-0000-000000000000"}},
		{name: "an allocation of another type", change: map[string]any{"nomad_allocation_id": 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			claims := maps.Clone(good)
			for key, v := range c.change {
				if claims[key] = v; v == nil {
					delete(claims, key)
				}
			}
			token, err := d.Sign(claims)
			if err != nil {
				t.Fatal(err)
			}
			got, err := e.Identify(t.Context(), token)
			if (err == nil) != c.ok || errors.Is(err, scheduler.ErrIdentityUnknown) || !c.ok && got != (scheduler.Identity{}) {
				t.Errorf("it proves %+v, %v", got, err)
			}
		})
	}
	t.Run("a job of the same id in another namespace", func(t *testing.T) {
		alloc, err := d.Impostor(id)
		if err != nil {
			t.Fatal(err)
		}
		token := ""
		waitFor(t, "the impostor's identity", func() bool { token, err = d.Token(alloc, identityName); return err == nil })
		if got, err := e.Identify(t.Context(), token); err == nil {
			t.Errorf("it proves %+v", got)
		}
	})
	t.Run("signed otherwise", func(t *testing.T) { signedOtherwise(t, e, p.Said.Identity) })
}

func claimsOf(t *testing.T, token string) jwt.MapClaims {
	t.Helper()
	claims := jwt.MapClaims{}
	if _, _, err := jwt.NewParser().ParseUnverified(token, claims); err != nil {
		t.Fatal(err)
	}
	return claims
}

// signedOtherwise shows true claims without the cluster's signature.
func signedOtherwise(t *testing.T, e *Engine, genuine string) {
	claims := claimsOf(t, genuine)
	parsed, _, err := jwt.NewParser().ParseUnverified(genuine, jwt.MapClaims{})
	if err != nil {
		t.Fatal(err)
	}
	kid := parsed.Header["kid"].(string)
	public, err := e.keys.Key(t.Context(), kid)
	if err != nil {
		t.Fatal(err)
	}
	pkix, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	own, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(m jwt.SigningMethod, kid any, key any) string {
		token := jwt.NewWithClaims(m, claims)
		if token.Header["kid"] = kid; kid == nil {
			delete(token.Header, "kid")
		}
		s, err := token.SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	parts := strings.Split(genuine, ".")
	for name, token := range map[string]string{
		"not at all":                       sign(jwt.SigningMethodNone, kid, jwt.UnsafeAllowNoneSignatureType),
		"HS256 with the public key":        sign(jwt.SigningMethodHS256, kid, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pkix})),
		"HS256 with the public key as DER": sign(jwt.SigningMethodHS256, kid, pkix),
		"RS512":                            sign(jwt.SigningMethodRS512, kid, own),
		"PS256":                            sign(jwt.SigningMethodPS256, kid, own),
		"by another key under this id":     sign(jwt.SigningMethodRS256, kid, own),
		"by a key without an id":           sign(jwt.SigningMethodRS256, nil, own),
		"by a key whose id is no text":     sign(jwt.SigningMethodRS256, 1, own),
		"no signature":                     parts[0] + "." + parts[1] + ".",
		"a cut signature":                  genuine[:len(genuine)-10],
		"other claims":                     parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"aud":"inspect"}`)) + "." + parts[2],
		"two parts":                        parts[0] + "." + parts[1],
		"nothing":                          "",
		"too much":                         genuine + strings.Repeat(" ", jwks.MaxToken),
	} {
		if got, err := e.Identify(t.Context(), token); err == nil {
			t.Errorf("%s: it proves %+v", name, got)
		}
	}
}

// While the keys or the cluster cannot be asked nobody is refused for good.
func TestIdentityUnknown(t *testing.T) {
	d := double(t, nomadd.Options{})
	l := enginetest.Listen(t)
	e := asking(t, options(t, d.URL(), l.Args()...))
	_, _, p := proven(t, e, l)
	for _, path := range []string{jwksPath, "/v1/job/*", "/v1/job/*/allocations", "/v1/node/*"} {
		script, err := d.Play(nomadd.Script{Scenario: nomadd.ServerError, Path: path, Count: -1})
		if err != nil {
			t.Fatal(err)
		}
		fresh := asking(t, options(t, d.URL(), l.Args()...))
		if got, err := fresh.Identify(t.Context(), p.Said.Identity); !errors.Is(err, scheduler.ErrIdentityUnknown) {
			t.Errorf("without %s it proves %+v, %v", path, got, err)
		}
		script.End()
	}
	if _, err := e.Identify(t.Context(), p.Said.Identity); err != nil {
		t.Errorf("with all of it: %v", err)
	}
}

func FuzzIdentity(f *testing.F) {
	f.Add("a.b.c")
	f.Add(`eyJhbGciOiJub25lIn0.e30.`)
	f.Add(`eyJhbGciOiJSUzI1NiIsImtpZCI6ImEifQ.e30.AAAA`)
	s := jwks.New(proc.NewFake(now), func(context.Context) ([]byte, error) { return []byte(`{"keys":[]}`), nil })
	e := &Engine{o: Options{Clock: proc.NewFake(now)}, keys: s}
	f.Fuzz(func(t *testing.T, token string) {
		if got, err := e.Identify(t.Context(), token); err == nil {
			t.Errorf("%q proves %+v", token, got)
		}
	})
}
