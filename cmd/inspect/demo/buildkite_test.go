package demo

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"inspect/checks/buildkite/step"
	"inspect/fixtures/buildkited"
)

// A red build asks for its repair: a draft pull request comes of it, its check run
// waits for the pipeline's build of what was pushed, and says success when that
// has passed. Asked twice it is one session; what the pipeline is not bound to it
// does not get.
func TestRedBuildLeadsToADraft(t *testing.T) {
	const repo, audience, secret = octocat + "/piped", "https://inspect.example", "canary-buildkite-webhook-77d1"
	bk, err := buildkited.New(buildkited.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := bk.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bk.Close() })
	files := small()
	files[".inspect.yml"] += "checks: {buildkite: {builds: follow, required: true, timeout: 10m}}\n"
	policy := ""
	s := openStageWith(t, map[string]map[string]string{"piped": files, "other": small()}, func(st *story) {
		write := func(name, body string) string {
			path := filepath.Join(st.dir, name)
			if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}
		policy = write("policy.yml", "version: 1\n")
		st.o.Store = append(st.o.Store, "--policy", policy, "--buildkite-api", bk.URL(), "--buildkite-issuer", bk.URL(), "--buildkite-audience", audience,
			"--buildkite-token-file", write("buildkite.token", bk.APIToken()), "--buildkite-webhook-secret-file", write("buildkite.webhook", secret))
	})
	pipeline := bk.AddPipeline("web", s.github.URL()+"/"+repo+".git")
	// The policy counts as it is now.
	if err := os.WriteFile(policy+".new", []byte("version: 1\nbuildkite:\n  pipelines:\n    - {organization_id: "+bk.OrganizationID()+", pipeline_id: "+pipeline.ID+
		", slug: acme/web, repositories: ["+repo+"], may: [prompt, issue, fix_build], builds: follow}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(policy+".new", policy); err != nil {
		t.Fatal(err)
	}
	ctx := patienceOf(t, 3*time.Minute)
	refs, err := s.github.Refs(repo)
	if err != nil {
		t.Fatal(err)
	}
	build := bk.AddBuild("web", buildkited.Build{State: "failing", Branch: "main", Commit: refs["refs/heads/main"], Jobs: []buildkited.Job{
		{Name: "test", State: "failed", ExitStatus: 1, Command: "sh test.sh", Log: "price=10 not found\n"}, {Name: "fix", StepKey: "fix", State: "running"}, {Name: "greedy", State: "running"},
	}})
	hooks := "http://" + s.serve.argv[slices.Index(s.serve.argv, "--listen-hooks")+1]
	call := func(method, path, token string, body any, into any) (int, []byte) {
		t.Helper()
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(ctx, method, hooks+path, bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		out, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if into != nil {
			_ = json.Unmarshal(out, into)
		}
		return resp.StatusCode, out
	}
	token := func(job int) string {
		return bk.Token(bk.Claims(build.Jobs[job].ID, audience, "organization_id", "pipeline_id", "build_id"))
	}
	var a step.Answer
	err = await(ctx, "no session was started", nil, func() (bool, error) {
		status, out := call("POST", step.Path+"/sessions", token(1), step.Ask{FixBuild: true}, &a)
		if status != http.StatusCreated && status != http.StatusOK && status != http.StatusServiceUnavailable {
			t.Fatalf("%d %s", status, out)
		}
		return status != http.StatusServiceUnavailable, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var again step.Answer
	if status, out := call("POST", step.Path+"/sessions", token(1), step.Ask{FixBuild: true}, &again); status != http.StatusOK || again.Session != a.Session || again.Started {
		t.Errorf("asked twice: %d %s", status, out)
	}
	if status, out := call("POST", step.Path+"/sessions", token(2), step.Ask{Prompt: "x", Repository: octocat + "/other"}, nil); status != http.StatusForbidden {
		t.Errorf("another repository: %d %s", status, out)
	}
	state := a.State
	for !state.Over {
		if status, out := call("GET", step.Path+"/sessions/"+a.Session+"?after="+jsonOf(t, state.Version), a.Token, nil, &state); status != http.StatusOK {
			t.Fatalf("%d %s", status, out)
		}
	}
	if state.State != "delivered" || state.Pull == "" || state.SHA == "" || state.Conclusion != "neutral" { // the build is waited for
		t.Fatalf("%+v", state)
	}
	pulls := pullsOf(t, s.github, "piped")
	if len(pulls) != 1 || !pulls[0].Draft || pulls[0].HeadSHA != state.SHA {
		t.Fatalf("%+v", pulls)
	}
	run := func() (status, conclusion, summary string) {
		runs, err := s.github.CheckRuns(repo)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range runs {
			if r.HeadSHA == state.SHA && r.Name == "inspect" {
				return r.Status, r.Conclusion, r.Summary
			}
		}
		return "", "", ""
	}
	if status, conclusion, _ := run(); status != "in_progress" || conclusion != "" {
		t.Errorf("before the build the check run is %s %s", status, conclusion)
	}
	names := []string{}
	_, out := call("GET", step.Path+"/sessions/"+a.Session+"/evidence", a.Token, nil, nil)
	for r := tar.NewReader(bytes.NewReader(out)); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		names = append(names, h.Name)
	}
	for _, want := range []string{"manifest.json", "receipt.json", "context.json"} {
		if !slices.Contains(names, want) {
			t.Errorf("the evidence lacks %s: %v", want, names)
		}
	}
	// The pipeline builds what was pushed, and a webhook tells of it.
	green := bk.AddBuild("web", buildkited.Build{State: "passed", Branch: state.Branch, Commit: state.SHA, Jobs: []buildkited.Job{{Name: "test", State: "passed"}}})
	hook := buildkited.Hook{URL: hooks + "/buildkite/webhook", Token: secret, Signed: true}
	if status, err := bk.Emit(ctx, hook, "build.finished", "web", green.Number, ""); err != nil || status != http.StatusAccepted {
		t.Fatalf("%d, %v", status, err)
	}
	err = await(ctx, "the check run does not end", nil, func() (bool, error) {
		status, _, _ := run()
		return status == "completed", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, conclusion, summary := run(); conclusion != "success" || !strings.Contains(summary, "acme/web") {
		t.Errorf("%s: %s", conclusion, summary)
	}
	onlyAllowed(t, s.github)
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
