// Package try works on a person's own repository, without any forge: it copies
// the history of one commit, starts the same rooms as `inspect serve` for as
// long as it takes, has the work done and verified, and leaves one new branch
// in the repository and the evidence as files. Options come in; lines for a
// person go out while it works, and a Result at the end. It never touches the
// worktree, the index or anything else of the repository.
package try

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	agent "inspect/app/context"
	"inspect/app/publish"
	"inspect/envs/spec"
	"inspect/scheduler"
	"inspect/storage"
)

// Options of Run.
type Options struct {
	Repo   string // a directory in the repository
	Prompt string
	Tasks  string // a file of frozen tasks instead of both
	Wishes        // of the one try, or where a task says nothing

	Data    string   // directory to work in and to keep; empty: a temporary one
	Out     string   // directory for the evidence; empty: below the person's state directory
	Keep    bool     // the temporary directory stays
	Expose  []string // further directories of this machine that sandboxes see
	Limits  string   // enforce or best-effort
	Models  string   // file of the model gateway
	JSON    bool     // the result as one JSON object
	Verbose bool
	Colour  bool // on Progress

	Stdout   io.Writer // the result
	Progress io.Writer // what happens, a line each
	// Again is closed when the person interrupts a second time.
	Again <-chan struct{}

	// ChooseModel says which model a kind of harness works with: the named one,
	// or a default for "". The error is for people.
	ChooseModel func(kind, model string) (string, error)

	Open Opener
	// Provide makes the programs of agents, by their kind, and of commands, by
	// their name, visible in sandboxes. dir is for what it keeps; out come the
	// directories to expose. A command in optional that nobody finds is no error.
	Provide func(ctx context.Context, dir string, agents, needed, optional []string) (expose []string, err error)
}

// wish is one thing that is asked for.
type wish struct {
	task, repo, commit, prompt string
	Wishes
}

// plan is a wish of which is known how it will be done.
type plan struct {
	wish
	repo   *Repository
	env    Environment
	id     int64
	origin origin
	result Result
}

// Run does what is asked for. The error is nil if everything was delivered.
func Run(ctx context.Context, o Options) error {
	begun := time.Now()
	t := &try{o: o, begun: begun, tell: &teller{w: o.Progress, colour: o.Colour, verbose: o.Verbose, begun: begun}}
	err := t.run(ctx)
	if err != nil && (ctx.Err() != nil || errors.Is(err, errNow)) {
		// Whatever failed did so because of it.
		err = &Error{Status: ExitInterrupted, Words: "interrupted"}
	}
	if werr := t.finish(err); werr != nil && err == nil {
		err = werr
	}
	switch {
	case err == nil && t.allDelivered():
		return nil
	case err == nil && ctx.Err() != nil:
		return &Error{Status: ExitInterrupted}
	case err == nil:
		return &Error{Status: ExitOther}
	case coded(err):
		return err
	}
	return &Error{Status: ExitOther, Words: err.Error()}
}

// try is one call of Run.
type try struct {
	o     Options
	begun time.Time
	tell  *teller
	plans []*plan
	place *place
	house *House
}

