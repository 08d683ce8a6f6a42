package try

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"inspect/checks/render"
	"inspect/envs/services"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/storage"
)

// BenchOptions of Bench, beside what Run needs of Options.
type BenchOptions struct {
	Options
	Runs   int // of each path, one after the other
	Behind int // commits between the snapshot and what the session works on
}

// Measured is how long one environment takes to be ready for an agent, with
// nothing there and from its snapshot: medians, in milliseconds.
type Measured struct {
	Repository string             `json:"repository"`
	Commit     string             `json:"commit"`
	Behind     int                `json:"behind"` // commits between the snapshot and it
	Runs       int                `json:"runs"`
	Store      string             `json:"store"`
	Setup      []string           `json:"setup_lines"` // what "setup 1" and so on of the cold path are: dependencies, build
	Cold       map[string]float64 `json:"cold_ms"`
	Snapshot   map[string]float64 `json:"snapshot_ms"`
	Ratio      float64            `json:"ratio"` // of both until ready
}

// The phases of both paths, in their order.
var (
	coldPhases     = []string{"clone", phaseSetup, "services", "load", phaseReady}
	snapshotPhases = []string{"restore", "drift", "services", phaseReady}
)

const (
	phaseSetup = "setup" // all its lines, each of which follows
	phaseReady = "ready" // from the beginning
)

// Bench measures the path to an agent that can begin: as if nothing of the
// repository were there, which is what a refresh pays that is made afresh, and
// as a session pays from the snapshot. Each run has a mirror, a snapshot and a
// session of its own; the agent does nothing. What a refresh does beyond, for
// the snapshot to be good, counts for neither.
func Bench(ctx context.Context, o BenchOptions) (m Measured, err error) {
	o.Prompt, o.Verify = "Nothing is to be done.", []string{"true"}
	o.Harness, o.Command = spec.HarnessCommand, "true"
	t := &try{o: o.Options, begun: time.Now(), tell: &teller{w: o.Progress, colour: o.Colour, verbose: o.Verbose, begun: time.Now()}}
	if err := t.planAll(ctx); err != nil {
		return m, err
	}
	first := t.plans[0]
	older := first.repo.Commit
	if o.Behind > 0 {
		if older, err = first.repo.git.line(ctx, "rev-parse", "--verify", "--quiet", fmt.Sprintf("%s~%d", first.repo.Commit, o.Behind)); err != nil {
			return m, Usagef("--behind %d: the history of %s is not that long", o.Behind, first.repo.name())
		}
	}
	for n := 1; n < o.Runs; n++ {
		p := *first
		p.id = taskID(first.id, n)
		t.plans = append(t.plans, &p)
	}
	if t.place, err = openPlace(ctx, t.o.Data); err != nil {
		return m, err
	}
	defer func() {
		if cerr := t.place.close(ctx, false); cerr != nil {
			t.tell.warn("%v", cerr)
		}
	}()
	expose, err := t.provide(ctx)
	if err != nil {
		return m, err
	}
	if err := t.copyAll(ctx); err != nil {
		return m, err
	}
	log, err := openLog(filepath.Join(t.place.dir, logName))
	if err != nil {
		return m, err
	}
	defer log.Close()
	defer func() { t.keepLog(ctx, err) }()
	if t.house, err = t.open(ctx, expose, log); err != nil {
		return m, err
	}
	defer t.close()
	if err := t.awaitNode(ctx); err != nil {
		return m, err
	}
	m = Measured{Repository: first.repo.Path, Commit: first.repo.Commit, Behind: o.Behind, Runs: o.Runs, Setup: []string{}}
	for _, s := range first.env.Spec.Setup {
		m.Setup = append(m.Setup, s.Run)
	}
	var cold, warm []map[string]time.Duration
	for n, p := range t.plans {
		t.tell.step("run %d of %d", n+1, o.Runs)
		c, w, store, err := t.measure(ctx, p, older)
		if err != nil {
			return m, err
		}
		cold, warm, m.Store = append(cold, c), append(warm, w), store
	}
	m.Cold, m.Snapshot = medians(cold), medians(warm)
	m.Ratio = m.Cold[phaseReady] / m.Snapshot[phaseReady]
	return m, nil
}

