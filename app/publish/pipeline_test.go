package publish

import (
	"context"
	"strings"
	"testing"

	"inspect/app/policy"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/storage"
)

// A pipeline is asked of the operator's policy once more before the push, and
// whoever is neither a person nor a pipeline pushes nothing.
func TestPipelineIsAskedAgain(t *testing.T) {
	const org, pipeline = "01234567-89ab-4cde-8f01-234567890abc", "11234567-89ab-4cde-8f01-234567890abc"
	w := newWorld(t)
	tip := w.fixed()
	lists := func(more string) {
		t.Helper()
		floor, problems := policy.ParseFloor([]byte("version: 1\nbuildkite:\n  pipelines:\n    - {organization_id: " + org + ", pipeline_id: " + pipeline + ", slug: acme/web" + more + "}\n"))
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		w.p.authority.Pipelines = floor.Pipeline
	}
	of := func(act string) storage.Session {
		s := w.session(tip, func(s *storage.Session, _ *spec.Spec, _ *wire.Outcome) {
			s.RequesterID, s.RequesterLogin, s.IssueNumber = 0, "Buildkite acme/web", 0
		})
		if act != "" {
			w.ok(w.db.Q().InsertPipelineSession(context.Background(), storage.InsertPipelineSessionParams{
				SessionID: s.ID, RepositoryID: s.RepositoryID, OrganizationID: org, PipelineID: pipeline, Slug: "acme/web", Act: act, BuildNumber: 7, CreatedAt: s.CreatedAt,
			}))
		}
		return s
	}
	w.p.authority.Pipelines = nil
	w.refused(of("prompt"), ReasonDenied, "does not name the pipeline")
	lists(", repositories: [octocat/other]")
	w.refused(of("prompt"), ReasonDenied, "not bound")
	lists(", repositories: [" + repoName + "], may: [issue]")
	if r := w.refused(of("prompt"), ReasonDenied, "may not ask"); r.State != scheduler.Stopped {
		t.Errorf("state %s", r.State)
	}
	lists(", repositories: [" + repoName + "]")
	w.refused(of(""), ReasonDenied)
	if p := w.pushes(); len(p) != 0 {
		t.Fatalf("pushed: %+v", p)
	}
	s := of("prompt")
	receipt := w.deliver(s)
	if receipt.PullRequest == 0 || strings.Contains(receipt.Branch, "/0-") {
		t.Errorf("%+v", receipt)
	}
}
