package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"inspect/storage"
	"inspect/storage/storagetest"
)

func TestNodeAdd(t *testing.T) {
	url, data := storagetest.URL(t), t.TempDir()
	db, err := storage.OpenMigrated(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	run := func(args ...string) (string, error) {
		cmd := nodeCommand()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(append([]string{"add", "--postgres-url", url, "--data", data}, args...))
		err := cmd.ExecuteContext(context.Background())
		return out.String(), err
	}
	if _, err := run("node-1"); err == nil || !strings.Contains(err.Error(), "the account that started it") {
		t.Errorf("without a key: %v", err)
	}
	private := filepath.Join(data, "private")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	key, err := grantKey(private)
	if err != nil {
		t.Fatal(err)
	}

	out, err := run("node-1", "--control", "https://inspect.example")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--name node-1 ", "--grant-key " + hex.EncodeToString(key.Public().(ed25519.PublicKey)), "--owner " + ownerOf(data), "--control https://inspect.example "} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in:\n%s", want, out)
		}
	}
	known := func(token string) string {
		sum := sha256.Sum256([]byte(token))
		name, err := db.Q().NodeByToken(t.Context(), sum[:])
		if err != nil && !storage.IsMissing(err) {
			t.Fatal(err)
		}
		return name
	}
	first := regexp.MustCompile(`(?m)^    ([0-9a-f]{64})$`).FindStringSubmatch(out)
	if first == nil || known(first[1]) != "node-1" {
		t.Fatalf("the token is not the node's:\n%s", out)
	}

	file := filepath.Join(t.TempDir(), "token")
	if _, err := run("node-1", "--token-file", file); err == nil || !strings.Contains(err.Error(), "--replace") || known(first[1]) != "node-1" {
		t.Errorf("a name that is taken: %v", err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a token that counts for nothing was written")
	}
	out, err = run("node-1", "--token-file", file, "--replace")
	if err != nil {
		t.Fatal(err)
	}
	token, err := readSecret(file, "the token")
	if err != nil || known(token) != "node-1" || known(first[1]) != "" {
		t.Errorf("the token was not replaced: %v", err)
	}
	if strings.Contains(out, token) {
		t.Error("it is printed, too")
	}
	// A file that is there is not written over, and the node keeps its token.
	if _, err := run("node-1", "--token-file", file, "--replace"); err == nil || known(token) != "node-1" {
		t.Errorf("a file that is there: %v", err)
	}
	for _, bad := range []string{"Node", "a b", "", "-x", strings.Repeat("n", 64)} {
		if _, err := run("--", bad); err == nil {
			t.Errorf("the name %q was taken", bad)
		}
	}
	if _, err := run("node-2", "--control", "http://10.0.0.1:7462"); err == nil {
		t.Error("an address in clear was taken")
	}
}
