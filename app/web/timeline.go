package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"inspect/app/github"
	"inspect/checks/evidence"
	"inspect/checks/redact"
	"inspect/checks/render"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/storage"
)

// maxDetail is the most bytes shown of one event.
const maxDetail = 8 << 10

// eventView is one line of the timeline; Detail is folded below it.
type eventView struct {
	Seq        int64
	Generation int
	At         time.Time
	Kind       string
	Title      string
	Detail     string
	Bad        bool
	Quiet      bool // of lesser interest
}

// Line is one thing that happened in a session, in words. Its texts may come from
// a stranger.
type Line struct {
	Seq    int64     `json:"seq"`
	At     time.Time `json:"at"`
	Kind   string    `json:"kind"`
	Title  string    `json:"title"`
	Detail string    `json:"detail,omitempty"`
}

// Lines are a session's events in words, as its page has them.
func Lines(events []storage.WebEventsAfterRow) []Line {
	var out []Line
	for _, v := range later(events) {
		out = append(out, Line{v.Seq, v.At.UTC(), v.Kind, v.Title, v.Detail})
	}
	return out
}

// later is timeline for events that are read in their order.
func later(events []storage.WebEventsAfterRow) []eventView {
	rows := make([]storage.WebEventsRow, len(events))
	for i, e := range events {
		rows[i] = storage.WebEventsRow(e)
	}
	return timeline(rows)
}

// timeline puts events into words. Output that came in pieces is put together.
func timeline(events []storage.WebEventsRow) []eventView {
	var out []eventView
	stream := ""
	for _, e := range events {
		v := eventView{Seq: e.Seq, Generation: int(e.Generation), At: e.At, Kind: e.Kind}
		if e.Kind == wire.EventOutput {
			if o := unpack[wire.Output](e.Data); o != nil {
				if last := len(out) - 1; last >= 0 && out[last].Kind == e.Kind && stream == o.Stream && out[last].Generation == v.Generation && len(out[last].Detail) < maxDetail {
					out[last].Detail = redact.Cut(out[last].Detail+o.Text, maxDetail)
					continue
				}
				stream = o.Stream
			}
		}
		describe(&v, e.Data)
		v.Title = redact.OneLine(v.Title, 300)
		v.Detail = redact.Cut(v.Detail, maxDetail)
		out = append(out, v)
	}
	return out
}

