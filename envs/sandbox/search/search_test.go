package search

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const value = `s3cr3t/"value"+with&odd?signs`

func find(t *testing.T, q Request) []string {
	t.Helper()
	in, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Main(bytes.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	var found []string
	for d := json.NewDecoder(&out); d.More(); {
		var h Hit
		if err := d.Decode(&h); err != nil {
			t.Fatal(err)
		}
		rel, err := filepath.Rel(q.Dirs[0], h.Path)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, rel+": "+strings.TrimSpace(h.Secret+" "+h.What))
	}
	slices.Sort(found)
	return found
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func wrapped(s string, width int, sep string) string {
	var b strings.Builder
	for len(s) > width {
		b.WriteString(s[:width] + sep)
		s = s[width:]
	}
	return b.String() + s
}

func TestForms(t *testing.T) {
	long := strings.Repeat("0123456789abcdefghijklmnopqrstuvwxyz", 5) + "LONG"
	quoted, _ := json.Marshal(value)
	key := "-----BEGIN PRIVATE KEY-----\n" + wrapped(base64.StdEncoding.EncodeToString([]byte(long)), 64, "\n") + "\n-----END PRIVATE KEY-----\n"
	secrets := []Secret{{"A", value}, {"LONG", long}, {"KEY", key}, {"SHORT", "12345"}, {"EMPTY", ""}}
	for name, c := range map[string]struct{ content, want string }{
		"nothing":               {"12345 and more " + value[1:], ""},
		"as it is":              {"x=" + value + "\n", "A"},
		"at the end":            {value, "A"},
		"base64":                {base64.StdEncoding.EncodeToString([]byte(value)), "A"},
		"base64 in other text":  {base64.StdEncoding.EncodeToString([]byte("user:" + value + " more")), "A"},
		"base64 of a line":      {base64.URLEncoding.EncodeToString([]byte("x" + value + "\n")), "A"},
		"hexadecimal":           {"0x" + hex.EncodeToString([]byte(value)), "A"},
		"HEXADECIMAL":           {strings.ToUpper(hex.EncodeToString([]byte(value))), "A"},
		"in a query":            {"?t=" + url.QueryEscape(value), "A"},
		"in a path":             {"/t/" + url.PathEscape(value), "A"},
		"JSON":                  {string(quoted), "A"},
		"JSON of another":       {strings.NewReplacer(`"`, `\"`).Replace(value), "A"},
		"base64 in lines":       {"a\n" + wrapped(base64.StdEncoding.EncodeToString([]byte("abc"+long)), 76, "\n"), "LONG"},
		"hexadecimal in groups": {wrapped(hex.EncodeToString([]byte(long)), 4, " "), "LONG"},
		"a key, indented":       {"key: |\n  " + strings.ReplaceAll(key, "\n", "\r\n  "), "KEY"},
		"a key in JSON":         {strings.ReplaceAll(key, "\n", `\n`), "KEY"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, "f", c.content)
			var want []string
			if c.want != "" {
				want = []string{"f: " + c.want + " content"}
			}
			if got := find(t, Request{Secrets: secrets, Dirs: []string{dir}}); !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}

// Wherever the borders of what is read at once are, a value is found.
func TestAcrossBorders(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("abcdefghij", 20) + "!"
	for _, at := range []int{0, chunk - len(value), chunk - 1, chunk, 2*chunk - 7, 3*chunk - len(long)/2} {
		write(t, dir, fmt.Sprintf("plain-%d", at), strings.Repeat("x", at)+value)
		write(t, dir, fmt.Sprintf("lines-%d", at), strings.Repeat(" ", at)+wrapped(long, 7, "\n")+strings.Repeat("y", at))
	}
	got := find(t, Request{Secrets: []Secret{{"A", value}, {"LONG", long}}, Dirs: []string{dir}})
	if len(got) != 12 {
		t.Errorf("found %d of 12: %q", len(got), got)
	}
}

// What an enemy puts in the way is neither followed nor waited for nor passed
// over in silence.
func TestHostileTree(t *testing.T) {
	outside := t.TempDir()
	write(t, outside, "secret", value)
	dir := t.TempDir()
	for _, err := range []error{
		os.Symlink(outside, filepath.Join(dir, "to-dir")),
		os.Symlink(outside+"/secret", filepath.Join(dir, "to-file")),
		os.Symlink("loop", filepath.Join(dir, "loop")),
		os.Symlink("/dev/zero", filepath.Join(dir, "zero")),
		os.Symlink("x/"+value, filepath.Join(dir, "target")),
		unix.Mkfifo(filepath.Join(dir, "pipe"), 0o644),
		os.Mkdir(filepath.Join(dir, "n"), 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	named := "a\n" + strings.ReplaceAll(value, "/", "-") + "\x1b[31m\xff"
	write(t, dir, "n/"+named, "")
	write(t, dir, "attr", "nothing")
	if err := unix.Setxattr(filepath.Join(dir, "attr"), "user.note", []byte("of "+value), 0); err != nil {
		t.Logf("no attributes here: %v", err)
		write(t, dir, "attr", value) // so that the rest is judged all the same
	}
	// Larger than any disk, and nearly nothing of it is there.
	f, err := os.Create(filepath.Join(dir, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{1 << 40, 3 << 40} {
		if _, err := f.WriteAt([]byte("word"), at); err != nil {
			t.Log(err) // a file system that has no such files
		}
	}
	if _, err := f.WriteAt([]byte(value), 2<<40); err != nil {
		_, _ = f.WriteAt([]byte(value), 0)
	}
	f.Close()

	got := find(t, Request{
		Dirs:    []string{dir},
		Secrets: []Secret{{"A", value}, {"B", strings.ReplaceAll(value, "/", "-")}},
	})
	want := []string{"attr: A attribute", "n/a\n" + strings.ReplaceAll(value, "/", "-") + "\x1b[31m?: B name", "sparse: A content", "target: A link target"}
	if strings.HasPrefix(got[0], "attr: A content") {
		want[0] = got[0]
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

func TestDeepTree(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range maxDepth + 5 {
		if err == nil {
			err = unix.Mkdirat(fd, strings.Repeat("d", 200), 0o755)
		}
		next := -1
		if err == nil {
			next, err = unix.Openat(fd, strings.Repeat("d", 200), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	got := find(t, Request{Secrets: []Secret{{"A", value}}, Dirs: []string{dir}})
	if len(got) != 1 || !strings.HasSuffix(got[0], "is nested too deep to be searched") || len(got[0]) > 5000 {
		t.Errorf("%.200q", got)
	}
}

func TestCredentialsOfPrograms(t *testing.T) {
	for name, c := range map[string]struct{ bad, good string }{
		".npmrc":                     {"//r.example/:_authToken=npm_abc\n", "//r.example/:_authToken=${NPM_TOKEN}\ncafile=/x\n"},
		".netrc":                     {"machine a.example login octocat password hunter2", "machine a.example login octocat"},
		".git-credentials":           {"https://octocat:hunter2@git.example", "\n"},
		".config/pip/pip.conf":       {"[global]\nindex-url = https://octocat:hunter2@p.example/simple", "[global]\nindex-url = https://p.example/simple"},
		".docker/config.json":        {`{"auths": {"r.example": {"auth": "b2N0b2NhdA=="}}}`, `{"auths": {"r.example": {}}, "credsStore": "x"}`},
		".cargo/credentials.toml":    {"[registry]\ntoken = \"abc\"", "[registry]\n"},
		".m2/settings.xml":           {"<server><password>abc</password></server>", "<server><password>${env.P}</password></server>"},
		".aws/credentials":           {"[default]\naws_secret_access_key = abc", "[default]\nregion = x"},
		".ssh/id_ed25519":            {"-----BEGIN OPENSSH PRIVATE KEY-----\nabc", "ssh-ed25519 AAAA"},
		".yarnrc.yml":                {"npmAuthToken: abc", "npmAuthToken: \"${NPM_TOKEN}\"\n"},
		".gem/credentials":           {"---\n:rubygems_api_key: rubygems_0123456789", "---\n"},
		".config/gh/hosts.yml":       {"github.com:\n  oauth_token: gho_x", "github.com:\n  user: octocat"},
		".kube/config":               {"users:\n- user:\n    token: abc", "users: []"},
		".pypirc":                    {"[pypi]\nusername = octocat\npassword = abc", "[pypi]\nusername = octocat"},
		"elsewhere/.npmrc of nobody": {"", "//r.example/:_authToken=npm_abc\n"},
	} {
		for content, want := range map[string][]string{c.bad: {name + ": holds a credential"}, c.good: nil} {
			if content == "" {
				continue
			}
			home := t.TempDir()
			write(t, home, name, content)
			if got := find(t, Request{Secrets: []Secret{{"A", value}}, Dirs: []string{home}, Home: home}); !slices.Equal(got, want) {
				t.Errorf("%s: %q: %q, want %q", name, content, got, want)
			}
		}
	}
}

func TestBounds(t *testing.T) {
	dir := t.TempDir()
	for i := range 2 * MaxHits {
		write(t, dir, fmt.Sprint(i), value)
	}
	q := Request{Secrets: []Secret{{"A", value}}, Dirs: []string{dir}}
	if got := find(t, q); len(got) != MaxHits {
		t.Errorf("%d hits", len(got))
	}
	q.Limit = time.Nanosecond
	in, _ := json.Marshal(q)
	if err := Main(bytes.NewReader(in), new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "the time for the search is over") {
		t.Errorf("%v", err)
	}
	for _, bad := range []string{"", "{", `{"dirs": ["/no/such"]}`} {
		if err := Main(strings.NewReader(bad), new(bytes.Buffer)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func BenchmarkContent(b *testing.B) {
	var secrets []Secret
	for i := range 20 {
		secrets = append(secrets, Secret{fmt.Sprint(i), strings.Repeat(fmt.Sprintf("%02d-secret", i), 5)})
	}
	plain, squeezed := compile(secrets)
	text := bytes.Repeat([]byte("const x = require('something'); // and so on\n"), chunk/46)
	b.SetBytes(int64(len(text)))
	thin := make([]byte, 0, len(text))
	for b.Loop() {
		plain.in(text)
		squeezed.in(squeeze(thin, text))
	}
}
