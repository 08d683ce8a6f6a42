package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"inspect/checks/redact"
	"inspect/storage"
)

// listedSession is one line of `inspect session ls`.
type listedSession struct {
	Session     string     `json:"session"`
	State       string     `json:"state"`
	Reason      string     `json:"reason,omitempty"`
	Repository  string     `json:"repository"`
	Issue       int        `json:"issue,omitempty"`
	PullRequest int        `json:"pull_request,omitempty"`
	Title       string     `json:"title"`
	Requester   string     `json:"requester"`
	Created     time.Time  `json:"created"`
	Finished    *time.Time `json:"finished,omitempty"`
}

func listCommand() *cobra.Command {
	var d dataFlags
	var p storage.WebSessionsParams
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the newest sessions",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if p.AtMost < 1 {
				return usagef("--limit: expected 1 or more")
			}
			if p.State != "" && !slices.Contains(storage.AllSessionStateValues(), storage.SessionState(p.State)) {
				return usagef("--state: expected one of %v, but found %q", storage.AllSessionStateValues(), p.State)
			}
			db, err := openDatabase(cmd.Context(), d)
			if err != nil {
				return err
			}
			defer db.Close()
			p.Before = time.Now().Add(24 * time.Hour)
			rows, err := db.Q().WebSessions(cmd.Context(), p)
			if err != nil {
				return fmt.Errorf("list the sessions: %w", err)
			}
			list := []listedSession{}
			for _, r := range rows {
				list = append(list, listedSession{
					Session: r.ID, State: string(r.State), Reason: r.Reason, Repository: r.Owner + "/" + r.Name, Issue: int(r.IssueNumber),
					PullRequest: int(r.PullRequest), Title: r.Title, Requester: r.RequesterLogin, Created: r.CreatedAt.UTC(), Finished: moment(r.FinishedAt),
				})
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), list)
			}
			return printSessions(cmd.OutOrStdout(), list)
		},
	}
	f := cmd.Flags()
	d.flags(f)
	f.StringVar(&p.Repository, "repository", "", "only of this repository, owner/name")
	f.StringVar(&p.State, "state", "", "only in this state")
	f.StringVar(&p.Requester, "requester", "", "only asked for by this account")
	f.Int32Var(&p.AtMost, "limit", 50, "how many at most")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return withEnvironment(cmd)
}

func printSessions(w io.Writer, list []listedSession) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SESSION\tSTATE\tFOR\tASKED FOR BY\tCREATED\tTITLE")
	for _, s := range list {
		state := s.State
		if s.Reason != "" {
			state += " (" + s.Reason + ")"
		}
		fmt.Fprintf(t, "%s\t%s\t%s#%d\t%s\t%s\t%s\n", s.Session, state, redact.OneLine(s.Repository, 100), s.Issue, redact.OneLine(s.Requester, 40),
			s.Created.Format(time.DateTime), redact.OneLine(s.Title, 60))
	}
	return t.Flush()
}