func (t *try) run(ctx context.Context) (err error) {
	if err := t.planAll(ctx); err != nil {
		return err
	}
	if t.o.Tasks == "" {
		t.introduce(t.plans[0])
	}
	if t.place, err = openPlace(ctx, t.o.Data); err != nil {
		return err
	}
	defer func() {
		keep := t.o.Keep
		if keep {
			err = errors.Join(err, t.place.remember())
			t.tell.step("kept: %s", t.place.dir)
		}
		if cerr := t.place.close(ctx, keep); cerr != nil {
			t.tell.warn("%v", cerr)
		}
	}()
	expose, err := t.provide(ctx)
	if err != nil {
		return err
	}
	if err := t.copyAll(ctx); err != nil {
		return err
	}
	log, err := openLog(filepath.Join(t.place.dir, logName))
	if err != nil {
		return err
	}
	defer log.Close()
	defer func() { t.keepLog(ctx, err) }()
	t.tell.step("starting a database, a scheduler and a node of its own")
	if t.house, err = t.open(ctx, expose, log); err != nil {
		return err
	}
	defer t.close()
	if err := t.awaitNode(ctx); err != nil {
		return err
	}
	if err := t.endOld(ctx); err != nil {
		return err
	}
	for _, p := range t.plans {
		if ctx.Err() != nil {
			return nil
		}
		if p.task != "" {
			fmt.Fprintln(t.o.Progress)
			t.introduce(p)
		}
		if err := t.one(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// planAll looks at everything that is asked for, before anything is started.
func (t *try) planAll(ctx context.Context) error {
	wishes := []wish{{repo: t.o.Repo, prompt: t.o.Prompt}}
	if t.o.Tasks != "" {
		var err error
		if wishes, err = readTasks(t.o.Tasks); err != nil {
			return err
		}
	} else if strings.TrimSpace(t.o.Prompt) == "" {
		return Usagef("--prompt is missing: say what the agent shall do")
	} else if len(t.o.Prompt) > agent.MaxRequest {
		return Usagef("--prompt: expected at most %d bytes", agent.MaxRequest)
	}
	if t.o.Out != "" {
		var err error
		if t.o.Out, err = openEvidence(t.o.Out); err != nil {
			return err
		}
	} else if _, err := defaultEvidence("x"); err != nil {
		return err
	}
	for _, w := range wishes {
		w.Wishes = w.Wishes.or(t.o.Wishes)
		p := &plan{wish: w}
		var err error
		if p.repo, err = openRepository(ctx, w.repo, w.commit); err == nil {
			p.env, err = environment(ctx, p.repo, w.Wishes)
		}
		if h := &p.env.Spec.Harness; err == nil && (h.Kind != spec.HarnessCommand || h.Model != "") {
			if h.Model, err = t.o.ChooseModel(h.Kind, h.Model); err != nil {
				err = Usagef("the agent %s needs a model: %v", h.Kind, err)
			}
		}
		if err != nil {
			if w.task != "" && coded(err) {
				err = Usagef("task %s: %v", w.task, err)
			}
			return err
		}
		p.id = p.repo.id()
		if w.task != "" { // two tasks may begin at one commit and differ in setup
			p.id = taskID(p.id, len(t.plans))
		}
		p.result = Result{
			Task: w.task, State: "not_run", Repository: p.repo.Path, Base: p.repo.Commit, BaseBranch: p.repo.Branch,
			Harness: p.env.Spec.Harness.Name(), Model: p.env.Spec.Harness.Model, CostUSD: "0", Cost: spec.Money(0).String(), Source: p.env.Source,
			Missing: slices.Concat(p.repo.Pending, p.repo.Notes), Checks: []Check{},
		}
		t.plans = append(t.plans, p)
	}
	return nil
}

func taskID(id int64, n int) int64 { return id ^ int64(n+1)<<32 }

// provide sees to the programs of agents and commands.
func (t *try) provide(ctx context.Context) ([]string, error) {
	var agents, needed, optional []string
	for _, p := range t.plans {
		s := p.env.Spec
		if s.Harness.Kind != spec.HarnessCommand {
			agents = append(agents, s.Harness.Kind)
		}
		needed = append(needed, p.env.Programs...)
		optional = append(optional, words(s.Harness.Command))
		for _, lines := range [][]spec.Step{s.Setup, s.Data.Load} {
			for _, l := range lines {
				optional = append(optional, words(l.Run))
			}
		}
		for _, v := range s.Verify {
			optional = append(optional, words(v.Run))
		}
		for _, v := range s.Services {
			optional = append(optional, words(v.Command))
		}
	}
	unique := func(list []string) []string {
		list = slices.DeleteFunc(list, func(s string) bool { return s == "" })
		slices.Sort(list)
		return slices.Compact(list)
	}
	expose, err := t.o.Provide(ctx, filepath.Join(t.place.dir, "programs"), unique(agents), unique(needed), unique(optional))
	if err != nil {
		return nil, err
	}
	return append(slices.Clone(t.o.Expose), expose...), nil
}

// words is the program that a shell line begins with.
func words(line string) string {
	for _, w := range strings.Fields(line) {
		if strings.Contains(w, "=") {
			continue // a variable
		}
		if strings.ContainsAny(w, "$`'\"\\(){}[]<>|&;*?~") {
			return ""
		}
		return w
	}
	return ""
}

// copyAll makes the private copies that stand for a forge.
func (t *try) copyAll(ctx context.Context) error {
	dir := filepath.Join(t.place.dir, "origins")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, p := range t.plans {
		begun := time.Now()
		notes := len(p.repo.Notes)
		var err error
		if p.origin, err = copyOrigin(ctx, p.repo, filepath.Join(dir, strconv.FormatInt(p.id, 10)+".git")); err != nil {
			return err
		}
		for _, n := range p.repo.Notes[notes:] {
			p.result.Missing = append(p.result.Missing, n)
			t.tell.warn("%s", n)
		}
		if d := time.Since(begun); d > time.Second {
			t.tell.detail("the history of %s was copied in %s", p.repo.name(), took(d))
		}
	}
	return nil
}

// open starts the house.
func (t *try) open(ctx context.Context, expose []string, log io.Writer) (*House, error) {
	plans := map[int64]*plan{}
	prepare := 30 * time.Minute
	for _, p := range t.plans {
		plans[p.id] = p
		prepare = max(prepare, p.env.Spec.Limits.Timeout)
	}
	return t.o.Open(ctx, HouseOptions{
		Data: t.place.dir, Origins: filepath.Join(t.place.dir, "origins"), Expose: expose, Limits: t.o.Limits, Models: t.o.Models, Prepare: prepare, Log: log,
		GitHub: forge{plans},
		CloneURL: func(id int64) string {
			if p := plans[id]; p != nil {
				return p.origin.address()
			}
			return ""
		},
		Effects: func(p *publish.Publisher) scheduler.Effects { return effects{plans, p} },
	})
}

// close takes the house down.
func (t *try) close() {
	if t.house != nil {
		t.house.Close()
		t.house = nil
	}
}

// nodePatience is how long the node daemon may take to tell that it is there.
const nodePatience = 2 * time.Minute

// awaitNode waits until the node is there: what is asked for goes to it.
func (t *try) awaitNode(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, nodePatience, fmt.Errorf("the node daemon did not come up within %s", nodePatience))
	defer cancel()
	tick := time.NewTicker(look / 4)
	defer tick.Stop()
	for {
		nodes, err := t.house.DB.Q().Nodes(ctx)
		if err == nil && len(nodes) > 0 && nodes[0].SeenAt.Valid && nodes[0].SeenAt.Time.After(t.begun) {
			return nil
		}
		select {
		case <-tick.C:
		case err := <-t.house.Failed:
			return fmt.Errorf("a part of Inspect ended by itself: %w", err)
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// endOld stops what a try that was killed in the same directory left unfinished.
func (t *try) endOld(ctx context.Context) error {
	rows, err := t.house.DB.Q().WebSessions(ctx, storage.WebSessionsParams{Before: time.Now().Add(time.Hour), BeforeID: "~", AtMost: 500})
	if err != nil {
		return fmt.Errorf("look for unfinished sessions: %w", err)
	}
	for _, s := range rows {
		if !scheduler.Terminal(s.State) {
			if err := t.house.Scheduler.Stop(ctx, s.ID, "a later try", ""); err != nil {
				return err
			}
		}
	}
	return nil
}

// one does one plan. The error is of something that ends all.
func (t *try) one(ctx context.Context, p *plan) error {
	begun := time.Now()
	if p.task == "" {
		begun = t.begun
	}
	id, err := t.create(ctx, p)
	if err != nil {
		return err
	}
	p.result.Session = id
	f := &follower{house: t.house, session: id, tell: t.tell}
	s, err := f.follow(ctx, t.o.Again)
	if errors.Is(err, errNow) {
		p.result.State, p.result.Words = "stopped", "A second interrupt ended it at once: what it had not handed over is lost."
	} else if err != nil {
		p.result.State, p.result.Words = string(scheduler.Infrastructure), err.Error()
	}
	if err != nil {
		p.result.Times.Total = time.Since(begun).Milliseconds()
		return err
	}
	live := context.WithoutCancel(ctx)
	r := &p.result
	r.State, r.Reason, r.Words, r.Attempts = string(s.State), s.Reason, s.Words, int(s.Generation)
	spent := spec.Money(max(s.Spent, f.spent))
	r.CostUSD, r.Cost = json.Number(spent.Decimal()), spent.String()
	if s.State == scheduler.Delivered {
		r.Branch, r.Commit = s.Branch, s.HeadSha
	}
	r.Times = Times{
		Prepare: f.placed.Sub(begun).Milliseconds(), Work: f.spans["working"].Milliseconds(), Restore: f.spans["restoring"].Milliseconds(),
		Verify: f.spans["verifying"].Milliseconds(), Publish: f.spans["publishing"].Milliseconds(), Total: time.Since(begun).Milliseconds(),
	}
	if f.placed.IsZero() {
		r.Times.Prepare = r.Times.Total
	}
	dir := t.o.Out
	switch {
	case dir == "":
		if dir, err = defaultEvidence(id); err != nil {
			return err
		}
	case p.task != "":
		dir = filepath.Join(dir, p.task)
	}
	m, err := export(live, t.house, s, dir)
	if err != nil {
		return fmt.Errorf("write the evidence to %s: %w", dir, err)
	}
	r.Evidence = dir
	if m != nil {
		r.take(m)
	}
	if s.State == scheduler.Infrastructure {
		if err := copyFile(filepath.Join(t.place.dir, logName), filepath.Join(dir, fileLog)); err != nil {
			t.tell.warn("the log could not be kept: %v", err)
		}
	}
	if r.delivered() {
		t.tell.good("delivered as branch %s", r.Branch)
	} else {
		t.tell.bad("%s", strings.ReplaceAll(r.State, "_", " "))
	}
	return writeFileJSON(filepath.Join(dir, fileResult), r)
}

// introduce says what is worked on and what is not part of it.
func (t *try) introduce(p *plan) {
	name := p.repo.name()
	if p.task != "" {
		name = p.task + ": " + name
	}
	with := p.result.Harness
	if p.result.Model != "" {
		with += " with " + plain(p.result.Model, 100)
	}
	t.tell.head("%s at %.10s (%s), %s, environment %s", name, p.repo.Commit, plain(p.repo.Branch, 100), with, plain(p.env.Source, 200))
	for _, n := range p.result.Missing {
		t.tell.warn("%s", n)
	}
	for _, g := range p.env.Gaps {
		g = "About the environment: " + strings.TrimRight(plain(g, 400), ".") + "."
		t.tell.warn("%s", g)
		p.result.Missing = append(p.result.Missing, g)
	}
}

// create makes the session, as the intake does for a label.
func (t *try) create(ctx context.Context, p *plan) (string, error) {
	place := agent.PlaceOf(p.env.Spec)
	built := agent.BuildLocal(agent.LocalFacts{
		Repository: p.repo.name(), Branch: p.repo.Branch, Commit: p.repo.Commit, Request: p.prompt, Notes: p.repo.Notes, Place: place,
	})
	first, _, _ := strings.Cut(strings.TrimSpace(p.prompt), "\n")
	key := "try:" + rand.Text()
	var id string
	err := t.house.DB.InTx(ctx, func(tx *storage.Tx) error {
		if err := t.saw(ctx, tx, p); err != nil {
			return err
		}
		env, err := t.house.Scheduler.EnsureEnvironment(ctx, tx, p.id, p.env.Spec, p.origin.branch, p.repo.Commit)
		if err != nil {
			return err
		}
		s, err := t.house.Scheduler.Create(ctx, tx, scheduler.NewSession{
			InstallationID: installation, RepositoryID: p.id, IntentKey: key, RequesterLogin: requester,
			Title: plain(first, agent.MaxTitle), Request: p.prompt, Prompt: built.Prompt, ContextDigest: built.Digest,
			BaseBranch: p.origin.branch, BaseSHA: p.repo.Commit, EnvironmentID: env, Spec: p.env.Spec, SpecSource: p.env.Source,
		})
		id = s.ID
		return err
	})
	if err != nil {
		return "", fmt.Errorf("create the session: %w", err)
	}
	return id, nil
}

// saw makes the repository known, as an event of a forge does.
func (t *try) saw(ctx context.Context, tx *storage.Tx, p *plan) error {
	if err := tx.Q().SawInstallation(ctx, storage.SawInstallationParams{ID: installation, Account: owner}); err != nil {
		return err
	}
	return tx.Q().SawRepository(ctx, storage.SawRepositoryParams{
		ID: p.id, InstallationID: installation, Owner: owner, Name: p.repo.name(), DefaultBranch: p.origin.branch,
	})
}

// What stands where a forge has its installation and its owner.
const (
	installation = 1
	owner        = "local"
)

func (t *try) allDelivered() bool {
	for _, p := range t.plans {
		if !p.result.delivered() {
			return false
		}
	}
	return len(t.plans) > 0
}

// finish prints what came of it. With --json there is one object whatever happened.
func (t *try) finish(err error) error {
	results := make([]Result, 0, len(t.plans))
	for _, p := range t.plans {
		if err != nil && p.result.State == "not_run" {
			p.result.Words = err.Error()
		}
		results = append(results, p.result)
	}
	if t.o.JSON {
		if t.o.Tasks == "" && len(results) == 0 {
			return writeJSON(t.o.Stdout, Result{State: "not_run", Words: err.Error(), Repository: t.o.Repo, Checks: []Check{}, CostUSD: "0", Cost: spec.Money(0).String()})
		}
		if t.o.Tasks == "" {
			return writeJSON(t.o.Stdout, results[0])
		}
		rep := Report{Total: len(results), Tasks: results}
		if err != nil {
			rep.Words = err.Error()
		}
		for _, r := range results {
			if r.delivered() {
				rep.Delivered++
			}
		}
		return writeJSON(t.o.Stdout, rep)
	}
	for _, r := range results {
		if r.State == "not_run" {
			continue
		}
		if t.o.Tasks != "" {
			table(t.o.Stdout, results)
			return nil
		}
		r.write(t.o.Stdout)
	}
	return nil
}

// keepLog keeps what Inspect said of itself if something of it failed, and says where.
func (t *try) keepLog(ctx context.Context, err error) {
	if err == nil || coded(err) || errors.Is(err, errNow) || ctx.Err() != nil {
		return
	}
	if !t.place.temp || t.o.Keep {
		t.tell.warn("the log is %s", filepath.Join(t.place.dir, logName))
		return
	}
	f, ferr := os.CreateTemp("", "inspect-try-failed-*.log")
	if ferr != nil {
		return
	}
	f.Close()
	if copyFile(filepath.Join(t.place.dir, logName), f.Name()) == nil {
		t.tell.warn("the log is kept as %s", f.Name())
	}
}

func openLog(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

func writeFileJSON(path string, v any) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(writeJSON(f, v), f.Close())
}
