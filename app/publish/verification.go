package publish

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"

	"inspect/checks/evidence"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/storage"
)

// showVerification puts what verification showed into the manifest, with the
// secrets of the session replaced.
func (p *Publisher) showVerification(ctx context.Context, j *job, m *evidence.Manifest) error {
	var added []evidence.Added
	for _, a := range j.im.Change.Added {
		added = append(added, evidence.Added{Path: a.Path, Lines: a.Numbers})
	}
	if err := j.shown.Cover(added, p.opener(ctx, j.session.ID)); err != nil {
		return err
	}
	s := j.shown
	m.SameTests = s.Same
	var errs [5]error
	m.Checks, errs[0] = redacted(j, s.Checks)
	m.Base, errs[1] = redacted(j, s.Base)
	m.BaseTests, errs[2] = redacted(j, s.BaseTests)
	m.Compared, errs[3] = redacted(j, s.Compared)
	m.Verdict, errs[4] = redacted(j, s.Verdict)
	return errors.Join(errs[:]...)
}

var isDigest = regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString

// redacted is a copy of v as the evidence has it, without secrets.
func redacted[T any](j *job, v T) (out T, err error) {
	body, err := json.Marshal(v)
	if err == nil {
		var tree any
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		if err = d.Decode(&tree); err == nil {
			body, err = json.Marshal(eachText(tree, func(s string) string {
				if isDigest(s) {
					return s
				}
				return j.redactor.String(s)
			}))
		}
	}
	if err == nil {
		err = json.Unmarshal(body, &out)
	}
	if err != nil {
		return out, fmt.Errorf("write what verification showed: %w", err)
	}
	return out, nil
}

// eachText passes every text of a JSON value through f; names of members are ours.
func eachText(v any, f func(string) string) any {
	switch v := v.(type) {
	case string:
		return f(v)
	case []any:
		for i := range v {
			v[i] = eachText(v[i], f)
		}
	case map[string]any:
		for k := range v {
			v[k] = eachText(v[k], f)
		}
	}
	return v
}

// column is one place that verification ran in; name begins the names of its files.
type column struct {
	name    string
	results []wire.VerifyResult
}

func columns(o wire.Outcome) []column {
	out := []column{{"verify", o.Results}}
	if o.Base != nil {
		out = append(out, column{"base", o.Base.Results})
	}
	if o.BaseTests != nil {
		out = append(out, column{"base-tests", o.BaseTests.Results})
	}
	return out
}

// keepReports lists what the commands printed and left in each column, of all
// their runs, and the tests of them all.
func (p *Publisher) keepReports(ctx context.Context, j *job, add func(string, string, int64) error) error {
	for _, col := range columns(j.outcome) {
		for _, v := range col.results {
			for run, r := range append([]wire.VerifyResult{v}, v.Again...) {
				prefix := col.name + "-" + fileName(v.Name)
				if run > 0 {
					prefix += fmt.Sprintf("-again%d", run)
				}
				if err := p.keepRun(ctx, j, prefix, r, add); err != nil {
					return err
				}
			}
		}
	}
	for _, l := range j.outcome.ServiceLogs {
		if err := p.known(ctx, j.session.ID, "service-"+l.Where+"-"+fileName(l.Service)+".log", l.SHA256, add); err != nil {
			return err
		}
	}
	tests := j.shown.Tests()
	if len(tests) == 0 {
		return nil
	}
	tests, err := redacted(j, tests)
	if err != nil {
		return err
	}
	body, err := json.Marshal(tests)
	if err != nil {
		return fmt.Errorf("write the list of tests: %w", err)
	}
	sum, n, err := p.blobs.Put(ctx, j.session.ID, bytes.NewReader(body), maxEvidenceFile)
	if err != nil {
		return fmt.Errorf("store the list of tests: %w", err)
	}
	return add(FileTests, sum, n)
}

func (p *Publisher) keepRun(ctx context.Context, j *job, prefix string, r wire.VerifyResult, add func(string, string, int64) error) error {
	for _, f := range []struct{ ext, sum string }{{".out", r.Stdout}, {".err", r.Stderr}} {
		if err := p.known(ctx, j.session.ID, prefix+f.ext, f.sum, add); err != nil {
			return err
		}
	}
	if r.Report == spec.ReportScreenshot {
		return nil // see keepPictures
	}
	for i, f := range slices.Concat(r.Reports, r.CoverageFiles) {
		if err := p.known(ctx, j.session.ID, fmt.Sprintf("%s-%03d-%s", prefix, i+1, fileName(path.Base(f.Path))), f.SHA256, add); err != nil {
			return err
		}
	}
	return nil
}

// judgeVerification asks that every command of the pinned configuration ran,
// that it is the command that ran, and that it showed something.
func (p *Publisher) judgeVerification(ctx context.Context, j *job) (err error) {
	if j.shown, err = evidence.Judge(j.outcome, p.opener(ctx, j.session.ID)); err != nil {
		return err
	}
	if err := sameCommands(j.spec.Verify, j.outcome.Results); err != nil {
		return err
	}
	switch v := j.shown.Verdict; {
	case j.outcome.Kind != wire.OutcomeVerified:
		return refuse(ReasonNotVerified, "The result was not verified.")
	case v.Kind == evidence.Nothing:
		return refuse(scheduler.ReasonNothingVerified, "Nothing was shown about the result: %s", sentence(v.Words))
	case v.Kind == evidence.Failed:
		return refuse(scheduler.ReasonVerifyFailed, "Verification failed: %s", sentence(v.Words))
	}
	return nil
}

func sameCommands(want []spec.Verify, got []wire.VerifyResult) error {
	if len(want) != len(got) {
		return refuse(ReasonNotVerified, "%d verify commands are declared, but %d results were reported.", len(want), len(got))
	}
	for i, w := range want {
		g := got[i]
		if g.Name != w.Name || g.Run != w.Run || orExit(g.Report) != orExit(w.Report) || g.Coverage != "" && g.Coverage != w.Coverage {
			return refuse(ReasonNotVerified, "The results that were reported are not those of the repository's verify commands.")
		}
	}
	return nil
}

func orExit(report string) string {
	if report == "" {
		return spec.ReportExit
	}
	return report
}

// opener reads evidence files; one that was never uploaded is empty.
func (p *Publisher) opener(ctx context.Context, session string) evidence.Opener {
	return func(sum string) (io.ReadCloser, error) {
		r, err := p.blobs.Get(ctx, session, sum)
		if errors.Is(err, storage.ErrBlobMissing) || errors.Is(err, storage.ErrBlobName) {
			return io.NopCloser(strings.NewReader("")), nil
		}
		return r, err
	}
}
