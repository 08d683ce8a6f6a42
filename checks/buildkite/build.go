package buildkite

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/buildkite/go-buildkite/v3/buildkite"
)

// Build is a run of a pipeline.
type Build struct {
	ID           string // immutable
	Number       int    // within its pipeline
	State        string // scheduled, running, passed, failed, canceled, …; of a blocked build the one before, see Blocked
	Blocked      bool   // it waits for a person at a block step
	Commit       string // what is built; "HEAD" until an agent has resolved it
	Branch       string // a name that a fork can choose, too
	Message      string
	Source       string // webhook, api, ui, trigger_job, schedule
	URL          string // its page
	Organization string // slug
	Pipeline     Pipeline
	PullRequest  PullRequest // zero if it is of none
	MetaData     map[string]string
	Created      time.Time
	Finished     time.Time // zero while it runs
	Jobs         []Job     // none in webhooks; without the jobs that were retried
}

// Pipeline of a build.
type Pipeline struct {
	ID         string // immutable
	Slug       string // can be renamed, and used again by another
	Repository string // as git is told it
}

// PullRequest that a build is of.
type PullRequest struct {
	Number     int
	Base       string // branch
	Repository string // the head's, as git is told it
}

// Job of a build.
type Job struct {
	ID         string
	Type       string // script, waiter, manual, trigger
	Name       string
	StepKey    string
	State      string // passed, failed, timed_out, canceled, broken, …
	ExitStatus *int
	SoftFailed bool
	Retried    bool // another job took its place
	Command    string
	URL        string
	Parallel   int // its place among parallel jobs, from 0
	Triggered  int // number of the build that a trigger started
	Started    time.Time
	Finished   time.Time
}

// Outcome is what a build shows.
type Outcome string

// Outcomes of a build.
const (
	Pending  Outcome = "pending"
	Passed   Outcome = "passed"
	Failed   Outcome = "failed"
	Blocked  Outcome = "blocked"  // waits for a person, whatever ran before
	Canceled Outcome = "canceled" // by somebody, or skipped: it shows nothing
)

// Outcome of b. Only a build that has come to its end and is not blocked has
// passed; an unknown state is pending.
func (b Build) Outcome() Outcome {
	switch b.State {
	case "failed":
		return Failed // also where it is blocked: a job failed
	case "canceled", "skipped", "not_run":
		return Canceled
	case "blocked":
		return Blocked
	case "passed":
		switch {
		case b.Blocked:
			return Blocked
		case b.Finished.IsZero():
			return Pending
		}
		return Passed
	}
	if b.Blocked {
		return Blocked
	}
	return Pending
}

// Fork says whether b is of a pull request whose head is not in the pipeline's
// repository, or if that cannot be told. Branches say nothing about it.
func (b Build) Fork() bool {
	if b.PullRequest == (PullRequest{}) {
		return false
	}
	return !SameRepository(b.PullRequest.Repository, b.Pipeline.Repository)
}

// Red says whether b has failed, or will when its last jobs are done: a step of a
// failing build that asks for a fix is one of these jobs itself. Its jobs must
// have been read.
func (b Build) Red() bool {
	return b.Outcome() == Failed || b.Outcome() != Canceled && (b.State == "failing" || len(b.Failed()) > 0)
}

// Failed are the jobs whose failure is the build's: commands that failed, were
// too slow or found no agent, not softly, and that were not tried again.
func (b Build) Failed() []Job {
	var out []Job
	for _, j := range b.Jobs {
		if j.Failed() {
			out = append(out, j)
		}
	}
	return out
}

// Failed says whether j is why a build fails.
func (j Job) Failed() bool {
	return (j.Type == "script" || j.Type == "trigger") && !j.SoftFailed && !j.Retried &&
		slices.Contains([]string{"failed", "timed_out", "expired"}, j.State)
}

// Bounds of what is taken over of one build, in bytes of texts and in numbers.
const (
	maxText     = 1000
	maxJobs     = 2000
	maxMetaData = 200
)

// Build reads one build with its jobs. The token needs the scope read_builds.
func (c *Client) Build(ctx context.Context, org, pipeline string, number int) (Build, error) {
	path, err := ofBuild(org, pipeline, number)
	if err != nil {
		return Build{}, err
	}
	k := call{what: fmt.Sprintf("read build %d of %s/%s", number, org, pipeline), scope: "read_builds"}
	var got *wireBuild
	if _, err := c.do(ctx, k, "GET", path, nil, nil, func() any { got = new(wireBuild); return got }); err != nil {
		return Build{}, err
	}
	b := got.build()
	if b.Number != number {
		return Build{}, &Error{What: k.what, Status: 200, Words: fmt.Sprintf("the answer is about build %d", b.Number)}
	}
	return b, nil
}

