package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"inspect/envs/spec"
	"inspect/storage"
)

var (
	hubot    = Person{ID: 2, Login: "hubot"}
	octocat  = Person{ID: 1, Login: "octocat"} // starts the sessions
	monalisa = Person{ID: 3, Login: "monalisa"}
)

// asks is a Publish that asks until the digest is among those that are allowed.
func (w *world) asks(digest, void string) {
	w.effects.set(func(f *fakeEffects) {
		f.answer = func(s storage.Session) (Published, error) {
			given, err := AllowedTo(context.Background(), w.db.Q(), s.ID)
			if err != nil {
				return Published{}, err
			}
			if slices.ContainsFunc(given, func(a storage.Approval) bool { return a.Digest == digest }) {
				f.pushed[s.ID]++
				return Published{Receipt: &Receipt{Branch: "b", HeadSHA: tipSHA, PullRequest: 5}}, nil
			}
			return Published{Ask: &Ask{
				Asked: Asked{Items: []AskedItem{{Reason: "protected_path", What: `"deploy/x"`}}}, Basis: Basis{Bundle: "b", Base: baseSHA},
				Digest: digest, Words: "It touches protected paths.", Void: void,
			}}, nil
		}
	})
}

// waiting brings a session to where it waits for an approval.
func (w *world) waiting(s *Scheduler) (storage.Session, storage.Approval) {
	w.t.Helper()
	sess, r := w.running(s)
	w.verified(s, r)
	w.asks("d1", "")
	w.look(s, sess.ID)
	return w.want(sess.ID, NeedsApproval, ""), w.pending(sess.ID)[0]
}

func (w *world) pending(session string) []storage.Approval {
	w.t.Helper()
	all, err := Approvals(context.Background(), w.db.Q(), session)
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// approvals are the states of all approvals of a session, in order.
func (w *world) approvals(session string) (out []string) {
	w.t.Helper()
	rows, err := w.db.SQL().Query("SELECT state FROM approvals WHERE session_id = $1 ORDER BY id", session)
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var state string
		if err := rows.Scan(&state); err != nil {
			w.t.Fatal(err)
		}
		out = append(out, state)
	}
	return out
}

