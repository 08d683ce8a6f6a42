package try

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/storage"
)

// look is how often the session is looked at; its database is on this machine.
const look = 100 * time.Millisecond

// stopPatience is how long a session that was asked to stop may take to end.
const stopPatience = 90 * time.Second

// errNow is the error of a try that was interrupted once more.
var errNow = errors.New("interrupted again")

// follower tells of one session from its events.
type follower struct {
	house   *House
	session string
	tell    *teller
	seq     int64
	queue   string    // the queue reason last told
	waits   string    // the one last seen
	seen    int       // how often in a row
	state   string    // the state last told
	since   time.Time // of that state
	spent   int64
	told    bool // of the budget's use
	spans   map[string]time.Duration
	placed  time.Time // when a machine was found for it, at first
}

// follow tells what happens until the session has ended and its evidence is
// kept. When ctx ends the session is stopped, with its work kept; a further
// interrupt ends following at once with errNow.
func (f *follower) follow(ctx context.Context, interrupts <-chan struct{}) (storage.Session, error) {
	f.spans = map[string]time.Duration{}
	live := context.WithoutCancel(ctx)
	done := ctx.Done()
	var give <-chan time.Time
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		s, err := f.once(live)
		if err != nil {
			return s, err
		}
		if scheduler.Terminal(s.State) && s.ReportedAt.Valid {
			_, err := f.once(live) // events that came between both looks
			return s, err
		}
		select {
		case <-tick.C:
		case <-done:
			done = nil // once
			give = time.After(stopPatience)
			f.tell.step("stopping; the work so far is kept (interrupt again to end at once)")
			if err := f.house.Scheduler.Stop(live, f.session, "an interrupt", ""); err != nil {
				return s, err
			}
		case <-interrupts:
			return s, errNow
		case <-give:
			return s, fmt.Errorf("the session did not end within %s of being stopped", stopPatience)
		case err := <-f.house.Failed:
			return s, fmt.Errorf("a part of Inspect ended by itself: %w", err)
		}
	}
}

// once tells what is new and returns the session as it is.
func (f *follower) once(ctx context.Context) (storage.Session, error) {
	q := f.house.DB.Q()
	s, err := q.GetSession(ctx, f.session)
	if err != nil {
		return s, fmt.Errorf("look at the session: %w", err)
	}
	for {
		events, err := q.EventsAfter(ctx, storage.EventsAfterParams{SessionID: f.session, Seq: f.seq, Limit: 500})
		if err != nil {
			return s, fmt.Errorf("look at the session: %w", err)
		}
		for _, e := range events {
			f.seq = e.Seq
			f.event(e)
		}
		if len(events) < 500 {
			break
		}
	}
	if s.State == scheduler.Queued {
		f.waiting(s.QueueReason)
	}
	return s, nil
}

// waiting tells what the session waits for, once it has done so for a moment.
func (f *follower) waiting(reason string) {
	if reason != f.waits {
		f.waits, f.seen = reason, 0
	}
	if f.seen++; f.seen == 3 && reason != "" && reason != f.queue && !strings.HasPrefix(reason, "waiting for its turn") {
		f.queue = reason
		f.tell.step("%s", plain(reason, 400))
	}
}

// event tells of one event, if it is of interest.
func (f *follower) event(e storage.Event) {
	read := func(v any) bool { return json.Unmarshal(e.Data, v) == nil }
	switch e.Kind {
	case scheduler.EventState:
		var d struct{ From, To, Words string }
		if read(&d) {
			f.changed(d.To, d.Words, e.At)
		}
	case wire.EventCommand:
		var d wire.Command
		if read(&d) {
			f.command(d)
		}
	case wire.EventTool:
		var d wire.Tool
		if read(&d) {
			f.tool(d)
		}
	case wire.EventMessage:
		var d wire.Message
		if read(&d) && strings.TrimSpace(d.Text) != "" {
			f.tell.detail("says: %s", plain(d.Text, 300))
		}
	case wire.EventEgress:
		var d wire.Egress
		if read(&d) {
			f.egress(d)
		}
	case wire.EventService:
		var d wire.ServiceState
		if read(&d) {
			f.service(d)
		}
	case wire.EventUsage:
		var d wire.Usage
		if read(&d) {
			f.usage(d)
		}
	case wire.EventNote:
		var d wire.Note
		if read(&d) {
			f.tell.detail("%s", plain(d.Words, 500))
		}
	case wire.EventOutput:
		var d wire.Output
		if f.tell.verbose && read(&d) {
			for _, l := range lines(d.Text, 200) {
				f.tell.detail("| %s", l)
			}
		}
	case wire.EventPrompt:
		var d wire.Prompted
		if read(&d) && d.Failed != "" {
			f.tell.warn("the agent is not done with prompt %d: %s", d.Prompt, plain(d.Failed, 300))
		}
	case wire.EventTurn:
		var d wire.Turn
		if f.tell.verbose && read(&d) && d.SHA256 != "" {
			f.tell.detail("the work up to %.10s is kept", plain(d.Tip, 64))
		}
	}
}