// pages bounds lists: of how many pages at most, and how many on each.
const (
	pages   = 5
	perPage = 100
)

// BuildsOf lists the builds of a pipeline for exactly this commit, newest first,
// without their jobs, at most 100. Commit is the whole SHA. The token needs the
// scope read_builds.
func (c *Client) BuildsOf(ctx context.Context, org, pipeline, sha string) ([]Build, error) {
	if !commit.MatchString(sha) {
		return nil, fmt.Errorf("%q is not a whole commit", short(sha))
	}
	path, err := address(org, pipeline)
	if err != nil {
		return nil, err
	}
	path += "?" + url.Values{"commit": {sha}, "exclude_jobs": {"true"}, "exclude_pipeline": {"false"}, "per_page": {strconv.Itoa(perPage)}}.Encode()
	k := call{what: fmt.Sprintf("list the builds of %s in %s/%s", sha[:12], org, pipeline), scope: "read_builds"}
	var got []wireBuild
	if _, err := c.do(ctx, k, "GET", path, nil, nil, func() any { got = nil; return &got }); err != nil {
		return nil, err
	}
	var out []Build
	for i := range got {
		if b := got[i].build(); b.Commit == sha && b.Number > 0 && len(out) < perPage {
			out = append(out, b)
		}
	}
	return out, nil
}

// NewBuild is a build that is asked for.
type NewBuild struct {
	Commit, Branch string // the whole SHA, and a branch that has it
	Message        string
	Env            map[string]string
	MetaData       map[string]string
	// IgnoreBranchFilters builds also what the pipeline's settings leave out.
	IgnoreBranchFilters bool
	// PullRequest, if it has a number.
	PullRequest PullRequest
}

// CreateBuild asks for a build. It is not repeated when Buildkite may have made
// it: the error then is ErrUncertain. The token needs the scope write_builds.
func (c *Client) CreateBuild(ctx context.Context, org, pipeline string, n NewBuild) (Build, error) {
	path, err := address(org, pipeline)
	if err != nil {
		return Build{}, err
	}
	if !commit.MatchString(n.Commit) {
		return Build{}, fmt.Errorf("%q is not a whole commit", short(n.Commit))
	}
	if n.Branch == "" || strings.HasPrefix(n.Branch, "-") {
		return Build{}, fmt.Errorf("%q cannot be a branch to build", short(n.Branch))
	}
	k := call{what: fmt.Sprintf("ask for a build of %s in %s/%s", n.Commit[:12], org, pipeline), scope: "write_builds", once: true}
	body := buildkite.CreateBuild{
		Commit: n.Commit, Branch: n.Branch, Message: cut(n.Message, maxText), Env: n.Env, MetaData: n.MetaData,
		IgnorePipelineBranchFilters: n.IgnoreBranchFilters,
		PullRequestID:               int64(n.PullRequest.Number),
		PullRequestBaseBranch:       n.PullRequest.Base,
		PullRequestRepository:       n.PullRequest.Repository,
	}
	var got *wireBuild
	if _, err := c.do(ctx, k, "POST", path, nil, body, func() any { got = new(wireBuild); return got }); err != nil {
		return Build{}, err
	}
	b := got.build()
	if b.Number == 0 || b.Commit != n.Commit {
		return Build{}, &Error{What: k.what, Status: 201, Words: "the answer is about another build", Uncertain: true}
	}
	return b, nil
}

// wireBuild is what is read of a build, by the API and in webhooks. It is ours and
// not go-buildkite's, where one unexpected word in a pipeline's settings or in a
// date loses the whole build.
type wireBuild struct {
	ID          string             `json:"id"`
	Number      int                `json:"number"`
	State       string             `json:"state"`
	Blocked     bool               `json:"blocked"`
	Commit      string             `json:"commit"`
	Branch      string             `json:"branch"`
	Message     string             `json:"message"`
	Source      string             `json:"source"`
	URL         string             `json:"url"`
	WebURL      string             `json:"web_url"`
	MetaData    map[string]anyText `json:"meta_data"`
	PullRequest *struct {
		ID         anyText `json:"id"`
		Base       string  `json:"base"`
		Repository string  `json:"repository"`
	} `json:"pull_request"`
	Pipeline wirePipeline `json:"pipeline"`
	Created  anyText      `json:"created_at"`
	Finished anyText      `json:"finished_at"`
	Jobs     []wireJob    `json:"jobs"`
}

type wirePipeline struct {
	ID         string `json:"id"`
	Slug       string `json:"slug"`
	URL        string `json:"url"`
	Repository string `json:"repository"`
}

