package main

import (
	"context"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"inspect"
	"inspect/app/manifest"
	"inspect/fixtures/githubd"
	"inspect/fixtures/githubd/githubdtest"
)

// browse is what a person's browser does with the page of `inspect app create`:
// open it, send its form to GitHub, and go where GitHub sends it.
func browse(t *testing.T, page string) (status int, shown string) {
	t.Helper()
	get := func(resp *http.Response, err error) (int, string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	_, body := get(http.Get(page))
	action := regexp.MustCompile(`action="([^"]+)"`).FindStringSubmatch(body)
	form := regexp.MustCompile(`name="manifest" value="([^"]+)"`).FindStringSubmatch(body)
	if action == nil || form == nil {
		t.Fatalf("the page has no form: %s", body)
	}
	return get(http.PostForm(html.UnescapeString(action[1]), url.Values{"manifest": {html.UnescapeString(form[1])}}))
}

// pages is an output that tells the first address in it.
type pages struct {
	at  chan string
	all strings.Builder
}

func (p *pages) Write(b []byte) (int, error) {
	p.all.Write(b)
	if at := regexp.MustCompile(`http://127\.0\.0\.1:\d+/[0-9a-f]{64}/`).FindString(string(b)); at != "" {
		p.at <- at
	}
	return len(b), nil
}

// An App is made of app.yml on a GitHub, kept, and looked at: well, and then with
// one thing after the other that is not as it must be.
func TestAppCreateThenDoctor(t *testing.T) {
	gh := githubdtest.New(t, githubd.Options{})
	accept := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := gh.AddRepository("octocat", "hello", githubd.Seed{Files: map[string]string{"README.md": "x\n"}})
	accept(err)
	dir := t.TempDir()
	taken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }))
	t.Cleanup(taken.Close)
	out := &pages{at: make(chan string, 1)}
	create := appCreateCommand()
	create.SetOut(out)
	create.SetArgs([]string{"--org", "octocat", "--name", "Inspect of octocat", "--webhook-url", taken.URL + "/webhooks/github", "--dir", dir, "--github-api", gh.URL(), "--github-git", gh.URL()})
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { ended <- create.ExecuteContext(ctx) }()
	var page string
	select {
	case page = <-out.at:
	case err := <-ended:
		t.Fatalf("ended early: %v", err)
	}
	if status, shown := browse(t, page); status != http.StatusOK || !strings.Contains(shown, "The App is made") || strings.Contains(shown, "made-secret") {
		t.Fatalf("%d: %s", status, shown)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"app.env", "app.pem", "webhook.secret"} {
		info, err := os.Stat(filepath.Join(dir, file))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", file, info, err)
		}
	}
	if strings.Contains(out.all.String(), "made-secret") || strings.Contains(out.all.String(), "PRIVATE KEY") || !strings.Contains(out.all.String(), "Inspect of octocat (12345) of octocat is made") {
		t.Errorf("it said:\n%s", out.all.String())
	}
	// What was redeemed is gone.
	for _, r := range gh.Requests() {
		if strings.HasPrefix(r.Path, "/app-manifests/") {
			resp, err := http.Post(gh.URL()+r.Path, "application/json", nil)
			if err != nil || resp.StatusCode != http.StatusNotFound {
				t.Errorf("the code counts twice: %v, %v", resp, err)
			}
			_ = resp.Body.Close()
		}
	}

	install, err := gh.Install("octocat", "hello")
	accept(err)
	m, err := manifest.Parse(inspect.Manifest)
	accept(err)
	doctor := func() (string, error) {
		var said strings.Builder
		cmd := doctorCommand()
		cmd.SetOut(&said)
		cmd.SetArgs([]string{
			"--github-app-id", strconv.Itoa(12345), "--github-key-file", filepath.Join(dir, "app.pem"), "--webhook-secret-file", filepath.Join(dir, "webhook.secret"),
			"--github-api", gh.URL(), "--github-git", gh.URL(), "--data", t.TempDir(),
		})
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		if err := gh.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := cmd.ExecuteContext(t.Context())
		return said.String(), err
	}
	without := func(name string) map[string]string {
		p := map[string]string{}
		for k, v := range m.Permissions {
			if k != name {
				p[k] = v
			}
		}
		return p
	}
	for _, c := range []struct {
		name   string
		change func()
		fails  bool
		want   string
	}{
		{"as it was made", func() {}, false, `(?m)^ok    permissions of the App: .*\n(.*\n)*ok    deliveries: .*\n(.*\n)*ok    installation of octocat: `},
		{"App without a permission", func() { gh.SetAppPermissions(without("checks"), m.Events) }, true, `(?m)^fail  permissions of the App: .*checks`},
		{"App without an event", func() { gh.SetAppPermissions(m.Permissions, m.Events[1:]) }, true, `(?m)^fail  permissions of the App: .*issues`},
		{"App with more", func() {
			wider := without("")
			wider["workflows"] = "write"
			gh.SetAppPermissions(wider, m.Events)
		}, false, `(?m)^warn  permissions of the App: .*nobody asked for: workflows: write`},
		{"installation that has not accepted", func() {
			gh.SetAppPermissions(m.Permissions, m.Events)
			accept(gh.SetInstallationPermissions(install, without("checks")))
		}, true, `(?m)^fail  installation of octocat: .*checks`},
		{"ruleset that the App passes over", func() {
			accept(gh.SetInstallationPermissions(install, m.Permissions))
			accept(gh.SetBypass("octocat/hello", "always"))
		}, false, `(?m)^warn  octocat/hello: protection of the default branch: .*the App is a bypass actor`},
		{"ruleset that wants nothing of a pull request", func() { accept(gh.SetBypass("octocat/hello", "never")) }, false, `(?m)^warn  octocat/hello: .*no rule keeps the App from merging`},
		{"ruleset that wants an approval", func() {
			accept(gh.AddRule("octocat/hello", githubd.Rule{Branch: "main", Type: "pull_request", Parameters: map[string]any{"required_approving_review_count": 1,
				"dismiss_stale_reviews_on_push": true, "require_code_owner_review": false, "require_last_push_approval": false, "required_review_thread_resolution": false}}))
		}, false, `(?m)^ok    octocat/hello: protection of the default branch: `},
		{"no rules", func() { accept(gh.ClearRules("octocat/hello")) }, false, `(?m)^warn  octocat/hello: .*no rule keeps the App from pushing`},
		{"webhook that goes nowhere", func() { gh.SetWebhookURL("") }, true, `(?m)^fail  webhook: `},
		{"suspended", func() { accept(gh.Suspend(install, "octocat")) }, true, `(?m)^fail  installation of octocat: .*suspended`},
	} {
		c.change()
		said, err := doctor()
		if (err != nil) != c.fails || !regexp.MustCompile(c.want).MatchString(said) {
			t.Errorf("%s: %v, want a failure: %v, and %s in\n%s", c.name, err, c.fails, c.want, said)
		}
	}
}
