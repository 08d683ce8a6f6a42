package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"inspect/envs/proc"
)

// pages reads people's pages as a program: the JSON twins.
type pages struct {
	base      string
	tokenFile string
}

// sessionView is what the demo reads of a session's JSON.
type sessionView struct {
	Session     string `json:"session"`
	State       string `json:"state"`
	Terminal    bool   `json:"terminal"`
	Reported    bool   `json:"reported"`
	Conclusion  string `json:"conclusion"`
	Reason      string `json:"reason"`
	Words       string `json:"words"`
	QueueReason string `json:"queue_reason"`
	Harness     string `json:"harness"`
	Generation  int    `json:"generation"`
	Branch      string `json:"branch"`
	HeadSHA     string `json:"head_sha"`
	PullRequest int    `json:"pull_request"`
	CheckRunID  int64  `json:"check_run_id"`
	Verify      Verify `json:"verify"`
	Times       struct {
		RestoreMS float64 `json:"restore_ms"`
		ReadyMS   int64   `json:"ready_ms"`
		WorkMS    int64   `json:"work_ms"`
	} `json:"times"`
	Spent int64 `json:"spent"` // billionths of a US dollar
	Model struct {
		Name       string `json:"name"`
		Calls      int64  `json:"calls"`
		Cost       int64  `json:"cost"` // as Spent, of the calls the provider reported
		Unreported int64  `json:"unreported_calls"`
		Budget     int64  `json:"budget"`
	} `json:"model"`
}

type environmentView struct {
	Environment string           `json:"environment"`
	State       string           `json:"state"` // building, ready, failed
	Commit      string           `json:"commit"`
	Error       string           `json:"error"`
	Phases      map[string]int64 `json:"phases_ms"`
}

func (p pages) token() string {
	body, err := os.ReadFile(p.tokenFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(body))
}

// address is a page with the access token, for a browser.
func (p pages) address(path string) string { return p.base + path + "?token=" + p.token() }

func (p pages) get(ctx context.Context, path string, into any) error {
	body, err := p.text(ctx, path)
	if err != nil || into == nil {
		return err
	}
	return json.Unmarshal([]byte(body), into)
}

// text is a page as it comes.
func (p pages) text(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+path, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+p.token())
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 16<<20))
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("GET %s: %s", path, res.Status)
	}
	return string(body), nil
}

// pollEvery is the pause between two looks. Each costs serve and its database
// milliseconds of CPU, which the agent could use.
const pollEvery = 100 * time.Millisecond

// await repeats fn until it says yes; a failure of serve ends it.
func await(ctx context.Context, what string, failed <-chan error, fn func() (bool, error)) error {
	for {
		ok, err := fn()
		if ok {
			return nil
		}
		select {
		case failure := <-failed:
			return failure
		default:
		}
		if sleepErr := proc.Sleep(ctx, proc.System(), pollEvery); sleepErr != nil {
			return fmt.Errorf("%s: %w", what, errors.Join(sleepErr, err))
		}
	}
}

func (p pages) awaitUp(ctx context.Context, failed <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	return await(ctx, "inspect serve does not answer", failed, func() (bool, error) {
		err := p.get(ctx, "/healthz", nil)
		return err == nil, err
	})
}

func (p pages) awaitSnapshot(ctx context.Context) (words string, err error) {
	var failure error
	err = await(ctx, "no snapshot", nil, func() (bool, error) {
		var all []environmentView
		if err := p.get(ctx, "/environments.json", &all); err != nil {
			return false, err
		}
		for _, e := range all {
			switch e.State {
			case "ready":
				words = "commit " + e.Commit[:min(12, len(e.Commit))]
				return true, nil
			case "failed":
				failure = fmt.Errorf("the environment could not be prepared: %s", e.Error)
				return true, nil
			}
		}
		return false, nil
	})
	return words, errors.Join(err, failure)
}

func (p pages) awaitSession(ctx context.Context) (id string, err error) {
	err = await(ctx, "no session came of the label", nil, func() (bool, error) {
		var all []sessionView
		if err := p.get(ctx, "/sessions.json", &all); err != nil {
			return false, err
		}
		if len(all) > 0 {
			id = all[0].Session
		}
		return len(all) > 0, nil
	})
	return id, err
}

func (p pages) session(ctx context.Context, id string) (sessionView, error) {
	var s sessionView
	err := p.get(ctx, "/sessions/"+id+".json", &s)
	return s, err
}
