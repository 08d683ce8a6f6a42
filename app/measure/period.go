package measure

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Ended is a session that ended, and what is known of it.
type Ended struct {
	Repository, Harness, Model, Requester string // Harness, Model: "" if it had none of ours

	State, Reason string
	At            time.Time // its end

	Attempts    int
	Ready       []time.Duration // of attempts that told it: from the restore's begin until the agent could take a prompt
	Restore     []time.Duration // of the clones for the work
	Stale       bool            // its last attempt took a snapshot that was older or further behind than wished
	Sandbox     time.Duration   // of all attempts that began
	SandboxOpen bool            // the end of one is not known
	Unpriced    int             // calls of models without a price
	Cost        int64           // billionths of a US dollar
	Tools       int             // calls that the harness told of; -1: not known any more

	Pull   bool // it has a pull request of ours
	Fate   bool // what became of that is followed
	Opened bool // by this session; the fields below are of those alone
	Outcome
	Risk int // of the merged change, in units; 0: not known
}

// Ends of a session that count apart.
const (
	delivered = "delivered"
	noChange  = "no_change"
	stopped   = "stopped"
	// machine is the state, refused the reason of a session that an old
	// snapshot kept from beginning.
	machine = "infrastructure"
	refused = "snapshot_refused"
)

func (e *Ended) failed() bool {
	return e.State != delivered && e.State != noChange && e.State != stopped
}

// stale says whether its snapshot was too old to begin with, or was older than
// wished and the session failed.
func (e *Ended) stale() bool {
	return e.State == machine && e.Reason == refused || e.failed() && e.Stale
}

// costKnown: it called models of ours, each of them with a price.
func (e *Ended) costKnown() bool { return e.Model != "" && e.Unpriced == 0 }

// By is what figures are broken down by.
type By string

// What figures can be broken down by.
const (
	ByRepository By = "repository"
	ByHarness    By = "harness"
	ByModel      By = "model"
	ByRequester  By = "requester"
)

// Bys are all of them.
var Bys = []By{ByRepository, ByHarness, ByModel, ByRequester}

// Of is what a session counts under; "" if it has nothing like that.
func (b By) Of(e *Ended) string {
	switch b {
	case ByRepository:
		return e.Repository
	case ByHarness:
		return e.Harness
	case ByModel:
		return e.Model
	}
	return e.Requester
}

// Filter leaves sessions out. Empty fields leave out none.
type Filter struct {
	Repository string `json:"repository,omitempty"`
	Harness    string `json:"harness,omitempty"`
	Model      string `json:"model,omitempty"`
	Requester  string `json:"requester,omitempty"`
}

func (f Filter) takes(e *Ended) bool {
	for _, x := range [][2]string{{f.Repository, e.Repository}, {f.Harness, e.Harness}, {f.Model, e.Model}, {f.Requester, e.Requester}} {
		if x[0] != "" && !strings.EqualFold(x[0], x[1]) {
			return false
		}
	}
	return true
}

// Figure is one number of a report. Value is nil where nothing is known or a
// rate has nothing to be a rate of; Note then says why. Of a rate, Numerator and
// Denominator are what it is made of.
type Figure struct {
	Key         string   `json:"key"`
	Title       string   `json:"title"`
	Unit        string   `json:"unit,omitempty"` // s, min, USD; "": a number
	Value       *float64 `json:"value"`
	Numerator   *float64 `json:"numerator,omitempty"`
	Denominator *float64 `json:"denominator,omitempty"`
	Note        string   `json:"note,omitempty"`
}

// Cause is why sessions failed, and how many.
type Cause struct {
	State    string `json:"state"`
	Reason   string `json:"reason,omitempty"`
	Sessions int    `json:"sessions"`
}

// Part is what sessions come to that have something in common.
type Part struct {
	By      By       `json:"by,omitempty"` // "": all of them
	Name    string   `json:"name"`         // "": they have no harness or model that is known
	Figures []Figure `json:"figures"`
	Causes  []Cause  `json:"causes"`
}

// Get is the figure with a key.
func (p Part) Get(key string) (f Figure) {
	if i := slices.IndexFunc(p.Figures, func(f Figure) bool { return f.Key == key }); i >= 0 {
		f = p.Figures[i]
	}
	return f
}

