package nomad

import (
	"context"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"sync"
	"time"

	"inspect/envs/proc"
)

const (
	jwksPath = "/.well-known/jwks.json"
	// keysLife is how long keys are believed: one that Nomad has withdrawn is good
	// for no longer.
	keysLife = 10 * time.Minute
	// keysPause is the least time between two fetches for keys that are not
	// known: anybody can make tokens that name such.
	keysPause              = 10 * time.Second
	minKeyBits, maxKeyBits = 2048, 8192
)

var errNoKey = errors.New("it is signed by no key of the cluster")

// keySet holds the cluster's keys. They come by the same verified way as all
// else that Nomad says.
type keySet struct {
	clock proc.Clock
	fetch func(context.Context) ([]byte, error)

	mu   sync.Mutex
	at   time.Time // of the last try to fetch
	good time.Time // of the keys
	keys map[string]*rsa.PublicKey
}

func newKeySet(clock proc.Clock, c *client) *keySet {
	return &keySet{clock: clock, fetch: func(ctx context.Context) ([]byte, error) {
		q, err := c.query(ctx, c.here())
		if err != nil {
			return nil, err
		}
		return c.raw(jwksPath, maxReply, q)
	}}
}

// key returns the key of an id. An error that is not errNoKey means that it
// could not be told.
func (s *keySet) key(ctx context.Context, id string) (*rsa.PublicKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	if key := s.keys[id]; key != nil && now.Sub(s.good) < keysLife {
		return key, nil
	}
	if !s.at.IsZero() && now.Sub(s.at) < keysPause {
		return nil, errors.New("the cluster's keys were asked for a moment ago")
	}
	s.at = now
	// Who asks may go away, but all others need the keys too.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	data, err := s.fetch(ctx)
	if err != nil {
		return nil, fmt.Errorf("fetching the cluster's keys: %w", err)
	}
	keys, err := parseKeys(data)
	if err != nil {
		return nil, fmt.Errorf("reading the cluster's keys: %w", err)
	}
	s.keys, s.good = keys, now
	if key := keys[id]; key != nil {
		return key, nil
	}
	return nil, errNoKey
}

// parseKeys reads a JSON Web Key Set. Keys that are not for RS256 are left out.
func parseKeys(data []byte) (map[string]*rsa.PublicKey, error) {
	var set struct {
		Keys []struct{ Kty, Use, Kid, Alg, N, E string }
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, err
	}
	out := map[string]*rsa.PublicKey{}
	for _, k := range set.Keys {
		if k.Kty != "RSA" || k.Kid == "" || k.Use != "" && k.Use != "sig" || k.Alg != "" && k.Alg != "RS256" {
			continue
		}
		n, err1 := base64.RawURLEncoding.DecodeString(k.N)
		e, err2 := base64.RawURLEncoding.DecodeString(k.E)
		if err1 != nil || err2 != nil || len(e) == 0 || len(e) > 4 {
			continue
		}
		key := &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(new(big.Int).SetBytes(e).Int64())}
		if bits := key.N.BitLen(); bits < minKeyBits || bits > maxKeyBits || key.E < 3 || key.E%2 == 0 {
			continue
		}
		out[k.Kid] = key
	}
	return out, nil
}
