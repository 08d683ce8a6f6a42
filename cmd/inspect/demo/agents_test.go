package demo

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inspect/envs/proc"
	"inspect/fixtures/harnesses"
	"inspect/fixtures/modeld"
)

// plain is a repository without a command of its own: the operator's agent works.
func plain() map[string]string {
	return map[string]string{
		"price.txt": "price=11\n",
		"test.sh":   "grep -q price=10 price.txt\n",
		"AGENTS.md": "Prices are whole numbers.\n",
		".inspect.yml": "version: 1\nverify: [{name: unit, run: sh test.sh}]\n" +
			"limits: {memory: 2GiB, pids: 400, disk: 256MiB, timeout: 4m}\n",
	}
}

// lookAround searches everything a process in the sandbox can read for what must not
// be there, and says what it can reach.
const lookAround = `k=sk-de w=canary
for f in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do cat "$f" 2>/dev/null; done >/tmp/seen
grep -rsl --exclude=init -e "${k}mo-" -e "$w-webhook" /tmp/seen /home/agent /workspace /run /etc /var/lib /tmp 2>/dev/null && echo 'KEY''-FOUND'
(curl -s -m 3 http://169.254.169.254/ || curl -s -m 3 http://127.0.0.1:7462/healthz || curl -s -m 3 http://1.1.1.1/) >/dev/null && echo 'WAS''-REACHED'
echo looked`

// openAgents starts a stage whose agent is a real one and whose model follows
// the scripts.
func openAgents(t *testing.T, harness string, repositories map[string]map[string]string, scripts ...modeld.Script) *stage {
	t.Helper()
	return openStageWith(t, repositories, func(s *story) {
		s.o.Harness = harness
		s.o.Programs = []string{harness + "=" + harnesses.Path(t, harness)}
		s.scripts = scripts
		t.Cleanup(func() {
			if s.model != nil {
				s.model.Close()
			}
		})
	})
}

func fix(marker string, before ...modeld.Step) modeld.Script {
	return modeld.Script{Marker: marker, Steps: append(before,
		modeld.Run("sh test.sh").Saying("I run the test first."),
		modeld.Run(modeld.EditLine("price.txt", "price=11", "price=10")),
		modeld.Run("sh test.sh && git commit -qam 'Ten is enough'"),
		modeld.Say("The test passes now."),
	)}
}

// The real agents, each in a sandbox with a model through the gateway: a failing
// test, an edit, a draft pull request. What was spent is what the provider
// billed, to the last billionth; no key is to be found where the agent is.
func TestAgents(t *testing.T) {
	for _, harness := range []string{"opencode", "codex", "claude"} {
		t.Run(harness, func(t *testing.T) {
			s := openAgents(t, harness, map[string]map[string]string{"shop": plain()}, fix("", modeld.Run(lookAround)))
			ctx := patienceOf(t, 6*time.Minute)
			issue := s.ask("shop", "Too dear")
			v := s.until(ctx, s.of(ctx, "shop", issue), "over", over)
			if v.State != "delivered" || v.Generation != 1 || len(pullsOf(t, s.github, "shop")) != 1 {
				t.Fatalf("%s (%s: %s), attempt %d", v.State, v.Reason, v.Words, v.Generation)
			}
			s.billed(v)
			page := s.events(v.Session)
			for _, want := range []string{"looked", "I run the test first.", "The test passes now."} {
				if !strings.Contains(page, want) {
					t.Errorf("the events lack %q", want)
				}
			}
			for _, bad := range []string{"KEY-FOUND", "WAS-REACHED", s.key} {
				if strings.Contains(page, bad) {
					t.Errorf("the events have %q", bad)
				}
			}
			prompts := s.model.Requests()[len(s.model.Requests())-1].Prompts
			if all := strings.Join(prompts, "\n"); !strings.Contains(all, "Prices are whole numbers.") || !strings.Contains(all, "sh test.sh") {
				t.Errorf("the agent was not told what it should be:\n%s", all)
			}
			s.canaryNowhere(s.key)
			onlyAllowed(t, s.github)
			t.Logf("ready after %.1f s, work %.1f s", float64(v.Times.ReadyMS)/1000, float64(v.Times.WorkMS)/1000)
		})
	}
}

