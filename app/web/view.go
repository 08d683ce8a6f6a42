package web

import (
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"inspect/app/comment"
	"inspect/app/github"
	"inspect/checks/evidence"
	"inspect/checks/render"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/storage"
)

// The types below are what the templates see. Every string in them may come
// from a stranger; html/template escapes them all.

// frame is what every page shows of who looks at it.
type frame struct {
	Person, Form string // signed in
	SignIn       string // address of the sign-in
}

func (p *pages) frame(r *http.Request) *frame {
	if p.desk == nil {
		return nil
	}
	if v := viewerOf(r.Context()); v.person.ID != 0 {
		return &frame{Person: v.person.Login, Form: v.form()}
	}
	return &frame{SignIn: signInPath + "?" + url.Values{"to": {r.URL.RequestURI()}}.Encode()}
}

func refOf(r storage.Repository) repositoryRef {
	return repositoryRef{r.InstallationID, github.Repo{ID: r.ID, Owner: r.Owner, Name: r.Name}}
}

type listView struct {
	Filter   filter
	States   []state
	Frame    *frame
	Sessions []listRow
	Older    string
	Live     bool
	Now      time.Time
}

type listRow struct {
	ID, Title, Repository, Requester, Reason, Queue string
	Issue, PullRequest                              int
	State                                           state
	Created, Finished                               time.Time
}

// state is a state for people. Class is one of ok, bad, still, live.
type state struct {
	Name, Title, Class string
}

func stateView(s storage.SessionState) state {
	known := render.StateOf(string(s))
	v := state{Name: string(s), Title: known.Title, Class: "still"}
	switch {
	case !scheduler.Terminal(s):
		v.Class = "live"
	case known.Conclusion == render.Success:
		v.Class = "ok"
	case known.Conclusion == render.Failure, known.Conclusion == render.TimedOut:
		v.Class = "bad"
	}
	if v.Title == "" {
		v.Title = string(s)
	}
	return v
}

type sessionView struct {
	Frame *frame
	Acts  *actsView // nil: nobody is signed in

	ID, Title, Repository, Requester string
	Issue                            int
	IssueURL                         string
	State                            state
	Reason, Words, Queue             string
	Waiting                          []comment.Approval
	Live, Refresh, Still             bool
	Again                            bool   // the page is read anew in any case
	Follow                           string // where what happens is told; empty: the page does not follow
	Conclusion                       string

	Created, Started, Finished time.Time
	Took                       time.Duration
	Phases                     []phaseView

	BaseBranch, BaseSHA         string
	Request, Prompt, PromptHash string
	Instructions                string // digest of the prompt as the agent got it
	SpecSource                  string
	Services                    []string
	Data                        string

	Model, Tokens, Cost, Tools string
	Egress                     egressView

	Headline, Verdict  string
	Doubts, Old, Twice []string // what a reviewer should know first
	Compared           bool     // verification ran on the base too
	Checks             []checkView
	Shots              []shotView
	Change             *evidence.Change
	Size               string
	Diff               *diffView // nil: there is no patch

	Snapshot *snapshotView
	Kept     *keptView
	Harness  string
	Tier     string
	Limits   string
	Attempts []attemptView

	Receipt *receiptView
	Files   []fileView

	Events      []eventView
	EventsTotal int64
	Older       string
}

// egressView is what could be reached and what was refused.
type egressView struct {
	evidence.Egress
	Tried, Noise []evidence.Refused // of Refused
}

// maxTold bounds each list of what a reviewer should know first; the manifest has
// all.
const maxTold = 50

type phaseView struct {
	Name string
	Took time.Duration
}

type checkView struct {
	evidence.Check
	Cell, Base, Old      cellView // on the result, on the base, of the base's tests on the result
	StdoutURL, StderrURL string
}

// cellView is what a command came to in one clone.
type cellView struct{ Mark, Class, Words string }

func cellOf(c evidence.Check) cellView {
	switch {
	case c.Passed && len(c.Flaky) == 0:
		return cellView{"passed", "ok", c.Words}
	case c.Passed:
		return cellView{"flaky", "live", c.Words}
	case c.Doubt != "":
		return cellView{"in doubt", "live", c.Words}
	}
	return cellView{"failed", "bad", c.Words}
}

func cellIn(checks []evidence.Check, name string) cellView {
	for _, c := range checks {
		if c.Name == name {
			return cellOf(c)
		}
	}
	return cellView{Words: "not run"}
}

