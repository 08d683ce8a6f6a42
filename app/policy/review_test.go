package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
	asked, machine := [][]Requester{{{1, "octocat", true}}}, [][]Requester{{{1, "octocat", false}, {9, "ci[bot]", true}}}
	two := []Review{by(2, "hubot", "APPROVED", now), by(3, "monalisa", "APPROVED", now)}
	for name, c := range map[string]struct {
		r     Reviewed
		ok    bool
		words string
	}{
		"nobody":                      {Reviewed{Head: now}, false, "must approve the present head"},
		"somebody":                    {Reviewed{Head: now, Reviews: []Review{by(2, "hubot", "APPROVED", now)}}, true, "hubot"},
		"a requester":                 {Reviewed{Head: now, Reviews: []Review{by(1, "octocat", "APPROVED", now)}, Sessions: asked}, false, "octocat does not count: a requester"},
		"a requester and another":     {Reviewed{Head: now, Reviews: []Review{by(1, "octocat", "APPROVED", now), by(2, "hubot", "APPROVED", now)}, Sessions: asked}, true, "hubot"},
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
		"a requester wants changes":   {Reviewed{Head: now, Reviews: []Review{by(2, "hubot", "APPROVED", now), by(1, "octocat", "CHANGES_REQUESTED", now)}, Sessions: asked}, true, ""},
		"a machine's, one":            {Reviewed{Head: now, Reviews: []Review{by(2, "hubot", "APPROVED", now)}, Sessions: machine}, false, "two people"},
		"a machine's, two":            {Reviewed{Head: now, Reviews: []Review{by(2, "hubot", "APPROVED", now), by(3, "monalisa", "APPROVED", now)}, Sessions: machine}, true, ""},
		"a machine's, the same twice": {Reviewed{Head: now, Reviews: []Review{by(2, "hubot", "APPROVED", now), by(2, "hubot", "APPROVED", now)}, Sessions: machine}, false, ""},
		"a machine's, its prompter":   {Reviewed{Head: now, Reviews: append(two[:1:1], by(1, "octocat", "APPROVED", now)), Sessions: machine}, false, "No person asked"},
		"one of two is a machine's":   {Reviewed{Head: now, Reviews: two[:1], Sessions: append(asked, machine...)}, false, "two people"},
		"a pusher":                    {Reviewed{Head: now, Reviews: two[:1], Sessions: asked, Pushers: []int64{2}}, false, "hubot does not count: a requester"},
		"an unknown push, one":        {Reviewed{Head: now, Reviews: two[:1], Sessions: asked, Unknown: true}, false, "nothing is known"},
		"an unknown push, two":        {Reviewed{Head: now, Reviews: two, Sessions: asked, Unknown: true}, true, ""},
		"unknown and a machine's":     {Reviewed{Head: now, Reviews: two, Sessions: machine, Unknown: true}, false, "three people"},
		"before the base was changed": {Reviewed{Head: now, Reviews: two[:1], Sessions: asked, Since: time.Unix(900, 0)}, false, "before the base was changed"},
	} {
		if ok, words := IndependentReview(c.r); ok != c.ok || !strings.Contains(words, c.words) {
			t.Errorf("%s: %v %q", name, ok, words)
		}
	}
}

func TestPushers(t *testing.T) {
	own := map[string]string{"ours": "", "again": "on"}
	for name, c := range map[string]struct {
		head     string
		pushes   []Pushed
		people   []int64
		complete bool
	}{
		"ours":                {"ours", nil, nil, true},
		"a person's":          {"a", []Pushed{{"ours", "a", 1, false}}, []int64{1}, true},
		"two, told backwards": {"b", []Pushed{{"a", "b", 2, false}, {"ours", "a", 1, false}}, []int64{2, 1}, true},
		"one was not told":    {"b", []Pushed{{"a", "b", 2, false}}, []int64{2}, false},
		"none was told":       {"b", nil, nil, false},
		"by nobody":           {"a", []Pushed{{"ours", "a", 0, false}}, nil, false},
		"a bot's":             {"a", []Pushed{{"ours", "a", 9, true}}, nil, true},
		"there and back":      {"a", []Pushed{{"ours", "a", 1, false}, {"b", "a", 2, false}, {"a", "b", 3, false}}, []int64{1, 2, 3}, true},
		"a new branch":        {"a", []Pushed{{strings.Repeat("0", 40), "a", 1, false}}, []int64{1}, true},
		"under ours":          {"again", []Pushed{{"ours", "on", 1, false}}, []int64{1}, true},
		"under ours, unknown": {"again", nil, nil, false},
		"of no head":          {"", nil, nil, true},
	} {
		people, complete := Pushers(c.head, own, c.pushes)
		if diff := cmp.Diff(c.people, people); diff != "" || complete != c.complete {
			t.Errorf("%s: %v %s", name, complete, diff)
		}
	}
}
