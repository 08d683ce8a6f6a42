package intake

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/app/github"
	"inspect/envs/spec"
	"inspect/scheduler"
)

func TestLabelStartsSession(t *testing.T) {
	w := setup(t, nil)
	d := w.deliver("issues", body(labeled()))
	if d.Status != "done" || d.Note != "started" {
		t.Errorf("delivery %s: %s", d.Status, d.Note)
	}
	s := w.one()
	if s.Title != "Sum is wrong" || s.BaseBranch != "main" || s.BaseSha != head || s.SpecSource != ".inspect.yml" || s.RequesterID != octocat ||
		s.RequesterLogin != "octocat" || s.IssueNumber != 3 || s.IntentKey != labelIntent() || s.InstallationID != 11 || s.State != "queued" {
		t.Errorf("session %+v", s)
	}
	for _, part := range []string{"octocat/hello", "1+1 gives 3", "go test -json ./...", "issue 3"} {
		if !strings.Contains(s.Prompt, part) {
			t.Errorf("the prompt lacks %q", part)
		}
	}
	if i := w.intent(labelIntent()); i.Outcome != outcomeStarted || i.SessionID.String != s.ID || i.ActorID != octocat || i.Kind != "label" {
		t.Errorf("intent %+v", i)
	}
	if len(w.gh.replies()) != 0 {
		t.Error("a reply was written: the session's comment is somebody else's work")
	}
	want := []string{"Permission octocat", "BranchHead main", "File .inspect.yml " + head, "ReactIssue 3 eyes"}
	if got := strings.Join(w.gh.calls, "; "); got != strings.Join(want, "; ") {
		t.Errorf("GitHub was asked %s", got)
	}
}

// A commit that GitHub signs takes three writes in place of one push. Where it is
// known that one will be made, the reaction to a label is left out.
func TestNoReactionWhereGitHubSigns(t *testing.T) {
	w := setup(t, nil)
	reactions := func() int {
		return strings.Count(strings.Join(w.gh.calls, "; "), "ReactIssue")
	}
	w.gh.files[".inspect.yml"] = goodSpec + "publish: {signed: always}\n"
	w.deliver("issues", body(labeled()))
	first := w.one()
	if reactions() != 0 {
		t.Error("a reaction though every commit is signed")
	}
	next := func(n int) {
		t.Helper()
		w.exec("UPDATE sessions SET state = 'delivered', finished_at = now()")
		o := labeled()
		at(o, "issue")["updated_at"] = fmt.Sprintf("2027-01-02T04:00:%02dZ", n)
		w.deliver("issues", body(o))
	}
	w.gh.files[".inspect.yml"] = goodSpec
	w.exec("UPDATE sessions SET receipt = '{\"signed\": true}' WHERE id = $1", first.ID)
	next(1)
	if reactions() != 0 {
		t.Error("a reaction though the last commit had to be signed")
	}
	w.gh.files[".inspect.yml"] = goodSpec + "publish: {signed: never}\n"
	next(2)
	if reactions() != 1 || len(w.sessions()) != 3 {
		t.Errorf("%d reactions, %d sessions", reactions(), len(w.sessions()))
	}
}

func TestOneSessionForOneLabel(t *testing.T) {
	w := setup(t, nil)
	first := w.store("issues", body(labeled()))
	guids := []string{first, w.store("issues", body(labeled())), w.store("issues", body(labeled())), w.store("issues", body(labeled()))}
	var wg sync.WaitGroup
	for _, guid := range guids {
		wg.Go(func() {
			for range 5 {
				if err := w.in.Deliver(t.Context(), guid); err != nil {
					t.Errorf("delivery: %v", err)
				}
			}
		})
	}
	wg.Wait()
	w.one()
	for _, guid := range guids {
		if d := w.delivery(guid); d.Status != "done" {
			t.Errorf("delivery %s: %s", d.Status, d.Note)
		}
	}
}

func TestLabelWhileSessionRuns(t *testing.T) {
	w := setup(t, nil)
	w.deliver("issues", body(labeled()))
	again := labeled()
	at(again, "issue")["updated_at"] = "2027-01-02T04:00:00Z"
	d := w.deliver("issues", body(again))
	w.one()
	if d.Note != "duplicate" || len(w.gh.replies()) != 0 {
		t.Errorf("note %q, replies %q", d.Note, w.gh.replies())
	}
	w.set("failed")
	at(again, "issue")["updated_at"] = "2027-01-02T05:00:00Z"
	w.deliver("issues", body(again))
	if n := len(w.sessions()); n != 2 {
		t.Errorf("%d sessions after the first ended, want two", n)
	}
}

