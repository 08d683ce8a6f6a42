package policy

import (
	"strings"
	"testing"
	"time"
)

func TestIndependentReview(t *testing.T) {
	const now, before = "head", "before"
	at := 0
	by := func(user int64, login, state, commit string) Review {
		at++
		return Review{User: user, Login: login, State: state, Commit: commit, Submitted: time.Unix(int64(at), 0), Write: true}
	}
	bot := by(9, "ci[bot]", "APPROVED", now)
	typed := by(9, "ci", "APPROVED", now)
	typed.Bot = true
	reader := by(2, "hubot", "APPROVED", now)
	reader.Write = false
	late, early := by(2, "hubot", "CHANGES_REQUESTED", now), by(2, "hubot", "APPROVED", now)
	late.Submitted, early.Submitted = time.Unix(1000, 0), time.Unix(999, 0)
	for name, c := range map[string]struct {
		r     Reviewed
		ok    bool
		words string
	}{
		"nobody":                      {Reviewed{Head: now}, false, "must approve the present head"},
		"somebody":                    {Reviewed{Head: now, Reviews: []Review{by(2, "hubot", "APPROVED", now)}}, true, "hubot"},
		"a requester":                 {Reviewed{Head: now, Reviews: []Review{by(1, "octocat", "APPROVED", now)}, Requesters: []int64{1}}, false, "octocat does not count: a requester"},
		"a requester and another":     {Reviewed{Head: now, Reviews: []Review{by(1, "octocat", "APPROVED", now), by(2, "hubot", "APPROVED", now)}, Requesters: []int64{1}}, true, "hubot"},
		"a bot":                       {Reviewed{Head: now, Reviews: []Review{bot}}, false, "not a person"},
		"a bot by its type":           {Reviewed{Head: now, Reviews: []Review{typed}}, false, "not a person"},
		"no write access":             {Reviewed{Head: now, Reviews: []Review{reader}}, false, "no write access"},
		"of an earlier head":          {Reviewed{Head: now, Reviews: []Review{by(2, "hubot", "APPROVED", before)}}, false, "earlier head"},
		"of no head":                  {Reviewed{Reviews: []Review{by(2, "hubot", "APPROVED", "")}}, false, ""},
		"dismissed":                   {Reviewed{Head: now, Reviews: []Review{by(2, "hubot", "DISMISSED", now)}}, false, ""},
		"changes requested after":     {Reviewed{Head: now, Reviews: []Review{by(2, "hubot", "APPROVED", now), by(2, "hubot", "CHANGES_REQUESTED", now)}}, false, "Changes are requested by hubot"},
		"told in another order":       {Reviewed{Head: now, Reviews: []Review{late, early}}, false, "Changes are requested"},
		"approved after changes":      {Reviewed{Head: now, Reviews: []Review{by(2, "hubot", "CHANGES_REQUESTED", before), by(2, "hubot", "APPROVED", now)}}, true, ""},
		"a comment after":             {Reviewed{Head: now, Reviews: []Review{by(2, "hubot", "APPROVED", now), by(2, "hubot", "COMMENTED", now)}}, true, ""},
		"another wants changes":       {Reviewed{Head: now, Reviews: []Review{by(2, "hubot", "APPROVED", now), by(3, "monalisa", "CHANGES_REQUESTED", now)}}, false, "monalisa"},
		"a requester wants changes":   {Reviewed{Head: now, Reviews: []Review{by(2, "hubot", "APPROVED", now), by(1, "octocat", "CHANGES_REQUESTED", now)}, Requesters: []int64{1}}, true, ""},
		"a machine's, one":            {Reviewed{Head: now, Reviews: []Review{by(2, "hubot", "APPROVED", now)}, ByMachine: true}, false, "two people"},
		"a machine's, two":            {Reviewed{Head: now, Reviews: []Review{by(2, "hubot", "APPROVED", now), by(3, "monalisa", "APPROVED", now)}, ByMachine: true}, true, ""},
		"a machine's, the same twice": {Reviewed{Head: now, Reviews: []Review{by(2, "hubot", "APPROVED", now), by(2, "hubot", "APPROVED", now)}, ByMachine: true}, false, ""},
	} {
		if ok, words := IndependentReview(c.r); ok != c.ok || !strings.Contains(words, c.words) {
			t.Errorf("%s: %v %q", name, ok, words)
		}
	}
}
