package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/sqlc-dev/pqtype"

	"inspect/checks/redact"
	"inspect/checks/render"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/storage"
)

// envStatus is how environments and nodes are. Durations are in milliseconds.
type envStatus struct {
	Environments []environmentStatus `json:"environments"`
	Nodes        []nodeStatus        `json:"nodes"`
	Kept         []keptScene         `json:"kept"` // clones of failed sessions
}

type environmentStatus struct {
	ID         string     `json:"id"`
	Repository string     `json:"repository"`
	Branch     string     `json:"branch"`           // the default branch
	Head       string     `json:"head,omitempty"`   // its head at the last look
	IsHead     bool       `json:"is_head"`          // the configuration there describes this environment
	Words      string     `json:"words,omitempty"`  // why it describes none
	Used       time.Time  `json:"used"`             // by a session
	Looked     *time.Time `json:"looked,omitempty"` // at the branch
	LooksAt    *time.Time `json:"looks_at,omitempty"`
	LookError  string     `json:"look_error,omitempty"`

	Nodes []placeStatus `json:"nodes"`
	Last  *takenStatus  `json:"last,omitempty"` // the newest attempt that a snapshot of it was taken for
}

// placeStatus is an environment on one node.
type placeStatus struct {
	Node     string          `json:"node"`
	Current  *snapshotStatus `json:"current,omitempty"`
	Building *snapshotStatus `json:"building,omitempty"`
	Wanted   string          `json:"wanted,omitempty"` // commit that is refreshed to after that

	StaleSince *time.Time `json:"stale_since,omitempty"` // the first failure since the last success
	Failures   int        `json:"failures,omitempty"`
	Failed     string     `json:"failed_commit,omitempty"`
	Why        string     `json:"why,omitempty"` // last lines of what failed
	RetryAt    *time.Time `json:"retry_at,omitempty"`
}

type snapshotStatus struct {
	ID         string           `json:"id"`
	Commit     string           `json:"commit"`
	Generation int              `json:"generation"`
	Cold       bool             `json:"cold,omitempty"` // for sessions of its commit alone
	From       string           `json:"from,omitempty"` // empty: made afresh
	Depth      int              `json:"depth"`          // how many were made from one another
	Store      string           `json:"store,omitempty"`
	Bytes      int64            `json:"bytes,omitempty"`
	AgeMS      int64            `json:"age_ms"`              // since it was published, or since it was begun
	NewestMS   int64            `json:"newest_ms,omitempty"` // since its commit was last seen at the head
	PhasesMS   map[string]int64 `json:"phases_ms,omitempty"`
}

// takenStatus is what an attempt was restored from and how long that took.
type takenStatus struct {
	Session   string          `json:"session"`
	Attempt   int             `json:"attempt"`
	Snapshot  string          `json:"snapshot"`
	Commit    string          `json:"commit"`
	Base      string          `json:"base"` // the session's commit
	AgeMS     int64           `json:"age_ms"`
	NewestMS  int64           `json:"newest_ms"`
	Drift     *wire.Drift     `json:"drift,omitempty"` // absent: not known
	Stale     bool            `json:"stale"`
	Cold      bool            `json:"cold"`
	Image     string          `json:"image,omitempty"`
	Why       string          `json:"why"`
	RestoreMS int64           `json:"restore_ms"`
	SyncMS    int64           `json:"sync_ms"`
	ReadyMS   int64           `json:"ready_ms"`
	Steps     []string        `json:"steps,omitempty"` // of setup that ran again
	Lockfiles []wire.Lockfile `json:"lockfiles,omitempty"`
}

type nodeStatus struct {
	Node    string     `json:"node"`
	Seen    *time.Time `json:"seen,omitempty"`
	Store   string     `json:"store,omitempty"`
	Turns   bool       `json:"keeps_turns"` // rewind and fork find a clone as it was after a turn
	Total   int64      `json:"total_bytes,omitempty"`
	Free    int64      `json:"free_bytes,omitempty"`
	Refuses string     `json:"refuses,omitempty"` // why it takes nothing now
	Drains  bool       `json:"draining,omitempty"`
	Clones  int        `json:"clones"`
}

