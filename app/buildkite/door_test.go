package buildkite

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"inspect/app/intake"
	"inspect/app/oidc"
	"inspect/checks/buildkite"
	"inspect/checks/buildkite/step"
	"inspect/envs/proc"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/fixtures/buildkited"
	"inspect/scheduler"
	"inspect/scheduler/secrets"
	"inspect/storage"
	"inspect/storage/seal"
	"inspect/storage/storagetest"
)

const (
	public = "https://inspect.example"
	sha    = "0123456789abcdef0123456789abcdef01234567"
)

// intakes stores wishes as the intake does, and gives them the outcome of want.
type intakes struct {
	w     *world
	real  *intake.Intake
	want  string // "started", "denied", …; empty: nobody works on it
	note  string
	calls int
}

func (i *intakes) Step(ctx context.Context, guid string, s intake.Stepped) (bool, intake.Stepped, error) {
	i.calls++
	fresh, first, err := i.real.Step(ctx, guid, s)
	if err != nil || !fresh || i.want == "" {
		return fresh, first, err
	}
	key, err := s.Key()
	if err != nil {
		return fresh, first, err
	}
	q := i.w.db.Q()
	if _, err := q.ClaimIntent(ctx, storage.ClaimIntentParams{Key: key, DeliveryGuid: guid, Kind: "pipeline", ActorLogin: "x"}); err != nil {
		return fresh, first, err
	}
	end := storage.FinishIntentParams{Key: key, Outcome: i.want, Note: i.note}
	if i.want == "started" || i.want == "duplicate" {
		end.SessionID.String, end.SessionID.Valid = i.w.session(i.w.t).ID, true
	}
	return fresh, first, q.FinishIntent(ctx, end)
}

type world struct {
	t     *testing.T
	db    *storage.DB
	sched *scheduler.Scheduler
	bk    *buildkited.Server
	web   buildkited.Pipeline
	build buildkited.Build
	clock *proc.Fake
	log   *bytes.Buffer
	door  *Door
	steps *intakes
	url   string
	told  Told
	made  int
}

type idle struct{}

func (idle) Publish(context.Context, storage.Session) (scheduler.Published, error) {
	return scheduler.Published{}, nil
}
func (idle) Report(context.Context, storage.Session) error { return nil }
func (idle) GitTokenDone(context.Context, int64)           {}
func (idle) GitToken(context.Context, int64, int64) (wire.GitToken, error) {
	return wire.GitToken{}, nil
}
func (idle) Name() string { return "idle" }
func (idle) Start(context.Context, scheduler.Attempt) (json.RawMessage, error) {
	return nil, nil
}
func (idle) Stop(context.Context, json.RawMessage) error                { return nil }
func (idle) Logs(context.Context, json.RawMessage, int) ([]byte, error) { return nil, nil }
func (idle) List(context.Context) ([]scheduler.Listed, error)           { return nil, nil }
func (idle) Forget(context.Context, json.RawMessage) error              { return nil }
func (idle) State(context.Context, json.RawMessage) (scheduler.EngineState, error) {
	return scheduler.EngineUnknown, nil
}

