package comment

import (
	"fmt"
	"strings"
	"time"

	"inspect/checks/evidence"
	"inspect/checks/redact"
	"inspect/checks/render"
)

// MaxBytes of a comment. GitHub refuses a body of more than 65,536 characters;
// the room left is for what the outbound funnel adds.
const MaxBytes = 60_000

// Facts are what is known of a session when its comment is written. Zero
// values are left out.
type Facts struct {
	Session    string // id
	SessionURL string // its page

	State      string         // as in the sessions table: queued, placing, ...
	Reason     string         // code of an end, "verify_failed"
	Words      string         // the same for people, plain text
	Queue      render.Waiting // for a machine
	LastAction string         // what the agent or verification did last, plain text, e.g. a command line

	Requester  string // login; shown without a mention
	Harness    string // label of the agent program, e.g. "scripted"
	Model      string // of the agent, as the gateway knows it
	SpecSource string // ".inspect.yml" or "detected from go.mod"
	BaseBranch string
	BaseSHA    string
	OnHead     bool // the result goes onto the pull request that was worked on
	Generation int  // attempts so far

	// Spent of Budget while the session goes on, and at its end what the model
	// calls came to. Money is in billionths of a US dollar.
	Spent, Budget int64
	Calls         evidence.Model

	Refused []evidence.Refused // what the agent or verification could not reach
	More    int64              // further ones

	Waiting []Approval // for an answer
	Allowed []Approval // what people allowed this session

	Snapshot *Snapshot
	Verify   []Verify
	// Stands are what fails of a delivered result and fails on the base in the
	// same way; NoNew says that this is all that fails.
	NoNew    bool
	Stands   []string
	Receipt  *Receipt
	Kept     []Link // where the work of a session that was not delivered is
	Evidence string // address of the evidence
	Check    string // address of the check run

	Created  time.Time
	Finished time.Time // zero while it goes on
}

// Snapshot the session was restored from.
type Snapshot struct {
	Commit  string
	Age     time.Duration
	Drift   int    // commits between the snapshot and the base; -1: not known
	Note    string // why it was taken though it is stale, plain text
	Restore time.Duration
	Sandbox string // tier and version
	Limits  string // "enforced" or "best effort: why"
}

// Verify is one verification command as it went in the second clone.
type Verify struct {
	Name   string
	Run    string
	Passed bool
	Words  string // "42 tests passed", "exit status 1", plain text
}

// Receipt of a delivery, as read back from GitHub.
type Receipt struct {
	Branch      string
	HeadSHA     string
	PullRequest int
	URL         string
	Evidence    string   // digest
	Chain       string   // head of the event chain
	Events      int64    // length of the event chain
	Withheld    []string // paths GitHub refuses us; a patch of them is in the evidence
	Signed      bool     // GitHub made the commit, and says that its signature is verified
	Reviewers   []string // who was asked for a review; teams as org/slug
	Unasked     []string // who could not be asked, each with a reason
}

// Link is a named address.
type Link struct {
	Label string
	URL   string
}

// Marker is the hidden first line by which a session's comment is found again.
func Marker(session string) string { return "<!-- inspect:session=" + ident(session) + " -->" }

// Render writes the one comment of a session.
func Render(f Facts) string {
	var b strings.Builder
	b.WriteString(Marker(f.Session) + "\n")
	b.WriteString("**" + title(f) + "**" + clause(f) + "\n")
	if ended(f.State) && f.State != "delivered" && f.Words != "" {
		b.WriteString("\n" + paragraph(f.Words) + "\n")
	}
	writeApprovals(&b, f)
	writeReceipt(&b, f)
	writeStands(&b, f)
	writeVerify(&b, f.Verify)
	writeKept(&b, f)
	writeRefused(&b, f)
	writeCost(&b, f)
	writeProvenance(&b, f)
	writeFooter(&b, f)
	return redact.Cut(b.String(), MaxBytes)
}

// title of a state, without a full stop.
func title(f Facts) string {
	state := f.State
	if f.Reason == "patch" {
		return "Done: the result is a patch, nothing was pushed"
	}
	if t := render.StateOf(state).Title; t != "" {
		return t
	}
	return "In state " + redact.Code(state)
}

func ended(state string) bool { return render.StateOf(state).Ended }

// clause completes the first line.
func clause(f Facts) string {
	switch {
	case f.Reason == "patch":
	case f.State == "delivered" && f.Receipt != nil && f.OnHead:
		return fmt.Sprintf(": pushed onto pull request %s.", link(fmt.Sprintf("#%d", f.Receipt.PullRequest), f.Receipt.URL))
	case f.State == "delivered" && f.Receipt != nil:
		return fmt.Sprintf(": draft pull request %s.", link(fmt.Sprintf("#%d", f.Receipt.PullRequest), f.Receipt.URL))
	case (f.State == "queued" || f.State == "placing") && f.Queue.Reason != "":
		return ": " + sentence(f.Queue.String())
	case f.State == "needs_approval" && f.Words != "":
		return ": " + sentence(f.Words)
	case ended(f.State) && f.Reason != "":
		return " (" + redact.Code(f.Reason) + ")."
	case !ended(f.State) && f.LastAction != "":
		return ", last: " + redact.Code(redact.Cut(f.LastAction, 160))
	}
	return "."
}

