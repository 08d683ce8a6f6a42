package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"inspect/scheduler"
	"inspect/storage"
)

func stopCommand() *cobra.Command {
	var d dataFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stop SESSION",
		Short: "Stop a session and keep its work",
		Long: `Ask for the end of a session, in whatever state it is. What it has done is kept. SESSION is
its id, or the beginning of it. "inspect session logs -f SESSION" shows how it ends.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			db, err := openDatabase(cmd.Context(), d)
			if err != nil {
				return err
			}
			defer db.Close()
			id, err := sessionNamed(cmd.Context(), db.Q(), args[0])
			if err != nil {
				return err
			}
			asked, err := scheduler.StopByOperator(cmd.Context(), db, id, operator(), time.Now())
			if err != nil {
				return err
			}
			row, err := db.Q().GetSession(cmd.Context(), id)
			if err != nil {
				return fmt.Errorf("read session %s: %w", id, err)
			}
			c := changed{Session: id, State: string(row.State), Changed: asked}
			if !asked {
				return c.tell(cmd, asJSON, "Session %s is over, or was asked to stop before.", id)
			}
			return c.tell(cmd, asJSON, "Session %s stops.", id)
		},
	}
	d.flags(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return withEnvironment(cmd)
}

func retryCommand() *cobra.Command {
	var p pointFlags
	cmd := &cobra.Command{
		Use:   "retry SESSION",
		Short: "Put a session that ended back into the queue, to go on from its last turn",
		Long: `Put a session that ended without a delivery back into the queue, to go on from its last turn
as a new attempt, or from the beginning where nothing is kept. SESSION is its id, or the
beginning of it.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			row, err := p.at(cmd.Context(), args[0], func(tx *storage.Tx, at scheduler.Point) (storage.Session, error) {
				return scheduler.Retry(cmd.Context(), tx, at, operator(), time.Now())
			})
			if err != nil {
				return err
			}
			return changed{Session: row.ID, State: string(row.State), Changed: true}.tell(cmd, p.asJSON, "Session %s is tried again.", row.ID)
		},
	}
	p.common(cmd)
	return withEnvironment(cmd)
}
