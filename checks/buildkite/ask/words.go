package ask

import (
	"net/url"
	"strings"

	"inspect/checks/buildkite/step"
	"inspect/checks/redact"
	"inspect/checks/render"
)

// Code is the exit status of a step.
type Code int

// Exit statuses of a step. Those from 10 on are of a session that did not deliver
// and did not fail either; a pipeline can tell them apart with soft_fail.
const (
	OK          Code = 0   // delivered; without --wait: asked for
	Failed      Code = 1   // the session failed
	Usage       Code = 2   // flags or configuration
	Missing     Code = 3   // no buildkite-agent on this machine
	RefusedCode Code = 4   // the control plane refuses
	Away        Code = 5   // the control plane does not answer
	Neutral     Code = 10  // nothing to deliver, over budget, our machinery failed, or what was delivered is no success
	Stopped     Code = 11  // somebody stopped it
	TimedOut    Code = 12  // the session took longer than its limit
	Waits       Code = 13  // it still waits for a person when the time to wait is up
	Unfinished  Code = 14  // it still works when the time to wait is up
	Interrupted Code = 130 // this step was ended
)

// Exit is the status for a session's state.
func Exit(s step.State) Code {
	if !s.Over {
		if s.Conclusion == render.ActionRequired {
			return Waits
		}
		return Unfinished
	}
	switch s.Conclusion {
	case render.Success:
		return OK
	case render.Failure:
		return Failed
	case render.Cancelled:
		return Stopped
	case render.TimedOut:
		return TimedOut
	case render.Neutral, render.ActionRequired: // the latter where a check is required
		return Neutral
	}
	return Failed // "nothing is known" is never success
}

// Style of the annotation for a state.
func Style(s step.State) string {
	switch {
	case s.Conclusion == render.Success && s.Over:
		return "success"
	case s.Conclusion == render.Failure, s.Conclusion == render.TimedOut:
		return "error"
	case s.Over, s.Conclusion != "":
		return "warning"
	}
	return "info"
}

// MaxAnnotation bounds an annotation's body, in bytes. Buildkite takes 1 MiB, and
// its agent counts bytes.
const MaxAnnotation = 1 << 20

// Annotation is what a build's page says of a session, as Markdown. Only the
// summary is taken as Markdown: the control plane wrote it for a check run, out of
// texts it has made harmless.
func Annotation(a step.Answer, s step.State) string {
	var b strings.Builder
	head := title(s)
	if t := plain(s.Title, render.MaxTitle); t != "" {
		head += ": " + t
	}
	b.WriteString("**Inspect: " + head + "**\n\n")
	var parts []string
	for _, l := range []struct{ words, to string }{{"draft pull request", s.Pull}, {"check run", s.CheckRun}, {"session " + a.Session, a.URL}} {
		if to := link(l.to); to != "" {
			parts = append(parts, "["+l.words+"]("+to+")")
		}
	}
	if s.Branch != "" {
		at := "branch " + code(s.Branch, 200)
		if s.SHA != "" {
			at += " at " + code(s.SHA, 12)
		}
		parts = append(parts, at)
	}
	if len(parts) > 0 {
		b.WriteString(strings.Join(parts, " · ") + "\n\n")
	}
	if w := plain(s.Words, 1000); w != "" {
		b.WriteString(w + "\n\n")
	}
	if strings.TrimSpace(s.Summary) != "" {
		b.WriteString(redact.Visible(s.Summary) + "\n")
	}
	return b.String()
}

func refusal(no *Refused) string {
	return "**Inspect: this step was refused**\n\n" + redact.Neutralise(redact.OneLine(no.Error(), 1000)) + "\n"
}

// progress is the line of a state.
func progress(s step.State) string {
	line := strings.ToLower(title(s)[:1]) + title(s)[1:]
	if s.Words != "" {
		line += ": " + s.Words
	}
	if s.Pull != "" {
		line += " (" + s.Pull + ")"
	}
	return line
}

func title(s step.State) string {
	if t := render.StateOf(s.State).Title; t != "" {
		return t
	}
	return "In a state this version does not know"
}

// link is an address that may stand in Markdown's round brackets.
func link(s string) string {
	u, err := url.Parse(s)
	if err != nil || len(s) > 2000 || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
		return ""
	}
	return strings.NewReplacer("(", "%28", ")", "%29", "<", "%3C", ">", "%3E", " ", "%20", `\`, "%5C").Replace(u.String())
}

func plain(s string, most int) string { return redact.Neutralise(redact.OneLine(s, most)) }

func code(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return redact.Code(strings.ToValidUTF8(s, ""))
}
