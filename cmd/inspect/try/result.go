package try

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"inspect/checks/evidence"
	"inspect/checks/render"
)

// Result is what came of a try; --json prints it.
type Result struct {
	Task       string      `json:"task,omitempty"`
	State      string      `json:"state"` // of the session; "not_run" if there was none
	Reason     string      `json:"reason,omitempty"`
	Words      string      `json:"words,omitempty"`
	Repository string      `json:"repository"`
	Base       string      `json:"base"`                // the commit that was worked on
	BaseBranch string      `json:"base_branch"`         // that HEAD was on
	Branch     string      `json:"branch,omitempty"`    // that was left in the repository
	Commit     string      `json:"commit,omitempty"`    // it is at
	Files      int         `json:"files"`               // changed
	Added      int         `json:"added"`               // lines
	Deleted    int         `json:"deleted"`             // lines
	Withheld   []string    `json:"withheld,omitempty"`  // changed paths that are not in the branch
	Risks      []string    `json:"risks,omitempty"`     // what a reviewer should look at twice
	Verified   bool        `json:"verified"`            // every command passed, and showed something
	Checks     []Check     `json:"checks"`              // the verify commands, if they ran
	Harness    string      `json:"harness"`             // its kind, or the command's name
	Model      string      `json:"model,omitempty"`     // that was asked for
	CostUSD    json.Number `json:"cost_usd"`            // of model calls, exact
	Cost       string      `json:"cost"`                // the same for people, with how it is known
	Source     string      `json:"spec_source"`         // of the environment
	Session    string      `json:"session,omitempty"`   // its id
	Attempts   int         `json:"attempts"`            // more than one: machines failed in between
	Isolation  string      `json:"isolation,omitempty"` // of the sandbox, with how far limits are enforced
	Times      Times       `json:"times_ms"`
	Evidence   string      `json:"evidence,omitempty"` // directory of the evidence
	Missing    []string    `json:"missing,omitempty"`  // what was not part of it, a sentence each
}

// Check is one verify command.
type Check struct {
	Name       string `json:"name"`
	Run        string `json:"run"`
	Passed     bool   `json:"passed"`
	Words      string `json:"words"`
	DurationMS int64  `json:"duration_ms"`
}

// Times are where the time went, in milliseconds.
type Times struct {
	Prepare int64 `json:"prepare"` // from the start to an environment that is ready
	Restore int64 `json:"restore"`
	Work    int64 `json:"work"`
	Verify  int64 `json:"verify"`
	Publish int64 `json:"publish"`
	Total   int64 `json:"total"`
}

// Delivered is the state of a result that is a branch.
const delivered = "delivered"

func (r *Result) delivered() bool { return r.State == delivered && r.Branch != "" }

// take copies what the manifest says.
func (r *Result) take(m *evidence.Manifest) {
	r.Files, r.Added, r.Deleted = len(m.Change.Files), m.Change.Added, m.Change.Deleted
	r.Withheld, r.Risks = m.Change.Withheld, m.Risks
	if m.Model.Name != "" {
		r.Cost = render.Cost(m.Model)
	}
	r.Verified = m.Verdict.Kind == evidence.Passed
	for _, c := range m.Checks {
		r.Checks = append(r.Checks, Check{Name: c.Name, Run: c.Run, Passed: c.Passed, Words: c.Words, DurationMS: c.Duration.Milliseconds()})
	}
	if m.Sandbox.Tier != "" {
		r.Isolation = m.Sandbox.Tier + ", limits " + m.Sandbox.Limits
	}
	if w, found := strings.CutPrefix(m.Sandbox.Limits, "best effort"); found {
		r.Missing = append(r.Missing, "Limits of memory, processor and processes were not enforced"+strings.TrimRight(w, ".")+".")
	}
}

