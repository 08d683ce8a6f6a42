package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"inspect/checks/redact"
	"inspect/envs/wire"
	"inspect/storage"
)

// egressPage is how many events are read at a time.
const egressPage = 1000

// egressList is what a session's egress proxies decided and let through.
type egressList struct {
	Session   string           `json:"session"`
	Decisions []egressDecision `json:"decisions"`
	Sent      int64            `json:"sent"` // bytes, of sandboxes that have ended
	Received  int64            `json:"received"`
	Limit     int64            `json:"limit,omitempty"` // bytes of one attempt, both directions together
}

// egressDecision is one decision and how often it was made alike.
type egressDecision struct {
	wire.Egress
	Attempt int       `json:"attempt"`
	Count   int       `json:"count"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
}

func egressCommand() *cobra.Command {
	var d dataFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "egress SESSION",
		Short: "List what a session's sandboxes reached and what they were refused",
		Long:  "List what a session's sandboxes reached and what they were refused. SESSION is its id, or the beginning of it.",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			db, err := openDatabase(cmd.Context(), d)
			if err != nil {
				return err
			}
			defer db.Close()
			list, err := readEgress(cmd.Context(), db.Q(), args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), list)
			}
			return list.print(cmd.OutOrStdout())
		},
	}
	d.flags(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return withEnvironment(cmd)
}

// sessionNamed is the one session whose id begins so.
func sessionNamed(ctx context.Context, q *storage.Queries, beginning string) (string, error) {
	ids, err := q.SessionsStartingWith(ctx, beginning)
	switch {
	case err != nil:
		return "", fmt.Errorf("look for the session: %w", err)
	case len(ids) == 0 || beginning == "":
		return "", fmt.Errorf("there is no session %q", redact.Cut(beginning, shownBytes))
	case len(ids) > 1 && ids[0] != beginning:
		return "", fmt.Errorf("several sessions begin with %q: give more of the id", redact.Cut(beginning, shownBytes))
	}
	return ids[0], nil
}

// readEgress adds up the events of the one session whose id begins so.
func readEgress(ctx context.Context, q *storage.Queries, beginning string) (*egressList, error) {
	id, err := sessionNamed(ctx, q, beginning)
	if err != nil {
		return nil, err
	}
	list := &egressList{Session: id, Decisions: []egressDecision{}}
	type key struct {
		wire.Egress
		attempt int
	}
	at := map[key]int{}
	used := map[int]wire.EgressUse{} // the last of each attempt has all
	for after := int64(0); ; {
		events, err := q.EgressEvents(ctx, storage.EgressEventsParams{SessionID: list.Session, After: after, AtMost: egressPage})
		if err != nil {
			return nil, fmt.Errorf("read the events of session %s: %w", list.Session, err)
		}
		for _, e := range events {
			after = e.Seq
			attempt := int(e.Generation)
			if e.Kind == wire.EventUse {
				var u wire.EgressUse
				if json.Unmarshal(e.Data, &u) == nil {
					used[attempt] = u
				}
				continue
			}
			var x wire.Egress
			if json.Unmarshal(e.Data, &x) != nil {
				continue
			}
			i, known := at[key{x, attempt}]
			if !known {
				i = len(list.Decisions)
				at[key{x, attempt}] = i
				list.Decisions = append(list.Decisions, egressDecision{Egress: x, Attempt: attempt, First: e.At})
			}
			list.Decisions[i].Count++
			list.Decisions[i].Last = e.At
		}
		if len(events) < egressPage {
			break
		}
	}
	for _, u := range used {
		list.Sent += u.Sent
		list.Received += u.Received
		list.Limit = max(list.Limit, u.Limit)
	}
	return list, nil
}

// print shows the list to a terminal: what is in it was said in a sandbox.
func (l *egressList) print(w io.Writer) error {
	if len(l.Decisions) == 0 {
		_, err := fmt.Fprintf(w, "The sandboxes of session %s asked for nothing.\n", l.Session)
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "FIRST\tTIMES\tDECISION\tDESTINATION\tWHY\tCOMMAND")
	for _, d := range l.Decisions {
		decision, where := "refused", ""
		if d.Allowed {
			decision = "allowed"
		}
		if where = d.Host; d.Port != 0 {
			where = net.JoinHostPort(d.Host, strconv.Itoa(d.Port))
		}
		why := []string{}
		if d.Host == "" {
			decision = "-"
		}
		if d.Reason != "" {
			why = append(why, d.Reason)
		}
		if d.Secret != "" {
			why = append(why, "credential "+d.Secret+" added")
		}
		if d.Noise {
			why = append(why, "the harness's own doing")
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\n", d.First.UTC().Format(time.DateTime), d.Count, decision,
			cell(where), cell(strings.Join(why, "; ")), cell(d.Command))
	}
	fmt.Fprintf(t, "\n%d bytes sent, %d received", l.Sent, l.Received)
	if l.Limit > 0 {
		fmt.Fprintf(t, " (at most %d together in one attempt)", l.Limit)
	}
	fmt.Fprintln(t)
	if err := t.Flush(); err != nil {
		return errors.Join(errors.New("the list could not be printed"), err)
	}
	return nil
}

func cell(s string) string {
	if s = terminalLine(s, 200); s == "" {
		return "-"
	}
	return s
}

// terminalLine is one line that steers no terminal. Unlike in what is for GitHub
// there are no mentions to be broken: name@sha256:… stays fit to be copied.
func terminalLine(s string, maxBytes int) string {
	return redact.Cut(strings.Join(strings.Fields(redact.Visible(s)), " "), maxBytes)
}
