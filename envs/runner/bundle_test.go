package runner

import (
	"strings"
	"testing"
)

func TestParseBundle(t *testing.T) {
	a, b := strings.Repeat("a", 40), strings.Repeat("b", 40)
	good := "# v2 git bundle\n-" + a + " some words \xff\n" + b + " refs/inspect/result\n\nPACK…"
	h, err := parseBundle([]byte(good))
	if err != nil || h.tip != b || len(h.prerequisites) != 1 || h.prerequisites[0] != a || good[h.pack:] != "PACK…" {
		t.Fatalf("%+v, %v", h, err)
	}
	for name, text := range map[string]string{
		"empty":                  "",
		"version 3":              "# v3 git bundle\n@object-format=sha1\n" + b + " refs/inspect/result\n\n",
		"a gitfile":              "gitdir: /other/repository/.git\n",
		"no end":                 "# v2 git bundle\n" + b + " refs/inspect/result\n",
		"no reference":           "# v2 git bundle\n-" + a + "\n\n",
		"two references":         "# v2 git bundle\n" + b + " refs/inspect/result\n" + b + " refs/inspect/result\n\n",
		"another reference":      "# v2 git bundle\n" + b + " refs/heads/main\n\n",
		"short id":               "# v2 git bundle\n" + b[:39] + " refs/inspect/result\n\n",
		"prerequisite too late":  "# v2 git bundle\n" + b + " refs/inspect/result\n-" + a + "\n\n",
		"prerequisite malformed": "# v2 git bundle\n--upload-pack=x\n" + b + " refs/inspect/result\n\n",
	} {
		if h, err := parseBundle([]byte(text)); err == nil {
			t.Errorf("%s: accepted as %+v", name, h)
		}
	}
}

func FuzzParseBundle(f *testing.F) {
	f.Add([]byte("# v2 git bundle\n-" + strings.Repeat("a", 40) + "\n" + strings.Repeat("b", 40) + " refs/inspect/result\n\nPACK"))
	f.Add([]byte("# v2 git bundle\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseBundle(b)
		if err != nil {
			return
		}
		if !isSHA(h.tip) || h.pack < 1 || h.pack > int64(len(b)) || b[h.pack-1] != '\n' {
			t.Errorf("%q was accepted as %+v", b, h)
		}
	})
}