type snapshotView struct {
	ID, Commit, Store, Drift string
	Age                      string // in words; empty: not known
	Restore, Ready           time.Duration
	Why, Image               string
	Manifests, Steps         []string // that drift changed, and what of setup ran again for it
	Lockfiles                []wire.Lockfile
}

// keptView is the clone of a session that failed.
type keptView struct {
	Node  string
	Until time.Time
}

type attemptView struct {
	Generation int
	Engine     string
	Node       string
	Started    time.Time
	Ended      time.Time
	Words      string
}

type receiptView struct {
	scheduler.Receipt
	CheckRun int64
}

type fileView struct {
	Name, SHA256, URL string
	Bytes             int64 // -1: not known
}

func (p *pages) sessionView(f *facts, events []storage.WebEventsRow) sessionView {
	s := f.row
	v := sessionView{
		ID: s.ID, Title: s.Title, Repository: f.repository.Owner + "/" + f.repository.Name,
		Requester: s.RequesterLogin, Issue: int(s.IssueNumber),
		State: stateView(s.State), Reason: s.Reason, Words: s.Words, Waiting: f.asks,
		Queue:      queueWords(s.State, s.QueueReason, s.QueueAt, s.QueuePosition, f.waiting, p.clock.Now()),
		Live:       !scheduler.Terminal(s.State) || !s.ReportedAt.Valid,
		Conclusion: f.conclusion(),
		Created:    s.CreatedAt, Started: s.StartedAt.Time, Finished: s.FinishedAt.Time,
		BaseBranch: s.BaseBranch, BaseSHA: s.BaseSha,
		Request: s.Request, Prompt: s.Prompt, PromptHash: s.ContextDigest, SpecSource: s.SpecSource,
		Harness: f.harness(), Files: f.files, EventsTotal: s.EventsCount,
	}
	if p.github != "" && s.IssueNumber > 0 {
		v.IssueURL = fmt.Sprintf("%s/%s/%s/issues/%d", strings.TrimRight(p.github, "/"), url.PathEscape(f.repository.Owner), url.PathEscape(f.repository.Name), s.IssueNumber)
	}
	end := v.Finished
	if end.IsZero() {
		end = p.clock.Now()
	}
	v.Took = end.Sub(v.Created)
	if f.restored != nil {
		v.Tier, v.Limits = f.restored.Tier, f.restored.Limits
	}
	v.addTimes(f)
	v.addEvidence(f)
	v.addSnapshot(f)
	v.addUse(f)
	if r := f.receipt; r != nil {
		v.Receipt = &receiptView{Receipt: *r, CheckRun: s.CheckRunID}
	}
	for _, a := range f.attempts {
		v.Attempts = append(v.Attempts, attemptView{
			Generation: int(a.Generation), Engine: a.Engine, Node: a.Node,
			Started: a.StartedAt, Ended: a.EndedAt.Time, Words: a.EndWords,
		})
	}
	v.Events = timeline(events)
	if len(events) == eventsOnPage && events[0].Seq > 1 {
		v.Older = fmt.Sprintf("/sessions/%s?before=%d#timeline", s.ID, events[0].Seq)
	}
	return v
}

func (v *sessionView) addTimes(f *facts) {
	t := f.times()
	for _, x := range []phaseView{
		{"restore", f.restore()}, {"synchronise", t.Sync}, {"work", t.Work}, {"take the result", t.Bundle},
		{"restore for verification", t.VerifyRestore}, {"verify", t.Verify},
	} {
		if x.Took > 0 {
			v.Phases = append(v.Phases, x)
		}
	}
}

func (v *sessionView) addEvidence(f *facts) {
	for _, c := range f.checks() {
		cv := checkView{Check: c, Cell: cellOf(c)}
		if m := f.manifest; m != nil {
			cv.Base, cv.Old = cellIn(m.Base, c.Name), cellIn(m.BaseTests, c.Name)
			if m.SameTests {
				cv.Old = cellView{Words: "the same tests"}
			}
		}
		if digest.MatchString(c.Stdout) {
			cv.StdoutURL = fileURL(v.ID, c.Name+".stdout.txt", c.Stdout)
		}
		if digest.MatchString(c.Stderr) {
			cv.StderrURL = fileURL(v.ID, c.Name+".stderr.txt", c.Stderr)
		}
		v.Checks = append(v.Checks, cv)
	}
	m := f.manifest
	if m == nil {
		return
	}
	v.Headline, v.Verdict, v.Compared = render.Title(*m), m.Verdict.Words, len(m.Base) > 0
	for _, d := range m.Verdict.Doubts[:min(len(m.Verdict.Doubts), maxTold)] {
		v.Doubts = append(v.Doubts, d.What)
	}
	v.Old, v.Twice = m.Verdict.Old[:min(len(m.Verdict.Old), maxTold)], render.Notes(*m)
	v.Twice = v.Twice[:min(len(v.Twice), maxTold)]
	v.Shots = shots(v.ID, m)
	v.Change = &m.Change
	v.Size = render.Statistics(m.Change)
	v.Tier, v.Limits = m.Sandbox.Tier, m.Sandbox.Limits
}

