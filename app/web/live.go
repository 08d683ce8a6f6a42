package web

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"inspect/scheduler"
	"inspect/storage"
)

const (
	liveStreams = 200                    // at once
	liveFor     = time.Minute            // then the browser asks again, and whether it may is asked anew
	liveLook    = 500 * time.Millisecond // between two looks
	liveBatch   = 2000                   // events in one look
	liveKept    = 500                    // lines that a page which follows keeps; live.js has it too
)

// live streams what happens in a session as server-sent events: "add" has lines
// of the timeline, "state" the line that says where it stands; "reload" says that
// the session has moved on and the page is to be read anew. Their data is HTML of
// ours.
func (p *pages) live(w http.ResponseWriter, r *http.Request) {
	select {
	case p.streams <- struct{}{}:
		defer func() { <-p.streams }()
	default:
		http.Error(w, "too many pages follow sessions", http.StatusServiceUnavailable)
		return
	}
	from := r.Header.Get("Last-Event-ID") // where it was broken off
	if from == "" {
		from = r.URL.Query().Get("after")
	}
	after, err := strconv.ParseInt(from, 10, 64)
	if err != nil || after < 0 {
		http.Error(w, "the address is not one of ours", http.StatusBadRequest)
		return
	}
	row, ok := p.visible(w, r, r.PathValue("id"))
	if !ok {
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // a proxy passes it on at once
	to := http.NewResponseController(w)
	_ = to.SetWriteDeadline(time.Now().Add(2 * liveFor)) // whoever reads nothing gives its place back
	said, shown := "", r.URL.Query().Get("state")
	send := func(kind string, id int64, template string, v any) error {
		var b bytes.Buffer
		if err := p.tmpl.ExecuteTemplate(&b, template, v); err != nil {
			return err
		}
		text := p.redact.String(b.String())
		if kind == "state" {
			if text == said {
				return nil
			}
			said = text
		}
		lines := strings.Split(strings.ReplaceAll(text, "\r", "\n"), "\n") // each is one of the message's
		_, err := fmt.Fprintf(w, "event: %s\nid: %d\ndata: %s\n\n", kind, id, strings.Join(lines, "\ndata: "))
		return err
	}
	end := p.clock.After(liveFor)
	for {
		events, err := p.db.Q().WebEventsAfter(r.Context(), storage.WebEventsAfterParams{SessionID: row.ID, After: after, AtMost: liveBatch})
		if err == nil && len(events) > 0 {
			after = events[len(events)-1].Seq
			lines := later(events)
			// What the page would let go of at once is not sent.
			err = send("add", after, "events", lines[max(0, len(lines)-liveKept):])
		}
		if err == nil {
			row, err = p.db.Q().WebSession(r.Context(), row.ID)
		}
		over := scheduler.Terminal(row.State) && row.ReportedAt.Valid
		if err == nil && len(events) < liveBatch && (over || string(row.State) != shown) {
			_, _ = fmt.Fprint(w, "event: reload\ndata:\n\n")
			_ = to.Flush()
			return
		}
		if err == nil {
			var waiting int32
			if waiting, err = p.db.Q().QueueLength(r.Context()); err == nil {
				err = send("state", after, "state", sessionView{
					State: stateView(row.State), Reason: row.Reason,
					Queue: queueWords(row.State, row.QueueReason, row.QueueAt, row.QueuePosition, int(waiting), p.clock.Now()),
				})
			}
		}
		if err == nil {
			err = to.Flush()
		}
		if err != nil {
			if r.Context().Err() == nil {
				p.log.WarnContext(r.Context(), "a page does not follow its session any more", "session", row.ID, "error", err)
			}
			return
		}
		if len(events) == liveBatch {
			continue
		}
		select {
		case <-r.Context().Done():
			return
		case <-end:
			return
		case <-p.clock.After(liveLook):
		}
	}
}

// lastSeq is the number of the newest event, for those that follow.
func lastSeq(events []storage.WebEventsRow) int64 {
	if len(events) == 0 {
		return 0
	}
	return events[len(events)-1].Seq
}

// newest is before all events.
const newest = int64(math.MaxInt64)