// Report is what the sessions of a period come to.
type Report struct {
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"`
	Filter Filter    `json:"filter"`
	Total  Part      `json:"total"`
	Parts  []Part    `json:"parts"`
	Days   []Day     `json:"days"`
}

// Day is a day of a report, in UTC.
type Day struct {
	Date      string `json:"date"`
	Sessions  int    `json:"sessions"`
	Delivered int    `json:"delivered"`
}

// NewReport adds up. The parts of each of bys come in its order, those with
// most sessions first.
func NewReport(since, until time.Time, f Filter, bys []By, list []Ended) Report {
	a := NewAdder(since, until, f, bys)
	for i := range list {
		a.Add(&list[i])
	}
	return a.Report()
}

// Adder makes a report of sessions that come one after the other, and keeps none
// of them.
type Adder struct {
	report Report
	bys    []By
	total  *sums
	parts  map[By]map[string]*sums
	days   map[string]Day
}

// NewAdder begins a report. What bys names twice is taken once.
func NewAdder(since, until time.Time, f Filter, bys []By) *Adder {
	a := &Adder{
		report: Report{Since: since.UTC(), Until: until.UTC(), Filter: f, Parts: []Part{}, Days: []Day{}},
		total:  newSums(), parts: map[By]map[string]*sums{}, days: map[string]Day{},
	}
	for _, by := range bys {
		if a.parts[by] == nil {
			a.bys, a.parts[by] = append(a.bys, by), map[string]*sums{}
		}
	}
	return a
}

// Add takes a session, if the filter does.
func (a *Adder) Add(e *Ended) {
	if !a.report.Filter.takes(e) {
		return
	}
	a.total.add(e)
	for _, by := range a.bys {
		name := by.Of(e)
		s := a.parts[by][name]
		if s == nil {
			s = newSums()
			a.parts[by][name] = s
		}
		s.add(e)
	}
	date := e.At.UTC().Format(time.DateOnly)
	d := a.days[date]
	if d.Sessions++; e.State == delivered {
		d.Delivered++
	}
	a.days[date] = d
}

// Report is what the sessions so far come to.
func (a *Adder) Report() Report {
	r := a.report
	r.Total, r.Parts, r.Days = a.total.part(), []Part{}, []Day{}
	for _, by := range a.bys {
		groups := a.parts[by]
		names := slices.SortedFunc(maps.Keys(groups), func(a, b string) int {
			return cmp.Or(cmp.Compare(groups[b].sessions, groups[a].sessions), cmp.Compare(a, b))
		})
		for _, name := range names {
			p := groups[name].part()
			p.By, p.Name = by, name
			r.Parts = append(r.Parts, p)
		}
	}
	for _, date := range slices.Sorted(maps.Keys(a.days)) {
		d := a.days[date]
		d.Date = date
		r.Days = append(r.Days, d)
	}
	return r
}

// sums are what figures are made of.
type sums struct {
	sessions, delivered, noChange, stopped, failed, stale int
	unfollowed, opened, merged, closed, reverted          int
	accepted, undated, riskless, riskAccepted, risk       int
	fixes, retries, told, tools, untold                   int
	review, sandbox                                       time.Duration
	endless, priced, mergedPriced                         int
	cost                                                  int64
	merging, ready, restore                               []time.Duration
	causes                                                map[Cause]int
}

func (s *sums) add(e *Ended) {
	s.sessions++
	switch {
	case e.State == delivered:
		s.delivered++
	case e.State == noChange:
		s.noChange++
	case e.State == stopped:
		s.stopped++
	default:
		s.failed++
		s.causes[Cause{State: e.State, Reason: e.Reason}]++
	}
	if e.stale() {
		s.stale++
	}
	s.retries += max(0, e.Attempts-1)
	s.ready, s.restore = append(s.ready, e.Ready...), append(s.restore, e.Restore...)
	if e.SandboxOpen {
		s.endless++
	} else {
		s.sandbox += e.Sandbox
	}
	switch {
	case e.Tools > 0:
		s.told++
		s.tools += e.Tools
	default:
		s.untold++
	}
	if e.costKnown() {
		s.priced++
		s.cost += e.Cost
	}
	if e.Pull && !e.Fate {
		s.unfollowed++
	}
	if e.Opened {
		s.pull(e)
	}
}

