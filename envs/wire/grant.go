package wire

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"
)

// ErrGrant is the error of every grant that is not to be obeyed; the wrapping
// message says why.
var ErrGrant = errors.New("grant refused")

type grantError string

func (e grantError) Error() string   { return "grant refused: " + string(e) }
func (e grantError) Is(t error) bool { return t == ErrGrant }

// SignGrant encodes g and signs it. The result is two base64url parts joined by a dot.
func SignGrant(key ed25519.PrivateKey, g Grant) (string, error) {
	body, err := json.Marshal(g)
	if err != nil {
		return "", err
	}
	sig := ed25519.Sign(key, append([]byte(grantContext), body...))
	enc := base64.RawURLEncoding
	return enc.EncodeToString(body) + "." + enc.EncodeToString(sig), nil
}

// grantContext keeps a signature over a grant from being good for anything else.
const grantContext = "inspect grant v1\n"

// OpenGrant checks the signature, the expiry against now, the node's name, the
// verb and the caller's uid, in that order, and returns the grant. Of one for
// PeerRunner the uid is not checked: only the node knows it.
func OpenGrant(key ed25519.PublicKey, text, node, verb string, peerUID int, now time.Time) (Grant, error) {
	var g Grant
	left, right, ok := strings.Cut(text, ".")
	if !ok || len(text) > 16<<10 {
		return g, grantError("it is not of the form body.signature")
	}
	enc := base64.RawURLEncoding.Strict()
	body, err := enc.DecodeString(left)
	if err != nil {
		return g, grantError("its body is not base64")
	}
	sig, err := enc.DecodeString(right)
	if err != nil {
		return g, grantError("its signature is not base64")
	}
	if len(key) != ed25519.PublicKeySize || !ed25519.Verify(key, append([]byte(grantContext), body...), sig) {
		return g, grantError("the signature is not the control plane's")
	}
	if err := json.Unmarshal(body, &g); err != nil {
		return Grant{}, grantError("its body is not a grant")
	}
	switch {
	case !now.Before(g.Expires):
		return Grant{}, grantError("it has expired")
	case g.Node != node:
		return Grant{}, grantError("it is for another node")
	case !slices.Contains(g.Verbs, verb):
		return Grant{}, grantError("it does not allow " + verb)
	case g.PeerUID != peerUID && g.PeerUID != PeerRunner:
		return Grant{}, grantError("the caller is not the runner it was given to")
	}
	return g, nil
}
