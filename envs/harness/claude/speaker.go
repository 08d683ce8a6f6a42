package claude

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"inspect/envs/harness/dialog"
	"inspect/envs/wire"
)

// given is a prompt the program has been told.
type given struct {
	*dialog.Prompt
	reached bool // the model has it in its conversation
}

// call is a tool call that has no result yet.
type call struct {
	name  string
	input input
	begun time.Time
}

// maxCalls bounds the tool calls that have no result yet.
const maxCalls = 100

// input are the arguments of a tool that we can tell something of.
type input struct {
	Command     string `json:"command"`
	Description string `json:"description"`
	FilePath    string `json:"file_path"`
	Notebook    string `json:"notebook_path"`
	Pattern     string `json:"pattern"`
}

// speaker speaks the stream-json protocol.
type speaker struct {
	dialog.Talk

	open    []*given
	notices int  // told so far
	noticed bool // one reached the model in the running turn
	calls   map[string]call
	items   int    // that the running turn has brought
	trouble string // the last that people were told of
}

// Begin has nothing to say: the program waits for a prompt.
func (s *speaker) Begin() {}

// The ids by which the program tells that a prompt reached the model.
func (g *given) id() string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", g.N) }

func (s *speaker) user(text, id string) {
	s.Send(map[string]any{
		"type": "user", "uuid": id, "message": map[string]any{"role": "user", "content": text},
	})
}

// Give tells the program a prompt. It queues those that come while it works.
func (s *speaker) Give(p *dialog.Prompt) {
	g := &given{Prompt: p}
	s.open = append(s.open, g)
	s.user(p.Text, g.id())
}

// Notify is a prompt that nobody waits for.
func (s *speaker) Notify(text string, told func(bool)) {
	s.notices++
	s.user(text, fmt.Sprintf("%s%012d", noticeID, s.notices))
	told(true)
}

const noticeID = "00000000-0000-4000-9000-"

// reached notes that a prompt or a notice is in the model's conversation.
func (s *speaker) reached(id string) {
	if strings.HasPrefix(id, noticeID) {
		s.noticed = true
	}
	for _, g := range s.open {
		if g.id() == id {
			g.reached = true
		}
	}
}

// Hear takes a line of the program's.
func (s *speaker) Hear(line []byte) {
	var m struct {
		Type    string `json:"type"`
		Subtype string `json:"subtype"`
		UUID    string `json:"uuid"`
		Replay  bool   `json:"isReplay"`
		Parent  string `json:"parent_tool_use_id"` // set: a subagent's
		APIFail bool   `json:"is_api_error_message"`
		Message struct {
			Content json.RawMessage `json:"content"`
		} `json:"message"`

		// of a control request
		RequestID string `json:"request_id"`

		// of a result
		IsError bool     `json:"is_error"`
		Result  string   `json:"result"`
		Errors  []string `json:"errors"`
		Reason  string   `json:"terminal_reason"`

		// of a retry
		Status *int            `json:"error_status"`
		Error  json.RawMessage `json:"error"`
	}
	if json.Unmarshal(line, &m) != nil {
		return // an odd message is one we do not know
	}
	switch m.Type {
	case "control_request":
		s.Send(map[string]any{"type": "control_response", "response": map[string]any{
			"subtype": "error", "request_id": m.RequestID, "error": "nobody is here to answer; go on without",
		}})
	case "system":
		if m.Subtype == "api_retry" {
			s.retry(m.Status, m.Error)
		}
	case "assistant":
		s.assistant(m.Message.Content, m.Parent != "", m.APIFail)
	case "user":
		if m.Replay {
			s.reached(m.UUID)
			return
		}
		s.results(m.Message.Content)
	case "result":
		words := strings.TrimSpace(m.Result)
		if words == "" {
			words = strings.Join(m.Errors, "; ")
		}
		s.result(m.Subtype, m.IsError, words)
	}
}

func (s *speaker) retry(status *int, why json.RawMessage) {
	var words string
	_ = json.Unmarshal(why, &words) // it may be anything
	switch {
	case status != nil:
		words = strings.TrimSpace("status " + strconv.Itoa(*status) + " " + words)
	case words == "" || words == "unknown":
		words = "the connection broke"
	}
	if status != nil && dialog.Final(*status) {
		s.Fail("the model refused: " + words) // instead of minutes of trying again
		return
	}
	if words != s.trouble {
		s.trouble = words
		s.Tell().Note("The model could not be asked; Claude Code tries again: " + words)
	}
}

