package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"inspect/envs/proc"
	"inspect/envs/sandbox"
	"inspect/envs/sandbox/collect"
	"inspect/envs/sandbox/stream"
	"inspect/envs/services"
	"inspect/envs/spec"
	"inspect/envs/wire"
)

// verified is what verification said.
type verified struct {
	tree      string
	results   []wire.VerifyResult
	base      *wire.Column
	baseTests *wire.Column
	end       wire.SandboxEnd // set if the result's sandbox died
	died      bool
	late      string // the command that was not over in time
}

// column is one verification in a clean clone.
type column struct {
	step    string                                  // begins the step of its Command events
	again   int                                     // how often what fails is run again
	arrange func(ctx context.Context, b *box) error // brings the clone from the base to what is verified
}

// columnRan is what came of a column.
type columnRan struct {
	results []wire.VerifyResult
	end     wire.SandboxEnd
	died    bool
	late    string
}

// verify applies the bundle in a second clone of the same snapshot and runs the
// repository's commands there, one after the other. No agent was ever in it. If
// the control plane asks for it the same is done on the base and, where the change
// touches tests, on the result with the base's tests, in clean clones as well.
// The error is about us: what the commands said is in verified.
func (a *attempt) verify(ctx context.Context, t taken, times *wire.Times) (verified, error) {
	var v verified
	var changed tests
	r, err := a.restore(ctx, wire.PurposeVerify)
	times.VerifyRestore = r.Duration
	if err != nil {
		return v, err
	}
	begun := a.clock.Now()
	defer func() { times.Verify = a.clock.Now().Sub(begun) }()
	got, err := a.runColumn(ctx, column{"verify", wire.MaxAgain, func(ctx context.Context, b *box) error {
		tip, err := b.result(ctx, t)
		if err != nil {
			return err
		}
		tree, err := b.must(ctx, a.git(a.repository(), "rev-parse", "--verify", tip+"^{tree}"))
		if err != nil {
			return err
		}
		if v.tree = tree.line(); !isSHA(v.tree) {
			return errors.New("git gave no tree for the result")
		}
		if a.spec.Compare {
			changed, err = b.changedTests(ctx, tip)
		}
		return err
	}})
	v.results, v.end, v.died, v.late = got.results, got.end, got.died, got.late
	if err != nil || v.died || v.late != "" || !a.spec.Compare {
		return v, err
	}
	if v.base, err = a.further(ctx, column{"base", 1, func(context.Context, *box) error { return nil }}); err != nil {
		return v, err
	}
	if changed.none() {
		v.baseTests = &wire.Column{Same: true}
		return v, nil
	}
	v.baseTests, err = a.further(ctx, column{"base-tests", 1, func(ctx context.Context, b *box) error {
		if _, err := b.result(ctx, t); err != nil {
			return err
		}
		return b.putBack(ctx, changed)
	}})
	return v, err
}

// further runs one more column in a fresh clone. Trouble with it is told in its
// words: the result is verified already. The error says that the attempt is over.
func (a *attempt) further(ctx context.Context, c column) (*wire.Column, error) {
	got, err := func() (columnRan, error) {
		if err := a.node.Discard(ctx, a.grant(wire.PurposeVerify)); err != nil {
			return columnRan{}, fmt.Errorf("discard the clone before: %w", err)
		}
		if _, err := a.restore(ctx, wire.PurposeVerify); err != nil {
			return columnRan{}, err
		}
		return a.runColumn(ctx, c)
	}()
	if cause := context.Cause(ctx); errors.Is(cause, errStopped) || errors.Is(cause, ErrStale) || errors.Is(err, ErrStale) {
		return nil, errors.Join(err, cause)
	}
	out := &wire.Column{Results: got.results}
	switch {
	case err != nil:
		out.Words = a.events.text(sentence(err), maxWords)
	case got.died:
		_, words := limitOf(got.end, a.spec.Limits)
		out.Words = strings.TrimSpace("A command ended its sandbox. " + words)
	case got.late != "":
		out.Words = fmt.Sprintf("The command %q was not over when the attempt's time was.", got.late)
	}
	if out.Words != "" {
		a.events.note("Verification (%s) is not complete: %s", c.step, out.Words)
	}
	return out, nil
}

