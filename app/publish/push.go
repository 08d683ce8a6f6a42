package publish

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"inspect/app/github"
	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/wire"
	"inspect/storage"
)

// pushTimeout bounds one push.
const pushTimeout = 3 * time.Minute

// pushEnd is what git said about a push.
type pushEnd int

const (
	pushed      pushEnd = iota // the remote took it
	pushStale                  // the branch is not what the lease says
	pushRefused                // the remote's rules refuse it
	pushDenied                 // the credential is not good for it
	pushGone                   // there is no such repository, or it is read-only
	pushUnclear                // it may or may not have happened
)

func (e pushEnd) String() string {
	return [...]string{"taken", "refused: the branch has moved", "refused by rules", "denied", "the repository is gone or read-only", "unclear"}[e]
}

// push pushes one commit to one branch, with a lease: expected is what the
// branch must be at, empty if it must not exist.
func (t *trusted) push(ctx context.Context, remote, token, head, branch, expected string, extra []string, r *redact.Redactor) (pushEnd, string, error) {
	cmd, secret, err := t.pushCommand(remote, token, head, branch, expected, extra)
	if err != nil {
		return pushUnclear, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	res, err := proc.Run(ctx, cmd)
	r = orEmpty(r)
	said := string(res.Stderr)
	if secret != "" {
		said = strings.ReplaceAll(said, secret, redact.Mark)
	}
	said = r.String(said)
	var exit *proc.ExitError
	if err != nil && !errors.As(err, &exit) {
		if errors.Is(err, proc.ErrNotFound) {
			return pushUnclear, "", err
		}
		return pushUnclear, "git push did not end in time", nil
	}
	end, words := readPush(string(res.Stdout), said, "refs/heads/"+branch, res.Code)
	return end, redact.Cut(r.String(words), 600), nil
}

// pushCommand is the command of a push. The token stands, in the form that is
// returned as secret, in the environment of that one process and nowhere else.
// A push to a repository of this machine has none: secret is empty then.
func (t *trusted) pushCommand(remote, token, head, branch, expected string, extra []string) (cmd proc.Command, secret string, err error) {
	u, err := url.Parse(remote)
	config := slices.Concat(gitConfig, []string{
		"credential.helper=",
		"core.askPass=",
		"push.followTags=false",
		"push.recurseSubmodules=no",
		"push.gpgSign=false",
	})
	switch {
	case t.local:
		if err != nil || u.Scheme != "file" || u.Host != "" || u.User != nil || !filepath.IsAbs(u.Path) {
			return cmd, "", errors.New("the repository's clone address is not a file:// address of this machine")
		}
	case err != nil || u.Host == "" || u.User != nil || (u.Scheme != "https" && u.Scheme != "http"):
		return cmd, "", errors.New("the repository's clone address is not an http(s) address without credentials")
	default:
		secret = base64.StdEncoding.EncodeToString([]byte("x-access-token:" + token))
		config = append(config,
			"http."+u.Scheme+"://"+u.Host+"/.extraHeader=Authorization: Basic "+secret,
			"http.followRedirects=false",
			"http.lowSpeedLimit=1000",
			"http.lowSpeedTime=30",
		)
	}
	config = append(config, "protocol."+u.Scheme+".allow=always")
	ref := "refs/heads/" + branch
	return proc.Command{
		Argv: []string{"git", "push", "--porcelain", "--no-verify", "--force-with-lease=" + ref + ":" + expected, remote, head + ":" + ref},
		Dir:  t.dir,
		Env:  slices.Concat(gitEnv(t.dir, config), []string{"GIT_TRACE=0", "GIT_TRACE_CURL=0", "GIT_CURL_VERBOSE=0"}, extra),
	}, secret, nil
}

// readPush reads what `git push --porcelain` printed.
func readPush(stdout, stderr, ref string, code int) (pushEnd, string) {
	for _, line := range strings.Split(stdout, "\n") {
		f := strings.Split(line, "\t")
		if len(f) != 3 {
			continue
		}
		if _, to, ok := strings.Cut(f[1], ":"); !ok || to != ref {
			continue
		}
		switch {
		case f[0] == "!" && strings.Contains(f[2], "stale info"):
			return pushStale, "the branch was changed by somebody else"
		case f[0] == "!" && strings.HasPrefix(f[2], "[remote rejected]"):
			return pushRefused, strings.TrimSpace(remoteWords(stderr) + " " + strings.TrimPrefix(f[2], "[remote rejected] "))
		case f[0] == "!" && strings.HasPrefix(f[2], "[rejected]"):
			return pushStale, "the branch was changed by somebody else"
		case f[0] == "!":
			return pushUnclear, remoteWords(stderr)
		case code == 0:
			return pushed, ""
		}
	}
	low := strings.ToLower(stderr)
	switch {
	case strings.Contains(low, "archived") || strings.Contains(low, "read-only"):
		return pushGone, remoteWords(stderr)
	case strings.Contains(low, "returned error: 404") || strings.Contains(low, "repository not found") || strings.Contains(low, "' not found"):
		return pushGone, remoteWords(stderr)
	case strings.Contains(low, "returned error: 401") || strings.Contains(low, "returned error: 403") ||
		strings.Contains(low, "authentication failed") || strings.Contains(low, "could not read username"):
		return pushDenied, remoteWords(stderr)
	}
	return pushUnclear, lastWords(stderr)
}

// remoteWords are the lines the server sent for people, in one line.
func remoteWords(stderr string) string {
	var out []string
	for _, l := range strings.Split(redact.Visible(stderr), "\n") {
		if w, ok := strings.CutPrefix(strings.TrimSpace(l), "remote:"); ok {
			if w = strings.TrimSpace(w); w != "" && len(out) < 6 {
				out = append(out, w)
			}
		}
	}
	if len(out) == 0 {
		return lastWords(stderr)
	}
	return strings.Join(out, " ")
}

func lastWords(stderr string) string {
	lines := strings.Split(strings.TrimSpace(redact.Visible(stderr)), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

func orEmpty(r *redact.Redactor) *redact.Redactor {
	if r == nil {
		return redact.New()
	}
	return r
}

// deliver brings head to the session's branch, once, and reads it back. The
// record in the database is written before anything is pushed, and only such a
// branch is ever pushed to.
func (p *Publisher) deliver(ctx context.Context, j *job, branch, head string) error {
	q := p.db.Q()
	s := j.session
	if j.onHead() {
		return p.deliverHead(ctx, j, branch, head)
	}
	if branch == j.place.DefaultBranch || branch == s.BaseBranch {
		return refuse(ReasonRules, "Inspect never pushes to the default branch or to the branch a session starts from (%s).", branch)
	}
	if _, err := q.ClaimBranch(ctx, storage.ClaimBranchParams{RepositoryID: s.RepositoryID, Name: branch, SessionID: s.ID, Now: p.clock.Now()}); err != nil {
		return fmt.Errorf("record the branch %s: %w", branch, err)
	}
	row, err := q.BranchByName(ctx, storage.BranchByNameParams{RepositoryID: s.RepositoryID, Name: branch})
	if err != nil {
		return fmt.Errorf("look up the branch %s: %w", branch, err)
	}
	if row.SessionID != s.ID {
		return refuse(ReasonBranchMoved, "The branch %s belongs to another session.", branch)
	}
	step, err := p.steps.Begin(ctx, s.ID, s.Generation, "push")
	if err != nil {
		return err
	}
	expected := row.LastSha
	if step.Repeated || row.PushingSha != "" {
		// An earlier try may have reached the remote.
		remote, err := p.remoteHead(ctx, j, branch)
		if err != nil {
			return err
		}
		switch remote {
		case head:
			return p.pushedHead(ctx, j, step, branch, head, true)
		case "", row.LastSha, row.PushingSha:
			expected = remote
		default:
			return refuse(ReasonBranchMoved, "Somebody else pushed to %s; Inspect does not overwrite it.", branch)
		}
	}
	return p.pushAndRead(ctx, j, step, branch, head, expected, true)
}

// pushAndRead pushes and records what is read back. ours: the branch is one
// that we made.
func (p *Publisher) pushAndRead(ctx context.Context, j *job, step *Step, branch, head, expected string, ours bool) error {
	if err := p.pushOnce(ctx, j, step.Key(), branch, head, expected, ours); err != nil {
		return err
	}
	remote, err := p.remoteHead(ctx, j, branch)
	if err != nil {
		return err
	}
	if remote != head {
		return fmt.Errorf("the branch %s was pushed, but GitHub says that it is at %q and not at %s", branch, remote, head)
	}
	return p.pushedHead(ctx, j, step, branch, head, ours)
}

// pushOnce mints a token and pushes. nil means: read the remote to know.
func (p *Publisher) pushOnce(ctx context.Context, j *job, key, branch, head, expected string, ours bool) error {
	s := j.session
	if err := p.nothingWaits(ctx, s.ID); err != nil {
		return err
	}
	if ours {
		n, err := p.db.Q().BranchPushing(ctx, storage.BranchPushingParams{RepositoryID: s.RepositoryID, Name: branch, SessionID: s.ID, Sha: head})
		if err != nil || n != 1 {
			return fmt.Errorf("record the push to %s: %w", branch, errors.Join(err, wantOne(n)))
		}
	}
	var err error
	var token wire.GitToken
	if !p.noForge {
		if token, err = j.github.PushToken(ctx, s.RepositoryID); err != nil {
			return fmt.Errorf("mint a token for the push: %w", err)
		}
		p.redactor.Add(token.Token)
		defer j.github.RevokeToken(ctx, token)
	}
	w := github.Write{
		Phase: github.WriteAsked, What: "push", Method: "push", Path: "/" + j.repo.String() + " refs/heads/" + branch, Key: key, SHA: head,
	}
	if err := p.record(ctx, s.ID, w); err != nil {
		return fmt.Errorf("push to %s: it cannot be recorded, so it is not made: %w", branch, err)
	}
	var end pushEnd
	var words string
	if j.signed {
		end, words, err = p.pushSigned(github.ForSession(ctx, s.ID, key), j, token, head, branch, expected)
	} else {
		end, words, err = j.trusted.push(ctx, p.cloneURL(j.repo), token.Token, head, branch, expected, p.pushEnv, p.redactor)
	}
	if w.Phase, w.Words = github.WriteAnswered, end.String(); err != nil {
		w.Words = p.redactor.String(err.Error())
	}
	if err := p.record(context.WithoutCancel(ctx), s.ID, w); err != nil {
		p.log.Warn("what came of a push could not be recorded", "session", s.ID, "branch", branch, "words", w.Words, "error", err)
	}
	if err != nil {
		return err
	}
	if end == pushed {
		return nil
	}
	// Git itself repeats a push whose answer was lost, and the second is
	// refused because of the first: what counts is where the branch is now.
	remote, err := p.remoteHead(ctx, j, branch)
	if err == nil && remote == head {
		return nil
	}
	switch end {
	case pushDenied:
		return refuse(ReasonPushRefused, "GitHub does not let Inspect push to this repository: %s The App needs the permission to write contents.", sentence(words))
	case pushGone:
		return refuse(ReasonGone, "The repository is gone or read-only: %s", sentence(words))
	}
	switch {
	case err != nil:
		return fmt.Errorf("push to %s: %s; and its end could not be looked up: %w", branch, words, err)
	case end == pushStale || remote != expected:
		return refuse(ReasonBranchMoved, "Somebody else pushed to %s; Inspect does not overwrite it.", branch)
	case end == pushRefused:
		return refuse(ReasonPushRefused, "GitHub refused the push to %s: %s", branch, sentence(words))
	}
	return fmt.Errorf("push to %s: %s", branch, words)
}

// remoteHead is where a branch is on the remote, "" if it does not exist.
func (p *Publisher) remoteHead(ctx context.Context, j *job, branch string) (string, error) {
	sha, err := j.github.Ref(ctx, j.repo, "heads/"+branch)
	if errors.Is(err, github.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read back the branch %s: %w", branch, err)
	}
	return sha, nil
}

// pushedHead records what was read back.
func (p *Publisher) pushedHead(ctx context.Context, j *job, step *Step, branch, head string, ours bool) error {
	s := j.session
	err := p.db.InTx(ctx, func(tx *storage.Tx) error {
		if ours {
			n, err := tx.Q().BranchPushed(ctx, storage.BranchPushedParams{RepositoryID: s.RepositoryID, Name: branch, SessionID: s.ID, Sha: head})
			if err != nil || n != 1 {
				return errors.Join(err, wantOne(n))
			}
		}
		return tx.Q().SetSessionPushed(ctx, storage.SetSessionPushedParams{ID: s.ID, Branch: branch, HeadSha: head})
	})
	if err != nil {
		return fmt.Errorf("record the push to %s: %w", branch, err)
	}
	return step.End(ctx, map[string]string{"branch": branch, "head": head})
}

func wantOne(n int64) error {
	if n == 1 {
		return nil
	}
	return fmt.Errorf("%d rows changed instead of one", n)
}

// sentence ends words with a full stop.
func sentence(s string) string {
	if s = strings.TrimSpace(s); s != "" && !strings.HasSuffix(s, ".") {
		s += "."
	}
	return s
}
