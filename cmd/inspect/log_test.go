package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"

	"inspect/checks/redact"
)

// Whatever is logged, and however: no secret is in a line, and each line of
// JSON still is one.
func TestLogIsRedacted(t *testing.T) {
	const known = "canary \"of the\" control plane\nin two lines"
	token := "ghs_12345_eyJ." + strings.Repeat("Ab-_9", 90)
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		r := redact.New()
		log := logTo(&out, format, r)
		r.Add(known) // learnt after the log was made
		for _, secret := range []string{known, token, url.QueryEscape(known), base64.StdEncoding.EncodeToString([]byte("u:" + known))} {
			log.Info("it says "+secret, "attr", secret)
			log.With("with", secret).WithGroup("g").Warn("x", slog.Group("h", "in", secret), "error", errors.New("failed: "+secret))
			log.Error("x", "any", map[string]string{"k": secret})
		}
		for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
			if strings.Contains(line, "control") || strings.Contains(line, "Ab-_9Ab") || !strings.Contains(line, redact.Mark) {
				t.Errorf("%s: %s", format, line)
			}
			if format == "json" && !json.Valid([]byte(line)) {
				t.Errorf("no JSON: %s", line)
			}
			if dec, err := base64.StdEncoding.DecodeString(line); err == nil && bytes.Contains(dec, []byte("control")) {
				t.Errorf("%s: %s", format, line)
			}
		}
	}
}
