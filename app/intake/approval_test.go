package intake

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"inspect/app/approve"
	"inspect/app/github"
	"inspect/envs/spec"
	"inspect/scheduler"
	"inspect/storage"
)

// say has somebody write a comment with a number of its own.
func (w *world) say(id int64, login string, account int64, text string) {
	w.t.Helper()
	o := by(commented(text), account, login)
	at(o, "comment")["id"] = id
	w.deliver("issue_comment", body(o))
}

func (w *world) waits(session string) []storage.Approval {
	w.t.Helper()
	all, err := scheduler.Approvals(w.t.Context(), w.db.Q(), session)
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// lastReply is the newest of our replies.
func (w *world) lastReply() string {
	w.t.Helper()
	all := w.gh.replies()
	if len(all) == 0 {
		w.t.Fatal("no reply")
	}
	return all[len(all)-1]
}

func TestAllowAndBudgetCommands(t *testing.T) {
	w := setup(t, func(o *Options) {
		o.Floor = floor(t, "defaults: {egress: [go, \"*.internal.example\"], limits: {budget_usd: 9}}\n")
	})
	w.say(1, "octocat", octocat, "/inspect fix it")
	s := w.one()
	for i, c := range []struct{ text, want string }{
		{"/inspect approve", "Nothing waits"},
		{"/inspect allow evil.example", "does not allow that here"},
		{"/inspect allow a.internal.example:99999", "cannot be asked for"},
		{"/inspect budget 9.01", "does not allow that here"},
		{"/inspect budget 0.50", "already"},
	} {
		w.say(int64(10+i), "octocat", octocat, c.text)
		if got := w.lastReply(); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q lacks %q", c.text, got, c.want)
		}
	}
	if n := len(w.waits(s.ID)); n != 0 {
		t.Fatalf("%d requests", n)
	}
	w.say(20, "hubot", hubot, "/inspect allow a.internal.example") // may not write
	if n := len(w.waits(s.ID)); n != 0 {
		t.Fatal("somebody without write access asked")
	}
	w.say(21, "octocat", octocat, "/inspect allow A.internal.example")
	pending := w.waits(s.ID)
	if len(pending) != 1 || !strings.Contains(w.lastReply(), "`/inspect approve "+pending[0].Digest[:12]+"`") {
		t.Fatalf("%+v, %q", pending, w.lastReply())
	}
	w.say(22, "octocat", octocat, "/inspect budget 8")
	w.say(23, "octocat", octocat, "/inspect approve")
	if got := w.lastReply(); !strings.Contains(got, "name one by its digest") {
		t.Errorf("%q", got)
	}
	w.say(24, "hubot", hubot, "/inspect approve "+pending[0].Digest[:7])
	if len(w.waits(s.ID)) != 2 {
		t.Fatal("somebody without write access allowed it")
	}
	replies := len(w.gh.replies())
	w.say(25, "octocat", octocat, "/inspect approve "+pending[0].Digest[:7])
	w.say(26, "octocat", octocat, "/inspect approve")
	if len(w.gh.replies()) != replies || w.gh.count("ReactComment 25") != 1 {
		t.Errorf("%q", w.lastReply())
	}
	now := w.one()
	if now.Budget != 8_000_000_000 || !strings.Contains(string(now.Spec), `"allowed": ["a.internal.example"]`) {
		t.Errorf("budget %d, %s", now.Budget, now.Spec)
	}
	w.say(27, "octocat", octocat, "/inspect allow a.internal.example")
	if got := w.lastReply(); !strings.Contains(got, "already") {
		t.Errorf("%q", got)
	}
}

// A repetition after the answer was taken says nothing else, and takes nothing twice.
func TestAnAnswerIsTakenOnce(t *testing.T) {
	w := setup(t, nil)
	w.say(1, "octocat", octocat, "/inspect fix it")
	s := w.one()
	w.say(2, "octocat", octocat, "/inspect allow a.example")
	w.gh.fail["ReactComment"] = github.ErrUnavailable // after the answer was taken
	o := commented("/inspect approve")
	at(o, "comment")["id"], at(o, "comment")["created_at"] = 3, "2026-01-02T03:04:05Z"
	guid := w.store("issue_comment", body(o))
	if err := w.in.Deliver(t.Context(), guid); err == nil {
		t.Fatal("the delivery did not fail")
	}
	w.gh.fail = map[string]error{}
	replies := len(w.gh.replies())
	if err := w.in.Deliver(t.Context(), guid); err != nil {
		t.Fatal(err)
	}
	if len(w.gh.replies()) != replies || len(w.waits(s.ID)) != 0 {
		t.Errorf("%q", w.lastReply())
	}
}

