package builds

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"inspect/checks/buildkite"
	"inspect/checks/render"
	"inspect/fixtures/buildkited"
)

// What GitHub does not hear is told again: the build has ended, and nobody looks
// at it any more.
func TestVerdictIsToldUntilItIsHeard(t *testing.T) {
	w := newWorld(t, ", builds: follow", nil)
	s := w.delivered(follow)
	w.after(s)
	w.bk.AddBuild("web", buildkited.Build{State: "passed", Commit: sha, Branch: "inspect/3-x"})
	w.clock.Advance(Between)
	w.fail = errors.New("GitHub is away")
	before := w.reported
	if err := w.look(); err == nil {
		t.Error("nothing is said")
	}
	if row := w.row(s); !row.DoneAt.Valid || w.reported != before+1 {
		t.Fatalf("%+v, %d reports", row, w.reported-before)
	}
	if err := w.look(); err != nil || w.reported != before+1 {
		t.Errorf("told again at once: %v", err)
	}
	w.fail = nil
	for range 2 {
		w.clock.Advance(pause)
		if err := w.look(); err != nil || w.reported != before+2 {
			t.Errorf("%d reports, %v", w.reported-before, err)
		}
	}
	// So is what was found while the end of the session was being told.
	early := newWorld(t, "", nil)
	s = early.delivered(follow)
	if _, err := early.db.SQL().Exec("UPDATE sessions SET reported_at = NULL WHERE id = $1", s.ID); err != nil {
		t.Fatal(err)
	}
	if row := early.after(s); !row.DoneAt.Valid || early.reported != 0 {
		t.Fatalf("%+v, %d reports", row, early.reported)
	}
	if _, err := early.db.SQL().Exec("UPDATE sessions SET reported_at = finished_at WHERE id = $1", s.ID); err != nil {
		t.Fatal(err)
	}
	if early.after(s); early.reported != 1 {
		t.Errorf("%d reports", early.reported)
	}
}

// An artifact store that never answers holds no verdict up.
func TestVerdictWithoutReports(t *testing.T) {
	w := newWorld(t, ", builds: follow", nil)
	s := w.delivered(follow)
	b := w.bk.AddBuild("web", buildkited.Build{State: "passed", Commit: sha, Branch: "inspect/3-x", Jobs: []buildkited.Job{{Name: "unit", State: "passed"}}})
	w.bk.AddArtifact("web", b.Number, b.Jobs[0].ID, "junit.xml", `<testsuite><testcase name="a"/></testsuite>`)
	w.bk.AddFault(buildkited.Fault{Kind: buildkited.FaultStatus, Status: 503, Count: -1, Path: "/v2/organizations/acme/pipelines/web/builds/*/jobs/*/artifacts/*/download"})
	if err := w.look(); err == nil || w.row(s).DoneAt.Valid {
		t.Fatalf("it is not tried again: %v", err)
	}
	for range patient {
		w.clock.Advance(slowest)
		_ = w.look()
	}
	row := w.row(s)
	if row.State != "passed" || !row.DoneAt.Valid {
		t.Fatalf("%+v", row)
	}
	var shown render.Build
	if err := json.Unmarshal(row.Result.RawMessage, &shown); err != nil || shown.Tests == nil || shown.Tests.Unread != 1 || !shown.Done {
		t.Errorf("%+v, %v", shown, err)
	}
}

// stuck is a Buildkite that takes requests and answers none.
type stuck struct{ Buildkite }

func (stuck) BuildsOf(ctx context.Context, _, _, _ string) ([]buildkite.Build, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// The time of a build is over also where each look takes all of its own.
func TestTimeIsOverWhileBuildkiteHangs(t *testing.T) {
	w := newWorld(t, ", builds: follow", func(o *Options) { o.Buildkite = stuck{o.Buildkite} })
	w.f.lookTime = 20 * time.Millisecond
	s := w.delivered(follow)
	_ = w.look()
	if row := w.row(s); row.DoneAt.Valid || row.Looks != 1 || !row.NextLookAt.After(w.clock.Now()) {
		t.Errorf("%+v", row)
	}
	w.clock.Advance(follow.Timeout)
	_ = w.look()
	if row := w.row(s); !row.DoneAt.Valid || row.Words != "Buildkite did not answer in time" {
		t.Errorf("%+v", row)
	}
}

// Nor does a repair that cannot be started hold the verdict up for ever.
func TestVerdictWithoutARepair(t *testing.T) {
	w := newWorld(t, ", builds: follow", func(o *Options) {
		o.Failed = func(context.Context, string, int) error { return errors.New("away") }
	})
	s := w.delivered(follow)
	w.bk.AddBuild("web", buildkited.Build{State: "failed", Commit: sha, Branch: "inspect/3-x"})
	_ = w.look()
	w.clock.Advance(follow.Timeout)
	if row := w.after(s); row.State != "failed" || !row.DoneAt.Valid {
		t.Errorf("%+v", row)
	}
}

// A check run that waits for its build is not forgotten while the control plane
// is away for days.
func TestRequiredBuildAfterDays(t *testing.T) {
	for required, want := range map[bool]int{true: 1, false: 0} {
		w := newWorld(t, ", builds: follow", nil)
		c := follow
		c.Required = required
		s := w.delivered(c)
		w.clock.Advance(3 * newest)
		if err := w.look(); err != nil {
			t.Fatal(err)
		}
		if rows, err := w.db.Q().SessionBuilds(t.Context(), s.ID); err != nil || len(rows) != want {
			t.Errorf("required %v: %d rows, %v", required, len(rows), err)
		}
	}
}
