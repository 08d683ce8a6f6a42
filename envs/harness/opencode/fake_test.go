package opencode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"inspect/envs/harness"
	"inspect/envs/harness/harnesstest"
	"inspect/envs/proc"
	"inspect/envs/sandbox"
	"inspect/envs/sandbox/sandboxtest"
	"inspect/envs/sandbox/stream"
)

// fakeVariable says how the stand-in for OpenCode behaves, countVariable where
// it counts its starts.
const (
	fakeVariable  = "INSPECT_TEST_FAKE"
	countVariable = "INSPECT_TEST_COUNT"
)

// fakeServe is `opencode serve` without an agent: every prompt is answered at
// once with a text. Its data is a file in its home, so that another one goes on
// with it.
func fakeServe() int {
	how := os.Getenv(fakeVariable)
	dir := os.Getenv("XDG_DATA_HOME")
	count := os.Getenv(countVariable)
	starts := readCount(count) + 1
	writeCount(count, starts)
	switch {
	case how == "silent":
		asked := make(chan os.Signal, 1) // select{} would be a deadlock to the runtime
		signal.Notify(asked, syscall.SIGTERM)
		<-asked
		return 1
	case how == "fails":
		fmt.Fprintln(os.Stderr, "broken")
		return 7
	case how == "picky" && os.Getenv("BUN_JSC_useConcurrentGC") != "":
		fmt.Fprintln(os.Stderr, "error: invalid JSC environment variable\n\n    BUN_JSC_useConcurrentGC=0")
		return 1
	case how == "taken" && starts < 3:
		fmt.Fprintln(os.Stderr, "ServeError")
		return 1
	}
	l, err := net.Listen("tcp", "127.0.0.1:"+os.Args[len(os.Args)-1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "ServeError", err)
		return 1
	}
	f := &fake{how: how, dir: dir, starts: starts, changed: make(chan struct{})}
	f.load()
	fmt.Printf("opencode server listening on http://%s\n", l.Addr())
	_ = http.Serve(l, f)
	return 1
}

func readCount(file string) (n int) {
	b, _ := os.ReadFile(file)
	_, _ = fmt.Sscan(string(b), &n)
	return n
}

func writeCount(file string, n int) { _ = os.WriteFile(file, fmt.Append(nil, n), 0o600) }

type fake struct {
	how    string
	dir    string
	starts int

	mu       sync.Mutex
	messages []object
	events   []string
	changed  chan struct{}
	lost     bool
	n        int
}

func (f *fake) load() {
	b, _ := os.ReadFile(f.dir + "/messages")
	_ = json.Unmarshal(b, &f.messages)
}

// add keeps a message and tells of it. f.mu is held.
func (f *fake) add(m object, silent bool) {
	f.messages = append(f.messages, m)
	b, _ := json.Marshal(f.messages)
	_ = os.WriteFile(f.dir+"/messages", b, 0o600)
	if silent {
		return
	}
	f.tell("message.updated", object{"info": m["info"]})
	for _, p := range m["parts"].([]object) {
		f.tell("message.part.updated", object{"part": p})
	}
}

func (f *fake) tell(kind string, properties object) {
	b, _ := json.Marshal(object{"id": "evt", "type": kind, "properties": properties})
	f.events = append(f.events, string(b))
	close(f.changed)
	f.changed = make(chan struct{})
}

const fakeSession = "ses_1"