// told are the approval events of a session's chain.
func (w *world) told(session string) (out []map[string]any) {
	w.t.Helper()
	if _, _, err := CheckChain(context.Background(), w.db.Q(), session, nil); err != nil {
		w.t.Error(err)
	}
	rows, err := w.db.SQL().Query("SELECT data FROM events WHERE session_id = $1 AND kind = 'approval' ORDER BY seq", session)
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var data []byte
		if err := rows.Scan(&data); err != nil {
			w.t.Fatal(err)
		}
		e := map[string]any{}
		if err := json.Unmarshal(data, &e); err != nil {
			w.t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

func answer(a storage.Approval, approve bool, by Person) Answer {
	return Answer{Session: a.SessionID, Approval: a.ID, Approve: approve, By: by, How: ByCommand}
}

func TestApprovedIsPublished(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sess, a := w.waiting(s)
	if a.Kind != ApprovePublish || a.Digest != "d1" || a.Bundle != "b" || a.BaseSha != baseSHA || !a.ExpiresAt.Equal(w.clock.Now().Add(72*time.Hour)) || !sess.Deadline.Equal(a.ExpiresAt) {
		t.Errorf("%+v, deadline %s", a, sess.Deadline)
	}
	w.clock.Advance(time.Hour)
	w.look(s, sess.ID)
	w.want(sess.ID, NeedsApproval, "") // nothing happens by itself
	if err := s.Answer(context.Background(), answer(a, true, hubot)); err != nil {
		t.Fatal(err)
	}
	if err := s.Answer(context.Background(), answer(a, false, hubot)); !errors.Is(err, ErrNotPending) {
		t.Errorf("answered twice: %v", err)
	}
	w.look(s, sess.ID)
	w.want(sess.ID, Delivered, "")
	if w.effects.pushed[sess.ID] != 1 {
		t.Errorf("%d pushes", w.effects.pushed[sess.ID])
	}
	told := w.told(sess.ID)
	if len(told) != 2 || told[0]["state"] != "pending" || told[1]["state"] != "approved" || told[1]["who"] != "hubot" || told[1]["who_id"] != 2.0 || told[1]["how"] != "command" || told[1]["digest"] != "d1" {
		t.Errorf("%v", told)
	}
}

func TestRejectedExpiredAndStopped(t *testing.T) {
	for name, c := range map[string]struct {
		do     func(*world, *Scheduler, storage.Approval)
		state  State
		reason string
		row    string
	}{
		"rejected": {func(w *world, s *Scheduler, a storage.Approval) {
			if err := s.Answer(context.Background(), answer(a, false, octocat)); err != nil {
				w.t.Fatal(err)
			}
		}, Stopped, ReasonRejected, "rejected"},
		"expired": {func(w *world, s *Scheduler, a storage.Approval) {
			w.clock.Set(a.ExpiresAt)
			if err := s.Answer(context.Background(), answer(a, true, hubot)); !errors.Is(err, ErrExpired) {
				w.t.Errorf("answered too late: %v", err)
			}
			w.look(s, a.SessionID)
		}, Stopped, ReasonApprovalExpired, "expired"},
		"stopped": {func(w *world, s *Scheduler, a storage.Approval) {
			if err := s.Stop(context.Background(), a.SessionID, "hubot", ""); err != nil {
				w.t.Fatal(err)
			}
			w.look(s, a.SessionID)
		}, Stopped, ReasonStopped, "void"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.scheduler()
			sess, a := w.waiting(s)
			c.do(w, s, a)
			w.want(sess.ID, c.state, c.reason)
			if got := w.approvals(sess.ID); !slices.Equal(got, []string{c.row}) {
				t.Errorf("the approval is %v", got)
			}
			if err := s.Answer(context.Background(), answer(a, true, hubot)); !errors.Is(err, ErrNotPending) {
				t.Errorf("answered after the end: %v", err)
			}
			w.look(s, sess.ID)
			if w.effects.pushed[sess.ID] != 0 || w.effects.lastReport(sess.ID) != c.state {
				t.Errorf("%d pushes, reported as %s", w.effects.pushed[sess.ID], w.effects.lastReport(sess.ID))
			}
		})
	}
}

// What was allowed and is not what would be pushed does not count; it is asked anew.
func TestChangedIsAskedAnew(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sess, a := w.waiting(s)
	w.asks("d2", "The base branch has moved.")
	if err := s.Answer(context.Background(), answer(a, true, hubot)); err != nil {
		t.Fatal(err)
	}
	w.look(s, sess.ID)
	w.want(sess.ID, NeedsApproval, "")
	if got := w.approvals(sess.ID); !slices.Equal(got, []string{"void", "pending"}) || w.pending(sess.ID)[0].Digest != "d2" {
		t.Errorf("%v", got)
	}
	told := w.told(sess.ID)
	if len(told) != 4 || told[2]["state"] != "void" || told[2]["words"] != "The base branch has moved." {
		t.Errorf("%v", told)
	}
	if w.effects.pushed[sess.ID] != 0 {
		t.Error("pushed with an approval of something else")
	}
}

// Where four eyes are wanted nobody allows what he asked for.
func TestRequestersDoNotApprove(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess, a := w.waiting(s)
	n := answer(a, true, octocat)
	n.FourEyes = true
	if err := s.Answer(ctx, n); !errors.Is(err, ErrRequester) {
		t.Fatalf("who started it allowed it: %v", err)
	}
	w.sql("INSERT INTO session_people (session_id, user_id, login, role) VALUES ($$" + sess.ID + "$$, 3, 'monalisa', 'pushed')")
	n.By = monalisa
	if err := s.Answer(ctx, n); !errors.Is(err, ErrRequester) {
		t.Fatalf("who pushed allowed it: %v", err)
	}
	w.want(sess.ID, NeedsApproval, "")
	n.By = hubot
	if err := s.Answer(ctx, n); err != nil {
		t.Fatal(err)
	}
	w.want(sess.ID, Publishing, "")
}

func TestHostAndBudgetAreAskedFor(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s)
	w.phase(s, r, "working")
	host, err := s.Request(ctx, sess.ID, ApproveEgress, Asked{Host: "a.example"}, "octocat asks for a.example.", octocat)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.Request(ctx, sess.ID, ApproveEgress, Asked{Host: "a.example"}, "", hubot); err != nil || again.ID != host.ID {
		t.Errorf("asked twice: %+v %v", again, err)
	}
	if other, err := s.Request(ctx, sess.ID, ApproveEgress, Asked{Host: "b.example"}, "", hubot); !errors.Is(err, ErrAsked) || other.ID != host.ID {
		t.Errorf("%+v %v", other, err)
	}
	most := 7 * int64(spec.Dollar)
	money, err := s.Request(ctx, sess.ID, ApproveBudget, Asked{Budget: most}, "", hubot)
	if err != nil {
		t.Fatal(err)
	}
	w.want(sess.ID, Working, "") // it goes on meanwhile
	n := answer(host, true, octocat)
	n.FourEyes = true
	if err := s.Answer(ctx, n); !errors.Is(err, ErrRequester) {
		t.Errorf("the asker allowed it: %v", err)
	}
	n.By = monalisa
	if err := s.Answer(ctx, n); err != nil {
		t.Fatal(err)
	}
	if err := s.Answer(ctx, answer(money, true, hubot)); err != nil { // without four eyes the asker may
		t.Fatal(err)
	}
	reply, err := s.Directives(ctx, r, 0)
	if err != nil || len(reply.Directives) != 2 || reply.Directives[0].AllowHost == nil || reply.Directives[0].AllowHost.Host != "a.example" ||
		reply.Directives[1].Budget == nil || reply.Directives[1].Budget.Budget != most {
		t.Errorf("%+v %v", reply, err)
	}
	now := w.get(sess.ID)
	sp, err := sessionSpec(now)
	if err != nil || now.State != Working || now.Budget != most || int64(sp.Limits.Budget) != most || !slices.Equal(sp.Allowed, []string{"a.example"}) {
		t.Errorf("%s, budget %d, %+v %v", now.State, now.Budget, sp, err)
	}
	// A later attempt finds it in its spec.
	if out, err := s.Spec(ctx, r); err != nil || !slices.Contains(out.Egress, "a.example") {
		t.Errorf("%+v %v", out.Egress, err)
	}
	people, err := Requesters(ctx, w.db.Q(), sess.ID)
	if err != nil || !slices.ContainsFunc(people, func(p storage.SessionPerson) bool { return p.UserID == 2 && p.Role == string(RoleRaised) }) ||
		!slices.ContainsFunc(people, func(p storage.SessionPerson) bool { return p.UserID == 1 && p.Role == string(RoleAllowed) }) {
		t.Errorf("%+v %v", people, err)
	}
}