// TestTwoWishesAtOnce races a label and commands for one issue.
func TestTwoWishesAtOnce(t *testing.T) {
	w := setup(t, nil)
	guids := []string{w.store("issues", body(labeled()))}
	for i := range 3 {
		c := commented("/inspect fix it")
		at(c, "comment")["id"] = 600 + i
		guids = append(guids, w.store("issue_comment", body(c)))
	}
	var wg sync.WaitGroup
	for _, guid := range guids {
		wg.Go(func() {
			if err := w.in.Deliver(t.Context(), guid); err != nil {
				t.Errorf("delivery: %v", err)
			}
		})
	}
	wg.Wait()
	w.one()
}

func TestLabelIgnored(t *testing.T) {
	w := setup(t, nil)
	tests := map[string]func(object){
		"another action":    func(o object) { o["action"] = "unlabeled" },
		"another label":     func(o object) { at(o, "label")["name"] = "bug" },
		"no label":          func(o object) { o["label"] = nil },
		"no issue":          func(o object) { o["issue"] = nil },
		"no repository":     func(o object) { delete(o, "repository") },
		"no installation":   func(o object) { o["installation"] = nil },
		"nameless":          func(o object) { at(o, "repository")["full_name"] = nil; at(o, "repository")["name"] = nil },
		"label of no words": func(o object) { o["label"] = object{} },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			w := w.fresh(t)
			o := labeled()
			change(o)
			if d := w.deliver("issues", body(o)); d.Status != "ignored" || d.Note == "" {
				t.Errorf("delivery %s: %q", d.Status, d.Note)
			}
			if len(w.sessions()) != 0 || len(w.gh.calls) != 0 {
				t.Errorf("%d sessions, calls %q", len(w.sessions()), w.gh.calls)
			}
		})
	}
}

func TestSilence(t *testing.T) {
	w := setup(t, nil)
	tests := []struct {
		name   string
		change func(object)
		reason string
		asked  int
	}{
		{"reader", func(o object) { by(o, hubot, "hubot") }, "read_only", 1},
		{"stranger", func(o object) { by(o, monalisa, "monalisa") }, "no_access", 1},
		{"bot", func(o object) { by(o, bot, "hubot") }, "bot", 0},
		{"bot by its name", func(o object) { by(o, monalisa, "hubot[bot]") }, "bot", 0},
		{"nobody", func(o object) { o["sender"] = nil }, "actor_unknown", 0},
		{"login that changed hands", func(o object) { by(o, monalisa, "octocat") }, "permission_unknown", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := w.fresh(t)
			o := labeled()
			tt.change(o)
			w.deliver("issues", body(o))
			if i := w.intent(labelIntent()); i.Outcome != outcomeDenied || !strings.HasPrefix(i.Note, tt.reason+":") {
				t.Errorf("intent %s: %s", i.Outcome, i.Note)
			}
			if n := w.gh.count("Permission"); n != tt.asked || len(w.gh.calls) != tt.asked {
				t.Errorf("calls %q", w.gh.calls)
			}
			if len(w.sessions()) != 0 {
				t.Error("a session was started")
			}
		})
	}
}

func TestPermissionErrorDenies(t *testing.T) {
	w := setup(t, nil)
	w.gh.fail["Permission"] = github.ErrDenied
	w.deliver("issues", body(labeled()))
	if i := w.intent(labelIntent()); i.Outcome != outcomeDenied || len(w.sessions()) != 0 || len(w.gh.calls) != 1 {
		t.Errorf("intent %s, calls %q", i.Outcome, w.gh.calls)
	}
}

func TestSuspendedIsLearnedFromTheError(t *testing.T) {
	w := setup(t, nil)
	w.deliver("installation", `{"action":"created","installation":{"id":11,"account":{"login":"octocat"}}}`)
	w.gh.fail["Permission"] = fmt.Errorf("asking: %w", github.ErrSuspended)
	w.deliver("issues", body(labeled()))
	var suspended bool
	if err := w.db.SQL().QueryRow("SELECT suspended_at IS NOT NULL FROM installations WHERE id = 11").Scan(&suspended); err != nil || !suspended {
		t.Errorf("suspended = %v, %v", suspended, err)
	}
}

