package buildkite

import (
	"strings"
	"testing"
)

const finished = `{"event":"build.finished","build":{"id":"f62a1b4d-10f9-4790-bc1c-e2c3a0c80983","graphql_id":"x","url":"https://api.buildkite.com/v2/organizations/acme/pipelines/web/builds/7","web_url":"https://buildkite.com/acme/web/builds/7","number":7,"state":"passed","blocked":true,"message":"m","commit":"abcd0b72a1e580e90712cdd9eb26d3fb41cd09c8","branch":"hubot:main","source":"webhook","created_at":"2026-03-01 12:00:00 UTC","finished_at":"2026-03-01 12:01:00 UTC","pull_request":{"id":5,"base":"main","repository":"git://github.com/hubot/web.git"}},"pipeline":{"id":"849411f9-9e6d-4739-a0d8-e247088e9b52","url":"https://api.buildkite.com/v2/organizations/acme/pipelines/web","slug":"web","repository":"git@github.com:acme/web.git"},"sender":{"id":"x","name":"x"}}`

func TestParseEvent(t *testing.T) {
	e, err := ParseEvent("build.finished", []byte(finished))
	if err != nil {
		t.Fatal(err)
	}
	if e.Organization != "acme" || e.Pipeline.ID != "849411f9-9e6d-4739-a0d8-e247088e9b52" || e.Build.Pipeline != e.Pipeline || e.Build.Number != 7 || e.Build.Outcome() != Blocked ||
		e.Build.PullRequest.Number != 5 || !e.Build.Fork() || e.Build.Created.IsZero() {
		t.Errorf("read as %+v", e)
	}
	e, err = ParseEvent("job.finished", []byte(`{"event":"job.finished","job":{"id":"`+job+`","state":"failed"},"build":{"id":"b"},"pipeline":{"url":"https://api.buildkite.com/v2/organizations/acme/pipelines/web"}}`))
	if err != nil || e.Job.ID != job || e.Job.State != "failed" || e.Organization != "acme" || e.Build.Organization != "acme" {
		t.Errorf("%+v, %v", e, err)
	}
	e, err = ParseEvent("ping", []byte(`{"event":"ping","organization":{"id":"o","slug":"acme"}}`))
	if err != nil || e.Organization != "acme" || e.Build.ID != "" {
		t.Errorf("%+v, %v", e, err)
	}
	for _, c := range [][2]string{{"ping", finished}, {"", `{}`}, {"ping", `{"event":"ping"`}, {"ping", `[]`}, {"ping", `null`}, {"ping", `{"event":"ping","build":{"number":"x"}}`}, {"ping", strings.Repeat(" ", MaxEvent+1)}} {
		if e, err := ParseEvent(c[0], []byte(c[1])); err == nil {
			t.Errorf("%.60s is read as %+v", c[1], e)
		}
	}
}

// Postgres takes no text that has it.
func TestNoZeroBytes(t *testing.T) {
	e, err := ParseEvent("build.finished", []byte(`{"event":"build.finished","build":{"id":"b","number":7,"commit":"a\u0000b","branch":"hubot:\u0000main","jobs":[{"type":"script","name":"\u0000unit"}]}}`))
	if err != nil || e.Build.Commit != "ab" || e.Build.Branch != "hubot:main" || e.Build.Jobs[0].Name != "unit" {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestKey(t *testing.T) {
	e, _ := ParseEvent("build.finished", []byte(finished))
	one := e.Key([]byte(finished))
	if one != e.Key([]byte(finished)) || one == e.Key([]byte(finished+" ")) {
		t.Error("keys do not tell bodies apart")
	}
	e.Build.State = "failed"
	if one == e.Key([]byte(finished)) {
		t.Error("keys do not tell states apart")
	}
}

func FuzzParseEvent(f *testing.F) {
	f.Add("build.finished", []byte(finished))
	f.Add("ping", []byte(`{"event":"ping","build":{"meta_data":{"a":[1]},"pull_request":{}}}`))
	f.Fuzz(func(t *testing.T, name string, body []byte) {
		if e, err := ParseEvent(name, body); err == nil {
			_ = e.Key(body)
			if e.Organization != "" && !Slug(e.Organization) || len(e.Build.Branch) > maxText {
				t.Errorf("%+v", e)
			}
		}
	})
}

func TestSameRepository(t *testing.T) {
	for _, s := range []string{"git@github.com:acme/web.git", "https://github.com/acme/web", "git://github.com/acme/web.git", "ssh://git@github.com/Acme/Web/", "ssh://git@github.com:22/acme/web.git", "https://user@GitHub.com/acme/web.git", "github.com:acme/web"} {
		if !SameRepository(s, "https://github.com/acme/web.git") {
			t.Errorf("%q is another repository: %q", s, Repository(s))
		}
	}
	for _, s := range []string{"", "acme/web", "https://github.com/acme/web2", "https://github.com.evil.example/acme/web", "https://github.com/acme/../acme/web", "file:///acme/web", "https://github.com/", "git@github.com:acme/web extra", "https://evil.example/github.com/acme/web", "https://github.com@evil.example/acme/web"} {
		if SameRepository(s, "https://github.com/acme/web.git") {
			t.Errorf("%q is the same repository", s)
		}
	}
	if SameRepository("", "") {
		t.Error("nothing is the same as nothing")
	}
	b := Build{Pipeline: Pipeline{Repository: "git@github.com:acme/web.git"}}
	for want, p := range map[bool]PullRequest{true: {Number: 1, Base: "main"}, false: {Number: 1, Repository: "https://github.com/acme/web"}} {
		if b.PullRequest = p; b.Fork() != want {
			t.Errorf("%+v: fork %v", p, b.Fork())
		}
	}
}
