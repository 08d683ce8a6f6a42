package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inspect/checks/evidence"
	"inspect/scheduler/audit"
	"inspect/storage"
	"inspect/storage/storagetest"
)

// audited is a database with sessions, as `inspect audit` finds it.
type audited struct {
	t   *testing.T
	db  *storage.DB
	url string
	dir string
}

func newAudited(t *testing.T) *audited {
	a := &audited{t: t, url: storagetest.URL(t), dir: t.TempDir()}
	var err error
	if a.db, err = storage.OpenMigrated(context.Background(), a.url, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.db.Close)
	a.sql(`INSERT INTO repositories (id, installation_id, owner, name) VALUES (42, 7, 'octocat', 'hello')`)
	a.sql(`INSERT INTO environments (id, repository_id, config_digest, spec) VALUES ('env', 42, 'd', '{}')`)
	return a
}

func (a *audited) sql(q string, args ...any) {
	a.t.Helper()
	if _, err := a.db.SQL().Exec(q, args...); err != nil {
		a.t.Fatalf("%s: %v", q, err)
	}
}

// session is an ended session with n events.
func (a *audited) session(id string, n int) (head string) {
	a.t.Helper()
	a.sql(`INSERT INTO sessions (id, installation_id, repository_id, issue_number, intent_key, requester_id, requester_login, title, request, prompt,
		base_branch, base_sha, environment_id, spec, spec_source, state, finished_at, reported_at, deadline)
		VALUES ($1, 7, 42, 1, $1, 1, 'octocat', '', '', '', 'main', '', 'env', '{}', '', 'stopped', '2026-03-01', '2026-03-01', now())`, id)
	tx, err := a.db.SQL().Begin()
	if err != nil {
		a.t.Fatal(err)
	}
	defer tx.Rollback()
	q, prev := storage.New(tx), []byte(nil)
	for i := 1; i <= n; i++ {
		e := audit.Event{Session: id, Seq: int64(i), Kind: "tool", At: time.Date(2026, 3, 1, 0, 0, i, 0, time.UTC), Data: []byte(`{"command":"go test \u001b[2J\u202e"}`)}
		if i == n {
			e.Kind, e.Data = audit.KindState, []byte(`{"to":"stopped"}`)
		}
		if e.Data, err = audit.Canonical(e.Data); err == nil {
			err = e.Seal(prev)
		}
		if err == nil {
			err = q.InsertEvents(context.Background(), storage.InsertEventsParams{SessionID: id, Events: []byte(fmt.Sprintf(`[{"seq":%d,"generation":0,"kind":%q,"data":%s,"at":%q,"hash":"%x"}]`, e.Seq, e.Kind, e.Data, e.At.Format(time.RFC3339Nano), e.Hash))})
		}
		if err != nil {
			a.t.Fatal(err)
		}
		prev = e.Hash
	}
	if err := tx.Commit(); err != nil {
		a.t.Fatal(err)
	}
	a.sql(`UPDATE sessions SET events_count = $2, events_head = $3 WHERE id = $1`, id, n, prev)
	return hex.EncodeToString(prev)
}

// run runs `inspect audit ARGS` and returns what it prints and its exit status.
func (a *audited) run(args ...string) (string, int) {
	a.t.Helper()
	var out bytes.Buffer
	cmd := auditCommand()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append([]string{args[0], "--postgres-url", a.url}, args[1:]...))
	err := cmd.ExecuteContext(context.Background())
	if err == nil {
		return out.String(), 0
	}
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return out.String() + complaint(err.Error()), coded.ExitCode()
	}
	return out.String() + complaint(err.Error()), exitFailed
}

func (a *audited) want(status int, words string, args ...string) string {
	a.t.Helper()
	out, got := a.run(args...)
	if got != status || !strings.Contains(out, words) {
		a.t.Errorf("inspect audit %s: status %d, want %d with %q:\n%s", strings.Join(args, " "), got, status, words, out)
	}
	return out
}

