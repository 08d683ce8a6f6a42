package intake

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"inspect/fixtures/githubd"
	"inspect/storage"
)

// ends checks why the newest session is to end; "" means that it goes on.
func (k *talk) ends(want string) {
	k.t.Helper()
	if got := k.newest(); got.StopReason != want || got.StopAt.Valid != (want != "") {
		k.t.Errorf("the session is to end for %q (%v: %s), want %q", got.StopReason, got.StopAt.Valid, got.StopWords, want)
	}
}

// newest is the session that was made last, whole.
func (k *talk) newest() storage.Session {
	k.t.Helper()
	var id string
	k.ok(k.db.SQL().QueryRow("SELECT id FROM sessions ORDER BY created_at DESC LIMIT 1").Scan(&id))
	return must(k.db.Q().GetSession(k.t.Context(), id))
}

// stopped checks that the newest session was told to stop by a person.
func (k *talk) stopped() {
	k.t.Helper()
	if s := k.newest(); !s.StopAt.Valid {
		k.t.Error("it was not stopped")
	}
}

// resend sends every stored payload of an event and action once more, as
// deliveries of their own: GitHub does so when it is asked for what did not arrive.
func (k *talk) resend(event, action string) {
	k.t.Helper()
	k.arrive()
	for _, d := range k.server.Deliveries() {
		if d.Event == event && d.Action == action {
			k.raw(event, string(d.Payload))
		}
	}
}

// elsewhere is what the App wrote in a conversation of another repository.
func (k *talk) elsewhere(repo string, issue int) (out []string) {
	k.t.Helper()
	for _, c := range must(k.server.Comments(repo, issue)) {
		if strings.HasPrefix(c.Body, "<!-- inspect:") {
			out = append(out, c.Body)
		}
	}
	return out
}

// another makes a second repository that the App reaches.
func (k *talk) another() string {
	k.t.Helper()
	must(k.server.AddRepository("octocat", "other", githubd.Seed{Files: map[string]string{".inspect.yml": goodSpec}}))
	k.ok(k.server.AddToInstallation(k.install, "other"))
	k.work()
	return "octocat/other"
}

// old puts a label on, and has it told of only now, so much later.
func (k *talk) old(name string, ago time.Duration) {
	k.t.Helper()
	k.label(name, "octocat")
	k.last("issues", "labeled")
	k.exec("DELETE FROM deliveries WHERE action = 'labeled'")
	k.again("issues", "labeled", func(o object) {
		at(o, "issue")["updated_at"] = time.Now().Add(-ago).UTC().Format(time.RFC3339)
	})
}

func (k *talk) push(branch, text string) {
	k.t.Helper()
	must(k.server.PushCommit(talkRepo, "hubot", branch, "More", map[string]githubd.File{"a.txt": {Body: text, Mode: 0o100644}}))
}

// tryAll works on everything until nothing is left, whatever fails on the way, as
// the queue does.
func (k *talk) tryAll() {
	k.t.Helper()
	for range 6 {
		k.arrive()
		all := k.pending()
		if len(all) == 0 {
			return
		}
		for _, guid := range all {
			if err := k.in.Deliver(k.t.Context(), guid); err != nil {
				k.t.Logf("delivery %s: %v", guid, err)
			}
		}
	}
	k.t.Errorf("nobody comes to an end with %q", k.pending())
}