// describe reads an event's data by its kind. What does not fit its kind, or is
// of none we know, is shown as it is.
func describe(v *eventView, data []byte) {
	fits := true
	read := func(into any) bool { fits = json.Unmarshal(data, into) == nil; return fits }
	switch v.Kind {
	case wire.EventPhase:
		var x wire.Phase
		if read(&x) {
			v.Title = "The attempt is " + x.Phase
		}
	case wire.EventCommand:
		var x wire.Command
		if read(&x) {
			v.Title, v.Detail, v.Bad = command(x)
		}
	case wire.EventOutput:
		var x wire.Output
		if read(&x) {
			v.Title, v.Detail = "The harness wrote to "+x.Stream, x.Text
		}
	case wire.EventTurn:
		var x wire.Turn
		if read(&x) {
			v.Title = fmt.Sprintf("Work taken and uploaded: turn %d, commit %.12s, %s", x.Turn, x.Tip, render.Bytes(x.Bytes))
			v.Detail = "sha256 " + x.SHA256
			if x.SHA256 == "" {
				v.Title, v.Detail = fmt.Sprintf("Turn %d is over; nothing was committed in it", x.Turn), ""
			}
		}
	case wire.EventNote:
		var x wire.Note
		if read(&x) {
			v.Title = x.Words
			if len(x.Words) > 200 {
				v.Detail = x.Words
			}
		}
	case wire.EventRestore:
		var x wire.Restored
		if read(&x) {
			v.Title = fmt.Sprintf("Restored a clone to %s, in %s", x.Purpose, render.Duration(x.Duration))
			v.Detail = fmt.Sprintf("snapshot %s of commit %s\nstore %s\nsandbox %s\nlimits %s", x.Snapshot, x.Commit, x.Store, x.Tier, x.Limits)
		}
	case wire.EventMessage:
		var x wire.Message
		if read(&x) {
			v.Title = "The agent: " + x.Text
			if strings.Contains(strings.TrimSpace(x.Text), "\n") || len(x.Text) > 200 {
				v.Detail = x.Text
			}
		}
	case wire.EventTool:
		var x wire.Tool
		if read(&x) {
			v.tool(x)
		}
	case wire.EventPrompt:
		var x wire.Prompted
		if read(&x) {
			v.prompt(x)
		}
	case wire.EventUsage:
		var x wire.Usage
		if read(&x) {
			v.Title, v.Quiet = usage(x), true
		}
	case wire.EventEgress:
		var x wire.Egress
		if read(&x) {
			v.egress(x)
		}
	case wire.EventUse:
		var x wire.EgressUse
		if read(&x) {
			v.Title, v.Quiet = fmt.Sprintf("Egress so far: %d bytes sent, %d received", x.Sent, x.Received), true
		}
	case wire.EventService:
		var x wire.ServiceState
		if read(&x) {
			v.service(x)
		}
	case scheduler.EventCreated:
		var x struct {
			Requester  string `json:"requester"`
			SpecSource string `json:"spec_source"`
			BaseSHA    string `json:"base_sha"`
		}
		if read(&x) {
			v.Title = fmt.Sprintf("Asked for by %s, starting from %.12s; environment: %s", x.Requester, x.BaseSHA, x.SpecSource)
		}
	case scheduler.EventState:
		var x struct{ From, To, Reason, Words string }
		if read(&x) {
			v.Title = stateView(storage.SessionState(x.To)).Title
			if x.Reason != "" {
				v.Title += " (" + x.Reason + ")"
			}
			v.Detail = x.Words
		}
	case scheduler.EventAttempt:
		var x struct {
			Generation          int
			Node, Snapshot, Why string
		}
		if read(&x) {
			v.Title = fmt.Sprintf("Attempt %d on node %s from snapshot %s", x.Generation, x.Node, x.Snapshot)
			v.Detail = x.Why
		}
	case scheduler.EventSecrets:
		var x struct{ Versions map[string]int64 }
		if read(&x) {
			var names []string
			for _, name := range slices.Sorted(maps.Keys(x.Versions)) {
				names = append(names, fmt.Sprintf("%s (version %d)", name, x.Versions[name]))
			}
			v.Title = "Secrets given to the runner: " + strings.Join(names, ", ")
		}
	case scheduler.EventApproval:
		var x struct{ Kind, State, Words, Who, How, Digest string }
		if read(&x) {
			v.Title = fmt.Sprintf("Approval of kind %s (%.12s): %s", x.Kind, x.Digest, x.State)
			if x.Who != "" {
				v.Title += " by " + x.Who
			}
			if x.How != "" {
				v.Title += " (" + x.How + ")"
			}
			v.Detail = x.Words
		}
	case scheduler.EventStop:
		var x struct{ Who, Words string }
		if read(&x) {
			v.Title, v.Detail = "Asked to stop by "+x.Who, x.Words
		}
	case scheduler.EventAsked:
		var x struct {
			Number int
			Author string
		}
		if read(&x) {
			v.Title = fmt.Sprintf("Request %d after the first, of %s", x.Number, x.Author)
		}
	case scheduler.EventGitHub:
		var x github.Write
		if read(&x) {
			v.written(x)
		}
	case scheduler.EventBuild:
		var x struct {
			Pipeline   string
			Number     int
			State, SHA string
		}
		if read(&x) {
			v.Title, v.Detail = fmt.Sprintf("Build %d of %s: %s", x.Number, x.Pipeline, x.State), "of commit "+x.SHA
		}
	default:
		fits = false
	}
	if !fits {
		v.Title, v.Detail = v.Kind, indent(data)
	}
}

// written tells of a write to GitHub; that it was asked for is of lesser interest.
func (v *eventView) written(x github.Write) {
	v.Title, v.Detail = "GitHub: "+x.What, x.Method+" "+x.Path+"\nkey "+x.Key
	switch {
	case x.Phase == github.WriteAsked:
		v.Title, v.Quiet = v.Title+" asked for", true
	case x.Status != 0:
		v.Title, v.Bad = fmt.Sprintf("%s, answered with %d", v.Title, x.Status), x.Status >= 300
	default:
		v.Title += ", " + x.Words
	}
}

func command(x wire.Command) (title, detail string, bad bool) {
	result := fmt.Sprintf("exit status %d", x.ExitCode)
	switch {
	case x.Error != "":
		result = x.Error
	case x.Signal != "":
		result = "ended by " + x.Signal
	case x.ExitCode == 0:
		result = "done"
	}
	title = fmt.Sprintf("%s: %s (%s, %s)", x.Step, redact.OneLine(x.Line, 160), result, render.Duration(x.Duration))
	detail = x.Output
	if strings.Contains(x.Line, "\n") || len(x.Line) > 160 {
		detail = x.Line + "\n\n" + detail
	}
	return title, detail, x.ExitCode != 0 || x.Error != ""
}

