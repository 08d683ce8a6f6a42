package ask

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"inspect/checks/buildkite/step"
	"inspect/checks/redact"
	"inspect/checks/render"
	"inspect/envs/proc"
)

// Options of a step.
type Options struct {
	Server   string // see Server
	Audience string // whom the token is for; empty: Server
	Wish     step.Ask
	Wait     bool // until the session has ended
	SoftFail bool // 0 for a session that ended without delivering
	Evidence bool // its files become an artifact; with Wait only
	// IfFailed are keys of steps of this build. If there are some and none of them
	// failed, nobody is asked for anything.
	IfFailed []string
	// Most is the longest to wait; 0 means two hours.
	Most time.Duration
	// Patience is how long the control plane may be away in one go; 0 means 15
	// minutes.
	Patience time.Duration
	Job      string // its id, for the annotation of a refusal
	Agent    Agent
	Secrets  []string // exact values that leave nowhere
	Out      io.Writer
	Clock    proc.Clock
	// Transport carries requests; nil is one of our own.
	Transport http.RoundTripper
}

// Run asks for the session of a wish and, if it is to wait, follows it to its end.
// The code is the exit status; the error says why where there is no session to say
// it, or nobody to ask any more.
func Run(ctx context.Context, o Options) (Code, error) {
	server, err := Server(o.Server)
	if err != nil {
		return Usage, err
	}
	if err := check(o.Wish); err != nil {
		return Usage, err
	}
	if o.Evidence && !o.Wait {
		return Usage, errors.New("--evidence keeps what there is at the session's end: say --wait, too")
	}
	if o.Clock == nil {
		o.Clock = proc.System()
	}
	if o.Most <= 0 {
		o.Most = 2 * time.Hour
	}
	if o.Patience <= 0 {
		o.Patience = 15 * time.Minute
	}
	if o.Audience == "" {
		o.Audience = server
	}
	r := &run{Options: o, control: newControl(server, o.Transport), redactor: redact.New(o.Secrets...), server: server}
	code, err := r.run(ctx)
	switch {
	case ctx.Err() != nil:
		if r.answer.Session != "" {
			r.line("given up; the session goes on: %s", r.answer.URL)
		}
		return Interrupted, context.Cause(ctx)
	case errors.Is(err, ErrNoAgent):
		return Missing, err
	}
	var no *Refused
	if errors.As(err, &no) {
		r.annotate(ctx, "error", "inspect-"+o.Job, refusal(no))
	}
	return code, err
}

// check finds what is wrong with a wish before anybody is asked.
func check(w step.Ask) error {
	n := 0
	for _, one := range []bool{w.Prompt != "", w.Issue != 0, w.FixBuild} {
		if one {
			n++
		}
	}
	switch {
	case n != 1:
		return errors.New("say one of --prompt, --issue and --fix-build")
	case len(w.Prompt) > step.MaxPrompt:
		return fmt.Errorf("the prompt has %d bytes, at most %d are taken", len(w.Prompt), step.MaxPrompt)
	case w.Issue < 0:
		return errors.New("an issue has a number above 0")
	case w.Once != "" && w.Once != "job" && w.Once != "build":
		return fmt.Errorf("once is job or build, not %q", w.Once)
	}
	return nil
}

type run struct {
	Options
	control  *control
	redactor *redact.Redactor
	server   string
	answer   step.Answer
	silent   bool // the control plane has not answered lately
}

func (r *run) run(ctx context.Context) (Code, error) {
	if needed, err := r.needed(ctx); err != nil || !needed {
		if err != nil {
			return Usage, err
		}
		return OK, nil
	}
	if err := r.ask(ctx); err != nil {
		return failed(err), err
	}
	verb := "started"
	if !r.answer.Started {
		verb = "there already"
	}
	r.line("session %s is %s: %s", r.answer.Session, verb, r.answer.URL)
	r.warn(r.Agent.SetMetaData(ctx, "inspect:session", r.answer.Session))
	state := r.answer.State
	r.annotateState(ctx, state)
	if !r.Wait {
		return OK, nil
	}
	state, err := r.follow(ctx, state)
	if err != nil {
		return failed(err), err
	}
	r.annotateState(ctx, state)
	if r.Evidence && state.Over {
		r.warn(r.evidence(ctx))
	}
	code := Exit(state)
	if code == Unfinished || code == Waits {
		return code, fmt.Errorf("the session has not ended after %s; it goes on: %s", r.Most, r.answer.URL)
	}
	if code != OK && r.SoftFail {
		r.line("ended without a delivery; status %d becomes 0 as asked (soft-fail)", code)
		return OK, nil
	}
	return code, nil
}

// needed says whether one of the steps that were named failed.
func (r *run) needed(ctx context.Context) (bool, error) {
	for _, key := range r.IfFailed {
		outcome, err := r.Agent.Outcome(ctx, key)
		if err != nil {
			return false, err
		}
		r.line("step %s: %s", key, outcome)
		if outcome == "hard_failed" || outcome == "errored" {
			return true, nil
		}
	}
	if len(r.IfFailed) > 0 {
		r.line("none of them failed: there is nothing to ask for")
	}
	return len(r.IfFailed) == 0, nil
}

