package opencode

import (
	"encoding/json"
	"strings"
	"time"

	"inspect/envs/harness/dialog"
	"inspect/envs/harness/tell"
	"inspect/envs/wire"
)

const (
	// maxCut is how many answers without an end OpenCode may get in a row: it asks
	// again at once and for ever.
	maxCut = 2
	// maxNonsense is how many answers in a row may be calls of nothing that exists.
	maxNonsense = 12
	// maxID bounds an id, in bytes; OpenCode's have some thirty. maxKnown bounds
	// how many of a kind are remembered: what comes after is not told.
	maxID    = 100
	maxKnown = 20_000
)

// book is what is known of the conversation. It takes in events and messages,
// in any order and more than once, and tells of each thing once. It is used by
// one goroutine.
type book struct {
	tell *tell.Teller
	main string          // the conversation
	ours map[string]bool // it and those of subagents

	messages map[string]*entry // answers, by id
	told     map[string]bool   // parts
	current  string            // id of the newest answer of the conversation

	// Of the answers before the current one:
	useful   int // all that said or did something
	cut      int // the last ones that ended in the middle
	nonsense int // the last ones with nothing but calls that are none

	trouble *problem // the last that was told apart from an answer
}

type entry struct {
	info
	text, tools, bad int // parts that were told; bad of the tools were none
	counted          bool
}

func newBook(t *tell.Teller, main string) *book {
	return &book{
		tell: t, main: main, ours: map[string]bool{main: true},
		messages: map[string]*entry{}, told: map[string]bool{},
	}
}

// hear takes an event.
func (b *book) hear(e event) {
	p := e.Properties
	switch e.Type {
	case "session.created":
		if b.ours[p.Info.ParentID] && p.Info.ID != "" && len(p.Info.ID) <= maxID && len(b.ours) < maxKnown {
			b.ours[p.Info.ID] = true
		}
	case "message.updated":
		b.message(p.Info)
	case "message.part.updated":
		b.part(p.Part)
	case "session.error":
		if p.SessionID == b.main && p.Error != nil {
			b.trouble = p.Error
		}
	}
}

// read takes messages that were asked for.
func (b *book) read(all []message) {
	for _, m := range all {
		if m.Info.Role != "assistant" || !b.ours[m.Info.SessionID] {
			continue
		}
		b.message(m.Info)
		for _, p := range m.Parts {
			b.part(p)
		}
	}
}

func (b *book) message(i info) {
	if i.Role != "assistant" || i.ID == "" || !b.ours[i.SessionID] {
		return
	}
	m := b.messages[i.ID]
	if m == nil {
		if len(i.ID) > maxID || len(b.messages) >= maxKnown {
			return
		}
		m = &entry{}
		b.messages[i.ID] = m
	}
	m.info = i.bounded()
	if i.SessionID == b.main && i.ID > b.current {
		// An event may show more than there was when it happened; but all of an
		// answer is told before the next one begins.
		b.count()
		b.current = i.ID
	}
}

// count counts the current answer, of which everything is known now.
func (b *book) count() {
	m := b.messages[b.current]
	if m == nil || m.counted || m.Time.Completed == 0 {
		return
	}
	m.counted = true
	cut, nonsense := 0, 0
	switch {
	case m.Error != nil:
	case m.tools == 0 && unfinished(m.Finish):
		cut = b.cut + 1
	case m.tools > 0 && m.tools == m.bad && m.text == 0:
		nonsense = b.nonsense + 1
	case m.tools > 0 || m.text > 0:
		b.useful++
		b.trouble = nil
	}
	b.cut, b.nonsense = cut, nonsense
}

// unfinished are the reasons to stop after which OpenCode goes on.
func unfinished(finish string) bool {
	return finish == "unknown" || finish == "other" || finish == "tool-calls"
}

func (b *book) part(p part) {
	m := b.messages[p.MessageID]
	if m == nil || b.told[p.ID] || p.ID == "" || len(p.ID) > maxID || len(b.told) >= maxKnown {
		return // of a prompt, or of a message that is read later
	}
	switch {
	case p.Type == "text" && p.Time.End > 0:
		b.told[p.ID] = true
		if strings.TrimSpace(p.Text) == "" || p.Synthetic {
			return
		}
		m.text++
		if p.SessionID == b.main && !bool(m.Summary) {
			b.tell.Message(p.Text)
		}
	case p.Type == "tool" && (p.State.Status == "completed" || p.State.Status == "error"):
		b.told[p.ID] = true
		switch {
		case p.State.Error == brokenOff: // its call may not even have been whole
		case p.Tool == invalid:
			m.tools, m.bad = m.tools+1, m.bad+1
		default:
			m.tools++
		}
		b.tell.Tool(toolOf(p))
	}
}