func TestFourEyesCommand(t *testing.T) {
	w := setup(t, func(o *Options) { o.Floor = floor(t, "defaults: {publish: {four_eyes: true}}\n") })
	w.say(1, "octocat", octocat, "/inspect fix it")
	s := w.one()
	w.say(2, "octocat", octocat, "/inspect allow a.example")
	w.say(3, "octocat", octocat, "/inspect approve")
	if got := w.lastReply(); !strings.Contains(got, "four eyes") || len(w.waits(s.ID)) != 1 {
		t.Errorf("%q", got)
	}
}

// Four eyes that the repository asks for since the session began count too, and
// nothing is allowed while nobody can tell.
func TestTheConfigurationIsReadWhenSomebodyAnswers(t *testing.T) {
	w := setup(t, nil)
	w.say(1, "octocat", octocat, "/inspect fix it")
	s := w.one()
	w.say(2, "octocat", octocat, "/inspect allow a.example")
	w.gh.files[spec.FileName] = "version: 2\n"
	w.say(3, "octocat", octocat, "/inspect approve")
	if got := w.lastReply(); !strings.Contains(got, "Nobody can tell what the repository forbids") || len(w.waits(s.ID)) != 1 {
		t.Errorf("%q", got)
	}
	w.gh.files[spec.FileName] = goodSpec + "publish: {four_eyes: true}\n"
	w.say(4, "octocat", octocat, "/inspect approve")
	if got := w.lastReply(); !strings.Contains(got, "four eyes") || len(w.waits(s.ID)) != 1 {
		t.Errorf("%q", got)
	}
	w.say(5, "octocat", octocat, "/inspect reject")
	if len(w.waits(s.ID)) != 0 {
		t.Errorf("%q", w.lastReply())
	}
}

