package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"inspect/app/github"
	"inspect/app/policy"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/storage"
)

// Where a repository wants signed commits, GitHub makes ours and signs it: the
// tree is given to it path by path, with every mode, and a commit made of it
// that no branch has yet. Only when the tree is the one that was judged and
// GitHub calls the signature verified is a branch made of it, or moved to it.
// The other way, one mutation that commits onto a branch, knows no modes and
// links, and what it made of the tree shows when the branch already has it.

// maxBlobs is how many files of one commit are sent on their own, because they
// are no text or too large to go with the tree: each is a write.
const maxBlobs = 100

// stepCommit is the step that makes a signed commit.
const stepCommit = "commit"

// signedCommit is what is kept of a commit that GitHub made.
type signedCommit struct {
	Head   string `json:"head"`
	Tree   string `json:"tree"`
	Reason string `json:"reason"` // of its being verified
}

// signedBefore is the signed commit that an earlier try made of the same tree,
// "" if none did.
func (p *Publisher) signedBefore(ctx context.Context, j *job, tree string) (string, error) {
	body, err := p.steps.Done(ctx, j.session.ID, j.session.Generation, stepCommit)
	if err != nil || body == nil {
		return "", err
	}
	var c signedCommit
	if err := json.Unmarshal(body, &c); err != nil {
		return "", fmt.Errorf("read which commit was made for session %s: %w", j.session.ID, err)
	}
	if c.Tree != tree {
		return "", nil
	}
	return c.Head, nil
}

// wantsSigned says whether the commit has to be made by GitHub.
func wantsSigned(signed string, rules []github.Rule) bool {
	switch signed {
	case spec.SignedAlways:
		return true
	case spec.SignedNever:
		return false
	}
	return slices.ContainsFunc(rules, func(r github.Rule) bool { return r.Type == ruleSignatures })
}

// Signs says whether the commit of a session will be made and signed by GitHub, as
// far as that is known before anything is pushed: by the configuration, or because
// it was so the last time.
func Signs(ctx context.Context, q *storage.Queries, repository int64, sp spec.Spec) (bool, error) {
	switch sp.Publish.Signed {
	case spec.SignedAlways:
		return true, nil
	case spec.SignedNever:
		return false, nil
	}
	signs, err := q.RepositorySigns(ctx, repository)
	if err != nil {
		return false, fmt.Errorf("looking up whether repository %d wants signed commits: %w", repository, err)
	}
	return signs, nil
}

// unsignedRefused says that a push was refused because its commit is not signed:
// older branch protection tells nobody beforehand.
func unsignedRefused(err error) bool {
	var r *refusal
	return errors.As(err, &r) && r.Reason == ReasonPushRefused && strings.Contains(r.Words, "must have verified signatures")
}

// bring brings the commit to its branch, signed if it has to be, and returns the
// SHA that is there.
func (p *Publisher) bring(ctx context.Context, j *job, branch string, c commit, sign bool) (string, error) {
	head := c.head
	if sign {
		var err error
		if head, err = p.sign(ctx, j, branch, c); err != nil {
			return "", err
		}
	}
	j.signed = sign
	err := p.deliver(ctx, j, branch, head)
	if !sign && j.spec.Publish.Signed != spec.SignedNever && unsignedRefused(err) {
		return p.bring(ctx, j, branch, c, true)
	}
	return head, err
}