func newWorld(t *testing.T, proof buildkite.Proof) *world {
	t.Helper()
	w := &world{t: t, db: storagetest.New(t), log: &bytes.Buffer{}, told: Told{Conclusion: "success", Title: "3 pass", Summary: "all of it"}}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	w.clock = proc.NewFake(time.Now())
	var err error
	w.bk, err = buildkited.New(buildkited.Options{Clock: w.clock})
	must(err)
	must(w.bk.Start("127.0.0.1:0"))
	t.Cleanup(func() { _ = w.bk.Close() })
	w.web = w.bk.AddPipeline("web", "https://github.example/octocat/hello.git")
	w.build = w.bk.AddBuild("web", buildkited.Build{State: "running", Branch: "main", Commit: sha, Jobs: []buildkited.Job{{Name: "a", StepKey: "a"}, {Name: "b", StepKey: "b"}}})
	blobs, err := storage.OpenBlobs(t.Context(), "file://"+t.TempDir())
	must(err)
	key := seal.NewKey()
	w.sched, err = scheduler.New(scheduler.Options{
		DB: w.db, Blobs: blobs, Effects: idle{}, Engine: idle{}, GrantKey: ed25519.NewKeyFromSeed(make([]byte, 32)),
		Secrets: secrets.New(secrets.Options{DB: w.db, Keys: func() (*seal.Keys, error) { return seal.ParseKeys(key) }}),
	})
	must(err)
	in, err := intake.New(intake.Options{DB: w.db, Sessions: w.sched, GitHub: func(int64) intake.GitHub { return nil }})
	must(err)
	w.steps = &intakes{w: w, real: in, want: "started"}
	tokens, err := oidc.New(oidc.Options{Issuer: w.bk.URL(), Keys: w.bk.JWKS(), Audience: public, Clock: w.clock})
	must(err)
	w.door, err = New(Options{
		DB: w.db, Steps: w.steps, Jobs: w.sched, Tokens: tokens, Webhook: proof, Clock: w.clock,
		Told: func(context.Context, string) (Told, error) { return w.told, nil },
		Evidence: func(_ context.Context, to io.Writer, session string) error {
			if w.told.Conclusion == "" {
				return ErrNoEvidence
			}
			if w.told.Title == "unsearched" {
				return ErrUnsearched
			}
			tw := tar.NewWriter(to)
			if err := tw.WriteHeader(&tar.Header{Name: "manifest.json", Mode: 0o644, Size: int64(len(session))}); err != nil {
				return err
			}
			_, _ = tw.Write([]byte(session))
			return tw.Close()
		},
		SessionURL:    func(id string) string { return public + "/sessions/" + id },
		RepositoryURL: func(owner, name string) string { return "https://github.example/" + owner + "/" + name + ".git" },
		Log:           slog.New(slog.NewTextHandler(w.log, nil)), Waiting: 4,
	})
	must(err)
	server := httptest.NewServer(w.door)
	t.Cleanup(server.Close)
	w.url = server.URL
	q := w.db.Q()
	must(q.SawInstallation(t.Context(), storage.SawInstallationParams{ID: 5, Account: "octocat"}))
	must(q.SawRepository(t.Context(), storage.SawRepositoryParams{ID: 22, InstallationID: 5, Owner: "octocat", Name: "hello", DefaultBranch: "main"}))
	return w
}

