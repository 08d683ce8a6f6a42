package web

import (
	"context"
	"database/sql"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"inspect/app/github"
	"inspect/checks/render"
	"inspect/scheduler"
	"inspect/storage"
)

// The lists as JSON, for programs: the newest sessions, and each environment
// with what became of its newest snapshot.

// EnvironmentJSON is an environment and its newest snapshot.
type EnvironmentJSON struct {
	Environment string           `json:"environment"`
	Repository  string           `json:"repository"`
	Snapshot    string           `json:"snapshot"`
	State       string           `json:"state"` // building, ready, retired, failed
	Commit      string           `json:"commit"`
	Error       string           `json:"error,omitempty"`
	PhasesMS    map[string]int64 `json:"phases_ms,omitempty"`
	Created     time.Time        `json:"created"`
}

func (p *pages) environmentsJSON(w http.ResponseWriter, r *http.Request) {
	rows, err := p.db.Q().WebEnvironments(r.Context())
	if err != nil {
		p.broken(w, r, err)
		return
	}
	out := []EnvironmentJSON{}
	for _, row := range rows {
		if !p.mayRead(r.Context(), repositoryRef{row.InstallationID, github.Repo{ID: row.RepositoryID, Owner: row.Owner, Name: row.Name}}) {
			continue
		}
		e := EnvironmentJSON{
			Environment: row.EnvironmentID, Repository: row.Owner + "/" + row.Name, Snapshot: row.ID,
			State: row.State, Commit: row.CommitSha, Error: row.Error, Created: row.CreatedAt,
		}
		var phases map[string]time.Duration
		if row.Phases.Valid && json.Unmarshal(row.Phases.RawMessage, &phases) == nil {
			e.PhasesMS = map[string]int64{}
			for name, d := range phases {
				e.PhasesMS[name] = d.Milliseconds()
			}
		}
		out = append(out, e)
	}
	writeJSON(w, http.StatusOK, out)
}

// filter is which sessions are listed; empty fields leave none out.
type filter struct{ Repository, State, Requester string }

func filterOf(q url.Values) filter {
	text := func(key string) string {
		return strings.ToValidUTF8(strings.ReplaceAll(strings.TrimSpace(q.Get(key)), "\x00", ""), "")
	}
	return filter{text("repository"), text("state"), text("requester")}
}

func (f filter) query() url.Values {
	q := url.Values{}
	for key, value := range map[string]string{"repository": f.Repository, "state": f.State, "requester": f.Requester} {
		if value != "" {
			q.Set(key, value)
		}
	}
	return q
}

// place is where a page of the list begins: before this moment and id.
type place struct {
	at time.Time
	id string
}

// listLooks is how many pages of all sessions are gone through for one of those
// that who looks may read.
const listLooks = 10

// listed are the sessions of a page that who looks may read, and where the next
// page begins, if there is one. That names no session that they may not.
func (p *pages) listed(ctx context.Context, f filter, from place) (out []storage.WebSessionsRow, next *place, err error) {
	for range listLooks {
		rows, err := p.db.Q().WebSessions(ctx, storage.WebSessionsParams{
			Before: from.at, BeforeID: from.id, AtMost: listLength, Repository: f.Repository, State: f.State, Requester: f.Requester,
		})
		if err != nil {
			return nil, nil, err
		}
		for _, row := range rows {
			from = place{row.CreatedAt, row.ID}
			if !p.mayRead(ctx, repositoryRef{row.InstallationID, github.Repo{ID: row.RepositoryID, Owner: row.Owner, Name: row.Name}}) {
				continue
			}
			if len(out) == listLength {
				last := out[listLength-1]
				return out, &place{last.CreatedAt, last.ID}, nil
			}
			out = append(out, row)
		}
		if len(rows) < listLength {
			return out, nil, nil
		}
	}
	return out, &place{at: from.at.Add(time.Microsecond)}, nil
}

// states are all states a session may be in.
func states() (out []state) {
	for _, s := range storage.AllSessionStateValues() {
		out = append(out, stateView(s))
	}
	return out
}

// QueueJSON is where a session stands that waits for a machine.
type QueueJSON struct {
	Position int        `json:"queue_position,omitempty"` // from 1
	Length   int        `json:"queue_length,omitempty"`
	Since    *time.Time `json:"queue_since,omitempty"` // since when the reason is of that kind
}

func queueJSON(s storage.SessionState, since sql.NullTime, position int32, length int) (q QueueJSON) {
	if s == scheduler.Queued {
		q.Position, q.Length = int(position), length
	}
	if since.Valid && waits(s) {
		t := since.Time.UTC()
		q.Since = &t
	}
	return q
}

// waits tells whether a session in a state may wait for a machine.
func waits(s storage.SessionState) bool { return s == scheduler.Queued || s == scheduler.Placing }

// queueWords say what a session waits for; empty: it does not.
func queueWords(s storage.SessionState, reason string, since sql.NullTime, position int32, length int, now time.Time) string {
	if !waits(s) {
		return ""
	}
	return render.Waiting{Reason: reason, Position: int(position), Of: length, Since: since.Time, Now: now}.String()
}

// ListedJSON is a session in the list.
type ListedJSON struct {
	Session     string `json:"session"`
	State       string `json:"state"`
	Reason      string `json:"reason,omitempty"`
	QueueReason string `json:"queue_reason,omitempty"`
	QueueJSON
	Priority    int       `json:"priority,omitempty"`
	Repository  string    `json:"repository"`
	Issue       int       `json:"issue"`
	Title       string    `json:"title"`
	PullRequest int       `json:"pull_request,omitempty"`
	Created     time.Time `json:"created"`
}

func (p *pages) sessionsJSON(w http.ResponseWriter, r *http.Request) {
	f := filterOf(r.URL.Query())
	rows, _, err := p.listed(r.Context(), f, place{at: p.clock.Now().Add(24 * time.Hour)})
	if err != nil {
		p.broken(w, r, err)
		return
	}
	waiting, err := p.db.Q().QueueLength(r.Context())
	if err != nil {
		p.broken(w, r, err)
		return
	}
	out := []ListedJSON{}
	for _, row := range rows {
		out = append(out, ListedJSON{
			Session: row.ID, State: string(row.State), Reason: row.Reason, QueueReason: row.QueueReason, Priority: int(row.Priority),
			QueueJSON:  queueJSON(row.State, row.QueueAt, row.QueuePosition, int(waiting)),
			Repository: row.Owner + "/" + row.Name, Issue: int(row.IssueNumber), Title: row.Title,
			PullRequest: int(row.PullRequest), Created: row.CreatedAt,
		})
	}
	writeJSON(w, http.StatusOK, out)
}