// brokenOff is the error of a call that did not come to its end.
const brokenOff = "Tool execution aborted"

// invalid is the tool that OpenCode puts in place of a call that is none.
const invalid = "invalid"

// toolOf is a finished tool call as an event.
func toolOf(p part) wire.Tool {
	var in struct {
		Command  string `json:"command"`
		Says     string `json:"description"`
		FilePath string `json:"filePath"`
		Tool     string `json:"tool"`
		Error    string `json:"error"`
	}
	_ = json.Unmarshal(p.State.Input, &in)
	var meta struct {
		Exit  *int `json:"exit"`
		Files []struct {
			FilePath string `json:"filePath"`
			MovePath string `json:"movePath"`
		} `json:"files"`
	}
	_ = json.Unmarshal(p.State.Metadata, &meta)
	t := wire.Tool{Name: p.Tool, Title: p.State.Title, Failed: p.State.Status == "error"}
	if s := p.State.Time; s.Start > 0 && s.End >= s.Start {
		t.Duration = time.Duration(s.End-s.Start) * time.Millisecond
	}
	switch p.Tool {
	case "bash":
		t.Title, t.Command, t.ExitCode, t.Output = in.Says, in.Command, meta.Exit, p.State.Output
		t.Failed = t.Failed || meta.Exit == nil || *meta.Exit != 0
	case "edit", "write":
		if !t.Failed {
			t.Files = append(t.Files, in.FilePath)
		}
	case "apply_patch", "patch":
		for _, f := range meta.Files {
			t.Files = append(t.Files, f.FilePath)
			if f.MovePath != "" {
				t.Files = append(t.Files, f.MovePath)
			}
		}
	case invalid:
		t.Name, t.Failed, t.Output = in.Tool, true, in.Error
	case "task":
		t.Output = p.State.Output
	}
	if p.State.Error != "" {
		t.Output = p.State.Error
	}
	return t
}

// verdict is what the last messages of a conversation that rests mean.
type verdict int

const (
	answered   verdict = iota // the last prompt is worked on
	unanswered                // it was not taken up, or OpenCode stopped before the end
	failed                    // the model could not be asked
)

// judge looks at the last messages of the conversation, which rests. quiet are
// messages of ours that ask for no answer. Of an answered conversation it says
// up to which message; of a failed one why.
func (b *book) judge(all []message, quiet map[string]bool) (v verdict, upTo string, why *problem) {
	b.count()
	var prompt string
	var last info
	for _, m := range all {
		switch {
		case m.Info.Role == "user" && !quiet[m.Info.ID]:
			prompt = m.Info.ID
		case m.Info.Role == "assistant":
			last = m.Info
		}
	}
	switch {
	case last.ParentID < prompt, prompt == "" && last.ID == "":
		return unanswered, "", b.trouble
	case last.Error != nil:
		return failed, "", last.Error
	case last.Finish == "" || last.Time.Completed == 0 || unfinished(last.Finish):
		return unanswered, "", b.trouble
	}
	return answered, last.ParentID, nil
}

// curable tells whether asking again may help.
func (p *problem) curable() bool {
	switch p.Name {
	case "ProviderAuthError", "ContextOverflowError", "ContentFilterError", "StructuredOutputError":
		return false
	}
	return !dialog.Final(p.Data.Status)
}

// words are for people.
func (p *problem) words() string {
	if p.Data.Message != "" {
		return plain(p.Data.Message)
	}
	return p.Name
}

// plain takes the words out of an error that is passed on as JSON, and leaves
// out what is meant for the program's authors.
func plain(s string) string {
	var e struct {
		Message string `json:"message"`
	}
	if json.Unmarshal([]byte(s), &e) == nil && e.Message != "" {
		s = e.Message
	}
	s, _, _ = strings.Cut(s, " For more information, pass `verbose")
	s, _, _ = strings.Cut(s, "\n    at ")
	return s
}
