package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"inspect/app/web"
	"inspect/envs/proc"
)

func TestSessionLs(t *testing.T) {
	s := newShelf(t)
	s.sql("UPDATE sessions SET title = E'Mend\\u001b[31m it', state = 'failed', reason = 'disk', finished_at = now() WHERE id = 'abcdefgh22'")
	out, err := s.run(sessionCommand(), "ls")
	if err != nil || strings.Contains(out, "\x1b") {
		t.Fatalf("%q, %v", out, err)
	}
	wantLines(t, out, "SESSION", "abcdefgh22", "failed (disk)")
	for args, want := range map[string]int{"--state failed": 1, "--state queued": 0, "--requester nobody": 0, "--repository octocat/nothing": 0} {
		out, err := s.run(sessionCommand(), append([]string{"ls", "--json"}, strings.Fields(args)...)...)
		var list []listedSession
		if err != nil || json.Unmarshal([]byte(out), &list) != nil || len(list) != want {
			t.Errorf("%s: %s, %v", args, out, err)
		}
	}
	for _, args := range [][]string{{"ls", "--state", "x"}, {"ls", "--limit", "0"}} {
		var usage usageError
		if _, err := s.run(sessionCommand(), args...); !errors.As(err, &usage) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// Following a session prints what comes, and ends as the session does.
func TestSessionLogs(t *testing.T) {
	s := newShelf(t)
	s.sql("DELETE FROM events")
	s.sql("UPDATE sessions SET state = 'working', reported_at = NULL, finished_at = NULL WHERE id = 'abcdefgh22'")
	note := func(seq int, words string) {
		s.sql("INSERT INTO events (session_id, seq, generation, kind, data, at, hash) VALUES ('abcdefgh22', $1, 1, 'note', jsonb_build_object('words', $2::text), '2026-03-01 10:00:00Z', '')", seq, words)
	}
	note(1, "first \x1b[31m")
	out, err := s.run(sessionCommand(), "logs", "abcdef")
	if err != nil || strings.Contains(out, "\x1b") || !strings.Contains(out, "10:00:00     1  first") {
		t.Fatalf("%q, %v", out, err)
	}
	for state, delivered := range map[string]bool{"delivered": true, "no_change": true, "failed": false} {
		s.sql("DELETE FROM events WHERE seq > 1")
		s.sql("UPDATE sessions SET state = 'working', reported_at = NULL, finished_at = NULL WHERE id = 'abcdefgh22'")
		clock := proc.NewFake(time.Now())
		var b bytes.Buffer
		l := logs{to: &b, clock: clock, follow: true, asJSON: true}
		end := make(chan error, 1)
		go func() { end <- l.print(t.Context(), s.db, "abcdefgh22") }()
		if err := clock.BlockUntil(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		note(2, "second")
		s.sql("UPDATE sessions SET state = $1::text::session_state, reported_at = now(), finished_at = now() WHERE id = 'abcdefgh22'", state)
		clock.Advance(logLook)
		if err := <-end; (err == nil) != delivered || err != nil && !errors.Is(err, errOtherEnd) {
			t.Errorf("%s: %v", state, err)
		}
		var lines []web.Line
		for d := json.NewDecoder(&b); d.More(); {
			var line web.Line
			if err := d.Decode(&line); err != nil {
				t.Fatal(err)
			}
			lines = append(lines, line)
		}
		if len(lines) != 2 || lines[0].Title == "" || lines[1].Title != "second" {
			t.Errorf("%s: %+v", state, lines)
		}
	}
}

// On a terminal the last line says how it stands, and is gone at the end.
func TestSessionLogsOnATerminal(t *testing.T) {
	s := newShelf(t)
	s.sql("UPDATE sessions SET state = 'queued', queue_reason = E'no room\\u001b[31m 😀😀😀😀😀😀😀😀', reported_at = NULL, finished_at = NULL, events_count = 1 WHERE id = 'abcdefgh22'")
	clock := proc.NewFake(time.Now().Add(2 * time.Minute))
	var b bytes.Buffer
	l := logs{to: &b, clock: clock, follow: true, width: func() int { return 30 }}
	end := make(chan error, 1)
	go func() { end <- l.print(t.Context(), s.db, "abcdefgh22") }()
	if err := clock.BlockUntil(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	s.sql("UPDATE sessions SET state = 'delivered', reported_at = now(), finished_at = now() WHERE id = 'abcdefgh22'")
	clock.Advance(logLook)
	if err := <-end; err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(b.String(), "\r\x1b[K")
	if len(parts) != 3 || !strings.HasPrefix(parts[1], "Queued: no room 😀") || len(parts[1]) > 30 || strings.Contains(parts[1], "\x1b") || parts[2] != "" {
		t.Errorf("%q", parts)
	}
}

// What changes sessions says so as JSON, too.
func TestSessionChangesAsJSON(t *testing.T) {
	s := newShelf(t)
	s.sql("UPDATE sessions SET state = 'working', stop_at = NULL, reported_at = NULL, finished_at = NULL WHERE id = 'abcdefgh22'")
	ask := func(args ...string) (c changed) {
		t.Helper()
		out, err := s.run(sessionCommand(), append(args, "--json")...)
		if err == nil {
			err = json.Unmarshal([]byte(out), &c)
		}
		if err != nil {
			t.Errorf("%q: %v %s", args, err, out)
		}
		return c
	}
	for _, did := range []bool{true, false} {
		if c := ask("stop", "abcdef"); c.Session != "abcdefgh22" || c.State != "working" || c.Changed != did {
			t.Errorf("%+v", c)
		}
	}
	s.sql("UPDATE sessions SET state = 'stopped', finished_at = now() WHERE id = 'abcdefgh22'")
	if c := ask("retry", "abcdef"); c != (changed{Session: "abcdefgh22", State: "queued", Changed: true}) {
		t.Errorf("%+v", c)
	}
}

func TestSessionStopAndRetry(t *testing.T) {
	s := newShelf(t)
	s.sql("UPDATE sessions SET state = 'queued', stop_at = NULL, reported_at = NULL, finished_at = NULL WHERE id = 'abcdefgh22'")
	if _, err := s.run(sessionCommand(), "retry", "abcdef"); err == nil || !strings.Contains(err.Error(), "has not ended") {
		t.Errorf("%v", err)
	}
	for _, want := range []string{"stops.", "was asked to stop before."} {
		out, err := s.run(sessionCommand(), "stop", "abcdef")
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%q, %v", out, err)
		}
	}
	var by string
	var due bool
	if err := s.db.SQL().QueryRow("SELECT stop_by, next_check_at <= now() FROM sessions WHERE id = 'abcdefgh22'").Scan(&by, &due); err != nil || by == "" || !due {
		t.Errorf("stopped by %q, due %v: %v", by, due, err)
	}
	s.sql("UPDATE sessions SET state = 'stopped', finished_at = now() WHERE id = 'abcdefgh22'")
	out, err := s.run(sessionCommand(), "retry", "abcdef")
	var state string
	if e := s.db.SQL().QueryRow("SELECT state FROM sessions WHERE id = 'abcdefgh22'").Scan(&state); err != nil || e != nil || state != "queued" || !strings.Contains(out, "tried again") {
		t.Errorf("%q, %v, %s, %v", out, err, state, e)
	}
}