// What is told late, twice, the other way round or of something that moved.
var late = []sequence{
	// Repositories that move while a session runs.
	{"transferred to an owner who has the App, while it runs", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		there := must(k.server.Install("hubot"))
		k.work()
		k.ok(k.server.TransferRepository(talkRepo, "hubot"))
		k.work()
		k.ends("")
		if s := k.newest(); s.InstallationID != there {
			k.t.Errorf("the session is of installation %d, want %d", s.InstallationID, there)
		}
		k.later()
		must(k.server.Comment("hubot/hello", k.issue, "hubot", "/inspect stop"))
		k.work()
		k.stopped()
		k.ok(k.server.TransferRepository("hubot/hello", "octocat"))
		k.work()
	}, want{sessions: 1}},
	{"transferred to an owner without the App, while it runs", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		k.ok(k.server.TransferRepository(talkRepo, "hubot"))
		must(k.server.Comment("hubot/hello", k.issue, "hubot", "/inspect stop")) // nobody is told
		k.work()
		k.ends("") // looking after it finds out
		k.ok(k.server.TransferRepository("hubot/hello", "octocat"))
		k.work()
	}, want{sessions: 1}},
	{"renamed and transferred while it runs, told the other way round", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		there := must(k.server.Install("hubot"))
		k.work()
		k.ok(k.server.RenameRepository(talkRepo, "hallo", 301))
		k.ok(k.server.TransferRepository("octocat/hallo", "hubot"))
		k.workBackwards()
		k.ends("")
		if s := k.newest(); s.InstallationID != there {
			k.t.Errorf("the session is of installation %d, want %d", s.InstallationID, there)
		}
		k.ok(k.server.TransferRepository("hubot/hallo", "octocat"))
		k.ok(k.server.RenameRepository("octocat/hallo", "hello", 301))
		k.work()
	}, want{sessions: 1}},
	{"transferred before the label is worked on", func(k *talk) {
		k.label("inspect", "octocat")
		k.arrive()
		must(k.server.Install("hubot"))
		k.ok(k.server.TransferRepository(talkRepo, "hubot"))
		k.workBackwards()
		k.ok(k.server.TransferRepository("hubot/hello", "octocat"))
		k.work()
	}, want{}},
	{"renamed, and another one takes the name", func(k *talk) {
		k.say("octocat", "/inspect stpo")
		k.arrive()
		k.ok(k.server.RenameRepository(talkRepo, "hallo", 301))
		must(k.server.AddRepository("octocat", "hello", githubd.Seed{Files: map[string]string{"README.md": "x"}}))
		must(k.server.OpenIssue(talkRepo, "monalisa", "Another", "It is another one."))
		k.work()
		if n := len(k.elsewhere("octocat/hallo", k.issue)); n > 1 {
			k.t.Errorf("%d replies", n)
		}
	}, want{}}, // above all none in the other one
	{"renamed while it runs, then stopped", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		k.ok(k.server.RenameRepository(talkRepo, "hallo", 307))
		k.later()
		must(k.server.Comment("octocat/hallo", k.issue, "octocat", "/inspect stop"))
		k.work()
		k.stopped()
		k.ok(k.server.RenameRepository("octocat/hallo", "hello", 301))
		k.work()
	}, want{sessions: 1}},
	{"renamed while a reply is due", func(k *talk) {
		k.say("octocat", "/inspect stpo")
		k.arrive()
		k.ok(k.server.RenameRepository(talkRepo, "hallo", 301))
		k.work()
		if got := k.elsewhere("octocat/hallo", k.issue); len(got) != 1 {
			k.t.Errorf("replies %q", got)
		}
		k.ok(k.server.RenameRepository("octocat/hallo", "hello", 301))
		k.work()
	}, want{replies: []string{"`/inspect stop`"}}},
	{"archived while it runs", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		k.ok(k.server.Archive(talkRepo))
		k.work()
		k.ends("archived")
	}, want{sessions: 1}},
	{"archived and opened again before we are told", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		k.ok(k.server.Archive(talkRepo))
		k.ok(k.server.Unarchive(talkRepo))
		k.workBackwards()
		k.ends("")
	}, want{sessions: 1}},
	{"the archiving of days ago is told again (B14)", func(k *talk) {
		k.ok(k.server.Archive(talkRepo))
		k.ok(k.server.Unarchive(talkRepo))
		k.work()
		k.label("inspect", "octocat")
		k.work()
		k.resend("repository", "archived")
		k.work()
		k.ends("")
	}, want{sessions: 1}},
	{"suspended and lifted, told the other way round", func(k *talk) {
		k.ok(k.server.Suspend(k.install, "octocat"))
		k.ok(k.server.Unsuspend(k.install, "octocat"))
		k.workBackwards()
		if k.number("SELECT count(*) FROM installations WHERE suspended_at IS NOT NULL") != 0 {
			k.t.Error("it counts as suspended")
		}
		k.label("inspect", "octocat")
		k.work()
	}, want{sessions: 1}},
	{"locked and unlocked while it runs, told the other way round", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		k.ok(k.server.Lock(talkRepo, k.issue, "octocat"))
		k.work()
		if !k.newest().Locked {
			k.t.Error("the lock is not known")
		}
		k.ok(k.server.Unlock(talkRepo, k.issue, "octocat"))
		k.work()
		k.resend("issues", "locked")
		k.work()
		if k.newest().Locked {
			k.t.Error("the lock of before counts")
		}
		k.ends("")
	}, want{sessions: 1}},

	// Issues that move or vanish.
	{"the issue is moved to another repository while it runs", func(k *talk) {
		to := k.another()
		k.label("inspect", "octocat")
		k.work()
		must(k.server.TransferIssue(talkRepo, k.issue, "octocat", to))
		k.work()
		k.ends("issue_gone")
		k.issue = must(k.server.OpenIssue(talkRepo, "monalisa", "Next", "x"))
		k.work()
	}, want{sessions: 1}},
	{"the issue is deleted before the label is worked on", func(k *talk) {
		k.label("inspect", "octocat")
		k.arrive()
		k.ok(k.server.DeleteIssue(talkRepo, k.issue, "octocat"))
		k.work()
		k.ends("issue_gone")
		k.issue = must(k.server.OpenIssue(talkRepo, "monalisa", "Next", "x"))
		k.work()
	}, want{sessions: 1}},

	// Words that are older than what they would be about.
	{"stop is told before the request it follows (B16)", func(k *talk) {
		k.say("octocat", "/inspect fix the sum")
		k.later()
		k.say("hubot", "/inspect stop")
		k.workBackwards()
	}, want{replies: []string{"no session here"}}},
	{"stop is told before the label it follows", func(k *talk) {
		k.label("inspect", "octocat")
		k.later()
		k.say("hubot", "/inspect stop")
		k.workBackwards()
	}, want{replies: []string{"no session here"}}},
	{"a stranger's stop holds nothing up", func(k *talk) {
		k.say("octocat", "/inspect fix the sum")
		k.later()
		k.say("monalisa", "/inspect stop")
		k.workBackwards()
	}, want{sessions: 1}},
	{"a stop that got lost comes when another session runs (B14)", func(k *talk) {
		k.say("octocat", "/inspect stop")
		k.arrive()
		lost := k.pending()[0]
		k.server.Advance(5 * time.Minute)
		k.label("inspect", "octocat")
		k.arrive()
		for _, guid := range k.pending() {
			if guid != lost {
				k.ok(k.in.Deliver(k.t.Context(), guid))
			}
		}
		k.work()
		k.ends("")
	}, want{sessions: 1, replies: []string{"was asked for after this was written"}}},
	{"a stop and its session, both late", func(k *talk) {
		k.label("inspect", "octocat")
		k.later()
		k.say("octocat", "/inspect stop")
		k.work()
		k.stopped()
	}, want{sessions: 1}},
	{"a request after a stop", func(k *talk) {
		k.say("octocat", "/inspect stop")
		k.work()
		k.later()
		k.say("octocat", "/inspect fix the sum")
		k.work()
	}, want{sessions: 1, replies: []string{"no session here"}}},
	{"edited into a stop while it runs", func(k *talk) {
		id := k.say("octocat", "/inspect fix the sum")
		k.work()
		k.ok(k.server.EditComment(talkRepo, id, "octocat", "/inspect stop"))
		k.work()
		k.ends("")
	}, want{sessions: 1}},

	{"a retry that got lost comes after another one (B14)", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		k.exec("UPDATE sessions SET state = 'failed', finished_at = now()")
		k.later()
		k.say("octocat", "/inspect retry")
		k.arrive()
		lost := k.pending()[0]
		k.server.Advance(5 * time.Minute)
		k.label("agent", "octocat")
		k.arrive()
		for _, guid := range k.pending() {
			if guid != lost {
				k.ok(k.in.Deliver(k.t.Context(), guid))
			}
		}
		k.exec("UPDATE sessions SET state = 'failed', finished_at = now()")
		k.work()
	}, want{sessions: 2, replies: []string{"was asked for after this was written"}}},
	{"a retry that got lost before a stop", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		k.exec("UPDATE sessions SET state = 'failed', finished_at = now()")
		k.later()
		k.say("octocat", "/inspect retry")
		k.later()
		k.say("hubot", "/inspect stop")
		k.workBackwards()
		if s := k.newest(); s.State != "failed" {
			k.t.Errorf("it is %s: what was stopped runs again", s.State)
		}
	}, want{sessions: 1, replies: []string{"has ended already"}}},
	{"the lock of before is told after the end, and then it is tried again", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		k.ok(k.server.Lock(talkRepo, k.issue, "octocat"))
		k.ok(k.server.Unlock(talkRepo, k.issue, "octocat"))
		k.work()
		k.exec("UPDATE sessions SET state = 'failed', finished_at = now()")
		k.resend("issues", "locked")
		k.work()
		k.later()
		k.say("octocat", "/inspect retry")
		k.work()
		if s := k.newest(); s.Locked || s.State != "queued" {
			k.t.Errorf("it is %s, and locked: %v", s.State, s.Locked)
		}
	}, want{sessions: 1}},
	{"removed from the installation and added again, told the other way round", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		k.ok(k.server.RemoveFromInstallation(k.install, "hello"))
		k.ok(k.server.AddToInstallation(k.install, "hello"))
		k.workBackwards()
		if k.number("SELECT count(*) FROM repositories WHERE removed_at IS NOT NULL") != 0 {
			k.t.Error("it counts as removed")
		}
	}, want{sessions: 1}},
	{"that a former owner added it is told again (B14)", func(k *talk) {
		k.ok(k.server.RemoveFromInstallation(k.install, "hello"))
		k.ok(k.server.AddToInstallation(k.install, "hello"))
		k.label("inspect", "octocat")
		k.work()
		there := must(k.server.Install("hubot"))
		k.ok(k.server.TransferRepository(talkRepo, "hubot"))
		k.work()
		k.resend("installation_repositories", "added")
		k.work()
		if s := k.newest(); s.InstallationID != there {
			k.t.Errorf("the session is of installation %d, want %d", s.InstallationID, there)
		}
		k.ok(k.server.TransferRepository("hubot/hello", "octocat"))
		k.work()
	}, want{sessions: 1}},
	{"a label of hours ago, taken off since without a word", func(k *talk) {
		k.old("inspect", 3*time.Hour)
		k.ok(k.server.Unlabel(talkRepo, k.issue, "inspect", "octocat"))
		k.arrive()
		k.exec("DELETE FROM deliveries WHERE action = 'unlabeled'") // lost
		k.work()
	}, want{}},
	{"a label of hours ago that is still there", func(k *talk) {
		k.old("inspect", 3*time.Hour)
		k.work()
	}, want{sessions: 1}},
	{"a label of hours ago on an issue that was closed without a word", func(k *talk) {
		k.old("inspect", 3*time.Hour)
		k.ok(k.server.SetState(talkRepo, k.issue, "octocat", "closed"))
		k.arrive()
		k.exec("DELETE FROM deliveries WHERE action = 'closed'")
		k.work()
	}, want{}},

	// People who are not there.
	{"accounts that are gone", func(k *talk) {
		k.say("octocat", "hello")
		for i, change := range []func(object){
			func(o object) { o["sender"] = nil },
			func(o object) { at(o, "comment")["user"] = nil },
			func(o object) { o["sender"], at(o, "comment")["user"] = nil, nil },
			func(o object) { o["sender"] = object{"login": "ghost", "id": 10137, "type": "User"} },
			func(o object) { o["sender"] = object{"login": "", "id": 0} },
			func(o object) { at(o, "issue")["user"], o["installation"] = nil, nil },
			func(o object) { o["repository"] = nil },
		} {
			k.again("issue_comment", "created", func(o object) {
				at(o, "comment")["id"], at(o, "comment")["body"] = 9100+i, "/inspect fix it"
				change(o)
			})
		}
		k.work()
	}, want{}},
	{"a review's words, told when it is edited and dismissed", func(k *talk) {
		k.pull()
		id := must(k.server.SubmitReview(talkRepo, k.issue, "octocat", "CHANGES_REQUESTED", "Look again."))
		k.ok(k.server.EditReview(talkRepo, k.issue, id, "octocat", "/inspect fix it"))
		k.ok(k.server.DismissReview(talkRepo, k.issue, id, "hubot"))
		k.work()
	}, want{}},
	{"a review that is dismissed before we read its command", func(k *talk) {
		k.pull()
		id := must(k.server.SubmitReview(talkRepo, k.issue, "octocat", "CHANGES_REQUESTED", "/inspect fix it"))
		k.ok(k.server.DismissReview(talkRepo, k.issue, id, "hubot"))
		k.work()
	}, want{sessions: 1}},

	// Pull requests that move and come back.
	{"pushed to, and forced back to the same files", func(k *talk) {
		k.pull()
		k.say("octocat", "/inspect fix it")
		k.work()
		k.later()
		k.push("topic", "2\n")
		must(k.server.ForcePush(talkRepo, "hubot", "topic", "Work", map[string]githubd.File{"a.txt": {Body: "1\n", Mode: 0o100644}}))
		k.workBackwards()
		k.ends("superseded")
	}, want{sessions: 1}},
	{"closed and opened again before we are told", func(k *talk) {
		k.pull()
		k.say("octocat", "/inspect fix it")
		k.work()
		k.ok(k.server.SetState(talkRepo, k.issue, "hubot", "closed"))
		k.ok(k.server.SetState(talkRepo, k.issue, "hubot", "open"))
		k.workBackwards()
		k.ends("")
	}, want{sessions: 1}},
	{"its branch is deleted while it runs", func(k *talk) {
		k.pull()
		k.say("octocat", "/inspect fix it")
		k.work()
		k.ok(k.server.DeleteBranch(talkRepo, "hubot", "topic"))
		k.work()
		k.ends("pull_closed")
	}, want{sessions: 1}},
	{"its branch is renamed while it runs", func(k *talk) {
		k.pull()
		k.say("octocat", "/inspect fix it")
		k.work()
		k.ok(k.server.RenameBranch(talkRepo, "hubot", "topic", "subject"))
		k.work()
		k.stopped()
	}, want{sessions: 1}},
	{"made a draft, ready and a draft again", func(k *talk) {
		k.pull()
		k.say("octocat", "/inspect fix it")
		k.work()
		k.ok(k.server.ConvertToDraft(talkRepo, k.issue, "hubot"))
		k.ok(k.server.ReadyForReview(talkRepo, k.issue, "hubot"))
		k.ok(k.server.ConvertToDraft(talkRepo, k.issue, "hubot"))
		k.workBackwards()
		k.ends("")
		k.later()
		k.say("octocat", "/inspect and more")
		k.work()
	}, want{sessions: 1, prompts: []string{"octocat: and more"}}},
	{"merged while it runs, told twice and before the request's push", func(k *talk) {
		k.pull()
		k.say("octocat", "/inspect fix it")
		k.work()
		must(k.server.MergePullRequest(talkRepo, k.issue, "octocat"))
		k.resend("pull_request", "closed")
		k.workBackwards()
		k.ends("pull_closed")
	}, want{sessions: 1}},
	{"a request for the head that was pushed while it runs", func(k *talk) {
		k.pull()
		k.say("octocat", "/inspect fix it")
		k.work()
		k.later()
		k.push("topic", "2\n")
		k.work()
		k.ends("superseded")
	}, want{sessions: 1}},

	// GitHub has troubles of its own.
	{"a reply is written and its answer is lost", func(k *talk) {
		k.say("octocat", "/inspect stpo")
		must(k.server.AddFault(githubd.Fault{Kind: githubd.FaultLost, Method: "POST", Path: "/repos/*/*/issues/*/comments"}))
		k.tryAll()
	}, want{replies: []string{"`/inspect stop`"}}},
	{"a reply is answered 502 twice", func(k *talk) {
		k.say("octocat", "/inspect stpo")
		must(k.server.AddFault(githubd.Fault{Kind: githubd.FaultStatus, Status: 502, Count: 2, Method: "POST", Path: "/repos/*/*/issues/*/comments"}))
		k.tryAll()
	}, want{replies: []string{"`/inspect stop`"}}},
	{"a permission is answered 502 (deny, and ask again)", func(k *talk) {
		k.label("inspect", "octocat")
		must(k.server.AddFault(githubd.Fault{Kind: githubd.FaultStatus, Status: 502, Count: 3, Path: "/repos/*/*/collaborators/**"}))
		k.tryAll()
	}, want{sessions: 1}},
	{"a reaction is answered 502 and the label comes twice", func(k *talk) {
		k.label("inspect", "octocat")
		k.resend("issues", "labeled")
		must(k.server.AddFault(githubd.Fault{Kind: githubd.FaultStatus, Status: 502, Count: 1, Method: "POST", Path: "/repos/*/*/issues/*/reactions"}))
		k.tryAll()
	}, want{sessions: 1}},
	{"a hundred changes of the label at once (B22)", func(k *talk) {
		for range 50 {
			k.label("inspect", "octocat")
			k.ok(k.server.Unlabel(talkRepo, k.issue, "inspect", "octocat"))
		}
		k.label("inspect", "octocat")
		k.work()
	}, want{sessions: 1}},
	{"check runs that are not ours are run again", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		k.exec("UPDATE sessions SET state = 'failed'")
		for i, run := range []string{
			`{"id":1,"name":"inspect","head_sha":"%040d","external_id":"","app":{"id":12345}}`,
			`{"id":2,"name":"inspect","head_sha":"%040d","external_id":"nobody/1","app":{"id":12345}}`,
			`{"id":3,"name":"inspect","head_sha":"%040d","external_id":null,"app":{"id":99}}`,
			`{"id":4,"name":"inspect","head_sha":"%040d","app":null}`, `null`,
		} {
			text := run
			if strings.Contains(run, "%") {
				text = fmt.Sprintf(run, i)
			}
			for _, action := range []string{"rerequested", "requested_action"} {
				var o object
				k.ok(json.Unmarshal(k.last("issues", "labeled").Payload, &o))
				delete(o, "issue")
				o["action"], o["check_run"], o["requested_action"] = action, json.RawMessage(text), object{"identifier": "approve"}
				k.raw("check_run", body(o))
			}
		}
		k.work()
	}, want{sessions: 1}},
}

func TestLateSequences(t *testing.T) { play(t, late) }