type wireJob struct {
	ID         string  `json:"id"`
	Type       string  `json:"type"`
	Name       string  `json:"name"`
	Label      string  `json:"label"`
	StepKey    string  `json:"step_key"`
	State      string  `json:"state"`
	ExitStatus *int    `json:"exit_status"`
	SoftFailed bool    `json:"soft_failed"`
	Retried    bool    `json:"retried"`
	Command    string  `json:"command"`
	WebURL     string  `json:"web_url"`
	Parallel   *int    `json:"parallel_group_index"`
	Started    anyText `json:"started_at"`
	Finished   anyText `json:"finished_at"`
	Triggered  *struct {
		Number int `json:"number"`
	} `json:"triggered_build"`
}

// anyText is a text, or a number or a truth value as a text; anything else is
// empty. Buildkite writes some of its fields in several ways.
type anyText string

func (t *anyText) UnmarshalJSON(b []byte) error {
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	switch v := v.(type) {
	case string:
		*t = anyText(v)
	case float64:
		*t = anyText(strconv.FormatFloat(v, 'f', -1, 64))
	case bool:
		*t = anyText(strconv.FormatBool(v))
	}
	return nil
}

// time is zero if it cannot be read. The API writes RFC 3339, webhooks and some
// parts of the API "2006-01-02 15:04:05 UTC".
func (t anyText) time() time.Time {
	for _, form := range []string{time.RFC3339Nano, "2006-01-02 15:04:05 MST"} {
		if at, err := time.Parse(form, string(t)); err == nil {
			return at.UTC()
		}
	}
	return time.Time{}
}

func (p wirePipeline) pipeline() Pipeline {
	return Pipeline{ID: cut(p.ID, 100), Slug: cut(p.Slug, 255), Repository: cut(p.Repository, maxText)}
}

func (w *wireBuild) build() Build {
	b := Build{
		ID: cut(w.ID, 100), Number: max(w.Number, 0), State: cut(w.State, 40), Blocked: w.Blocked,
		Commit: cut(w.Commit, 100), Branch: cut(w.Branch, maxText), Message: cut(w.Message, maxText), Source: cut(w.Source, 40),
		URL: page(w.WebURL), Organization: organization(w.URL, w.Pipeline.URL), Pipeline: w.Pipeline.pipeline(),
		Created: w.Created.time(), Finished: w.Finished.time(),
	}
	if p := w.PullRequest; p != nil {
		b.PullRequest = PullRequest{Base: cut(p.Base, maxText), Repository: cut(p.Repository, maxText)}
		b.PullRequest.Number, _ = strconv.Atoi(string(p.ID))
		b.PullRequest.Number = max(b.PullRequest.Number, 0)
	}
	for _, key := range sortedKeys(w.MetaData) {
		if len(b.MetaData) == maxMetaData {
			break
		}
		if b.MetaData == nil {
			b.MetaData = map[string]string{}
		}
		b.MetaData[cut(key, 255)] = cut(string(w.MetaData[key]), maxText)
	}
	for _, j := range w.Jobs[:min(len(w.Jobs), maxJobs)] {
		b.Jobs = append(b.Jobs, j.job())
	}
	return b
}

func (w wireJob) job() Job {
	name := w.Name
	if name == "" {
		name = w.Label
	}
	j := Job{
		ID: cut(w.ID, 100), Type: cut(w.Type, 40), Name: cut(name, maxText), StepKey: cut(w.StepKey, 255), State: cut(w.State, 40),
		ExitStatus: w.ExitStatus, SoftFailed: w.SoftFailed, Retried: w.Retried, Command: cut(w.Command, 4*maxText), URL: page(w.WebURL),
		Started: w.Started.time(), Finished: w.Finished.time(),
	}
	if w.Parallel != nil {
		j.Parallel = *w.Parallel
	}
	if w.Triggered != nil {
		j.Triggered = w.Triggered.Number
	}
	return j
}

// organization is the slug in an address of the API, since builds name theirs in
// no other place.
func organization(addresses ...string) string {
	for _, a := range addresses {
		u, err := url.Parse(a)
		if err != nil {
			continue
		}
		_, rest, ok := strings.Cut(u.Path, "/v2/organizations/")
		name, _, _ := strings.Cut(rest, "/")
		if ok && slug.MatchString(name) {
			return name
		}
	}
	return ""
}

// page is an address that a person may be sent to, or empty.
func page(s string) string {
	u, err := url.Parse(s)
	if err != nil || len(s) > maxText || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
		return ""
	}
	return u.String()
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// cut is valid UTF-8 of at most max bytes, without the one character that no
// database takes: a fork names branches and jobs.
func cut(s string, max int) string {
	s = strings.ReplaceAll(s, "\x00", "")
	if len(s) > max {
		s = s[:max]
	}
	return strings.ToValidUTF8(s, "")
}
