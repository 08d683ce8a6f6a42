package intake

import "inspect/app/github"

// ping arrives when the webhook is set up.
func (in *Intake) ping(p payload) (result, error) {
	in.log.Info("GitHub's webhook reaches us")
	return result{done, "the webhook works"}, nil
}

// known says whether a payload names the installation and the repository that
// an event on an issue must have.
func (p payload) known() (github.Repo, bool) {
	if p.Installation == nil || p.Installation.ID <= 0 || p.Repository == nil || p.Repository.ID <= 0 {
		return github.Repo{}, false
	}
	owner, name := p.Repository.names()
	return github.Repo{ID: p.Repository.ID, Owner: owner, Name: name}, owner != "" && name != ""
}
