package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"inspect/checks/redact"
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
			v.Title = fmt.Sprintf("Work taken and uploaded: turn %d, commit %.12s, %s", x.Turn, x.Tip, size(x.Bytes))
			v.Detail = "sha256 " + x.SHA256
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
			v.Title = fmt.Sprintf("Restored a clone to %s, in %s", x.Purpose, took(x.Duration))
			v.Detail = fmt.Sprintf("snapshot %s of commit %s\nstore %s\nsandbox %s\nlimits %s", x.Snapshot, x.Commit, x.Store, x.Tier, x.Limits)
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
			Generation     int
			Node, Snapshot string
		}
		if read(&x) {
			v.Title = fmt.Sprintf("Attempt %d on node %s from snapshot %s", x.Generation, x.Node, x.Snapshot)
		}
	case scheduler.EventStop:
		var x struct{ Who, Words string }
		if read(&x) {
			v.Title, v.Detail = "Asked to stop by "+x.Who, x.Words
		}
	default:
		fits = false
	}
	if !fits {
		v.Title, v.Detail = v.Kind, indent(data)
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
	title = fmt.Sprintf("%s: %s (%s, %s)", x.Step, redact.OneLine(x.Line, 160), result, took(x.Duration))
	detail = x.Output
	if strings.Contains(x.Line, "\n") || len(x.Line) > 160 {
		detail = x.Line + "\n\n" + detail
	}
	return title, detail, x.ExitCode != 0 || x.Error != ""
}

func indent(data []byte) string {
	var b bytes.Buffer
	if json.Indent(&b, data, "", "  ") != nil {
		return string(data)
	}
	return b.String()
}
