package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"inspect/storage"
)

func drainCommand() *cobra.Command {
	var d dataFlags
	var off bool
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Have a node take no new sessions and prepare no snapshots",
		Long: `Have a node take no new sessions and prepare no snapshots; what runs there goes on to its
end. With --off it takes them again. Sessions that wait are told when no other node is left.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			db, err := openDatabase(cmd.Context(), d)
			if err != nil {
				return err
			}
			defer db.Close()
			return drain(cmd.Context(), cmd.OutOrStdout(), db.Q(), args[0], off)
		},
	}
	d.flags(cmd.Flags())
	cmd.Flags().BoolVar(&off, "off", false, "let it take sessions again")
	return withEnvironment(cmd)
}

func drain(ctx context.Context, w io.Writer, q *storage.Queries, node string, off bool) error {
	n, err := q.SetNodeDraining(ctx, storage.SetNodeDrainingParams{Name: node, Draining: !off})
	if err != nil {
		return fmt.Errorf("write that node %s drains: %w", node, err)
	}
	if n == 0 {
		return fmt.Errorf("there is no node %q: inspect env status shows those there are", node)
	}
	if off {
		fmt.Fprintf(w, "Node %s takes sessions again.\n", node)
		return nil
	}
	running, err := q.NodeRunning(ctx, node)
	if err != nil {
		return fmt.Errorf("count what runs on node %s: %w", node, err)
	}
	fmt.Fprintf(w, "Node %s takes no new sessions; %d still running there.\n", node, running)
	return nil
}