// Whatever the model does, the session ends in the right state and its cost is
// the provider's.
func TestModelTrouble(t *testing.T) {
	cases := []struct {
		name  string
		fault modeld.Fault
		state string
	}{
		{"cut", modeld.Fault{Kind: modeld.FaultCut, Skip: 1, After: 2}, "delivered"},
		{"limit", modeld.Fault{Kind: modeld.FaultLimit, Skip: 1, Count: 3, RetryAfter: 1}, "delivered"},
		{"nonsense", modeld.Fault{Kind: modeld.FaultUnknownTool, Skip: 1}, "delivered"},
		{"badjson", modeld.Fault{Kind: modeld.FaultBadJSON, Skip: 2}, "delivered"},
		{"refused", modeld.Fault{Kind: modeld.FaultStatus, Status: 400, Count: -1, Words: "no such thing"}, "failed"},
	}
	repositories, scripts := map[string]map[string]string{}, []modeld.Script{}
	for _, c := range cases {
		repositories[c.name] = plain()
		scripts = append(scripts, fix("trouble-"+c.name))
	}
	s := openAgents(t, "opencode", repositories, scripts...)
	ctx := patienceOf(t, 12*time.Minute)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.fault.Match = func(r modeld.Request) bool {
				return len(r.Tools) > 0 && strings.Contains(strings.Join(r.Prompts, "\n"), "trouble-"+c.name)
			}
			held, err := s.model.AddFault(c.fault)
			if err != nil {
				t.Fatal(err)
			}
			defer held.Release()
			v := s.until(ctx, s.of(ctx, c.name, s.ask(c.name, "trouble-"+c.name)), "over", over)
			if v.State != c.state || held.Hits() == 0 {
				t.Fatalf("%s (%s: %s) after %d faults, want %s", v.State, v.Reason, v.Words, held.Hits(), c.state)
			}
			if c.state == "failed" && (v.Reason != "model" || !strings.Contains(v.Words, "no such thing")) {
				t.Errorf("%s: %s", v.Reason, v.Words)
			}
		})
	}
	s.billed(sessionView{})
}

// The control plane dies while the model answers: the session goes on and is
// delivered once, and the call that was cut is counted apart.
func TestServeKilledInMidAnswer(t *testing.T) {
	s := openAgents(t, "opencode", map[string]map[string]string{"shop": plain()}, fix(""))
	ctx := patienceOf(t, 6*time.Minute)
	held, err := s.model.AddFault(modeld.Fault{Kind: modeld.FaultHold, Skip: 1, After: 2, Match: func(r modeld.Request) bool { return len(r.Tools) > 0 }})
	if err != nil {
		t.Fatal(err)
	}
	id := s.of(ctx, "shop", s.ask("shop", "Too dear"))
	select {
	case <-held.Hit():
	case <-ctx.Done():
		t.Fatal("the model was not asked")
	}
	s.serve.mu.Lock()
	killed := family(t, s.serve.cmd.Process.Pid)
	s.serve.mu.Unlock()
	if err := await(ctx, "nothing to kill", nil, func() (bool, error) { return s.kill("serve", id) }); err != nil {
		t.Fatal(err)
	}
	// The control plane follows serve a moment later: it must not hear the rest.
	for _, p := range killed {
		if p.role() != "control-plane" {
			continue
		}
		if err := await(ctx, "the control plane lives on", nil, func() (bool, error) {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
			return err != nil || len(line) == 0, nil // a zombie has none
		}); err != nil {
			t.Fatal(err)
		}
	}
	held.Release()
	v := s.until(ctx, id, "over", over)
	if v.State != "delivered" || v.Generation != 1 || len(pullsOf(t, s.github, "shop")) != 1 {
		t.Fatalf("%s (%s: %s), attempt %d", v.State, v.Reason, v.Words, v.Generation)
	}
	if v.Model.Unreported != 1 {
		t.Errorf("%d calls are unreported", v.Model.Unreported)
	}
	// Whom the provider told the rest of that answer was dead.
	var lost int64
	for _, r := range s.model.Requests() {
		if r.Fault == modeld.FaultHold && r.Reported {
			lost += priceOf(r.Usage)
		}
	}
	if got, want := v.Model.Cost, s.bill()-lost; got != want {
		t.Errorf("cost %d, billed %d", got, want)
	}
}