// keptScene is the clone of a failed session that is kept.
type keptScene struct {
	Session    string    `json:"session"`
	Attempt    int       `json:"attempt"`
	Repository string    `json:"repository"`
	State      string    `json:"state"`
	Node       string    `json:"node"`
	Until      time.Time `json:"until"`
	Bytes      int64     `json:"bytes,omitempty"` // of the disk; 0: the store cannot tell
}

func statusCommand() *cobra.Command {
	var d dataFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status [OWNER/REPO]",
		Short: "Show the snapshots of environments, how their refreshes go, the nodes, and what is kept of failed sessions",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := givenNotEmpty("OWNER/REPO", args); err != nil {
				return err
			}
			db, err := openDatabase(cmd.Context(), d)
			if err != nil {
				return err
			}
			defer db.Close()
			var repository string
			if len(args) == 1 {
				repository = args[0]
			}
			s, err := readStatus(cmd.Context(), db.Q(), repository, time.Now())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), s)
			}
			return s.print(cmd.OutOrStdout(), time.Now())
		},
	}
	d.flags(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return withEnvironment(cmd)
}

// givenNotEmpty refuses an argument that is there but empty, as of a variable that a
// script has not set: without it more is meant.
func givenNotEmpty(what string, args []string) error {
	if slices.Contains(args, "") {
		return usagef("%s is empty: name one, or leave it out", what)
	}
	return nil
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// shownBytes is how much of an argument a complaint repeats.
const shownBytes = 80

// repositoryPart is what owners and repositories may be called: GitHub has shorter
// bounds and fewer characters.
var repositoryPart = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)

// repositoryNamed finds the one repository of that name.
func repositoryNamed(ctx context.Context, q *storage.Queries, ownerName string) (int64, error) {
	owner, name, ok := strings.Cut(ownerName, "/")
	if !ok || !repositoryPart.MatchString(owner) || !repositoryPart.MatchString(name) {
		return 0, usagef("%q: expected OWNER/REPO", redact.Cut(ownerName, shownBytes))
	}
	ids, err := q.RepositoriesNamed(ctx, storage.RepositoriesNamedParams{Owner: owner, Name: name})
	switch {
	case err != nil:
		return 0, fmt.Errorf("look for the repository: %w", err)
	case len(ids) == 0:
		return 0, fmt.Errorf("no repository %s is known: install the App on it, or start a session there", ownerName)
	case len(ids) > 1:
		return 0, fmt.Errorf("several repositories are known as %s: one of them was renamed or given away, which the next event of it tells", ownerName)
	}
	return ids[0], nil
}

// readStatus reads all, or what concerns one repository.
func readStatus(ctx context.Context, q *storage.Queries, ownerName string, now time.Time) (envStatus, error) {
	out := envStatus{Environments: []environmentStatus{}, Nodes: []nodeStatus{}, Kept: []keptScene{}}
	only := int64(0)
	var err error
	if ownerName != "" {
		if only, err = repositoryNamed(ctx, q, ownerName); err != nil {
			return out, err
		}
	}
	nodes, states, err := readNodes(ctx, q)
	if err != nil {
		return out, err
	}
	out.Nodes = nodes
	places, err := readPlaces(ctx, q, now)
	if err != nil {
		return out, err
	}
	last, err := readTaken(ctx, q)
	if err != nil {
		return out, err
	}
	rows, err := q.StatusEnvironments(ctx)
	if err != nil {
		return out, fmt.Errorf("read the environments: %w", err)
	}
	shown := map[string]bool{}
	for _, r := range rows {
		if only != 0 && r.RepositoryID != only {
			continue
		}
		shown[r.ID] = true
		e := environmentStatus{
			ID: r.ID, Repository: r.Owner + "/" + r.Name, Branch: r.DefaultBranch, Head: r.HeadSha, IsHead: r.IsHead, Words: r.HeadWords,
			Used: r.UsedAt.UTC(), Looked: moment(r.LookedAt), LooksAt: moment(r.LookAt), Nodes: []placeStatus{},
		}
		if r.LookTries > 0 {
			e.LookError = r.LookError
		}
		for _, node := range slices.Sorted(maps.Keys(places[r.ID])) {
			e.Nodes = append(e.Nodes, *places[r.ID][node])
		}
		if t, ok := last[r.ID]; ok {
			e.Last = &t
		}
		out.Environments = append(out.Environments, e)
	}
	attempts, err := q.StatusAttempts(ctx)
	if err != nil {
		return out, fmt.Errorf("read the attempts: %w", err)
	}
	for _, a := range attempts {
		if !shown[a.EnvironmentID] || !a.FinishedAt.Valid || !a.KeepUntil.Valid || !a.KeepUntil.Time.After(now) {
			continue
		}
		k := keptScene{
			Session: a.SessionID, Attempt: int(a.Generation), Repository: a.Owner + "/" + a.Name, State: string(a.State),
			Node: a.Node, Until: a.KeepUntil.Time.UTC(),
		}
		there := false
		for _, c := range states[a.Node].Clones {
			if c.Session == a.SessionID && c.Generation == int(a.Generation) {
				there, k.Bytes = true, k.Bytes+c.Bytes
			}
		}
		// An attempt that was lost before it had a clone leaves nothing to keep.
		if !there && now.Sub(a.FinishedAt.Time) > scheduler.NodeSilence && slices.ContainsFunc(nodes, func(n nodeStatus) bool {
			return n.Node == a.Node && n.Seen != nil && now.Sub(*n.Seen) <= scheduler.NodeSilence
		}) {
			continue
		}
		out.Kept = append(out.Kept, k)
	}
	return out, nil
}

