package seal

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

func keys(t *testing.T, text string) *Keys {
	t.Helper()
	k, err := ParseKeys(text)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestParseKeys(t *testing.T) {
	raw := bytes.Repeat([]byte{0xfb}, KeyBytes)
	want := keys(t, hex.EncodeToString(raw)).ID()
	for _, text := range []string{
		strings.ToUpper(hex.EncodeToString(raw)) + "\n",
		base64.StdEncoding.EncodeToString(raw),
		"\n\t" + base64.RawURLEncoding.EncodeToString(raw) + "\r\n" + NewKey(),
	} {
		if got := keys(t, text).ID(); got != want {
			t.Errorf("%q is key %s, want %s", text, got, want)
		}
	}
	if one, other := NewKey(), NewKey(); one == other {
		t.Error("the same key twice")
	}
	const canary = "c0ffee"
	for _, text := range []string{"", " \n", canary, hex.EncodeToString(raw[:31]), hex.EncodeToString(raw) + " " + canary, base64.StdEncoding.EncodeToString(append(raw, 1))} {
		if _, err := ParseKeys(text); err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestSealedValues(t *testing.T) {
	old, next := NewKey(), NewKey()
	k := keys(t, old)
	value := []byte("a value of some length")
	sealed, id := k.Seal(value, "row 1")
	if again, _ := k.Seal(value, "row 1"); bytes.Equal(again, sealed) {
		t.Error("the same nonce twice")
	}
	if bytes.Contains(sealed, value[:6]) {
		t.Error("it is not sealed")
	}
	both := keys(t, next+"\n"+old)
	if both.ID() == id {
		t.Error("the old key seals")
	}
	for _, k := range []*Keys{k, both} {
		if got, err := k.Open(sealed, id, "row 1"); err != nil || !bytes.Equal(got, value) {
			t.Errorf("got %q, %v", got, err)
		}
		if _, err := k.Open(sealed, id, "row 2"); !errors.Is(err, ErrSealed) {
			t.Errorf("in another row: %v", err)
		}
		for i := range sealed {
			bad := bytes.Clone(sealed)
			bad[i] ^= 1
			if _, err := k.Open(bad, id, "row 1"); !errors.Is(err, ErrSealed) {
				t.Fatalf("with byte %d changed: %v", i, err)
			}
		}
		if _, err := k.Open(sealed[:5], id, "row 1"); !errors.Is(err, ErrSealed) {
			t.Errorf("cut: %v", err)
		}
	}
	if _, err := both.Open(sealed, both.ID(), "row 1"); !errors.Is(err, ErrSealed) {
		t.Errorf("with another key: %v", err)
	}
	var unknown *UnknownKeyError
	if _, err := keys(t, next).Open(sealed, id, "row 1"); !errors.As(err, &unknown) || unknown.ID != id || !strings.Contains(err.Error(), id) {
		t.Errorf("with an unknown key: %v", err)
	}
}
