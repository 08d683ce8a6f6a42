package buildkite_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"inspect/checks/buildkite"
	"inspect/envs/proc"
	"inspect/fixtures/buildkited"
)

const sha = "abcd0b72a1e580e90712cdd9eb26d3fb41cd09c8"

func world(t *testing.T, o buildkited.Options) (*buildkited.Server, *buildkite.Client) {
	t.Helper()
	s, err := buildkited.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	c, err := buildkite.New(buildkite.Options{URL: s.URL(), Token: func(context.Context) (string, error) { return s.APIToken(), nil },
		Retry: proc.Policy{Attempts: 3, First: time.Millisecond, Max: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	s.AddPipeline("web", "https://github.com/acme/web.git")
	return s, c
}

// A red build is read as a fix of it needs it, over faults of every kind.
func TestRedBuild(t *testing.T) {
	s, c := world(t, buildkited.Options{})
	log := "\x1b_bk;t=1699000000000\a$ go test ./...\r\n\x1b_bk;t=1699000000001\a\x1b[31mFAIL\x1b[0m parse\r\n"
	b := s.AddBuild("web", buildkited.Build{Commit: sha, Branch: "main", State: "failed", Jobs: []buildkited.Job{
		{Name: "lint", State: "passed"}, {Name: "test", StepKey: "test", State: "failed", ExitStatus: 1, Log: log}, {Type: "waiter", State: "waiting_failed"},
	}, Annotations: []buildkited.Annotation{{Context: "tests", Style: "error", Body: "TestParse <failed>"}}})
	job := b.Jobs[1].ID
	s.AddArtifact("web", b.Number, job, "reports/junit.xml", "<testsuite/>")
	for _, f := range []buildkited.Fault{
		{Kind: buildkited.FaultStatus, Path: "/v2/organizations/acme/pipelines/web/builds/1"},
		{Kind: buildkited.FaultCut, Path: "/v2/organizations/acme/pipelines/web/builds/1"},
		{Kind: buildkited.FaultTruncated, Path: "/v2/organizations/acme/pipelines/web/builds/1/annotations"},
		{Kind: buildkited.FaultLost, Path: "/v2/organizations/acme/pipelines/web/builds/1/jobs/*/artifacts"},
		{Kind: buildkited.FaultStatus, Status: 503, Method: "HEAD", Path: "/v2/organizations/acme/pipelines/web/builds/1/jobs/*/log"},
		{Kind: buildkited.FaultTruncated, Method: "GET", Path: "/v2/organizations/acme/pipelines/web/builds/1/jobs/*/log"},
		{Kind: buildkited.FaultStatus, Path: "/store/*"},
	} {
		s.AddFault(f)
	}
	got, err := c.Build(t.Context(), "acme", "web", 1)
	if err != nil {
		t.Fatal(err)
	}
	if got.Outcome() != buildkite.Failed || len(got.Failed()) != 1 || got.Failed()[0].ID != job || *got.Failed()[0].ExitStatus != 1 || got.Organization != "acme" || got.Fork() {
		t.Errorf("read as %+v", got)
	}
	l, err := c.LogTail(t.Context(), "acme", "web", 1, job, 1<<20)
	if err != nil || l.Text != "$ go test ./...\nFAIL parse\n" || l.Cut || l.Broken {
		t.Errorf("log: %+v, %v", l, err)
	}
	if l, err = c.LogTail(t.Context(), "acme", "web", 1, job, 50); err != nil || l.Text != "FAIL parse\n" || !l.Cut || l.Size != int64(len(log)) {
		t.Errorf("end of the log: %+v, %v", l, err)
	}
	if l, err = c.LogTail(t.Context(), "acme", "web", 1, b.Jobs[0].ID, 50); err != nil || l.Text != "" {
		t.Errorf("an empty log: %+v, %v", l, err)
	}
	notes, err := c.Annotations(t.Context(), "acme", "web", 1)
	if err != nil || len(notes) != 1 || notes[0].Text != "TestParse <failed>" || notes[0].Style != "error" {
		t.Errorf("annotations: %+v, %v", notes, err)
	}
	files, err := c.Artifacts(t.Context(), "acme", "web", 1, job)
	if err != nil || len(files) != 1 || files[0].Path != "reports/junit.xml" {
		t.Fatalf("artifacts: %+v, %v", files, err)
	}
	body, err := c.Artifact(t.Context(), "acme", "web", 1, files[0], 1<<20)
	if err != nil || string(body) != "<testsuite/>" {
		t.Errorf("artifact: %q, %v", body, err)
	}
	for _, r := range s.Requests("/store/") {
		if r.Header.Get("Authorization") != "" {
			t.Error("the store saw the token")
		}
	}
}

// Half a log that stays half is told as such.
func TestHalfALog(t *testing.T) {
	s, c := world(t, buildkited.Options{})
	b := s.AddBuild("web", buildkited.Build{Commit: sha, State: "failed", Jobs: []buildkited.Job{{State: "failed", Log: strings.Repeat("a line\n", 1000)}}})
	for _, kind := range []string{buildkited.FaultTruncated, buildkited.FaultShort} {
		s.ClearFaults()
		s.AddFault(buildkited.Fault{Kind: kind, Method: "GET", Path: "/v2/organizations/acme/pipelines/web/builds/1/jobs/*/log", Count: -1})
		l, err := c.LogTail(t.Context(), "acme", "web", 1, b.Jobs[0].ID, 1<<20)
		if err != nil || !l.Broken || len(l.Text) != 3500 {
			t.Errorf("%s: %d bytes, %+v, %v", kind, len(l.Text), l.Broken, err)
		}
	}
}

func TestBuildIsAskedForOnce(t *testing.T) {
	s, c := world(t, buildkited.Options{})
	n := buildkite.NewBuild{Commit: sha, Branch: "inspect/x", MetaData: map[string]string{"inspect:session": "s1"}, IgnoreBranchFilters: true}
	b, err := c.CreateBuild(t.Context(), "acme", "web", n)
	if err != nil || b.Number != 1 || b.Commit != sha || b.Outcome() != buildkite.Pending || !s.Build("web", 1).IgnoredFilters {
		t.Fatalf("%+v, %v", b, err)
	}
	s.AddFault(buildkited.Fault{Kind: buildkited.FaultLost, Method: "POST"})
	if _, err := c.CreateBuild(t.Context(), "acme", "web", n); !errors.Is(err, buildkite.ErrUncertain) || s.Builds("web") != 2 {
		t.Errorf("a lost answer: %v, %d builds", err, s.Builds("web"))
	}
	s.AddBuild("web", buildkited.Build{Commit: strings.Repeat("1", 40)})
	list, err := c.BuildsOf(t.Context(), "acme", "web", sha)
	if err != nil || len(list) != 2 || list[0].Number != 2 || list[0].MetaData["inspect:session"] != "s1" {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestLimit(t *testing.T) {
	clock := proc.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	s, c := world(t, buildkited.Options{Limit: 2, Clock: clock})
	s.AddBuild("web", buildkited.Build{Commit: sha})
	for range 2 {
		if _, err := c.Build(t.Context(), "acme", "web", 1); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan error, 1)
	waiting := &signalled{Clock: clock, waits: make(chan time.Duration, 9)}
	slow, err := buildkite.New(buildkite.Options{URL: s.URL(), Clock: waiting, Token: func(context.Context) (string, error) { return s.APIToken(), nil }})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, err := slow.Build(ctx, "acme", "web", 1); got <- err }()
	if d := <-waiting.waits; d != time.Minute {
		t.Errorf("waits %s, want the minute that Buildkite named", d)
	}
	clock.Advance(time.Minute)
	if err := <-got; err != nil {
		t.Errorf("after the minute: %v", err)
	}
}

// signalled tells what it is asked to wait.
type signalled struct {
	proc.Clock
	waits chan time.Duration
}

func (s *signalled) After(d time.Duration) <-chan time.Time {
	c := s.Clock.After(d)
	s.waits <- d
	return c
}

func TestWebhooks(t *testing.T) {
	s, _ := world(t, buildkited.Options{})
	b := s.AddBuild("web", buildkited.Build{Commit: sha, Branch: "main", State: "passed", Blocked: true, Jobs: []buildkited.Job{{Name: "test", State: "passed"}}})
	proof := buildkite.Proof{Secrets: []string{"old", "new"}}
	var event buildkite.Event
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = proof.Verify(r.Header, body, time.Now())
		}
		if err == nil {
			event, err = buildkite.ParseEvent(r.Header.Get(buildkite.EventHeader), body)
		}
		if err != nil {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer hook.Close()
	for _, signed := range []bool{false, true} {
		h := buildkited.Hook{URL: hook.URL, Token: "new", Signed: signed}
		code, err := s.Emit(t.Context(), h, "build.finished", "web", 1, "")
		if err != nil || code != 200 || event.Build.Outcome() != buildkite.Blocked || event.Build.ID != b.ID || event.Organization != "acme" || event.Pipeline.Slug != "web" {
			t.Errorf("signed %v: %d, %v, %+v", signed, code, err, event)
		}
		h.Token = "other"
		if code, _ := s.Emit(t.Context(), h, "build.finished", "web", 1, ""); code != 401 {
			t.Errorf("signed %v with another token: %d", signed, code)
		}
	}
	s.Finish("web", 1, "failed")
	h := buildkited.Hook{URL: hook.URL, Token: "old", Signed: true}
	if code, err := s.Emit(t.Context(), h, "build.running", "web", 1, ""); err != nil || code != 200 || event.Name != "build.running" || event.Build.State != "failed" {
		t.Errorf("newer than its name: %d, %v, %+v", code, err, event)
	}
	if code, _ := s.Emit(t.Context(), h, "job.finished", "web", 1, b.Jobs[0].ID); code != 200 || event.Job.ID != b.Jobs[0].ID {
		t.Errorf("a job: %d, %+v", code, event)
	}
	if code, _ := s.Emit(t.Context(), h, "ping", "", 0, ""); code != 200 || event.Organization != "acme" {
		t.Errorf("a ping: %d, %+v", code, event)
	}
}
