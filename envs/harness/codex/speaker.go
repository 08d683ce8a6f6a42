package codex

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"inspect/envs/harness"
	"inspect/envs/harness/dialog"
	"inspect/envs/wire"
)

// unwanted are notifications that would be many and tell nothing we use.
var unwanted = []string{
	"item/agentMessage/delta", "item/plan/delta", "item/commandExecution/outputDelta", "item/fileChange/outputDelta",
	"item/fileChange/patchUpdated", "item/reasoning/summaryTextDelta", "item/reasoning/summaryPartAdded",
	"item/reasoning/textDelta", "item/mcpToolCall/progress", "thread/tokenUsage/updated", "account/rateLimits/updated",
	"thread/status/changed", "turn/diff/updated", "turn/plan/updated", "thread/started",
}

// message is one line in either direction.
type message struct {
	ID     any             `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *failure        `json:"error,omitempty"`
}

type failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// reply answers a request of ours.
type reply struct {
	result json.RawMessage
	err    *failure
}

// given is a prompt on its way.
type given struct {
	*dialog.Prompt
	reached bool // the model has it in its conversation
	late    bool // it could not be put into a running turn
}

func (g given) id() string { return fmt.Sprintf("prompt-%d", g.N) }

type note struct {
	text string
	told func(bool)
}

// speaker speaks the app-server's protocol: JSON-RPC without its version.
type speaker struct {
	dialog.Talk
	in harness.Input

	calls   map[int]func(reply)
	lastID  int
	greeted bool

	asked  bool // for a thread
	thread string
	turn   string // that runs; empty: none, or it is not known yet
	begun  bool   // a turn was asked for and has not ended

	queue   []*given // not handed on yet
	current []*given // of the running turn
	notes   []note   // for the running turn
	items   int      // that the running turn has brought
	trouble string   // the last that people were told of
}

func (s *speaker) call(method string, params any, then func(reply)) {
	s.lastID++
	s.calls[s.lastID] = then
	s.Send(map[string]any{"id": s.lastID, "method": method, "params": params})
}

// Begin greets.
func (s *speaker) Begin() {
	s.call("initialize", map[string]any{
		"clientInfo":   map[string]any{"name": "inspect", "title": "Inspect", "version": "1"},
		"capabilities": map[string]any{"optOutNotificationMethods": unwanted},
	}, func(r reply) {
		if r.err != nil {
			s.Fail("Codex refused to begin: " + r.err.Message)
			return
		}
		s.Send(map[string]any{"method": "initialized"})
		s.greeted = true
		s.Ready()
		s.pump()
	})
}

// Give queues a prompt.
func (s *speaker) Give(p *dialog.Prompt) {
	s.queue = append(s.queue, &given{Prompt: p})
	s.pump()
}

// Notify puts words into the running turn.
func (s *speaker) Notify(text string, told func(bool)) {
	if !s.begun && len(s.queue) == 0 {
		told(false)
		return
	}
	s.notes = append(s.notes, note{text, told})
	s.pump()
}

// pump hands on what can be handed on now.
func (s *speaker) pump() {
	switch {
	case !s.greeted || len(s.queue) == 0 && len(s.notes) == 0:
	case s.thread == "":
		s.startThread()
	case !s.begun:
		s.startTurn()
	case s.turn != "":
		s.steer()
	}
}

func (s *speaker) startThread() {
	if s.asked {
		return
	}
	s.asked = true
	s.call("thread/start", map[string]any{
		"cwd": s.in.Dir, "ephemeral": true, "model": s.in.Model, "modelProvider": "inspect",
		"approvalPolicy": "never", "sandbox": "danger-full-access",
	}, func(r reply) {
		var got struct {
			Thread struct {
				ID string `json:"id"`
			} `json:"thread"`
		}
		if r.err != nil {
			s.Fail("Codex could not begin a conversation: " + r.err.Message)
			return
		}
		if err := json.Unmarshal(r.result, &got); err != nil || got.Thread.ID == "" {
			s.Fail("Codex answered something unknown to the begin of a conversation; is it another version than Inspect was made for?")
			return
		}
		s.thread = got.Thread.ID
		s.pump()
	})
}

func words(text string) []any { return []any{map[string]any{"type": "text", "text": text}} }

// startTurn hands the next prompt on as a turn.
func (s *speaker) startTurn() {
	if len(s.queue) == 0 {
		return
	}
	p := s.queue[0]
	s.queue, s.current = s.queue[1:], []*given{p}
	p.reached = true // it is what the turn begins with
	s.begun, s.turn, s.items = true, "", 0
	s.call("turn/start", map[string]any{
		"threadId": s.thread, "input": words(p.Text), "clientUserMessageId": p.id(),
	}, func(r reply) {
		var got struct {
			Turn struct {
				ID string `json:"id"`
			} `json:"turn"`
		}
		if r.err != nil {
			s.Fail("Codex did not take the prompt: " + r.err.Message)
			return
		}
		if err := json.Unmarshal(r.result, &got); err != nil || got.Turn.ID == "" {
			s.Fail("Codex answered something unknown to a prompt; is it another version than Inspect was made for?")
			return
		}
		if s.begun && s.turn == "" {
			s.turn = got.Turn.ID
		}
		s.pump()
	})
}

// steer puts what waits into the running turn.
func (s *speaker) steer() {
	var stay []*given
	for _, p := range s.queue {
		if p.late {
			stay = append(stay, p)
			continue
		}
		s.current = append(s.current, p)
		s.call("turn/steer", map[string]any{
			"threadId": s.thread, "expectedTurnId": s.turn, "input": words(p.Text), "clientUserMessageId": p.id(),
		}, func(r reply) {
			if r.err == nil || p.reached {
				return
			}
			// The turn ended meanwhile: it is the next one's.
			for i, c := range s.current {
				if c == p {
					s.current = append(s.current[:i], s.current[i+1:]...)
					s.again(p)
					break
				}
			}
			s.pump()
		})
	}
	s.queue = stay
	for _, n := range s.notes {
		s.call("turn/steer", map[string]any{
			"threadId": s.thread, "expectedTurnId": s.turn, "input": words(n.text),
		}, func(r reply) { n.told(r.err == nil) })
	}
	s.notes = nil
}

// again puts a prompt back to where it stands by its number.
func (s *speaker) again(p *given) {
	p.late, p.reached = true, false
	at := 0
	for at < len(s.queue) && s.queue[at].N < p.N {
		at++
	}
	s.queue = append(s.queue[:at], append([]*given{p}, s.queue[at:]...)...)
}

// Hear takes a line of the program's.
func (s *speaker) Hear(line []byte) {
	var m message
	if json.Unmarshal(line, &m) != nil {
		return // an odd message is one we do not know
	}
	switch {
	case m.Method != "" && m.ID != nil:
		// It asks us for something: an approval, an answer. Nobody is here.
		s.Send(message{ID: m.ID, Error: &failure{-32601, "nobody is here to answer; go on without"}})
	case m.Method != "":
		s.notification(m.Method, m.Params)
	case m.ID != nil:
		n, ok := m.ID.(float64)
		then := s.calls[int(n)]
		if !ok || then == nil {
			return
		}
		delete(s.calls, int(n))
		then(reply{m.Result, m.Error})
	}
}

func (s *speaker) notification(method string, params json.RawMessage) {
	var p struct {
		ThreadID  string          `json:"threadId"`
		TurnID    string          `json:"turnId"`
		Item      json.RawMessage `json:"item"`
		Turn      turn            `json:"turn"`
		Error     turnError       `json:"error"`
		WillRetry bool            `json:"willRetry"`
	}
	if json.Unmarshal(params, &p) != nil || s.thread == "" || p.ThreadID != s.thread {
		return
	}
	switch method {
	case "turn/started":
		if s.begun && s.turn == "" {
			s.turn = p.Turn.ID
			s.pump()
		}
	case "item/completed":
		s.item(p.Item)
	case "error":
		words := p.Error.words()
		switch {
		case !p.WillRetry: // the turn's end says it
		case dialog.Final(p.Error.status()):
			s.Fail(words) // instead of minutes of trying again
		case words != s.trouble:
			s.trouble = words
			s.Tell().Note("The model could not be asked; Codex tries again: " + words)
		}
	case "turn/completed":
		s.turnOver(p.Turn)
	}
}

type turn struct {
	ID     string    `json:"id"`
	Status string    `json:"status"` // "completed", "interrupted", "failed"
	Error  turnError `json:"error"`
}

type turnError struct {
	Message string          `json:"message"`
	Details string          `json:"additionalDetails"`
	Info    json.RawMessage `json:"codexErrorInfo"` // a word, or an object named by one
}

// status is the HTTP status of the model's answer; 0: there was none.
func (e turnError) status() int {
	var info map[string]struct {
		Status int `json:"httpStatusCode"`
	}
	_ = json.Unmarshal(e.Info, &info) // a word has none
	for _, i := range info {
		return i.Status
	}
	return 0
}

// words are the error's; a provider's own are often in a body within.
func (e turnError) words() string {
	text := strings.TrimSpace(e.Message)
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if strings.HasPrefix(text, "{") && json.Unmarshal([]byte(text), &body) == nil && body.Error.Message != "" {
		text = body.Error.Message
	}
	switch {
	case e.Details == "":
	case strings.HasPrefix(text, "Reconnecting"), text == "":
		text = e.Details
	default:
		text += ": " + e.Details
	}
	text, _, _ = strings.Cut(text, ", url: ") // which is the gateway's, inside
	return text
}

func (s *speaker) turnOver(t turn) {
	if !s.begun || s.turn != "" && t.ID != s.turn {
		return
	}
	current, items := s.current, s.items
	s.begun, s.turn, s.current, s.trouble = false, "", nil, ""
	for _, n := range s.notes {
		n.told(false)
	}
	s.notes = nil
	switch {
	case t.Status == "completed" && items == 0:
		s.Fail("the model answered nothing")
	case t.Status == "completed":
		for _, p := range current {
			if !p.reached { // taken too late to be seen
				s.again(p)
			}
		}
		for _, p := range current {
			if p.reached {
				s.Done(p.Prompt)
			}
		}
		s.pump()
	case t.Status == "interrupted":
		s.Fail("Codex broke off its turn")
	default:
		words := t.Error.words()
		if words == "" {
			words = "Codex could not finish its turn and did not say why"
		}
		s.Fail(words)
	}
}

// item tells what the agent has done.
func (s *speaker) item(raw json.RawMessage) {
	var it struct {
		Type     string `json:"type"`
		ClientID string `json:"clientId"`
		Text     string `json:"text"`

		Command string `json:"command"`
		Output  string `json:"aggregatedOutput"`
		Exit    *int   `json:"exitCode"`
		Millis  int64  `json:"durationMs"`
		Status  string `json:"status"`

		Changes []struct {
			Path string `json:"path"`
		} `json:"changes"`

		Server string          `json:"server"`
		Tool   string          `json:"tool"`
		Query  string          `json:"query"`
		Path   string          `json:"path"`
		Error  json.RawMessage `json:"error"`
	}
	if json.Unmarshal(raw, &it) != nil {
		return
	}
	failed := it.Status == "failed" || it.Status == "declined"
	switch it.Type {
	case "userMessage":
		for _, p := range s.current {
			if it.ClientID == p.id() {
				p.reached = true
			}
		}
		return
	case "agentMessage":
		if strings.TrimSpace(it.Text) == "" {
			return
		}
		s.Tell().Message(it.Text)
	case "commandExecution":
		s.Tell().Tool(wire.Tool{
			Name: "exec_command", Command: shellLine(it.Command), ExitCode: it.Exit, Failed: failed,
			Output: it.Output, Duration: time.Duration(max(it.Millis, 0)) * time.Millisecond,
		})
	case "fileChange":
		var files []string
		for _, c := range it.Changes {
			files = append(files, c.Path)
		}
		s.Tell().Tool(wire.Tool{Name: "apply_patch", Title: changed(len(files)), Files: files, Failed: failed})
	case "mcpToolCall", "dynamicToolCall":
		s.Tell().Tool(wire.Tool{Name: strings.TrimPrefix(it.Server+"."+it.Tool, "."), Failed: failed})
	case "imageView":
		s.Tell().Tool(wire.Tool{Name: "view_image", Title: it.Path})
	case "webSearch":
		s.Tell().Tool(wire.Tool{Name: "web_search", Title: it.Query})
	default: // reasoning, plans and what may be added
		return
	}
	s.items++
}

func changed(n int) string {
	if n == 1 {
		return "1 file changed"
	}
	return fmt.Sprintf("%d files changed", n)
}

// shellLine is the line that a shell was given, if joined is `SHELL -c LINE` as
// Codex joins it; else joined.
func shellLine(joined string) string {
	argv, ok := split(joined)
	if ok && len(argv) == 3 && (argv[1] == "-c" || argv[1] == "-lc") {
		return argv[2]
	}
	return joined
}

// split is what a shell would make of s if it has nothing in it but quotes.
func split(s string) (argv []string, ok bool) {
	var word strings.Builder
	inWord := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case ' ':
			if inWord {
				argv = append(argv, word.String())
				word.Reset()
				inWord = false
			}
		case '\'':
			end := strings.IndexByte(s[i+1:], '\'')
			if end < 0 {
				return nil, false
			}
			word.WriteString(s[i+1 : i+1+end])
			i += 1 + end
			inWord = true
		case '"':
			inWord = true
			closed := false
			for i++; i < len(s); i++ {
				if s[i] == '"' {
					closed = true
					break
				}
				if s[i] == '\\' && i+1 < len(s) && strings.IndexByte("\\\"$`\n", s[i+1]) >= 0 {
					i++
				}
				word.WriteByte(s[i])
			}
			if !closed {
				return nil, false
			}
		case '\\':
			if i++; i < len(s) {
				word.WriteByte(s[i])
				inWord = true
			}
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if inWord {
		argv = append(argv, word.String())
	}
	return argv, true
}
