package intake

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/app/command"
	"inspect/app/github"
	"inspect/app/webhook"
	"inspect/envs/proc"
	"inspect/fixtures/githubd"
	"inspect/fixtures/githubd/githubdtest"
)

const talkRepo = "octocat/hello"

// talk is a GitHub whose events come through the signed endpoint into a real
// database, and are worked on when a test says so.
type talk struct {
	*world
	server  *githubd.Server
	hooks   *httptest.Server
	install int64
	issue   int
}

// talkKey is the App's key: to make one takes longer than a sequence.
var talkKey = sync.OnceValue(func() []byte {
	key := must(rsa.GenerateKey(rand.Reader, 2048))
	return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
})

func openTalk(t *testing.T, w *world) *talk {
	t.Helper()
	k := &talk{world: w.fresh(t)}
	h, err := webhook.New(webhook.Options{DB: w.db, Jobs: queue{}, Secrets: []string{"new secret", hookSecret}, AppID: 12345, Events: Events(), StoreTime: time.Minute})
	k.ok(err)
	k.hooks = httptest.NewServer(h)
	t.Cleanup(k.hooks.Close)
	k.server = githubdtest.New(t, githubd.Options{
		Key: talkKey(), WebhookSecret: hookSecret, WebhookURL: k.hooks.URL + webhook.DefaultPath, Observer: githubdtest.WatchRefusals(t),
	})
	_, err = k.server.AddRepository("octocat", "hello", githubd.Seed{Files: map[string]string{".inspect.yml": goodSpec + "triggers: {labels: [inspect, agent]}\n"}})
	k.ok(err)
	k.install, err = k.server.Install("octocat", "hello")
	k.ok(err)
	k.ok(k.server.SetPermission(talkRepo, "hubot", "write"))
	k.ok(k.server.SetPermission(talkRepo, "monalisa", "read"))
	app, err := github.New(github.Options{
		AppID: 12345, Key: k.server.KeyPEM(), APIBase: k.server.URL(), GitBase: k.server.URL(), WriteSpacing: -1,
		Reads: proc.Policy{Attempts: 2, First: time.Millisecond, Max: time.Millisecond}, Log: slog.New(slog.DiscardHandler),
	})
	k.ok(err)
	o := w.in.o
	o.AppID, o.Labels = 12345, []string{"inspect", "agent"}
	o.GitHub = func(i int64) GitHub { return app.Installation(i) }
	k.in, err = New(o)
	k.ok(err)
	k.issue, err = k.server.OpenIssue(talkRepo, "monalisa", "Sum is wrong", "1+1 gives 3")
	k.ok(err)
	k.work()
	return k
}