func readNodes(ctx context.Context, q *storage.Queries) (out []nodeStatus, states map[string]wire.NodeState, err error) {
	rows, err := q.Nodes(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read the nodes: %w", err)
	}
	out, states = []nodeStatus{}, map[string]wire.NodeState{}
	for _, r := range rows {
		var st wire.NodeState
		_ = json.Unmarshal(r.State, &st) // one that said nothing yet has none
		states[r.Name] = st
		out = append(out, nodeStatus{
			Node: r.Name, Seen: moment(r.SeenAt), Store: st.Store, Turns: st.Forks, Total: st.TotalBytes, Free: st.FreeBytes, Refuses: st.Refuses, Drains: r.Draining, Clones: len(st.Clones),
		})
	}
	return out, states, nil
}

// readPlaces are environments on nodes, by both.
func readPlaces(ctx context.Context, q *storage.Queries, now time.Time) (map[string]map[string]*placeStatus, error) {
	places := map[string]map[string]*placeStatus{}
	at := func(env, node string) *placeStatus {
		if places[env] == nil {
			places[env] = map[string]*placeStatus{}
		}
		if places[env][node] == nil {
			places[env][node] = &placeStatus{Node: node}
		}
		return places[env][node]
	}
	snaps, err := q.StatusSnapshots(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the snapshots: %w", err)
	}
	for _, sn := range snaps {
		p, s := at(sn.EnvironmentID, sn.Node), snapshotOf(sn, now)
		switch {
		case sn.IsCurrent:
			p.Current = &s
		case sn.State == "building" && p.Building == nil:
			p.Building = &s
		}
	}
	rows, err := q.StatusNodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("read how refreshes go: %w", err)
	}
	for _, r := range rows {
		p := at(r.EnvironmentID, r.Node)
		p.Wanted = r.WantedCommit
		if r.StaleSince.Valid {
			p.StaleSince, p.RetryAt = moment(r.StaleSince), moment(r.RetryAt)
			p.Failures, p.Failed, p.Why = int(r.Failures), r.FailedCommit, r.Error
		}
	}
	return places, nil
}

func snapshotOf(sn storage.Snapshot, now time.Time) snapshotStatus {
	s := snapshotStatus{
		ID: sn.ID, Commit: sn.CommitSha, Generation: int(sn.Generation), Cold: sn.Cold, From: sn.FromID, Depth: int(sn.Depth),
		Store: sn.Store, Bytes: sn.Bytes, AgeMS: now.Sub(sn.CreatedAt).Milliseconds(),
	}
	if sn.PublishedAt.Valid {
		s.AgeMS = now.Sub(sn.PublishedAt.Time).Milliseconds()
	}
	if sn.NewestAt.Valid {
		s.NewestMS = now.Sub(sn.NewestAt.Time).Milliseconds()
	}
	var phases map[string]time.Duration
	if sn.Phases.Valid && json.Unmarshal(sn.Phases.RawMessage, &phases) == nil && len(phases) > 0 {
		s.PhasesMS = map[string]int64{}
		for name, took := range phases {
			s.PhasesMS[name] = took.Milliseconds()
		}
	}
	return s
}

