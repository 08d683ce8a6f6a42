package search

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"strings"

	"inspect/checks/redact"
)

const (
	// least is the shortest value that is looked for, in bytes, as in package redact.
	least = 6
	// wraps is the length, in bytes, from which a text may have got line breaks.
	wraps = 40
)

// compile makes what is looked for of the secrets: in text as it is and, for
// long ones, in text without white space.
func compile(secrets []Secret) (plain, squeezed *needles) {
	plain, squeezed = &needles{}, &needles{}
	for _, s := range secrets {
		value := strings.TrimSpace(s.Value)
		if len(value) < least {
			continue
		}
		for _, form := range forms(value) {
			plain.add(form, s.Name)
			if thin := string(squeeze(nil, []byte(form))); len(thin) >= wraps {
				squeezed.add(thin, s.Name)
			}
		}
	}
	return plain, squeezed
}

// forms are the spellings of a value that are looked for.
func forms(value string) []string {
	out := redact.Forms(value)
	low := hex.EncodeToString([]byte(value))
	out = append(out, low, strings.ToUpper(low))
	for _, html := range []bool{true, false} {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(html)
		if e.Encode(value) == nil {
			out = append(out, string(b.Bytes()[1:b.Len()-2])) // without the quotes and the line's end
		}
	}
	return out
}
