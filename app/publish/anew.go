package publish

import (
	"context"
	"errors"
	"fmt"
	"time"

	"inspect/app/policy"
	"inspect/app/terms"
	"inspect/storage"
)

// freshFor is how long what was read of a repository when a session began counts
// as what it says now, if no push was told of since: GitHub's events arrive within
// seconds, and a session has few requests.
const freshFor = 10 * time.Minute

// readAnew has what the repository says now count, where it is stricter than
// what the session was pinned to.
func (p *Publisher) readAnew(ctx context.Context, j *job) (err error) {
	if p.noForge {
		return nil
	}
	if s := j.session; !s.StartFrom.Valid && p.clock.Now().Sub(s.CreatedAt) < freshFor {
		told, err := p.db.Q().PushTold(ctx, storage.PushToldParams{RepositoryID: s.RepositoryID, Since: s.CreatedAt.Add(-time.Minute)})
		if err != nil {
			return fmt.Errorf("look for pushes since session %s began: %w", s.ID, err)
		}
		if !told {
			return nil
		}
	}
	j.publish, err = terms.Now(ctx, j.github, j.repo, j.place.DefaultBranch, j.spec.Publish)
	var broken *terms.Unusable
	if errors.As(err, &broken) {
		return refuse(ReasonTerms, "Nobody can tell what the repository forbids by now, so nothing is pushed; the work is kept. %s", sentence(broken.Error()))
	}
	return err
}

// rules are the stricter of the pinned configuration, which the floor bound
// when the session began, the repository's as it is now, and the floor as it is
// now.
func (p *Publisher) rules(j *job) policy.Rules {
	r := j.bounds.Tighten(policy.PublishRules(j.publish))
	for _, v := range j.spec.Verify {
		r.Verify = append(r.Verify, v.Run)
	}
	r.Find = p.leaks.Find
	r.Known = func(text string) bool { return p.redactor.Known(text) != text }
	return r
}
