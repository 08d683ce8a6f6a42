package github

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"inspect/envs/proc"
	"inspect/fixtures/githubd"
)

func TestReadsAreConditional(t *testing.T) {
	w := newWorld(t)
	ctx := ctxFor(t)
	read := func() (statuses []int) {
		t.Helper()
		from := len(w.Requests())
		rules, err := w.c.BranchRules(ctx, w.repo, "main")
		if err != nil || len(rules) == 0 {
			t.Fatalf("%d rules, %v", len(rules), err)
		}
		for _, r := range w.Requests()[from:] {
			if !strings.HasSuffix(r.Path, "/access_tokens") {
				statuses = append(statuses, r.Status)
			}
		}
		return statuses
	}
	if got := read(); !slices.Equal(got, []int{200}) {
		t.Errorf("first: %v", got)
	}
	if got := read(); !slices.Equal(got, []int{304}) {
		t.Errorf("again: %v", got)
	}
	must(t, w.AddRule("octocat/parcel", githubd.Rule{Branch: "main", Type: "creation"}))
	if got := read(); !slices.Equal(got, []int{200}) {
		t.Errorf("after a change: %v", got)
	}
}

// What one installation or one kind of token may see another may not: an answer
// is never looked up across them, and a refusal is never papered over.
func TestRememberedAnswersStayWithTheirToken(t *testing.T) {
	refuse := false
	var conditions []string
	h := newHub(t, func(w http.ResponseWriter, r *http.Request, _ string) {
		conditions = append(conditions, r.Header.Get("If-None-Match"))
		if refuse {
			reply(w, 404, map[string]any{"message": "Not Found"})
			return
		}
		w.Header().Set("ETag", `"one"`)
		if r.Header.Get("If-None-Match") == `"one"` {
			w.WriteHeader(304)
			return
		}
		refReply(w, r, "")
	})
	a := h.app(t)
	head := func(installation int64, repo Repo) error {
		_, err := a.Installation(installation).BranchHead(ctxFor(t), repo, "main")
		return err
	}
	other := hello
	other.ID = 8
	for _, ask := range []struct {
		installation int64
		repo         Repo
	}{{99, hello}, {100, hello}, {99, other}, {99, hello}} {
		if err := head(ask.installation, ask.repo); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"", "", "", `"one"`}; !slices.Equal(conditions, want) {
		t.Errorf("asked with %q, want %q", conditions, want)
	}
	refuse = true
	if err := head(99, hello); !errors.Is(err, ErrNotFound) {
		t.Errorf("a refusal is %v", err)
	}
	refuse = false
	if err := head(99, hello); err != nil || conditions[len(conditions)-1] != "" {
		t.Errorf("what was refused is remembered: asked with %q, %v", conditions[len(conditions)-1], err)
	}
}

func TestRememberedAnswersAreBounded(t *testing.T) {
	e := newEtags()
	key := func(i int) etagKey { return etagKey{url: fmt.Sprint(i)} }
	learn := func(i, size int, tag string) {
		e.learn(key(i), &answer{status: 200, header: http.Header{"Etag": {tag}}, body: make([]byte, size)})
	}
	for i := range maxTagged + 1 {
		learn(i, 1, "x")
	}
	if e.get(key(0)) != nil || e.get(key(1)) == nil || e.order.Len() != maxTagged || len(e.byKey) != maxTagged {
		t.Errorf("%d answers, %d keys", e.order.Len(), len(e.byKey))
	}
	for i := range 40 {
		learn(10_000+i, maxTaggedSize, "x")
	}
	if e.size > maxTaggedAll || e.get(key(10_039)) == nil {
		t.Errorf("%d bytes", e.size)
	}
	for name, forget := range map[string]func(){
		"too large": func() { learn(10_039, maxTaggedSize+1, "x") }, "no tag": func() { learn(10_038, 1, "") },
		"an error": func() { e.learn(key(10_037), &answer{status: 404, header: http.Header{"Etag": {"x"}}}) },
	} {
		before := e.order.Len()
		if forget(); e.order.Len() != before-1 {
			t.Errorf("%s: what was remembered before is still there", name)
		}
	}
}

func TestPointsOfAMinute(t *testing.T) {
	clock := proc.NewFake(time.Unix(1_700_000_000, 0))
	p := newPace(clock, -1, none)
	enter := func(write bool) error {
		leave, err := p.enter(ctxFor(t), write)
		if err == nil {
			leave()
		}
		return err
	}
	for i := range (maxPoints - writePoints) + 1 {
		if err := enter(i == 0); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error)
	go func() { done <- enter(false) }()
	if err := clock.BlockUntil(ctxFor(t), 1); err != nil {
		t.Fatal("one more goes at once:", err)
	}
	clock.Advance(pointsWindow)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestWaitsAreSpread(t *testing.T) {
	clock := proc.NewFake(time.Unix(1_700_000_000, 0))
	for after, want := range map[string]time.Duration{"60": 63 * time.Second, "3600": time.Hour + maxSpread} {
		p := newPace(clock, -1, func() float64 { return 0.5 })
		l := p.note(&answer{status: 429, header: http.Header{"Retry-After": {after}}})
		if got := l.Until.Sub(clock.Now()); got != want {
			t.Errorf("told to wait %s s: waits %s, want %s", after, got, want)
		}
	}
}

// GitHub refuses the proof of an App whose clock is wrong: the refusal says what
// time it is.
func TestClockIsComparedEvenWhenRefused(t *testing.T) {
	clock := proc.NewFake(time.Unix(1_700_000_000, 0))
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
		w.Header().Set("Date", clock.Now().Add(-7*time.Minute).UTC().Format(http.TimeFormat))
		reply(w, 401, map[string]any{"message": "'Expiration time' claim ('exp') is too far in the future"})
	})
	a := h.app(t, func(o *Options) { o.Clock = clock })
	if _, known := a.Skew(); known {
		t.Error("the clocks are compared before anything was asked")
	}
	if _, err := a.Bot(ctxFor(t)); err == nil {
		t.Fatal("no error")
	}
	if skew, known := a.Skew(); !known || skew != 7*time.Minute {
		t.Errorf("ahead by %s, %v", skew, known)
	}
}