func (s *sums) pull(e *Ended) {
	s.opened++
	s.review += e.Review
	if e.Merged.IsZero() {
		if !e.Closed.IsZero() {
			s.closed++
		}
		return
	}
	s.merged++
	s.fixes += e.Fixes
	if e.costKnown() {
		s.mergedPriced++
	}
	if e.Outcome.Opened.IsZero() || e.Merged.Before(e.Outcome.Opened) {
		s.undated++
	} else {
		s.merging = append(s.merging, e.Merged.Sub(e.Outcome.Opened))
	}
	accepted := 0
	if e.Reverted.IsZero() {
		accepted = 1
	} else {
		s.reverted++
	}
	s.accepted += accepted
	if e.Risk > 0 {
		s.risk += e.Risk
		s.riskAccepted += accepted
	} else {
		s.riskless++
	}
}

func newSums() *sums { return &sums{causes: map[Cause]int{}} }

func (s *sums) part() Part {
	p := Part{Figures: s.figures(), Causes: []Cause{}}
	for c, n := range s.causes {
		c.Sessions = n
		p.Causes = append(p.Causes, c)
	}
	slices.SortFunc(p.Causes, func(a, b Cause) int {
		return cmp.Or(cmp.Compare(b.Sessions, a.Sessions), cmp.Compare(a.State, b.State), cmp.Compare(a.Reason, b.Reason))
	})
	return p
}

func (s *sums) figures() []Figure {
	const none = "no session ended"
	opened, merged := "no pull request was opened", "nothing was merged"
	if s.unfollowed > 0 {
		opened = "what became of the pull requests is not known"
		merged = opened
	}
	cost := fmt.Sprintf("of the %d of %d sessions whose cost is known", s.priced, s.sessions)
	money := float64(s.cost) / 1e9
	minutes := s.review.Minutes()
	out := []Figure{
		{Key: "sessions", Title: "Sessions that ended", Value: ptr(float64(s.sessions))},
		rate("delivered", "Delivered", "", s.delivered, s.sessions, "delivered, of the sessions", none),
		rate("no_change", "Nothing to change", "", s.noChange, s.sessions, "of the sessions", none),
		rate("stopped", "Stopped by a person or by what happened on GitHub", "", s.stopped, s.sessions, "of the sessions", none),
		rate("failed", "Failed", "", s.failed, s.sessions, "of the sessions, for the causes below", none),
		count("pull_requests", "Pull requests opened", s.opened, s.opened > 0 || s.sessions > 0 && s.unfollowed == 0, also(fmt.Sprintf("still open: %d", s.opened-s.merged-s.closed), s.unfollowed, "sessions with one of which nothing is known"), opened),
		rate("merge_rate", "Merge rate", "", s.merged, s.opened, "merged, of the pull requests opened", opened),
	}
	out = append(out, percentiles("time_to_merge", "Time to merge", s.merging, "pull requests merged", also(merged, s.undated, "not known when opened"))...)
	out = append(out,
		amount("review_minutes", "Review minutes", "min", minutes, s.opened > 0, fmt.Sprintf("of pull requests: %d", s.opened), opened),
		rate("accepted", "Accepted changes", "", s.accepted, s.opened, "merged and not reverted, of the pull requests opened", opened),
		quotient("accepted_per_review_minute", "Accepted changes per review minute", "", float64(s.accepted), minutes, "accepted changes, by review minutes", "there are no review minutes"),
		quotient("accepted_per_risk", "Accepted changes per unit of risk", "", float64(s.riskAccepted), float64(s.risk),
			also("accepted changes, by units of risk of all merged ones", s.riskless, "left out, their files are not known"), also(merged, s.riskless, "files not known")),
		rate("reverted", "Reverted", "", s.reverted, s.merged, "of the merged ones", merged),
		quotient("escaped_defects", "Escaped defects per merged change", "", float64(s.fixes), float64(s.merged), "signs of a defect within 14 days, by merged changes", merged),
		amount("cost", "Cost of model calls", "USD", money, s.priced > 0, cost, "no cost is known"),
		quotient("cost_per_merged", "Cost per merged change", "USD", money, float64(s.mergedPriced), "cost, by merged changes, "+cost, "no merged change has a known cost"),
		amount("sandbox_minutes", "Sandbox minutes", "min", s.sandbox.Minutes(), s.sessions > s.endless, also(fmt.Sprintf("of sessions: %d", s.sessions-s.endless), s.endless, "left out, the end of an attempt is not known"), cmp.Or(map[bool]string{true: none}[s.sessions == 0], "the ends of the attempts are not known")),
		amount("tool_calls", "Tool calls", "", float64(s.tools), s.told > 0, also(fmt.Sprintf("of sessions: %d", s.told), s.untold, "told of none, or their events were removed"), "no session told of any"),
		count("retries", "Retries", s.retries, s.sessions > 0, "attempts after the first", none),
		rate("staleness_failures", "Staleness failures", "", s.stale, s.sessions, "refused for an old snapshot, or failed on one older than wished; of the sessions", none),
	)
	out = append(out, percentiles("cold_start", "Cold start", s.ready, "attempts", "no attempt told it")...)
	return append(out, percentiles("restore", "Restore", s.restore, "attempts", "no attempt told it")...)
}