func writeReceipt(b *strings.Builder, f Facts) {
	r := f.Receipt
	if r == nil {
		return
	}
	fmt.Fprintf(b, "\nPushed to %s, head %s as read back from GitHub.", redact.Code(r.Branch), redact.Code(short(r.HeadSHA)))
	if r.Signed {
		b.WriteString(" GitHub signed it, and says that the signature is verified.")
	}
	b.WriteString("\n")
	if len(r.Reviewers) > 0 {
		fmt.Fprintf(b, "\nAsked for a review, as code owners: %s.\n", codes(r.Reviewers))
	}
	if len(r.Unasked) > 0 {
		fmt.Fprintf(b, "\nCode owners who could not be asked: %s.\n", codes(r.Unasked))
	}
	if len(r.Withheld) > 0 {
		b.WriteString("\nNot pushed, because GitHub takes these paths only from people; the evidence holds them as a patch:\n")
		for i, p := range r.Withheld {
			if i == 20 {
				fmt.Fprintf(b, "- and %d more\n", len(r.Withheld)-i)
				break
			}
			fmt.Fprintf(b, "- %s\n", redact.Code(redact.Cut(p, 200)))
		}
	}
}

// codes lists words as code.
func codes(list []string) string {
	var out []string
	for i, w := range list {
		if i == 20 {
			out = append(out, fmt.Sprintf("and %d more", len(list)-i))
			break
		}
		out = append(out, redact.Code(redact.Cut(w, 300)))
	}
	return strings.Join(out, ", ")
}

// writeStands says why a delivered result is no success.
func writeStands(b *strings.Builder, f Facts) {
	if f.State != "delivered" || !f.NoNew {
		return
	}
	const most = 5
	fmt.Fprintf(b, "\n**No new failures, but no success either**: %s on the base in the same way: ", render.Count(len(f.Stands), "thing fails, and does so", "things fail, and do so"))
	for i, s := range f.Stands[:min(len(f.Stands), most)] {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(plain(redact.Cut(s, 200)))
	}
	if n := len(f.Stands) - most; n > 0 {
		fmt.Fprintf(b, "; and %d more", n)
	}
	b.WriteString(".\n")
}