// runColumn runs the commands in the clone for verification, which was restored.
func (a *attempt) runColumn(ctx context.Context, c column) (out columnRan, err error) {
	b, err := a.open(ctx, wire.PurposeVerify)
	if err != nil {
		return out, err
	}
	defer func() { b.close() }() // whichever it is then
	a.serveWays(ctx, b)
	if err := b.prepare(ctx); err != nil {
		return out, err
	}
	if err := b.sync(ctx); err != nil {
		return out, err
	}
	// As the agent found it, and before anything of the agent's is there.
	if b, err = a.setupAgain(ctx, ctx, b); err != nil {
		return out, errSetup{err, a.setupTrouble(ctx, b, "in the clone for verification", err)}
	}
	if err := c.arrange(ctx, b); err != nil {
		return out, err
	}
	running, err := b.startServices(ctx, c.step)
	if err != nil {
		return out, err
	}
	defer running.stop(ctx)
	for i, v := range a.spec.Verify {
		res, err := a.verifyOne(ctx, b, c, i, v)
		if err != nil && res.Stdout == "" {
			return out, err // it did not run, or our own disk is full
		}
		out.results = append(out.results, res)
		switch {
		case isGone(err):
			out.end, out.died = b.close(), true
			return out, nil
		case ctx.Err() != nil:
			out.late = v.Name
			return out, nil
		}
	}
	return out, nil
}

// result puts the clone on the result.
func (b *box) result(ctx context.Context, t taken) (tip string, err error) {
	if tip, err = b.applyBundle(ctx, "sync", b.a.repository(), b.a.spec.BaseSHA, t.bundle); err != nil {
		return "", err
	}
	return tip, b.checkout(ctx, tip)
}

// maxChanged bounds the list of paths a change touches, in bytes.
const maxChanged = 8 << 20

// tests are paths of the base's tests, and of what its verify commands name, that
// the result does not have as the base has them.
type tests struct {
	back  []string // the base has them
	added []string // only the result does
}

func (t tests) none() bool { return len(t.back)+len(t.added) == 0 }

// changedTests are those that a change touches.
func (b *box) changedTests(ctx context.Context, tip string) (out tests, err error) {
	list := &proc.Head{N: maxChanged}
	c := b.a.git(b.a.repository(), "diff-tree", "-r", "-z", "--name-status", "--no-renames", "--no-ext-diff", b.a.spec.BaseSHA, tip)
	c.stdout = list
	if _, err := b.must(ctx, c); err != nil {
		return out, err
	}
	if list.Cut() {
		return out, errors.New("the change touches more paths than can be listed")
	}
	fields := strings.Split(strings.TrimSuffix(string(list.Bytes()), "\x00"), "\x00")
	for i := 0; i+1 < len(fields); i += 2 {
		p := fields[i+1]
		if !spec.IsTest(p) && !slices.ContainsFunc(b.a.spec.Verify, func(v wire.Verify) bool { return spec.Runs(v.Run, p) }) {
			continue
		}
		if fields[i] == "A" {
			out.added = append(out.added, p)
		} else {
			out.back = append(out.back, p)
		}
	}
	return out, nil
}

// putBack gives the clone, which is on the result, the base's tests and no other.
func (b *box) putBack(ctx context.Context, t tests) error {
	for _, step := range []struct {
		paths []string
		args  []string
	}{
		{t.added, []string{"rm", "-r", "-q", "-f", "--ignore-unmatch", "--pathspec-from-file=-", "--pathspec-file-nul"}},
		{t.back, []string{"checkout", "-q", "--pathspec-from-file=-", "--pathspec-file-nul", b.a.spec.BaseSHA}},
	} {
		if len(step.paths) == 0 {
			continue
		}
		c := b.a.git(b.a.repository(), append([]string{"--literal-pathspecs"}, step.args...)...)
		c.stdin = strings.NewReader(strings.Join(step.paths, "\x00") + "\x00")
		if _, err := b.must(ctx, c); err != nil {
			return fmt.Errorf("put the base's tests back: %w", err)
		}
	}
	return nil
}

// verifyOne runs one command, the one with that index, and again if it fails, and
// keeps all it said and left.
func (a *attempt) verifyOne(ctx context.Context, b *box, col column, index int, c wire.Verify) (wire.VerifyResult, error) {
	res, err := a.verifyRun(ctx, b, col, index, c)
	for len(res.Again) < col.again && a.spec.Compare && err == nil && ctx.Err() == nil && res.ExitCode > 0 &&
		a.spec.EndDeadline.Sub(a.clock.Now()) > 3*res.Duration {
		var again wire.VerifyResult
		if again, err = a.verifyRun(ctx, b, col, index, c); again.Stdout == "" {
			break
		}
		res.Again = append(res.Again, again)
		if again.ExitCode == 0 {
			break
		}
	}
	return res, err
}

