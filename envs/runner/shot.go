package runner

import (
	"context"
	"errors"
	"io"

	"inspect/envs/sandbox"
	"inspect/envs/sandbox/collect"
	"inspect/envs/sandbox/stream"
	"inspect/envs/shot"
	"inspect/envs/wire"
)

// verifyShot takes a picture of a page. What comes out of the sandbox is a record
// of what the browser said, kept as the command's output, and a picture, kept as
// its report. Both are only passed on here.
func (a *attempt) verifyShot(ctx context.Context, b *box, col column, c wire.Verify) (wire.VerifyResult, error) {
	res := wire.VerifyResult{Name: c.Name, Run: c.Run, Report: c.Report, ExitCode: -1}
	argv, err := shot.Args(sandbox.ToolPath, *c.Screenshot)
	if err != nil {
		return res, err
	}
	all, err := a.spool.create(wire.MaxShotBytes+wire.MaxShotJSON+1<<20, nil)
	if err != nil {
		return res, err
	}
	stderr, err := a.spool.create(wire.MaxShotJSON, a.red)
	if err != nil {
		all.abandon()
		return res, err
	}
	begun := a.clock.Now()
	exit, runErr := b.sb.Run(ctx, stream.Exec{Argv: argv, Dir: a.places().workspace, Stdout: all, Stderr: stderr})
	res.Duration = a.clock.Now().Sub(begun)
	whole, err := all.finish()
	defer whole.remove()
	if err != nil {
		stderr.abandon()
		return res, err
	}
	errOut, err := stderr.finish()
	if err != nil {
		return res, err
	}
	if runErr == nil {
		if res.ExitCode, res.Signal = exit.Code, exit.Signal; exit.Signal != "" {
			res.ExitCode = -1
		}
	}
	res.TimedOut = errors.Is(context.Cause(ctx), errDeadline)
	record, err := a.takeShot(whole, &res)
	if err != nil {
		return res, err
	}
	res.Stdout, res.Stderr = record.sha256, errOut.sha256
	ev := wire.Command{
		Step: col.step + ":" + c.Name, Line: a.events.text(c.Run, 1<<10), ExitCode: res.ExitCode, Signal: res.Signal,
		Duration: res.Duration, Output: a.events.text(errOut.tail, tailBytes),
	}
	if runErr != nil {
		ev.Error = a.events.text(runErr.Error(), maxWords)
	}
	a.events.add(wire.EventCommand, ev)
	a.up.artifact(record)
	a.up.artifact(errOut)
	return res, runErr
}

// takeShot takes the record and the picture out of what a sandbox said. What is
// wrong with that is told as that of a report.
func (a *attempt) takeShot(whole blob, res *wire.VerifyResult) (record blob, err error) {
	f, err := whole.openAt(0)
	if err != nil {
		return blob{}, err
	}
	defer f.Close()
	keep := func(from io.Reader, limit int64, secret bool) (blob, error) {
		red := a.red
		if !secret {
			red = nil // no text: a secret that is drawn cannot be found here
		}
		w, err := a.spool.create(limit, red)
		if err != nil {
			return blob{}, err
		}
		if _, err := io.Copy(w, from); err != nil {
			w.abandon()
			return blob{}, err
		}
		return w.finish()
	}
	var ours error
	told := collect.Read(f, func(h collect.Head, body io.Reader) error {
		var kept blob
		switch {
		case h.Path == wire.ShotRecord && record.path == "":
			kept, ours = keep(body, wire.MaxShotJSON, true)
			record = kept
		case h.Path == wire.ShotPicture && len(res.Reports) == 0 && h.Bytes <= wire.MaxShotBytes:
			if kept, ours = keep(body, wire.MaxShotBytes, false); ours == nil {
				res.Reports = append(res.Reports, wire.ReportFile{Path: wire.ShotPicture, SHA256: kept.sha256})
				a.up.artifact(kept)
			}
		default:
			return errors.New("more than a picture and its record")
		}
		return ours
	})
	switch {
	case ours != nil:
		return record, ours
	case told != nil || whole.truncated:
		res.Reports = []wire.ReportFile{{Path: wire.ShotPicture, Problem: "could not be taken out of the sandbox"}}
	}
	if record.path == "" { // it ended before it could tell
		w, err := a.spool.create(0, nil)
		if err != nil {
			return blob{}, err
		}
		return w.finish()
	}
	return record, nil
}
