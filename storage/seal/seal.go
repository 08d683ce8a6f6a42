// Package seal encrypts small values for rows of a database: AES-256-GCM with a
// random nonce, bound to a description of the row, so that a value put into
// another row does not open. Keys come in as text; who may read a value is
// decided elsewhere.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// KeyBytes is the length of a key.
const KeyBytes = 32

// ErrSealed says that a value does not open: it or its row was changed, or it
// was moved there from another row.
var ErrSealed = errors.New("the value was changed, or belongs to another row")

// UnknownKeyError says that a value is sealed with a key that is not at hand.
type UnknownKeyError struct{ ID string }

func (e *UnknownKeyError) Error() string { return "it is sealed with key " + e.ID }

// Keys seal values with the first of them and open those of all. They are safe
// for concurrent use.
type Keys struct {
	first string
	by    map[string]cipher.AEAD
}

// ParseKeys reads keys of 32 bytes in hexadecimal or base64, with white space
// between them. No error names any part of a key.
func ParseKeys(text string) (*Keys, error) {
	k := &Keys{by: map[string]cipher.AEAD{}}
	for i, word := range strings.Fields(text) {
		raw, ok := decode(word)
		if !ok {
			return nil, fmt.Errorf("key %d: expected %d bytes in hexadecimal or base64, as `openssl rand -hex %d` prints them", i+1, KeyBytes, KeyBytes)
		}
		block, err := aes.NewCipher(raw)
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", i+1, err)
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", i+1, err)
		}
		id := idOf(raw)
		if k.by[id] = aead; i == 0 {
			k.first = id
		}
	}
	if k.first == "" {
		return nil, errors.New("there is no key")
	}
	return k, nil
}

// NewKey is a fresh key as ParseKeys reads it.
func NewKey() string {
	var raw [KeyBytes]byte
	_, _ = rand.Read(raw[:]) // never fails (crypto/rand)
	return hex.EncodeToString(raw[:])
}

func decode(word string) ([]byte, bool) {
	if raw, err := hex.DecodeString(word); err == nil {
		return raw, len(raw) == KeyBytes
	}
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
		if raw, err := enc.DecodeString(word); err == nil && len(raw) == KeyBytes {
			return raw, true
		}
	}
	return nil, false
}

// idOf names a key without saying anything about it.
func idOf(raw []byte) string {
	mac := hmac.New(sha256.New, raw)
	mac.Write([]byte("inspect key id v1"))
	return hex.EncodeToString(mac.Sum(nil)[:6])
}

// ID names the key that seals: twelve hexadecimal digits.
func (k *Keys) ID() string { return k.first }

// Seal encrypts a value. row describes where it is to stand; the same must be
// given to Open.
func (k *Keys) Seal(value []byte, row string) (sealed []byte, id string) {
	return k.by[k.first].Seal(nil, nil, value, []byte(row)), k.first
}

// Open decrypts what Seal made with the key of the id. The error is ErrSealed
// or an *UnknownKeyError.
func (k *Keys) Open(sealed []byte, id, row string) ([]byte, error) {
	aead, ok := k.by[id]
	if !ok {
		return nil, &UnknownKeyError{id}
	}
	value, err := aead.Open(nil, nil, sealed, []byte(row))
	if err != nil {
		return nil, ErrSealed
	}
	return value, nil
}