// verifyRun runs one command once.
func (a *attempt) verifyRun(ctx context.Context, b *box, col column, index int, c wire.Verify) (wire.VerifyResult, error) {
	if c.Screenshot != nil {
		return a.verifyShot(ctx, b, col, c)
	}
	res := wire.VerifyResult{Name: c.Name, Run: c.Run, Report: c.Report, ExitCode: -1}
	var before [2]before
	globs := globsOf(c)
	if a.spec.Compare {
		res.Coverage = c.Coverage
		for i, glob := range globs {
			var err error
			if before[i], err = b.there(ctx, glob); err != nil {
				return res, err
			}
		}
	}
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
		Step: col.step + ":" + c.Name, Line: a.events.text(c.Run, 1<<10), ExitCode: res.ExitCode, Signal: res.Signal,
		Duration: res.Duration, Output: a.events.text(tailOf(out, errOut), tailBytes),
	}
	if runErr != nil {
		ev.Error = a.events.text(runErr.Error(), maxWords)
	}
	a.events.add(wire.EventCommand, ev)
	a.up.artifact(out)
	a.up.artifact(errOut)
	if runErr == nil && a.spec.Compare && ctx.Err() == nil {
		for i, into := range []*[]wire.ReportFile{&res.Reports, &res.CoverageFiles} {
			files, err := b.left(ctx, globs[i], before[i])
			if err != nil {
				files = []wire.ReportFile{{Problem: "could not be taken out of the sandbox"}}
				a.log.Warn("reports could not be kept", "command", c.Name, "error", err)
			}
			if *into = files; isGone(err) {
				runErr = err
				break
			}
		}
	}
	return res, runErr
}

// globsOf are where a command's report and coverage files are; "" for none.
func globsOf(c wire.Verify) [2]string {
	var out [2]string
	_, out[0] = spec.ReportFiles(c.Report)
	_, out[1] = spec.ReportFiles(c.Coverage)
	return out
}

// maxThere bounds the list of files that are there before a command, in bytes.
const maxThere = 8 << 20

// before is what matches a glob before a command runs: it is not the command's.
type before struct {
	list    []byte
	problem string // why that could not be told; the command's files cannot be, then
}

// there looks for that. It is the repository that has too many such files, and
// nothing of ours that has failed.
func (b *box) there(ctx context.Context, glob string) (before, error) {
	if glob == "" {
		return before{}, nil
	}
	out := &proc.Head{N: maxThere}
	c := b.collect(collect.List, glob)
	c.stdout = out
	ran, err := b.run(ctx, c)
	switch {
	case err != nil:
		return before{}, fmt.Errorf("look for old reports: %w", err)
	case !ran.ok() || out.Cut():
		b.a.log.Info("old reports cannot be listed", "glob", glob, "why", ran.err)
		return before{problem: fmt.Sprintf("matches more than %d files before the command runs, or they cannot be listed: which of them it writes cannot be told", collect.MaxListed)}, nil
	}
	return before{list: out.Bytes()}, nil
}

func (b *box) collect(verb, glob string) call {
	return call{argv: []string{sandbox.InitPath, "sandbox-init", collect.Word, verb, b.a.places().workspace, strconv.Itoa(wire.MaxReportFiles), glob}, dir: "/"}
}

// left keeps what matches a glob and was not there before. What is wrong with it
// is told file by file.
func (b *box) left(ctx context.Context, glob string, was before) ([]wire.ReportFile, error) {
	a := b.a
	switch {
	case glob == "":
		return nil, nil
	case was.problem != "":
		return []wire.ReportFile{{Path: a.events.text(glob, 1<<10), Problem: was.problem}}, nil
	}
	all, err := a.spool.create(collect.MaxBytes+1<<20, nil)
	if err != nil {
		return nil, err
	}
	c := b.collect(collect.Take, glob)
	c.stdin, c.stdout = bytes.NewReader(was.list), all
	ran, runErr := b.run(ctx, c)
	whole, err := all.finish()
	defer whole.remove()
	switch {
	case err != nil:
		return nil, err
	case runErr != nil:
		return nil, runErr
	case !ran.ok() || whole.truncated:
		return []wire.ReportFile{{Problem: "could not be taken out of the sandbox"}}, nil
	}
	f, err := whole.openAt(0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []wire.ReportFile
	err = collect.Read(f, func(h collect.Head, body io.Reader) error {
		if len(out) > wire.MaxReportFiles {
			return nil
		}
		file := wire.ReportFile{Path: a.events.text(h.Path, 1<<10), Problem: a.events.text(h.Problem, 200)}
		if h.Problem == "" {
			w, err := a.spool.create(collect.MaxFileBytes+1<<20, a.red)
			if err != nil {
				return err
			}
			if _, err := io.Copy(w, body); err != nil {
				w.abandon()
				return err
			}
			kept, err := w.finish()
			if err != nil {
				return err
			}
			file.SHA256 = kept.sha256
			a.up.artifact(kept)
		}
		out = append(out, file)
		return nil
	})
	return out, err
}

// tailOf is what of a command's output is shown: the end of its errors, or of
// its output if it made none.
func tailOf(out, errOut blob) string {
	if errOut.tail != "" {
		return errOut.tail
	}
	return out.tail
}
