package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"inspect/app/measure"
	"inspect/app/tally"
)

// reportFlags are the flags of `inspect report`.
type reportFlags struct {
	dataFlags
	since, svg    string
	filter        measure.Filter
	by            []string
	asCSV, asJSON bool
}

func reportCommand() *cobra.Command {
	var c reportFlags
	cmd := &cobra.Command{
		Use:   "report",
		Short: "What the sessions of a time came to: changes, review, cost, failures",
		Long: `Adds up the sessions that ended since a time. What is counted, and what that leaves
out, is in docs/metrics.md. What is not known is said to be so; rates say what they
are made of.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd) },
	}
	f := cmd.Flags()
	c.flags(f)
	f.StringVar(&c.since, "since", "30d", "how far back: 30d, 6w, 36h, or a day, 2026-11-01")
	f.StringVar(&c.filter.Repository, "repository", "", "only of this repository, owner/name")
	f.StringVar(&c.filter.Harness, "harness", "", "only with this harness")
	f.StringVar(&c.filter.Model, "model", "", "only with this model")
	f.StringVar(&c.filter.Requester, "requester", "", "only asked for by this account")
	f.StringSliceVar(&c.by, "by", []string{"repository", "harness", "model", "requester"}, "what the figures are broken down by; empty: nothing")
	f.BoolVar(&c.asCSV, "csv", false, "print CSV, a line for each figure")
	f.BoolVar(&c.asJSON, "json", false, "print JSON")
	f.StringVar(&c.svg, "svg", "", "write charts into this directory")
	return withEnvironment(cmd)
}

func (c *reportFlags) run(cmd *cobra.Command) error {
	now := time.Now()
	since, err := measure.ParseSince(c.since, now)
	if err != nil {
		return usagef("--since: %w", err)
	}
	if c.asCSV && c.asJSON || c.svg != "" && (c.asCSV || c.asJSON) {
		return usagef("--csv, --json and --svg exclude one another")
	}
	var bys []measure.By
	for _, by := range c.by {
		if !slices.Contains(measure.Bys, measure.By(by)) {
			return usagef("--by: expected some of %v, but found %.40q", measure.Bys, by)
		}
		bys = append(bys, measure.By(by))
	}
	db, err := openDatabase(cmd.Context(), c.dataFlags)
	if err != nil {
		return err
	}
	defer db.Close()
	adder := measure.NewAdder(since, now, c.filter, bys)
	if err := tally.Each(cmd.Context(), db.Q(), tally.Period{Since: since, Until: now, Everywhere: true}, adder.Add); err != nil {
		return err
	}
	r, out := adder.Report(), cmd.OutOrStdout()
	switch {
	case c.asCSV:
		return r.CSV(out)
	case c.asJSON:
		return printJSON(out, r)
	case c.svg != "":
		return writeCharts(out, c.svg, r)
	}
	return printReport(out, r)
}

// writeCharts puts each chart of a report into a file of its own.
func writeCharts(out io.Writer, dir string, r measure.Report) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory for the charts: %w", err)
	}
	for _, c := range r.Charts() {
		var b strings.Builder
		if err := c.SVG(&b, true); err != nil {
			return fmt.Errorf("draw %s: %w", c.Name, err)
		}
		name := filepath.Join(dir, c.Name+".svg")
		if err := os.WriteFile(name, []byte(b.String()), 0o644); err != nil {
			return fmt.Errorf("write a chart: %w", err)
		}
		fmt.Fprintln(out, name)
	}
	return nil
}

func printReport(out io.Writer, r measure.Report) error {
	fmt.Fprintf(out, "Sessions that ended from %s to %s UTC\n\n", r.Since.Format(time.DateTime), r.Until.Format(time.DateTime))
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, f := range r.Total.Figures {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.Title, f.Text(), f.Made())
	}
	if len(r.Total.Causes) > 0 {
		fmt.Fprintf(t, "\nFAILURES BY CAUSE\tSESSIONS\n")
	}
	for _, c := range r.Total.Causes {
		fmt.Fprintf(t, "%s\t%d\n", c, c.Sessions)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, by := range measure.Bys {
		parts := r.By(by)
		if len(parts) == 0 {
			continue
		}
		fmt.Fprintf(t, "\n%s", strings.ToUpper(string(by)))
		for _, c := range measure.Columns {
			fmt.Fprintf(t, "\t%s", strings.ToUpper(c.Head))
		}
		fmt.Fprintln(t)
		for _, p := range parts {
			fmt.Fprint(t, p.Called())
			for _, c := range measure.Columns {
				fmt.Fprintf(t, "\t%s", p.Get(c.Key).Brief())
			}
			fmt.Fprintln(t)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}
