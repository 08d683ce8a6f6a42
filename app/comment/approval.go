package comment

import (
	"fmt"
	"strings"
	"time"

	"inspect/app/policy"
	"inspect/checks/redact"
	"inspect/envs/spec"
)

// Approval is something a person is asked to allow, or has allowed.
type Approval struct {
	Kind   string    `json:"kind"`  // "publish", "egress", "budget"
	Words  string    `json:"words"` // plain text
	Digest string    `json:"digest"`
	Items  []string  `json:"items,omitempty"`  // what holds a result back, plain text
	More   int       `json:"more,omitempty"`   // further ones
	Host   string    `json:"host,omitempty"`   // of egress
	Budget int64     `json:"budget,omitempty"` // in billionths of a US dollar
	By     string    `json:"by,omitempty"`     // login of who asked; empty: policy
	Until  time.Time `json:"until"`

	AnsweredBy string `json:"answered_by,omitempty"` // login of who allowed it
}

// shownDigest is how much of a digest stands in commands: enough to tell one
// from another.
const shownDigest = 12

// answerWith says how to answer.
func (a Approval) answerWith() string {
	return fmt.Sprintf("To allow it: `/inspect approve %s`; to refuse: `/inspect reject`. It waits until %s.", ident(cut(a.Digest, shownDigest)), a.Until.UTC().Format("2 January 2006, 15:04 MST"))
}

// asks is what is asked, in one line.
func (a Approval) asks() string {
	out := sentence(redact.Cut(a.Words, 2000))
	if a.By != "" {
		out += " Asked for by " + redact.Code(a.By) + "."
	}
	return out
}

// writeApprovals tells what waits for an answer and how it is given.
func writeApprovals(b *strings.Builder, f Facts) {
	for _, a := range f.Waiting {
		what := "A person has to decide"
		if a.Kind == "publish" {
			what = "The result is held back until a person allows it"
		}
		fmt.Fprintf(b, "\n**%s** (digest %s)\n", what, redact.Code(cut(a.Digest, shownDigest)))
		if len(a.Items) == 0 {
			b.WriteString("\n" + a.asks() + "\n")
		} else {
			b.WriteString("\n")
		}
		for i, item := range a.Items {
			if i == 20 {
				fmt.Fprintf(b, "- and %d more\n", len(a.Items)-i+a.More)
				break
			}
			b.WriteString("- " + plain(redact.Cut(item, 300)) + "\n")
		}
		if a.Kind == "publish" {
			b.WriteString("\nThe session's page has the change as a patch, without secrets.\n")
		}
		b.WriteString("\n" + a.answerWith() + "\n")
	}
	if !ended(f.State) {
		return
	}
	for _, a := range f.Allowed {
		switch a.Kind {
		case "egress":
			fmt.Fprintf(b, "\nAllowed for this session only: %s, as %s asked and %s allowed. To allow it always, add it to %s: `egress: [%s]`\n",
				redact.Code(a.Host), redact.Code(a.By), redact.Code(a.AnsweredBy), redact.Code(spec.FileName), egressEntry(a.Host))
		case "budget":
			fmt.Fprintf(b, "\nThe budget was raised for this session only to %s, as %s asked and %s allowed. To have it always, set it in %s: `limits: {budget_usd: %s}`\n",
				plain(spec.Money(a.Budget).String()), redact.Code(a.By), redact.Code(a.AnsweredBy), redact.Code(spec.FileName), strings.TrimPrefix(spec.Money(a.Budget).String(), "$"))
		case "publish":
			fmt.Fprintf(b, "\nPolicy held this result back, and %s allowed it (digest %s).\n", redact.Code(a.AnsweredBy), redact.Code(cut(a.Digest, shownDigest)))
		}
	}
}

// egressEntry is a host as it stands in the file.
func egressEntry(host string) string {
	if strings.ContainsAny(host, "*:") {
		return `"` + host + `"`
	}
	return host
}

// Asked says that a request waits for an answer.
func Asked(a Approval) string {
	return "Somebody with write access has to allow this; the session goes on meanwhile. " + a.asks() + " " + a.answerWith()
}

// AskedAlready says that something else waits first.
func AskedAlready(a Approval) string {
	return "One such request at a time: " + a.asks() + " " + a.answerWith()
}

// NothingWaits says that an answer does not fit anything.
func NothingWaits(digest string, pending []Approval) string {
	if digest == "" || len(pending) == 0 {
		return "Nothing waits for this answer."
	}
	return "Nothing that waits has the digest " + redact.Code(cut(digest, 64)) + "." + listed(pending)
}

// Several says that an answer must name what it is about.
func Several(pending []Approval) string {
	return "Several things wait for an answer; name one by its digest." + listed(pending)
}

func listed(pending []Approval) string {
	var b strings.Builder
	b.WriteString("\n")
	for _, a := range pending {
		fmt.Fprintf(&b, "\n- %s: %s", redact.Code(cut(a.Digest, shownDigest)), a.asks())
	}
	return b.String()
}

// FourEyes says that a requester cannot allow what he asked for.
func FourEyes() string {
	return "This needs four eyes, by `publish.four_eyes` or because it is about what verification shows: somebody who had no hand in what the session was asked for has to allow it. Nothing was done."
}

// Unusable says that nobody can tell what the repository forbids. words are plain.
func Unusable(words string) string {
	return "Nobody can tell what the repository forbids by now: " + redact.Neutralise(sentence(words)) + " Nothing was done. Mend it, and answer again."
}

// BotsDoNotAnswer says that only people allow or refuse.
func BotsDoNotAnswer() string { return "Only people can answer this. Nothing was done." }

// Expired says that an answer came too late.
func Expired() string { return "Nobody answered in time, so this cannot be answered any more." }

// WorkOver says that a session cannot use more any more.
func WorkOver() string {
	return "The agent's work is over, so that this would change nothing. Nothing was done."
}

// BeyondOperator says what is asked for and may not be had.
func BeyondOperator(e *policy.BeyondError) string {
	w := e.What[0]
	return fmt.Sprintf("Whoever runs Inspect does not allow that here: %s may be %s at most (%s). Only they can change it. Nothing was done.",
		redact.Code(w.Key), code(w.Most, 300), plain(w.From))
}

// BadHost says why a host cannot be asked for.
func BadHost(host, problem string) string {
	return redact.Code(redact.Cut(host, 200)) + " cannot be asked for: " + sentence(problem) + " Nothing was done."
}

// AllowedAlready says that a host may be reached.
func AllowedAlready(host string) string {
	return "The session may reach " + redact.Code(redact.Cut(host, 200)) + " already."
}

// BadAmount says what an amount looks like.
func BadAmount(usd string) string {
	return redact.Code(redact.Cut(usd, 40)) + " is not an amount in dollars such as 2.50. Nothing was done."
}

// HasBudget says that a session has as much already.
func HasBudget(budget int64) string {
	return "The session may spend " + plain(spec.Money(budget).String()) + " already. Nothing was done."
}
