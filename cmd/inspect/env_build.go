package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"inspect/envs/proc"
	"inspect/scheduler"
	"inspect/storage"
)

func buildCommand() *cobra.Command {
	var d dataFlags
	var afresh, wait bool
	cmd := &cobra.Command{
		Use:   "build OWNER/REPO",
		Short: "Have the snapshot of a repository prepared at the head of its default branch",
		Long: `Have the snapshot of a repository prepared at the head of its default branch, by the
` + "`inspect serve`" + ` that runs. Nothing is done if neither the commit nor the configuration has changed.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			db, err := openDatabase(cmd.Context(), d)
			if err != nil {
				return err
			}
			defer db.Close()
			id, err := repositoryNamed(cmd.Context(), db.Q(), args[0])
			if err != nil {
				return err
			}
			asked := time.Now()
			if err := scheduler.AskBuild(cmd.Context(), db.Q(), id, afresh, asked); err != nil {
				return err
			}
			if !wait {
				fmt.Fprintf(cmd.OutOrStdout(), "Asked for. `inspect env status %s` shows how it goes.\n", args[0])
				return nil
			}
			return awaitBuild(cmd.Context(), cmd.OutOrStdout(), db.Q(), id, args[0], asked, proc.System())
		},
	}
	d.flags(cmd.Flags())
	cmd.Flags().BoolVar(&afresh, "afresh", false, "prepare it from nothing, also if nothing has changed")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until it is prepared, and say what is there then")
	return withEnvironment(cmd)
}

// awaitBuild waits for what was asked for to be over.
func awaitBuild(ctx context.Context, w io.Writer, q *storage.Queries, id int64, ownerName string, asked time.Time, clock proc.Clock) error {
	for {
		r, err := q.StatusRefresh(ctx, id)
		if err != nil {
			return fmt.Errorf("read how the refresh goes: %w", err)
		}
		looked := r.Build == "" && r.LookedAt.Valid && !r.LookedAt.Time.Before(asked.Truncate(time.Microsecond))
		switch {
		case !looked && r.LookTries > 0 && r.Build != "":
			return fmt.Errorf("the default branch of %s cannot be looked at, which is tried again: %s", ownerName, cell(r.LookError))
		case looked && r.HeadEnvironment == "":
			return fmt.Errorf("what the default branch of %s describes cannot be prepared: %s", ownerName, cell(r.HeadWords))
		case looked && r.Building == 0 && r.Wanted == 0:
			return builtOrNot(ctx, w, q, ownerName, r.HeadEnvironment)
		}
		if err := proc.Sleep(ctx, clock, time.Second); err != nil {
			return err
		}
	}
}

// builtOrNot says what there is of an environment; without a good snapshot it is an error.
func builtOrNot(ctx context.Context, w io.Writer, q *storage.Queries, ownerName, environment string) error {
	now := time.Now()
	s, err := readStatus(ctx, q, ownerName, now)
	if err != nil {
		return err
	}
	for _, e := range s.Environments {
		if e.ID != environment {
			continue
		}
		var broken []string
		there := false
		for _, p := range e.Nodes {
			p.print(func(format string, args ...any) { fmt.Fprintf(w, strings.TrimPrefix(format, "  ")+"\n", args...) }, now)
			there = there || p.Current != nil
			if p.StaleSince != nil {
				broken = append(broken, p.Node)
			}
		}
		switch {
		case len(broken) > 0:
			return fmt.Errorf("it could not be prepared on %s", strings.Join(broken, ", "))
		case there:
			return nil
		}
	}
	return errors.New("no node could be asked to prepare it: none that suits is connected and has room")
}