// write prints a result for people.
func (r *Result) write(w io.Writer) {
	fmt.Fprintln(w)
	switch {
	case r.delivered():
		fmt.Fprintf(w, "Delivered: branch %s in %s\n", r.Branch, plain(r.Repository, 300))
	default:
		words := lines(r.Words, 40)
		if len(words) == 0 {
			words = []string{"no reason was told."}
		}
		fmt.Fprintf(w, "%s: %s\n", title(r.State), words[0])
		for _, l := range words[1:] {
			fmt.Fprintf(w, "  | %s\n", l)
		}
	}
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %-9s %s\n", name, fmt.Sprintf(format, args...))
	}
	row("base", "%.10s (%s)", r.Base, plain(r.BaseBranch, 100))
	if r.Commit != "" {
		row("commit", "%.10s", r.Commit)
	}
	if r.Files > 0 {
		row("change", "%s, +%d -%d", count(r.Files, "file", "files"), r.Added, r.Deleted)
	}
	for _, c := range r.Checks {
		mark := "passed"
		if !c.Passed {
			mark = "FAILED"
		}
		row("verify", "%s %s in %s: %s", plain(c.Name, 60), mark, took(ms(c.DurationMS)), plain(c.Words, 200))
	}
	for _, risk := range r.Risks {
		row("look at", "this change %s", plain(risk, 300))
	}
	row("harness", "%s", plain(strings.TrimSpace(r.Harness+" "+r.Model), 200))
	row("cost", "%s", plain(r.Cost, 300))
	row("time", "%s", r.Times.words())
	if r.Attempts > 1 {
		row("attempts", "%d: machines failed in between", r.Attempts)
	}
	if r.Evidence != "" {
		row("evidence", "%s", r.Evidence)
	}
	for _, m := range r.Missing {
		row("note", "%s", plain(m, 500))
	}
	if r.delivered() {
		fmt.Fprintf(w, "\nLook at it with:  git -C %s diff %.10s %s\n", quote(r.Repository), r.Base, r.Branch)
	}
}

// words are the times for people, without those of what never happened.
func (t Times) words() string {
	var parts []string
	for _, p := range []struct {
		n    int64
		what string
	}{{t.Prepare, "to prepare"}, {t.Restore, "to restore"}, {t.Work, "of work"}, {t.Verify, "to verify"}, {t.Publish, "to publish"}} {
		if p.n > 0 {
			parts = append(parts, took(ms(p.n))+" "+p.what)
		}
	}
	return took(ms(t.Total)) + ": " + strings.Join(parts, ", ")
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// title is a state as the first word of a line.
func title(state string) string {
	if state == "" {
		return "Nothing"
	}
	s := strings.ReplaceAll(state, "_", " ")
	return strings.ToUpper(s[:1]) + s[1:]
}

// table prints the results of tasks.
func table(w io.Writer, results []Result) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nTASK\tRESULT\tVERIFIED\tCOST\tTIME\tTRIES\tBRANCH")
	n := 0
	for _, r := range results {
		verified := "no"
		if r.Verified {
			verified = "yes"
		}
		state := strings.ReplaceAll(r.State, "_", " ")
		if r.Reason != "" && !r.delivered() {
			state += " (" + plain(r.Reason, 40) + ")"
		}
		if r.delivered() {
			n++
		}
		branch := r.Branch
		if branch == "" {
			branch = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%s\n", plain(r.Task, 60), state, verified, r.Cost, took(ms(r.Times.Total)), r.Attempts, branch)
	}
	t.Flush()
	fmt.Fprintf(w, "\n%d of %s delivered.\n", n, count(len(results), "task", "tasks"))
}

// Report is what --json prints for a list of tasks.
type Report struct {
	Delivered int      `json:"delivered"`
	Total     int      `json:"total"`
	Words     string   `json:"words,omitempty"` // why not all were run
	Tasks     []Result `json:"tasks"`
}

func writeJSON(w io.Writer, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(body, '\n'))
	return err
}