// part is one of a message's.
type part struct {
	Type  string          `json:"type"`
	Text  string          `json:"text"`
	ID    string          `json:"id"`
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`

	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
	IsError   bool            `json:"is_error"`
}

// parts reads a message's content, which may be a plain string.
func parts(raw json.RawMessage) (out []part) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []part{{Type: "text", Text: text}}
	}
	_ = json.Unmarshal(raw, &out) // something else has no parts
	return out
}

func (s *speaker) assistant(content json.RawMessage, subagent, failure bool) {
	for _, p := range parts(content) {
		switch p.Type {
		case "text":
			if subagent || failure || strings.TrimSpace(p.Text) == "" {
				continue // for the agent; the result has a failure's words
			}
			s.items++
			s.Tell().Message(p.Text)
		case "tool_use":
			c := call{name: p.Name, begun: s.Clock().Now()}
			_ = json.Unmarshal(p.Input, &c.input) // arguments may be nonsense
			s.remember(p.ID, c)
		}
	}
}

// remember keeps a call until its result comes.
func (s *speaker) remember(id string, c call) {
	if len(s.calls) >= maxCalls {
		clear(s.calls) // Claude Code itself never leaves so many without one
	}
	s.calls[id] = c
}

// results tells finished tool calls.
func (s *speaker) results(content json.RawMessage) {
	for _, p := range parts(content) {
		c, ok := s.calls[p.ToolUseID]
		if p.Type != "tool_result" || !ok {
			continue
		}
		delete(s.calls, p.ToolUseID)
		s.items++
		var out strings.Builder
		for i, q := range parts(p.Content) {
			if i > 0 {
				out.WriteByte('\n')
			}
			out.WriteString(q.Text)
		}
		s.tool(c, out.String(), p.IsError)
	}
}

func (s *speaker) tool(c call, output string, failed bool) {
	t := wire.Tool{
		Name: c.name, Failed: failed, Output: output,
		Duration: s.Clock().Now().Sub(c.begun),
	}
	switch c.name {
	case "Bash":
		t.Title, t.Command = c.input.Description, c.input.Command
		t.ExitCode, t.Output = exitCode(output, failed)
	case "Edit", "Write", "MultiEdit", "NotebookEdit":
		for _, f := range []string{c.input.FilePath, c.input.Notebook} {
			if f != "" {
				t.Files = append(t.Files, f)
			}
		}
	default:
		for _, what := range []string{c.input.Description, c.input.FilePath, c.input.Pattern} {
			if t.Title == "" {
				t.Title = what
			}
		}
	}
	s.Tell().Tool(t)
}

// exitCode reads a command's status from what the tool says of it; nil: it did
// not run, or nobody knows.
func exitCode(output string, failed bool) (*int, string) {
	if !failed {
		zero := 0
		return &zero, output
	}
	first, rest, _ := strings.Cut(output, "\n")
	if n, ok := strings.CutPrefix(first, "Exit code "); ok {
		if code, err := strconv.Atoi(n); err == nil {
			return &code, rest
		}
	}
	return nil, output
}

// result ends a turn: what had reached the model by now is worked on.
func (s *speaker) result(subtype string, failed bool, words string) {
	items, noticed := s.items, s.noticed
	s.items, s.noticed, s.trouble = 0, false, ""
	var done, open []*given
	for _, g := range s.open {
		if g.reached {
			done = append(done, g)
		} else {
			open = append(open, g)
		}
	}
	if len(done) == 0 && len(open) > 0 && !noticed {
		// A turn answers something; it did not say what.
		done, open = open[:1], open[1:]
	}
	switch {
	case failed || subtype != "success":
		if words == "" {
			words = "Claude Code could not finish its turn: " + subtype
		}
		s.Fail(words)
	case items == 0 && len(done) > 0:
		s.Fail("the model answered nothing")
	default:
		s.open = open
		for _, g := range done {
			s.Done(g.Prompt)
		}
	}
}
