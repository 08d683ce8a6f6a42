// Package tally adds up what a session used and tried: what its model calls
// came to, which ways out were asked for, what the agent did. In comes a
// session; out go the parts of its evidence that stand in the database alone.
// It reads only. Texts in what it returns are an agent's: whoever shows them
// redacts and escapes them.
package tally

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"inspect/checks/evidence"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/storage"
)

// Model is what the model calls of all attempts came to, so far. The zero Model
// is that of a session whose agent has none of ours.
func Model(ctx context.Context, q *storage.Queries, s storage.Session, sp spec.Spec) (evidence.Model, error) {
	if sp.Harness.Model == "" {
		return evidence.Model{}, nil
	}
	use, err := q.ModelUse(ctx, s.ID)
	if err != nil {
		return evidence.Model{}, fmt.Errorf("add up the model calls of session %s: %w", s.ID, err)
	}
	return evidence.Model{
		Name: sp.Harness.Model, Calls: use.Reported, InputTokens: use.InputTokens, OutputTokens: use.OutputTokens, Cost: use.Cost,
		Unreported: use.Unreported, UnreportedCost: use.UnreportedCost, Failed: use.Failed,
		Unpriced: use.Unpriced, Priced: use.Unpriced == 0, Budget: s.Budget,
	}, nil
}

// Egress is what a session could reach, and what was tried, in all attempts.
func Egress(ctx context.Context, q *storage.Queries, s storage.Session, sp spec.Spec) (evidence.Egress, error) {
	e := evidence.Egress{Declared: sp.DeclaredEgress()}
	if sp.EgressGuessed {
		e.Setup = sp.Egress
	}
	var err error
	if e.Allowed, err = q.EgressAllowed(ctx, s.ID); err != nil {
		return e, fmt.Errorf("add up the connections of session %s: %w", s.ID, err)
	}
	use, err := q.EgressBytes(ctx, storage.EgressBytesParams{SessionID: s.ID, Before: math.MaxInt32})
	if err != nil {
		return e, fmt.Errorf("add up what session %s sent and received: %w", s.ID, err)
	}
	e.Sent, e.Received = use.Sent, use.Received
	rows, err := q.EgressRefused(ctx, storage.EgressRefusedParams{SessionID: s.ID, AtMost: evidence.MaxRefused})
	if err != nil {
		return e, fmt.Errorf("add up the refused connections of session %s: %w", s.ID, err)
	}
	for _, r := range rows {
		port, _ := strconv.Atoi(r.Port)
		e.Refused = append(e.Refused, evidence.Refused{
			Host: r.Host, Port: port, Command: r.Command, Reason: r.Reason, Count: r.Times, Noise: r.Noise, Verification: r.Verification,
		})
		e.More = r.Destinations - int64(len(rows))
	}
	return e, nil
}

// Agent is what the agent did in all attempts.
func Agent(ctx context.Context, q *storage.Queries, session string) (evidence.Agent, error) {
	n, err := q.ToolCounts(ctx, session)
	if err != nil {
		return evidence.Agent{}, fmt.Errorf("add up what the agent of session %s did: %w", session, err)
	}
	return evidence.Agent{ToolCalls: n.Calls, Commands: n.Commands, FailedCommands: n.FailedCommands, FilesTouched: n.Files}, nil
}

// lookBack is how many of the newest events LastAction looks at.
const lookBack = 2000

// LastAction is what the agent or verification did last, as one line of text;
// "" if nothing of late says.
func LastAction(ctx context.Context, q *storage.Queries, s storage.Session) (string, error) {
	row, err := q.LastAction(ctx, storage.LastActionParams{SessionID: s.ID, After: s.EventsCount - lookBack})
	if storage.IsMissing(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look for what session %s did last: %w", s.ID, err)
	}
	switch row.Kind {
	case wire.EventTool:
		var t wire.Tool
		if json.Unmarshal(row.Data, &t) == nil {
			return Action(t), nil
		}
	case wire.EventCommand:
		var c wire.Command
		if json.Unmarshal(row.Data, &c) == nil {
			return c.Line, nil
		}
	}
	return "", nil
}

// Action is a tool call in one line: the command that ran, else what the
// harness calls it.
func Action(t wire.Tool) string {
	switch {
	case t.Command != "":
		return t.Command
	case t.Title != "" && t.Name != "":
		return t.Name + ": " + t.Title
	case t.Title != "":
		return t.Title
	case len(t.Files) > 0:
		return t.Name + ": " + t.Files[0]
	}
	return t.Name
}
