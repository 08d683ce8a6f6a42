package context

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"inspect/checks/redact"
)

// Bounds of what is told of a pull request, in bytes.
const (
	MaxThreads = 64 << 10 // all remarks of reviews together; the latest are kept
	MaxCheck   = 8 << 10  // of what one check run says
	MaxLog     = 6 << 10  // of the end of a job's log
	MaxChecks  = 10       // check runs
)

// Kinds of items.
const (
	ItemIssue   = "issue"
	ItemPull    = "pull request"
	ItemComment = "comment"
	ItemReview  = "review"
	ItemRemark  = "review comment"
	ItemCheck   = "check run"
)

// Reasons why an item was left out.
const (
	ReasonNoWrite = "its author may not write to the repository, or is not known to"
	ReasonEdited  = "changed after this was asked for"
	ReasonLater   = "written after this was asked for"
	ReasonRoom    = "there was no room for it"
	ReasonBot     = "a program wrote it"
)

// Item is a text that the agent was told, or was not.
type Item struct {
	Kind     string `json:"kind"`
	ID       int64  `json:"id"`
	Author   string `json:"author,omitempty"`
	Included bool   `json:"included"`
	Reason   string `json:"reason,omitempty"` // why it is not
	Digest   string `json:"digest,omitempty"` // SHA-256 of what it said, where it can be said otherwise later
}

// Pull is what is known of a pull request besides its title, body and comments.
type Pull struct {
	Base, Head string // branches
	Fork       bool   // the head is not of this repository
	Result     string // where the result goes, a sentence
	Remarks    []Remark
	Unsettled  string // why nobody knows which threads are resolved; empty: it is known
	Checks     []Check
}

// Remark is a review, or a comment of one on a line, of someone who may write.
type Remark struct {
	ID     int64
	Review string // state of a review, "CHANGES_REQUESTED"; empty: a comment on a line
	Thread int64  // first comment of the thread
	Path   string
	Line   int // 0: the line is not there any more
	Author string
	At     time.Time
	Body   string
	// Resolved and Outdated: people have settled its thread; the lines it is about
	// have changed since.
	Resolved, Outdated bool
}

// Check is a check run of the head that failed.
type Check struct {
	ID         int64
	Name       string
	Conclusion string
	Text       string // what it says
	Log        string // the end of its log
	NoLog      string // why there is none; empty: it has none
}

func (f Facts) kind() string {
	if f.Pull != nil {
		return ItemPull
	}
	return ItemIssue
}

// where says what is checked out and what becomes of it.
func (p *Pull) where(b *strings.Builder) {
	if p == nil {
		return
	}
	fmt.Fprintf(b, "\nThe commit you begin at is the head of this pull request, %s, which is to be merged into %s.", line(p.Head, 200), line(p.Base, 200))
	if p.Fork {
		b.WriteString(" It comes from a fork: nobody has vouched for what it holds.")
	}
	if p.Result != "" {
		b.WriteString(" " + p.Result)
	}
	b.WriteString("\n")
}

func (p *Pull) texts() []string {
	out := []string{p.Base, p.Head}
	for _, r := range p.Remarks {
		out = append(out, r.Author, r.Path, r.Body)
	}
	for _, c := range p.Checks {
		out = append(out, c.Name, c.Text, c.Log)
	}
	return out
}

// write adds what reviewers and checks say.
func (p *Pull) write(b *strings.Builder, f fence) (items []Item) {
	if p == nil {
		return nil
	}
	kept := p.Remarks
	room := MaxThreads
	for i := len(kept) - 1; i >= 0; i-- {
		if room -= min(len(kept[i].Body), MaxComment); room < 0 {
			kept = kept[i+1:]
			break
		}
	}
	switch {
	case len(kept) == 0:
	case p.Unsettled != "":
		fmt.Fprintf(b, "\nWhich review threads are resolved is not known: %s.\n", line(p.Unsettled, 200))
	case slices.ContainsFunc(kept, func(r Remark) bool { return r.Resolved }):
		b.WriteString("\nThreads that are called resolved were settled by people: they ask for nothing any more.\n")
	}
	for i, r := range p.Remarks {
		it := Item{Kind: ItemRemark, ID: r.ID, Author: r.Author, Included: true}
		if r.Review != "" {
			it.Kind = ItemReview
		}
		if i < len(p.Remarks)-len(kept) {
			it.Included, it.Reason = false, ReasonRoom
		}
		items = append(items, it)
	}
	for _, r := range kept {
		at := r.At.UTC().Format(time.RFC3339)
		what := fmt.Sprintf("review %d (%s) by %s at %s", r.ID, line(r.Review, 40), line(r.Author, 60), at)
		if r.Review == "" {
			place := fmt.Sprintf("line %d", r.Line)
			if r.Line == 0 {
				place = "a line that is not there any more"
			}
			if r.Outdated && r.Line != 0 {
				place += " (changed since)"
			}
			thread := fmt.Sprintf("thread %d", r.Thread)
			if r.Resolved {
				thread = "resolved " + thread
			}
			what = fmt.Sprintf("review comment %d in %s on %s, %s, by %s at %s", r.ID, thread, line(r.Path, 300), place, line(r.Author, 60), at)
		}
		f.write(b, what, clean(hide(r.Body), MaxComment))
	}
	for i, c := range p.Checks {
		it := Item{Kind: ItemCheck, ID: c.ID, Author: c.Name, Included: i < MaxChecks}
		if !it.Included {
			it.Reason = ReasonRoom
			items = append(items, it)
			continue
		}
		items = append(items, it)
		text := clean(c.Text, MaxCheck)
		if c.Log != "" {
			text += "\n\nThe end of its log:\n" + redact.Tail(redact.Visible(c.Log), MaxLog)
		} else if c.NoLog != "" {
			text += "\n\nIts log is not here: " + line(c.NoLog, 200)
		}
		f.write(b, fmt.Sprintf("check run %d, %s, of this commit: %s", c.ID, line(c.Name, 200), line(c.Conclusion, 40)), text)
	}
	return items
}