// A budget that is too small for the work ends it, with the work kept.
func TestOverBudget(t *testing.T) {
	files := plain()
	files[".inspect.yml"] = strings.Replace(files[".inspect.yml"], "timeout: 4m", "timeout: 4m, budget_usd: 1.00", 1)
	big := modeld.Usage{Input: 50_000, Output: 1_000} // 16.5 cents
	steps := []modeld.Step{modeld.Run("echo kept > kept.txt && git add . && git commit -qm 'Half of it'").Using(big)}
	for range 8 {
		steps = append(steps, modeld.Run("true").Using(big))
	}
	s := openAgents(t, "opencode", map[string]map[string]string{"shop": files}, modeld.Script{Steps: append(steps, modeld.Say("done").Using(big))})
	ctx := patienceOf(t, 6*time.Minute)
	issue := s.ask("shop", "Too dear")
	v := s.until(ctx, s.of(ctx, "shop", issue), "over", over)
	if v.State != "over_budget" || !strings.Contains(v.Words, "budget") {
		t.Fatalf("%s (%s: %s)", v.State, v.Reason, v.Words)
	}
	s.billed(v)
	if v.Spent > v.Model.Budget {
		t.Errorf("spent %d of %d", v.Spent, v.Model.Budget)
	}
	comments, err := s.github.Comments(octocat+"/shop", issue)
	if err != nil || len(comments) != 1 || !strings.Contains(comments[0].Body, "bundle") {
		t.Errorf("comments %+v, %v", comments, err)
	}
	if page := s.events(v.Session); !strings.Contains(page, "80 % of the budget") {
		t.Error("the agent was not told that its budget is nearly used up")
	}
}

// priceOf is what the demo's model costs, in billionths of a US dollar.
func priceOf(u modeld.Usage) int64 {
	return u.Input*3_000 + u.CacheRead*300 + u.CacheWrite*3_750 + u.Output*15_000
}

// bill is what the model's provider billed so far.
func (s *stage) bill() (sum int64) {
	for _, u := range s.model.Billed() {
		sum += priceOf(u)
	}
	return sum
}

// billed holds a session's cost, or that of all sessions, against the bill.
func (s *stage) billed(v sessionView) {
	s.t.Helper()
	var got int64
	want := s.bill()
	if v.Session != "" {
		got = v.Model.Cost
	} else {
		var all []listed
		if err := s.pages.get(s.t.Context(), "/sessions.json", &all); err != nil {
			s.t.Fatal(err)
		}
		for _, l := range all {
			one, err := s.pages.session(s.t.Context(), l.Session)
			if err != nil {
				s.t.Fatal(err)
			}
			got += one.Model.Cost
		}
	}
	if got != want || want == 0 {
		s.t.Errorf("cost %d, billed %d", got, want)
	}
}

// events is the text of a session's page.
func (s *stage) events(id string) string {
	s.t.Helper()
	body, err := s.pages.text(s.t.Context(), "/sessions/"+id)
	if err != nil {
		s.t.Fatal(err)
	}
	return body
}

// canaryNowhere searches what an installation keeps, but for its own secrets.
func (s *stage) canaryNowhere(canary string) {
	s.t.Helper()
	out, err := proc.Run(s.t.Context(), proc.Command{Argv: []string{"grep", "-rlsa", "--exclude-dir=private", canary, filepath.Join(s.dir, "data")}, Env: os.Environ()})
	if found := strings.TrimSpace(string(out.Stdout)); found != "" {
		s.t.Errorf("the key is in %s (%v)", found, err)
	}
}
