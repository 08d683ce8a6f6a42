package collect

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, path, body string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
		t.Fatal(err)
	}
}

func call(t *testing.T, in string, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := Main(args, strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func taken(t *testing.T, out string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := Read(strings.NewReader(out), func(h Head, r io.Reader) error {
		body, err := io.ReadAll(r)
		if int64(len(body)) != h.Bytes {
			t.Errorf("%+v has %d bytes", h, len(body))
		}
		got[h.Path] = string(body) + h.Problem
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// Only what is new is taken, and of that only regular files in the directory.
func TestTake(t *testing.T) {
	dir := t.TempDir()
	at := func(p string) string { return filepath.Join(dir, p) }
	secret := filepath.Join(t.TempDir(), "secret.xml")
	write(t, secret, "secret")
	write(t, at("reports/old.xml"), "old")
	write(t, at("reports/again.xml"), "old")
	write(t, at("reports/other.txt"), "no")
	write(t, at(".git/reports/x.xml"), "git")
	before := call(t, "", List, dir, "10", "**/*.xml")
	if strings.Count(before, "\n") != 2 {
		t.Fatalf("listed %s", before)
	}
	old := time.Unix(1, 0)
	write(t, at("reports/again.xml"), "new")
	if err := os.Chtimes(at("reports/again.xml"), old, old); err != nil {
		t.Fatal(err)
	}
	write(t, at("reports/a|\n.xml"), "odd\n{}\n")
	for _, err := range []error{
		os.Symlink(secret, at("reports/link.xml")), os.Symlink("/etc", at("linked")), syscall.Mkfifo(at("reports/fifo.xml"), 0o644),
		os.Symlink(filepath.Dir(secret), at("reports/dir")), os.Truncate(at("reports/other.txt"), 0), os.Mkdir(at("reports/d.xml"), 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	write(t, at("reports/big.xml"), "")
	if err := os.Truncate(at("reports/big.xml"), MaxFileBytes+1); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"reports/again.xml": "new", "reports/a|\n.xml": "odd\n{}\n", "reports/link.xml": "is a symbolic link",
		"reports/fifo.xml": "is no regular file", "reports/big.xml": "is longer than 24 MiB",
	}
	if d := cmp.Diff(want, taken(t, call(t, before, Take, dir, "10", "**/*.xml"))); d != "" {
		t.Error(d)
	}
	if got := taken(t, call(t, before, Take, dir, "2", "**/*.xml")); got[""] != "are more than 2" {
		t.Errorf("%v", got)
	}
	if got := taken(t, call(t, "", Take, dir, "10", "linked/*")); len(got) != 0 {
		t.Errorf("outside: %v", got)
	}
	if got := call(t, "", Take, dir, "10", "nowhere/*.xml"); got != "" {
		t.Errorf("nothing: %q", got)
	}
}

func TestReadRefusesNonsense(t *testing.T) {
	for _, s := range []string{"x\n", "{}", `{"bytes":-1}` + "\n", `{"bytes":99999999999}` + "\n", strings.Repeat("x", 100<<10)} {
		if err := Read(strings.NewReader(s), func(Head, io.Reader) error { return nil }); err == nil {
			t.Errorf("%.20q was read", s)
		}
	}
}
