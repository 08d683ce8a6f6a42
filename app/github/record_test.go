package github

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// records takes what is recorded, in the order of requests.
type records struct {
	mu   sync.Mutex
	said []string
	fail string // phase whose recording fails
}

func (r *records) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func (r *records) record(_ context.Context, session string, w Write) error {
	if w.Phase == r.fail {
		return errors.New("the database is away")
	}
	body, err := json.Marshal(w)
	r.add("%s %s", session, body)
	return err
}

func TestWritesAreRecordedBeforeAndAfter(t *testing.T) {
	ctx := ForSession(ctxFor(t), "abcdefghij", "abcdefghij/0/comment")
	rec := &records{}
	h := newHub(t, func(w http.ResponseWriter, r *http.Request, _ string) {
		rec.add("GitHub got %s", r.Method)
		reply(w, 201, map[string]any{"id": 77})
	})
	c := h.client(t, func(o *Options) { o.Record = rec.record })
	if _, err := c.CreateComment(ctx, hello, 3, "hunter2-canary is in the body"); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`abcdefghij {"phase":"asked","what":"comment","method":"POST","path":"/repos/octocat/hello/issues/3/comments","key":"abcdefghij/0/comment"}`,
		`GitHub got POST`,
		`abcdefghij {"phase":"answered","what":"comment","method":"POST","path":"/repos/octocat/hello/issues/3/comments","key":"abcdefghij/0/comment","status":201,"id":77}`,
	}
	if got := strings.Join(rec.said, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("recorded\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	// Reads and tokens are no writes, and writes of no session are not of one.
	rec.said = nil
	if _, err := c.Comments(ctx, hello, 3); err == nil {
		t.Error("an object was read as a list")
	}
	if err := c.ReactIssue(ForSession(ctx, "", "label:1"), hello, 3, "eyes"); err != nil {
		t.Fatal(err)
	}
	for _, s := range rec.said {
		if !strings.HasPrefix(s, "GitHub got") {
			t.Errorf("recorded: %s", s)
		}
	}
}

func TestWhatCannotBeRecordedIsNotSent(t *testing.T) {
	ctx := ForSession(ctxFor(t), "abcdefghij", "k")
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request, _ string) { reply(w, 201, map[string]any{"id": 77}) })
	c := h.client(t, func(o *Options) { o.Record = (&records{fail: WriteAsked}).record })
	if _, err := c.CreateComment(ctx, hello, 3, "hello"); err == nil || !strings.Contains(err.Error(), "cannot be recorded, so it is not sent: the database is away") {
		t.Errorf("got %v", err)
	}
	if sent := h.sent(); len(sent) != 0 {
		t.Errorf("sent %v", sent)
	}
	// That it was asked for is recorded: what was done is not undone by a lost answer.
	c = h.client(t, func(o *Options) { o.Record = (&records{fail: WriteAnswered}).record })
	if id, err := c.CreateComment(ctx, hello, 3, "hello"); err != nil || id != 77 {
		t.Errorf("%d, %v", id, err)
	}
}

func TestALostAnswerIsRecordedAsOne(t *testing.T) {
	rec := &records{}
	h := newHub(t, func(http.ResponseWriter, *http.Request, string) { panic(http.ErrAbortHandler) })
	c := h.client(t, func(o *Options) { o.Record = rec.record })
	if _, err := c.CreateComment(ForSession(ctxFor(t), "abcdefghij", "k"), hello, 3, "hello"); !errors.Is(err, ErrAmbiguous) {
		t.Errorf("got %v", err)
	}
	if len(rec.said) != 2 || !strings.Contains(rec.said[1], `"words":"no answer: `) {
		t.Errorf("recorded %q", rec.said)
	}
}