func TestButtonsAnswer(t *testing.T) {
	w := setup(t, nil)
	press := func(change func(object)) storage.Delivery {
		o := common("requested_action")
		digest := strings.Repeat("0a1b2c3d", 8)
		o["check_run"] = object{"id": 77, "external_id": approve.ExternalID(w.one().ID, digest), "app": object{"id": appID}, "head_sha": head}
		o["requested_action"] = object{"identifier": approve.Identifier(true, digest)}
		if change != nil {
			change(o)
		}
		return w.deliver("check_run", body(o))
	}
	start := func() string {
		w.say(1, "octocat", octocat, "/inspect fix it")
		s := w.one()
		_, err := w.db.SQL().Exec(`UPDATE sessions SET state = 'needs_approval', version = version + 1 WHERE id = $1`, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.db.SQL().Exec(`INSERT INTO approvals (session_id, kind, asked, words, digest, requested_at, expires_at)
			VALUES ($1, 'publish', '{}', 'w', $2, now(), now() + interval '1 hour')`, s.ID, strings.Repeat("0a1b2c3d", 8))
		if err != nil {
			t.Fatal(err)
		}
		return s.ID
	}
	for name, c := range map[string]struct {
		change func(object)
		state  storage.SessionState
	}{
		"approve":            {nil, scheduler.Publishing},
		"reject":             {func(o object) { at(o, "requested_action")["identifier"] = "reject-0a1b2c3d0a1b" }, scheduler.Stopped},
		"a reader":           {func(o object) { o["sender"] = user(hubot, "hubot") }, scheduler.NeedsApproval},
		"a bot":              {func(o object) { o["sender"] = user(bot, "hubot[bot]") }, scheduler.NeedsApproval},
		"another App's":      {func(o object) { at(o, "check_run")["app"] = object{"id": appID + 1} }, scheduler.NeedsApproval},
		"another repository": {func(o object) { at(o, "repository")["id"] = 23 }, scheduler.NeedsApproval},
		"another question":   {func(o object) { at(o, "requested_action")["identifier"] = "approve-ffffffffffff" }, scheduler.NeedsApproval},
		"nothing pressed":    {func(o object) { o["requested_action"] = nil }, scheduler.NeedsApproval},
		"no run":             {func(o object) { o["check_run"] = nil }, scheduler.NeedsApproval},
		"rerequested":        {func(o object) { o["action"] = "rerequested" }, scheduler.NeedsApproval},
	} {
		t.Run(name, func(t *testing.T) {
			w.fresh(t)
			id := start()
			press(c.change)
			if s := w.one(); s.State != c.state {
				t.Errorf("the session is %s, want %s", s.State, c.state)
			}
			var how string
			if err := w.db.SQL().QueryRow(`SELECT answered_how FROM approvals WHERE session_id = $1`, id).Scan(&how); err != nil || (how == "button") != (c.state != scheduler.NeedsApproval) {
				t.Errorf("answered by %q, %v", how, err)
			}
		})
	}
}

// told records what reviews are asked to look at.
type told struct{ looks, groups, again []string }

func (r *told) GroupAgain(_ context.Context, _ int64, _ github.Repo, sha string) error {
	r.again = append(r.again, sha)
	return nil
}

func (r *told) Look(_ context.Context, _ int64, _ github.Repo, pull int) error {
	r.looks = append(r.looks, fmt.Sprint(pull))
	return nil
}

func (r *told) MergeGroup(_ context.Context, _ int64, _ github.Repo, sha, ref, base string) error {
	r.groups = append(r.groups, sha+" "+ref+" "+base)
	return nil
}

func TestWhatReviewsAreToldOf(t *testing.T) {
	reviews := &told{}
	w := setup(t, func(o *Options) { o.Reviews = reviews })
	pull := object{"id": 9, "number": 12, "state": "open", "head": object{"ref": "inspect/1-x", "sha": head}, "updated_at": "2027-01-02T03:04:05Z"}
	for _, c := range []struct {
		event, action string
		more          object
		look          bool
	}{
		{"pull_request", "opened", nil, true}, {"pull_request", "synchronize", nil, true}, {"pull_request", "reopened", nil, true},
		{"pull_request", "ready_for_review", nil, true}, {"pull_request", "labeled", nil, false}, {"pull_request", "edited", nil, false},
		{"pull_request", "edited", object{"changes": object{"base": object{"ref": object{"from": "x"}}}}, true},
		{"pull_request_review", "submitted", nil, true}, {"pull_request_review", "dismissed", nil, true}, {"pull_request_review", "edited", nil, true},
		{"pull_request_review", "other", nil, false}, {"pull_request_review", "submitted", object{"pull_request": nil}, false},
	} {
		o := common(c.action)
		o["pull_request"] = pull
		for k, v := range c.more {
			o[k] = v
		}
		reviews.looks = nil
		w.deliver(c.event, body(o))
		if got := slices.Equal(reviews.looks, []string{"12"}); got != c.look {
			t.Errorf("%s %s: looked at %v", c.event, c.action, reviews.looks)
		}
	}
	o := common("checks_requested")
	o["merge_group"] = object{"head_sha": head, "head_ref": "refs/heads/q/pr-12", "base_ref": "refs/heads/main"}
	w.deliver("merge_group", body(o))
	o["action"] = "destroyed"
	w.deliver("merge_group", body(o))
	if len(reviews.groups) != 1 || reviews.groups[0] != head+" refs/heads/q/pr-12 refs/heads/main" {
		t.Errorf("%q", reviews.groups)
	}
}

// Who pushes onto a branch of ours has a hand in what is there.
func TestWhoPushesIsARequester(t *testing.T) {
	w := setup(t, nil)
	w.say(1, "octocat", octocat, "/inspect fix it")
	s := w.one()
	if _, err := w.db.SQL().Exec(`UPDATE sessions SET pull_request = 12, branch = 'inspect/1-x' WHERE id = $1`, s.ID); err != nil {
		t.Fatal(err)
	}
	push := func(sender object, number int) {
		o := common("synchronize")
		o["pull_request"] = object{"id": 9, "number": number, "state": "open", "updated_at": "2027-01-02T03:04:05Z"}
		o["sender"] = sender
		w.deliver("pull_request", body(o))
	}
	push(user(hubot, "hubot"), 12)
	push(user(bot, "hubot[bot]"), 12)
	push(user(monalisa, "monalisa"), 13) // not ours
	people, err := scheduler.Requesters(t.Context(), w.db.Q(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range people {
		got = append(got, p.Login+" "+p.Role)
	}
	slices.Sort(got)
	if !slices.Equal(got, []string{"hubot pushed", "octocat started"}) {
		t.Errorf("%q", got)
	}
}
