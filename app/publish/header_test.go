package publish

import (
	"bufio"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

const (
	shaA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	shaB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	shaC = "cccccccccccccccccccccccccccccccccccccccc"
)

func TestReadHeader(t *testing.T) {
	good := signatureV2 + "-" + shaA + " the base\n" + shaB + " " + ResultRef + "\n\n"
	r := bufio.NewReader(strings.NewReader(good + "PACKrest"))
	h, err := ReadHeader(r)
	if err != nil {
		t.Fatal(err)
	}
	if h.Tip != shaB || !slices.Equal(h.Prerequisites, []string{shaA}) {
		t.Errorf("%+v", h)
	}
	if rest, _ := io.ReadAll(r); string(rest) != "PACKrest" {
		t.Errorf("the pack begins with %q", rest)
	}
	if h, err := ReadHeader(bufio.NewReader(strings.NewReader(signatureV2 + "-" + shaA + "\n-" + shaC + " \n-" + shaA + " again\n" + shaB + " " + ResultRef + "\n\n"))); err != nil || len(h.Prerequisites) != 2 {
		t.Errorf("%+v %v", h, err)
	}

	for name, text := range map[string]string{
		"empty":                     "",
		"version 3":                 "# v3 git bundle\n@object-format=sha1\n-" + shaA + " x\n" + shaB + " " + ResultRef + "\n\n",
		"version 3 with filter":     "# v3 git bundle\n@filter=blob:none\n" + shaB + " " + ResultRef + "\n\n",
		"capability in version 2":   signatureV2 + "@object-format=sha1\n" + shaB + " " + ResultRef + "\n\n",
		"version 20":                "# v20 git bundle\n" + shaB + " " + ResultRef + "\n\n",
		"gitdir file":               "gitdir: /other/repository/.git\n",
		"a pack":                    "PACK\x00\x00\x00\x02",
		"CRLF":                      strings.ReplaceAll(good, "\n", "\r\n"),
		"space before":              " " + good,
		"no end":                    strings.TrimSuffix(good, "\n"),
		"cut":                       good[:60],
		"no ref":                    signatureV2 + "-" + shaA + " x\n\n",
		"no prerequisite":           signatureV2 + shaB + " " + ResultRef + "\n\n",
		"other ref":                 signatureV2 + "-" + shaA + " x\n" + shaB + " refs/heads/main\n\n",
		"two refs":                  signatureV2 + "-" + shaA + " x\n" + shaB + " " + ResultRef + "\n" + shaC + " refs/heads/x\n\n",
		"the ref twice":             signatureV2 + "-" + shaA + " x\n" + shaB + " " + ResultRef + "\n" + shaC + " " + ResultRef + "\n\n",
		"ref with a tail":           signatureV2 + "-" + shaA + " x\n" + shaB + " " + ResultRef + "x\n\n",
		"ref with a space":          signatureV2 + "-" + shaA + " x\n" + shaB + " " + ResultRef + " \n\n",
		"prerequisite after ref":    signatureV2 + shaB + " " + ResultRef + "\n-" + shaA + " x\n\n",
		"upper-case id":             signatureV2 + "-" + strings.ToUpper(shaA) + " x\n" + shaB + " " + ResultRef + "\n\n",
		"short id":                  signatureV2 + "-" + shaA[:39] + " x\n" + shaB + " " + ResultRef + "\n\n",
		"sha256 id":                 signatureV2 + "-" + shaA + shaA[:24] + " x\n" + shaB + " " + ResultRef + "\n\n",
		"null id":                   signatureV2 + "-" + shaA + " x\n" + strings.Repeat("0", 40) + " " + ResultRef + "\n\n",
		"NUL":                       signatureV2 + "-" + shaA + " x\x00\n" + shaB + " " + ResultRef + "\n\n",
		"endless line":              signatureV2 + "-" + shaA + " " + strings.Repeat("x", 1<<20) + "\n" + shaB + " " + ResultRef + "\n\n",
		"endless line, no line end": strings.Repeat("#", 1<<20),
		"many prerequisites":        signatureV2 + manyPrerequisites(65) + shaB + " " + ResultRef + "\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			h, err := ReadHeader(bufio.NewReader(strings.NewReader(text)))
			if !errors.Is(err, errHeader) {
				t.Errorf("%+v, %v: should be refused", h, err)
			}
		})
	}
	if _, err := ReadHeader(bufio.NewReader(io.MultiReader(strings.NewReader(good[:30]), failing{}))); err == nil || errors.Is(err, errHeader) {
		t.Errorf("a reader's error is taken for a bad header: %v", err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the store is away") }

func manyPrerequisites(n int) string {
	var b strings.Builder
	for i := range n {
		id := []byte(shaA)
		id[0], id[1] = "0123456789abcdef"[i/16], "0123456789abcdef"[i%16]
		b.WriteString("-" + string(id) + " x\n")
	}
	return b.String()
}

func FuzzReadHeader(f *testing.F) {
	f.Add([]byte(signatureV2 + "-" + shaA + " base\n" + shaB + " " + ResultRef + "\n\nPACK"))
	f.Add([]byte("# v3 git bundle\n@filter=blob:none\n" + shaB + " " + ResultRef + "\n\n"))
	f.Add([]byte("gitdir: /x\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		src := strings.NewReader(string(in))
		r := bufio.NewReader(src)
		h, err := ReadHeader(r)
		if err != nil {
			if h.Tip != "" || h.Prerequisites != nil {
				t.Fatalf("a refused header left %+v", h)
			}
			return
		}
		if !isSHA(h.Tip) || len(h.Prerequisites) == 0 || len(h.Prerequisites) > maxPrerequisites {
			t.Fatalf("%+v", h)
		}
		rest, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		head := string(in[:len(in)-len(rest)])
		if !strings.HasPrefix(head, signatureV2) || !strings.HasSuffix(head, "\n\n") || strings.Count(head, ResultRef+"\n") < 1 {
			t.Fatalf("the header is taken to be %q", head)
		}
	})
}

func FuzzParseRaw(f *testing.F) {
	f.Add(":100644 100755 " + shaA + " " + shaB + " M\x00a b\x00")
	f.Add(":000000 120000 " + strings.Repeat("0", 40) + " " + shaB + " A\x00x\x00:100644 000000 " + shaA + " " + strings.Repeat("0", 40) + " D\x00y\x00")
	f.Fuzz(func(t *testing.T, in string) {
		es, rest, err := parseRaw(in)
		if err != nil {
			return
		}
		if strings.HasPrefix(rest, ":") {
			t.Fatalf("it ends at %q", rest)
		}
		for _, e := range es {
			if e.Path == "" || strings.ContainsRune(e.Path, 0) || e.NewMode != 0 && !isSHA(e.NewSHA) {
				t.Fatalf("%+v", e)
			}
		}
	})
}

func FuzzParseAdded(f *testing.F) {
	f.Add([]byte("diff --git a/x b/x\nindex " + shaA + ".." + shaB + " 100644\n--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n-a\n+b\n+c\n"))
	f.Add([]byte("diff --git \"a/x\\ny\" \"b/x\\ny\"\nnew file mode 100644\nindex " + shaA + ".." + shaB + "\n--- /dev/null\n+++ \"b/x\\ny\"\n@@ -0,0 +1 @@\n+++ b/evil\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		added, err := parseAdded(in)
		if err != nil {
			return
		}
		for _, a := range added {
			if len(a.Lines) != len(a.Numbers) {
				t.Fatalf("%d lines and %d numbers", len(a.Lines), len(a.Numbers))
			}
		}
	})
}
