package publish

import (
	"bytes"
	"context"
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"inspect/app/github"
	"inspect/envs/wire"
	"inspect/fixtures/githubd"
)

func TestPushCommand(t *testing.T) {
	tr := &trusted{dir: "/var/lib/inspect/trusted.git"}
	token := "ghs_" + strings.Repeat("a1B2", 9)
	cmd, secret, err := tr.pushCommand("https://github.com/octocat/hello.git", token, shaA, "inspect/1-x", shaB, []string{"HTTPS_PROXY=http://proxy:3128"})
	if err != nil {
		t.Fatal(err)
	}
	if dec, _ := base64.StdEncoding.DecodeString(secret); string(dec) != "x-access-token:"+token {
		t.Errorf("the secret is %q", dec)
	}
	argv := strings.Join(cmd.Argv, " ")
	if strings.Contains(argv, token) || strings.Contains(argv, secret) {
		t.Errorf("the token is in the arguments: %s", argv)
	}
	for _, want := range []string{"--porcelain", "--force-with-lease=refs/heads/inspect/1-x:" + shaB, shaA + ":refs/heads/inspect/1-x"} {
		if !slices.Contains(cmd.Argv, want) {
			t.Errorf("the arguments %q lack %s", cmd.Argv, want)
		}
	}
	if strings.Contains(argv, "--delete") || strings.Contains(argv, "+"+shaA) || slices.Contains(cmd.Argv, "--force") || slices.Contains(cmd.Argv, "-f") {
		t.Errorf("the arguments force or delete: %q", cmd.Argv)
	}
	for _, want := range []string{
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0", "GIT_TRACE=0", "HTTPS_PROXY=http://proxy:3128",
		"GIT_DIR=/var/lib/inspect/trusted.git",
	} {
		if !slices.Contains(cmd.Env, want) {
			t.Errorf("the environment lacks %s", want)
		}
	}
	config := map[string]string{}
	for _, e := range cmd.Env {
		if n, key, ok := strings.Cut(strings.TrimPrefix(e, "GIT_CONFIG_KEY_"), "="); ok && strings.HasPrefix(e, "GIT_CONFIG_KEY_") {
			for _, v := range cmd.Env {
				if value, ok := strings.CutPrefix(v, "GIT_CONFIG_VALUE_"+n+"="); ok {
					config[key] = value
				}
			}
		}
	}
	for key, want := range map[string]string{
		"http.https://github.com/.extraHeader": "Authorization: Basic " + secret,
		"http.followRedirects":                 "false", "credential.helper": "", "core.hooksPath": "/dev/null",
		"protocol.allow": "never", "protocol.https.allow": "always",
	} {
		if got, set := config[key]; !set || got != want {
			t.Errorf("%s is %q (%v), want %q", key, got, set, want)
		}
	}
	for _, remote := range []string{"https://x:y@github.com/a/b.git", "ssh://github.com/a/b", "file:///etc", "/etc", "git@github.com:a/b", "ext::sh -c x", ""} {
		if _, _, err := tr.pushCommand(remote, token, shaA, "inspect/1-x", "", nil); err == nil {
			t.Errorf("%q is taken for a remote", remote)
		}
	}
}

// Where there is no forge, and only there, a repository of this machine is
// pushed to, and no credential is anywhere.
func TestPushCommandWithoutForge(t *testing.T) {
	tr := &trusted{dir: "/var/lib/inspect/trusted.git", local: true}
	cmd, secret, err := tr.pushCommand("file:///srv/a%20b/1.git", "", shaA, "inspect/x", "", nil)
	if err != nil || secret != "" {
		t.Fatalf("%q %v", secret, err)
	}
	if env := strings.Join(cmd.Env, "\n"); strings.Contains(env, "Authorization") || !strings.Contains(env, "=protocol.file.allow") {
		t.Errorf("the environment is %s", env)
	}
	for _, remote := range []string{"https://github.com/octocat/hello.git", "file://host/x", "file:x", "/etc", "ext::sh -c x", ""} {
		if _, _, err := tr.pushCommand(remote, "", shaA, "inspect/x", "", nil); err == nil {
			t.Errorf("%q is taken for a repository of this machine", remote)
		}
	}
}

