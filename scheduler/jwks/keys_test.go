package jwks

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/envs/proc"
)

// Keys change; one that is not known is asked for, but not as often as somebody
// makes such tokens.
func TestKeys(t *testing.T) {
	clock := proc.NewFake(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	var mu sync.Mutex
	fetched, answer := 0, keyJSON(t, "a")
	var failure error
	s := New(clock, func(context.Context) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		fetched++
		return answer, failure
	})
	want := func(id string, ok, told bool, fetches int) {
		t.Helper()
		key, err := s.Key(t.Context(), id)
		if (err == nil) != ok || (key != nil) != ok || !ok && errors.Is(err, ErrNoKey) != told || fetched != fetches {
			t.Fatalf("key %s: %v, %v after %d fetches, want %d", id, key, err, fetched, fetches)
		}
	}
	want("a", true, true, 1)
	want("a", true, true, 1)
	for range 100 {
		want("b", false, false, 1) // a moment ago: it cannot be told
	}
	clock.Advance(Pause)
	want("b", false, true, 2)
	answer = keyJSON(t, "b") // rotated, and the old one withdrawn
	want("a", true, true, 2)
	clock.Advance(Pause)
	want("b", true, true, 3)
	want("a", false, false, 3)
	clock.Advance(Life)
	failure = errors.New("away")
	want("b", false, false, 4) // too old to be believed
	want("b", false, false, 4)
	clock.Advance(Pause)
	failure = nil
	want("b", true, true, 5)
}

func keyJSON(t *testing.T, ids ...string) []byte {
	t.Helper()
	var keys []map[string]string
	for _, id := range ids {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, map[string]string{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": id,
			"n": base64.RawURLEncoding.EncodeToString(key.N.Bytes()), "e": "AQAB"})
	}
	b, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestKeysThatAreNone(t *testing.T) {
	good := string(keyJSON(t, "a"))
	for name, data := range map[string]string{
		"another type":   strings.Replace(good, `"RSA"`, `"oct"`, 1),
		"for encryption": strings.Replace(good, `"sig"`, `"enc"`, 1),
		"for RS512":      strings.Replace(good, "RS256", "RS512", 1),
		"exponent 1":     strings.Replace(good, "AQAB", "AQ", 1),
		"too short":      `{"keys":[{"kty":"RSA","kid":"a","e":"AQAB","n":"` + base64.RawURLEncoding.EncodeToString(new(big.Int).Lsh(big.NewInt(1), 1023).Bytes()) + `"}]}`,
		"none":           `{}`,
	} {
		if keys, err := Parse([]byte(data)); err != nil || len(keys) > 0 {
			t.Errorf("%s: %v, %v", name, keys, err)
		}
	}
	if keys, err := Parse([]byte(good)); err != nil || len(keys) != 1 {
		t.Errorf("a good one: %v, %v", keys, err)
	}
	if _, err := Parse([]byte("<html>")); err == nil {
		t.Error("a page is read as keys")
	}
}
