package scheduler

import (
	"context"
	"fmt"
	"time"

	"inspect/storage"
)

// Person is an account, known by its number: logins change hands.
type Person struct {
	ID    int64
	Login string
}

// Role is what made a person one of a session's requesters.
type Role string

// Roles. Whoever has one of them may not approve where four_eyes holds.
const (
	RoleStarted  Role = "started"
	RolePrompted Role = "prompted" // wrote a follow-up
	RoleAllowed  Role = "allowed"  // asked for a host
	RoleRaised   Role = "raised"   // asked for a higher budget
	RolePushed   Role = "pushed"   // onto a branch of ours
)

// AddPerson makes a person one of a session's requesters. Nobody (a number of
// 0: a session of this machine's own user) is passed over.
func AddPerson(ctx context.Context, tx *storage.Tx, session string, p Person, r Role, now time.Time) error {
	return addPerson(ctx, tx.Q(), session, p, r, now)
}

func addPerson(ctx context.Context, q *storage.Queries, session string, p Person, r Role, now time.Time) error {
	if p.ID <= 0 {
		return nil
	}
	err := q.AddSessionPerson(ctx, storage.AddSessionPersonParams{SessionID: session, UserID: p.ID, Login: clip(p.Login, 100), Role: string(r), At: now})
	if err != nil {
		return fmt.Errorf("recording a requester of session %s: %w", session, err)
	}
	return nil
}

// Requesters of a session: everybody who had a hand in what was asked of it.
func Requesters(ctx context.Context, q *storage.Queries, session string) ([]storage.SessionPerson, error) {
	all, err := q.SessionPeople(ctx, session)
	if err != nil {
		return nil, fmt.Errorf("reading the requesters of session %s: %w", session, err)
	}
	return all, nil
}
