package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"inspect/app/diagnosis"
	"inspect/checks/redact"
	"inspect/scheduler/nomad"
	"inspect/storage"
)

// heardWithin is how long ago a node that is alive was heard of at most; it
// tells its state every ten seconds.
const heardWithin = 45 * time.Second

func doctorCommand() *cobra.Command {
	var d dataFlags
	var n nomadFlags
	var g gitHubFlags
	var cluster, policy, asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor [--nomad]",
		Short: "Look at what `inspect serve` stands on, and say what to do about it",
		Long: `Look at GitHub in the way that ` + "`inspect serve`" + ` with the same flags uses it: the App's permissions
and events and those of each installation, the webhook and its last deliveries, the clock, and of
each repository the rules of its default branch, the workflows that Inspect's branches start, and
how old its snapshots are. With --nomad, look at the cluster of ` + "`inspect serve --engine nomad`" + `
instead. It changes nothing, and says of each thing whether it is as it should be (ok, warn, fail)
and what to do. It ends with status 1 if something fails. Run it as the account that serves, or as
root: it reads the files with secrets, and the database of the running control plane.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			if policy {
				_, err := io.WriteString(out, nomad.Policy(n.Namespace))
				return err
			}
			if !cluster {
				findings, err := examineGitHub(cmd.Context(), g, d, time.Now())
				if err != nil {
					return err
				}
				return tellFindings(out, findings, asJSON)
			}
			if err := n.check(); err != nil {
				return err
			}
			given, err := n.read()
			if err != nil {
				return usageError{err}
			}
			known, unknown := knownNodes(cmd.Context(), d, time.Now())
			o := n.options(given, "http://127.0.0.1:7462", n.token, redact.New(), nil)
			examined, err := nomad.Examine(cmd.Context(), o, known)
			if err != nil {
				return usageError{err}
			}
			var findings []diagnosis.Finding
			for _, f := range examined {
				findings = append(findings, diagnosis.Finding{Level: f.Level, What: f.What, Words: f.Words})
			}
			if unknown != nil {
				findings = append(findings, diagnosis.Finding{Level: diagnosis.Warn, What: "database", Words: "nodes were not compared with those that are known here: " + unknown.Error()})
			}
			return tellFindings(out, findings, asJSON)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&cluster, "nomad", false, "look at the Nomad cluster instead")
	f.BoolVar(&policy, "policy-hcl", false, "only print the least policy of the control plane's token, in HCL")
	f.BoolVar(&asJSON, "json", false, "print the findings as a JSON list")
	g.flags(f)
	n.flags(f)
	d.flags(f)
	return withEnvironment(cmd)
}

// errUnwell ends a doctor that found something; it has been said.
var errUnwell = errors.New("something is not as it must be")

func tellFindings(w io.Writer, findings []diagnosis.Finding, asJSON bool) error {
	failed := 0
	for _, f := range findings {
		if f.Level == diagnosis.Fail {
			failed++
		}
	}
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		if err := e.Encode(findings); err != nil {
			return err
		}
	} else {
		for _, f := range findings {
			// What others say has nothing to say to a terminal.
			lines := strings.Split(strings.TrimRight(redact.Visible(f.Words), "\n"), "\n")
			if f.Do != "" {
				lines = append(lines, redact.Visible(f.Do))
			}
			fmt.Fprintf(w, "%-5s %s: %s\n", f.Level, redact.Visible(f.What), strings.Join(lines, "\n      "))
		}
	}
	if failed > 0 {
		return fmt.Errorf("%w: %d of %d", errUnwell, failed, len(findings))
	}
	return nil
}

// knownNodes are the nodes in the database and what they have.
func knownNodes(ctx context.Context, d dataFlags, now time.Time) ([]nomad.KnownNode, error) {
	db, err := openDatabase(ctx, d)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	return nodesOf(ctx, db.Q(), now)
}

func nodesOf(ctx context.Context, q *storage.Queries, now time.Time) ([]nomad.KnownNode, error) {
	rows, err := q.Nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the nodes: %w", err)
	}
	snapshots, err := q.StatusSnapshots(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the snapshots: %w", err)
	}
	known := []nomad.KnownNode{}
	for _, r := range rows {
		k := nomad.KnownNode{
			Name: r.Name, Draining: r.Draining, Alive: r.SeenAt.Valid && now.Sub(r.SeenAt.Time) < heardWithin, Snapshots: map[string]string{},
		}
		for _, s := range snapshots {
			if s.Node == r.Name && s.IsCurrent && s.State == "ready" {
				k.Snapshots[s.EnvironmentID] = s.CommitSha
			}
		}
		known = append(known, k)
	}
	return known, nil
}
