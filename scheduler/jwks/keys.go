// Package jwks checks tokens that somebody else signs with keys which they
// publish as a JSON Web Key Set: Nomad's identities of runners, Buildkite's
// tokens of jobs. A token comes in, what it claims goes out if one of the keys
// signed it by RS256, and no other way. What the claims are worth is decided by
// the caller.
package jwks

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

	"github.com/golang-jwt/jwt/v4"

	"inspect/envs/proc"
)

const (
	// Life is how long keys are believed: one that was withdrawn is good for no
	// longer.
	Life = 10 * time.Minute
	// Pause is the least time between two fetches for keys that are not known:
	// anybody can make tokens that name such.
	Pause = 10 * time.Second
	// MaxToken bounds a token, in bytes; those of Nomad and Buildkite are below 2 KiB.
	MaxToken = 16 << 10
	// MaxSet bounds what is read of a key set, in bytes.
	MaxSet = 1 << 20

	fetchTimeout           = 15 * time.Second
	maxKeys                = 100
	minKeyBits, maxKeyBits = 2048, 8192
)

// ErrNoKey says that a token is signed by none of the keys.
var ErrNoKey = errors.New("it is signed by none of the published keys")

// ErrUntold says that the keys could not be had now: nothing is known of the token.
var ErrUntold = errors.New("the published keys cannot be had now")

// Keys holds the keys of one issuer. It is safe for concurrent use.
type Keys struct {
	clock proc.Clock
	fetch func(context.Context) ([]byte, error)

	mu   sync.Mutex
	at   time.Time // of the last try to fetch
	good time.Time // of the keys
	keys map[string]*rsa.PublicKey
}

// New makes an empty set that fetch fills; fetch reads at most MaxSet bytes.
func New(clock proc.Clock, fetch func(context.Context) ([]byte, error)) *Keys {
	return &Keys{clock: clock, fetch: fetch}
}

// Verify reads the claims of a token that one of the keys signed. They are not
// looked at. An error that is ErrUntold means that the token may be good.
func (s *Keys) Verify(ctx context.Context, token string, claims jwt.Claims) error {
	if len(token) > MaxToken {
		return errors.New("it is too long")
	}
	var untold error
	_, err := jwt.NewParser(jwt.WithValidMethods([]string{"RS256"}), jwt.WithoutClaimsValidation()).ParseWithClaims(token, claims, func(t *jwt.Token) (any, error) {
		id, _ := t.Header["kid"].(string)
		if id == "" {
			return nil, ErrNoKey
		}
		key, err := s.Key(ctx, id)
		if err != nil && !errors.Is(err, ErrNoKey) {
			untold = err
		}
		return key, err
	})
	if untold != nil {
		return errors.Join(ErrUntold, untold)
	}
	return err
}

// Key returns the key of an id. An error that is not ErrNoKey means that it
// could not be told.
func (s *Keys) Key(ctx context.Context, id string) (*rsa.PublicKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	if key := s.keys[id]; key != nil && now.Sub(s.good) < Life {
		return key, nil
	}
	if !s.at.IsZero() && now.Sub(s.at) < Pause {
		return nil, errors.New("the keys were asked for a moment ago")
	}
	s.at = now
	// Who asks may go away, but all others need the keys too.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
	defer cancel()
	data, err := s.fetch(ctx)
	if err != nil {
		return nil, fmt.Errorf("fetching the keys: %w", err)
	}
	keys, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("reading the keys: %w", err)
	}
	s.keys, s.good = keys, now
	if key := keys[id]; key != nil {
		return key, nil
	}
	return nil, ErrNoKey
}

// Parse reads a JSON Web Key Set. Keys that are not for RS256 are left out.
func Parse(data []byte) (map[string]*rsa.PublicKey, error) {
	var set struct {
		Keys []struct{ Kty, Use, Kid, Alg, N, E string }
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, err
	}
	out := map[string]*rsa.PublicKey{}
	for _, k := range set.Keys[:min(len(set.Keys), maxKeys)] {
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
