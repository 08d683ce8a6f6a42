package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"inspect/checks/render"
	"inspect/scheduler"
	"inspect/storage"
)

func moment(t sql.NullTime) *time.Time {
	if !t.Valid {
		return nil
	}
	at := t.Time.UTC()
	return &at
}

// envList is what is known to be on the nodes' disks.
type envList struct {
	Snapshots []listedSnapshot `json:"snapshots"`
	Clones    []listedClone    `json:"clones"`
}

type listedSnapshot struct {
	snapshotStatus
	Environment string `json:"environment,omitempty"` // empty: not known here
	Node        string `json:"node"`
	State       string `json:"state"` // building, current, cold; else what the node is free to collect: superseded
}

type listedClone struct {
	Session string    `json:"session"`
	Attempt int       `json:"attempt"`
	Purpose string    `json:"purpose"`
	Node    string    `json:"node"`
	Created time.Time `json:"created"`
	Bytes   int64     `json:"bytes,omitempty"`
	State   string    `json:"state"` // in use, kept; else what the node is free to collect: over
}

func lsCommand() *cobra.Command {
	var d dataFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the snapshots and clones there are",
		Long: `List the snapshots and clones there are. SIZE is all that a snapshot holds, of which
those that were made from one another may have the most in common; DISK is what a clone
alone takes.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			db, err := openDatabase(cmd.Context(), d)
			if err != nil {
				return err
			}
			defer db.Close()
			list, err := readList(cmd.Context(), db.Q(), time.Now())
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

func readList(ctx context.Context, q *storage.Queries, now time.Time) (envList, error) {
	out := envList{Snapshots: []listedSnapshot{}, Clones: []listedClone{}}
	snaps, err := q.StatusSnapshots(ctx)
	if err != nil {
		return out, fmt.Errorf("read the snapshots: %w", err)
	}
	known := map[string]bool{}
	for _, sn := range snaps {
		known[sn.Node+" "+sn.ID] = true
		l := listedSnapshot{snapshotStatus: snapshotOf(sn, now), Environment: sn.EnvironmentID, Node: sn.Node, State: sn.State}
		if sn.State == "ready" {
			if l.State = "current"; sn.Cold {
				l.State = "cold"
			}
		}
		out.Snapshots = append(out.Snapshots, l)
	}
	nodes, states, err := readNodes(ctx, q)
	if err != nil {
		return out, err
	}
	attempts, err := q.StatusAttempts(ctx)
	if err != nil {
		return out, fmt.Errorf("read the attempts: %w", err)
	}
	for _, n := range nodes {
		for _, id := range states[n.Node].Snapshots {
			if known[n.Node+" "+id] {
				continue
			}
			l := listedSnapshot{snapshotStatus: snapshotStatus{ID: id}, Node: n.Node, State: "superseded"}
			if sn, err := q.GetSnapshot(ctx, id); err == nil {
				l.snapshotStatus, l.Environment = snapshotOf(sn, now), sn.EnvironmentID
			} else if !storage.IsMissing(err) {
				return out, fmt.Errorf("read snapshot %s: %w", id, err)
			}
			out.Snapshots = append(out.Snapshots, l)
		}
		for _, c := range states[n.Node].Clones {
			l := listedClone{Session: c.Session, Attempt: c.Generation, Purpose: c.Purpose, Node: n.Node, Created: c.Created.UTC(), Bytes: c.Bytes, State: "over"}
			i := slices.IndexFunc(attempts, func(a storage.StatusAttemptsRow) bool {
				return a.SessionID == c.Session && int(a.Generation) == c.Generation
			})
			switch {
			case i < 0:
			case scheduler.Terminal(attempts[i].State) && attempts[i].KeepUntil.Valid:
				l.State = "kept until " + attempts[i].KeepUntil.Time.UTC().Format(time.DateTime)
			default:
				l.State = "in use"
			}
			out.Clones = append(out.Clones, l)
		}
	}
	return out, nil
}

func (l envList) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SNAPSHOT\tENVIRONMENT\tNODE\tGENERATION\tSTATE\tCOMMIT\tAGE\tSIZE\tMADE FROM")
	for _, s := range l.Snapshots {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", cell(s.ID), cell(s.Environment), s.Node, s.Generation, s.State, sha(s.Commit), render.Duration(ms(s.AgeMS)), size(s.Bytes), cell(s.From))
	}
	fmt.Fprintln(t)
	fmt.Fprintln(t, "CLONE OF SESSION\tATTEMPT\tPURPOSE\tNODE\tCREATED\tDISK\tSTATE")
	for _, c := range l.Clones {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", cell(c.Session), c.Attempt, cell(c.Purpose), c.Node, c.Created.Format(time.DateTime), size(c.Bytes), c.State)
	}
	return t.Flush()
}

// size is a number of bytes if it is known.
func size(n int64) string {
	if n <= 0 {
		return "-"
	}
	return render.Bytes(n)
}