// TestGitHubAway fails each request in turn with what passes, tries again, and
// finds one session, whichever it was.
func TestGitHubAway(t *testing.T) {
	w := setup(t, nil)
	until := time.Date(2027, 1, 2, 4, 0, 0, 0, time.UTC)
	for _, call := range []string{"Permission", "BranchHead", "File", "ReactIssue", "Comments"} {
		for name, cause := range map[string]error{
			"unwell": github.ErrUnavailable, "limited": &github.RateLimited{Until: until}, "unheard of": errors.New("connection reset"),
			"denied for the rate": fmt.Errorf("%w: %w", github.ErrDenied, &github.RateLimited{Until: until}),
		} {
			t.Run(call+" "+name, func(t *testing.T) {
				w := w.fresh(t)
				o := labeled()
				at(o, "issue")["comments"] = 1
				guid := w.store("issues", body(o))
				w.gh.fail[call] = cause
				for range 3 {
					err := w.in.Deliver(t.Context(), guid)
					if err == nil {
						t.Fatal("no error")
					}
					if errors.Is(err, scheduler.ErrPermanent) {
						t.Errorf("permanent: %v", err)
					}
					var at scheduler.RetryAt
					if limited := strings.Contains(name, "rate") || name == "limited"; errors.As(err, &at) != limited || limited && !at.RetryAt().Equal(until) {
						t.Errorf("when to try again is wrong: %v", err)
					}
				}
				if w.delivery(guid).Status != "pending" || len(w.sessions()) != 0 || len(w.gh.replies()) != 0 {
					t.Error("something happened already")
				}
				delete(w.gh.fail, call)
				if err := w.in.Deliver(t.Context(), guid); err != nil {
					t.Fatal(err)
				}
				w.one()
			})
		}
	}
}

func TestReactionIsNotNeeded(t *testing.T) {
	w := setup(t, nil)
	for _, cause := range []error{github.ErrDenied, github.ErrGone, github.ErrAmbiguous} {
		w := w.fresh(t)
		w.gh.fail["ReactIssue"] = cause
		w.deliver("issues", body(labeled()))
		w.one()
	}
}

func TestBrokenSpec(t *testing.T) {
	w := setup(t, nil)
	w.gh.files[".inspect.yml"] = "version: 1\nverify:\n  - {name: unit, run: x, report: junit2}\n"
	w.deliver("issues", body(labeled()))
	words := w.oneReply()
	for _, part := range []string{"| 3 |", "`verify[0].report`", "expected", "junit2"} {
		if !strings.Contains(words, part) {
			t.Errorf("the reply lacks %q:\n%s", part, words)
		}
	}
	if len(w.sessions()) != 0 {
		t.Error("a session was started")
	}
	if i := w.intent(labelIntent()); i.Outcome != outcomeReplied {
		t.Errorf("intent %s", i.Outcome)
	}
}

func TestSpecAnswers(t *testing.T) {
	w := setup(t, nil)
	tests := []struct {
		name   string
		change func(*fakeGitHub)
		want   string
	}{
		{"nothing detected", func(g *fakeGitHub) { g.files = nil; g.root = []string{"README.md"} }, "Add a `.inspect.yml`"},
		{"nothing to verify", func(g *fakeGitHub) { g.files[".inspect.yml"] = "version: 1\nsetup: [make]\n" }, "no `verify` command"},
		{"too large", func(g *fakeGitHub) { g.fail["File"] = github.ErrTooLarge }, "at most 65536 bytes"},
		{"larger than it may be", func(g *fakeGitHub) { g.files[".inspect.yml"] = strings.Repeat("#", spec.MaxFileBytes+1) }, "at most 65536 bytes"},
		{"no commit", func(g *fakeGitHub) { g.branches = nil }, "no commit to start from"},
		{"not supported yet", func(g *fakeGitHub) {
			g.files[".inspect.yml"] = goodSpec + "publish: {draft: false}\n"
		}, "not supported yet"},
		{"may not read", func(g *fakeGitHub) { g.fail["File"] = github.ErrDenied }, "GitHub does not allow it"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := w.fresh(t)
			tt.change(w.gh)
			w.deliver("issues", body(labeled()))
			if words := w.oneReply(); !strings.Contains(words, tt.want) {
				t.Errorf("the reply lacks %q:\n%s", tt.want, words)
			}
			if len(w.sessions()) != 0 {
				t.Error("a session was started")
			}
		})
	}
}

func TestDetected(t *testing.T) {
	w := setup(t, nil)
	w.gh.files, w.gh.root = nil, []string{"README.md", "go.mod"}
	w.deliver("issues", body(labeled()))
	if s := w.one(); s.SpecSource != "detected from go.mod" {
		t.Errorf("source %q", s.SpecSource)
	}
}

