package intake

import (
	"strings"
	"testing"

	"inspect/checks/redact"
	"inspect/scheduler/secrets"
)

const specWithSecret = goodSpec + "egress: [{host: npm.internal.example, header_from: NPM_TOKEN}]\n"

func TestMissingSecretIsTold(t *testing.T) {
	w := setup(t, func(o *Options) { o.Prepare = 1 })
	w.gh.files[".inspect.yml"] = specWithSecret
	d := w.deliver("issue_comment", body(commented("/inspect fix it")))
	const words = "secret NPM_TOKEN is not set: `inspect secrets set NPM_TOKEN --repository octocat/hello`"
	if reply := w.oneReply(); !strings.Contains(reply, "No session was started: "+words) || d.Status != done {
		t.Errorf("status %s, reply %s", d.Status, reply)
	}
	if n := len(w.sessions()) + w.number("SELECT count(*) FROM environments"); n != 0 {
		t.Error("something was started")
	}
	list := `,"repositories":[{"id":22,"full_name":"octocat/hello"}]`
	if d := w.deliver("installation", event("created", list)); d.Status != done || !strings.HasSuffix(d.Note, "0 environments prepared") || !strings.Contains(w.log.String(), "NPM_TOKEN is not set") {
		t.Errorf("%s: %s, logged %s", d.Status, d.Note, w.log)
	}

	if _, err := w.secrets.Set(t.Context(), secrets.All, "NPM_TOKEN", []byte("a value of it"), "monalisa"); err != nil {
		t.Fatal(err)
	}
	again := commented("/inspect fix it")
	at(again, "comment")["id"] = 502
	w.deliver("issue_comment", body(again))
	w.one()
}

func TestPastedSecretReachesNobody(t *testing.T) {
	const canary = "canary-5f3c9a71d2"
	w := setup(t, func(o *Options) { o.Redactor = redact.New(canary) })
	c := commented("/inspect use " + canary + " to fix it")
	at(c, "issue")["body"] = "it says " + canary
	w.deliver("issue_comment", body(c))
	if s := w.one(); strings.Contains(s.Request+s.Prompt, canary) || !strings.Contains(s.Prompt, "it says "+redact.Mark) || !strings.Contains(s.Request, redact.Mark) {
		t.Errorf("request %q, prompt %q", s.Request, s.Prompt)
	}
}
