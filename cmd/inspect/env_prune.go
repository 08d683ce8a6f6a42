package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"inspect/checks/render"
	"inspect/scheduler"
	"inspect/storage"
)

// pruning is what `inspect env prune` is asked to do.
type pruning struct {
	repository string        // empty: whatever was unused for long
	unused     time.Duration // since a session used it
	session    string        // whose clones are let go instead
	dryRun     bool
}

func pruneCommand() *cobra.Command {
	var d dataFlags
	var p pruning
	cmd := &cobra.Command{
		Use:   "prune [OWNER/REPO]",
		Short: "Give up snapshots of environments that nobody uses, or the kept clones of a session",
		Long: `Give up the snapshots of environments that no session has used for a while, or all of a
repository's, or with --session what is kept of one session. Nodes free the disk when
they collect next; what a session works in stays until it has ended.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := givenNotEmpty("OWNER/REPO", args); err != nil {
				return err
			}
			if len(args) == 1 {
				p.repository = args[0]
			}
			switch {
			case p.session == "" && cmd.Flags().Changed("session"):
				return usagef("--session is empty: expected the id of a session, or its beginning")
			case p.session != "" && p.repository != "":
				return usagef("--session names a session, whose repository need not be named")
			case p.unused < time.Hour:
				return usagef("--unused: expected at least 1h")
			}
			db, err := openDatabase(cmd.Context(), d)
			if err != nil {
				return err
			}
			defer db.Close()
			if p.session != "" {
				return p.release(cmd.Context(), cmd.OutOrStdout(), db.Q(), time.Now())
			}
			return p.run(cmd.Context(), cmd.OutOrStdout(), db, time.Now())
		},
	}
	d.flags(cmd.Flags())
	cmd.Flags().DurationVar(&p.unused, "unused", 30*24*time.Hour, "what no session has used for so long, if no repository is named")
	cmd.Flags().StringVar(&p.session, "session", "", "let the kept clones of this session go")
	cmd.Flags().BoolVar(&p.dryRun, "dry-run", false, "only say what would be done")
	return withEnvironment(cmd)
}

func (p pruning) run(ctx context.Context, w io.Writer, db *storage.DB, now time.Time) error {
	s, err := readStatus(ctx, db.Q(), p.repository, now)
	if err != nil {
		return err
	}
	verb, n := "given up", 0
	if p.dryRun {
		verb = "would be given up"
	}
	for _, e := range s.Environments {
		idle := now.Sub(e.Used)
		if p.repository == "" && idle < p.unused {
			continue
		}
		for _, at := range e.Nodes {
			if at.Current != nil {
				n++
				fmt.Fprintf(w, "%s of %s on %s (%s, unused for %s) %s\n", at.Current.ID, cell(e.Repository), at.Node, size(at.Current.Bytes), render.Duration(idle), verb)
			}
		}
		if p.dryRun {
			continue
		}
		if _, err := db.Q().PruneEnvironment(ctx, e.ID); err != nil {
			return fmt.Errorf("give the snapshots of %s up: %w", e.ID, err)
		}
	}
	if p.repository != "" && !p.dryRun {
		id, err := repositoryNamed(ctx, db.Q(), p.repository)
		if err != nil {
			return err
		}
		if err := db.Q().UnscheduleLook(ctx, id); err != nil {
			return fmt.Errorf("stop refreshing %s: %w", p.repository, err)
		}
		fmt.Fprintln(w, "It is prepared anew for the next session or push.")
	}
	if n == 0 {
		fmt.Fprintln(w, "There is no snapshot to give up.")
	}
	return nil
}

// release lets the clones of a session go.
func (p pruning) release(ctx context.Context, w io.Writer, q *storage.Queries, now time.Time) error {
	id, err := sessionNamed(ctx, q, p.session)
	if err != nil {
		return err
	}
	if p.dryRun {
		s, err := readStatus(ctx, q, "", now)
		if err != nil {
			return err
		}
		for _, k := range s.Kept {
			if k.Session == id {
				fmt.Fprintf(w, "What is kept of session %s on %s until %s would be let go.\n", id, k.Node, k.Until.Format(time.DateTime))
				return nil
			}
		}
		fmt.Fprintf(w, "Nothing is kept of session %s.\n", id)
		return nil
	}
	there, err := scheduler.ReleaseScene(ctx, q, id)
	if err != nil {
		return err
	}
	if !there {
		fmt.Fprintf(w, "Nothing is kept of session %s.\n", id)
		return nil
	}
	fmt.Fprintf(w, "What was kept of session %s is discarded.\n", id)
	return nil
}
