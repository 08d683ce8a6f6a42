package report

import (
	"context"
	"testing"

	"inspect/storage"
)

// The end of a session that could not be told, because GitHub suspended the
// installation or the repository was out of it, is told once that is over. The
// suspension is learnt from GitHub's refusal.
func TestEndIsToldWhenItCanBe(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	w.report()
	w.ok(w.server.Suspend(w.install, "octocat"))
	w.delivered()
	w.report()
	w.exec(`UPDATE sessions SET reported_at = now(), finished_at = now() WHERE id = $1`, id)
	var suspended bool
	w.ok(w.db.SQL().QueryRow(`SELECT suspended_at IS NOT NULL FROM installations`).Scan(&suspended))
	if !suspended {
		t.Fatal("nobody learnt that it is suspended")
	}
	w.ok(w.server.Unsuspend(w.install, "octocat"))
	w.ok(w.db.Q().UnsuspendInstallation(ctx, w.install))
	if w.session().ReportedAt.Valid {
		t.Fatal("the end counts as told")
	}
	w.report()
	w.only("pull/2")

	saw := storage.SawRepositoryParams{ID: w.repo, InstallationID: w.install}
	w.exec(`UPDATE sessions SET reported_at = now() WHERE id = $1`, id)
	w.ok(w.db.Q().SawRepository(ctx, saw))
	if !w.session().ReportedAt.Valid {
		t.Error("told again, though it was never away")
	}
	w.exec(`UPDATE repositories SET removed_at = now()`)
	w.ok(w.db.Q().SawRepository(ctx, saw))
	if w.session().ReportedAt.Valid {
		t.Error("the end counts as told, though the repository was away")
	}
}
