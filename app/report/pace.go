package report

import (
	"fmt"
	"strings"
	"time"

	"inspect/scheduler"
)

// A session takes minutes or hours, and each edit is a write of the few that an
// installation has. So what is told soon is what somebody waits for: that the
// agent has begun, that an answer is wanted or was given, what was asked with
// /inspect status, and the end. Everything between is live on the session's page.
const (
	// Debounce is the least time between two edits of a comment while the session
	// runs.
	Debounce = time.Minute
	// Patience is the least time between two that say why it waits.
	Patience = 10 * time.Minute
	// Calm is the least time between two where nothing changed but how far the work
	// has come: longer than a session takes by default.
	Calm = time.Hour
)

// stage is what people tell apart: it waits, an agent is at it, or an answer is
// wanted.
func (st *story) stage() string {
	stage := "work"
	switch st.session.State {
	case scheduler.Queued, scheduler.Placing, scheduler.Restoring:
		stage = "wait"
	case scheduler.NeedsApproval:
		stage = "asks"
	}
	for _, a := range st.pending {
		stage += fmt.Sprintf(" %d", a.ID)
	}
	return stage
}

// digest is what is kept of a text that was sent about the story as it is now.
func (st *story) digest(body string) string { return st.stage() + ":" + sum(body) }

// pace is how long after a text, of which was is kept, an edit may be made.
func (st *story) pace(was string) time.Duration {
	stage, _, _ := strings.Cut(was, ":")
	switch {
	case stage == "wait" && st.signs && st.stage() == "work":
		return Calm // its commit takes two writes more
	case stage != st.stage(): // nothing is kept where somebody asked how it stands
		return Debounce
	case stage == "wait":
		return Patience
	}
	return Calm
}