// changed tells of a new state.
func (f *follower) changed(to, words string, at time.Time) {
	if f.state != "" {
		f.spans[f.state] += at.Sub(f.since)
	}
	f.state, f.since = to, at
	switch to {
	case "placing":
		if f.placed.IsZero() {
			f.placed = at
		}
	case "queued":
		if words = plain(words, 400); words != "" {
			f.queue = words
			f.tell.warn("%s", words)
		}
	case "restoring":
		f.tell.step("the snapshot is restored into a clone of its own")
	case "working":
		f.tell.step("the agent works")
	case "verifying":
		f.tell.step("verification runs in a second, clean clone")
	case "publishing":
		f.tell.step("the result is judged and left as a branch")
	}
}

func (f *follower) command(c wire.Command) {
	name, isVerify := strings.CutPrefix(c.Step, "verify:")
	switch {
	case isVerify && c.ExitCode == 0 && c.Error == "":
		f.tell.good("%s passed in %s: %s", plain(name, 60), took(c.Duration), plain(c.Line, 200))
	case isVerify:
		f.tell.bad("%s failed (%s) after %s: %s", plain(name, 60), how(c.ExitCode, c.Signal, c.Error), took(c.Duration), plain(c.Line, 200))
		for _, l := range lines(c.Output, 8) {
			f.tell.detail("| %s", l)
		}
	case c.Step == "harness" && (c.ExitCode != 0 || c.Error != ""):
		f.tell.bad("the agent ended (%s) after %s", how(c.ExitCode, c.Signal, c.Error), took(c.Duration))
		for _, l := range lines(c.Output, 8) {
			f.tell.detail("| %s", l)
		}
	case c.Step == "harness":
		f.tell.detail("the agent is done after %s", took(c.Duration))
	case f.tell.verbose:
		f.tell.detail("%s: %s", plain(c.Step, 40), plain(c.Line, 200))
	}
}

func how(code int, signal, err string) string {
	switch {
	case err != "":
		return plain(err, 200)
	case signal != "":
		return "ended by " + plain(signal, 20)
	}
	return fmt.Sprintf("status %d", code)
}

func (f *follower) tool(t wire.Tool) {
	what := plain(t.Command, 200)
	if what != "" {
		what = "$ " + what
	} else {
		what = strings.TrimSpace(plain(t.Name, 40) + " " + plain(t.Title, 160))
		if t.Title == "" && len(t.Files) > 0 {
			what += " " + plain(strings.Join(t.Files, ", "), 160)
		}
	}
	switch {
	case t.ExitCode != nil && *t.ExitCode != 0:
		f.tell.detail("%s  (status %d)", what, *t.ExitCode)
	case t.Failed:
		f.tell.detail("%s  (failed)", what)
	default:
		f.tell.detail("%s", what)
	}
}

func (f *follower) egress(e wire.Egress) {
	if e.Allowed || e.Noise {
		if f.tell.verbose {
			f.tell.detail("network: %s:%d", plain(e.Host, 200), e.Port)
		}
		return
	}
	by := ""
	if e.Command != "" {
		by = ", asked for by " + plain(e.Command, 120)
	}
	f.tell.bad("refused: %s:%d%s (%s)", plain(e.Host, 200), e.Port, by, plain(e.Reason, 200))
}

func (f *follower) service(s wire.ServiceState) {
	switch s.State {
	case "ready":
		f.tell.detail("service %s is ready after %s", plain(s.Name, 60), took(s.After))
	case "failed":
		f.tell.bad("service %s failed: %s", plain(s.Name, 60), plain(s.Words, 300))
		for _, l := range lines(s.Output, 5) {
			f.tell.detail("| %s", l)
		}
	}
}

// usage tells of money now and then: each cent more, or what has no price.
func (f *follower) usage(u wire.Usage) {
	const step = int64(spec.Dollar) / 100
	if u.Spent/step > f.spent/step {
		f.tell.detail("%s spent on %s so far", spec.Money(u.Spent), plain(u.Model, 80))
	}
	if !u.Priced && !f.told {
		f.told = true
		f.tell.warn("%s has no price in the table of models: its calls are counted, their cost is not", plain(u.Model, 80))
	}
	f.spent = u.Spent
}
