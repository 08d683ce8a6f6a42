package intake

import (
	"strings"
	"testing"
)

func TestPriority(t *testing.T) {
	w := setup(t, func(o *Options) {
		o.Floor = floor(t, "defaults: {priority_labels: {inspect-urgent: 10}, limits: {priority: 5}}\n")
	})
	urgent := func(o object) object {
		at(o, "issue")["labels"] = []object{{"id": 402, "name": "Inspect-Urgent"}, {"id": 401, "name": "inspect"}}
		return o
	}
	for name, c := range map[string]struct {
		event    string
		payload  object
		priority int32
		reply    string // instead of a session
	}{
		"usual":         {"issues", labeled(), 0, ""},
		"a label":       {"issues", urgent(labeled()), 10, ""},
		"a command":     {"issue_comment", commented("/inspect --priority 4 fix it"), 4, ""},
		"a label's too": {"issue_comment", urgent(commented("/inspect fix it")), 10, ""},
		"beyond":        {"issue_comment", commented("/inspect --priority 6 fix it"), 0, "| `--priority` | `6` | `5` |"},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.fresh(t)
			w.deliver(c.event, body(c.payload))
			if c.reply != "" {
				if r := w.gh.replies(); len(r) != 1 || !strings.Contains(r[0], c.reply) {
					t.Errorf("replies %q", r)
				}
				return
			}
			if s := w.one(); s.Priority != c.priority {
				t.Errorf("priority %d", s.Priority)
			}
		})
	}
}

func TestPullRequestsAreFollowed(t *testing.T) {
	w := setup(t, nil)
	w.deliver("issues", body(labeled()))
	w.one()
	w.number("WITH x AS (UPDATE sessions SET pull_request = 12 RETURNING 1) SELECT count(*) FROM x")
	event := func(action string, number int) object {
		o := common(action)
		o["pull_request"] = object{"number": number, "updated_at": labelAt}
		return o
	}
	closed := func() int {
		t.Helper()
		return w.number("SELECT count(*) FROM sessions WHERE pull_closed_at = '" + labelAt + "'")
	}
	for _, o := range []object{event("opened", 12), event("closed", 13), event("closed", 0), common("closed")} {
		if w.deliver("pull_request", body(o)); closed() != 0 {
			t.Errorf("%v closed it", o["action"])
		}
	}
	if d := w.deliver("pull_request", body(event("closed", 12))); d.Status != done || closed() != 1 {
		t.Errorf("%s: %s", d.Status, d.Note)
	}
	if d := w.deliver("pull_request", body(event("reopened", 12))); d.Status != done || closed() != 0 {
		t.Errorf("%s: %s", d.Status, d.Note)
	}
}