func (k *talk) ok(err error) {
	k.t.Helper()
	if err != nil {
		k.t.Fatal(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// arrive waits until everything that happened was told.
func (k *talk) arrive() {
	k.t.Helper()
	k.ok(k.server.Drain(k.t.Context()))
}

// pending are the deliveries nobody has worked on, the oldest first.
func (k *talk) pending() (out []string) {
	k.t.Helper()
	rows, err := k.db.SQL().Query("SELECT guid FROM deliveries WHERE status = 'pending' ORDER BY received_at, guid")
	k.ok(err)
	defer rows.Close()
	for rows.Next() {
		var guid string
		k.ok(rows.Scan(&guid))
		out = append(out, guid)
	}
	k.ok(rows.Err())
	return out
}

// work works on everything that was told, in the order it came.
func (k *talk) work() { k.t.Helper(); k.workOn(func([]string) {}) }

// workBackwards works on the latest first.
func (k *talk) workBackwards() { k.t.Helper(); k.workOn(slices.Reverse[[]string]) }

func (k *talk) workOn(order func([]string)) {
	k.t.Helper()
	for k.arrive(); ; k.arrive() { // what was done makes events, too
		all := k.pending()
		if len(all) == 0 {
			return
		}
		order(all)
		for _, guid := range all {
			if err := k.in.Deliver(k.t.Context(), guid); err != nil {
				k.t.Fatalf("delivery %s: %v", guid, err)
			}
		}
	}
}

func (k *talk) later() { k.server.Advance(time.Minute) }

func (k *talk) label(name, who string) string {
	k.t.Helper()
	return must(k.server.Label(talkRepo, k.issue, name, who))
}

func (k *talk) say(who, text string) int64 {
	k.t.Helper()
	return must(k.server.Comment(talkRepo, k.issue, who, text))
}

// last is the newest delivery of an event and action.
func (k *talk) last(event, action string) githubd.Delivery {
	k.t.Helper()
	k.arrive()
	for _, d := range slices.Backward(k.server.Deliveries()) {
		if d.Event == event && d.Action == action {
			return d
		}
	}
	k.t.Fatalf("there is no delivery %s.%s", event, action)
	return githubd.Delivery{}
}

// again sends a payload of before as a delivery of its own, changed by change.
func (k *talk) again(event, action string, change func(object)) {
	k.t.Helper()
	d := k.last(event, action)
	var o object
	k.ok(json.Unmarshal(d.Payload, &o))
	if change != nil {
		change(o)
	}
	k.raw(event, body(o))
}

func (k *talk) raw(event, payload string) {
	k.t.Helper()
	d, err := k.server.Deliver(k.t.Context(), githubd.Raw{Event: event, Payload: []byte(payload)})
	k.ok(err)
	if d.StatusCode != http.StatusAccepted {
		k.t.Errorf("%s was answered %d", event, d.StatusCode)
	}
}

// ours are the comments the App wrote.
func (k *talk) ours() (out []string) {
	k.t.Helper()
	for _, c := range must(k.server.Comments(talkRepo, k.issue)) {
		if strings.HasPrefix(c.Body, "<!-- inspect:") {
			out = append(out, c.Body)
		}
	}
	return out
}

// pull opens a pull request from a branch of the repository and talks there
// from now on.
func (k *talk) pull() (head string) {
	k.t.Helper()
	head = must(k.server.PushCommit(talkRepo, "hubot", "topic", "Work", map[string]githubd.File{"a.txt": {Body: "1\n", Mode: 0o100644}}))
	k.issue = must(k.server.OpenPullRequest(talkRepo, "hubot", "topic", "main", "Topic", "It is one.", false))
	k.work()
	k.later() // what is said from now on is younger than the commit
	return head
}

func (k *talk) exec(query string, args ...any) {
	k.t.Helper()
	_, err := k.db.SQL().Exec(query, args...)
	k.ok(err)
}

// post sends a body with any headers and returns the answer's status.
func (k *talk) post(payload string, change func(http.Header)) int {
	k.t.Helper()
	k.next++
	req := must(http.NewRequestWithContext(k.t.Context(), http.MethodPost, k.hooks.URL+webhook.DefaultPath, strings.NewReader(payload)))
	req.Header = http.Header{
		"Content-Type": {"application/json"}, "X-Github-Event": {"issues"}, "X-Github-Delivery": {fmt.Sprintf("00000000-0000-0000-0001-%012d", k.next)},
		"X-Hub-Signature-256": {signed(hookSecret, payload)},
	}
	if change != nil {
		change(req.Header)
	}
	resp := must(k.hooks.Client().Do(req))
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

func signed(secret, payload string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(payload))
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// want is how many sessions there are, how many of them are not over, what the
// sessions were asked besides, and a piece of each reply in order.
type want struct {
	sessions int
	prompts  []string
	replies  []string
}

// A sequence of events, as people and GitHub make them.
type sequence struct {
	name string
	do   func(*talk)
	want want
}

var sequences = []sequence{
	// The same thing told more than once.
	{"a label", func(k *talk) { k.label("inspect", "octocat"); k.work() }, want{sessions: 1}},
	{"the same delivery again (B13)", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		k.ok(k.server.Redeliver(k.last("issues", "labeled").ID))
		k.work()
	}, want{sessions: 1}},
	{"the same delivery before it is worked on", func(k *talk) {
		k.label("inspect", "octocat")
		k.ok(k.server.Redeliver(k.last("issues", "labeled").ID))
		k.work()
	}, want{sessions: 1}},
	{"the same event under another number (B13)", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		k.again("issues", "labeled", nil)
		k.work()
	}, want{sessions: 1}},
	{"the same event under another number after its session ended", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		k.exec("UPDATE sessions SET state = 'failed'")
		k.again("issues", "labeled", nil)
		k.work()
	}, want{sessions: 1}},
	{"the same comment under another number", func(k *talk) {
		k.say("octocat", "/inspect stpo")
		k.work()
		k.again("issue_comment", "created", nil)
		k.work()
	}, want{replies: []string{"`/inspect stop`"}}},
	{"one delivery to many at once", func(k *talk) {
		k.label("inspect", "octocat")
		d := k.last("issues", "labeled")
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				_, _ = k.server.Deliver(k.t.Context(), githubd.Raw{Event: "issues", Payload: d.Payload})
				for _, guid := range k.pending() {
					_ = k.in.Deliver(k.t.Context(), guid)
				}
			})
		}
		all.Wait()
		k.work()
	}, want{sessions: 1}},

	// Labels.
	{"a label put on, taken off and put on again in one second (B22)", func(k *talk) {
		k.label("inspect", "octocat")
		k.ok(k.server.Unlabel(talkRepo, k.issue, "inspect", "octocat"))
		k.label("inspect", "octocat")
		k.work()
	}, want{sessions: 1}},
	{"a label taken off before it is worked on (B22)", func(k *talk) {
		k.label("inspect", "octocat")
		k.later()
		k.ok(k.server.Unlabel(talkRepo, k.issue, "inspect", "octocat"))
		k.work()
	}, want{}},
	{"a label taken off and put on again before it is worked on", func(k *talk) {
		k.label("inspect", "octocat")
		k.later()
		k.ok(k.server.Unlabel(talkRepo, k.issue, "inspect", "octocat"))
		k.later()
		k.label("inspect", "octocat")
		k.work()
	}, want{sessions: 1}},
	{"another label taken off", func(k *talk) {
		k.label("bug", "octocat")
		k.label("inspect", "octocat")
		k.later()
		k.ok(k.server.Unlabel(talkRepo, k.issue, "bug", "octocat"))
		k.work()
	}, want{sessions: 1}},
	{"taken off is told before put on (B16)", func(k *talk) {
		k.label("inspect", "octocat")
		k.later()
		k.ok(k.server.Unlabel(talkRepo, k.issue, "inspect", "octocat"))
		k.workBackwards()
	}, want{}},
	{"put on again while it is worked on", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		k.later()
		k.ok(k.server.Unlabel(talkRepo, k.issue, "inspect", "octocat"))
		k.later()
		k.label("inspect", "octocat")
		k.work()
	}, want{sessions: 1}},
	{"put on again after the end", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		k.exec("UPDATE sessions SET state = 'failed'")
		k.later()
		k.ok(k.server.Unlabel(talkRepo, k.issue, "inspect", "octocat"))
		k.later()
		k.label("inspect", "octocat")
		k.work()
	}, want{sessions: 2}},
	{"two labels that start at once", func(k *talk) {
		k.label("inspect", "octocat")
		k.label("agent", "octocat")
		k.work()
	}, want{sessions: 1}},
	{"a label in another case", func(k *talk) { k.label("INSPECT", "octocat"); k.work() }, want{sessions: 1}},
	{"labels that are nearly it", func(k *talk) {
		for _, name := range []string{"inspector", "inspect ", "in spect", "kind/inspect", "inspect?", "ínspect"} {
			k.label(name, "octocat")
		}
		k.work()
	}, want{}},
	{"a template's label, of somebody who may not write (B33)", func(k *talk) {
		k.issue = must(k.server.OpenIssue(talkRepo, "monalisa", "It fails", "/inspect fix it", "inspect"))
		k.work()
	}, want{}},
	{"a label of somebody with the triage role (B33)", func(k *talk) {
		k.ok(k.server.SetPermission(talkRepo, "monalisa", "triage"))
		k.label("inspect", "monalisa")
		k.work()
	}, want{}},
	{"a label of a bot (B28)", func(k *talk) {
		must(k.server.AddUser("helper[bot]", "Bot"))
		k.label("inspect", "helper[bot]")
		k.work()
	}, want{}},
	{"our own label", func(k *talk) { k.label("inspect", "inspect[bot]"); k.work() }, want{}},
	{"the label is renamed and deleted", func(k *talk) {
		k.label("inspect", "octocat")
		k.again("issues", "labeled", func(o object) {
			delete(o, "issue")
			o["action"], o["changes"] = "edited", object{"name": object{"from": "inspect"}}
		})
		k.work()
		k.raw("label", `{"action":"deleted","label":{"name":"inspect"}}`)
		k.work()
	}, want{sessions: 1}},
	{"a label without a name", func(k *talk) {
		k.label("inspect", "octocat")
		d := k.last("issues", "labeled")
		k.exec("DELETE FROM deliveries WHERE guid = $1", d.GUID)
		k.again("issues", "labeled", func(o object) { o["label"] = nil })
		k.work()
	}, want{}},
	{"the issue is opened again with its label", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		k.exec("UPDATE sessions SET state = 'delivered'")
		k.ok(k.server.SetState(talkRepo, k.issue, "octocat", "closed"))
		k.later()
		k.ok(k.server.SetState(talkRepo, k.issue, "octocat", "open"))
		k.work()
	}, want{sessions: 1}},
	{"the issue is closed before the label is worked on", func(k *talk) {
		k.label("inspect", "octocat")
		k.later()
		k.ok(k.server.SetState(talkRepo, k.issue, "octocat", "closed"))
		k.work()
	}, want{}},
	{"a label on a closed issue", func(k *talk) {
		k.ok(k.server.SetState(talkRepo, k.issue, "octocat", "closed"))
		k.label("inspect", "octocat")
		k.work()
	}, want{replies: []string{"closed"}}},

	// Comments.
	{"a command while a session runs", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		k.say("hubot", "/inspect and its test")
		k.work()
	}, want{sessions: 1, prompts: []string{"hubot: and its test"}}},
	{"two requests of two people at once", func(k *talk) {
		k.say("octocat", "/inspect fix the sum")
		k.say("hubot", "/inspect fix the product")
		k.work()
	}, want{sessions: 1, prompts: []string{"hubot: fix the product"}}},
	{"label and request at once", func(k *talk) {
		k.label("inspect", "octocat")
		k.say("octocat", "/inspect quickly please")
		k.work()
	}, want{sessions: 1, prompts: []string{"octocat: quickly please"}}},
	{"a request, then a stop, told the other way round", func(k *talk) {
		k.say("octocat", "/inspect fix the sum")
		k.later()
		k.say("octocat", "/inspect stop")
		k.workBackwards()
	}, want{replies: []string{"no session here"}}},
	{"edited into a command", func(k *talk) {
		id := k.say("octocat", "hello")
		k.ok(k.server.EditComment(talkRepo, id, "octocat", "/inspect fix it"))
		k.work()
	}, want{}},
	{"edited by somebody else (B29)", func(k *talk) {
		id := k.say("monalisa", "hello")
		k.ok(k.server.EditComment(talkRepo, id, "octocat", "/inspect fix it"))
		k.work()
	}, want{}},
	{"edited after it was given", func(k *talk) {
		id := k.say("octocat", "/inspect fix the sum")
		k.ok(k.server.EditComment(talkRepo, id, "octocat", "/inspect fix everything"))
		k.workBackwards()
	}, want{sessions: 1}},
	{"deleted before we read it", func(k *talk) {
		id := k.say("octocat", "/inspect stpo")
		k.ok(k.server.DeleteComment(talkRepo, id, "octocat"))
		k.work()
	}, want{replies: []string{"`/inspect stop`"}}},
	{"the comment of a request is gone", func(k *talk) {
		id := k.say("octocat", "/inspect fix it")
		k.ok(k.server.DeleteComment(talkRepo, id, "octocat"))
		k.work()
	}, want{sessions: 1}},
	{"several in one comment", func(k *talk) {
		k.say("octocat", "/inspect stop\n\n/inspect fix the sum\n\n/inspect status")
		k.work()
	}, want{sessions: 1, replies: []string{"no session here"}}},
	{"six in one comment", func(k *talk) { k.say("octocat", strings.Repeat("/inspect stop\n\n", 6)); k.work() }, want{replies: []string{"at most five"}}},
	{"a stranger's mistake", func(k *talk) { k.say("monalisa", "/inspect stpo\n/inspect --yes x"); k.work() }, want{}},
	{"a reader asks, and asks for more", func(k *talk) { k.say("monalisa", "/inspect help\n\n/inspect fix it"); k.work() }, want{replies: []string{"| `/inspect stop` |"}}},
	{"an association that is none, of somebody who may write (B30)", func(k *talk) {
		k.say("hubot", "hello")
		k.again("issue_comment", "created", func(o object) {
			c := at(o, "comment")
			c["id"], c["body"], c["author_association"] = 991, "/inspect fix it", "NONE"
		})
		k.work()
	}, want{sessions: 1}},
	{"an association that is OWNER, of somebody who may not", func(k *talk) {
		k.say("monalisa", "hello")
		k.again("issue_comment", "created", func(o object) {
			c := at(o, "comment")
			c["id"], c["body"], c["author_association"] = 992, "/inspect fix it", "OWNER"
		})
		k.work()
	}, want{}},
	{"the permission is lost in between", func(k *talk) {
		k.say("hubot", "/inspect fix it")
		k.arrive()
		k.ok(k.server.SetPermission(talkRepo, "hubot", "read"))
		k.work()
	}, want{}},
	{"the login belongs to another account by now", func(k *talk) {
		k.say("hubot", "hello")
		k.again("issue_comment", "created", func(o object) {
			at(o, "comment")["id"], at(o, "comment")["body"] = 993, "/inspect fix it"
			at(o, "sender")["id"], at(o, "comment.user")["id"] = 424242, 424242
		})
		k.work()
	}, want{}},
	{"the sender is not the author", func(k *talk) {
		k.say("monalisa", "hello")
		k.again("issue_comment", "created", func(o object) {
			at(o, "comment")["id"], at(o, "comment")["body"] = 994, "/inspect fix it"
			o["sender"] = object{"id": 583231, "login": "octocat", "type": "User"}
		})
		k.work()
	}, want{}},
	{"a bot's comment (B28)", func(k *talk) {
		must(k.server.AddUser("helper[bot]", "Bot"))
		k.say("helper[bot]", "/inspect fix it")
		k.work()
	}, want{}},
	{"a person who calls itself a bot", func(k *talk) {
		k.say("hubot", "hello")
		k.again("issue_comment", "created", func(o object) {
			for _, a := range []object{at(o, "sender"), at(o, "comment.user")} {
				a["login"] = "octocat[bot]"
			}
			at(o, "comment")["id"], at(o, "comment")["body"] = 995, "/inspect fix it"
		})
		k.work()
	}, want{}},
	{"our own words with a command in them (B26, B27)", func(k *talk) {
		k.say("inspect[bot]", "/inspect approve\n\n/inspect fix it")
		k.again("issue_comment", "created", func(o object) { at(o, "comment")["performed_via_github_app"] = object{"id": 12345} })
		k.work()
	}, want{}},
	{"our reply comes back as an event", func(k *talk) {
		k.say("octocat", "/inspect stpo")
		k.work()
		if d := k.last("issue_comment", "created"); !strings.Contains(string(d.Payload), "inspect[bot]") {
			k.t.Error("GitHub did not tell of our reply")
		}
	}, want{replies: []string{"`/inspect stop`"}}},
	{"somebody quotes our reply", func(k *talk) {
		k.say("octocat", "/inspect help")
		k.work()
		quote := "> " + strings.ReplaceAll(k.ours()[0], "\n", "\n> ") + "\n\nThanks."
		k.say("octocat", quote)
		k.work()
	}, want{replies: []string{"| `/inspect stop` |"}}},
	{"two programs that answer each other", func(k *talk) {
		for range maxWishes + 4 {
			k.say("octocat", "/inspect rewind 3")
			k.work()
		}
	}, want{replies: append(slices.Repeat([]string{"no session here"}, maxWishes), "nothing more of it is obeyed")}},
	{"as long as GitHub takes", func(k *talk) { k.say("octocat", "/inspect "+strings.Repeat("é", 65527)); k.work() }, want{sessions: 1}},
	{"a locked conversation", func(k *talk) {
		k.ok(k.server.Lock(talkRepo, k.issue, "octocat"))
		k.say("octocat", "/inspect fix it")
		k.say("octocat", "/inspect stpo")
		k.work()
	}, want{}},

	// Pull requests.
	{"a request on a pull request", func(k *talk) { k.pull(); k.say("octocat", "/inspect fix it"); k.work() }, want{sessions: 1}},
	{"a label on a pull request", func(k *talk) { k.pull(); k.label("inspect", "octocat"); k.work() }, want{sessions: 1}},
	{"a push after the comment, before we read it (B19, B24)", func(k *talk) {
		k.pull()
		k.say("octocat", "/inspect fix it")
		k.later()
		must(k.server.PushCommit(talkRepo, "hubot", "topic", "More", map[string]githubd.File{"a.txt": {Body: "2\n", Mode: 0o100644}}))
		k.work()
	}, want{replies: []string{"--head"}}},
	{"the push is told first", func(k *talk) {
		k.pull()
		k.say("octocat", "/inspect fix it")
		k.later()
		must(k.server.ForcePush(talkRepo, "hubot", "topic", "Another", map[string]githubd.File{"a.txt": {Body: "3\n", Mode: 0o100644}}))
		k.workBackwards()
	}, want{replies: []string{"--head"}}},
	{"merged before we read it", func(k *talk) {
		k.pull()
		k.say("octocat", "/inspect fix it")
		must(k.server.MergePullRequest(talkRepo, k.issue, "octocat"))
		k.work()
	}, want{replies: []string{"merged"}}},
	{"made a draft and retargeted while it is worked on", func(k *talk) {
		k.pull()
		k.say("octocat", "/inspect fix it")
		k.work()
		k.ok(k.server.ConvertToDraft(talkRepo, k.issue, "hubot"))
		must(k.server.PushCommit(talkRepo, "octocat", "release", "x", map[string]githubd.File{"b.txt": {Body: "1\n", Mode: 0o100644}}))
		k.ok(k.server.Retarget(talkRepo, k.issue, "hubot", "release"))
		k.work()
	}, want{sessions: 1}},
	{"a command in a review and on a line", func(k *talk) {
		k.pull()
		must(k.server.SubmitReview(talkRepo, k.issue, "octocat", "COMMENTED", "/inspect fix the name"))
		must(k.server.ReviewComment(talkRepo, k.issue, "octocat", "a.txt", 1, "/inspect and this line"))
		k.work()
	}, want{sessions: 1, prompts: []string{"octocat: and this line"}}},
	{"a line's comment edited into a command", func(k *talk) {
		k.pull()
		id := must(k.server.ReviewComment(talkRepo, k.issue, "octocat", "a.txt", 1, "hm"))
		k.ok(k.server.EditReviewComment(talkRepo, id, "octocat", "/inspect fix it"))
		k.work()
	}, want{}},

	// Repositories and installations.
	{"renamed in between (B0.6)", func(k *talk) {
		k.label("inspect", "octocat")
		k.arrive()
		k.ok(k.server.RenameRepository(talkRepo, "hallo", 301))
		k.work()
		k.ok(k.server.RenameRepository("octocat/hallo", "hello", 301))
		k.work()
	}, want{sessions: 1}},
	{"archived in between", func(k *talk) {
		k.say("octocat", "/inspect stpo")
		k.arrive()
		k.ok(k.server.Archive(talkRepo))
		k.work()
	}, want{}},
	{"suspended in between", func(k *talk) {
		k.label("inspect", "octocat")
		k.arrive()
		k.ok(k.server.Suspend(k.install, "octocat"))
		k.work()
		k.ok(k.server.Unsuspend(k.install, "octocat"))
		k.work()
	}, want{}},
	{"suspended, not told, and asked again", func(k *talk) {
		k.label("inspect", "octocat")
		k.arrive()
		k.ok(k.server.Suspend(k.install, "octocat"))
		k.arrive()
		k.exec("DELETE FROM deliveries WHERE event = 'installation'") // lost
		k.work()
		if k.number("SELECT count(*) FROM installations WHERE suspended_at IS NOT NULL") != 1 {
			k.t.Error("the suspension was not learnt from the error")
		}
		k.ok(k.server.Unsuspend(k.install, "octocat"))
		k.later()
		k.say("octocat", "/inspect fix it")
		k.work()
	}, want{sessions: 1}},
	{"uninstalled in between", func(k *talk) {
		k.label("inspect", "octocat")
		k.arrive()
		k.ok(k.server.Uninstall(k.install, "octocat"))
		k.work()
	}, want{}},
	{"the repository is taken out of the installation in between", func(k *talk) {
		k.label("inspect", "octocat")
		k.arrive()
		k.ok(k.server.RemoveFromInstallation(k.install, "hello"))
		k.work()
	}, want{}},
	{"a repository nobody installed us on", func(k *talk) {
		k.label("bug", "octocat")
		k.again("issues", "labeled", func(o object) {
			at(o, "label")["name"] = "inspect"
			r := at(o, "repository")
			r["id"], r["name"], r["full_name"] = 424242, "other", "octocat/other"
		})
		k.work()
	}, want{}},
	{"an installation that is not ours", func(k *talk) {
		k.label("bug", "octocat")
		k.again("issues", "labeled", func(o object) {
			at(o, "label")["name"], at(o, "installation")["id"] = "inspect", 424242
		})
		k.work()
	}, want{}},

	// What is no wish of anybody.
	{"the issue is transferred (1.2)", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		k.again("issues", "labeled", func(o object) { // to the destination first
			o["action"], at(o, "repository")["id"] = "opened", 424242
		})
		k.again("issues", "labeled", func(o object) {
			o["action"], o["changes"] = "transferred", object{"new_issue": at(o, "issue"), "new_repository": at(o, "repository")}
		})
		k.work()
	}, want{sessions: 1}},
	{"the issue becomes a discussion and is deleted", func(k *talk) {
		k.label("inspect", "octocat")
		k.work()
		k.raw("discussion", `{"action":"created","discussion":{"body":"/inspect fix it"}}`)
		k.again("issues", "labeled", func(o object) { o["action"] = "deleted" })
		k.work()
	}, want{sessions: 1}},
	{"actions and events of tomorrow", func(k *talk) {
		k.label("bug", "octocat")
		for _, event := range Events() {
			k.again("issues", "labeled", func(o object) { o["action"] = "invented" })
			k.raw(event, `{"action":"invented"}`)
			k.raw(event, `{"action":null}`)
			k.raw(event, `{}`)
		}
		k.raw("sponsorship", `{"action":"created"}`)
		k.server.Ping()
		k.work()
	}, want{}},
	{"bodies that are no delivery", func(k *talk) {
		for _, text := range []string{"", " ", "null", "[]", "7", `"x"`, "{", `{"action":1}`, `{"issue":[]}`, "\xff\xfe{}", `{"action":"labeled"}{}`} {
			if code := k.post(text, nil); code != 202 {
				k.t.Errorf("%q was answered %d", text, code)
			}
		}
		k.work()
	}, want{}},
	{"a form", func(k *talk) {
		if code := k.post("payload=%7B%7D", func(h http.Header) { h.Set("Content-Type", "application/x-www-form-urlencoded") }); code != 415 {
			k.t.Errorf("answered %d", code)
		}
	}, want{}},
	{"secrets while they are rotated", func(k *talk) {
		for secret, want := range map[string]int{hookSecret: 202, "new secret": 202, "the one before": 401, "": 401} {
			if code := k.post("{}", func(h http.Header) { h.Set("X-Hub-Signature-256", signed(secret, "{}")) }); code != want {
				k.t.Errorf("%q: answered %d, want %d", secret, code, want)
			}
		}
		k.work()
	}, want{}},
}