func readTaken(ctx context.Context, q *storage.Queries) (map[string]takenStatus, error) {
	rows, err := q.StatusTaken(ctx)
	if err != nil {
		return nil, fmt.Errorf("read what attempts were restored from: %w", err)
	}
	out := map[string]takenStatus{}
	for _, r := range rows {
		t, err := takenOf(r.SessionID, r.Generation, r.Taken, r.Outcome, r.Restore, r.Drifted)
		if err != nil {
			return nil, err
		}
		out[r.EnvironmentID] = t
	}
	return out, nil
}

// takenOf is what is stored of an attempt.
func takenOf(session string, generation int32, fromTaken, fromOutcome, fromRestore, fromDrifted pqtype.NullRawMessage) (takenStatus, error) {
	t := takenStatus{Session: session, Attempt: int(generation)}
	var taken scheduler.Taken
	var o wire.Outcome
	var restored wire.Restored
	var d wire.Drifted
	for _, part := range []struct {
		raw  []byte
		into any
	}{{fromTaken.RawMessage, &taken}, {fromOutcome.RawMessage, &o}, {fromRestore.RawMessage, &restored}, {fromDrifted.RawMessage, &d}} {
		if len(part.raw) > 0 {
			if err := json.Unmarshal(part.raw, part.into); err != nil {
				return t, fmt.Errorf("read what attempt %d of session %s was restored from: %w", generation, session, err)
			}
		}
	}
	t.RestoreMS, t.SyncMS, t.ReadyMS = restored.Duration.Milliseconds(), o.Times.Sync.Milliseconds(), o.Times.Ready.Milliseconds()
	t.Snapshot, t.Commit, t.Base, t.Drift, t.Stale, t.Cold, t.Image, t.Why = taken.Snapshot, taken.Commit, taken.Base, taken.Drift, taken.Stale, taken.Cold, taken.Image, taken.Why
	t.AgeMS, t.NewestMS = taken.Age.Milliseconds(), taken.Newest.Milliseconds()
	t.Steps, t.Lockfiles = d.Steps, d.Lockfiles
	return t, nil
}

