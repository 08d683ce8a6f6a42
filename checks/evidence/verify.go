package evidence

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"

	"inspect/checks/redact"
)

// ErrAbsent is the error of a file that is not where it should be.
var ErrAbsent = errors.New("it is missing")

// Sum is the content of a file as it was found.
type Sum struct {
	SHA256 string // hexadecimal
	Bytes  int64
}

// SumOf reads a file to its end.
func SumOf(r io.Reader) (Sum, error) {
	h := sha256.New()
	n, err := io.Copy(h, r)
	return Sum{hex.EncodeToString(h.Sum(nil)), n}, err
}

// Verify checks a manifest and the files it names. digest is what the receipt
// says of the manifest; empty: nobody knows, and only the manifest itself says
// what is right. found looks at a file. wrong has a sentence for each thing that
// is not as it should be; an error means that it could not be found out.
func Verify(body []byte, digest string, found func(File) (Sum, error)) (m Manifest, wrong []string, err error) {
	sum := sha256.Sum256(body)
	if got := hex.EncodeToString(sum[:]); digest != "" && got != digest {
		wrong = append(wrong, fmt.Sprintf("manifest.json is not the one of the receipt: it has sha256:%s instead of sha256:%s", got, digest))
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if err := d.Decode(&m); err != nil {
		return m, append(wrong, "manifest.json cannot be read: "+redact.OneLine(err.Error(), 300)), nil
	}
	if m.Version > ManifestVersion || m.Version < 1 {
		return m, append(wrong, fmt.Sprintf("manifest.json is of version %d; this program knows versions 1 to %d", m.Version, ManifestVersion)), nil
	}
	if m.Version == ManifestVersion {
		if err := fits(body); err != nil {
			wrong = append(wrong, "manifest.json does not fit its schema: "+redact.OneLine(err.Error(), 300))
		}
	}
	seen := map[string]bool{}
	for _, f := range m.Files {
		name := redact.OneLine(f.Name, 200)
		if seen[f.Name] {
			wrong = append(wrong, name+" is listed twice")
			continue
		}
		seen[f.Name] = true
		got, err := found(f)
		switch {
		case errors.Is(err, ErrAbsent):
			wrong = append(wrong, name+" is missing")
		case err != nil:
			return m, wrong, fmt.Errorf("read %s: %w", name, err)
		case got.SHA256 != f.SHA256:
			wrong = append(wrong, fmt.Sprintf("%s was changed: it has sha256:%s instead of sha256:%s", name, got.SHA256, f.SHA256))
		case got.Bytes != f.Bytes:
			wrong = append(wrong, fmt.Sprintf("%s has %d bytes instead of %d", name, got.Bytes, f.Bytes))
		}
	}
	return m, wrong, nil
}

// Schema is the JSON schema of the manifest, made of its types.
func Schema() ([]byte, error) {
	s, err := jsonschema.For[Manifest](nil)
	if err != nil {
		return nil, err
	}
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	s.Title = fmt.Sprintf("Manifest of the evidence of an Inspect session, version %d", ManifestVersion)
	s.Description = "Each file is found under its SHA-256. Durations are in nanoseconds, money in billionths of a US dollar."
	body, err := json.MarshalIndent(s, "", "  ")
	return append(body, '\n'), err
}

var resolved = sync.OnceValues(func() (*jsonschema.Resolved, error) {
	s, err := jsonschema.For[Manifest](nil)
	if err != nil {
		return nil, err
	}
	return s.Resolve(nil)
})

func fits(body []byte) error {
	r, err := resolved()
	if err != nil {
		return err
	}
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		return err
	}
	return r.Validate(v)
}
