package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"inspect/envs/proc"
	"inspect/storage"
	"inspect/storage/storagetest"
)

// shelf is a database with environments, and commands on it.
type shelf struct {
	t   *testing.T
	url string
	db  *storage.DB
}

const (
	headSHA = "1111111111111111111111111111111111111111"
	nextSHA = "2222222222222222222222222222222222222222"
)

func newShelf(t *testing.T) *shelf {
	s := &shelf{t: t, url: storagetest.URL(t)}
	db, err := storage.OpenMigrated(context.Background(), s.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	s.db = db
	s.sql(`INSERT INTO repositories (id, installation_id, owner, name, default_branch, head_sha, head_environment, looked_at, look_at) VALUES
		(42, 7, 'octocat', 'hello', 'main', $1, 'env-42-aaaaaaaa', now() - interval '5 min', now() + interval '25 min'),
		(43, 7, 'octocat', 'other', 'main', '', '', NULL, NULL)`, nextSHA)
	s.sql(`INSERT INTO environments (id, repository_id, config_digest, spec, used_at) VALUES
		('env-42-aaaaaaaa', 42, 'a', '{}', now() - interval '2 h'), ('env-42-bbbbbbbb', 42, 'b', '{}', now() - interval '40 days'),
		('env-43-cccccccc', 43, 'c', '{}', now() - interval '3 h')`)
	s.sql(`INSERT INTO nodes (name, token_hash, state, seen_at) VALUES ('n1', '', $1, now())`, `{"store":"zfs","total_bytes":107374182400,"free_bytes":16106127360,"refuses":"its pool is 85 % full, more than 80 %",
		"snapshots":["snap-one","snap-old","snap-stranger"],"clones":[
		{"session":"abcdefgh22","generation":1,"purpose":"work","created":"2026-03-01T10:00:00Z","bytes":2097152},
		{"session":"abcdefgh22","generation":1,"purpose":"verify","created":"2026-03-01T10:00:00Z","bytes":1048576},
		{"session":"gonegone22","generation":1,"purpose":"work","created":"2026-03-01T10:00:00Z"}]}`)
	s.sql(`INSERT INTO snapshots (id, environment_id, node, generation, commit_sha, config_digest, state, is_current, store, bytes, phases, created_at, published_at, newest_at, from_id, depth) VALUES
		('snap-one', 'env-42-aaaaaaaa', 'n1', 3, $1, 'a', 'ready', true, 'zfs', 1073741824, '{"setup":61000000000,"fetch":1500000000,"proof":90000000}', now() - interval '50 min', now() - interval '40 min', now() - interval '5 min', 'snap-old', 2),
		('snap-two', 'env-42-aaaaaaaa', 'n1', 4, $2, 'a', 'building', false, '', 0, NULL, now() - interval '2 min', NULL, NULL, 'snap-one', 1),
		('snap-old', 'env-42-aaaaaaaa', 'n1', 2, $1, 'a', 'retired', false, 'zfs', 7, NULL, now() - interval '2 h', now() - interval '2 h', NULL, '', 1),
		('snap-idle', 'env-42-bbbbbbbb', 'n1', 1, $1, 'b', 'ready', true, 'zfs', 2048, NULL, now() - interval '41 days', now() - interval '41 days', NULL, '', 1),
		('snap-other', 'env-43-cccccccc', 'n1', 1, $1, 'c', 'ready', true, 'zfs', 4096, NULL, now(), now(), NULL, '', 1)`, headSHA, nextSHA)
	s.sql(`INSERT INTO environment_nodes (environment_id, node, stale_since, failures, failed_commit, error, retry_at, wanted_commit) VALUES
		('env-42-aaaaaaaa', 'n1', '2026-03-01 10:00:00Z', 2, $1, E'go build ./...\nmain.go:3: undefined: \u001b[31mfoo', now() + interval '1 h', $1)`, nextSHA)
	for _, id := range []string{"abcdefgh22", "workwork22"} {
		s.sql(`INSERT INTO sessions (id, installation_id, repository_id, issue_number, intent_key, requester_id, requester_login, title, request, prompt,
			base_branch, base_sha, environment_id, spec, spec_source, state, generation, deadline)
			VALUES ($1, 7, 42, 0, $1, 1, 'octocat', '', '', 'Fix it.', 'main', $2, 'env-42-aaaaaaaa', '{"limits":{"timeout":60000000000}}', '.inspect.yml', 'working', 1, now())`, id, headSHA)
		s.sql(`INSERT INTO attempts (session_id, generation, engine, node, snapshot_id, started_at, work_deadline, deadline, restore, outcome, taken, drifted)
			VALUES ($1, 1, 'local', 'n1', 'snap-one', CASE $1 WHEN 'abcdefgh22' THEN now() ELSE now() - interval '1 h' END, now(), now(), '{"duration":85000000}', '{"times":{"sync":300000000,"ready":1200000000}}', $2, $3)`, id,
			`{"snapshot":"snap-one","node":"n1","commit":"`+headSHA+`","base":"`+nextSHA+`","age":2400000000000,"newest":300000000000,"drift":{"commits":3},"why":"it is 3 commits behind, of 200 at most"}`,
			`{"steps":["go build ./..."],"lockfiles":[{"path":"go.sum","sha256":"ab"}]}`)
	}
	s.sql(`UPDATE sessions SET state = 'failed', finished_at = now(), reported_at = now() WHERE id = 'abcdefgh22'`)
	s.sql(`UPDATE attempts SET ended_at = now(), stopped_at = now(), keep_until = '2126-03-01 12:00:00Z' WHERE session_id = 'abcdefgh22'`)
	return s
}

func (s *shelf) sql(q string, args ...any) {
	s.t.Helper()
	if _, err := s.db.SQL().Exec(q, args...); err != nil {
		s.t.Fatalf("%s: %v", q, err)
	}
}

func (s *shelf) run(cmd *cobra.Command, args ...string) (string, error) {
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(append([]string{args[0], "--postgres-url", s.url}, args[1:]...))
	err := cmd.ExecuteContext(s.t.Context())
	return out.String(), err
}

func (s *shelf) env(args ...string) string {
	s.t.Helper()
	out, err := s.run(envCommand(), args...)
	if err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
	return out
}

func wantLines(t *testing.T, out string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(out, w) {
			t.Errorf("it lacks %q:\n%s", w, out)
		}
	}
	if strings.ContainsRune(out, 0x1b) {
		t.Errorf("it steers the terminal: %q", out)
	}
}