func TestSequences(t *testing.T) { play(t, sequences) }

func play(t *testing.T, list []sequence) {
	w := setup(t, nil)
	for _, tt := range list {
		t.Run(tt.name, func(t *testing.T) {
			k := openTalk(t, w)
			tt.do(k)
			all := k.sessions()
			if len(all) != tt.want.sessions {
				t.Errorf("%d sessions, want %d; replies %q; the log says:\n%s", len(all), tt.want.sessions, k.ours(), k.log)
			}
			var prompts []string
			for _, s := range all {
				prompts = append(prompts, k.prompts(s.ID)...)
			}
			if !slices.Equal(prompts, tt.want.prompts) {
				t.Errorf("asked besides: %q, want %q", prompts, tt.want.prompts)
			}
			replies := k.ours()
			for i, r := range replies {
				if i < len(tt.want.replies) && !strings.Contains(r, tt.want.replies[i]) {
					t.Errorf("reply %q lacks %q", r, tt.want.replies[i])
				}
				if command.Parse(r)[0] != (command.Ignore{}) {
					t.Errorf("the reply reads as a command: %q", r)
				}
			}
			if len(replies) != len(tt.want.replies) {
				t.Errorf("%d replies, want %d: %q", len(replies), len(tt.want.replies), replies)
			}
			if left := k.pending(); len(left) != 0 {
				t.Errorf("nobody worked on %q", left)
			}
		})
	}
}
