package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"gopkg.in/yaml.v3"

	"inspect/checks/buildkite/plugin"
	"inspect/checks/buildkite/step"
	"inspect/envs/proc"
	"inspect/fixtures/buildkited"
)

// asProgram has this test's program be inspect, for scripts that call it.
const asProgram = "INSPECT_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		code := run(ctx)
		stop()
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// buildkiteAgent is Buildkite's own agent.
func buildkiteAgent(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../.tools/buildkite/buildkite-agent")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run .ci/setup tests", err)
	}
	return path
}

func schemaOfPlugin(t *testing.T) *jsonschema.Resolved {
	t.Helper()
	body, err := os.ReadFile("../../checks/buildkite/plugin/plugin.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Configuration map[string]any `yaml:"configuration"`
	}
	if err := yaml.Unmarshal(body, &file); err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(file.Configuration)
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(asJSON, &s); err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return resolved
}

// known are the keys of a command step in our examples, with what their values must
// be: the agent's own dry run looks at none of it.
var known = map[string]func(any) bool{
	"label": isText, "key": func(v any) bool { s, ok := v.(string); return ok && stepKey.MatchString(s) }, "command": isText, "if": isText,
	"depends_on": func(v any) bool {
		list, ok := v.([]any)
		return ok && len(list) > 0 || isText(v)
	},
	"timeout_in_minutes": func(v any) bool { n, ok := v.(float64); return ok && n > 0 },
	"soft_fail":          func(v any) bool { _, list := v.([]any); _, yes := v.(bool); return list || yes },
	"plugins":            func(v any) bool { list, ok := v.([]any); return ok && len(list) > 0 },
}

var stepKey = regexp.MustCompile(`^[a-zA-Z0-9_:-]+$`)

func isText(v any) bool { s, ok := v.(string); return ok && s != "" }

// wrong says what Buildkite would not take of a pipeline that its agent parsed.
func wrong(pipeline map[string]any, config *jsonschema.Resolved) (out []string) {
	steps, _ := pipeline["steps"].([]any)
	if len(steps) == 0 || len(steps) > 500 {
		return []string{fmt.Sprintf("%d steps", len(steps))}
	}
	keys, uses := map[string]bool{}, 0
	for i, s := range steps {
		m, ok := s.(map[string]any)
		if !ok {
			continue // "wait"
		}
		if _, input := m["input"]; input {
			if k, _ := m["key"].(string); k != "" {
				keys[k] = true
			}
			continue
		}
		if m["command"] == "" {
			delete(m, "command") // as the agent writes a step without one
		}
		for name, v := range m {
			if check, ok := known[name]; !ok || !check(v) {
				out = append(out, fmt.Sprintf("step %d: %s: %v", i+1, name, v))
			}
		}
		if k, _ := m["key"].(string); k != "" {
			if keys[k] {
				out = append(out, "two steps with the key "+k)
			}
			keys[k] = true
		}
		plugins, _ := m["plugins"].([]any)
		if _, command := m["command"]; command == (len(plugins) > 0) {
			out = append(out, fmt.Sprintf("step %d has a command and a plugin with one, or neither", i+1))
		}
		if c, _ := m["command"].(string); strings.Contains(c, "inspect buildkite step") {
			uses++
		}
		for _, p := range plugins {
			for source, c := range p.(map[string]any) {
				if !strings.HasSuffix(source, "/inspect") {
					out = append(out, "plugin "+source)
				} else if err := config.Validate(c); err != nil {
					out = append(out, fmt.Sprintf("step %d: %v", i+1, err))
				}
				uses++
			}
		}
	}
	if uses > 1 {
		out = append(out, fmt.Sprintf("%d steps ask for a session", uses))
	}
	for i, s := range steps {
		m, _ := s.(map[string]any)
		for _, key := range dependencies(m["depends_on"]) {
			if !keys[key] {
				out = append(out, fmt.Sprintf("step %d depends on %q, which there is not", i+1, key))
			}
		}
	}
	return out
}

func dependencies(v any) (out []string) {
	switch v := v.(type) {
	case string:
		out = append(out, v)
	case []any:
		for _, d := range v {
			if m, ok := d.(map[string]any); ok {
				d = m["step"]
			}
			s, _ := d.(string)
			out = append(out, s)
		}
	}
	return out
}

// parsed has Buildkite's agent read a pipeline.
func parsed(t *testing.T, agent, text string) (map[string]any, error) {
	t.Helper()
	res, err := proc.Run(t.Context(), proc.Command{Argv: []string{agent, "pipeline", "upload", "--dry-run", "--format", "json"}, Stdin: strings.NewReader(text),
		Env: []string{"PATH=" + proc.DefaultPath, "HOME=" + t.TempDir()}})
	if err != nil {
		return nil, err
	}
	var out map[string]any
	return out, json.Unmarshal(res.Stdout, &out)
}

