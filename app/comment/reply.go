package comment

import (
	"fmt"
	"strings"
	"time"

	"inspect/app/policy"
	"inspect/checks/redact"
	"inspect/envs/spec"
)

// ReplyMarker is the hidden first line by which a reply is found again, so
// that it is not written twice. key names its cause, e.g. "comment-123".
func ReplyMarker(key string) string { return "<!-- inspect:reply=" + ident(key) + " -->" }

// Reply puts our own words, Markdown, under the marker of key.
func Reply(key string, words ...string) string {
	return redact.Cut(ReplyMarker(key)+"\n"+strings.Join(words, "\n\n")+"\n", MaxBytes)
}

// BrokenSpec says what is wrong with a .inspect.yml and that nothing was started.
func BrokenSpec(branch, sha string, problems []spec.Problem) string {
	var b strings.Builder
	fmt.Fprintf(&b, "No session was started: %s on %s at %s cannot be used.\n", redact.Code(spec.FileName), redact.Code(branch), redact.Code(short(sha)))
	b.WriteString("\n| line | key | what is wrong |\n|---|---|---|\n")
	for i, p := range problems {
		if i == 20 {
			fmt.Fprintf(&b, "| | | and %d more |\n", len(problems)-i)
			break
		}
		line, key := "", ""
		if p.Line > 0 {
			line = fmt.Sprint(p.Line)
		}
		if p.Key != "" {
			key = code(p.Key, 100)
		}
		what := plain(redact.Cut(p.Want, 400))
		if p.Got != "" {
			what += ", but found " + code(p.Got, 100)
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", line, key, what)
	}
	b.WriteString("\nThe file is read from the default branch. Mend it there and ask again.")
	return b.String()
}

// NothingDetected says what to add to a repository that we know nothing about.
func NothingDetected(branch, sha string) string {
	return fmt.Sprintf("No session was started: %s at %s has no %s, and nothing in its root says how it is built "+
		"(looked for `go.mod`, `Cargo.toml`, `package.json`, `pyproject.toml`, `Makefile`). Add a %s that names the command which proves a change, for example:\n\n"+
		"```yaml\nversion: 1\nsetup: []\nverify:\n  - {name: test, run: \"make test\"}\n```",
		redact.Code(branch), redact.Code(short(sha)), redact.Code(spec.FileName), redact.Code(spec.FileName))
}

// NothingToVerify says that a configuration has no verify command.
func NothingToVerify(branch, sha string) string {
	return fmt.Sprintf("No session was started: %s on %s at %s names no `verify` command, so that nothing could prove a change. Add one, for example `verify: [{name: test, run: \"make test\"}]`.",
		redact.Code(spec.FileName), redact.Code(branch), redact.Code(short(sha)))
}

// NoHarness says that nobody told us which agent to run.
func NoHarness() string {
	return "No session was started: no agent is configured. Name one in " + redact.Code(spec.FileName) + ", for example `harness: {kind: command, command: \"my-agent\"}`, or ask whoever runs Inspect to set a default."
}

// NoFlagsNow says that flags cannot change a session that is at work.
func NoFlagsNow(session, url string) string {
	return fmt.Sprintf("%s is at work here already, and flags cannot change it. Ask without flags to have it do more, or end it with `/inspect stop` and ask again.", link("Session "+ident(session), url))
}

// Awaits says that a session takes nothing before somebody has decided.
func Awaits(session, url string) string {
	return fmt.Sprintf("%s waits for an approval and takes no further request before it has an answer: `/inspect approve` or `/inspect reject`. Nothing was done.", link("Session "+ident(session), url))
}

// HeadMoved says that a head is not the one that can have been meant.
func HeadMoved(head string) string {
	return fmt.Sprintf("Nothing was started: the head of this pull request is now %s, and may not be the one you have seen. If you mean it, ask again with `--head %s`.", redact.Code(short(head)), short(head))
}

// NameHead says that a fork's head must be named.
func NameHead(head string) string {
	return fmt.Sprintf("Nothing was started: this pull request comes from a fork, so the commit you have looked at must be named. Its head is now %s: ask again with `--head %s`.", redact.Code(short(head)), short(head))
}

// NoBase says that a pull request has its own place to start from.
func NoBase() string {
	return "`--base` has no meaning on a pull request: its head is worked on. Nothing was started."
}

// NoPull says that a flag is for pull requests.
func NoPull(flag string) string {
	return redact.Code(flag) + " has a meaning on pull requests only. Nothing was started."
}

// NoTurn says that turns are counted from 1.
func NoTurn() string { return "Turns are counted from 1. Nothing was done." }

// CannotGoOn says why a session does not go on, in plain words.
func CannotGoOn(why string) string { return "Nothing was done: " + sentence(redact.Cut(why, 1000)) }

// PullOver says why nothing is started on a pull request. what is "closed" or "merged".
func PullOver(what string) string {
	return "This pull request is " + plain(what) + ". Nothing was started."
}

// PullEnded says why a session ends with its pull request, as plain text.
func PullEnded(what string) string {
	return "The pull request was " + what + " while this session was at work. The work is kept in the evidence."
}

// PullGone says the same of one that GitHub does not show any more.
func PullGone() string {
	return "GitHub does not show the pull request any more. What was worked on is kept in the evidence."
}

// Superseded says that a session's head is not the head any more, as plain text.
func Superseded(who, was, is string) string {
	if who == "" {
		who = "Somebody"
	}
	return fmt.Sprintf("%s pushed: the head is now %s, and this session worked on %s. Nothing of it is pushed; the work is kept in the evidence. Ask again to have the new head worked on.", who, short(is), short(was))
}

// HeadRenamed says that the branch a session works on has another name, as plain
// text.
func HeadRenamed(was, is string) string {
	return fmt.Sprintf("The head branch %s was renamed to %s while this session worked on it. Nothing of it is pushed; the work is kept in the evidence. Ask again to have it worked on under its new name.", redact.OneLine(was, 200), redact.OneLine(is, 200))
}

// RepositoryGone says that the App does not reach a repository any more, as plain
// text.
func RepositoryGone() string {
	return "The App does not reach the repository any more: it was transferred to an owner who has not installed it, removed from the installation, or deleted. Nothing is pushed; the work is kept in the evidence."
}

// NoAllowForFork says that a fork's session gets no wider reach.
func NoAllowForFork() string {
	return "This session works on a fork's commits, so nothing more can be allowed to it. Nothing was asked for."
}

// TooMany says that the loop breaker has come down.
func TooMany(most int, window time.Duration) string {
	return fmt.Sprintf("That was the %dth command of one account here within %d minutes, so nothing more of it is obeyed for now. If a program writes them, keep it from answering Inspect.", most+1, int(window.Minutes()))
}

// NotAllowed says that the operator lets this repository start nothing.
func NotAllowed() string {
	return "No session was started: whoever runs Inspect does not allow it for this repository. Only they can change that."
}

// BeyondFloor says what a repository asks for and may not have.
func BeyondFloor(e *policy.BeyondError) string {
	var b strings.Builder
	b.WriteString("No session was started: it would need more than whoever runs Inspect allows here.\n\n| key | asked for | allowed at most | by |\n|---|---|---|---|\n")
	for i, w := range e.What {
		if i == 20 {
			fmt.Fprintf(&b, "| | and %d more | | |\n", len(e.What)-i)
			break
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", code(w.Key, 100), code(w.Asked, 300), code(w.Most, 300), code(w.From, 100))
	}
	if e.Guessed {
		fmt.Fprintf(&b, "\nWhat can be reached was guessed from the repository's files. A %s on the default branch that names its own `egress` takes the place of the guess.", redact.Code(spec.FileName))
		return b.String()
	}
	fmt.Fprintf(&b, "\nAsk for less, in %s on the default branch or in the command, or ask whoever runs Inspect for more.", redact.Code(spec.FileName))
	return b.String()
}

// NoSecret says why the environment cannot have the secrets it names.
func NoSecret(why string) string {
	return "No session was started: " + redact.Cut(why, 2000) + "\n\nWhoever runs Inspect can set it."
}

// Refreshing says that a snapshot was asked for.
func Refreshing() string {
	return "The snapshot of this repository is built anew at the head of the default branch. Sessions go on with the present one until it is ready; `inspect env status` shows how it stands."
}

// Closed says why nothing is started on an issue. what is "closed" or "locked".
func Closed(what string) string {
	return "This issue is " + plain(what) + ". Nothing was started; open it again and ask once more."
}

// NoBranch says that the branch of --base does not exist.
func NoBranch(branch string) string {
	return "There is no branch " + redact.Code(redact.Cut(branch, 200)) + ". Nothing was started."
}

// EmptyRepository says that there is no commit to start from.
func EmptyRepository(branch string) string {
	return "The branch " + redact.Code(redact.Cut(branch, 200)) + " has no commit to start from. Nothing was started."
}

// NoSession says that there is nothing a command could be about.
func NoSession() string {
	return "There is no session here. To start one: `/inspect` and what is to be done."
}

// Over says that a session has ended and cannot be stopped.
func Over(session, url, state string) string {
	return fmt.Sprintf("%s has ended already (%s).", link("Session "+ident(session), url), redact.Code(state))
}

// Younger says that a command is older than the session it would be about.
func Younger(session, url string) string {
	return fmt.Sprintf("%s was asked for after this was written, so it is left as it is. If it is meant, give the command again.", link("Session "+ident(session), url))
}

// NotStarted says what kept a session from starting, in plain words.
func NotStarted(why string) string {
	return "No session was started: " + sentence(redact.Cut(why, 1000))
}

// NotTheLast says that a page's session has a newer one beside it.
func NotTheLast(session, url string) string {
	return "Nothing was done: a newer session works on the same, " + link(ident(session), url) + "."
}

// NothingAsked says that a request has no words.
func NothingAsked() string { return "Nothing was done: say what is to be done." }

// TooLong says that a request is longer than so many bytes.
func TooLong(most int) string {
	return fmt.Sprintf("Nothing was done: a request has at most %d bytes.", most)
}
