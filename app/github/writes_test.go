package github

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"inspect/envs/proc"
)

func TestReadsAreRepeatedAndBounded(t *testing.T) {
	var n int
	sha := strings.Repeat("b", 40)
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
		if n++; n < 3 {
			reply(w, 502, nil)
			return
		}
		reply(w, 200, map[string]any{"ref": "refs/heads/main", "object": map[string]any{"sha": sha}})
	})
	if got, err := h.client(t).BranchHead(ctxFor(t), hello, "main"); err != nil || got != sha {
		t.Errorf("got %q, %v", got, err)
	}
	n = -100
	if _, err := h.client(t).BranchHead(ctxFor(t), hello, "main"); !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrAmbiguous) {
		t.Errorf("got %v", err)
	}
	if n != -97 {
		t.Errorf("%d tries, want 3", n+100)
	}
}

func TestLostAnswerOfAWriteIsAmbiguous(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter){
		"connection broken": func(w http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"answer broken off": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "1000")
			w.WriteHeader(201)
			fmt.Fprint(w, `{"id":`)
		},
		"answer no JSON":    func(w http.ResponseWriter) { w.WriteHeader(201); fmt.Fprint(w, "<html>") },
		"answer without id": func(w http.ResponseWriter) { w.WriteHeader(201); fmt.Fprint(w, "{}") },
		"answer endless": func(w http.ResponseWriter) {
			w.WriteHeader(201)
			chunk := strings.Repeat(" ", 1<<20)
			for range maxAnswer>>20 + 2 {
				fmt.Fprint(w, chunk)
			}
		},
		"bad gateway": func(w http.ResponseWriter) { reply(w, 502, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t, func(w http.ResponseWriter, _ *http.Request, _ string) { answer(w) })
			_, err := h.client(t).CreateComment(ctxFor(t), hello, 3, "hi")
			if !errors.Is(err, ErrAmbiguous) {
				t.Errorf("got %v, want ErrAmbiguous", err)
			}
			if n := len(h.sent()); n != 1 {
				t.Errorf("a write was sent %d times", n)
			}
		})
	}
}

func TestCancelledWriteIsAmbiguousToo(t *testing.T) {
	arrived := make(chan struct{})
	release := make(chan struct{})
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request, _ string) { close(arrived); <-release })
	defer close(release)
	ctx, cancel := context.WithCancel(ctxFor(t))
	go func() { <-arrived; cancel() }()
	_, err := h.client(t).CreateComment(ctx, hello, 3, "hi")
	if !errors.Is(err, ErrAmbiguous) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestGitHubThatNeverAnswers(t *testing.T) {
	hang := make(chan struct{})
	h := newHub(t, refReply)
	c := h.client(t, func(o *Options) { o.Reads.Attempts = 1 })
	if _, err := c.BranchHead(ctxFor(t), hello, "main"); err != nil { // so that there is a token
		t.Fatal(err)
	}
	h.handle = func(http.ResponseWriter, *http.Request, string) { <-hang }
	defer close(hang)
	c.app.timeout = 20 * time.Millisecond
	if _, err := c.BranchHead(ctxFor(t), hello, "main"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a read: %v", err)
	}
	if _, err := c.CreateComment(ctxFor(t), hello, 3, "hi"); !errors.Is(err, ErrAmbiguous) {
		t.Errorf("a write: %v", err)
	}
}

func TestUnreachableGitHubHasWrittenNothing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	h := newHub(t, nil)
	a := h.app(t, func(o *Options) { o.APIBase = "http://" + addr })
	_, err = a.Installation(99).CreateComment(ctxFor(t), hello, 3, "hi")
	if !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrAmbiguous) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
}

func TestWritesGoOneAfterAnother(t *testing.T) {
	busy := make(chan struct{}, 1)
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
		select {
		case busy <- struct{}{}:
			defer func() { <-busy }()
		default:
			t.Error("two writes at once")
		}
		reply(w, 201, map[string]any{"id": 1})
	})
	c := h.client(t)
	done := make(chan error)
	for range 8 {
		go func() { _, err := c.CreateComment(ctxFor(t), hello, 3, "hi"); done <- err }()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestPauseBetweenWrites(t *testing.T) {
	clock := proc.NewFake(time.Now())
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request, _ string) { reply(w, 201, map[string]any{"id": 1}) })
	h.now = clock.Now
	c := h.client(t, func(o *Options) { o.Clock, o.WriteSpacing = clock, 0 })
	if _, err := c.CreateComment(ctxFor(t), hello, 3, "one"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { _, err := c.CreateComment(ctxFor(t), hello, 3, "two"); done <- err }()
	if err := clock.BlockUntil(ctxFor(t), 1); err != nil {
		t.Fatal(err)
	}
	if n := len(h.sent()); n != 1 {
		t.Errorf("%d writes before the pause was over", n)
	}
	clock.Advance(writeSpacing)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestHourlyBudgetOfWrites(t *testing.T) {
	clock := proc.NewFake(time.Unix(1_700_000_000, 0))
	p := newPace(clock, -1, none)
	for i := range maxPerHour {
		leave, err := p.enter(t.Context(), true)
		if err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
		leave()
		clock.Advance(time.Second)
	}
	var limit *RateLimited
	if _, err := p.enter(t.Context(), true); !errors.As(err, &limit) || limit.Until != time.Unix(1_700_003_600, 0) {
		t.Fatalf("got %v", err)
	}
	if leave, err := p.enter(t.Context(), false); err != nil {
		t.Errorf("reads are held up too: %v", err)
	} else {
		leave()
	}
	clock.Set(limit.Until)
	if _, err := p.enter(t.Context(), true); err != nil {
		t.Errorf("after an hour: %v", err)
	}
}
