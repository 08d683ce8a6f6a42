package leaks

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"inspect/checks/redact"
)

func finder(t testing.TB, known ...string) *Finder {
	t.Helper()
	f, err := New(redact.New(known...))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Values are put together here, so that no scanner takes this file for a leak.
var (
	longToken = "ghs_" + "12345_eyJhbGciOiJSUzI1NiJ9." + strings.Repeat("Ab-_9", 90) + ".end"
	stripe    = "sk_" + "live_" + "4eC39HqLyjWDarjtT1zdp7dcAbCd"
	aws       = "AKIA" + "IOSFODNN7EXAMPLE"
	pem       = "-----BEGIN RSA PRIVATE " + "KEY-----\n" + strings.Repeat("MIIEpAIBAAKCAQEAx7Q9vV2b4mJ8yH3kT6wR1zN5cD0fG\n", 6) + "-----END RSA PRIVATE " + "KEY-----"
)

func TestFind(t *testing.T) {
	const known = "the-operator's own value"
	for name, c := range map[string]struct {
		path, text string
		line       int // 0: nothing is to be found
	}{
		"token":                    {"a.go", "x\ny\nz := \"" + longToken + "\"\n", 3},
		"stripe":                   {"a.go", "\nkey := \"" + stripe + "\"", 2},
		"a comment that allows it": {"a.go", "key := \"" + stripe + "\" // gitleaks:allow", 1},
		"go.sum":                   {"go.sum", "a v1.0.0 h1:x\n" + longToken, 2},
		"package-lock.json":        {"web/package-lock.json", "{\"resolved\": \"https://r.example/?t=" + stripe + "\"}", 1},
		"pnpm-lock.yaml":           {"pnpm-lock.yaml", "k: " + stripe, 1},
		"svg":                      {"logo.svg", "<svg k='" + stripe + "'/>", 1},
		"node_modules":             {"node_modules/x/index.js", "k('" + stripe + "')", 1},
		"vendored":                 {"vendor/github.com/x/y.go", "k(\"" + stripe + "\")", 1},
		"a README it trusts":       {"node_modules/@octokit/auth-token/README.md", "ghp_" + strings.Repeat("Zx9", 12), 1},
		"with false in it":         {"a.go", "api_key = \"x9false8Kq2LmZ7vR4tYw1Bn\"", 1},
		"in base64":                {"a.txt", "k: " + base64.StdEncoding.EncodeToString([]byte("export KEY="+stripe+" # mine")), 1},
		"twice in base64":          {"a.txt", base64.StdEncoding.EncodeToString([]byte(base64.StdEncoding.EncodeToString([]byte("export KEY=" + stripe + " # mine and yours")))), 1},
		"in hexadecimal":           {"a.txt", "k: " + hex.EncodeToString([]byte("export KEY="+stripe+" # mine")), 1},
		"in a URL":                 {"a.txt", "k=" + url.QueryEscape("a b;"+stripe), 1},
		"in UTF-16":                {"a.txt", strings.Join(strings.Split("\nk: \""+stripe+"\"", ""), "\x00"), 2},
		"an example of AWS":        {"a_test.go", "id := \"" + aws + "\"", 1},
		"private key":              {"id_rsa", "a\n" + pem, 2},
		"private key, indented":    {"a.yml", "key: |\n  " + strings.ReplaceAll(pem, "\n", "\n  "), 2},
		"a key's begin":            {"a", pem[:60], 1},
		"a value known to us":      {"a", "1\n2\nx=" + base64.StdEncoding.EncodeToString([]byte("u:"+known)), 3},
		"key store":                {"certs/prod.p12", "\x00\x01", 1},

		"nothing":            {"", "", 0},
		"ordinary code":      {"a.go", "token := r.Header.Get(\"Authorization\")\nkey := os.Getenv(\"API_KEY\")\npassword = ${PASSWORD}\n", 0},
		"a checksum":         {"go.sum", "golang.org/x/oauth2 v0.30.0 h1:dnDm7JmhM45NNpd8FDDeLhK6FwqbOf4MLCM9zb1BOHI=", 0},
		"a checksum's twin":  {"go.sum", "golang.org/x/oauth2 v0.30.0/go.mod h1:B++QgG3ZKulg6sRPGD/mqlHQs5rB3Ml9erfeDY7xKlU=", 0},
		"a lock file's line": {"package-lock.json", "\"js-tokens\": {\"version\": \"4.0.0\", \"integrity\": \"sha512-RdJUflcE3cUzKiMqQgsCu06FPu9UdIJO0beYbPhHN4k6apgJtifcoCtT9bcxOpYBtpD2kCM6Sbzg4CausW/PKQ==\"}", 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := finder(t, known).Find(c.path, c.text)
			if c.line == 0 && len(got) > 0 || c.line > 0 && (len(got) == 0 || got[0].Line != c.line || got[0].End < c.line || got[0].Rule == "") {
				t.Errorf("found %+v, want line %d", got, c.line)
			}
		})
	}
	if got := finder(t).Find("id_rsa", "a\n"+pem+"\nb"); len(got) == 0 || got[0].End != 1+len(strings.Split(pem, "\n")) {
		t.Errorf("where does the key end? %+v", got)
	}
}