func (f *fake) answer(prompt, text, finish string, silent bool) {
	f.n++
	id := fmt.Sprintf("msg_zz%d_%03d", f.starts, f.n)
	f.add(object{
		"info": object{
			"id": id, "sessionID": fakeSession, "role": "assistant", "parentID": prompt, "finish": finish,
			"time": object{"created": 1, "completed": 2},
		},
		"parts": []object{{"id": "prt" + id, "messageID": id, "sessionID": fakeSession, "type": "text", "text": text, "time": object{"start": 1, "end": 2}}},
	}, silent)
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, password, _ := r.BasicAuth(); password != os.Getenv("OPENCODE_SERVER_PASSWORD") || password == "" {
		http.Error(w, "no", http.StatusUnauthorized)
		return
	}
	var body struct {
		MessageID string `json:"messageID"`
		Parts     []struct {
			Text string `json:"text"`
		} `json:"parts"`
		Title string `json:"title"`
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	f.mu.Lock()
	defer f.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch path := r.URL.Path; {
	case path == "/event":
		f.stream(w, r)
	case f.how == "hangs" && f.starts == 1 && len(f.messages) > 0:
		f.mu.Unlock()
		<-r.Context().Done()
		f.mu.Lock()
	case path == "/session" && r.Method == http.MethodPost:
		id := fakeSession
		if body.Title == "ready" {
			id = "ses_ready"
		}
		_ = json.NewEncoder(w).Encode(object{"id": id})
	case path == "/session/status":
		_, _ = w.Write([]byte("{}"))
	case strings.HasSuffix(path, "/children"):
		_, _ = w.Write([]byte("[]"))
	case strings.HasSuffix(path, "/prompt_async"):
		f.prompt(w, body.MessageID, len(body.Parts) > 0)
	case strings.HasSuffix(path, "/message") && r.Method == http.MethodGet:
		_ = json.NewEncoder(w).Encode(f.messages)
	default:
		_, _ = w.Write([]byte("true"))
	}
}

func (f *fake) prompt(w http.ResponseWriter, id string, said bool) {
	switch {
	case f.how == "refuses":
		http.Error(w, "I do not like it", http.StatusBadRequest)
		return
	case f.how == "loses" && !f.lost:
		f.lost = true
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.WriteHeader(http.StatusNoContent)
	f.add(object{"info": object{"id": id, "sessionID": fakeSession, "role": "user", "time": object{"created": 1}}, "parts": []object{}}, false)
	switch {
	case f.how == "crashes":
		os.Exit(3)
	case f.how == "hangs" && f.starts == 1:
		return
	case f.how == "waits":
		f.tell("session.status", object{"sessionID": fakeSession, "status": object{
			"type": "retry", "attempt": 1, "message": "not today", "next": time.Now().Add(time.Hour).UnixMilli(),
		}})
		return
	case f.how == "forgets" && said:
		f.tell("session.idle", object{"sessionID": fakeSession}) // without an answer
		return
	case f.how == "misses":
		f.answer(id, "Not on the stream.", "stop", true)
		f.tell("session.idle", object{"sessionID": fakeSession})
		f.answer(id, "On the stream.", "stop", false)
	default:
		f.answer(id, "Done.", "stop", false)
	}
	f.tell("session.idle", object{"sessionID": fakeSession})
}

// stream sends the events from here on. f.mu is held.
func (f *fake) stream(w http.ResponseWriter, r *http.Request) {
	at := len(f.events)
	f.mu.Unlock()
	defer f.mu.Lock()
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w).Flush
	_, _ = w.Write([]byte("data: {\"type\":\"server.connected\",\"properties\":{}}\n\n"))
	_ = flush()
	for {
		f.mu.Lock()
		more, changed := f.events[at:], f.changed
		at = len(f.events)
		f.mu.Unlock()
		for _, e := range more {
			_, _ = w.Write([]byte("data: " + e + "\n\n"))
			_ = flush()
			if f.how == "breaks" { // after every event
				return
			}
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// host runs commands on this machine, and connections as the init does.
type host struct{ harnesstest.Host }

func (h host) Run(ctx context.Context, e stream.Exec) (stream.Exit, error) {
	if e.Argv[0] == sandbox.InitPath {
		program, err := sandboxtest.Program()
		if err != nil {
			return stream.Exit{}, err
		}
		e.Argv = append([]string{program}, e.Argv[1:]...)
	}
	return h.Host.Run(ctx, e)
}

// quick is a clock that runs faster than the machine's.
type quick struct {
	begun time.Time
	times time.Duration
}

func (q quick) Now() time.Time {
	return q.begun.Add(time.Since(q.begun) * q.times)
}
func (q quick) After(d time.Duration) <-chan time.Time { return time.After(d / q.times) }
func (q quick) NewTicker(d time.Duration) proc.Ticker {
	return proc.System().NewTicker(max(d/q.times, time.Millisecond))
}

// fakeBoot boots the stand-in. count is the file in which it counts its starts.
func fakeBoot(t *testing.T, ctx context.Context, how string, clock proc.Clock) (s harness.Session, events *harnesstest.Events, count string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := harnesstest.Script(t, "opencode", `exec "`+exe+`" "$@"`+"\n")
	events, count = harnesstest.NewEvents(), filepath.Join(t.TempDir(), "starts")
	s, err = Harness{Clock: clock}.Boot(ctx, host{}, harness.Input{
		Dir: t.TempDir(), Home: t.TempDir(), Model: model, Gateway: "http://127.0.0.1:1",
		Env: []string{"PATH=" + dir + ":" + proc.DefaultPath, fakeVariable + "=" + how, countVariable + "=" + count},
	}, events.Add)
	if err != nil {
		t.Fatal(err)
	}
	return s, events, count
}

// Whatever stands in OpenCode's place, the session ends, says why, and neither
// loses anything nor tells it twice.
func TestOddServers(t *testing.T) {
	fast := quick{time.Now(), 15}
	for how, c := range map[string]struct {
		clock   proc.Clock
		ok      bool
		failed  string
		message string
		note    string
	}{
		"works":   {nil, true, "", "Done.\n", ""},
		"taken":   {nil, true, "", "Done.\n", ""},
		"picky":   {nil, true, "", "Done.\n", ""},
		"breaks":  {nil, true, "", "Done.\n", ""},
		"misses":  {nil, true, "", "Not on the stream.\nOn the stream.\n", ""},
		"loses":   {fast, true, "", "Done.\n", ""},
		"forgets": {fast, true, "", "Done.\n", "told to go on"},
		"hangs":   {fast, true, "", "Done.\n", "does not answer any more; it is started again"},
		"fails":   {nil, false, "could not be started: it ended with status 7: broken", "", ""},
		"silent":  {quick{time.Now(), 40}, false, "did not answer within 2m0s", "", ""},
		"refuses": {nil, false, "I do not like it", "", ""},
		"waits":   {nil, false, "is not to be asked before", "", ""},
		"crashes": {fast, false, "broke off: it ended with status 3", "", "started again"},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s, events, _ := fakeBoot(t, t.Context(), how, c.clock)
			err := s.Prompt(t.Context(), harness.Prompt{Text: "x", Author: "octocat"})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			select {
			case <-s.Done():
			case <-ctx.Done():
				t.Fatalf("it does not end: %+v", events.All())
			}
			r := s.Wait()
			if r.OK() != c.ok || !strings.Contains(r.Failed, c.failed) || r.Err != nil || r.Missing != "" {
				t.Errorf("result %+v", r)
			}
			if events.Messages() != c.message || !strings.Contains(events.Notes(), c.note) {
				t.Errorf("said %q, notes %q", events.Messages(), events.Notes())
			}
			<-s.Ready() // closed at the end at the latest
			switch p := events.Prompts(); {
			case errors.Is(err, harness.ErrOver):
			case err != nil:
				t.Error(err)
			case len(p) != 2 || p[0].Done || !p[1].Done || (p[1].Failed == "") != c.ok || p[1].Author != "octocat":
				t.Errorf("prompts %+v", p)
			}
		})
	}
}

// An interrupt ends it while it starts, too.
func TestInterruptInTheStart(t *testing.T) {
	s, _, count := fakeBoot(t, t.Context(), "silent", nil)
	err := proc.Retry(t.Context(), proc.System(), proc.Policy{First: 5 * time.Millisecond, Max: 50 * time.Millisecond, Total: time.Minute}, func(context.Context) error {
		if readCount(count) == 0 {
			return errors.New("it is not started")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Interrupt()
	if r := s.Wait(); r.Err != nil || !strings.Contains(r.Failed, "stopped") {
		t.Errorf("result %+v", r)
	}
	<-s.Ready()
}

func TestMissing(t *testing.T) {
	events := harnesstest.NewEvents()
	s, err := Harness{}.Boot(t.Context(), host{}, harness.Input{
		Dir: t.TempDir(), Home: t.TempDir(), Model: model, Gateway: "http://127.0.0.1:1",
		Env: []string{"PATH=" + proc.DefaultPath},
	}, events.Add)
	if err != nil {
		t.Fatal(err)
	}
	<-s.Ready()
	if r := s.Wait(); !strings.Contains(r.Missing, "no program") || r.OK() || r.ExitCode != -1 {
		t.Errorf("result %+v", r)
	}
	if err := s.Prompt(t.Context(), harness.Prompt{}); !errors.Is(err, harness.ErrOver) {
		t.Errorf("a prompt: %v", err)
	}
}

// gone is a sandbox that has ended.
type gone struct{}

func (gone) Run(context.Context, stream.Exec) (stream.Exit, error) {
	return stream.Exit{}, stream.ErrEnded
}

func TestItIsTakenAway(t *testing.T) {
	in := harness.Input{Dir: "/d", Home: "/h", Model: model, Gateway: "http://127.0.0.1:1"}
	s, err := Harness{}.Boot(t.Context(), gone{}, in, harnesstest.NewEvents().Add)
	if err != nil {
		t.Fatal(err)
	}
	if r := s.Wait(); !errors.Is(r.Err, stream.ErrEnded) || r.ExitCode != -1 {
		t.Errorf("result %+v", r)
	}
}

// The end of Boot's context is somebody else's doing.
func TestItsLifeEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	s, _, _ := fakeBoot(t, ctx, "hangs", nil)
	<-s.Ready()
	if err := s.Prompt(t.Context(), harness.Prompt{Text: "x"}); err != nil {
		t.Fatal(err)
	}
	why := errors.New("the end of the world")
	cancel(why)
	if r := s.Wait(); !errors.Is(r.Err, why) || r.ExitCode != -1 {
		t.Errorf("result %+v", r)
	}
}

func TestWhatCannotBeBooted(t *testing.T) {
	for _, in := range []harness.Input{
		{Gateway: "http://127.0.0.1:1"}, {Model: model}, {Model: model, Gateway: "http://127.0.0.1:1", API: "telepathy"},
	} {
		if _, err := (Harness{}).Boot(t.Context(), gone{}, in, harnesstest.NewEvents().Add); err == nil {
			t.Errorf("%+v is booted", in)
		}
	}
}

func TestNoise(t *testing.T) {
	for host, want := range map[string]bool{
		"models.opencode.ai": true, "OpenCode.ai.": true, "models.dev": true, "registry.npmjs.org": false, "github.com": false, "notopencode.ai": false,
	} {
		if Noise(host, 443) != want {
			t.Errorf("%s: %v", host, !want)
		}
	}
}
