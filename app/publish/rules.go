package publish

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"inspect/app/github"
)

// offer is what would be pushed, as far as rules look at it.
type offer struct {
	branch    string
	message   string
	email     string // of the author
	committer string // address of the committer
	signed    bool
}

// ruleSignatures is the type of a rule that wants signed commits.
const ruleSignatures = "required_signatures"

// refusedBy says in words why rules of the repository would refuse to let us
// create a branch; empty if none would. Rules about pull requests, reviews,
// status checks, merge queues, deletion and forced pushes do not stand in the
// way of creating one.
func refusedBy(rules []github.Rule, o offer) string {
	for _, r := range rules {
		switch r.Type {
		case "creation":
			return where(r) + " lets nobody create branches like " + o.branch
		case "update":
			return where(r) + " lets nobody push to branches like " + o.branch
		case ruleSignatures:
			if !o.signed {
				return where(r) + " wants signed commits on " + o.branch + ", and publish.signed is never"
			}
		case "branch_name_pattern":
			if p, bad := broken(r, o.branch); bad {
				return fmt.Sprintf("%s wants branch names that %s, which %s does not", where(r), p, o.branch)
			}
		case "commit_message_pattern":
			if p, bad := broken(r, o.message); bad {
				return fmt.Sprintf("%s wants commit messages that %s", where(r), p)
			}
		case "commit_author_email_pattern", "committer_email_pattern":
			email := o.email
			if r.Type == "committer_email_pattern" {
				email = o.committer
			}
			if p, bad := broken(r, email); bad {
				return fmt.Sprintf("%s wants commits by addresses that %s, which %s does not", where(r), p, email)
			}
		}
	}
	return ""
}

func where(r github.Rule) string {
	if r.Source != "" {
		return fmt.Sprintf("a ruleset of %s (number %d)", r.Source, r.RulesetID)
	}
	return "a ruleset of the repository"
}

// broken evaluates a pattern rule. Patterns that Go cannot read are left for
// GitHub to judge.
func broken(r github.Rule, text string) (words string, bad bool) {
	var p struct {
		Operator string `json:"operator"`
		Pattern  string `json:"pattern"`
		Negate   bool   `json:"negate"`
	}
	if json.Unmarshal(r.Parameters, &p) != nil {
		return "", false
	}
	var matches bool
	switch p.Operator {
	case "starts_with":
		matches = strings.HasPrefix(text, p.Pattern)
		words = "start with"
	case "ends_with":
		matches = strings.HasSuffix(strings.TrimSpace(text), p.Pattern)
		words = "end with"
	case "contains":
		matches = strings.Contains(text, p.Pattern)
		words = "contain"
	case "regex":
		re, err := regexp.Compile(p.Pattern)
		if err != nil {
			return "", false
		}
		matches = re.MatchString(text)
		words = "match"
	default:
		return "", false
	}
	if p.Negate {
		words = "do not " + words
	}
	return fmt.Sprintf("%s %q", words, p.Pattern), matches == p.Negate
}