// A request that nobody answers holds nothing up, and is closed: by time, by the
// end of the work, by a no.
func TestRequestsAreClosed(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s)
	ask := func() storage.Approval {
		t.Helper()
		a, err := s.Request(ctx, sess.ID, ApproveEgress, Asked{Host: "a.example"}, "", octocat)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if err := s.Answer(ctx, answer(ask(), false, hubot)); err != nil {
		t.Fatal(err)
	}
	late := ask()
	w.sql("UPDATE approvals SET expires_at = '" + w.clock.Now().Format(time.RFC3339) + "' WHERE state = 'pending'")
	w.clock.Advance(2 * time.Second)
	if err := s.sweepApprovals(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Answer(ctx, answer(late, true, hubot)); !errors.Is(err, ErrNotPending) {
		t.Error(err)
	}
	ask()
	w.verified(s, r)
	w.look(s, sess.ID)
	w.want(sess.ID, Delivered, "")
	if got := w.approvals(sess.ID); !slices.Equal(got, []string{"rejected", "expired", "void"}) {
		t.Errorf("%v", got)
	}
	if len(w.told(sess.ID)) != 6 {
		t.Errorf("%v", w.told(sess.ID))
	}
	if _, err := s.Request(ctx, sess.ID, ApproveBudget, Asked{Budget: 1}, "", octocat); !errors.Is(err, ErrWorkOver) {
		t.Errorf("asked after the end: %v", err)
	}
	if sp, _ := sessionSpec(w.get(sess.ID)); len(sp.Allowed) != 0 {
		t.Errorf("%v is allowed", sp.Allowed)
	}
}

func TestPickApproval(t *testing.T) {
	one, two := storage.Approval{ID: 1, Digest: "abcdef0123"}, storage.Approval{ID: 2, Digest: "abcdef0999"}
	for name, c := range map[string]struct {
		pending []storage.Approval
		digest  string
		id      int64
		several bool
	}{
		"none":       {nil, "", 0, false},
		"the only":   {[]storage.Approval{one}, "", 1, false},
		"of several": {[]storage.Approval{one, two}, "", 0, true},
		"named":      {[]storage.Approval{one, two}, "abcdef09", 2, false},
		"sha256:":    {[]storage.Approval{one, two}, "sha256:ABCDEF01", 1, false},
		"both":       {[]storage.Approval{one, two}, "abcdef0", 0, true},
		"another":    {[]storage.Approval{one}, "0000000", 0, false},
		"too short":  {[]storage.Approval{one}, "abcdef", 0, false},
		"longer":     {[]storage.Approval{one}, "abcdef01234", 0, false},
	} {
		if a, found, several := PickApproval(c.pending, c.digest); a.ID != c.id || found != (c.id != 0) || several != c.several {
			t.Errorf("%s: %d %v %v", name, a.ID, found, several)
		}
	}
}

func TestBasisDigest(t *testing.T) {
	asked := Asked{Host: "a.example"}
	base := Basis{Bundle: "b", Policy: "p", Base: "s", Remote: "r"}
	first := base.Digest("abc", ApproveEgress, asked)
	if len(first) != 64 || first != base.Digest("abc", ApproveEgress, asked) {
		t.Error(first)
	}
	seen := map[string]bool{first: true}
	for _, d := range []string{
		base.Digest("abd", ApproveEgress, asked), base.Digest("abc", ApproveBudget, asked), base.Digest("abc", ApproveEgress, Asked{Host: "b.example"}),
		Basis{"x", "p", "s", "r"}.Digest("abc", ApproveEgress, asked), Basis{"b", "x", "s", "r"}.Digest("abc", ApproveEgress, asked),
		Basis{"b", "p", "x", "r"}.Digest("abc", ApproveEgress, asked), Basis{"b", "p", "s", "x"}.Digest("abc", ApproveEgress, asked),
	} {
		if seen[d] {
			t.Errorf("%s is of two things", d)
		}
		seen[d] = true
	}
}
