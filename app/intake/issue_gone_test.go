package intake

import (
	"strings"
	"testing"

	"inspect/scheduler"
)

// Work on an issue that was deleted, or moved to another repository, ends and is
// kept; other issues' sessions go on.
func TestIssueGone(t *testing.T) {
	for _, action := range []string{"deleted", "transferred"} {
		t.Run(action, func(t *testing.T) {
			w := setup(t, nil)
			w.deliver("issues", body(labeled()))
			s := w.one()
			gone := func(number int) {
				o := labeled()
				o["action"] = action
				at(o, "issue")["number"] = number
				w.deliver("issues", body(o))
			}
			reason := func() (reason, words string) {
				t.Helper()
				if err := w.db.SQL().QueryRow("SELECT stop_reason, stop_words FROM sessions WHERE id = $1", s.ID).Scan(&reason, &words); err != nil {
					t.Fatal(err)
				}
				return reason, words
			}
			gone(int(s.IssueNumber) + 1)
			if r, _ := reason(); r != "" {
				t.Fatalf("another issue ends the session: %s", r)
			}
			gone(int(s.IssueNumber))
			if r, words := reason(); r != scheduler.ReasonIssueGone || !strings.Contains(words, action) {
				t.Errorf("%s: %s", r, words)
			}
		})
	}
}