func (a *audited) write(name, content string) string {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

func TestAudit(t *testing.T) {
	a := newAudited(t)
	one, two := a.session("abcdefgh22", 5), a.session("abzzzzzz22", 450)
	body, _, err := evidence.Manifest{Session: "abcdefgh22", Events: evidence.Events{Count: 5, Head: one}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	manifest := a.write("manifest.json", string(body))
	receipt := a.write("receipt.json", fmt.Sprintf(`{"branch":"b","events_count":5,"events_head":%q}`, one))
	log := a.write("log.json", fmt.Sprintf(`{"msg":"inspect serves","events":"none"}
{"msg":"a session has ended","session":"abcdefgh22","events_count":5,"events_head":%q}
{"msg":"a session has ended","session":"abzzzzzz22","events_count":450,"events_head":%q}
`, one, two))

	// show
	out := a.want(0, "session abcdefgh22 of octocat/hello, stopped, 5 events, head "+one, "show", "abc")
	if strings.ContainsAny(out, "\x1b\u202e") || strings.Count(out, "tool") != 4 {
		t.Errorf("shown: %q", out)
	}
	if out := a.want(0, `"to":"stopped"`, "show", "abc", "--json", "--kind", "state"); strings.Count(out, "\n") != 1 {
		t.Errorf("shown: %q", out)
	}
	if out := a.want(0, `\u202e`, "show", "abc", "--json"); strings.ContainsAny(out, "\x1b\u202e") {
		t.Errorf("shown: %q", out)
	}
	a.want(exitUsage, "more than one session begins with ab", "show", "ab")
	a.want(exitUsage, "there is no session that begins with bb", "show", "bb")
	a.want(exitUsage, "is no session", "show", "A'B")

	// verify
	a.want(0, "abcdefgh22: whole: 5 events, head "+one+"\n", "verify", "abc")
	a.want(0, "as noted elsewhere, 1×", "verify", "abc", "--against", receipt)
	a.want(0, "as noted elsewhere, 1×", "verify", "--against", manifest)
	a.want(0, "as noted elsewhere, 1×", "verify", "abc", "--head", one, "--count", "5")
	a.want(0, "2 sessions: 2 whole", "verify", "--all", "--against", log)
	a.want(exitUsage, "which session?", "verify")
	a.want(exitUsage, "is not about session abzzzzzz22", "verify", "abzzzzzz22", "--against", manifest)
	a.want(exitUsage, "needs the session's id", "verify", "--all", "--against", receipt)
	a.want(exitUsage, "64 hexadecimal digits", "verify", "abc", "--head", "xyz", "--count", "5")
	a.want(exitUsage, "names no head", "verify", "abc", "--against", a.write("empty.json", "{}"))
	a.want(exitUnread, "no such file", "verify", "abc", "--against", a.dir+"/none")
	a.want(exitUnread, "Postgres", "verify", "abc", "--postgres-url", "host=/nowhere")
	a.want(exitFailed, "cut off after event 5: --head names 6", "verify", "abc", "--head", one, "--count", "6")
	a.want(exitFailed, "the first 5 events are not those of --head", "verify", "abc", "--head", two, "--count", "5")

	// export, and verify without a database
	export := a.write("all.jsonl", a.want(0, "", "export", "--all"))
	a.want(0, "2 sessions: 2 whole", "verify", "--file", export, "--against", log)
	a.want(0, "abcdefgh22: whole: 5 events", "verify", "abc", "--file", export, "--against", manifest)
	a.want(exitUsage, "there is no session that begins with bb", "verify", "bb", "--file", export)
	single := a.write("one.jsonl", a.want(0, "", "export", "abc"))
	a.want(exitFailed, "abzzzzzz22: BROKEN: the session is missing", "verify", "--file", single, "--against", log)
	if out := a.want(0, "", "export", "--all", "--since", "2026-03-02"); strings.Contains(out, "abcdefgh22") {
		t.Error("exported what was over before")
	}
	a.want(0, "abcdefgh22", "export", "--all", "--since", "2026-02-28")
	a.want(exitUsage, "", "export")
	whole, err := os.ReadFile(export)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(whole), "\n")
	lines = lines[:len(lines)-1]
	for name, c := range map[string]struct{ content, want string }{
		"cut in a line":    {string(whole[:len(whole)/2]), "it is cut off"},
		"cut between":      {strings.Join(lines[:3], ""), "it is cut off"},
		"last line gone":   {strings.Join(lines[:len(lines)-1], ""), "it is cut off"},
		"session gone":     {strings.Join(lines[7:], ""), "it has 1 sessions and was written with 2"},
		"event gone":       {strings.Join(append(append([]string{}, lines[:2]...), lines[3:]...), ""), "event 2 is missing"},
		"lines swapped":    {lines[0] + lines[2] + lines[1] + strings.Join(lines[3:], ""), "reordered"},
		"a field twice":    {strings.Replace(string(whole), `"seq":1,`, `"seq":7,"seq":1,`, 1), "is not as it was written"},
		"a key twice":      {strings.Replace(string(whole), `{"command":`, `{"command":"x","command":`, 1), "event 1 was changed: its data cannot be read"},
		"another spelling": {strings.Replace(string(whole), `go test`, `g\u006f test`, 1), "event 1 was changed: its data cannot be read"},
		"a word changed":   {strings.Replace(string(whole), `go test`, `go vet`, 1), "event 1 was changed"},
		"spaces":           {strings.Replace(string(whole), `"seq":1,`, `"seq": 1,`, 1), "is not as it was written"},
		"more after it":    {string(whole) + lines[0], "something after its last line"},
		"no export":        {"hello\n", "is not as it was written"},
		"empty":            {"", "it is cut off"},
	} {
		path := a.write("changed.jsonl", c.content)
		if out := a.want(exitFailed, c.want, "verify", "--file", path); c.content == string(whole) {
			t.Errorf("%s: nothing was changed: %s", name, out)
		}
	}

	// retention
	if _, err := a.db.SQL().Exec(`INSERT INTO events_removed VALUES ('abcdefgh22', 5, decode($1, 'hex'), $2, 3600, '2026-03-02 12:00+00', now())`, one, fmt.Sprintf(`[{"count":5,"head":%q}]`, one)); err != nil {
		t.Fatal(err)
	}
	a.sql(`DELETE FROM events WHERE session_id = 'abcdefgh22'`)
	a.want(exitFailed, "were removed by retention on 2026-03-02; the recorded head is "+one, "verify", "abc")
	a.want(0, "were removed by retention on 2026-03-02; as noted", "verify", "abc", "--against", manifest)
	a.want(exitFailed, "BROKEN", "verify", "abc", "--head", two, "--count", "5")
	a.want(0, "2 sessions: 1 whole, 1 removed by retention, which only the record itself says", "verify", "--all")
	a.want(0, "2 sessions: 2 whole", "verify", "--all", "--against", log)
	a.want(0, "were removed by retention", "verify", "--file", a.write("removed.jsonl", a.want(0, "", "export", "--all")), "--against", log)

	// removed by somebody else under the name of retention
	forged := a.session("acforged22", 9)
	a.sql(`INSERT INTO events_removed VALUES ('acforged22', 9, decode($1, 'hex'), $2, 3600, '2026-03-02 12:00+00', now())`, forged, fmt.Sprintf(`[{"count":9,"head":%q}]`, forged))
	a.sql(`DELETE FROM events WHERE session_id = 'acforged22'`)
	noted := a.write("noted.json", fmt.Sprintf(`{"session":"acforged22","events_count":4,"events_head":%q}`, two))
	a.want(exitFailed, "noted elsewhere and cannot be compared, since their events were removed and no hash of them is kept: 1", "verify", "--all", "--against", log+","+noted)
	a.want(exitFailed, "cannot be compared", "verify", "acf", "--against", noted)
	a.want(exitFailed, "cannot be compared", "verify", "--file", a.write("forged.jsonl", a.want(0, "", "export", "--all")), "--against", noted)
	a.sql(`UPDATE events_removed SET points = '[]' WHERE session_id = 'acforged22'`)
	a.want(exitFailed, "acforged22: BROKEN: of the events that were removed on 2026-03-02 no change of state is kept", "verify", "--all")
	a.sql(`DELETE FROM events_removed WHERE session_id = 'acforged22'`)
	a.sql(`DELETE FROM sessions WHERE id = 'acforged22'`)

	// tampering
	a.sql(`UPDATE events SET data = '{}' WHERE session_id = 'abzzzzzz22' AND seq = 430`)
	a.want(exitFailed, "abzzzzzz22: BROKEN: event 430 was changed", "verify", "abz")
	a.want(exitFailed, "broken are 1 of 2 sessions", "verify", "--all")
	a.sql(`DELETE FROM events WHERE session_id = 'abzzzzzz22'`)
	a.sql(`DELETE FROM sessions WHERE id = 'abzzzzzz22'`)
	a.want(exitFailed, "abzzzzzz22: BROKEN: the session is missing", "verify", "--all", "--against", log)
	a.want(exitFailed, "the session is missing", "verify", "abzzzzzz22", "--against", log)
}

func TestKeepDuration(t *testing.T) {
	for in, want := range map[string]time.Duration{"400d": 400 * 24 * time.Hour, "36h": 36 * time.Hour, "0d": 0, "1m": 0, "-3d": 0, "d": 0, "x": 0, "99999999d": 0} {
		var k keepDuration
		if err := k.Set(in); (err == nil) != (want != 0) || time.Duration(k) != want {
			t.Errorf("%s: %v, %v", in, time.Duration(k), err)
		}
	}
}
