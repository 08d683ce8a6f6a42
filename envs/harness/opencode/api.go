package opencode

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/sandbox/dialer"
)

const (
	// maxAnswer bounds an answer of the server's; maxEvent one of its events, a
	// longer one is left out and found in the messages later.
	maxAnswer = 64 << 20
	maxEvent  = 8 << 20
)

// user is whom the server knows by its password.
const user = "opencode"

// api speaks with one OpenCode server about one directory.
type api struct {
	http     *http.Client
	base     string // "http://127.0.0.1:41720"
	password string
	dir      string
	clock    proc.Clock
}

func newAPI(sb dialer.Sandbox, clock proc.Clock, port int, password, dir string) *api {
	return &api{
		http: &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
				return dialer.Dial(ctx, sb, addr)
			},
			MaxIdleConnsPerHost: 2, IdleConnTimeout: 2 * time.Minute, DisableCompression: true,
		}},
		base: "http://127.0.0.1:" + strconv.Itoa(port), password: password, dir: dir, clock: clock,
	}
}

func (a *api) close() { a.http.CloseIdleConnections() }

// statusError is an answer that refuses.
type statusError struct {
	code  int
	words string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("OpenCode answered %d: %s", e.code, e.words)
}

func (a *api) request(ctx context.Context, method, path string, query url.Values, body any) (*http.Request, error) {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(b)
	}
	if query == nil {
		query = url.Values{}
	}
	query.Set("directory", a.dir)
	req, err := http.NewRequestWithContext(ctx, method, a.base+path+"?"+query.Encode(), r)
	if err != nil {
		return nil, err
	}
	req.SetBasicAuth(user, a.password)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// call asks the server and reads its answer into out, if that is not nil.
func (a *api) call(ctx context.Context, within time.Duration, method, path string, query url.Values, body, out any) error {
	ctx, cancel := proc.WithTimeout(ctx, a.clock, within)
	defer cancel()
	req, err := a.request(ctx, method, path, query, body)
	if err != nil {
		return err
	}
	res, err := a.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return err
	case len(b) > maxAnswer:
		return fmt.Errorf("OpenCode's answer to %s %s has more than %d MiB", method, path, maxAnswer>>20)
	case res.StatusCode < 200 || res.StatusCode > 299:
		return &statusError{res.StatusCode, strings.TrimSpace(string(b[:min(len(b), 500)]))}
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("OpenCode's answer to %s %s cannot be read: %w", method, path, err)
	}
	return nil
}

// health asks whether the server answers at all.
func (a *api) health(ctx context.Context) error {
	return a.call(ctx, pollTime, http.MethodGet, "/global/health", nil, nil, nil)
}

// create begins a conversation. Its title spares a call of the model for one.
func (a *api) create(ctx context.Context, within time.Duration, title string) (id string, err error) {
	var out struct {
		ID string `json:"id"`
	}
	if err := a.call(ctx, within, http.MethodPost, "/session", nil, object{"title": title}, &out); err != nil {
		return "", err
	}
	if out.ID == "" {
		return "", errors.New("OpenCode began a conversation without an id")
	}
	return out.ID, nil
}

func (a *api) remove(ctx context.Context, session string) error {
	return a.call(ctx, callTime, http.MethodDelete, "/session/"+session, nil, nil, nil)
}

// ask gives a conversation a prompt and waits for the end of the answer.
func (a *api) ask(ctx context.Context, within time.Duration, session, model, text string) error {
	return a.call(ctx, within, http.MethodPost, "/session/"+session+"/message", nil, object{
		"model": object{"providerID": provider, "modelID": model},
		"parts": []object{{"type": "text", "text": text}},
	}, nil)
}

// post gives a conversation a message of ours. A conversation that rests begins
// to work on it; one at work takes it up with its next step. The same message
// again is the same message. Without text it has OpenCode go on from where it is.
func (a *api) post(ctx context.Context, session, message, text string) error {
	parts := []object{}
	if text != "" {
		parts = append(parts, object{"id": "prt" + strings.TrimPrefix(message, "msg"), "type": "text", "text": text})
	}
	return a.call(ctx, callTime, http.MethodPost, "/session/"+session+"/prompt_async", nil, object{
		"messageID": message, "parts": parts,
	}, nil)
}

// put adds a message to a conversation that asks for no answer of its own.
func (a *api) put(ctx context.Context, session, message, text string) error {
	return a.call(ctx, callTime, http.MethodPost, "/session/"+session+"/message", nil, object{
		"messageID": message, "noReply": true,
		"parts": []object{{"id": "prt" + strings.TrimPrefix(message, "msg"), "type": "text", "text": text}},
	}, nil)
}

// abort ends what a conversation is at, its commands too.
func (a *api) abort(ctx context.Context, session string) error {
	return a.call(ctx, abortTime, http.MethodPost, "/session/"+session+"/abort", nil, nil, nil)
}

// status is what the conversation is doing.
func (a *api) status(ctx context.Context, session string) (status, error) {
	var out map[string]status
	err := a.call(ctx, callTime, http.MethodGet, "/session/status", nil, nil, &out)
	return out[session], err // one that rests is not in it
}

