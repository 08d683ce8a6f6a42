package buildkite

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Headers of a webhook.
const (
	EventHeader     = "X-Buildkite-Event"
	TokenHeader     = "X-Buildkite-Token"
	SignatureHeader = "X-Buildkite-Signature"
)

// Window is how far the time of a signature may lie from ours, either way: the
// clocks differ, and what is older may be a replay.
const Window = 5 * time.Minute

// Why a webhook is refused; for the log, not for whoever sent it.
var (
	ErrUnsigned  = errors.New("it has neither token nor signature")
	ErrMalformed = errors.New("its signature header cannot be read")
	ErrSignature = errors.New("its token or signature does not match")
	ErrReplay    = errors.New("its signature is more than five minutes old or from the future")
)

// Proof is what a webhook is verified with.
type Proof struct {
	// Secrets: the webhook's token, or two while one replaces the other. Empty
	// ones are ignored; without any nothing is accepted.
	Secrets []string
	// SignatureOnly refuses the token in clear text, which anybody who has seen
	// one delivery can send again.
	SignatureOnly bool
}

// Verify says whether whoever sent body knows a secret of p: by the signature
// where there is one, else by the token in clear text. Signatures are
// HMAC-SHA256 of "<timestamp>.<body>" and hold for Window.
func (p Proof) Verify(h http.Header, body []byte, now time.Time) error {
	signatures, tokens := h.Values(SignatureHeader), h.Values(TokenHeader)
	switch {
	case len(signatures) > 1 || len(tokens) > 1:
		return ErrMalformed
	case len(signatures) == 1:
		return p.signature(signatures[0], body, now)
	case len(tokens) == 1 && !p.SignatureOnly:
		return p.token(tokens[0])
	}
	return ErrUnsigned
}

// token compares in constant time, also of the length.
func (p Proof) token(sent string) error {
	got := sha256.Sum256([]byte(sent))
	ok := 0
	for _, s := range p.Secrets {
		want := sha256.Sum256([]byte(s))
		if s != "" {
			ok |= subtle.ConstantTimeCompare(got[:], want[:])
		}
	}
	if ok == 0 {
		return ErrSignature
	}
	return nil
}

func (p Proof) signature(header string, body []byte, now time.Time) error {
	stamp, sum, ok := parseSignature(header)
	if !ok {
		return ErrMalformed
	}
	match := false
	for _, s := range p.Secrets {
		if s == "" {
			continue
		}
		mac := hmac.New(sha256.New, []byte(s))
		mac.Write([]byte(stamp))
		mac.Write([]byte("."))
		mac.Write(body)
		match = hmac.Equal(mac.Sum(nil), sum) || match
	}
	if !match {
		return ErrSignature
	}
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return ErrMalformed
	}
	if age := now.Sub(time.Unix(seconds, 0)); age > Window || age < -Window {
		return ErrReplay
	}
	return nil
}

// parseSignature reads "timestamp=1619071700,signature=30222…" in either order,
// with nothing else in it. The timestamp stays as it was written: it was signed so.
func parseSignature(header string) (stamp string, sum []byte, ok bool) {
	if len(header) > 300 {
		return "", nil, false
	}
	for _, part := range strings.Split(header, ",") {
		name, v, found := strings.Cut(strings.TrimSpace(part), "=")
		switch {
		case found && name == "timestamp" && stamp == "" && digits(v):
			stamp = v
		case found && name == "signature" && sum == nil && len(v) == 2*sha256.Size:
			var err error
			if sum, err = hex.DecodeString(v); err != nil {
				return "", nil, false
			}
		default:
			return "", nil, false
		}
	}
	return stamp, sum, stamp != "" && sum != nil
}

func digits(s string) bool {
	for _, c := range s {
		if c < '0' || c > '9' {
			return false
		}
	}
	return s != "" && len(s) <= 12
}