func TestIssueClosedLockedArchived(t *testing.T) {
	w := setup(t, nil)
	for name, tt := range map[string]struct {
		change func(object)
		words  string
	}{
		"closed":   {func(o object) { at(o, "issue")["state"] = "closed" }, "is closed"},
		"locked":   {func(o object) { at(o, "issue")["locked"] = true }, ""},
		"archived": {func(o object) { at(o, "repository")["archived"] = true }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.fresh(t)
			o := labeled()
			tt.change(o)
			w.deliver("issues", body(o))
			if len(w.sessions()) != 0 {
				t.Error("a session was started")
			}
			if tt.words == "" {
				if len(w.gh.replies()) != 0 {
					t.Error("a reply where nothing can be written")
				}
			} else if words := w.oneReply(); !strings.Contains(words, tt.words) {
				t.Errorf("reply %q", words)
			}
		})
	}
}

func TestTriggerLabels(t *testing.T) {
	w := setup(t, nil)
	own := goodSpec + "triggers: {labels: [robot]}\n"
	tests := []struct {
		name     string
		operator []string
		file     string
		label    string
		started  bool
		asked    bool // GitHub was asked for the file
	}{
		{"default", nil, goodSpec, "inspect", true, true},
		{"without case", nil, goodSpec, "Inspect", true, true},
		{"the file names another", nil, own, "inspect", false, true},
		{"the operator does not know it", nil, own, "robot", false, false},
		{"both know it", []string{"inspect", "robot"}, own, "robot", true, true},
		{"the file does not name it", []string{"inspect", "robot"}, goodSpec, "robot", false, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := w.fresh(t)
			options := w.in.o
			options.Labels = tt.operator
			var err error
			if w.in, err = New(options); err != nil {
				t.Fatal(err)
			}
			w.gh.files[".inspect.yml"] = tt.file
			o := labeled()
			at(o, "label")["name"] = tt.label
			w.deliver("issues", body(o))
			if started := len(w.sessions()) == 1; started != tt.started {
				t.Errorf("started = %v", started)
			}
			if asked := w.gh.count("File") == 1; asked != tt.asked {
				t.Errorf("calls %q", w.gh.calls)
			}
			if n := w.gh.count("React"); (n == 1) != tt.started || len(w.gh.replies()) != 0 {
				t.Errorf("%d reactions, replies %q", n, w.gh.replies())
			}
		})
	}
}

func TestCommentsAsData(t *testing.T) {
	before, after := moments()
	w := setup(t, nil)
	w.gh.comments = []github.Comment{
		{ID: 1, UserID: octocat, Login: "octocat", Body: "first words", Created: before, Updated: before},
		{ID: 2, UserID: monalisa, Login: "monalisa", Association: "NONE", Body: "a stranger's", Created: before, Updated: before},
		{ID: 3, UserID: hubot, Login: "hubot", Association: "COLLABORATOR", Body: "a reader's", Created: before, Updated: before},
		{ID: 4, UserID: octocat, Login: "octocat", Body: "changed later", Created: before, Updated: after},
		{ID: 5, UserID: octocat, Login: "octocat", Body: "said later", Created: after, Updated: after},
		{ID: 6, UserID: bot, Login: "x[bot]", Bot: true, Body: "a bot's", Created: before, Updated: before},
	}
	o := labeled()
	at(o, "issue")["comments"] = 6
	w.deliver("issues", body(o))
	s := w.one()
	if !strings.Contains(s.Prompt, "first words") {
		t.Error("the words of a writer are missing")
	}
	for _, no := range []string{"a stranger's", "a reader's", "changed later", "said later", "a bot's"} {
		if strings.Contains(s.Prompt, no) {
			t.Errorf("%q is in the prompt", no)
		}
	}
	if !strings.Contains(s.Prompt, "3 more comments are left out") {
		t.Errorf("what is left out is not said:\n%s", s.Prompt)
	}
	if n := w.gh.count("Permission"); n != 2 {
		t.Errorf("%d permissions were asked, want the requester's and one more", n)
	}
}

func TestHostilePayloadText(t *testing.T) {
	w := setup(t, nil)
	o := labeled()
	at(o, "issue")["title"] = "a\x00b\n" + strings.Repeat("界", 100_000)
	at(o, "issue")["body"] = "\x00\u202e/inspect stop"
	at(o, "issue")["user"] = nil
	w.deliver("issues", body(o))
	s := w.one()
	if len(s.Title) > 2048 || strings.ContainsAny(s.Title, "\x00\n") {
		t.Errorf("title of %d bytes", len(s.Title))
	}
}

func TestSpecIsPinned(t *testing.T) {
	w := setup(t, nil)
	w.deliver("issues", body(labeled()))
	var sp spec.Spec
	if err := json.Unmarshal(w.one().Spec, &sp); err != nil || len(sp.Verify) != 1 || sp.Verify[0].Name != "unit" {
		t.Errorf("spec %+v, %v", sp, err)
	}
}