// messages are the last ones of a conversation, oldest first; limit 0: all.
func (a *api) messages(ctx context.Context, session string, limit int) ([]message, error) {
	query := url.Values{}
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	var out []message
	err := a.call(ctx, callTime, http.MethodGet, "/session/"+session+"/message", query, nil, &out)
	return out, err
}

// children are the conversations of subagents.
func (a *api) children(ctx context.Context, session string) (ids []string, err error) {
	var out []struct {
		ID string `json:"id"`
	}
	if err := a.call(ctx, callTime, http.MethodGet, "/session/"+session+"/children", nil, nil, &out); err != nil {
		return nil, err
	}
	for _, c := range out {
		ids = append(ids, c.ID)
	}
	return ids, nil
}

// listen reads the server's events until the stream ends, and always returns an
// error. hear is called for each; connected once, before the first.
func (a *api) listen(ctx context.Context, connected func(), hear func(event)) error {
	req, err := a.request(ctx, http.MethodGet, "/event", nil, nil)
	if err != nil {
		return err
	}
	res, err := a.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return &statusError{res.StatusCode, "no events"}
	}
	connected()
	r := bufio.NewReaderSize(res.Body, 64<<10)
	var line []byte
	skip := false
	for {
		piece, err := r.ReadSlice('\n')
		if len(line)+len(piece) > maxEvent {
			skip = true
		}
		if !skip {
			line = append(line, piece...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return err
		}
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok && !skip && !bytes.Contains(line[:min(len(line), 150)], deltaType) {
			var e event
			if json.Unmarshal(data, &e) == nil {
				hear(e)
			}
		}
		line, skip = line[:0], false
	}
}

// deltaType marks the many small events of an answer that grows.
var deltaType = []byte(`"message.part.delta"`)

// event is one of the server's.
type event struct {
	Type       string     `json:"type"`
	Properties properties `json:"properties"`
}

// properties are those of all events that count.
type properties struct {
	SessionID string   `json:"sessionID"`
	Info      info     `json:"info"` // of a message or a conversation
	Part      part     `json:"part"`
	Status    status   `json:"status"`
	Error     *problem `json:"error"`
}

// status is what a conversation does: "busy", "retry", or nothing.
type status struct {
	Type    string `json:"type"`
	Attempt int    `json:"attempt"`
	Message string `json:"message"`
	Next    int64  `json:"next"` // milliseconds since 1970: when it tries again
}

func (s status) idle() bool { return s.Type == "" || s.Type == "idle" }

// message is one of a conversation with what is in it.
type message struct {
	Info  info   `json:"info"`
	Parts []part `json:"parts"`
}

// info is about a message or, with neither role nor session, a conversation.
type info struct {
	ID        string   `json:"id"`
	SessionID string   `json:"sessionID"`
	Role      string   `json:"role"`     // "user" or "assistant"
	ParentID  string   `json:"parentID"` // the prompt an answer is to, or the conversation a subagent's belongs to
	Finish    string   `json:"finish"`   // why the model stopped
	Summary   summary  `json:"summary"`  // it sums up what was before
	Error     *problem `json:"error"`
	Time      struct {
		Completed int64 `json:"completed"`
	} `json:"time"`
}

// bounded is the info with what the server, which any program in the sandbox
// can stand in for, may say at length cut short.
func (i info) bounded() info {
	i.Role, i.ParentID, i.Finish = redact.Cut(i.Role, maxID), redact.Cut(i.ParentID, maxID), redact.Cut(i.Finish, maxID)
	if i.Error != nil {
		e := *i.Error
		e.Name, e.Data.Message = redact.Cut(e.Name, maxID), redact.Cut(e.Data.Message, 4<<10)
		i.Error = &e
	}
	return i
}

// summary is true for an answer that sums up; in a prompt it is an object.
type summary bool

func (s *summary) UnmarshalJSON(b []byte) error {
	*s = string(b) == "true"
	return nil
}

// problem is why an answer failed.
type problem struct {
	Name string `json:"name"`
	Data struct {
		Message string `json:"message"`
		Status  int    `json:"statusCode"`
	} `json:"data"`
}

// part is a piece of a message.
type part struct {
	ID        string `json:"id"`
	SessionID string `json:"sessionID"`
	MessageID string `json:"messageID"`
	Type      string `json:"type"` // "text", "tool", …
	Text      string `json:"text"`
	Synthetic bool   `json:"synthetic"`
	Time      span   `json:"time"`
	Tool      string `json:"tool"`
	State     struct {
		Status   string          `json:"status"` // "pending", "running", "completed", "error"
		Input    json.RawMessage `json:"input"`
		Output   string          `json:"output"`
		Error    string          `json:"error"`
		Title    string          `json:"title"`
		Metadata json.RawMessage `json:"metadata"`
		Time     span            `json:"time"`
	} `json:"state"`
}

// span is in milliseconds since 1970.
type span struct {
	Start int64 `json:"start"`
	End   int64 `json:"end"`
}
