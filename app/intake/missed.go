package intake

import (
	"context"
	"fmt"
	"strings"
	"time"

	"inspect/app/github"
)

// Missed is a labelling that no delivery told of.
type Missed struct {
	Installation  int64
	Repo          github.Repo
	DefaultBranch string
	Label         string
	Issue         github.Labelled
	github.Labelling
}

// Missed works on a labelling that no delivery told of, as if one had. The
// delivery may still come: both are the same wish.
func (in *Intake) Missed(ctx context.Context, m Missed) error {
	p := payload{
		Action:       "labeled",
		Installation: &installation{ID: m.Installation},
		Repository: &repository{
			ID: m.Repo.ID, Name: m.Repo.Name, FullName: m.Repo.String(), Owner: &account{Login: m.Repo.Owner}, DefaultBranch: m.DefaultBranch,
		},
		Sender: &account{ID: m.Actor.ID, Login: m.Actor.Login},
		Label:  &label{Name: m.Label},
		Issue: &issue{
			ID: m.Issue.ID, Number: m.Issue.Number, Title: m.Issue.Title, Body: m.Issue.Body, User: &account{ID: m.Issue.AuthorID, Login: m.Issue.Author},
			State: "open", Locked: m.Issue.Locked, Comments: m.Issue.Comments, UpdatedAt: m.At.UTC().Format(time.RFC3339),
		},
	}
	if m.Actor.Bot {
		p.Sender.Type = "Bot"
	}
	if m.Issue.Pull {
		p.Issue.PullRequest = &pullLink{}
	}
	for _, l := range m.Issue.Labels {
		p.Issue.Labels = append(p.Issue.Labels, label{l.ID, l.Name})
		if strings.EqualFold(l.Name, m.Label) {
			p.Label.ID = l.ID // as the delivery has it
		}
	}
	p.redact(in.o.Redactor)
	// Not stored as a delivery: it names what was found, for the record.
	guid := fmt.Sprintf("missed:%d:%d:%s:%s", m.Repo.ID, m.Issue.Number, strings.ToLower(m.Label), p.Issue.UpdatedAt)
	r, err := in.issues(ctx, storable(guid, 500), p)
	if err != nil {
		return later(err)
	}
	in.log.Info("a label that no event told of was worked on", "repository", m.Repo.ID, "issue", m.Issue.Number, "outcome", r.note)
	return nil
}