// sign has GitHub make the commit, once, and returns its SHA. No branch has it
// then.
func (p *Publisher) sign(ctx context.Context, j *job, branch string, c commit) (string, error) {
	s := j.session
	if before, err := p.signedBefore(ctx, j, c.tree); err != nil || before != "" {
		return before, err
	}
	if err := p.nothingWaits(ctx, s.ID); err != nil {
		return "", err
	}
	step, err := p.steps.Begin(ctx, s.ID, s.Generation, stepCommit)
	if err != nil {
		return "", err
	}
	parent, err := p.parent(ctx, j, branch)
	if err != nil {
		return "", err
	}
	files, err := p.files(ctx, j)
	if err != nil {
		return "", err
	}
	token, err := j.github.PushToken(ctx, s.RepositoryID)
	if err != nil {
		return "", fmt.Errorf("mint a token for the commit: %w", err)
	}
	p.redactor.Add(token.Token)
	defer j.github.RevokeToken(ctx, token)
	ctx = github.ForSession(ctx, s.ID, step.Key())
	made, err := j.github.SignedCommit(ctx, j.repo, token, github.NewCommit{
		Message: c.message.text, Parent: parent, BaseTree: j.im.BaseTree, Tree: c.tree, Files: files,
	})
	switch {
	case errors.Is(err, github.ErrInvalid), errors.Is(err, github.ErrTooLarge):
		return "", refuse(ReasonPushRefused, "GitHub refused to make the commit that it was to sign: %s", sentence(said(err)))
	case err != nil:
		return "", fmt.Errorf("have GitHub make the commit: %w", err)
	case made.SHA == "":
		return "", refuse(ReasonUnsigned, "GitHub made another tree (%.12s) of the files than the one that was verified (%.12s). No branch has it; the work is kept in the evidence.", made.Tree, c.tree)
	case !made.Verified:
		return "", refuse(ReasonUnsigned, "The commit has to be signed, and GitHub did not sign the one that it made for Inspect (it says: %s). "+
			"No branch has it; the work is kept in the evidence. GitHub Enterprise Server signs what Apps commit only if its administrator has turned that on.", sentence(made.Reason))
	}
	return made.SHA, step.End(ctx, signedCommit{Head: made.SHA, Tree: made.Tree, Reason: made.Reason})
}

// parent is what the signed commit builds upon: the base or, if the session has
// pushed before, what it pushed. GitHub's API moves a branch forward only.
func (p *Publisher) parent(ctx context.Context, j *job, branch string) (string, error) {
	s := j.session
	if j.onHead() {
		return s.BaseSha, nil
	}
	row, err := p.db.Q().BranchByName(ctx, storage.BranchByNameParams{RepositoryID: s.RepositoryID, Name: branch})
	if storage.IsMissing(err) || err == nil && (row.SessionID != s.ID || row.LastSha == "" && row.PushingSha == "") {
		return s.BaseSha, nil
	}
	if err != nil {
		return "", fmt.Errorf("look up the branch %s: %w", branch, err)
	}
	remote, err := p.remoteHead(ctx, j, branch)
	if err != nil {
		return "", err
	}
	if remote != "" && (remote == row.LastSha || remote == row.PushingSha) {
		return remote, nil
	}
	return s.BaseSha, nil // what is there is judged before the branch is moved
}

// files are the paths of the change that are pushed. What GitHub's API cannot
// carry is refused, in words: nothing is left out or altered.
func (p *Publisher) files(ctx context.Context, j *job) ([]github.TreeEntry, error) {
	cannot := func(path, why string) error {
		return refuse(ReasonUnsigned, "The commit has to be signed, and GitHub's API cannot be given %s: %s. The work is kept in the evidence.", j.redactor.String(strconv.Quote(path)), why)
	}
	there := map[string]bool{} // contents that GitHub has
	for _, e := range j.im.Change.Entries {
		there[e.OldSHA] = true
	}
	var out []github.TreeEntry
	var ids []string
	for _, e := range j.im.Change.Entries {
		if slices.Contains(j.verdict.Withheld, e.Path) {
			continue
		}
		f := github.TreeEntry{Path: e.Path, Mode: e.NewMode}
		switch {
		case !utf8.ValidString(e.Path):
			return nil, cannot(e.Path, "its name is not UTF-8")
		case e.NewMode == policy.ModeNone:
			f.Mode = e.OldMode
		case e.NewMode == policy.ModeSubmodule, there[e.NewSHA]:
			f.SHA = e.NewSHA
		default:
			ids = append(ids, e.NewSHA)
			f.Text = new(string)
		}
		out = append(out, f)
	}
	bodies, large, err := j.trusted.contents(ctx, ids, github.MaxBlob)
	if err != nil {
		return nil, err
	}
	inline, blobs := 0, 0
	for i := range out {
		f := &out[i]
		if f.Text == nil {
			continue
		}
		if len(bodies) == 0 {
			return nil, cannot(f.Path, fmt.Sprintf("it has %d bytes, and at most %d are sent", large, github.MaxBlob))
		}
		*f.Text, bodies = bodies[0], bodies[1:]
		size := jsonSize(*f.Text)
		if utf8.ValidString(*f.Text) && !strings.Contains(*f.Text, "\x00") && inline+size <= github.MaxTreeInline {
			inline += size
			continue
		}
		if f.Alone, blobs = true, blobs+1; blobs > maxBlobs {
			return nil, cannot(f.Path, fmt.Sprintf("more than %d files are no text, or together are too large", maxBlobs))
		}
	}
	return out, nil
}