func (v *eventView) tool(x wire.Tool) {
	what := x.Title
	switch {
	case x.Command != "":
		what = x.Command
	case what == "" && len(x.Files) > 0:
		what = x.Files[0]
	}
	v.Title = x.Name
	if what != "" {
		v.Title += ": " + redact.OneLine(what, 160)
	}
	var how []string
	switch {
	case x.ExitCode != nil && *x.ExitCode != 0:
		how = append(how, fmt.Sprintf("exit status %d", *x.ExitCode))
	case x.Failed:
		how = append(how, "failed")
	case x.ExitCode != nil:
		how = append(how, "done")
	}
	if x.Duration > 0 {
		how = append(how, render.Duration(x.Duration))
	}
	if len(how) > 0 {
		v.Title += " (" + strings.Join(how, ", ") + ")"
	}
	v.Bad = x.Failed || x.ExitCode != nil && *x.ExitCode != 0
	var detail []string
	if strings.Contains(x.Command, "\n") || len(x.Command) > 160 {
		detail = append(detail, redact.Cut(x.Command, maxDetail/4))
	}
	if len(x.Files) > 1 || len(x.Files) == 1 && x.Files[0] != what {
		detail = append(detail, redact.Cut("touched: "+strings.Join(x.Files, ", "), maxDetail/4))
	}
	if x.Output != "" {
		detail = append(detail, redact.Tail(x.Output, maxDetail/2-100))
	}
	v.Detail = strings.Join(detail, "\n\n")
}

func (v *eventView) prompt(x wire.Prompted) {
	switch {
	case x.Failed != "":
		v.Title, v.Bad = fmt.Sprintf("Prompt %d could not be worked on: %s", x.Prompt, x.Failed), true
	case x.Done:
		v.Title = fmt.Sprintf("Prompt %d is done", x.Prompt)
	case x.Prompt == 1:
		v.Title = "The agent was given its first prompt"
	case x.Author != "":
		v.Title = fmt.Sprintf("The agent was given prompt %d, of %s", x.Prompt, x.Author)
	default:
		v.Title = fmt.Sprintf("The agent was given prompt %d, in our own words", x.Prompt)
	}
	v.Detail = x.Text
}

func usage(x wire.Usage) string {
	in := x.InputTokens + x.CacheReadTokens + x.CacheWriteTokens
	if !x.Reported && x.Cost == 0 && in+x.OutputTokens == 0 {
		return "Model call: " + x.Model + ", came to nothing"
	}
	s := fmt.Sprintf("Model call: %s, %s in", x.Model, render.Count(in, "token", "tokens"))
	if x.CacheReadTokens > 0 {
		s += fmt.Sprintf(" (%d from the cache)", x.CacheReadTokens)
	}
	s += fmt.Sprintf(", %d out", x.OutputTokens)
	switch {
	case !x.Priced:
		return s + "; no price is configured"
	case !x.Reported:
		s += "; the provider never reported it, so it is counted with " + spec.Money(x.Cost).String()
	default:
		s += "; " + spec.Money(x.Cost).String()
	}
	return s + ", " + spec.Money(x.Spent).String() + " so far"
}

func (v *eventView) egress(x wire.Egress) {
	if x.Host == "" {
		v.Title, v.Quiet = "Egress: "+x.Reason, true
		return
	}
	where := evidence.Refused{Host: x.Host, Port: x.Port}.Address()
	if x.Command != "" {
		where += " (" + redact.OneLine(x.Command, 120) + ")"
	}
	v.Title, v.Quiet, v.Bad = "Refused: "+where, x.Noise, !x.Noise
	switch {
	case x.Allowed:
		v.Title, v.Quiet, v.Bad = "Reached: "+where, true, false
		if x.Secret != "" {
			v.Title += " with the credential " + x.Secret
		}
		if x.Reason != "" {
			v.Title += ", but " + x.Reason
		}
	case x.Reason != "":
		v.Title += ", because " + x.Reason
	}
	if x.Noise {
		v.Title += "; the harness's own doing, not the agent's"
	}
}

func (v *eventView) service(x wire.ServiceState) {
	switch x.State {
	case "ready":
		v.Title = fmt.Sprintf("Service %s is ready, after %s", x.Name, render.Duration(x.After))
	case "failed":
		v.Title, v.Bad = fmt.Sprintf("Service %s failed, after %s", x.Name, render.Duration(x.After)), true
	case "stopped":
		v.Title = fmt.Sprintf("Service %s stopped, in %s", x.Name, render.Duration(x.After))
	default:
		v.Title = fmt.Sprintf("Service %s: %s", x.Name, x.State)
	}
	if x.Words != "" {
		v.Title += ": " + x.Words
	}
	v.Detail = x.Output
}

func indent(data []byte) string {
	var b bytes.Buffer
	if json.Indent(&b, data, "", "  ") != nil {
		return string(data)
	}
	return b.String()
}