// Every pipeline that we show is one.
func TestExamplePipelines(t *testing.T) {
	agent, config := buildkiteAgent(t), schemaOfPlugin(t)
	texts := map[string]string{}
	for _, name := range plugin.Examples() {
		text, err := plugin.Example(name, "https://inspect.acme.example")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(text, "inspect.example") || !strings.Contains(text, "https://inspect.acme.example") {
			t.Errorf("%s does not name the server", name)
		}
		texts[name] = text
	}
	block := regexp.MustCompile("(?s)```yaml\n(steps:.*?)```")
	for _, file := range []string{"../../checks/buildkite/plugin/README.md", "../../docs/buildkite.md", "../../README.md"} {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, m := range block.FindAllSubmatch(body, -1) {
			texts[fmt.Sprintf("%s, %d", file, i+1)] = string(m[1])
		}
	}
	if len(texts) < 5 {
		t.Errorf("only %d pipelines are shown", len(texts))
	}
	for name, text := range texts {
		p, err := parsed(t, agent, text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !strings.Contains(text, "inspect") {
			t.Errorf("%s asks for nothing", name)
		}
		for _, w := range wrong(p, config) {
			if strings.HasPrefix(name, "../") && strings.Contains(w, `depends on "test"`) {
				continue // a part of a pipeline
			}
			t.Errorf("%s: %s", name, w)
		}
	}
	// What is no pipeline is seen, by the agent or by us.
	for _, text := range []string{
		"steps: [", "steps: []", "steps:\n  - command: ${NOT_SET?must be}\n",
		"steps:\n  - label: x\n", "steps:\n  - command: x\n    timeout_in_minutes: soon\n",
		"steps:\n  - {key: a b, command: inspect buildkite step}\n", "steps:\n  - {key: a, command: inspect buildkite step}\n  - {key: a, command: y}\n",
		"steps:\n  - {command: inspect buildkite step, unknown: 1}\n", "steps:\n  - {command: inspect buildkite step, depends_on: nobody}\n",
		"steps:\n  - plugins: [{./.buildkite/plugins/inspect: {server: 'https://x', fix-build: true, unknown: 1}}]\n",
		"steps:\n  - plugins: [{./.buildkite/plugins/inspect: {server: 'https://x'}}]\n",
		"steps:\n  - plugins: [{./.buildkite/plugins/inspect: {server: 'https://x', prompt: a, issue: 1}}]\n",
		"steps:\n  - plugins: [{./.buildkite/plugins/inspect: {server: 'https://x', fix-build: false}}]\n",
		"steps:\n  - plugins: [{./.buildkite/plugins/inspect: {prompt: a}}]\n",
		"steps:\n  - plugins: [{./.buildkite/plugins/inspect: {server: 'https://x', prompt: a, wait: 'yes'}}]\n",
	} {
		p, err := parsed(t, agent, text)
		if err == nil && len(wrong(p, config)) == 0 {
			t.Errorf("taken for a pipeline: %s", text)
		}
	}
}

// The plugin's table is its schema, and its schema is what the program reads.
func TestPluginReadme(t *testing.T) {
	body, err := os.ReadFile("../../checks/buildkite/plugin/README.md")
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile("../../checks/buildkite/plugin/plugin.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Configuration struct {
			Properties map[string]any `yaml:"properties"`
			Additional *bool          `yaml:"additionalProperties"`
		} `yaml:"configuration"`
	}
	if err := yaml.Unmarshal(manifest, &file); err != nil {
		t.Fatal(err)
	}
	if file.Configuration.Additional == nil || *file.Configuration.Additional {
		t.Error("the plugin's schema is open")
	}
	if len(file.Configuration.Properties) < 10 {
		t.Errorf("%d keys", len(file.Configuration.Properties))
	}
	for key := range file.Configuration.Properties {
		if !bytes.Contains(body, []byte("`"+key+"`")) {
			t.Errorf("the plugin's README does not name %s", key)
		}
		flag := buildkiteStepCommand().Flags().Lookup(key)
		if flag == nil && key != "program" {
			t.Errorf("inspect buildkite step has no --%s", key)
		}
	}
}

// stubPlane is a control plane that delivers at once.
type stubPlane struct {
	mu   sync.Mutex
	asks []step.Ask
}

func (h *stubPlane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var a step.Ask
	if r.Method != http.MethodPost || r.URL.Path != step.Path+"/sessions" || json.NewDecoder(r.Body).Decode(&a) != nil || strings.Count(r.Header.Get("Authorization"), ".") != 2 {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	h.asks = append(h.asks, a)
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(step.Answer{Session: "abc", URL: "https://inspect.example/sessions/abc", Token: "t", Started: true,
		State: step.State{Version: 1, State: "delivered", Over: true, Conclusion: "success", Title: "12 pass", Pull: "https://github.com/acme/web/pull/7"}})
}

// pipelineJob is a job that Buildkite's own agent runs, with the plugin in its repository.
type pipelineJob struct {
	t     *testing.T
	agent string
	bk    *buildkited.Server
	build buildkited.Build
	dir   string
	plane *httptest.Server
	house *stubPlane
}

func newJob(t *testing.T) *pipelineJob {
	t.Helper()
	j := &pipelineJob{t: t, agent: buildkiteAgent(t), dir: t.TempDir(), house: &stubPlane{}}
	bk, err := buildkited.New(buildkited.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := bk.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bk.Close() })
	j.plane = httptest.NewServer(j.house)
	t.Cleanup(j.plane.Close)

	repo := filepath.Join(j.dir, "repo")
	if err := plugin.Write(filepath.Join(repo, ".buildkite/plugins/inspect")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"add", "-A"}, {"commit", "-qm", "The plugin"}} {
		j.git(repo, args...)
	}
	bk.AddPipeline("web", "file://"+repo)
	j.bk = bk
	j.build = bk.AddBuild("web", buildkited.Build{Commit: strings.Repeat("a", 40), Branch: "main", State: "running", Jobs: []buildkited.Job{
		{Name: "inspect", StepKey: "inspect", State: "running"}, {Name: "test", StepKey: "test", State: "failed"},
	}})
	return j
}