func TestEnvStatus(t *testing.T) {
	s := newShelf(t)
	s.sql(`INSERT INTO nodes (name, token_hash, state, seen_at) VALUES ('n2', 'x', '{"store":"zfs","forks":true}', now() - interval '10 min')`)
	out := s.env("status", "Octocat/Hello")
	wantLines(t, out,
		"octocat/hello  env-42-aaaaaaaa: what main describes at 222222222222, last used 2 h 0 min ago", "the next look in 24 min",
		"on n1: snap-one of 111111111111, generation 3, made from snap-old, 40 min 0 s old; zfs store, 1.0 GiB",
		"fetch 1.5 s, setup 1 min 1 s, proof 90 ms", "generation 4 of 222222222222 is being prepared for 2 min", "after it: 222222222222",
		"stale since 2026-03-01 10:00:00: 2 failures, the last of 222222222222; that commit is not tried again by itself before",
		"      | go build ./...\n", "      | main.go:3: undefined:",
		"last taken by session abcdefgh22, attempt 1: snap-one of 111111111111, 40 min 0 s old, 3 commits behind, restored in 85 ms, synchronised in 300 ms, ready in 1.2 s: it is 3 commits behind",
		"85 % of 100.0 GiB", "no: its pool is 85 % full, more than 80 %", "10 min 0 s ago  zfs    yes", "no: its daemon is not connected", "abcdefgh22", "2126-03-01 12:00:00", "3.0 MiB",
		"env-42-bbbbbbbb: not what the default branch describes now")
	if strings.Contains(out, "env-43") || strings.Contains(out, "workwork22") {
		t.Errorf("it tells of others:\n%s", out)
	}
	var st envStatus
	if err := json.Unmarshal([]byte(s.env("status", "--json")), &st); err != nil {
		t.Fatal(err)
	}
	if len(st.Environments) != 3 || len(st.Kept) != 1 || st.Kept[0].Bytes != 3<<20 || st.Nodes[0].Refuses == "" {
		t.Fatalf("%+v", st)
	}
	e := st.Environments[0]
	p := e.Nodes[0]
	if !e.IsHead || p.Current.Bytes != 1<<30 || p.Current.PhasesMS["setup"] != 61000 || p.Building.Commit != nextSHA || p.Failures != 2 || e.Last.Drift.Commits != 3 || e.Last.AgeMS != 2400000 || e.Last.ReadyMS != 1200 || e.Last.Lockfiles[0].Path != "go.sum" {
		t.Errorf("%+v\n%+v\n%+v", e, p, e.Last)
	}
	if _, err := s.run(envCommand(), "status", "octocat/nothing"); err == nil || !strings.Contains(err.Error(), "no repository octocat/nothing is known") {
		t.Errorf("an unknown repository: %v", err)
	}
	if _, err := s.run(envCommand(), "status", "octocat"); err == nil || !strings.Contains(err.Error(), "expected OWNER/REPO") {
		t.Errorf("half a name: %v", err)
	}
}

