package runner

import (
	"context"
	"errors"
	"strconv"

	"inspect/envs/sandbox/stream"
	"inspect/envs/services"
	"inspect/envs/wire"
)

// verified is what the second clone said.
type verified struct {
	tree    string
	results []wire.VerifyResult
	end     wire.SandboxEnd // set if the sandbox died
	died    bool
	late    string // the command that was not over in time
}

// verify applies the bundle in a second clone of the same snapshot and runs the
// repository's commands there, one after the other. No agent was ever in it.
// The error is about us: what the commands said is in verified.
func (a *attempt) verify(ctx context.Context, t taken, times *wire.Times) (verified, error) {
	var v verified
	r, err := a.restore(ctx, wire.PurposeVerify)
	times.VerifyRestore = r.Duration
	if err != nil {
		return v, err
	}
	begun := a.clock.Now()
	defer func() { times.Verify = a.clock.Now().Sub(begun) }()
	b, err := a.open(ctx, wire.PurposeVerify)
	if err != nil {
		return v, err
	}
	defer func() { b.close() }() // whichever it is then
	a.serveWays(ctx, b)
	if err := b.prepare(ctx); err != nil {
		return v, err
	}
	if err := b.sync(ctx); err != nil {
		return v, err
	}
	// As the agent found it, and before anything of the agent's is there.
	if b, err = a.setupAgain(ctx, ctx, b); err != nil {
		return v, errSetup{err, a.setupTrouble(ctx, b, "in the clone for verification", err)}
	}
	tip, err := b.applyBundle(ctx, "sync", a.repository(), a.spec.BaseSHA, t.bundle)
	if err != nil {
		return v, err
	}
	if err := b.checkout(ctx, tip); err != nil {
		return v, err
	}
	tree, err := b.must(ctx, a.git(a.repository(), "rev-parse", "--verify", tip+"^{tree}"))
	if err != nil {
		return v, err
	}
	if v.tree = tree.line(); !isSHA(v.tree) {
		return v, errors.New("git gave no tree for the result")
	}
	running, err := b.startServices(ctx)
	if err != nil {
		return v, err
	}
	defer running.stop(ctx)
	for i, c := range a.spec.Verify {
		res, err := a.verifyOne(ctx, b, i, c)
		if err != nil && res.Stdout == "" {
			return v, err // it did not run, or our own disk is full
		}
		v.results = append(v.results, res)
		switch {
		case isGone(err):
			v.end, v.died = b.close(), true
			return v, nil
		case ctx.Err() != nil:
			v.late = c.Name
			return v, nil
		}
	}
	return v, nil
}

// verifyOne runs one command, the one with that index, and keeps all it said.
func (a *attempt) verifyOne(ctx context.Context, b *box, index int, c wire.Verify) (wire.VerifyResult, error) {
	res := wire.VerifyResult{Name: c.Name, Run: c.Run, Report: c.Report, ExitCode: -1}
	place := services.Apart{Sandbox: b.sb, Close: func() {}}
	if len(c.Secrets) > 0 {
		var err error
		// No service has such a name.
		if place, err = b.apart(ctx, strconv.Itoa(index)+"-verify", "verification command "+c.Name, c.Secrets); err != nil {
			return res, err
		}
	}
	defer place.Close()
	limit := a.spec.Limits.OutputBytes
	if limit <= 0 {
		limit = defaultOutputBytes
	}
	stdout, err := a.spool.create(limit, a.red)
	if err != nil {
		return res, err
	}
	stderr, err := a.spool.create(limit, a.red)
	if err != nil {
		stdout.abandon()
		return res, err
	}
	begun := a.clock.Now()
	exit, runErr := place.Run(ctx, stream.Exec{
		Argv: []string{"sh", "-c", c.Run}, Env: place.Env, Dir: a.places().workspace, Stdout: stdout, Stderr: stderr,
	})
	res.Duration = a.clock.Now().Sub(begun)
	out, err := stdout.finish()
	if err != nil {
		stderr.abandon()
		return res, err
	}
	errOut, err := stderr.finish()
	if err != nil {
		return res, err
	}
	res.Stdout, res.Stderr, res.Truncated = out.sha256, errOut.sha256, out.truncated || errOut.truncated
	if runErr == nil {
		res.ExitCode, res.Signal = exit.Code, exit.Signal
		if exit.Signal != "" {
			res.ExitCode = -1
		}
	}
	res.TimedOut = errors.Is(context.Cause(ctx), errDeadline)
	ev := wire.Command{
		Step: "verify:" + c.Name, Line: a.events.text(c.Run, 1<<10), ExitCode: res.ExitCode, Signal: res.Signal,
		Duration: res.Duration, Output: a.events.text(tailOf(out, errOut), tailBytes),
	}
	if runErr != nil {
		ev.Error = a.events.text(runErr.Error(), maxWords)
	}
	a.events.add(wire.EventCommand, ev)
	a.up.artifact(out)
	a.up.artifact(errOut)
	return res, runErr
}

// tailOf is what of a command's output is shown: the end of its errors, or of
// its output if it made none.
func tailOf(out, errOut blob) string {
	if errOut.tail != "" {
		return errOut.tail
	}
	return out.tail
}