// jsonSize is how many bytes a text takes in a request.
func jsonSize(s string) int {
	b, err := json.Marshal(s)
	if err != nil {
		return len(s)
	}
	return len(b)
}

// contents reads blobs in order, up to the first that has more than most bytes;
// large is how many that has.
func (t *trusted) contents(ctx context.Context, ids []string, most int64) (bodies []string, large int64, err error) {
	sizes, err := t.batch(ctx, "--batch-check", ids)
	if err != nil {
		return nil, 0, err
	}
	for len(ids) > 0 {
		n, sum := 0, int64(0) // as many as git's output may have bytes of
		for n < len(ids) {
			line, rest, _ := strings.Cut(sizes, "\n")
			size, err := blobSize(line, ids[n])
			if err != nil {
				return nil, 0, err
			}
			if size > most {
				large = size
				ids = ids[:n]
				break
			}
			if n > 0 && sum+size > most {
				break
			}
			sizes, sum, n = rest, sum+size, n+1
		}
		out, err := t.batch(ctx, "--batch", ids[:n])
		if err != nil {
			return nil, 0, err
		}
		for _, id := range ids[:n] {
			line, rest, _ := strings.Cut(out, "\n")
			size, err := blobSize(line, id)
			if err != nil || int64(len(rest)) < size+1 {
				return nil, 0, errors.Join(errors.New("git cat-file did not give a whole file"), err)
			}
			bodies, out = append(bodies, rest[:size]), rest[size+1:]
		}
		ids = ids[n:]
	}
	return bodies, large, nil
}

func (t *trusted) batch(ctx context.Context, how string, ids []string) (string, error) {
	if len(ids) == 0 {
		return "", nil
	}
	return t.git(ctx, strings.Join(ids, "\n")+"\n", nil, "cat-file", how)
}

// blobSize reads the line that git cat-file says of a blob.
func blobSize(line, id string) (int64, error) {
	f := strings.Fields(line)
	if len(f) != 3 || f[0] != id || f[1] != "blob" {
		return 0, fmt.Errorf("git cat-file says %.100q of the file %s", line, id)
	}
	return strconv.ParseInt(f[2], 10, 64)
}

// pushSigned makes the branch, or moves it forward, to a commit that GitHub has.
// It tells what push tells. A branch is made only where there is none, and moved
// only from a commit that the new one builds upon.
func (p *Publisher) pushSigned(ctx context.Context, j *job, token wire.GitToken, head, branch, expected string) (pushEnd, string, error) {
	err := j.github.PutBranch(ctx, j.repo, token, branch, expected, head)
	var limited *github.RateLimited
	switch {
	case err == nil:
		return pushed, "", nil
	case errors.As(err, &limited), errors.Is(err, github.ErrForbidden), errors.Is(err, github.ErrSuspended):
		return pushUnclear, "", err
	case errors.Is(err, github.ErrExists):
		return pushStale, "the branch is there already", nil
	case errors.Is(err, github.ErrInvalid) && (strings.Contains(said(err), "not a fast forward") || strings.Contains(said(err), "Reference does not exist")):
		return pushStale, "the branch was changed by somebody else", nil
	case errors.Is(err, github.ErrInvalid):
		return pushRefused, said(err), nil
	case errors.Is(err, github.ErrDenied):
		return pushDenied, said(err), nil
	case errors.Is(err, github.ErrGone), errors.Is(err, github.ErrNotFound):
		return pushGone, said(err), nil
	}
	return pushUnclear, said(err), nil
}