// session makes one in the queue.
func (w *world) session(t testing.TB) (s storage.Session) {
	t.Helper()
	w.made++
	sp := spec.Default()
	sp.Verify = []spec.Verify{{Name: "unit", Run: "true"}}
	err := w.db.InTx(context.Background(), func(tx *storage.Tx) error {
		env, err := w.sched.EnsureEnvironment(context.Background(), tx, 22, sp, "main", sha)
		if err != nil {
			return err
		}
		s, err = w.sched.Create(context.Background(), tx, scheduler.NewSession{
			InstallationID: 5, RepositoryID: 22, IntentKey: fmt.Sprint("i", w.made), RequesterLogin: "Buildkite acme/web", Title: "x", Request: "x", Prompt: "x",
			BaseBranch: "main", BaseSHA: sha, EnvironmentID: env, Spec: sp, SpecSource: ".inspect.yml",
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (w *world) token(job int, change func(map[string]any)) string {
	c := w.bk.Claims(w.build.Jobs[job].ID, public, "organization_id", "pipeline_id", "build_id")
	if change != nil {
		change(c)
	}
	return w.bk.Token(c)
}

// do sends a request and returns status and body.
func (w *world) do(method, path, token string, body []byte, header http.Header) (int, []byte) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, bytes.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, out
}

func (w *world) ask(token string, a step.Ask) (int, step.Answer, string) {
	w.t.Helper()
	body, err := json.Marshal(a)
	if err != nil {
		w.t.Fatal(err)
	}
	status, out := w.do("POST", step.Path+"/sessions", token, body, nil)
	var answer step.Answer
	var no step.Refusal
	if err := errors.Join(json.Unmarshal(out, &answer), json.Unmarshal(out, &no)); err != nil {
		w.t.Fatalf("%d %s: %v", status, out, err)
	}
	return status, answer, no.Error
}

func TestAsk(t *testing.T) {
	w := newWorld(t, buildkite.Proof{})
	status, a, _ := w.ask(w.token(0, nil), step.Ask{Prompt: "x"})
	if status != http.StatusCreated || !a.Started || a.Session == "" || a.URL != public+"/sessions/"+a.Session || a.State.State != "queued" || a.State.Over {
		t.Fatalf("%d %+v", status, a)
	}
	status, again, _ := w.ask(w.token(0, nil), step.Ask{Prompt: "x", Once: "job"})
	if status != http.StatusOK || again.Started || again.Session != a.Session || again.Token == a.Token {
		t.Errorf("again: %d %+v", status, again)
	}
	if status, _, why := w.ask(w.token(0, nil), step.Ask{Prompt: "y"}); status != http.StatusConflict {
		t.Errorf("something else: %d %s", status, why)
	}
	if status, other, _ := w.ask(w.token(1, nil), step.Ask{Prompt: "x"}); status != http.StatusCreated || other.Session == a.Session {
		t.Errorf("another job: %d %+v", status, other)
	}
	// Tokens are kept as digests.
	var n int
	if err := w.db.SQL().QueryRow("SELECT count(*) FROM pipeline_tokens WHERE encode(hash, 'escape') LIKE '%ibs_%'").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d tokens are kept in clear, %v", n, err)
	}
	if strings.Contains(w.log.String(), a.Token) {
		t.Error("a token is in the log")
	}
}

// Whoever is refused learns nothing of why; the log has it.
func TestTokensRefused(t *testing.T) {
	w := newWorld(t, buildkite.Proof{})
	stranger, err := buildkited.New(buildkited.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := stranger.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stranger.Close() })
	body := ""
	for name, token := range map[string]string{
		"wrong issuer":            w.token(0, func(c map[string]any) { c["iss"] = "https://agent.buildkite.com" }),
		"wrong audience":          w.token(0, func(c map[string]any) { c["aud"] = "https://other.example" }),
		"wrong key":               stranger.Token(w.bk.Claims(w.build.Jobs[0].ID, public, "organization_id", "pipeline_id")),
		"algorithm none":          strings.Join(append(strings.Split(w.bk.Sign(map[string]any{"alg": "none", "kid": buildkited.KeyID}, w.bk.Claims(w.build.Jobs[0].ID, public)), ".")[:2], ""), "."),
		"expired":                 w.token(0, func(c map[string]any) { c["exp"] = w.clock.Now().Add(-time.Minute).Unix() }),
		"not yet valid":           w.token(0, func(c map[string]any) { c["nbf"] = w.clock.Now().Add(time.Minute).Unix() }),
		"missing optional claims": w.bk.Token(w.bk.Claims(w.build.Jobs[0].ID, public)),
		"nothing":                 "x",
	} {
		w.log.Reset()
		b, _ := json.Marshal(step.Ask{Prompt: "x"})
		status, out := w.do("POST", step.Path+"/sessions", token, b, nil)
		if status != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", name, status, out)
		}
		if body == "" {
			body = string(out)
		}
		if string(out) != body {
			t.Errorf("%s is told %s, others %s", name, out, body)
		}
		if !strings.Contains(w.log.String(), "why=") {
			t.Errorf("%s: the log says %q", name, w.log.String())
		}
	}
	if w.steps.calls > 0 {
		t.Error("something was stored")
	}
	if status, _ := w.do("POST", step.Path+"/sessions", "", []byte("{}"), nil); status != http.StatusUnauthorized {
		t.Errorf("without a token: %d", status)
	}
}

// A pipeline that may not is told that, and nothing of repositories or policies.
func TestRefusals(t *testing.T) {
	w := newWorld(t, buildkite.Proof{})
	w.steps.want, w.steps.note = "denied", "pipeline_repository: the pipeline is not bound to octocat/secret"
	if status, _, why := w.ask(w.token(0, nil), step.Ask{Prompt: "x"}); status != http.StatusForbidden || strings.Contains(why, "secret") {
		t.Errorf("%d %s", status, why)
	}
	w.steps.want, w.steps.note = "replied", "There is no branch `x`."
	if status, _, why := w.ask(w.token(1, nil), step.Ask{Prompt: "x"}); status != http.StatusUnprocessableEntity || why != w.steps.note {
		t.Errorf("%d %s", status, why)
	}
}

// While nobody works on it a step is told to ask again, and finds the same wish.
func TestAskAgain(t *testing.T) {
	w := newWorld(t, buildkite.Proof{})
	w.steps.want = ""
	done, token := make(chan int), w.token(0, nil)
	go func() {
		status, _, _ := w.ask(token, step.Ask{Prompt: "x"})
		done <- status
	}()
	if err := w.clock.BlockUntil(t.Context(), 1); err != nil { // the token is checked
		t.Fatal(err)
	}
	for {
		select {
		case status := <-done:
			if status != http.StatusServiceUnavailable {
				t.Errorf("%d", status)
			}
			return
		default:
			w.clock.Advance(time.Second)
		}
	}
}

func TestStateIsOneSessions(t *testing.T) {
	w := newWorld(t, buildkite.Proof{})
	_, a, _ := w.ask(w.token(0, nil), step.Ask{Prompt: "x"})
	_, b, _ := w.ask(w.token(1, nil), step.Ask{Prompt: "x"})
	path := step.Path + "/sessions/"
	get := func(session, token string) (int, step.State) {
		status, out := w.do("GET", path+session, token, nil, nil)
		var s step.State
		_ = json.Unmarshal(out, &s)
		return status, s
	}
	if status, s := get(a.Session, a.Token); status != http.StatusOK || s.State != "queued" || s.Version != a.State.Version {
		t.Errorf("%d %+v", status, s)
	}
	for name, c := range map[string][2]string{
		"another session's token": {a.Session, b.Token}, "no token": {a.Session, ""}, "no session": {"aaaaaaaaaa", a.Token}, "no id": {"..%2fx", a.Token},
		"the job's token": {a.Session, w.token(0, nil)},
	} {
		if status, _ := get(c[0], c[1]); status != http.StatusUnauthorized {
			t.Errorf("%s: %d", name, status)
		}
		if status, _ := w.do("GET", path+c[0]+"/evidence", c[1], nil, nil); status != http.StatusUnauthorized {
			t.Errorf("evidence by %s: %d", name, status)
		}
	}
	// Of one session the newest few tokens are good.
	for range maxTokens {
		w.clock.Advance(time.Second)
		w.ask(w.token(0, func(c map[string]any) { c["exp"] = w.clock.Now().Add(time.Minute).Unix() }), step.Ask{Prompt: "x"})
	}
	if status, _ := get(a.Session, a.Token); status != http.StatusUnauthorized {
		t.Errorf("an old token: %d", status)
	}
	// And until a day after its end.
	if status, _ := get(b.Session, b.Token); status != http.StatusOK {
		t.Fatalf("%d", status)
	}
	if _, err := w.db.SQL().Exec("UPDATE sessions SET state = 'delivered', finished_at = $2, reported_at = $2, pull_request = 7, check_run_id = 8, head_sha = 'abc' WHERE id = $1", b.Session, w.clock.Now()); err != nil {
		t.Fatal(err)
	}
	if status, s := get(b.Session, b.Token); status != http.StatusOK || !s.Over || s.Conclusion != "success" || s.Title != "3 pass" ||
		s.Pull != "https://github.example/octocat/hello/pull/7" || s.CheckRun != "https://github.example/octocat/hello/runs/8" {
		t.Errorf("%d %+v", status, s)
	}
	status, out := w.do("GET", path+b.Session+"/evidence", b.Token, nil, nil)
	if h, err := tar.NewReader(bytes.NewReader(out)).Next(); status != http.StatusOK || err != nil || h.Name != "manifest.json" {
		t.Errorf("evidence: %d, %v", status, err)
	}
	w.told.Conclusion = ""
	if status, _ := w.do("GET", path+b.Session+"/evidence", b.Token, nil, nil); status != http.StatusNotFound {
		t.Errorf("no evidence yet: %d", status)
	}
	w.told = Told{Conclusion: "failure", Title: "unsearched"}
	if status, out := w.do("GET", path+b.Session+"/evidence", b.Token, nil, nil); status != http.StatusForbidden || !strings.Contains(string(out), "not searched for secrets") {
		t.Errorf("evidence for people who may write: %d", status)
	}
	w.clock.Advance(tokenLife + time.Minute)
	if status, _ := get(b.Session, b.Token); status != http.StatusUnauthorized {
		t.Errorf("a day later: %d", status)
	}
}

// A question for the state is held until it is news.
func TestStateIsHeld(t *testing.T) {
	w := newWorld(t, buildkite.Proof{})
	_, a, _ := w.ask(w.token(0, nil), step.Ask{Prompt: "x"})
	done := make(chan step.State)
	go func() {
		_, out := w.do("GET", fmt.Sprintf("%s/sessions/%s?after=%d", step.Path, a.Session, a.State.Version), a.Token, nil, nil)
		var s step.State
		_ = json.Unmarshal(out, &s)
		done <- s
	}()
	for i := 0; ; i++ {
		select {
		case s := <-done:
			if s.State != "working" {
				t.Errorf("answered with %+v", s)
			}
			return
		default:
		}
		if i == 3 {
			if _, err := w.db.SQL().Exec("UPDATE sessions SET state = 'working', version = version + 1 WHERE id = $1", a.Session); err != nil {
				t.Fatal(err)
			}
		}
		w.clock.Advance(look)
	}
}

func TestAskBounds(t *testing.T) {
	for name, body := range map[string]string{
		"nothing": "", "no JSON": "<html>", "two": `{"prompt":"x"}{"prompt":"y"}`, "no wish": `{}`, "two wishes": `{"prompt":"x","issue":3}`,
		"an unknown key": `{"prompt":"x","actor":"octocat"}`, "a negative issue": `{"issue":-1}`, "once what": `{"prompt":"x","once":"ever"}`,
		"a repository that is none": `{"prompt":"x","repository":"a/b/c"}`, "a branch that is a flag": `{"prompt":"x","base":"--force"}`,
		"lines in a model": `{"prompt":"x","model":"a\nb"}`, "NUL": `{"prompt":"a\u0000b"}`, "a long prompt": `{"prompt":"` + strings.Repeat("x", step.MaxPrompt+1) + `"}`,
	} {
		if a, err := parseAsk([]byte(body)); err == nil {
			t.Errorf("%s: %+v", name, a)
		}
	}
	for _, body := range []string{`{"prompt":"x"}`, `{"issue":3,"once":"build"}`, `{"fix_build":true,"repository":"octocat/hello","budget":"2.50","timeout":"30m","harness":"codex","model":"a/b","base":"main"}`} {
		if _, err := parseAsk([]byte(body)); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
	w := newWorld(t, buildkite.Proof{})
	if status, out := w.do("POST", step.Path+"/sessions", w.token(0, nil), bytes.Repeat([]byte("x"), step.MaxAsk+1), nil); status != http.StatusBadRequest {
		t.Errorf("too much: %d %s", status, out)
	}
	for _, path := range []string{"/buildkite/v1/sessions", "/buildkite/", "/buildkite/v2/sessions"} {
		if status, _ := w.do("GET", path, "", nil, nil); status != http.StatusNotFound && status != http.StatusMethodNotAllowed {
			t.Errorf("GET %s: %d", path, status)
		}
	}
}

func FuzzAsk(f *testing.F) {
	f.Add([]byte(`{"prompt":"x"}`))
	f.Add([]byte(`{"issue":1e9,"once":"build","timeout":"30m"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		a, err := parseAsk(body)
		if err != nil {
			return
		}
		if len(a.Prompt) > step.MaxPrompt || strings.ContainsAny(a.Model+a.Base+a.Repository, "\n\x00") || a.Issue < 0 {
			t.Errorf("%+v", a)
		}
	})
}

func TestWebhook(t *testing.T) {
	w := newWorld(t, buildkite.Proof{Secrets: []string{"new-secret", "old-secret"}, SignatureOnly: true})
	body := w.bk.Payload("build.finished", "web", 1, "")
	hook := func(secret string, signed bool) buildkited.Hook {
		return buildkited.Hook{Token: secret, Signed: signed}
	}
	send := func(h http.Header, body []byte) int {
		status, _ := w.do("POST", WebhookPath, "", body, h)
		return status
	}
	stored := func() (n, jobs int) {
		for table, to := range map[string]*int{"deliveries": &n, "river_job": &jobs} {
			if err := w.db.SQL().QueryRow("SELECT count(*) FROM " + table).Scan(to); err != nil {
				t.Fatal(err)
			}
		}
		return n, jobs
	}
	now := w.clock.Now()
	for name, h := range map[string]http.Header{
		"nothing":            {"Content-Type": {"application/json"}, "X-Buildkite-Event": {"build.finished"}},
		"another secret":     hook("guess", true).Headers("build.finished", body, now),
		"the token in clear": hook("new-secret", false).Headers("build.finished", body, now),
		"a replay":           hook("new-secret", true).Headers("build.finished", body, now.Add(-6*time.Minute)),
		"the future":         hook("new-secret", true).Headers("build.finished", body, now.Add(6*time.Minute)),
		"another body's":     hook("new-secret", true).Headers("build.finished", []byte("{}"), now),
		"two signatures": func() http.Header {
			h := hook("new-secret", true).Headers("build.finished", body, now)
			h.Add("X-Buildkite-Signature", "x")
			return h
		}(),
		"a signature of words": {"Content-Type": {"application/json"}, "X-Buildkite-Event": {"build.finished"}, "X-Buildkite-Signature": {"timestamp=,signature="}},
	} {
		if status := send(h, body); status != http.StatusUnauthorized {
			t.Errorf("%s: %d", name, status)
		}
	}
	if n, jobs := stored(); n+jobs > 0 {
		t.Fatalf("%d deliveries, %d jobs", n, jobs)
	}
	for range 2 { // there is no id: the same words are one delivery
		for _, secret := range []string{"new-secret", "old-secret"} {
			if status := send(hook(secret, true).Headers("build.finished", body, now), body); status != http.StatusAccepted {
				t.Errorf("%s: %d", secret, status)
			}
		}
	}
	if n, jobs := stored(); n != 1 || jobs != 1 {
		t.Errorf("%d deliveries, %d jobs", n, jobs)
	}
	// Another state of the build is another delivery; what has no handler is
	// stored and not worked on; a name that the body does not say neither.
	w.bk.Finish("web", 1, "failed")
	after := w.bk.Payload("build.finished", "web", 1, "")
	ping := w.bk.Payload("ping", "web", 0, "")
	for _, c := range []struct {
		event string
		body  []byte
	}{{"build.finished", after}, {"ping", ping}, {"build.running", after}} {
		if status := send(hook("new-secret", true).Headers(c.event, c.body, now), c.body); status != http.StatusAccepted {
			t.Errorf("%s: %d", c.event, status)
		}
	}
	if n, jobs := stored(); n != 4 || jobs != 2 {
		t.Errorf("%d deliveries, %d jobs", n, jobs)
	}
	large := bytes.Repeat([]byte(" "), buildkite.MaxEvent+1)
	if status := send(hook("new-secret", true).Headers("build.finished", large, now), large); status != http.StatusRequestEntityTooLarge {
		t.Errorf("too large: %d", status)
	}
	h := hook("new-secret", true).Headers("build.finished", body, now)
	h.Set("Content-Type", "text/plain")
	if status := send(h, body); status != http.StatusUnsupportedMediaType {
		t.Errorf("no JSON: %d", status)
	}
}

func TestWebhookByToken(t *testing.T) {
	w := newWorld(t, buildkite.Proof{Secrets: []string{"the-token"}})
	body := w.bk.Payload("build.finished", "web", 1, "")
	for token, want := range map[string]int{"the-token": 202, "the-toke": 401, "": 401, "the-token2": 401} {
		status, _ := w.do("POST", WebhookPath, "", body, buildkited.Hook{Token: token}.Headers("build.finished", body, w.clock.Now()))
		if status != want {
			t.Errorf("%q: %d", token, status)
		}
	}
	none := newWorld(t, buildkite.Proof{})
	if status, _ := none.do("POST", WebhookPath, "", body, buildkited.Hook{Token: ""}.Headers("build.finished", body, w.clock.Now())); status != http.StatusNotFound {
		t.Errorf("without a secret: %d", status)
	}
}