func failed(err error) Code {
	var no *Refused
	if errors.As(err, &no) {
		return RefusedCode
	}
	return Away
}

// ask gets the session, over restarts of the control plane: the same wish of the
// same job is the same session.
func (r *run) ask(ctx context.Context) error {
	token, since := "", time.Time{}
	return r.persist(ctx, func(ctx context.Context) error {
		if now := r.Clock.Now(); token == "" || now.Sub(since) > 2*time.Minute {
			fresh, err := r.Agent.Token(ctx, r.Audience)
			if err != nil {
				return proc.Permanent(err)
			}
			r.redactor.Add(fresh)
			token, since = fresh, now
		}
		a, err := r.control.ask(ctx, token, r.Wish)
		if err != nil {
			return err
		}
		r.redactor.Add(a.Token)
		r.answer = a
		return nil
	})
}

// persist tries fn again while the control plane is away, for Patience.
func (r *run) persist(ctx context.Context, fn func(context.Context) error) error {
	err := proc.Retry(ctx, r.Clock, proc.Policy{First: time.Second, Max: 20 * time.Second, Total: r.Patience}, func(ctx context.Context) error {
		err := fn(ctx)
		var gone *away
		switch {
		case err == nil:
			if r.silent {
				r.silent = false
				r.line("the control plane answers again")
			}
			return nil
		case errors.As(err, &gone):
			if !r.silent {
				r.silent = true
				r.line("the control plane does not answer (%s); it is asked again for at most %s", gone.words, r.Patience)
			}
			return proc.Later(err, min(gone.after, time.Minute))
		}
		return proc.Permanent(err)
	})
	var gone *away
	if errors.As(err, &gone) && ctx.Err() == nil {
		return fmt.Errorf("the control plane at %s does not answer: %w", r.server, err)
	}
	return err
}

// follow tells each change until the session has ended or the time is up.
func (r *run) follow(ctx context.Context, s step.State) (step.State, error) {
	begun := r.Clock.Now()
	told, said := "", time.Time{}
	waits := false
	for {
		now := r.Clock.Now()
		if line := progress(s); line != told || now.Sub(said) >= 5*time.Minute {
			r.line("%s", line)
			told, said = line, now
		}
		if s.Over || now.Sub(begun) >= r.Most {
			return s, nil
		}
		if asks := s.Conclusion == render.ActionRequired; asks != waits {
			waits = asks
			r.annotateState(ctx, s)
		}
		next, err := r.next(ctx, s)
		if err != nil {
			return s, err
		}
		if next.Version == s.Version && r.Clock.Now().Sub(now) < time.Second {
			if err := proc.Sleep(ctx, r.Clock, 2*time.Second); err != nil { // something does not hold our questions
				return s, err
			}
		}
		s = next
	}
}

// next is the state after s, or s again after a while. A token that is not taken
// any more is asked for anew, once.
func (r *run) next(ctx context.Context, s step.State) (step.State, error) {
	var next step.State
	for try := 0; ; try++ {
		err := r.persist(ctx, func(ctx context.Context) (err error) {
			next, err = r.control.state(ctx, r.answer, s.Version)
			return err
		})
		var no *Refused
		if !errors.As(err, &no) || no.Status != http.StatusUnauthorized || try > 0 {
			return next, err
		}
		session := r.answer.Session
		if err := r.ask(ctx); err != nil {
			return s, err
		}
		if r.answer.Session != session {
			return s, fmt.Errorf("the control plane does not know session %s any more, and has begun %s: %s", session, r.answer.Session, r.answer.URL)
		}
	}
}

// evidence makes the session's files an artifact of the job.
func (r *run) evidence(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "inspect-evidence-")
	if err != nil {
		return fmt.Errorf("keep the evidence: %w", err)
	}
	defer os.RemoveAll(dir)
	name := "inspect-evidence-" + r.answer.Session + ".tar"
	err = r.persist(ctx, func(ctx context.Context) error {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		err = r.control.evidence(ctx, r.answer, f)
		return errors.Join(err, f.Close())
	})
	if err != nil {
		return fmt.Errorf("fetch the evidence: %w", err)
	}
	if err := r.Agent.Upload(ctx, dir, name); err != nil {
		return err
	}
	r.line("the evidence is the artifact %s", name)
	return nil
}

func (r *run) annotateState(ctx context.Context, s step.State) {
	r.annotate(ctx, Style(s), "inspect-"+r.answer.Session, Annotation(r.answer, s))
}

func (r *run) annotate(ctx context.Context, style, context, body string) {
	body = render.Fit(r.redactor.String(body), MaxAnnotation)
	r.warn(r.Agent.Annotate(ctx, style, redact.Cut(context, 100), body))
}

// warn tells what went wrong beside the session itself.
func (r *run) warn(err error) {
	if err != nil {
		r.line("%v", err)
	}
}

// line is one line of the job's log. It begins with the time, so that none can
// begin a group there.
func (r *run) line(format string, args ...any) {
	text := redact.OneLine(r.redactor.String(fmt.Sprintf(format, args...)), 2000)
	fmt.Fprintf(r.Out, "%s %s\n", r.Clock.Now().UTC().Format("15:04:05"), text)
}