// The border of what the library sees at once hides nothing and moves no line.
func TestFindAcrossChunks(t *testing.T) {
	f := finder(t)
	for _, filler := range []string{"x y\n", "x y z "} {
		for _, before := range []int{chunk - 1200, chunk - 100, chunk - 20, chunk - overlap, 2*chunk - overlap - 30, 3 * chunk} {
			for _, secret := range []string{stripe, pem} {
				head := strings.Repeat(filler, before/len(filler)) + "\n"
				got := f.Find("a", head+"k = \""+secret+"\"\n"+strings.Repeat(filler, 2*chunk/len(filler)))
				if want := strings.Count(head, "\n") + 1; len(got) == 0 || got[0].Line != want {
					t.Errorf("%d bytes of %q before: found %+v, want line %d", before, filler, got, want)
				}
			}
		}
	}
}

// Without the exceptions, what people push every day is still no secret.
func TestOrdinaryFiles(t *testing.T) {
	f := finder(t)
	for _, name := range []string{"go.mod", "go.sum", "README.md", "app/github/tokens.go", "app/policy/change.go", "cmd/inspect/serve.go", "docs/models.yml", "app.yml", "storage/scheduler.sql.go"} {
		body, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Find(name, string(body)); len(got) > 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Somebody fills a file with what looks like secrets, to keep us busy.
func TestFloodOfFindings(t *testing.T) {
	f := finder(t)
	for name, line := range map[string]string{"known forms": "ghp_" + strings.Repeat("a", 36) + "\n", "the library's": "k = \"" + stripe + "\"\n", "long lines": "k = \"" + stripe + "\" "} {
		text := strings.Repeat(line, 4<<20/len(line))
		done := make(chan []redact.Finding, 1)
		go func() { done <- f.Find("a", text) }()
		select {
		case got := <-done:
			if len(got) == 0 || len(got) > Most {
				t.Errorf("%s: %d findings", name, len(got))
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: not over after 30 s", name)
		}
	}
}

// sources is a change of 5,000 files, 9 MB in all; one line in four speaks of tokens.
func sources() (names, texts []string) {
	for i := range 5000 {
		var b strings.Builder
		for n := 0; b.Len() < 1800; n++ {
			what := "limit"
			if n%4 == i%4 {
				what = "token"
			}
			fmt.Fprintf(&b, "func handle%d(w http.ResponseWriter, r *http.Request) error { return write(w, %s(r), %d) }\n", n, what, i)
		}
		names, texts = append(names, fmt.Sprintf("pkg/a%d/file.go", i)), append(texts, b.String())
	}
	return names, texts
}

// A large change is searched within a few seconds: measured against the one
// rule that most files are read with, so that a busy machine judges itself.
func TestFindIsFastEnough(t *testing.T) {
	f := finder(t)
	names, texts := sources()
	generic := f.detector.Config.Rules[genericRule].Regex
	var took, plain time.Duration
	for i := range texts {
		begun := time.Now()
		f.Find(names[i], texts[i])
		took += time.Since(begun)
		begun = time.Now()
		generic.FindAllStringIndex(texts[i], -1)
		plain += time.Since(begun)
	}
	t.Logf("%v, of them %v for the one rule", took, plain)
	if took > 4*plain {
		t.Errorf("%v for 9 MB, the one rule takes %v", took, plain)
	}
}

func BenchmarkFind(b *testing.B) {
	f := finder(b)
	names, texts := sources()
	n := 0
	for _, s := range texts {
		n += len(s)
	}
	b.SetBytes(int64(n))
	for b.Loop() {
		for i := range texts {
			f.Find(names[i], texts[i])
		}
	}
}

func TestExceptionsAreGone(t *testing.T) {
	d, err := detector()
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Config.Rules) < 200 || len(d.Config.Allowlists) > 0 || !d.IgnoreGitleaksAllow || d.MaxDecodeDepth < 2 {
		t.Errorf("%d rules, %d exceptions", len(d.Config.Rules), len(d.Config.Allowlists))
	}
	for id, r := range d.Config.Rules {
		for _, a := range r.Allowlists {
			if len(a.Paths)+len(a.Commits) > 0 {
				t.Errorf("the rule %s passes over files", id)
			}
		}
	}
	if !slices.Contains(d.Config.OrderedRules, genericRule) {
		t.Error("there is no generic rule any more")
	}
}
