package web

import (
	"encoding/json"
	"net/http"
	"time"

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

// ListedJSON is a session in the list.
type ListedJSON struct {
	Session     string    `json:"session"`
	State       string    `json:"state"`
	Reason      string    `json:"reason,omitempty"`
	QueueReason string    `json:"queue_reason,omitempty"`
	Repository  string    `json:"repository"`
	Issue       int       `json:"issue"`
	Title       string    `json:"title"`
	PullRequest int       `json:"pull_request,omitempty"`
	Created     time.Time `json:"created"`
}

func (p *pages) sessionsJSON(w http.ResponseWriter, r *http.Request) {
	rows, err := p.db.Q().WebSessions(r.Context(), storage.WebSessionsParams{Before: p.clock.Now().Add(24 * time.Hour), AtMost: listLength})
	if err != nil {
		p.broken(w, r, err)
		return
	}
	out := []ListedJSON{}
	for _, row := range rows {
		out = append(out, ListedJSON{
			Session: row.ID, State: string(row.State), Reason: row.Reason, QueueReason: row.QueueReason,
			Repository: row.Owner + "/" + row.Name, Issue: int(row.IssueNumber), Title: row.Title,
			PullRequest: int(row.PullRequest), Created: row.CreatedAt,
		})
	}
	writeJSON(w, http.StatusOK, out)
}
