package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"inspect/checks/redact"
	"inspect/storage"
	"inspect/storage/seal"
	"inspect/storage/storagetest"
)

// secretsOf runs `inspect secrets` with a standard input.
func secretsOf(t *testing.T, in string, args ...string) (string, error) {
	t.Helper()
	cmd := secretsCommand()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var out bytes.Buffer
	cmd.SetIn(strings.NewReader(in))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// Over the data directory of a server that runs, from an empty one to a rotation.
func TestSecretsCommand(t *testing.T) {
	data := filepath.Join(storagetest.Dir(t), "data")
	t.Setenv("INSPECT_DATA", data)
	_, err := secretsOf(t, "", "list")
	if err == nil || !strings.Contains(err.Error(), "start `inspect serve --data "+data+"`") {
		t.Fatalf("where nothing serves: %v", err)
	}
	dirs, err := layOut(data)
	if err != nil {
		t.Fatal(err)
	}
	pg, err := storage.StartPostgres(t.Context(), filepath.Join(data, "postgres"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pg.Stop(context.Background()) })
	db, err := storage.Open(t.Context(), pg.URL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	if _, err := db.SQL().Exec(`INSERT INTO installations (id, account) VALUES (7, 'octocat');
		INSERT INTO repositories (id, installation_id, owner, name) VALUES (42, 7, 'octocat', 'hello')`); err != nil {
		t.Fatal(err)
	}
	if _, err := secretsOf(t, "", "list"); err == nil || !strings.Contains(err.Error(), "makes one when it starts") {
		t.Fatalf("without a key: %v", err)
	}
	keys, err := secretKeys("", dirs.private, newSecretsKey) // as `inspect serve` does
	if err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(dirs.private, secretsKeyFile)
	if info, err := os.Stat(keyFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}

	run := func(want, in string, args ...string) string {
		t.Helper()
		out, err := secretsOf(t, in, args...)
		if err != nil || !strings.Contains(out, want) {
			t.Fatalf("%v: said %q (%v), want %q", args, out, err, want)
		}
		return out
	}
	const canary = "canary-5f3c9a71d2"
	file := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(file, []byte("first\nsecond\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run("NPM_TOKEN of octocat/hello is set, version 1.", canary+"\n", "set", "NPM_TOKEN", "--repository", "octocat/hello")
	run("Nothing has changed.", canary, "set", "NPM_TOKEN", "--repository", "octocat/hello")
	run("CERT of all of octocat is set", "", "set", "CERT", "--owner", "octocat", "--from-file", file)
	run("OTHER of all repositories is set", "value of other\r\n", "set", "OTHER", "--all")
	vault := newVault(db, keys, nil, nil)
	value := func(name string) string {
		t.Helper()
		repo, err := db.Q().GetRepositoryRow(t.Context(), 42)
		if err != nil {
			t.Fatal(err)
		}
		got, err := vault.Values(t.Context(), db.Q(), repo, []string{name})
		if err != nil {
			t.Fatal(err)
		}
		return got.Text[name]
	}
	for name, want := range map[string]string{"NPM_TOKEN": canary, "CERT": "first\nsecond\n", "OTHER": "value of other"} {
		if got := value(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}

	for _, c := range []struct {
		in, want string
		args     []string
		usage    bool
	}{
		{"x", "fewer than 8 bytes", []string{"set", "A", "--all"}, false},
		{strings.Repeat("x", 1<<17), "longer than 65536 bytes", []string{"set", "A", "--all"}, false},
		{canary, `"a" cannot be the name`, []string{"set", "a", "--all"}, false},
		{canary, "whose secret is it?", []string{"set", "A"}, true},
		{canary, "whose secret is it?", []string{"set", "A", "--all", "--owner", "octocat"}, true},
		{canary, "accepts 1 arg(s)", []string{"set", "A", canary, "--all"}, false},
		{canary, "nothing is known of the repository octocat/none", []string{"set", "A", "--repository", "octocat/none"}, false},
		{"", "there is no such secret", []string{"remove", "A", "--all"}, false},
	} {
		out, err := secretsOf(t, c.in, c.args...)
		var usage usageError
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.As(err, &usage) != c.usage || strings.Contains(out+err.Error(), canary) {
			t.Errorf("%v: %v", c.args, err)
		}
	}
	t.Setenv("INSPECT_ALL", "true")
	if _, err := secretsOf(t, "", "remove", "OTHER"); err == nil || !strings.Contains(err.Error(), "whose secret is it?") {
		t.Errorf("the environment said whose: %v", err)
	}

	next := seal.NewKey()
	old, err := os.ReadFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	write(t, keyFile, next+"\n"+string(old))
	run("3 secrets. No other key is needed", "", "rotate")
	write(t, keyFile, next)
	if got := value("NPM_TOKEN"); got != canary { // by what has served all the time
		t.Errorf("after the rotation: %q", got)
	}
	write(t, keyFile, string(old))
	if _, err := secretsOf(t, "", "rotate"); err == nil || !strings.Contains(err.Error(), "sealed with key ") {
		t.Errorf("with the old key: %v", err)
	}
	write(t, keyFile, next)
	run("NPM_TOKEN of octocat/hello is removed.", "", "remove", "NPM_TOKEN", "--repository", "octocat/hello")
	list := strings.Join(strings.Fields(run("NAME", "", "list")), " ")
	if !strings.Contains(list, "CERT all of octocat 2 20") || !strings.Contains(list, "OTHER all repositories 3 20") || strings.Contains(list, "NPM_TOKEN") || redact.New("value of other", "first\nsecond\n").Known(list) != list {
		t.Errorf("listed %s", list)
	}
}

func TestSecretKeys(t *testing.T) {
	private, file := t.TempDir(), filepath.Join(t.TempDir(), "keys")
	write(t, file, seal.NewKey())
	from := func(file string) (string, error) {
		keys, err := secretKeys(file, private, newSecretsKey)
		if err != nil {
			return "", err
		}
		k, err := keys.keys()
		if err != nil {
			return "", err
		}
		return k.ID(), nil
	}
	made, err := from("")
	if again, _ := from(""); err != nil || again != made {
		t.Errorf("%s, then %s, %v", made, again, err)
	}
	named, err := from(file)
	if err != nil || named == made {
		t.Errorf("%s, %v", named, err)
	}
	t.Setenv(secretsKeyVar, seal.NewKey())
	if _, err := from(file); err == nil || !strings.Contains(err.Error(), "expected one of them") {
		t.Errorf("both: %v", err)
	}
	t.Setenv(secretsKeyVar, seal.NewKey())
	if id, err := from(""); err != nil || id == made || os.Getenv(secretsKeyVar) != "" {
		t.Errorf("%s, %v; the environment still has it: %v", id, err, os.Getenv(secretsKeyVar) != "")
	}
	t.Setenv(secretsKeyVar, "c0ffee")
	if _, err := from(""); err == nil || strings.Contains(err.Error(), "c0ffee") {
		t.Errorf("no key: %v", err)
	}
	if err := os.Unsetenv(secretsKeyVar); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := from(file); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key all can read: %v", err)
	}
}
