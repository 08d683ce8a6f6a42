package publish

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"

	"inspect/app/github"
	"inspect/fixtures/githubd"
)

func TestPublishRecordsWhatItWrites(t *testing.T) {
	w := newWorld(t)
	s := w.session(w.fixed(), nil)
	// As the scheduler writes it: the event that brings it to publishing, and a later one.
	head := strings.Repeat("ab", 32)
	w.exec(`INSERT INTO events (session_id, seq, generation, kind, data, at, hash) VALUES ($1, 15, 1, 'state', '{}', now(), decode($2, 'hex')), ($1, 16, 1, 'usage', '{}', now(), '\x00')`, s.ID, head)
	var said []string
	refuse := ""
	w.opts.Record = func(_ context.Context, session string, wr github.Write) error {
		if session != s.ID || wr.What == refuse {
			return errors.New("the database is away")
		}
		said = append(said, strings.Join([]string{wr.Phase, wr.What, wr.Path, wr.Key, wr.SHA, wr.Words}, " | "))
		return nil
	}
	w.publisher()
	refuse = "push"
	if out, err := w.p.Publish(context.Background(), s); err == nil || !strings.Contains(err.Error(), "it is not made") || len(w.pushes()) != 0 {
		t.Fatalf("%+v, %v, pushed %v", out, err, w.pushes())
	}
	refuse = ""
	_, err := w.server.AddFault(githubd.Fault{Kind: githubd.FaultStatus, Method: "POST", Path: "/repos/*/*/pulls", Count: 1})
	w.ok(err)
	if out, err := w.p.Publish(context.Background(), s); err == nil {
		t.Fatalf("%+v", out)
	}
	first := w.file(s.ID, FileManifest)
	// The push is an event by now; what the evidence says of the record stays the same.
	w.exec(`UPDATE sessions SET events_count = 19, events_head = '\x01' WHERE id = $1`, s.ID)
	r := w.deliver(s)
	if w.file(s.ID, FileManifest) != first {
		t.Error("the repetition wrote another manifest")
	}
	if r.EventsCount != 15 || r.EventsHead != head || !strings.Contains(first, `"head": "`+head+`"`) {
		t.Errorf("%+v\n%s", r, first)
	}
	if _, err := hex.DecodeString(r.EventsHead); err != nil {
		t.Error(err)
	}
	push := " | push | /octocat/hello refs/heads/" + r.Branch + " | " + s.ID + "/1/push | " + r.HeadSHA + " | "
	if want := []string{"asked" + push, "answered" + push + "taken"}; !slices.Equal(said, want) {
		t.Errorf("recorded\n%s\nwant\n%s", strings.Join(said, "\n"), strings.Join(want, "\n"))
	}
}