func (j *pipelineJob) git(dir string, args ...string) {
	j.t.Helper()
	_, err := proc.Run(j.t.Context(), proc.Command{Argv: append([]string{"git", "-c", "user.name=Octocat", "-c", "user.email=octocat@example.com"}, args...), Dir: dir,
		Env: []string{"PATH=" + proc.DefaultPath, "HOME=" + j.dir, "GIT_CONFIG_NOSYSTEM=1"}})
	if err != nil {
		j.t.Fatal(err)
	}
}

// run is the whole job: checkout, the plugin's validation, its hook. It returns the
// log and the exit status.
func (j *pipelineJob) run(config map[string]any) (string, int) {
	j.t.Helper()
	self, err := os.Executable()
	if err != nil {
		j.t.Fatal(err)
	}
	log, status, err := j.bk.Run(j.t.Context(), buildkited.Bootstrap{
		Agent: j.agent, Dir: j.dir, Inspect: fmt.Sprintf("%s=1 exec %q", asProgram, self), Repo: filepath.Join(j.dir, "repo"), Build: j.build, Job: j.build.Jobs[0].ID,
		Plugins: []map[string]any{{"./.buildkite/plugins/inspect": config}},
	})
	if err != nil {
		j.t.Fatal(err)
	}
	return log, status
}

// The genuine agent runs the plugin: nothing of a prompt is run or expanded, and
// what is not in its schema does not start.
func TestPluginInAJob(t *testing.T) {
	j := newJob(t)
	mark := filepath.Join(j.dir, "pwned")
	prompt := "Fix it; touch " + mark + " `touch " + mark + "` $(touch " + mark + ") '\"; touch " + mark + " #\n--server http://evil ${HOME} %s \\"
	log, status := j.run(map[string]any{"server": j.plane.URL, "prompt": prompt, "wait": true, "budget": 2.5})
	if status != 0 {
		t.Fatalf("status %d\n%s", status, log)
	}
	if len(j.house.asks) != 1 || j.house.asks[0].Prompt != prompt || j.house.asks[0].Budget != "2.5" {
		t.Errorf("asked for %+v", j.house.asks)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("the prompt was run")
	}
	if !strings.Contains(log, "session abc is started") || !strings.Contains(log, "delivered (https://github.com/acme/web/pull/7)") {
		t.Errorf("log:\n%s", log)
	}
	b := j.bk.Build("web", 1)
	if len(b.Annotations) != 1 || b.Annotations[0].Style != "success" || b.MetaData["inspect:session"] != "abc" {
		t.Errorf("%+v, %v", b.Annotations, b.MetaData)
	}
	if strings.Contains(log, j.bk.AgentToken()) || regexp.MustCompile(`eyJ[A-Za-z0-9_-]+\.`).MatchString(log) {
		t.Errorf("a token is in the log:\n%s", log)
	}
	for _, r := range j.bk.Requests("/oidc/tokens") {
		var ask struct {
			Audience string
			Claims   []string
		}
		if err := json.Unmarshal(r.Body, &ask); err != nil || ask.Audience != j.plane.URL || !slices.Contains(ask.Claims, "pipeline_id") || !slices.Contains(ask.Claims, "organization_id") {
			t.Errorf("token asked for with %s", r.Body)
		}
	}
	for name, config := range map[string]map[string]any{
		"unknown key":  {"server": j.plane.URL, "prompt": "x", "push": true},
		"wrong type":   {"server": j.plane.URL, "prompt": 5},
		"nothing":      {"server": j.plane.URL},
		"no server":    {"fix-build": true},
		"two requests": {"server": j.plane.URL, "prompt": "x", "fix-build": true},
	} {
		if log, status := j.run(config); status == 0 || len(j.house.asks) != 1 {
			t.Errorf("%s: status %d, %d asks\n%s", name, status, len(j.house.asks), log)
		}
	}
	if log, status := j.run(map[string]any{"server": j.plane.URL, "prompt": "x", "program": "no such; touch " + mark}); status != 3 || !strings.Contains(log, "is not on this agent") {
		t.Errorf("a program that is not there: status %d\n%s", status, log)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("the program's name was run")
	}
}
