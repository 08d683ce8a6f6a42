package demo

import (
	"context"
	"fmt"
	"strings"
	"time"

	"inspect/envs/proc"
)

// play tells the story from the installation to the pull request.
func (st *story) play(ctx context.Context) (Result, error) {
	done := st.out.step("the App is installed; the environment is prepared and a snapshot taken")
	if _, err := st.github.Install(octocat, repoName); err != nil {
		return Result{}, err
	}
	words, err := st.pages.awaitSnapshot(ctx)
	if err != nil {
		return Result{}, err
	}
	done(words)

	label := st.out.step(fmt.Sprintf("%s puts the label inspect on issue %d: %s", octocat, st.issue, st.repo.IssueTitle))
	mark := st.github.Mark()
	begun := time.Now()
	if _, err := st.github.Label(repoName, st.issue, "inspect", octocat); err != nil {
		return Result{}, err
	}
	label("")
	session, err := st.follow(ctx)
	if err != nil {
		return Result{}, err
	}
	res := Result{
		Session: session.Session, State: session.State, Conclusion: session.Conclusion, PullRequest: session.PullRequest,
		Branch: session.Branch, HeadSHA: session.HeadSHA, CheckRunID: session.CheckRunID,
		Verify:    Verify{Passed: session.Verify.Passed, Failed: session.Verify.Failed},
		RestoreMS: session.Times.RestoreMS, Harness: session.Harness, Generation: session.Generation,
		Reason: session.Reason, Words: session.Words, TotalMS: time.Since(begun).Milliseconds(), Engine: "local",
	}
	if st.o.Nomad != nil {
		res.Engine, res.Job = "nomad", jobOf(res.Session, res.Generation)
		if err := st.awaitCleared(ctx); err != nil {
			return res, err
		}
	}
	counts := st.github.CountsSince(mark)
	res.GitHub = Counts{Total: counts.Total, Tokens: counts.Tokens, Writes: counts.Writes}
	pulls, err := st.github.PullRequests(repoName)
	if err != nil {
		return res, err
	}
	runs, err := st.github.CheckRuns(repoName)
	if err != nil {
		return res, err
	}
	res.PullRequests, res.CheckRuns = len(pulls), len(runs)
	return res, st.tell(res)
}

// follow shows each state as it comes and returns the session once its end was
// told on GitHub. If asked to, it kills a process on the way.
func (st *story) follow(ctx context.Context) (sessionView, error) {
	id, err := st.pages.awaitSession(ctx)
	if err != nil {
		return sessionView{}, err
	}
	var last string
	var done func(string)
	killed := st.o.Kill == ""
	for {
		s, err := st.pages.session(ctx, id)
		if err != nil {
			// It may be starting again just now.
			if proc.Sleep(ctx, proc.System(), pollEvery) != nil {
				return s, fmt.Errorf("follow the session: %w", err)
			}
			continue
		}
		if now := s.State; now != last {
			if done != nil {
				done("")
			}
			done = st.out.step(stateWords(s))
			last = now
		}
		if s.Terminal && s.Reported {
			done("")
			return s, nil
		}
		if err := st.watchJob(ctx, s); err != nil {
			return s, err
		}
		if !killed && s.State == "working" {
			if ok, err := st.kill(st.o.Kill, id); err != nil {
				return s, err
			} else if ok {
				killed = true
			}
		}
		if err := proc.Sleep(ctx, proc.System(), pollEvery/2); err != nil {
			return s, fmt.Errorf("the session is still %s (%s): %w", s.State, s.Words, err)
		}
	}
}

func stateWords(s sessionView) string {
	switch s.State {
	case "queued":
		if s.QueueReason != "" {
			return "queued: " + s.QueueReason
		}
		return "queued"
	case "placing":
		return "a runner is started"
	case "restoring":
		return "the snapshot is restored into a clone of its own"
	case "working":
		return "the harness (" + s.Harness + ") works in a sandbox"
	case "verifying":
		return "the repository's tests run in a second, clean clone"
	case "publishing":
		return "the bundle is read as an enemy's, judged and pushed"
	case "delivered":
		return "delivered: the pushed commit was read back, the end is told on GitHub"
	}
	return s.State + ": " + s.Words
}

// tell shows what a reviewer gets.
func (st *story) tell(res Result) error {
	st.out.blank()
	if res.PullRequest > 0 {
		diff, err := st.github.Diff(repoName, res.PullRequest)
		if err != nil {
			return err
		}
		st.out.heading(fmt.Sprintf("Draft pull request %d, branch %s", res.PullRequest, res.Branch))
		st.out.text(diff)
	}
	runs, err := st.github.CheckRuns(repoName)
	if err != nil {
		return err
	}
	for _, r := range runs {
		st.out.heading(fmt.Sprintf("Check run: %s, %s", r.Conclusion, r.Title))
		st.out.text(r.Summary)
	}
	if len(runs) == 0 {
		comments, err := st.github.Comments(repoName, st.issue)
		if err != nil {
			return err
		}
		for _, c := range comments {
			st.out.heading("Comment of " + c.User.Login)
			st.out.text(c.Body)
		}
	}
	st.out.heading("Session page")
	st.out.text(st.pages.address("/sessions/" + res.Session))
	st.out.line(fmt.Sprintf("From the label to the end: %.1f s; in all: %.1f s. %d requests to GitHub besides %d for tokens, %d of them writes.",
		float64(res.TotalMS)/1000, time.Since(st.started).Seconds(), res.GitHub.Total-res.GitHub.Tokens, res.GitHub.Tokens, res.GitHub.Writes))
	return nil
}

func (st *story) tellHowToGoOn(res Result) error {
	next, err := st.github.OpenIssue(repoName, octocat, st.repo.IssueTitle, st.repo.IssueBody)
	if err != nil {
		return err
	}
	admin := st.github.URL() + "/_githubd"
	st.out.blank()
	st.out.heading("It goes on running. Ctrl-C ends it and removes everything")
	st.out.text(strings.Join([]string{
		"label issue " + fmt.Sprint(next) + ":        curl -s " + admin + `/label -d '{"repo":"` + repoName + `","issue":` + fmt.Sprint(next) + `,"label":"inspect","sender":"octocat"}'`,
		"open another issue:   curl -s " + admin + `/issue -d '{"repo":"` + repoName + `","sender":"octocat","title":"Parcels of no weight","body":"They cost nothing."}'`,
		"comment yourself:     curl -s " + admin + `/comment -d '{"repo":"` + repoName + `","issue":` + fmt.Sprint(st.issue) + `,"sender":"octocat","body":"/inspect make the test pass"}'`,
		"what GitHub was sent: curl -s " + admin + "/requests",
		"all sessions:         " + st.pages.address("/"),
		"clone the result:     git clone -b " + res.Branch + " " + st.github.CloneURL(repoName),
		"serve was started as: " + strings.Join(quoted(st.serve.argv), " "),
	}, "\n"))
	return nil
}

func quoted(argv []string) []string {
	out := make([]string, len(argv))
	for i, a := range argv {
		if strings.ContainsAny(a, " '\"$\\") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		out[i] = a
	}
	return out
}