// measure prepares an environment at the older commit and has a session work on
// the plan's.
func (t *try) measure(ctx context.Context, p *plan, older string) (cold, warm map[string]time.Duration, store string, err error) {
	err = t.house.DB.InTx(ctx, func(tx *storage.Tx) error {
		if err := t.saw(ctx, tx, p); err != nil {
			return err
		}
		_, err := t.house.Scheduler.EnsureEnvironment(ctx, tx, p.id, p.env.Spec, p.origin.branch, older)
		return err
	})
	if err != nil {
		return nil, nil, "", fmt.Errorf("ask for the environment: %w", err)
	}
	id, err := t.create(ctx, p)
	if err != nil {
		return nil, nil, "", err
	}
	s, err := (&follower{house: t.house, session: id, tell: t.tell}).follow(ctx, t.o.Again)
	if err != nil {
		return nil, nil, "", err
	}
	if s.State != scheduler.NoChange {
		return nil, nil, "", fmt.Errorf("the environment could not be measured: the session ended as %s: %s", s.State, plain(s.Words, 2000))
	}
	q := t.house.DB.Q()
	a, err := q.GetAttempt(ctx, storage.GetAttemptParams{SessionID: id, Generation: s.Generation})
	if err != nil {
		return nil, nil, "", err
	}
	sn, err := q.GetSnapshot(ctx, a.SnapshotID)
	if err != nil {
		return nil, nil, "", err
	}
	var phases map[string]time.Duration
	var outcome wire.Outcome
	if err := json.Unmarshal(sn.Phases.RawMessage, &phases); err != nil {
		return nil, nil, "", fmt.Errorf("read the times of the refresh: %w", err)
	}
	if err := json.Unmarshal(s.Outcome.RawMessage, &outcome); err != nil {
		return nil, nil, "", fmt.Errorf("read the times of the session: %w", err)
	}
	cold = map[string]time.Duration{
		"clone": phases["fetch"] + phases["checkout"], phaseSetup: phases[phaseSetup], "services": phases["services"], "load": phases["load"],
	}
	for i := range p.env.Spec.Setup {
		if part, ok := wire.SetupPhase(i); ok {
			cold[part] = phases[part]
		}
	}
	cold[phaseReady] = cold["clone"] + cold[phaseSetup] + cold["services"] + cold["load"]
	warm = map[string]time.Duration{"restore": outcome.Times.Restore, "drift": outcome.Times.Sync, phaseReady: outcome.Times.Ready}
	events, err := q.EventsAfter(ctx, storage.EventsAfterParams{SessionID: id, Limit: 1000})
	if err != nil {
		return nil, nil, "", err
	}
	for _, e := range events {
		var st wire.ServiceState
		if e.Kind == wire.EventService && json.Unmarshal(e.Data, &st) == nil && st.State == services.StateReady {
			warm["services"] += st.After
		}
	}
	return cold, warm, sn.Store, nil
}

// medians are those of each phase, in milliseconds.
func medians(runs []map[string]time.Duration) map[string]float64 {
	out := map[string]float64{}
	for phase := range merged(runs) {
		var all []time.Duration
		for _, r := range runs {
			all = append(all, r[phase])
		}
		slices.Sort(all)
		n := len(all)
		out[phase] = float64((all[(n-1)/2]+all[n/2])/2) / float64(time.Millisecond)
	}
	return out
}

func merged(runs []map[string]time.Duration) map[string]time.Duration {
	out := map[string]time.Duration{}
	for _, r := range runs {
		maps.Copy(out, r)
	}
	return out
}

// Write prints both paths as a table.
func (m Measured) Write(w io.Writer) error {
	fmt.Fprintf(w, "%s at %.10s, snapshot %s behind, store %s, medians of %s\n\n",
		plain(m.Repository, 300), m.Commit, render.Count(m.Behind, "commit", "commits"), m.Store, render.Count(m.Runs, "run", "runs"))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "cold path\tms\t\tsnapshot path\tms\t")
	cold, warm := m.coldRows(), rows(snapshotPhases, m.Snapshot)
	for i := range cold {
		// The last rows stand beside each other.
		beside := "\t"
		if w := i - (len(cold) - len(warm)); w >= 0 {
			beside = warm[w]
		}
		fmt.Fprintf(t, "%s\t\t%s\t\n", cold[i], beside)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nFrom its snapshot it is ready %.1f times as fast.\n", m.Ratio)
	return err
}

func rows(phases []string, of map[string]float64) (out []string) {
	for _, phase := range phases {
		out = append(out, fmt.Sprintf("%s\t%.1f", phase, of[phase]))
	}
	return out
}

// lineWidth is how many characters of a line of setup are shown.
const lineWidth = 40

// coldRows are the phases of the cold path, and below setup its lines, of which one
// builds and another brings what the build needs.
func (m Measured) coldRows() (out []string) {
	for i, row := range rows(coldPhases, m.Cold) {
		if out = append(out, row); coldPhases[i] != phaseSetup {
			continue
		}
		for n, line := range m.Setup {
			if part, ok := wire.SetupPhase(n); ok {
				line, _, more := strings.Cut(strings.TrimSpace(line), "\n")
				short := plain(line, lineWidth)
				if more {
					short += " …"
				}
				out = append(out, fmt.Sprintf("%s\t%.1f", short, m.Cold[part]))
			}
		}
	}
	return out
}