// What could be the name of no repository or session is refused in few words.
func TestEnvOfHostileNames(t *testing.T) {
	s := newShelf(t)
	long := strings.Repeat("a", 1<<16)
	for _, name := range []string{
		"octocat/hel\nlo", "octocat/\x1b[31mhello", "octocat/hello%", "octocat/he llo", "octocat", "a/b/c", "@", "octocat/", "/hello",
		"octocat/" + long, long + "/hello",
	} {
		for _, command := range []string{"status", "build", "prune"} {
			_, err := s.run(envCommand(), command, name)
			var coded interface{ ExitCode() int }
			if !errors.As(err, &coded) || coded.ExitCode() != exitUsage || len(err.Error()) > 300 || strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Errorf("%s %.40q: %.400v", command, name, err)
			}
		}
	}
	for _, name := range []string{"%", "_", "abc%", "../abc", "octo\ncat", long} {
		for _, args := range [][]string{{"shell", name}, {"prune", "--session", name}} {
			if _, err := s.run(envCommand(), args...); err == nil || !strings.Contains(err.Error(), "no session") || len(err.Error()) > 300 || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s %.40q: %.400v", args[0], name, err)
			}
		}
	}
}

// What an attempt left that was lost before it had a clone costs nothing and
// cannot be looked into.
func TestEnvStatusOfNothingKept(t *testing.T) {
	s := newShelf(t)
	kept := func() int {
		t.Helper()
		var st envStatus
		if err := json.Unmarshal([]byte(s.env("status", "--json")), &st); err != nil {
			t.Fatal(err)
		}
		return len(st.Kept)
	}
	s.sql(`UPDATE nodes SET state = '{"store":"zfs"}' WHERE name = 'n1'`)
	if n := kept(); n != 1 {
		t.Errorf("%d are kept while the node may not have told of it yet", n)
	}
	s.sql(`UPDATE sessions SET finished_at = now() - interval '2 h' WHERE id = 'abcdefgh22'`)
	if n := kept(); n != 0 {
		t.Errorf("%d are kept that are not there", n)
	}
	s.sql(`UPDATE nodes SET seen_at = now() - interval '1 h' WHERE name = 'n1'`)
	if n := kept(); n != 1 {
		t.Errorf("%d are kept on a node that says nothing", n)
	}
}

