package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/envs/wire"
)

// gate is a proxy in front of the listener for machines, as nodes have one, that
// notes when runners call.
type gate struct {
	*httptest.Server
	to string // the listener's address, which is known later

	mu    sync.Mutex
	calls map[string]map[string]time.Time // session -> call -> when it came first
}

func openGate(t *testing.T) *gate {
	t.Helper()
	g := &gate{calls: map[string]map[string]time.Time{}}
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0), // of runners that end in a long poll
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: g.to}) },
	}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.note(r, "")
		proxy.ServeHTTP(w, r)
		g.note(r, " answered")
	}))
	t.Cleanup(g.Close)
	return g
}

func (g *gate) note(r *http.Request, what string) {
	session, call := r.Header.Get(wire.HeaderSession), r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]+what
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.calls[session] == nil {
		g.calls[session] = map[string]time.Time{}
	}
	if _, later := g.calls[session][call]; !later {
		g.calls[session][call] = time.Now()
	}
}

// of are a session's calls up to now.
func (g *gate) of(session string) map[string]time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.calls[session])
}

// paceSessions is how many sessions TestRealPace times; INSPECT_TEST_PACE is
// another number.
const paceSessions = 20

// How long it takes from the label, and from the job's registration, until a
// runner makes its first call with a token, on a node that has the snapshot, and
// whose part of it that is.
func TestRealPace(t *testing.T) {
	if os.Getenv("NOMAD_ADDR") == "" {
		t.Skip("NOMAD_ADDR is not set: the double does not take Nomad's time")
	}
	n := paceSessions
	if v, err := strconv.Atoi(os.Getenv("INSPECT_TEST_PACE")); err == nil {
		n = v
	}
	g := openGate(t)
	s := openStageWith(t, map[string]map[string]string{"pace": small()}, func(st *story) {
		st.o.Nomad, st.o.Store = cluster(t), []string{"--nomad-control", g.URL}
	})
	g.to = argOf(s.serve.argv, "--listen-machines")
	ctx := patienceOf(t, 20*time.Minute)
	t.Cleanup(func() { s.clearCluster(context.WithoutCancel(ctx)) })
	parts := map[string][]time.Duration{}
	for i := range n + 1 { // the first has the snapshot made
		labelled := time.Now()
		id := s.of(ctx, "pace", s.ask("pace", fmt.Sprintf("Too dear %d", i)))
		s.jobs[jobOf(id, 1)] = true
		var calls map[string]time.Time
		if err := await(ctx, "no runner of "+id, nil, func() (bool, error) {
			calls = g.of(id)
			return !calls["spec answered"].IsZero(), nil
		}); err != nil {
			t.Fatal(err)
		}
		job := s.jobTimes(ctx, id)
		cpu := cpuOf(findRunner(id))
		if v := s.until(ctx, id, "over", over); v.State != "delivered" || v.Generation != 1 {
			t.Fatalf("%s (%s: %s) in attempt %d", v.State, v.Reason, v.Words, v.Generation)
		}
		if i == 0 {
			continue
		}
		for name, d := range map[string]time.Duration{
			"label to registered":       job.submitted.Sub(labelled),
			"registered to placed":      job.placed.Sub(job.submitted),
			"placed to taken by agent":  job.received.Sub(job.placed),
			"taken to started":          job.started.Sub(job.received),
			"started to shows identity": calls["token"].Sub(job.started),
			"identity checked":          calls["token answered"].Sub(calls["token"]),
			"registered to first call":  calls["spec"].Sub(job.submitted),
			"label to first call":       calls["spec"].Sub(labelled),
			"cpu of the runner so far":  cpu,
		} {
			parts[name] = append(parts[name], d)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		all := slices.Sorted(slices.Values(parts[name]))
		t.Logf("pace: %-26s p50 %4d ms, p95 %4d ms of %d", name, all[len(all)/2].Milliseconds(), all[(len(all)*95+99)/100-1].Milliseconds(), len(all))
	}
}

func argOf(argv []string, flag string) string {
	if i := slices.Index(argv, flag); i >= 0 && i+1 < len(argv) {
		return argv[i+1]
	}
	return ""
}

// jobTimes is what Nomad says of when it did what for the first attempt.
type jobTimes struct{ submitted, placed, received, started time.Time }

func (s *stage) jobTimes(ctx context.Context, session string) (out jobTimes) {
	s.t.Helper()
	var job struct{ SubmitTime int64 }
	var allocs []struct {
		CreateTime int64
		TaskStates map[string]struct {
			Events []struct {
				Type string
				Time int64
			}
		}
	}
	path := "/v1/job/" + jobOf(session, 1)
	for path, into := range map[string]any{path: &job, path + "/allocations": &allocs} {
		err := await(ctx, "Nomad does not say when it started the runner", nil, func() (bool, error) {
			status, body, err := s.o.Nomad.ask(ctx, http.MethodGet, path)
			if err != nil || status != http.StatusOK {
				return false, fmt.Errorf("%s: %d %s: %w", path, status, body, err)
			}
			if err := json.Unmarshal(body, into); err != nil || into == any(&job) {
				return err == nil, err
			}
			return len(allocs) == 1 && len(allocs[0].TaskStates["runner"].Events) >= 3, nil
		})
		if err != nil {
			s.t.Fatal(err)
		}
	}
	out.submitted, out.placed = time.Unix(0, job.SubmitTime), time.Unix(0, allocs[0].CreateTime)
	for _, e := range allocs[0].TaskStates["runner"].Events {
		switch e.Type {
		case "Received":
			out.received = time.Unix(0, e.Time)
		case "Started":
			out.started = time.Unix(0, e.Time)
		}
	}
	return out
}

// cpuOf is the processor time that a process has taken; the kernel counts it in
// hundredths of a second.
func cpuOf(pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}
