package oidc

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
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v4"

	"inspect/envs/proc"
	"inspect/scheduler/jwks"
)

const (
	audience     = "https://inspect.example"
	organization = "01234567-89ab-4cde-8f01-234567890abc"
	pipeline     = "11234567-89ab-4cde-8f01-234567890abc"
	job          = "21234567-89ab-4cde-8f01-234567890abc"
	build        = "31234567-89ab-4cde-8f01-234567890abc"
)

var now = time.Date(2026, 11, 2, 3, 4, 5, 0, time.UTC)

// issuer is a Buildkite with one key.
type issuer struct {
	key   *rsa.PrivateKey
	url   string
	asked int
	fault int // status of its answers; 0: none
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{}
	var err error
	if i.key, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.asked++
		if i.fault != 0 {
			http.Error(w, "no", i.fault)
			return
		}
		if r.URL.Path != KeysPath {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": []map[string]string{{
			"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "a", "n": base64.RawURLEncoding.EncodeToString(i.key.N.Bytes()), "e": "AQAB",
		}}})
	}))
	t.Cleanup(s.Close)
	i.url = s.URL
	return i
}

func (i *issuer) verifier(t testing.TB) (*Verifier, *proc.Fake) {
	t.Helper()
	clock := proc.NewFake(now)
	v, err := New(Options{Issuer: i.url, Audience: audience, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	return v, clock
}

func (i *issuer) claims() jwt.MapClaims {
	return jwt.MapClaims{
		"iss": i.url, "aud": audience, "iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(),
		"sub": "organization:acme:pipeline:web:ref:refs/heads/main:commit:0:step:x", "organization_id": organization, "pipeline_id": pipeline,
		"organization_slug": "acme", "pipeline_slug": "web", "job_id": job, "build_id": build, "build_number": 7, "step_key": "fix",
		"build_branch": "main", "build_commit": strings.Repeat("0", 40), "build_source": "webhook", "agent_id": "x", "runner_environment": "self-hosted",
	}
}

func (i *issuer) sign(t testing.TB, m jwt.SigningMethod, kid, key any, c jwt.Claims) string {
	t.Helper()
	token := jwt.NewWithClaims(m, c)
	if token.Header["kid"] = kid; kid == nil {
		delete(token.Header, "kid")
	}
	s, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestGood(t *testing.T) {
	i := newIssuer(t)
	v, _ := i.verifier(t)
	got, err := v.Verify(t.Context(), i.sign(t, jwt.SigningMethodRS256, "a", i.key, i.claims()))
	want := Job{organization, pipeline, job, build, 7, "fix", "acme", "web", "main", strings.Repeat("0", 40), "webhook"}
	if err != nil || got != want {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestClaims(t *testing.T) {
	i := newIssuer(t)
	at := func(d time.Duration) int64 { return now.Add(d).Unix() }
	for _, c := range []struct {
		name   string
		change map[string]any // nil: taken out
		ok     bool
	}{
		{name: "as they are", ok: true},
		{name: "without build_id", change: map[string]any{"build_id": nil}, ok: true},
		{name: "without a step's key", change: map[string]any{"step_key": nil}, ok: true},
		{name: "expired within the leeway", change: map[string]any{"exp": at(-20 * time.Second)}, ok: true},
		{name: "early within the leeway", change: map[string]any{"nbf": at(20 * time.Second), "iat": at(20 * time.Second)}, ok: true},
		{name: "wrong issuer", change: map[string]any{"iss": "https://agent.buildkite.example"}},
		{name: "issuer with a slash", change: map[string]any{"iss": i.url + "/"}},
		{name: "no issuer", change: map[string]any{"iss": nil}},
		{name: "wrong audience", change: map[string]any{"aud": "https://other.example"}},
		{name: "audience with a slash", change: map[string]any{"aud": audience + "/"}},
		{name: "a second audience", change: map[string]any{"aud": []string{audience, "https://other.example"}}},
		{name: "no audience", change: map[string]any{"aud": nil}},
		{name: "expired", change: map[string]any{"exp": at(-31 * time.Second)}},
		{name: "without an end", change: map[string]any{"exp": nil}},
		{name: "not yet valid", change: map[string]any{"nbf": at(40 * time.Second)}},
		{name: "without a beginning", change: map[string]any{"nbf": nil}},
		{name: "issued in the future", change: map[string]any{"iat": at(40 * time.Second)}},
		{name: "without a time of issue", change: map[string]any{"iat": nil}},
		{name: "good for two hours", change: map[string]any{"exp": at(2 * time.Hour)}},
		{name: "missing organization_id", change: map[string]any{"organization_id": nil}},
		{name: "missing pipeline_id", change: map[string]any{"pipeline_id": nil}},
		{name: "slug for an id", change: map[string]any{"pipeline_id": "web"}},
		{name: "id of another type", change: map[string]any{"organization_id": 1}},
		{name: "no job", change: map[string]any{"job_id": nil}},
		{name: "no build", change: map[string]any{"build_number": nil}},
		{name: "build minus one", change: map[string]any{"build_number": -1}},
		{name: "a build's id that is none", change: map[string]any{"build_id": "x"}},
		{name: "a branch without end", change: map[string]any{"build_branch": strings.Repeat("b", 1001)}},
		{name: "a branch that is no text", change: map[string]any{"build_branch": "a\x00b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, _ := i.verifier(t)
			claims := maps.Clone(i.claims())
			for key, value := range c.change {
				if claims[key] = value; value == nil {
					delete(claims, key)
				}
			}
			got, err := v.Verify(t.Context(), i.sign(t, jwt.SigningMethodRS256, "a", i.key, claims))
			if (err == nil) != c.ok || !c.ok && got != (Job{}) || errors.Is(err, ErrUntold) {
				t.Errorf("it proves %+v, %v", got, err)
			}
		})
	}
}

func TestSignatures(t *testing.T) {
	i := newIssuer(t)
	v, clock := i.verifier(t)
	pkix, err := x509.MarshalPKIXPublicKey(&i.key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	own, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	genuine := i.sign(t, jwt.SigningMethodRS256, "a", i.key, i.claims())
	parts := strings.Split(genuine, ".")
	for name, token := range map[string]string{
		"algorithm none":            i.sign(t, jwt.SigningMethodNone, "a", jwt.UnsafeAllowNoneSignatureType, i.claims()),
		"HS256 with the public key": i.sign(t, jwt.SigningMethodHS256, "a", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pkix}), i.claims()),
		"RS512":                     i.sign(t, jwt.SigningMethodRS512, "a", i.key, i.claims()),
		"PS256":                     i.sign(t, jwt.SigningMethodPS256, "a", i.key, i.claims()),
		"wrong key":                 i.sign(t, jwt.SigningMethodRS256, "a", own, i.claims()),
		"no key's id":               i.sign(t, jwt.SigningMethodRS256, nil, i.key, i.claims()),
		"no signature":              parts[0] + "." + parts[1] + ".",
		"a cut signature":           genuine[:len(genuine)-10],
		"other claims":              parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"aud":"x"}`)) + "." + parts[2],
		"too much":                  genuine + strings.Repeat(" ", jwks.MaxToken),
		"nothing":                   "",
	} {
		t.Run(name, func(t *testing.T) {
			clock.Advance(0)
			if got, err := v.Verify(t.Context(), token); err == nil {
				t.Errorf("it proves %+v", got)
			}
		})
	}
	if _, err := v.Verify(t.Context(), genuine); err != nil {
		t.Errorf("the genuine one: %v", err)
	}
}

// Keys are asked for once, and what cannot be asked refuses nobody for good.
func TestKeysAway(t *testing.T) {
	i := newIssuer(t)
	v, clock := i.verifier(t)
	token := i.sign(t, jwt.SigningMethodRS256, "a", i.key, i.claims())
	i.fault = http.StatusServiceUnavailable
	for range 3 {
		if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrUntold) {
			t.Fatalf("without keys: %v", err)
		}
	}
	if i.asked != 1 {
		t.Errorf("asked %d times within a moment", i.asked)
	}
	i.fault = 0
	clock.Advance(jwks.Pause)
	for range 3 {
		if _, err := v.Verify(t.Context(), token); err != nil {
			t.Fatal(err)
		}
	}
	if i.asked != 2 {
		t.Errorf("asked %d times, want 2", i.asked)
	}
	i.fault = http.StatusFound // no redirect is followed
	clock.Advance(jwks.Life)
	if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrUntold) {
		t.Errorf("by a redirect: %v", err)
	}
}

func TestAddresses(t *testing.T) {
	for address, ok := range map[string]bool{
		"https://agent.buildkite.com": true, "http://127.0.0.1:1": true, "http://localhost:1": true, "http://[::1]:1": true,
		"http://agent.buildkite.com": false, "ftp://x": false, "https://a:b@x": false, "https://x/?a=b": false, "x": false, "http://10.0.0.1": false,
	} {
		if _, err := New(Options{Issuer: address, Audience: audience}); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
		if _, err := New(Options{Keys: address, Audience: audience}); (err == nil) != ok {
			t.Errorf("keys at %s: %v", address, err)
		}
	}
	if _, err := New(Options{}); err == nil {
		t.Error("no audience")
	}
}

func FuzzVerify(f *testing.F) {
	f.Add("a.b.c")
	f.Add(`eyJhbGciOiJub25lIn0.e30.`)
	f.Add(`eyJhbGciOiJSUzI1NiIsImtpZCI6ImEifQ.e30.AAAA`)
	v := &Verifier{issuer: "i", audience: "a", clock: proc.NewFake(now), keys: jwks.New(proc.NewFake(now), func(context.Context) ([]byte, error) { return []byte(`{"keys":[]}`), nil })}
	f.Fuzz(func(t *testing.T, token string) {
		if got, err := v.Verify(t.Context(), token); err == nil {
			t.Errorf("%q proves %+v", token, got)
		}
	})
}

// Signed claims of any shape never panic and prove nothing that is not asked for.
func FuzzClaims(f *testing.F) {
	f.Add(`{"iss":"i","aud":"a","exp":1,"nbf":1,"iat":1,"organization_id":"x","build_number":1}`)
	f.Add(`{"aud":["a"],"build_number":1e9}`)
	f.Fuzz(func(t *testing.T, body string) {
		var c claims
		if json.Unmarshal([]byte(body), &c) != nil {
			return
		}
		if err := c.check("i", "a", now); err == nil && (!uuid.MatchString(c.OrganizationID) || !uuid.MatchString(c.PipelineID) || c.Issuer != "i") {
			t.Errorf("%q is believed", body)
		}
	})
}