// also adds to words how many things are otherwise, if any are.
func also(words string, n int, what string) string {
	if n == 0 {
		return words
	}
	return fmt.Sprintf("%s; %s: %d", words, what, n)
}

func ptr(v float64) *float64 { return &v }

func amount(key, title, unit string, v float64, known bool, note, unknown string) Figure {
	if !known {
		return Figure{Key: key, Title: title, Unit: unit, Note: unknown}
	}
	return Figure{Key: key, Title: title, Unit: unit, Value: ptr(v), Note: note}
}

func count(key, title string, n int, known bool, note, unknown string) Figure {
	return amount(key, title, "", float64(n), known, note, unknown)
}

func rate(key, title, unit string, n, of int, note, unknown string) Figure {
	return quotient(key, title, unit, float64(n), float64(of), note, unknown)
}

// quotient divides, if there is something to divide by.
func quotient(key, title, unit string, n, of float64, note, unknown string) Figure {
	if of <= 0 {
		return Figure{Key: key, Title: title, Unit: unit, Note: unknown}
	}
	return Figure{Key: key, Title: title, Unit: unit, Value: ptr(n / of), Numerator: ptr(n), Denominator: ptr(of), Note: note}
}

// percentiles are the median and the 95th percentile by nearest rank.
func percentiles(key, title string, all []time.Duration, of, unknown string) (out []Figure) {
	slices.Sort(all)
	for _, p := range []int{50, 95} {
		f := Figure{Key: key + "_p" + strconv.Itoa(p), Title: fmt.Sprintf("%s, p%d", title, p), Unit: "s", Note: unknown}
		if n := len(all); n > 0 {
			rank := int(math.Ceil(float64(p) / 100 * float64(n)))
			f.Value, f.Note = ptr(all[rank-1].Seconds()), fmt.Sprintf("of %s: %d", of, n)
		}
		out = append(out, f)
	}
	return out
}

// ParseSince reads how far back a report goes: "30d", "6w", "36h", or the day it
// begins with, "2026-11-01", in UTC.
func ParseSince(s string, now time.Time) (time.Time, error) {
	bad := fmt.Errorf("expected a time like 30d, 6w or 36h, or a day like 2026-11-01, but found %.40q", s)
	if day, err := time.Parse(time.DateOnly, s); err == nil {
		if day.After(now) {
			return day, bad
		}
		return day, nil
	}
	units := map[byte]time.Duration{'h': time.Hour, 'd': 24 * time.Hour, 'w': 7 * 24 * time.Hour}
	if s == "" || units[s[len(s)-1]] == 0 {
		return time.Time{}, bad
	}
	const most = 100 * 365 * 24 * time.Hour
	n, err := strconv.Atoi(s[:len(s)-1])
	unit := units[s[len(s)-1]]
	if err != nil || n < 1 || n > int(most/unit) {
		return time.Time{}, bad
	}
	return now.Add(-time.Duration(n) * unit), nil
}