// addUse says what was used and tried.
func (v *sessionView) addUse(f *facts) {
	v.Instructions, v.Data, v.Tools = f.instructions(), f.spec.Data.Provenance, render.Tools(f.agent)
	for _, s := range f.spec.Services {
		v.Services = append(v.Services, s.Name)
	}
	if m := f.model; m.Name != "" {
		v.Model = m.Name
		if m.Calls > 0 {
			v.Tokens = fmt.Sprintf("%s in, %d out", render.Count(m.InputTokens, "token", "tokens"), m.OutputTokens)
		}
		if v.Cost = render.Cost(m); !scheduler.Terminal(f.row.State) {
			v.Cost = render.Spent(f.row.Spent, f.row.Budget) + " so far"
		}
	}
	v.Egress.Egress = f.egress
	for _, r := range f.egress.Refused {
		if r.Noise {
			v.Egress.Noise = append(v.Egress.Noise, r)
		} else {
			v.Egress.Tried = append(v.Egress.Tried, r)
		}
	}
}

func (v *sessionView) addSnapshot(f *facts) {
	const same, other = "the commit the session starts from", "older than the commit the session starts from; synchronised before the work"
	drift := func(d bool) string {
		if d {
			return other
		}
		return same
	}
	switch m, n := f.manifest, f.snapshot; {
	case m != nil && m.Snapshot.ID != "":
		v.Snapshot = &snapshotView{ID: m.Snapshot.ID, Commit: m.Snapshot.Commit, Store: m.Snapshot.Store, Drift: drift(m.Snapshot.Drift), Age: render.Age(m.Snapshot.Age), Restore: m.Snapshot.Restore}
	case n != nil:
		v.Snapshot = &snapshotView{ID: n.ID, Commit: n.CommitSha, Store: n.Store, Drift: drift(n.CommitSha != f.row.BaseSha), Restore: f.restore()}
		if n.PublishedAt.Valid && f.row.StartedAt.Valid {
			v.Snapshot.Age = render.Age(f.row.StartedAt.Time.Sub(n.PublishedAt.Time))
		}
	}
	if v.Kept = f.kept; v.Snapshot == nil {
		return
	}
	v.Snapshot.Ready = f.times().Ready
	if t := f.taken; t != nil {
		v.Snapshot.Why, v.Snapshot.Image = t.Why, t.Image
		if f.manifest == nil {
			v.Snapshot.Age = render.Age(t.Age)
		}
		if d := t.Drift; d != nil && d.Commits+d.Behind > 0 {
			v.Snapshot.Drift = render.Count(d.Commits, "commit", "commits") + " behind the commit the session starts from; synchronised before the work"
		}
	}
	if d := f.drifted; d != nil {
		v.Snapshot.Manifests, v.Snapshot.Steps, v.Snapshot.Lockfiles = d.Manifests, d.Steps, d.Lockfiles
	}
}

func fileURL(session, name, sum string) string {
	return "/sessions/" + session + "/files/" + sum + "?name=" + url.QueryEscape(name)
}

var unsafeInName = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// fileName is what a download is saved as: safe in a header and on any disk,
// and never mistaken for something of the reader's own.
func fileName(name, session, sum string) string {
	name = strings.Trim(unsafeInName.ReplaceAllString(name, "_"), "._-")
	if name == "" {
		name = sum[:12]
	}
	if len(name) > 100 {
		name = name[len(name)-100:]
	}
	return "inspect-" + session + "-" + name
}

// functions the templates use.
var functions = template.FuncMap{
	"short": func(s string) string { return s[:min(len(s), 12)] },
	"took":  render.Duration,
	"stamp": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
	"clock": func(t time.Time) string { return t.UTC().Format(time.TimeOnly) },
	"iso":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"size":  render.Bytes,
	"count": func(n int) string {
		if n < 0 {
			return "binary"
		}
		return fmt.Sprint(n)
	},
}
