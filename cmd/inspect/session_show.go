package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"inspect/checks/render"
	"inspect/scheduler"
	"inspect/storage"
)

// shownSession is what `inspect session show` prints.
type shownSession struct {
	Session    string         `json:"session"`
	Repository string         `json:"repository"`
	Issue      int            `json:"issue,omitempty"`
	Title      string         `json:"title"`
	Requester  string         `json:"requester"`
	State      string         `json:"state"`
	Reason     string         `json:"reason,omitempty"`
	Words      string         `json:"words,omitempty"`
	Queue      string         `json:"queue_reason,omitempty"`
	Position   int            `json:"queue_position,omitempty"`
	Length     int            `json:"queue_length,omitempty"`
	Since      *time.Time     `json:"queue_since,omitempty"`
	Priority   int            `json:"priority"`
	Node       string         `json:"node,omitempty"`
	Snapshot   string         `json:"snapshot,omitempty"`
	Created    time.Time      `json:"created"`
	NextCheck  *time.Time     `json:"next_check,omitempty"`
	Attempts   []shownAttempt `json:"attempts"`
}

type shownAttempt struct {
	Generation int          `json:"generation"`
	Engine     string       `json:"engine"`
	Node       string       `json:"node,omitempty"`
	Snapshot   string       `json:"snapshot,omitempty"`
	Why        string       `json:"why,omitempty"`   // the snapshot was taken
	Taken      *takenStatus `json:"taken,omitempty"` // all that is known of that; absent: none was yet
	Started    time.Time    `json:"started"`
	Ended      *time.Time   `json:"ended,omitempty"`
	Words      string       `json:"words,omitempty"` // why it ended
}

func showCommand() *cobra.Command {
	var d dataFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show SESSION",
		Short: "Show how a session stands, what it waits for, and its attempts",
		Long:  "Show how a session stands, what it waits for, and its attempts. SESSION is its id, or the beginning of it.",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			db, err := openDatabase(cmd.Context(), d)
			if err != nil {
				return err
			}
			defer db.Close()
			s, err := readSession(cmd.Context(), db.Q(), args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), s)
			}
			s.print(cmd.OutOrStdout(), time.Now())
			return nil
		},
	}
	d.flags(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return withEnvironment(cmd)
}

func readSession(ctx context.Context, q *storage.Queries, beginning string) (s shownSession, err error) {
	id, err := sessionNamed(ctx, q, beginning)
	if err != nil {
		return s, err
	}
	row, err := q.GetSession(ctx, id)
	if err != nil {
		return s, fmt.Errorf("read session %s: %w", id, err)
	}
	repo, err := q.GetRepositoryRow(ctx, row.RepositoryID)
	if err != nil {
		return s, fmt.Errorf("read the repository of session %s: %w", id, err)
	}
	attempts, err := q.WebAttempts(ctx, id)
	if err != nil {
		return s, fmt.Errorf("read the attempts of session %s: %w", id, err)
	}
	records, err := q.StatusTakenOf(ctx, id)
	if err != nil {
		return s, fmt.Errorf("read what session %s was restored from: %w", id, err)
	}
	taken := map[int32]takenStatus{}
	for _, r := range records {
		if taken[r.Generation], err = takenOf(id, r.Generation, r.Taken, r.Outcome, r.Restore, r.Drifted); err != nil {
			return s, err
		}
	}
	s = shownSession{
		Session: id, Repository: repo.Owner + "/" + repo.Name, Issue: int(row.IssueNumber), Title: row.Title, Requester: row.RequesterLogin,
		State: string(row.State), Reason: row.Reason, Words: row.Words, Priority: int(row.Priority), Node: row.Node, Snapshot: row.SnapshotID,
		Created: row.CreatedAt.UTC(), Attempts: []shownAttempt{},
	}
	if row.State == scheduler.Queued || row.State == scheduler.Placing {
		s.Queue, s.Since = row.QueueReason, moment(row.QueueAt)
	}
	if row.State == scheduler.Queued {
		n, err := q.QueueLength(ctx)
		if err != nil {
			return s, fmt.Errorf("count the queue: %w", err)
		}
		s.Position, s.Length = int(row.QueuePosition), int(n)
	}
	if !row.ReportedAt.Valid {
		next := row.NextCheckAt.UTC()
		s.NextCheck = &next
	}
	for _, a := range attempts {
		shown := shownAttempt{
			Generation: int(a.Generation), Engine: a.Engine, Node: a.Node, Snapshot: a.SnapshotID,
			Started: a.StartedAt.UTC(), Ended: moment(a.EndedAt), Words: a.EndWords,
		}
		if t, ok := taken[a.Generation]; ok {
			shown.Why, shown.Taken = t.Why, &t
		}
		s.Attempts = append(s.Attempts, shown)
	}
	return s, nil
}

func (s shownSession) print(w io.Writer, now time.Time) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-12s%s\n", name, terminalLine(fmt.Sprintf(format, args...), 2000))
	}
	line("session", "%s", s.Session)
	state := s.State
	if s.Reason != "" {
		state += " (" + s.Reason + ")"
	}
	line("state", "%s", state)
	if s.Words != "" {
		line("", "%s", s.Words)
	}
	waiting := render.Waiting{Reason: s.Queue, Position: s.Position, Of: s.Length, Now: now}
	if s.Since != nil {
		waiting.Since = *s.Since
	}
	if words := waiting.String(); words != "" {
		line("waits", "%s", words)
	}
	line("for", "%s#%d, asked for by %s", s.Repository, s.Issue, s.Requester)
	line("title", "%s", s.Title)
	if s.Priority != 0 {
		line("priority", "%d", s.Priority)
	}
	if s.Node != "" {
		line("node", "%s", s.Node)
	}
	if s.Snapshot != "" {
		line("snapshot", "%s", s.Snapshot)
	}
	line("created", "%s", s.Created.Format(time.DateTime))
	if s.NextCheck != nil {
		line("next check", "%s", s.NextCheck.Format(time.DateTime))
	}
	for _, a := range s.Attempts {
		words := []string{a.Engine}
		if a.Node != "" {
			words = append(words, "on "+a.Node)
		}
		if a.Snapshot != "" {
			words = append(words, "from "+a.Snapshot)
		}
		words = append(words, "since "+a.Started.Format(time.DateTime))
		if a.Ended != nil {
			words = append(words, "to "+a.Ended.Format(time.DateTime))
		}
		text := strings.Join(words, " ")
		if a.Words != "" {
			text += ": " + a.Words
		}
		line(fmt.Sprintf("attempt %d", a.Generation), "%s", text)
		if t := a.Taken; t != nil {
			line("", "%s", t)
			if t.Image != "" {
				line("", "image %s", t.Image)
			}
			if len(t.Steps) > 0 {
				line("", "setup ran again: %s", strings.Join(t.Steps, "; "))
			}
			for _, l := range t.Lockfiles {
				line("", "%s sha256 %s", l.Path, l.SHA256)
			}
		}
	}
}
