package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// parseSignature reads the one X-Hub-Signature-256 header. The older
// X-Hub-Signature (SHA-1) is never looked at.
func parseSignature(values []string) ([]byte, bool) {
	if len(values) != 1 {
		return nil, false
	}
	text, ok := strings.CutPrefix(values[0], "sha256=")
	if !ok || len(text) != 2*sha256.Size {
		return nil, false
	}
	sig, err := hex.DecodeString(text)
	return sig, err == nil
}

// signedBy says whether one of the secrets made sig over body. It takes the
// same time whichever does, and whether one does.
func signedBy(sig, body []byte, secrets []string) bool {
	ok := false
	for _, s := range secrets {
		mac := hmac.New(sha256.New, []byte(s))
		mac.Write(body)
		if hmac.Equal(sig, mac.Sum(nil)) {
			ok = true
		}
	}
	return ok
}
