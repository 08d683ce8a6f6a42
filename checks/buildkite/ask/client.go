package ask

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"inspect/checks/buildkite/step"
	"inspect/checks/redact"
)

// Bounds of what is read of the control plane, in bytes.
const (
	maxAnswer   = 4 << 20
	maxEvidence = 1 << 30
)

// Refused is what the control plane will not do, however often it is asked.
type Refused struct {
	Status int
	Words  string
}

func (e *Refused) Error() string {
	switch e.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return "the control plane refuses this step (" + e.Words + "): its log says why. The operator's policy must name this pipeline by its ids, and the repository it asks for"
	}
	return fmt.Sprintf("the control plane refuses this step: %s (status %d)", e.Words, e.Status)
}

// away is an answer that did not come, or that comes later.
type away struct {
	words string
	after time.Duration
}

func (e *away) Error() string { return e.words }

// control is the control plane, as a step talks to it.
type control struct {
	server string // without a slash at its end
	client *http.Client
}

// Server is the control plane's address in the form in which it is the audience of
// tokens: https, or http to this machine; no slash at the end.
func Server(s string) (string, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "":
		return "", errors.New("the server is an address such as https://inspect.example, without a name, a question mark or a #")
	case u.Scheme != "https" && !(u.Scheme == "http" && loopback(u.Hostname())):
		return "", errors.New("the server's address must begin with https://, since a token of this job goes there")
	}
	return strings.TrimRight(s, "/"), nil
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

func newControl(server string, t http.RoundTripper) *control {
	if t == nil {
		t = &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			ForceAttemptHTTP2:      true,
			TLSHandshakeTimeout:    10 * time.Second,
			IdleConnTimeout:        time.Minute,
			MaxResponseHeaderBytes: 64 << 10,
		}
	}
	return &control{server: server, client: &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // a token goes nowhere else
	}}
}

var sessionName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// ask asks for the session of a wish.
func (c *control) ask(ctx context.Context, token string, wish step.Ask) (step.Answer, error) {
	body, err := json.Marshal(wish)
	if err != nil {
		return step.Answer{}, err
	}
	var a step.Answer
	if err := c.do(ctx, http.MethodPost, "/sessions", token, body, 45*time.Second, &a); err != nil {
		return step.Answer{}, err
	}
	if !sessionName.MatchString(a.Session) || a.Token == "" {
		return step.Answer{}, &away{words: "the answer names no session"}
	}
	return a, nil
}

// state asks for a session's state, and waits while it is version after.
func (c *control) state(ctx context.Context, a step.Answer, after int64) (step.State, error) {
	var s step.State
	err := c.do(ctx, http.MethodGet, "/sessions/"+a.Session+"?after="+strconv.FormatInt(after, 10), a.Token, nil, step.Wait+15*time.Second, &s)
	return s, err
}

// evidence writes a session's evidence to w.
func (c *control) evidence(ctx context.Context, a step.Answer, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	resp, err := c.send(ctx, http.MethodGet, "/sessions/"+a.Session+"/evidence", a.Token, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n, err := io.Copy(w, io.LimitReader(resp.Body, maxEvidence+1))
	switch {
	case err != nil:
		return &away{words: "the evidence broke off"}
	case n > maxEvidence:
		return fmt.Errorf("the evidence has more than %d MiB", maxEvidence>>20)
	case resp.ContentLength >= 0 && n != resp.ContentLength:
		return &away{words: "the evidence broke off"}
	}
	return nil
}

func (c *control) do(ctx context.Context, method, path, token string, body []byte, most time.Duration, into any) error {
	within, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	resp, err := c.send(within, method, path, token, body)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return &away{words: "its answer broke off"}
	}
	if len(got) > maxAnswer {
		return &Refused{Status: resp.StatusCode, Words: "its answer is too large"}
	}
	if err := json.Unmarshal(got, into); err != nil {
		return &away{words: "its answer cannot be read; is this the address of a control plane?"}
	}
	return nil
}

// send returns an answer that is a success, or *Refused, or *away.
func (c *control) send(ctx context.Context, method, path, token string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.server+step.Path+path, bytes.NewReader(body))
	if err != nil {
		return nil, &Refused{Words: "the server's address is none"}
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("User-Agent", "inspect-step")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.client.Do(req)
	if err != nil {
		var of *url.Error
		if errors.As(err, &of) {
			err = of.Err
		}
		if ctx.Err() != nil {
			return nil, &away{words: "no answer in time"}
		}
		return nil, &away{words: redact.OneLine(err.Error(), 200)}
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	head, _ := io.ReadAll(io.LimitReader(resp.Body, 16<<10))
	var no step.Refusal
	_ = json.Unmarshal(head, &no) // something before the control plane may answer, too
	words := redact.OneLine(no.Error, 500)
	if words == "" {
		words = strings.ToLower(http.StatusText(resp.StatusCode))
	}
	switch {
	case resp.StatusCode >= 500, resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode == http.StatusRequestTimeout:
		e := &away{words: fmt.Sprintf("status %d, %s", resp.StatusCode, words)}
		if n, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 16); err == nil {
			e.after = time.Duration(n) * time.Second
		}
		return nil, e
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return nil, &Refused{Status: resp.StatusCode, Words: "it sends us to another address, which gets no token"}
	}
	return nil, &Refused{Status: resp.StatusCode, Words: words}
}
