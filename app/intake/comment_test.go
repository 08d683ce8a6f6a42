package intake

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"inspect/app/github"
	"inspect/envs/spec"
)

func TestCommandStartsSession(t *testing.T) {
	w := setup(t, nil)
	d := w.deliver("issue_comment", body(commented("Thanks!\n\n/inspect --timeout 10m --budget 2.50 --base release/1 fix the sum\nand its test")))
	if d.Status != "done" || d.Note != "started" {
		t.Fatalf("delivery %s: %s; replies %q", d.Status, d.Note, w.gh.replies())
	}
	s := w.one()
	if s.Request != "fix the sum\nand its test" || s.BaseBranch != "release/1" || s.BaseSha != otherHead || s.IntentKey != "comment:501:0" {
		t.Errorf("session %+v", s)
	}
	if !strings.Contains(s.Prompt, "fix the sum\nand its test") {
		t.Errorf("the request is not in the prompt")
	}
	var sp spec.Spec
	if err := json.Unmarshal(s.Spec, &sp); err != nil || sp.Limits.Timeout != 10*time.Minute || sp.Limits.Budget != spec.Dollar*5/2 || s.Budget != int64(spec.Dollar*5/2) {
		t.Errorf("timeout %v, budget %v and %v, %v", sp.Limits.Timeout, sp.Limits.Budget, s.Budget, err)
	}
	// The base is a release branch, but instructions are the default branch's.
	if s.InstructionsSha == "" || s.InstructionsSha == s.BaseSha {
		t.Errorf("instructions of %q, base %q", s.InstructionsSha, s.BaseSha)
	}
	if w.gh.count("ReactComment 501 eyes") != 1 || w.gh.count("Comments") != 0 || len(w.gh.replies()) != 0 {
		t.Errorf("calls %q", w.gh.calls)
	}
}

func TestTimeoutIsBoundedByTheRepository(t *testing.T) {
	w := setup(t, nil)
	w.gh.files[".inspect.yml"] = goodSpec + "limits: {timeout: 5m}\n"
	w.deliver("issue_comment", body(commented("/inspect --timeout 20h --budget 1000 fix it")))
	var sp spec.Spec
	if err := json.Unmarshal(w.one().Spec, &sp); err != nil || sp.Limits.Timeout != 5*time.Minute || sp.Limits.Budget != spec.Default().Limits.Budget {
		t.Errorf("timeout %v, budget %v, %v", sp.Limits.Timeout, sp.Limits.Budget, err)
	}
}

func TestCommentIgnored(t *testing.T) {
	w := setup(t, nil)
	tests := map[string]func(object){
		"no command":         func(o object) { at(o, "comment")["body"] = "hello" },
		"quoted":             func(o object) { at(o, "comment")["body"] = "> /inspect stop" },
		"edited":             func(o object) { o["action"] = "edited" },
		"deleted":            func(o object) { o["action"] = "deleted" },
		"no body":            func(o object) { at(o, "comment")["body"] = nil },
		"no comment":         func(o object) { o["comment"] = nil },
		"no issue":           func(o object) { o["issue"] = nil },
		"sent by another":    func(o object) { at(o, "comment")["user"] = user(hubot, "hubot") },
		"author gone":        func(o object) { at(o, "comment")["user"] = nil },
		"our own":            func(o object) { at(o, "comment")["performed_via_github_app"] = object{"id": appID} },
		"command in a title": func(o object) { at(o, "issue")["title"] = "/inspect stop"; at(o, "comment")["body"] = "" },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			w := w.fresh(t)
			o := commented("/inspect fix it")
			change(o)
			if d := w.deliver("issue_comment", body(o)); d.Status != "ignored" {
				t.Errorf("delivery %s: %s", d.Status, d.Note)
			}
			if len(w.gh.calls) != 0 || len(w.sessions()) != 0 {
				t.Errorf("calls %q", w.gh.calls)
			}
		})
	}
}

