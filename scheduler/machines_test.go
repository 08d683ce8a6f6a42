package scheduler

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"inspect/envs/wire"
	"inspect/storage"
)

func TestTokens(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess := w.create(s)
	w.prepare(s)
	w.look(s, sess.ID)
	a, _ := w.engine.last(sess.ID)
	ask := wire.TokenRequest{Session: a.Session, Generation: 1, Secret: a.Secret}
	for name, bad := range map[string]wire.TokenRequest{
		"no secret":     {Session: a.Session, Generation: 1},
		"wrong secret":  {Session: a.Session, Generation: 1, Secret: a.Secret + "x"},
		"other attempt": {Session: a.Session, Generation: 2, Secret: a.Secret},
		"no session":    {Session: "aaaaaaaaaa", Generation: 1, Secret: a.Secret},
		"odd session":   {Session: "../../etc", Generation: 1, Secret: a.Secret},
		"generation 0":  {Session: a.Session, Secret: a.Secret},
	} {
		if _, err := s.Exchange(ctx, bad); codeOf(err) != codeUnauthorized {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.Exchange(ctx, ask); err != nil { // whose answer gets lost
		t.Fatal(err)
	}
	first, err := s.Exchange(ctx, ask)
	if err != nil {
		t.Fatalf("repeated before the token was used: %v", err)
	}
	r, err := s.Authenticate(ctx, first.Token)
	if err != nil || r.Session != sess.ID || r.Generation != 1 {
		t.Fatalf("got %+v, %v", r, err)
	}
	if _, err := s.Exchange(ctx, ask); codeOf(err) != codeUnauthorized {
		t.Fatalf("the secret was good twice: %v", err)
	}
	for _, bad := range []string{"", "x", first.Token + "x", "a.b.c", sess.ID + ".1.", sess.ID + ".99999999999.x", strings.Repeat("a", 300)} {
		if _, err := s.Authenticate(ctx, bad); codeOf(err) != codeUnauthorized {
			t.Errorf("token %.20q: %v", bad, err)
		}
	}
	same, err := s.Beat(ctx, r, wire.Heartbeat{})
	if err != nil || same.Token != first.Token {
		t.Fatalf("a fresh token was changed: %v", err)
	}
	w.clock.Advance(first.Expires.Sub(t0)*2/3 + time.Second)
	for range 2 { // the answer of the first gets lost
		renewed, err := s.Beat(ctx, r, wire.Heartbeat{})
		if err != nil || renewed.Token == first.Token {
			t.Fatalf("not renewed: %v", err)
		}
		for _, token := range []string{first.Token, renewed.Token} {
			if _, err := s.Authenticate(ctx, token); err != nil {
				t.Fatalf("after a renewal: %v", err)
			}
		}
	}
	w.clock.Set(first.Expires)
	if _, err := s.Authenticate(ctx, first.Token); codeOf(err) != codeUnauthorized {
		t.Fatalf("after its expiry: %v", err)
	}
}

func TestEventsAreTakenOnceAndInOrder(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s)
	note := func(n int64, words string) wire.Event {
		return wire.Event{Number: n, Kind: wire.EventNote, At: w.clock.Now(), Data: map[string]any{"words": words, "unknown": "field"}}
	}
	send := func(want int64, events ...wire.Event) {
		t.Helper()
		reply, err := s.AppendEvents(ctx, r, events)
		if err != nil || reply.Acked != want {
			t.Fatalf("acked %d (%v), want %d", reply.Acked, err, want)
		}
	}
	send(0)
	send(2, note(1, "one"), note(2, "two"))
	send(2, note(1, "one"), note(2, "changed"))
	send(3, note(2, "two"), note(3, "a NUL: \x00 and <html> \xff"), note(5, "after a gap"))
	send(5, note(4, "four"), note(5, "five"))
	send(6, wire.Event{Number: 6, Kind: wire.EventCommand, At: t0.Add(-time.Hour * 1000), Data: wire.Command{Step: "harness", ExitCode: -1, Duration: 3 * time.Hour}})
	var words []string
	rows, err := w.db.Q().EventsAfter(ctx, storage.EventsAfterParams{SessionID: sess.ID, Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range rows {
		if e.Number.Valid {
			words = append(words, string(e.Data))
		}
		if e.At.Before(t0.Add(-time.Minute)) {
			t.Errorf("a runner's date was believed: %s", e.At)
		}
	}
	if len(words) != 6 || words[1] != `{"words": "two"}` || strings.Contains(words[0], "unknown") || !strings.Contains(words[2], "a NUL: \uFFFD") {
		t.Fatalf("events %q", words)
	}
	if err := VerifyEvents(ctx, w.db.Q(), sess.ID, "", 0); err != nil {
		t.Fatal(err)
	}
}

// Events may be as large and as many as one call may hold; whatever stands in them
// is stored as it came.
func TestManyEventsAtOnce(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s)
	var events []wire.Event
	for i := range int64(wire.MaxEventsPerSecond) {
		events = append(events, wire.Event{Number: i + 1, Kind: wire.EventTool, At: w.clock.Now(), Data: wire.Tool{Name: "bash", Title: `😀 "\\u0000 {}`, Output: strings.Repeat("ok\n", 500)}})
	}
	begun := time.Now()
	if reply, err := s.AppendEvents(ctx, r, events); err != nil || reply.Acked != int64(len(events)) {
		t.Fatalf("%+v, %v", reply, err)
	}
	t.Logf("%d events in %s", len(events), time.Since(begun))
	if err := VerifyEvents(ctx, w.db.Q(), sess.ID, "", 0); err != nil {
		t.Fatal(err)
	}
	if n := w.count(sess.ID, wire.EventTool); n != len(events) {
		t.Errorf("%d are there", n)
	}
	var tx, words int
	if err := w.db.SQL().QueryRow(`SELECT count(DISTINCT xmin::text), count(*) FILTER (WHERE data->>'title' = $2) FROM events WHERE session_id = $1 AND kind = 'tool'`, sess.ID, `😀 "\\u0000 {}`).Scan(&tx, &words); err != nil || tx != 1 || words != len(events) {
		t.Errorf("in %d transactions, %d as they came: %v", tx, words, err)
	}
}

func TestMalformedAndTooManyEventsAreDroppedWithOneNote(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s)
	bad := []wire.Event{
		{Kind: "made up", Data: wire.Note{}},
		{Kind: wire.EventNote, Data: "not an object"},
		{Kind: wire.EventNote, Data: map[string]any{"words": 7}},
		{Kind: wire.EventPhase, Data: wire.Phase{Phase: "delivered"}},
		{Kind: wire.EventPhase, Data: wire.Phase{Phase: "publishing"}},
		{Kind: wire.EventNote, Data: wire.Note{Words: strings.Repeat("x", wire.MaxEventBytes)}},
		{Kind: wire.EventCommand, Data: map[string]any{"duration": 1e300}},
	}
	for i := range bad {
		bad[i].Number = int64(i + 1)
	}
	reply, err := s.AppendEvents(ctx, r, bad)
	if err != nil || reply.Acked != int64(len(bad)) {
		t.Fatalf("acked %d, %v", reply.Acked, err)
	}
	w.want(sess.ID, Placing, "")
	if n := w.count(sess.ID, wire.EventNote); n != 1 {
		t.Fatalf("%d notes of dropped events", n)
	}
	if _, err := s.AppendEvents(ctx, r, make([]wire.Event, maxEventsPerCall+1)); codeOf(err) != codeTooLarge {
		t.Fatalf("a huge call: %v", err)
	}
	// Now as fast as it can.
	sent := int64(len(bad))
	for range 3 {
		var many []wire.Event
		for range maxEventsPerCall {
			sent++
			many = append(many, wire.Event{Number: sent, Kind: wire.EventOutput, At: w.clock.Now(), Data: wire.Output{Text: "x"}})
		}
		if reply, err := s.AppendEvents(ctx, r, many); err != nil || reply.Acked != sent {
			t.Fatalf("acked %d, %v", reply.Acked, err)
		}
	}
	kept := w.count(sess.ID, wire.EventOutput)
	if kept == 0 || kept > rateBurst {
		t.Fatalf("%d of 3000 events kept", kept)
	}
	a := w.attemptOf(sess.ID)
	if int(a.Dropped) != 3000-kept+len(bad) {
		t.Fatalf("%d dropped, %d kept", a.Dropped, kept)
	}
	w.phase(s, r, "working") // is heard all the same
	w.want(sess.ID, Working, "")
	w.clock.Advance(time.Second)
	w.sql("UPDATE sessions SET events_count = $2 WHERE id = $1", sess.ID, wire.MaxEvents)
	w.sql("UPDATE events SET seq = seq + 1000000 WHERE session_id = $1", sess.ID)
	a = w.attemptOf(sess.ID)
	if _, err := s.AppendEvents(ctx, r, []wire.Event{{Number: a.Acked + 1, Kind: wire.EventNote, Data: wire.Note{Words: "one too many"}}}); err != nil {
		t.Fatal(err)
	}
	if b := w.attemptOf(sess.ID); b.Dropped != a.Dropped+1 {
		t.Fatal("more events than a session may have")
	}
}

func (w *world) count(id, kind string) int {
	w.t.Helper()
	var n int
	if err := w.db.SQL().QueryRow("SELECT count(*) FROM events WHERE session_id = $1 AND kind = $2", id, kind).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

func TestChangedEventsAreNoticed(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s)
	w.phase(s, r, "restoring", "working", "verifying")
	var head []byte
	if err := w.db.SQL().QueryRow("SELECT hash FROM events WHERE session_id = $1 AND seq = 4", sess.ID).Scan(&head); err != nil {
		t.Fatal(err)
	}
	check := func() error { return VerifyEvents(ctx, w.db.Q(), sess.ID, sumHex(head), 4) }
	if err := check(); err != nil {
		t.Fatal(err)
	}
	if err := VerifyEvents(ctx, w.db.Q(), sess.ID, sumHex(head), 3); !errors.Is(err, ErrChain) {
		t.Fatalf("another head: %v", err)
	}
	for name, c := range map[string][2]string{
		"data":       {`UPDATE events SET data = data || '{"x": 1}' WHERE seq = 2`, `UPDATE events SET data = data - 'x' WHERE seq = 2`},
		"time":       {`UPDATE events SET at = at + interval '1 microsecond' WHERE seq = 2`, `UPDATE events SET at = at - interval '1 microsecond' WHERE seq = 2`},
		"kind":       {`UPDATE events SET kind = kind || 'x' WHERE seq = 3`, `UPDATE events SET kind = rtrim(kind, 'x') WHERE seq = 3`},
		"generation": {`UPDATE events SET generation = generation + 7 WHERE seq = 3`, `UPDATE events SET generation = generation - 7 WHERE seq = 3`},
		"removed":    {`UPDATE events SET seq = 1000 WHERE seq = 2`, `UPDATE events SET seq = 2 WHERE seq = 1000`},
		"last":       {`UPDATE sessions SET events_count = events_count + 1`, `UPDATE sessions SET events_count = events_count - 1`},
		"head":       {`UPDATE sessions SET events_head = events_head || '\x00'`, `UPDATE sessions SET events_head = substring(events_head FROM 1 FOR 32)`},
	} {
		w.sql(c[0])
		if err := check(); !errors.Is(err, ErrChain) {
			t.Errorf("%s: %v", name, err)
		}
		w.sql(c[1])
		if err := check(); err != nil {
			t.Fatalf("%s was not put right: %v", name, err)
		}
	}
}

func sumHex(b []byte) string {
	const digits = "0123456789abcdef"
	var out []byte
	for _, c := range b {
		out = append(out, digits[c>>4], digits[c&15])
	}
	return string(out)
}

// endless is content that does not end.
type endless struct{ read int64 }

func (e *endless) Read(p []byte) (int, error) {
	e.read += int64(len(p))
	return len(p), nil
}

func TestUploadsAreBounded(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s)
	put := func(content string) error {
		return s.PutArtifact(ctx, r, sumOf(content), strings.NewReader(content))
	}
	for range 2 {
		if err := put("hello"); err != nil {
			t.Fatal(err)
		}
	}
	for name, err := range map[string]error{
		"other content": s.PutArtifact(ctx, r, sumOf("hello2"), strings.NewReader("x")),
		"no hash":       s.PutArtifact(ctx, r, "../../x", strings.NewReader("x")),
		"odd tip":       s.PutBundle(ctx, r, 1, "HEAD", sumOf("x"), strings.NewReader("x")),
		"odd turn":      s.PutBundle(ctx, r, -1, tipSHA, sumOf("x"), strings.NewReader("x")),
	} {
		if codeOf(err) != codeBadRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.sql("INSERT INTO artifacts (session_id, sha256, bytes) VALUES ($1, 'big', $2)", sess.ID, int64(wire.MaxArtifactBytes-8))
	if err := put("three"); codeOf(err) != codeTooLarge {
		t.Fatalf("too much together: %v", err)
	}
	if err := put("333"); err != nil {
		t.Fatalf("the last three bytes: %v", err)
	}
	src := &endless{}
	if err := s.PutBundle(ctx, r, 1, tipSHA, sumOf("x"), src); codeOf(err) != codeTooLarge || src.read > wire.MaxBundleBytes+1<<20 {
		t.Fatalf("an endless bundle: %v after %d bytes", err, src.read)
	}
	if _, err := s.Bundle(ctx, r, sumOf("x")); codeOf(err) != codeNotFound {
		t.Fatalf("a bundle that is not there: %v", err)
	}
	sum := w.bundle(s, r, 0, "first")
	if w.bundle(s, r, 0, "second") == sum {
		t.Fatal("two contents, one name")
	}
	rc, err := s.Bundle(ctx, r, sumOf("second"))
	if err != nil {
		t.Fatal(err)
	}
	got, _ := io.ReadAll(rc)
	_ = rc.Close()
	if !bytes.Equal(got, []byte("second")) {
		t.Fatalf("read %q", got)
	}
}

// What was ever stored counts, also what was replaced and what came meanwhile.
func TestReplacedBundlesCount(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s)
	put := func(turn int, content string, read io.Reader) error {
		return s.PutBundle(ctx, r, turn, tipSHA, sumOf(content), io.MultiReader(read, strings.NewReader(content)))
	}
	room := func(blocks int64) {
		t.Helper()
		w.sql("DELETE FROM bundles WHERE session_id = $1", sess.ID)
		w.sql("INSERT INTO bundles (session_id, generation, turn, sha256, bytes, tip) VALUES ($1, 1, 9, 'big', $2, '')", sess.ID, maxBundlesBytes-blocks*4096)
	}
	none := strings.NewReader("")
	room(3)
	for _, content := range []string{"a", "a", "b", "c"} { // the same again takes no more room
		if err := put(0, content, none); err != nil {
			t.Fatalf("%s: %v", content, err)
		}
	}
	if err := put(0, "d", none); codeOf(err) != codeTooLarge {
		t.Errorf("a turn that is replaced for ever: %v", err)
	}
	room(1)
	meanwhile := readerFunc(func([]byte) (int, error) {
		if err := put(1, "first", none); err != nil {
			t.Error(err)
		}
		return 0, io.EOF
	})
	if err := put(2, "second", meanwhile); codeOf(err) != codeTooLarge {
		t.Errorf("two at once: %v", err)
	}
	if _, err := s.Bundle(ctx, r, sumOf("second")); codeOf(err) != codeNotFound {
		t.Errorf("a bundle that was refused: %v", err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestOutcomesAreChecked(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s)
	sum := w.bundle(s, r, 1, "work")
	for name, edit := range map[string]func(*wire.Outcome){
		"kind":         func(o *wire.Outcome) { o.Kind = "delivered" },
		"reason":       func(o *wire.Outcome) { o.Reason = "free text" },
		"bundle":       func(o *wire.Outcome) { o.Bundle = sumOf("never uploaded") },
		"bundle name":  func(o *wire.Outcome) { o.Bundle = "x" },
		"tip":          func(o *wire.Outcome) { o.Tip = baseSHA },
		"many results": func(o *wire.Outcome) { o.Results = make([]wire.VerifyResult, 101) },
		"long name":    func(o *wire.Outcome) { o.Results[0].Name = strings.Repeat("x", 201) },
		"artifact":     func(o *wire.Outcome) { o.Results[0].Stdout = "/etc/passwd" },
	} {
		o := goodOutcome(sum)
		edit(&o)
		if err := s.Outcome(ctx, r, o); codeOf(err) != codeBadRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
	o := goodOutcome(sum)
	o.Words = strings.Repeat("é\x00", 10_000)
	if err := s.Outcome(ctx, r, o); err != nil {
		t.Fatal(err)
	}
	if err := s.Outcome(ctx, r, wire.Outcome{Kind: wire.OutcomeNoChange}); err != nil {
		t.Fatalf("a second outcome: %v", err)
	}
	w.look(s, sess.ID)
	w.want(sess.ID, Delivered, "")
}

func TestLongPollEndsByItself(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	_, r := w.running(s)
	got := make(chan error, 1)
	go func() {
		d, err := s.Directives(ctx, r, 0)
		if err == nil && len(d.Directives) != 0 {
			err = errors.New("directives out of nothing")
		}
		got <- err
	}()
	for range 25 {
		if err := w.clock.BlockUntil(ctx, 1); err != nil {
			t.Fatal(err)
		}
		w.clock.Advance(time.Second)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}
