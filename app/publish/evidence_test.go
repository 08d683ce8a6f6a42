package publish

import (
	"context"
	"strings"
	"testing"

	"inspect/checks/evidence"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/storage"
)

func TestKeepFailedWork(t *testing.T) {
	w := newWorld(t)
	secret := "ghs_" + strings.Repeat("a1B2", 9)
	tip := w.changed(func(g gitDir) { g.write("half.txt", "done so far\n"+secret+"\n") })
	s := w.session(tip, func(s *storage.Session, _ *spec.Spec, o *wire.Outcome) {
		s.State = scheduler.Failed
		o.Kind, o.Reason, o.Results = wire.OutcomeFailed, wire.ReasonHarnessExit, nil
	})
	kept, err := w.p.Keep(context.Background(), s)
	w.ok(err)
	if kept.Manifest.Change.Added != 2 || kept.Manifest.Tip != tip || kept.Manifest.Verdict.Kind != evidence.Nothing {
		t.Errorf("%+v", kept.Manifest)
	}
	if patch := w.file(s.ID, FilePatch); !strings.Contains(patch, "+done so far") || strings.Contains(patch, secret) {
		t.Errorf("the patch is %s", patch)
	}
	w.file(s.ID, FileBundle)
	again, err := w.p.Keep(context.Background(), s)
	if err != nil || again.Digest != kept.Digest {
		t.Errorf("%s, then %s, %v", kept.Digest, again.Digest, err)
	}

	// The attempt was lost: the last bundle uploaded is what there is.
	lost := w.session(w.fixed(), func(s *storage.Session, _ *spec.Spec, o *wire.Outcome) { s.State = scheduler.Infrastructure })
	w.exec(`UPDATE sessions SET outcome = NULL WHERE id = $1`, lost.ID)
	_, err = w.p.Keep(context.Background(), lost)
	w.ok(err)
	if patch := w.file(lost.ID, FilePatch); !strings.Contains(patch, "a + b") {
		t.Errorf("the patch is %s", patch)
	}

	// A bundle that is refused is kept as it is.
	bad := w.sessionOf(tip, []byte("gitdir: /x\n"), func(s *storage.Session, _ *spec.Spec, o *wire.Outcome) { s.State = scheduler.Failed })
	_, err = w.p.Keep(context.Background(), bad)
	w.ok(err)
	if got := w.file(bad.ID, FileBundle); got != "gitdir: /x\n" {
		t.Errorf("%q", got)
	}
	// And a session without any work has a manifest.
	none := w.session(tip, func(s *storage.Session, _ *spec.Spec, o *wire.Outcome) { s.State = scheduler.TimedOut })
	w.exec(`UPDATE sessions SET outcome = NULL WHERE id = $1`, none.ID)
	w.exec(`DELETE FROM bundles WHERE session_id = $1`, none.ID)
	kept, err = w.p.Keep(context.Background(), none)
	if err != nil || len(kept.Manifest.Files) != 0 {
		t.Errorf("%+v %v", kept, err)
	}
	if p := w.pushes(); len(p) != 0 {
		t.Errorf("pushed: %+v", p)
	}
}