func TestCommandSilence(t *testing.T) {
	w := setup(t, nil)
	for name, text := range map[string]string{"request": "/inspect fix it", "mistake": "/inspect stpo", "bad flag": "/inspect --x y", "stop": "/inspect stop", "retry": "/inspect retry"} {
		for who, id := range map[string]int64{"hubot": hubot, "monalisa": monalisa, "hubot[bot]": bot} {
			t.Run(name+" by "+who, func(t *testing.T) {
				w := w.fresh(t)
				w.deliver("issue_comment", body(by(commented(text), id, who)))
				if len(w.gh.replies()) != 0 || w.gh.count("React") != 0 || len(w.sessions()) != 0 {
					t.Errorf("calls %q", w.gh.calls)
				}
				if i := w.intent("comment:501:0"); i.Outcome != outcomeDenied {
					t.Errorf("intent %s: %s", i.Outcome, i.Note)
				}
			})
		}
	}
}

func TestCommandReplies(t *testing.T) {
	w := setup(t, nil)
	tests := []struct{ name, text, want string }{
		{"near miss", "/inspect stpo", "`/inspect stop`"},
		{"unknown flag", "/inspect --frob x fix it", "no flag `--frob`"},
		{"model", "/inspect --model a/b fix it", "has configured none"},
		{"harness", "/inspect --harness codex fix it", "needs a model"},
		{"no harness", "/inspect --harness emacs fix it", "the harnesses are `opencode`"},
		{"no branch", "/inspect --base nope fix it", "no branch `nope`"},
		{"retry", "/inspect retry", "no session here"},
		{"rewind", "/inspect rewind 3", "no session here"},
		{"fork", "/inspect fork --harness codex", "no session here"},
		{"head of an issue", "/inspect --head 0123456 fix it", "on pull requests only"},
		{"refresh", "/inspect refresh", "is built anew"},
		{"doctor", "/inspect doctor", "it is valid"},
		{"stop without a session", "/inspect stop", "no session here"},
		{"status without a session", "/inspect status", "no session here"},
		{"help", "/inspect help", "| `/inspect stop` |"},
		{"several", "/inspect refresh\n/inspect stop", "`inspect env status` shows how it stands.\n\nThere is no session here"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := w.fresh(t)
			guid := w.store("issue_comment", body(commented(tt.text)))
			for range 3 {
				if err := w.in.Deliver(t.Context(), guid); err != nil {
					t.Fatal(err)
				}
			}
			if words := w.oneReply(); !strings.Contains(words, tt.want) {
				t.Errorf("the reply lacks %q:\n%s", tt.want, words)
			}
			if len(w.sessions()) != 0 {
				t.Error("a session was started")
			}
			if n := w.gh.count("Permission"); n != 1 {
				t.Errorf("%d permissions were asked", n)
			}
		})
	}
}

func TestStop(t *testing.T) {
	w := setup(t, nil)
	w.deliver("issues", body(labeled()))
	s := w.one()
	w.deliver("issue_comment", body(commented("/inspect stop")))
	var who string
	if err := w.db.SQL().QueryRow("SELECT stop_by FROM sessions WHERE id = $1", s.ID).Scan(&who); err != nil || who != "octocat" {
		t.Errorf("stopped by %q, %v", who, err)
	}
	if len(w.gh.replies()) != 0 || w.gh.count("ReactComment") != 1 {
		t.Errorf("calls %q", w.gh.calls)
	}
	if i := w.intent("comment:501:0"); i.SessionID.String != s.ID {
		t.Errorf("intent %+v", i)
	}
	w.set("stopped")
	again := commented("/inspect stop")
	at(again, "comment")["id"] = 502
	w.deliver("issue_comment", body(again))
	if words := w.oneReply(); !strings.Contains(words, "has ended already (`stopped`)") {
		t.Errorf("reply %q", words)
	}
}

