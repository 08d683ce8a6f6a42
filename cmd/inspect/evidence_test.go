package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"inspect/checks/evidence"
	"inspect/storage"
)

// One byte of one file makes the check fail and name that file, in whichever form
// the evidence is.
func TestEvidenceVerify(t *testing.T) {
	files := map[string]string{"change.patch": "diff\n", "verify-unit.out": "ok\n", "odd \n|name": "x"}
	m := evidence.Manifest{Session: "abcdefghij", Repository: "octocat/hello"}
	for _, name := range []string{"change.patch", "verify-unit.out", "odd \n|name"} {
		s, err := evidence.SumOf(strings.NewReader(files[name]))
		if err != nil {
			t.Fatal(err)
		}
		m.Files = append(m.Files, evidence.File{Name: name, SHA256: s.SHA256, Bytes: s.Bytes})
	}
	body, digest, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	asTar := func(dir string, files map[string]string) string {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		put := func(name, body string) {
			if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(body)), Format: tar.FormatPAX}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte(body)); err != nil {
				t.Fatal(err)
			}
		}
		put("manifest.json", string(body))
		put("receipt.json", `{"evidence":"`+digest+`"}`)
		for n, f := range files {
			put(n, f)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "evidence.tar")
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	beside := func(dir string, files map[string]string) string {
		for n, f := range files {
			if err := os.WriteFile(filepath.Join(dir, n), []byte(f), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		path := filepath.Join(dir, "manifest.json")
		if err := os.WriteFile(path, body, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	receipt := ""
	check := func(path string) (string, error) {
		b, closing, err := openEvidence(t.Context(), dataFlags{}, "", path)
		if err != nil {
			t.Fatal(err)
		}
		defer closing()
		if receipt != "" {
			if err := b.compareWith(receipt); err != nil {
				t.Fatal(err)
			}
		}
		var out bytes.Buffer
		err = verifyEvidence(&out, b)
		return out.String(), err
	}
	for form, write := range map[string]func(string, map[string]string) string{"tar": asTar, "beside": beside} {
		if out, err := check(write(t.TempDir(), files)); err != nil || !strings.Contains(out, "3 files are what manifest.json says") {
			t.Errorf("%s: %v %s", form, err, out)
		}
		for name := range files {
			changed := map[string]string{}
			for n, f := range files {
				changed[n] = f
			}
			changed[name] = "y" + files[name][1:]
			shown := strings.Join(strings.Fields(name), " ")
			if out, err := check(write(t.TempDir(), changed)); err != errEvidence || !strings.Contains(out, shown+" was changed") || strings.Count(out, "\n") != 1 {
				t.Errorf("%s, %q changed: %v %s", form, name, err, out)
			}
			delete(changed, name)
			if out, err := check(write(t.TempDir(), changed)); err != errEvidence || !strings.Contains(out, shown+" is missing") {
				t.Errorf("%s, %q missing: %v %s", form, name, err, out)
			}
		}
	}
	// What was proved is said: a receipt beside the evidence proves less than one from
	// elsewhere, and that one counts if both are there.
	if out, err := check(asTar(t.TempDir(), files)); err != nil || !strings.Contains(out, "receipt in the same archive") || !strings.Contains(out, "could change that as well") {
		t.Errorf("%v %s", err, out)
	}
	if out, err := check(beside(t.TempDir(), files)); err != nil || !strings.Contains(out, "there is no receipt") {
		t.Errorf("%v %s", err, out)
	}
	file := filepath.Join(t.TempDir(), "receipt.json")
	if err := os.WriteFile(file, []byte(`{"evidence":"`+digest+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, receipt = range []string{digest, "sha256:" + digest, digest[:16], file} {
		if out, err := check(asTar(t.TempDir(), files)); err != nil || !strings.Contains(out, "no byte of it or of its files was changed since it was written") {
			t.Errorf("%s: %v %s", receipt, err, out)
		}
	}
	own := digest
	// The one in the archive has to be the same.
	digest = strings.Repeat("0", 64)
	receipt = own
	if out, err := check(asTar(t.TempDir(), files)); err != errEvidence || out != "receipt.json was changed: it names another manifest\n" {
		t.Errorf("%v %s", err, out)
	}
	digest = own
	forged, err := evidence.SumOf(strings.NewReader("another manifest"))
	if err != nil {
		t.Fatal(err)
	}
	for _, receipt = range []string{forged.SHA256, forged.SHA256[:16]} {
		if out, err := check(asTar(t.TempDir(), files)); err != errEvidence || !strings.Contains(out, "manifest.json is not the one of the receipt: it has sha256:"+own) {
			t.Errorf("%s: %v %s", receipt, err, out)
		}
	}
	for _, bad := range []string{digest[:15], "nothing", filepath.Join(filepath.Dir(file), "none.json")} {
		if (&bundle{}).compareWith(bad) == nil {
			t.Errorf("%q is taken for a receipt", bad)
		}
	}
	receipt = ""
	right := body
	for at := range right {
		body = bytes.Clone(right)
		body[at] ^= 1
		if at%37 != 0 {
			continue
		}
		if out, err := check(asTar(t.TempDir(), files)); err != errEvidence || !strings.Contains(out, "manifest.json") {
			t.Fatalf("byte %d of the manifest: %v %s", at, err, out)
		}
	}
}

// What export writes is what verify takes, and what stands in the store is looked at
// byte for byte.
func TestEvidenceExport(t *testing.T) {
	s := newShelf(t)
	const id = "abcdefgh22"
	url := "file://" + t.TempDir()
	blobs, err := storage.OpenBlobs(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { blobs.Close() })
	put := func(name, body string) evidence.File {
		sum, n, err := blobs.Put(t.Context(), id, strings.NewReader(body), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		s.sql(`INSERT INTO evidence (session_id, name, sha256, bytes) VALUES ($1, $2, $3, $4)`, id, name, sum, n)
		return evidence.File{Name: name, SHA256: sum, Bytes: n}
	}
	m := evidence.Manifest{Session: id, Files: []evidence.File{put("change.patch", "diff\n"), put("verify-unit.out", strings.Repeat("ok\n", 400))}}
	body, digest, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	put("manifest.json", string(body))
	put("build-web-3.json", "{}") // came later
	s.sql(`UPDATE sessions SET receipt = jsonb_build_object('evidence', $1::text, 'branch', 'inspect/1') WHERE id = $2`, digest, id)
	file := filepath.Join(t.TempDir(), "evidence.tar")
	if _, err := s.run(evidenceCommand(), "export", id, "-o", file, "--evidence-url", url); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{id, "--evidence-url", url}, {file}, {file, "--receipt", digest}} {
		if out, err := s.run(evidenceCommand(), append([]string{"verify"}, args...)...); err != nil || !strings.Contains(out, "2 files are what manifest.json says") {
			t.Errorf("%q: %v %s", args, err, out)
		}
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"manifest.json": `"session"`, "receipt.json": "inspect/1", "change.patch": "diff\n", "verify-unit.out": "ok\n", "build-web-3.json": "{}", "SHA256SUMS": "  change.patch"} {
		changed := bytes.Clone(whole)
		changed[bytes.LastIndex(changed, []byte(text))] ^= 1
		if err := os.WriteFile(file, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := s.run(evidenceCommand(), "verify", file); !errors.Is(err, errEvidence) || !strings.Contains(out, name) {
			t.Errorf("%s changed: %v %s", name, err, out)
		}
	}
	if err := os.WriteFile(file, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := s.run(evidenceCommand(), "verify", file); !errors.Is(err, errEvidence) || !strings.Contains(out, "is missing") {
		t.Errorf("cut: %v %s", err, out)
	}
	// In the store itself.
	dir := strings.TrimPrefix(url, "file://")
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, m.Files[0].SHA256) {
			return err
		}
		return os.WriteFile(path, []byte("diFf\n"), 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := s.run(evidenceCommand(), "verify", id, "--evidence-url", url); !errors.Is(err, errEvidence) || !strings.Contains(out, "change.patch was changed") || strings.Count(out, "\n") != 1 {
		t.Errorf("%v %s", err, out)
	}
	if _, err := s.run(evidenceCommand(), "export", id, "--evidence-url", url); err == nil || !strings.Contains(err.Error(), "change.patch") {
		t.Errorf("what was changed is exported: %v", err)
	}
}

// Whatever is named as evidence is read within bounds, and waits for nobody.
func TestEvidenceThatIsNone(t *testing.T) {
	dir := t.TempDir()
	m := evidence.Manifest{Files: []evidence.File{{Name: "pipe"}, {Name: "dir"}, {Name: "link"}, {Name: "../outside"}, {Name: ""}}}
	body, _, err := m.Encode()
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(dir, "manifest.json"), body, 0o600), syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
			os.Mkdir(filepath.Join(dir, "dir"), 0o700), os.Symlink("/etc/hostname", filepath.Join(dir, "link")), os.WriteFile(filepath.Join(dir, "noise"), []byte("FAIL\n"), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"manifest.json": "pipe is missing\ndir is missing\nlink is missing\n../outside is missing\n", "noise": "the archive cannot be read"} {
		b, closing, err := openEvidence(t.Context(), dataFlags{}, "", filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		defer closing()
		var out bytes.Buffer
		if err := verifyEvidence(&out, b); !errors.Is(err, errEvidence) || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v %s", file, err, &out)
		}
	}
	if _, _, err := openEvidence(t.Context(), dataFlags{}, "", filepath.Join(dir, "dir")); err == nil {
		t.Error("a directory is taken for evidence")
	}
}