func TestReadPush(t *testing.T) {
	const ref = "refs/heads/inspect/1-x"
	line := func(flag, summary string) string {
		return "To https://github.com/octocat/hello.git\n" + flag + "\t" + shaA + ":" + ref + "\t" + summary + "\nDone\n"
	}
	for name, c := range map[string]struct {
		stdout, stderr string
		code           int
		end            pushEnd
		words          string
	}{
		"new branch":   {line("*", "[new branch]"), "", 0, pushed, ""},
		"fast-forward": {line(" ", "a..b"), "", 0, pushed, ""},
		"forced":       {line("+", "a...b (forced update)"), "", 0, pushed, ""},
		"up to date":   {line("=", "[up to date]"), "", 0, pushed, ""},
		"stale":        {line("!", "[rejected] (stale info)"), "error: failed to push some refs", 1, pushStale, "somebody else"},
		"hook": {line("!", "[remote rejected] (pre-receive hook declined)"),
			"remote: error: GH013: Repository rule violations found for refs/heads/x.        \nremote: \nremote: - Commits must have verified signatures.\nerror: failed", 1,
			pushRefused, "GH013: Repository rule violations found for refs/heads/x. - Commits must have verified signatures. (pre-receive hook declined)"},
		"workflow": {line("!", "[remote rejected] (refusing to allow a GitHub App to create or update workflow `.github/workflows/x.yml` without `workflows` permission)"), "", 1,
			pushRefused, "without `workflows` permission"},
		"another ref's line":    {"To x\n*\t" + shaA + ":refs/heads/other\t[new branch]\nDone\n", "", 0, pushUnclear, ""},
		"401":                   {"", "fatal: Authentication failed for 'https://github.com/octocat/hello.git/'", 128, pushDenied, "Authentication failed"},
		"403":                   {"", "remote: Write access to repository not granted.\nfatal: unable to access 'https://github.com/x/': The requested URL returned error: 403", 128, pushDenied, "Write access to repository not granted."},
		"archived":              {"", "remote: This repository was archived so it is read-only.\nfatal: unable to access 'https://github.com/x/': The requested URL returned error: 403", 128, pushGone, "archived"},
		"404":                   {"", "remote: Repository not found.\nfatal: repository 'https://github.com/x/' not found", 128, pushGone, "not found"},
		"502":                   {"", "fatal: unable to access 'https://github.com/x/': The requested URL returned error: 502", 128, pushUnclear, "502"},
		"no network":            {"", "fatal: unable to access 'https://github.com/x/': Could not resolve host: github.com", 128, pushUnclear, "resolve"},
		"killed":                {"", "", 137, pushUnclear, ""},
		"a success that failed": {line("*", "[new branch]"), "fatal: the remote end hung up unexpectedly", 1, pushUnclear, "hung up"},
	} {
		t.Run(name, func(t *testing.T) {
			end, words := readPush(c.stdout, c.stderr, ref, c.code)
			if end != c.end || !strings.Contains(words, c.words) {
				t.Errorf("%d %q, want %d %q", end, words, c.end, c.words)
			}
		})
	}
}

// watched tells of the token of a push.
type watched struct {
	*github.Client
	token *string
}

func (c watched) PushToken(ctx context.Context, id int64) (wire.GitToken, error) {
	t, err := c.Client.PushToken(ctx, id)
	*c.token = t.Token
	return t, err
}

// While a push is under way its token stands on no command line, and in the
// environment of git alone; when it has ended the token is good for nothing,
// also if the push was refused.
func TestTokenOfAPush(t *testing.T) {
	w := newWorld(t)
	var token string
	w.opts.GitHub = func(id int64) GitHub { return watched{w.app.Installation(id), &token} }
	w.publisher()
	held, err := w.server.AddFault(githubd.Fault{Kind: githubd.FaultHold, Path: "/octocat/hello.git/info/refs"})
	w.ok(err)
	s := w.session(w.fixed(), nil)
	done := make(chan error, 1)
	go func() { _, err := w.p.Publish(context.Background(), s); done <- err }()
	select {
	case <-held.Hit():
	case err := <-done:
		t.Fatalf("nothing was pushed: %v", err)
	}
	secret := base64.StdEncoding.EncodeToString([]byte("x-access-token:" + token))
	processes, err := filepath.Glob("/proc/[0-9]*")
	w.ok(err)
	seen := 0
	for _, p := range processes {
		line, _ := os.ReadFile(p + "/cmdline") // it may have ended
		if bytes.Contains(line, []byte(token)) || bytes.Contains(line, []byte(secret)) {
			t.Errorf("a token is on a command line: %.40q", line)
		}
		env, _ := os.ReadFile(p + "/environ")
		if !bytes.Contains(env, []byte(token)) && !bytes.Contains(env, []byte(secret)) {
			continue
		}
		seen++
		if exe, _ := os.Readlink(p + "/exe"); !strings.HasPrefix(filepath.Base(exe), "git") {
			t.Errorf("a token is in the environment of %s", exe)
		}
	}
	if seen == 0 {
		t.Error("git does not run; what was looked at?")
	}
	held.Release()
	w.ok(<-done)
	works := func() bool {
		req, err := http.NewRequest("GET", w.server.URL()+"/installation/repositories", nil)
		w.ok(err)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		w.ok(err)
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}
	if works() {
		t.Error("the token is good after the push")
	}
	for _, q := range w.server.Requests() {
		if strings.Contains(q.Path+q.Query, token) {
			t.Errorf("a token is in the address %s", q.Path)
		}
	}

	_, err = w.server.AddFault(githubd.Fault{Kind: githubd.FaultStatus, Status: 403, Path: "/octocat/hello.git/**", Count: -1})
	w.ok(err)
	token = ""
	w.refused(w.session(w.fixed(), nil), ReasonPushRefused)
	if token == "" || works() {
		t.Error("the token is good after a push that was refused")
	}
}