func TestReadersMayAsk(t *testing.T) {
	w := setup(t, nil)
	w.deliver("issues", body(labeled()))
	var before, after int
	count := func(n *int) {
		if err := w.db.SQL().QueryRow("SELECT count(*) FROM river_job WHERE kind = 'reconcile'").Scan(n); err != nil {
			t.Fatal(err)
		}
	}
	count(&before)
	w.deliver("issue_comment", body(by(commented("/inspect status"), hubot, "hubot")))
	count(&after)
	if len(w.gh.replies()) != 0 || w.gh.count("ReactComment") != 1 || after != before+1 {
		t.Errorf("%d looks at the session, calls %q", after-before, w.gh.calls)
	}
	for i := range 5 { // a stranger cannot make us write again and again
		o := by(commented("/inspect help"), hubot, "hubot")
		at(o, "comment")["id"] = 600 + i
		w.deliver("issue_comment", body(o))
	}
	w.oneReply()
}

func TestCommandRetriedKeepsWhatIsDone(t *testing.T) {
	w := setup(t, nil)
	guid := w.store("issue_comment", body(commented("/inspect stop\n\n/inspect fix it")))
	w.gh.fail["File"] = github.ErrUnavailable
	if err := w.in.Deliver(t.Context(), guid); err == nil {
		t.Fatal("no error")
	}
	if len(w.gh.replies()) != 0 {
		t.Error("the reply came before all was done")
	}
	delete(w.gh.fail, "File")
	if err := w.in.Deliver(t.Context(), guid); err != nil {
		t.Fatal(err)
	}
	w.one()
	if words := w.oneReply(); !strings.Contains(words, "no session here") {
		t.Errorf("reply %q", words)
	}
}

// Of bots only those of Apps that the operator names may act; GitHub says which
// App it is, not the login.
func TestBotsOfAllowedApps(t *testing.T) {
	w := setup(t, func(o *Options) { o.AllowedApps = []int64{70, appID} })
	for name, c := range map[string]struct {
		event   string
		payload object
		apps    map[string]int64
		starts  bool
	}{
		"comment through it":          {"issue_comment", through(by(commented("/inspect fix it"), bot, "helper[bot]"), 70), nil, true},
		"comment through another":     {"issue_comment", through(by(commented("/inspect fix it"), bot, "helper[bot]"), 71), map[string]int64{"helper": 70}, false},
		"comment through none, known": {"issue_comment", by(commented("/inspect fix it"), bot, "helper[bot]"), map[string]int64{"helper": 70}, true},
		"label":                       {"issues", by(labeled(), bot, "helper[bot]"), map[string]int64{"helper": 70}, true},
		"label by another":            {"issues", by(labeled(), bot, "helper[bot]"), map[string]int64{"helper": 71}, false},
		"label by nobody known":       {"issues", by(labeled(), bot, "helper[bot]"), nil, false},
		"label by ourselves":          {"issues", by(labeled(), bot, "inspect[bot]"), map[string]int64{"inspect": appID}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.fresh(t)
			w.gh.apps = c.apps
			w.deliver(c.event, body(c.payload))
			if got := len(w.sessions()) == 1; got != c.starts {
				t.Errorf("started: %v; calls %q", got, w.gh.calls)
			}
		})
	}
}

func through(o object, app int64) object {
	at(o, "comment")["performed_via_github_app"] = object{"id": app}
	return o
}

// Two programs that answer each other are cut off, told once.
func TestLoopBreaker(t *testing.T) {
	w := setup(t, nil)
	say := func(id int64, who string, n int) {
		for range n {
			w.next++
			o := by(commented("/inspect stpo"), id, who)
			at(o, "comment")["id"] = 9000 + w.next
			w.deliver("issue_comment", body(o))
		}
	}
	say(octocat, "octocat", maxWishes+15)
	if n := len(w.gh.replies()); n != maxWishes+1 {
		t.Errorf("%d replies", n)
	}
	if n := w.gh.count("Permission"); n != maxWishes {
		t.Errorf("%d questions", n)
	}
	if last := w.gh.replies()[maxWishes]; !strings.Contains(last, "nothing more of it is obeyed") {
		t.Error(last)
	}
	// Another is heard; who is denied is never answered.
	before := len(w.gh.replies())
	say(monalisa, "monalisa", maxWishes+5)
	if n := len(w.gh.replies()); n != before {
		t.Errorf("%d replies to a stranger", n-before)
	}
}
