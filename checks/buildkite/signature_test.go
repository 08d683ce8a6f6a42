package buildkite

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

func signed(secret string, at int64, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "%d.%s", at, body)
	return fmt.Sprintf("timestamp=%d,signature=%s", at, hex.EncodeToString(mac.Sum(nil)))
}

func TestVerify(t *testing.T) {
	const body = `{"event":"ping"}`
	now := time.Unix(1_700_000_000, 0)
	at := now.Unix()
	good := signed("new", at, body)
	both := Proof{Secrets: []string{"new", "old"}}
	for name, c := range map[string]struct {
		p    Proof
		h    http.Header
		want error
	}{
		"token":             {both, http.Header{TokenHeader: {"new"}}, nil},
		"old token":         {both, http.Header{TokenHeader: {"old"}}, nil},
		"wrong token":       {both, http.Header{TokenHeader: {"neww"}}, ErrSignature},
		"empty token":       {both, http.Header{TokenHeader: {""}}, ErrSignature},
		"empty secret":      {Proof{Secrets: []string{""}}, http.Header{TokenHeader: {""}}, ErrSignature},
		"no secret":         {Proof{}, http.Header{TokenHeader: {""}}, ErrSignature},
		"nothing":           {both, http.Header{}, ErrUnsigned},
		"token not allowed": {Proof{Secrets: both.Secrets, SignatureOnly: true}, http.Header{TokenHeader: {"new"}}, ErrUnsigned},
		"two tokens":        {both, http.Header{TokenHeader: {"new", "new"}}, ErrMalformed},
		"signature":         {both, http.Header{SignatureHeader: {good}}, nil},
		"old signature":     {both, http.Header{SignatureHeader: {signed("old", at, body)}}, nil},
		"other secret":      {both, http.Header{SignatureHeader: {signed("x", at, body)}}, ErrSignature},
		"empty as a secret": {Proof{Secrets: []string{"", "new"}}, http.Header{SignatureHeader: {signed("", at, body)}}, ErrSignature},
		"other body":        {both, http.Header{SignatureHeader: {signed("new", at, body+" ")}}, ErrSignature},
		"other time":        {both, http.Header{SignatureHeader: {strings.Replace(good, fmt.Sprint(at), fmt.Sprint(at+1), 1)}}, ErrSignature},
		"wrong, good token": {both, http.Header{SignatureHeader: {signed("x", at, body)}, TokenHeader: {"new"}}, ErrSignature},
		"five minutes":      {both, http.Header{SignatureHeader: {signed("new", at-300, body)}}, nil},
		"replayed":          {both, http.Header{SignatureHeader: {signed("new", at-301, body)}}, ErrReplay},
		"from the future":   {both, http.Header{SignatureHeader: {signed("new", at+301, body)}}, ErrReplay},
		"swapped":           {both, http.Header{SignatureHeader: {swap(good)}}, nil},
		"upper case":        {both, http.Header{SignatureHeader: {"timestamp=" + fmt.Sprint(at) + ",signature=" + strings.ToUpper(good[len(good)-64:])}}, nil},
		"empty":             {both, http.Header{SignatureHeader: {""}}, ErrMalformed},
		"no value":          {both, http.Header{SignatureHeader: {"timestamp,signature"}}, ErrMalformed},
		"one part":          {both, http.Header{SignatureHeader: {good[:20]}}, ErrMalformed},
		"three parts":       {both, http.Header{SignatureHeader: {good + ",a=b"}}, ErrMalformed},
		"twice":             {both, http.Header{SignatureHeader: {good + "," + good}}, ErrMalformed},
		"no hex":            {both, http.Header{SignatureHeader: {fmt.Sprintf("timestamp=%d,signature=%s", at, strings.Repeat("z", 64))}}, ErrMalformed},
		"short":             {both, http.Header{SignatureHeader: {good[:len(good)-2]}}, ErrMalformed},
		"negative":          {both, http.Header{SignatureHeader: {signed("new", -at, body)}}, ErrMalformed},
		"two headers":       {both, http.Header{SignatureHeader: {good, good}}, ErrMalformed},
	} {
		if err := c.p.Verify(c.h, []byte(body), now); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func swap(s string) string {
	a, b, _ := strings.Cut(s, ",")
	return b + ", " + a
}

// Buildkite's own example cannot be checked without its secret; ours has to agree
// with what its documentation says is signed.
func FuzzVerify(f *testing.F) {
	good := signed("s", 1_700_000_000, "{}")
	for _, s := range []string{good, "", "=", ",", "timestamp=", "timestamp,signature", "a=b=c,d", "signature=,timestamp=", "timestamp=99999999999999999999,signature=" + strings.Repeat("0", 64), swap(good), "\x00"} {
		f.Add(s, []byte("{}"))
	}
	now := time.Unix(1_700_000_000, 0)
	f.Fuzz(func(t *testing.T, header string, body []byte) {
		p := Proof{Secrets: []string{"s", "t"}}
		if err := p.Verify(http.Header{SignatureHeader: {header}}, body, now); err == nil {
			_, sum, _ := parseSignature(header)
			mac := hmac.New(sha256.New, []byte("s"))
			stamp, _, _ := parseSignature(header)
			fmt.Fprintf(mac, "%s.%s", stamp, body)
			if !hmac.Equal(mac.Sum(nil), sum) {
				t.Errorf("%q is accepted for %q", header, body)
			}
		}
	})
}