// print shows it to a terminal: some of it was said in a sandbox.
func (s envStatus) print(w io.Writer, now time.Time) error {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	if len(s.Environments) == 0 {
		line("No environment is known: a session, or an installation of the App, makes the first.")
	}
	for i, e := range s.Environments {
		if i > 0 {
			line("")
		}
		what := "not what the default branch describes now"
		if e.IsHead {
			what = "what " + cell(e.Branch) + " describes at " + sha(e.Head)
		}
		line("%s  %s: %s, last used %s ago", cell(e.Repository), e.ID, what, render.Duration(now.Sub(e.Used)))
		if e.Looked != nil {
			next := "not looked at again until it is used"
			if e.LooksAt != nil {
				next = "the next look " + when(*e.LooksAt, now)
			}
			line("  branch %s looked at %s ago; %s", cell(e.Branch), render.Duration(now.Sub(*e.Looked)), next)
		}
		if e.LookError != "" {
			line("  it cannot be looked at now: %s", cell(e.LookError))
		}
		if !e.IsHead && e.Words != "" {
			line("  what is there cannot be prepared: %s", cell(e.Words))
		}
		for _, p := range e.Nodes {
			p.print(line, now)
		}
		if t := e.Last; t != nil {
			t.print(line)
		}
	}
	line("")
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tSEEN\tSTORE\tKEEPS TURNS\tIN USE\tCLONES\tTAKES SESSIONS")
	for _, n := range s.Nodes {
		seen, turns, use, takes := "never", "no", "-", "yes"
		if n.Seen != nil {
			seen = render.Duration(now.Sub(*n.Seen)) + " ago"
		}
		if n.Total > 0 {
			use = fmt.Sprintf("%d %% of %s", (n.Total-n.Free)*100/n.Total, render.Bytes(n.Total))
		}
		if n.Turns {
			turns = "yes"
		}
		if n.Drains {
			takes = "no: it is draining"
		}
		if n.Refuses != "" {
			takes = "no: " + cell(n.Refuses)
		}
		if n.Seen == nil || now.Sub(*n.Seen) > scheduler.NodeSilence {
			takes = "no: its daemon is not connected"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%s\n", n.Node, seen, cell(n.Store), turns, use, n.Clones, takes)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(s.Kept) > 0 {
		line("")
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "KEPT SESSION\tATTEMPT\tREPOSITORY\tSTATE\tNODE\tUNTIL\tDISK")
		for _, k := range s.Kept {
			disk := "not known"
			if k.Bytes > 0 {
				disk = render.Bytes(k.Bytes)
			}
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", k.Session, k.Attempt, cell(k.Repository), k.State, k.Node, k.Until.Format(time.DateTime), disk)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (p placeStatus) print(line func(string, ...any), now time.Time) {
	switch c := p.Current; {
	case c != nil:
		made := "made afresh"
		if c.From != "" {
			made = "made from " + c.From
		}
		size := ""
		if c.Bytes > 0 {
			size = ", " + render.Bytes(c.Bytes)
		}
		line("  on %s: %s of %s, generation %d, %s, %s; %s store%s", p.Node, c.ID, sha(c.Commit), c.Generation, made, render.Age(ms(c.AgeMS)), cell(c.Store), size)
		if len(c.PhasesMS) > 0 {
			var phases []string
			for _, name := range slices.SortedFunc(maps.Keys(c.PhasesMS), byPhase) {
				phases = append(phases, cell(name)+" "+render.Duration(ms(c.PhasesMS[name])))
			}
			line("    %s", strings.Join(phases, ", "))
		}
	default:
		line("  on %s: no snapshot", p.Node)
	}
	if n := p.Building; n != nil {
		line("    generation %d of %s is being prepared for %s", n.Generation, sha(n.Commit), render.Duration(ms(n.AgeMS)))
	}
	if p.Wanted != "" {
		line("    after it: %s", sha(p.Wanted))
	}
	if p.StaleSince != nil {
		again := ""
		if p.RetryAt != nil && p.RetryAt.After(now) {
			again = "; that commit is not tried again by itself before " + p.RetryAt.UTC().Format(time.DateTime)
		}
		line("    stale since %s: %s, the last of %s%s", p.StaleSince.UTC().Format(time.DateTime), render.Count(p.Failures, "failure", "failures"), sha(p.Failed), again)
		for l := range strings.Lines(strings.TrimSpace(p.Why)) {
			line("      | %s", redact.Visible(strings.TrimRight(l, "\r\n")))
		}
	}
}

func (t takenStatus) print(line func(string, ...any)) {
	line("  last taken by session %s, attempt %d: %s", t.Session, t.Attempt, cell(t.String()))
}

// String is which snapshot it was, how near, how soon ready, and why it was taken.
func (t takenStatus) String() string {
	parts := []string{render.Age(ms(t.AgeMS))}
	if d := t.Drift; d != nil {
		parts = append(parts, render.Count(d.Commits, "commit", "commits")+" behind")
	}
	for _, x := range []struct {
		what string
		took int64
	}{{"restored in ", t.RestoreMS}, {"synchronised in ", t.SyncMS}, {"ready in ", t.ReadyMS}} {
		if x.took > 0 {
			parts = append(parts, x.what+render.Duration(ms(x.took)))
		}
	}
	return fmt.Sprintf("%s of %s, %s: %s", t.Snapshot, sha(t.Commit), strings.Join(parts, ", "), t.Why)
}

// byPhase orders the phases of a refresh as they come.
func byPhase(a, b string) int {
	order := []string{"image", "fetch", "clone", "sync", "checkout", "setup", "services", "load", "stop", "scan", "fsck", "secrets", "snapshot", "proof"}
	at := func(s string) int {
		first, _, _ := strings.Cut(s, " ") // the lines of setup stand behind it
		if i := slices.Index(order, first); i >= 0 {
			return i
		}
		return len(order)
	}
	if d := at(a) - at(b); d != 0 {
		return d
	}
	return strings.Compare(a, b)
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// sha is enough of a commit to find it.
func sha(s string) string {
	if s == "" {
		return "no commit"
	}
	return s[:min(len(s), 12)]
}

// when is a moment from now on.
func when(t, now time.Time) string {
	if !t.After(now) {
		return "is due"
	}
	return "in " + render.Duration(t.Sub(now))
}