func writeVerify(b *strings.Builder, verify []Verify) {
	if len(verify) == 0 {
		return
	}
	b.WriteString("\n| verification | command | result |\n|---|---|---|\n")
	for i, v := range verify {
		if i == 30 {
			fmt.Fprintf(b, "| and %d more | | |\n", len(verify)-i)
			break
		}
		result := "**failed**"
		if v.Passed {
			result = "passed"
		}
		if v.Words != "" {
			result += ": " + plain(redact.Cut(v.Words, 300))
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", plain(redact.Cut(v.Name, 100)), code(v.Run, 200), result)
	}
}

func writeKept(b *strings.Builder, f Facts) {
	if len(f.Kept) == 0 {
		return
	}
	b.WriteString("\nThe work so far is kept: ")
	for i, l := range f.Kept[:min(len(f.Kept), 10)] {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(link(plain(l.Label), l.URL))
	}
	b.WriteString(".\n")
}

// writeRefused names what could not be reached, first what would be if it were
// declared.
func writeRefused(b *strings.Builder, f Facts) {
	var add, never []*evidence.Refused
	seen := map[string]*evidence.Refused{}
	for _, r := range f.Refused {
		if r.Noise {
			continue
		}
		at := r.Address()
		if d := seen[at]; d != nil {
			d.Count += r.Count
			continue
		}
		d := r
		seen[at] = &d
		if d.Addable() {
			add = append(add, &d)
		} else {
			never = append(never, &d)
		}
	}
	all := append(add, never...)
	if len(all) == 0 {
		return
	}
	const most = 4
	var out []string
	for _, d := range all[:min(len(all), most)] {
		out = append(out, redact.Code(redact.Cut(d.Address(), 120))+render.Asked(*d)+fmt.Sprintf(" ×%d", d.Count))
	}
	more := f.More
	if f.Refused[len(f.Refused)-1].Noise { // noise comes last: what follows is noise too
		more = 0
	}
	if n := int64(len(all)-len(out)) + more; n > 0 {
		out = append(out, fmt.Sprintf("%d more", n))
	}
	b.WriteString("\nRefused on the way out: " + strings.Join(out, ", ") + ".")
	if len(add) > 0 {
		b.WriteString(" Add it to `egress` in `.inspect.yml` if it should be allowed.")
	}
	b.WriteString("\n")
}

func writeCost(b *strings.Builder, f Facts) {
	if c := render.Cost(f.Calls); c != "" && ended(f.State) {
		b.WriteString("\nCost: " + plain(c) + ".\n")
	}
}

func writeProvenance(b *strings.Builder, f Facts) {
	var parts []string
	if f.Harness != "" {
		agent := "Agent: *" + plain(redact.Cut(f.Harness, 60)) + "*"
		if f.Model != "" {
			agent += " with " + redact.Code(redact.Cut(f.Model, 120))
		}
		parts = append(parts, agent)
	}
	if f.Model != "" && f.Generation > 0 && !ended(f.State) {
		parts = append(parts, "spent so far: "+plain(render.Spent(f.Spent, f.Budget)))
	}
	if f.SpecSource != "" {
		parts = append(parts, "environment: "+source(f.SpecSource))
	}
	if f.BaseSHA != "" {
		parts = append(parts, fmt.Sprintf("base: %s at %s", redact.Code(f.BaseBranch), redact.Code(short(f.BaseSHA))))
	}
	if s := f.Snapshot; s != nil {
		parts = append(parts, s.words())
	}
	if f.Generation > 1 {
		parts = append(parts, fmt.Sprintf("attempt %d", f.Generation))
	}
	if f.Requester != "" {
		parts = append(parts, "asked for by "+redact.Code(f.Requester))
	}
	if len(parts) > 0 {
		b.WriteString("\n" + strings.Join(parts, " · ") + "\n")
	}
}

func (s *Snapshot) words() string {
	w := "snapshot of " + redact.Code(short(s.Commit)) + ", " + render.Age(s.Age)
	switch {
	case s.Drift == 1:
		w += ", 1 commit behind"
	case s.Drift > 1:
		w += fmt.Sprintf(", %d commits behind", s.Drift)
	}
	if s.Note != "" {
		w += " (" + plain(redact.Cut(s.Note, 300)) + ")"
	}
	if s.Restore > 0 {
		w += ", restored in " + render.Duration(s.Restore)
	}
	if s.Sandbox != "" {
		w += ", in " + plain(s.Sandbox)
	}
	if s.Limits != "" && s.Limits != "enforced" {
		w += ", limits " + plain(s.Limits)
	}
	return w
}

func writeFooter(b *strings.Builder, f Facts) {
	var parts []string
	if f.SessionURL != "" {
		parts = append(parts, link("Session "+ident(f.Session), f.SessionURL))
	}
	if f.Evidence != "" {
		parts = append(parts, link("evidence", f.Evidence))
	}
	if f.Check != "" {
		parts = append(parts, link("check run", f.Check))
	}
	if r := f.Receipt; r != nil {
		if r.Evidence != "" {
			parts = append(parts, "evidence digest "+redact.Code(digest(r.Evidence)))
		}
		if r.Chain != "" {
			parts = append(parts, fmt.Sprintf("%d events, chain head %s", r.Events, redact.Code(digest(r.Chain))))
		}
	}
	if !f.Finished.IsZero() && f.Finished.After(f.Created) {
		parts = append(parts, "took "+render.Duration(f.Finished.Sub(f.Created)))
	}
	if !ended(f.State) {
		if f.SessionURL != "" {
			parts[0] += " shows it live"
		}
		parts = append(parts, "to end it: `/inspect stop`")
	}
	b.WriteString("\n<sub>" + strings.Join(parts, " · ") + "</sub>\n")
}

func source(s string) string {
	if strings.HasPrefix(s, ".") {
		return redact.Code(s)
	}
	return plain(s)
}

// plain is untrusted text as one harmless line.
func plain(s string) string {
	return redact.Neutralise(redact.OneLine(s, 2000))
}

// paragraph is untrusted text of several lines.
func paragraph(s string) string {
	return redact.Neutralise(redact.Cut(strings.TrimSpace(s), 4000))
}

// sentence is plain, ended by a full stop.
func sentence(s string) string {
	s = strings.TrimSpace(s)
	p := plain(s)
	if s == "" || strings.ContainsAny(s[len(s)-1:], ".!?") {
		return p
	}
	return p + "."
}

// code is untrusted text as a code span that fits into a table's cell. Plain
// text needs no more: its pipes are escaped already.
func code(s string, maxBytes int) string { return redact.Cell(redact.Code(redact.Cut(s, maxBytes))) }

// link is a Markdown link, or its label alone if the address is not one that
// we would write. The label is harmless already.
func link(label, address string) string {
	host, web := strings.CutPrefix(address, "https://")
	if !web {
		host, web = strings.CutPrefix(address, "http://")
	}
	odd := func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune("<>()\"'\\`|[]{}^", r) }
	if !web || host == "" || host[0] == '/' || len(address) > 2000 || strings.ContainsFunc(address, odd) {
		return label
	}
	return "[" + label + "](" + address + ")"
}

// short is a commit as people write it.
func short(sha string) string { return cut(sha, 12) }

// digest is the first half of a digest: enough to compare by eye.
func digest(s string) string { return cut(s, 16) }

func cut(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}

// ident keeps what ids are made of, so that a marker cannot be broken out of.
func ident(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.', r == ':':
			return r
		}
		return '_'
	}, cut(s, 200))
}
