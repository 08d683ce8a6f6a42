package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"inspect/storage"
	"inspect/storage/storagetest"
)

func TestEgressOfASession(t *testing.T) {
	url := storagetest.URL(t)
	db, err := storage.OpenMigrated(context.Background(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	sql := func(q string, args ...any) {
		t.Helper()
		if _, err := db.SQL().Exec(q, args...); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	sql(`INSERT INTO repositories (id, installation_id, owner, name) VALUES (42, 7, 'octocat', 'hello')`)
	sql(`INSERT INTO environments (id, repository_id, config_digest, spec) VALUES ('env', 42, 'd', '{}')`)
	for _, id := range []string{"abcdefghij", "abczzzzzzz", "quietquiet"} {
		sql(`INSERT INTO sessions (id, installation_id, repository_id, issue_number, intent_key, requester_id, requester_login, title, request, prompt,
			base_branch, base_sha, environment_id, spec, spec_source, state, finished_at, reported_at, deadline)
			VALUES ($1, 7, 42, 1, $1, 1, 'octocat', '', '', '', 'main', '', 'env', '{}', '', 'stopped', '2026-03-01', '2026-03-01', now())`, id)
	}
	seq := 0
	add := func(generation int, kind, data string) {
		t.Helper()
		seq++
		sql(`INSERT INTO events (session_id, seq, generation, number, kind, data, at, hash) VALUES ('abcdefghij', $1::bigint, $2, $1::bigint, $3, $4, timestamptz '2026-03-01 10:00:00Z' + $1::bigint * interval '1 s', '')`, seq, generation, kind, data)
	}
	const npm = `{"host":"npm.internal.example","port":443,"allowed":true,"command":"npm ci","secret":"NPM_TOKEN"}`
	add(1, "egress", npm)
	add(1, "egress", `{"host":"evil.example","port":25,"allowed":false,"reason":"it is not in the environment's egress","command":"sh -c \u001b[31mx\ny"}`)
	add(1, "note", `{"words":"other.example"}`)
	add(1, "egress", `{"host":"telemetry.example","port":443,"allowed":false,"reason":"no","noise":true}`)
	for range egressPage {
		add(1, "egress", npm)
	}
	add(1, "use", `{"sent":10,"received":100,"limit":5000}`)
	add(1, "use", `{"sent":20,"received":200,"limit":5000}`)
	add(2, "egress", npm)
	add(2, "egress", `{"host":"","port":0,"allowed":false,"reason":"the limit is reached"}`)
	add(2, "use", `{"sent":1,"received":2,"limit":5000}`)

	run := func(args ...string) (string, error) {
		cmd := envCommand()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SilenceUsage = true
		cmd.SetArgs(append([]string{"egress", "--postgres-url", url}, args...))
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	out, err := run("abcd")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out, "\n")
	for i, want := range [][]string{
		{"FIRST", "DESTINATION"}, {"2026-03-01 10:00:01", "  1001  ", "allowed", "npm.internal.example:443", "credential NPM_TOKEN added", "npm ci"},
		{"  1  ", "refused", "evil.example:25", "not in the environment's egress", "sh -c"}, {"refused", "telemetry.example:443", "the harness's own doing"},
		{"10:16:47", "npm.internal.example:443"}, {"the limit is reached"}, {}, {"21 bytes sent, 202 received (at most 5000 together in one attempt)"},
	} {
		for _, w := range want {
			if !strings.Contains(lines[i], w) {
				t.Errorf("line %d lacks %q: %q", i, w, lines[i])
			}
		}
	}
	if strings.ContainsRune(out, 0x1b) || len(lines) != 9 {
		t.Errorf("%q", out)
	}
	out, err = run("abcdefghij", "--json")
	var list egressList
	if err != nil || json.Unmarshal([]byte(out), &list) != nil || len(list.Decisions) != 5 || list.Decisions[0].Count != 1001 || list.Decisions[0].Secret != "NPM_TOKEN" || list.Sent != 21 {
		t.Errorf("%v %s", err, out)
	}
	if out, err := run("quiet"); err != nil || !strings.Contains(out, "asked for nothing") {
		t.Errorf("%q %v", out, err)
	}
	for arg, want := range map[string]string{"abc": "several sessions", "zzz": "no session", "": "no session", "octocat/hello": "no session"} {
		if _, err := run(arg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", arg, err)
		}
	}
	cmd := envCommand()
	cmd.SetArgs([]string{"egress", "--data", t.TempDir(), "abc"})
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), "there is no database in") {
		t.Errorf("%v", err)
	}
}