func TestEnvLs(t *testing.T) {
	s := newShelf(t)
	out := s.env("ls")
	wantLines(t, out, "snap-one", "current", "building", "superseded", "snap-stranger", "kept until 2126-03-01 12:00:00", "gonegone22", "over")
	var l envList
	if err := json.Unmarshal([]byte(s.env("ls", "--json")), &l); err != nil {
		t.Fatal(err)
	}
	if len(l.Snapshots) != 6 || len(l.Clones) != 3 || l.Clones[0].Bytes != 2<<20 {
		t.Errorf("%+v", l)
	}
}

func TestEnvPrune(t *testing.T) {
	s := newShelf(t)
	states := func() (out string) {
		t.Helper()
		err := s.db.SQL().QueryRow("SELECT string_agg(id || ' ' || state, ', ' ORDER BY id) FROM snapshots WHERE id IN ('snap-one', 'snap-idle', 'snap-other')").Scan(&out)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	all := states()
	wantLines(t, s.env("prune", "--dry-run"), "snap-idle of octocat/hello on n1 (2.0 KiB, unused for 40 days) would be given up")
	if states() != all {
		t.Errorf("a dry run left %s", states())
	}
	wantLines(t, s.env("prune"), "snap-idle", "given up")
	if got := states(); got != "snap-idle retired, snap-one ready, snap-other ready" {
		t.Errorf("pruned: %s", got)
	}
	wantLines(t, s.env("prune"), "There is no snapshot to give up.")
	wantLines(t, s.env("prune", "octocat/hello"), "snap-one of octocat/hello", "prepared anew for the next session or push")
	if got := states(); got != "snap-idle retired, snap-one retired, snap-other ready" {
		t.Errorf("pruned: %s", got)
	}
	wantLines(t, s.env("prune", "--session", "abc", "--dry-run"), "kept of session abcdefgh22 on n1 until 2126-03-01 12:00:00 would be let go")
	wantLines(t, s.env("prune", "--session", "abc"), "What was kept of session abcdefgh22 is discarded.")
	wantLines(t, s.env("prune", "--session", "abc"), "Nothing is kept")
	wantLines(t, s.env("prune", "--session", "work"), "Nothing is kept")
	for _, args := range [][]string{{"--session", "abc", "octocat/hello"}, {"--unused", "1m"}} {
		if _, err := s.run(envCommand(), append([]string{"prune"}, args...)...); err == nil {
			t.Errorf("%v was taken", args)
		}
	}
}

func TestEnvBuild(t *testing.T) {
	s := newShelf(t)
	asked := func() (build string, due bool) {
		t.Helper()
		if err := s.db.SQL().QueryRow("SELECT build, look_at <= now() FROM repositories WHERE id = 42").Scan(&build, &due); err != nil {
			t.Fatal(err)
		}
		return build, due
	}
	wantLines(t, s.env("build", "octocat/hello"), "Asked for.")
	if build, due := asked(); build != "build" || !due {
		t.Errorf("asked for %q, due: %v", build, due)
	}
	s.env("build", "octocat/hello", "--afresh")
	s.env("build", "octocat/hello") // what was asked for first stays
	if build, _ := asked(); build != "afresh" {
		t.Errorf("asked for %q", build)
	}
	// Waiting, with a clock that this test moves.
	wait := func(steps ...func()) (string, error) {
		t.Helper()
		start := time.Now().Truncate(time.Microsecond)
		clock := proc.NewFake(start)
		var out bytes.Buffer
		done := make(chan error, 1)
		go func() {
			done <- awaitBuild(t.Context(), &out, s.db.Q(), 42, "octocat/hello", start, clock)
		}()
		for _, step := range steps {
			if err := clock.BlockUntil(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			step()
			clock.Advance(time.Second)
		}
		err := <-done
		return out.String(), err
	}
	looked := func() { s.sql("UPDATE repositories SET build = '', looked_at = now() WHERE id = 42") }
	built := func() {
		s.sql("UPDATE snapshots SET state = 'failed' WHERE state = 'building'")
		s.sql("UPDATE environment_nodes SET wanted_commit = '', stale_since = NULL")
	}
	if out, err := wait(func() {}, looked, built); err != nil || !strings.Contains(out, "on n1: snap-one") {
		t.Errorf("said %q (%v)", out, err)
	}
	s.sql("UPDATE repositories SET build = 'build' WHERE id = 42")
	s.sql("UPDATE environment_nodes SET stale_since = now()")
	if out, err := wait(looked); err == nil || err.Error() != "it could not be prepared on n1" || !strings.Contains(out, "undefined") {
		t.Errorf("said %q (%v)", out, err)
	}
	s.sql("UPDATE repositories SET build = 'build' WHERE id = 42")
	if _, err := wait(func() { s.sql("UPDATE repositories SET look_tries = 1, look_error = '502 Bad Gateway' WHERE id = 42") }); err == nil || !strings.Contains(err.Error(), "502 Bad Gateway") {
		t.Errorf("with GitHub away: %v", err)
	}
	s.sql("UPDATE repositories SET look_tries = 0")
	if _, err := wait(func() {
		looked()
		s.sql("UPDATE repositories SET head_environment = '', head_words = 'line 1: version' WHERE id = 42")
	}); err == nil || !strings.Contains(err.Error(), "line 1: version") {
		t.Errorf("without an environment: %v", err)
	}
}

func TestSessionRewindAndFork(t *testing.T) {
	s := newShelf(t)
	s.sql(`INSERT INTO bundles (session_id, generation, turn, sha256, bytes, tip) VALUES ('abcdefgh22', 1, 1, 'a', 1, 'b'), ('abcdefgh22', 1, 2, 'c', 1, 'd')`)
	session := func(args ...string) (string, error) { return s.run(sessionCommand(), args...) }
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"rewind", "abc"}, "--turn: expected"},
		{[]string{"rewind", "abc", "--turn", "-1"}, "counted from 1"},
		{[]string{"rewind", "abc", "--turn", "0"}, "counted from 1"},
		{[]string{"rewind", "abc", "--turn", "1", "--attempt", "0"}, "counted from 1"},
		{[]string{"fork", "abc", "--turn", "0"}, "counted from 1"}, // not the last
		{[]string{"fork", "abc", "--turn", "4294967297"}, "has no turn 4294967297"},
		{[]string{"rewind", "abc", "--turn", "3"}, "has no turn 3: the last that is kept is turn 2 of attempt 1"},
		{[]string{"rewind", "work", "--turn", "1"}, "has not ended: it is working"},
		{[]string{"rewind", "nosuch", "--turn", "1"}, "no session"},
		{[]string{"fork", "abc", "--harness", "emacs"}, "--harness: expected one of"},
		{[]string{"fork", "abc", "--harness", "codex"}, "no model"},
		{[]string{"fork", "work"}, "nothing is kept of the turns"},
	} {
		if out, err := session(c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %q, %v", c.args, out, err)
		}
	}
	out, err := session("fork", "abc", "--harness", "codex", "--model", "openai/gpt")
	if err != nil || !strings.HasPrefix(out, "Session ") {
		t.Fatalf("%q, %v", out, err)
	}
	id := strings.Fields(out)[1]
	var from, harness string
	if err := s.db.SQL().QueryRow("SELECT start_from::text, spec->'harness'->>'kind' FROM sessions WHERE id = $1", id).Scan(&from, &harness); err != nil || !strings.Contains(from, `"turn": 2`) || harness != "codex" {
		t.Errorf("goes on from %s with %s (%v)", from, harness, err)
	}
	if out, err := session("rewind", "abc", "--turn", "1"); err != nil || out != "Session abcdefgh22 goes on from turn 1.\n" {
		t.Errorf("%q, %v", out, err)
	}
}
