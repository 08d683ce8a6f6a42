package opencode

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"inspect/envs/gateway"
	"inspect/envs/harness"
	"inspect/envs/harness/harnesstest"
	"inspect/envs/sandbox"
	"inspect/envs/wire"
	"inspect/fixtures/modeld"
)

// purse is a ledger that pays so many calls.
type purse struct {
	mu   sync.Mutex
	left int
	n    int64
}

func (p *purse) Reserve(_ context.Context, _ wire.ModelCaller, c wire.ModelCall) (wire.Reservation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left == 0 {
		return wire.Reservation{}, &wire.Error{Code: wire.CodeOverBudget, Message: "the session's budget is used up"}
	}
	p.left--
	p.n++
	return wire.Reservation{ID: p.n, Granted: c.Want}, nil
}

func (p *purse) Settle(context.Context, wire.ModelCaller, int64, wire.Usage) error { return nil }

// What OpenCode sends to models of any kind is what the gateway lets through,
// its throw-away prompt costs nothing, and the end of the money is its end.
func TestThroughTheGateway(t *testing.T) {
	write := modeld.Call("write", `{"filePath":"/workspace/b","content":"x"}`)
	patch := modeld.Call("apply_patch", `{"patchText":"*** Begin Patch\n*** Add File: b\n+x\n*** End Patch"}`)
	for _, c := range []struct {
		api, provider, model, real string
		edit                       modeld.Step
	}{
		{wire.APIMessages, "anthropic", "anthropic/claude-sonnet", "claude-sonnet-4-5", write},
		{wire.APIChat, "openai-chat", "elsewhere/claude-sonnet-4-5", "claude", write},
		{wire.APIChat, "openai-chat", "local/qwen3-coder", "Qwen/Qwen3", write},
		{wire.APIResponses, "openai", "openai/gpt-5.2", "gpt-5.2", patch},
	} {
		t.Run(c.model+" "+c.api, func(t *testing.T) {
			t.Parallel()
			const key = "sk-canary-4242424242424242"
			m, err := modeld.New(modeld.Options{Key: key, Models: []string{c.real}, Scripts: []modeld.Script{{Steps: []modeld.Step{
				modeld.Run("cat a").Saying("I look."), c.edit, modeld.Run("echo three"), modeld.Say("Done."),
			}}}})
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Start("127.0.0.1:0"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = m.Close() })
			config, err := gateway.Parse([]byte("providers: {p: {api: "+c.provider+", base_url: '"+m.URL()+"', key_file: key}}\n"+
				"models:\n  "+c.model+": {provider: p, name: '"+c.real+"', max_output: 64000}\n"), func(string) ([]byte, error) { return []byte(key), nil })
			if err != nil {
				t.Fatal(err)
			}
			ledger := &purse{left: 3}
			h, err := gateway.NewHandler(gateway.HandlerOptions{
				Config: config, Ledger: ledger,
				Authenticate: func(*http.Request) (wire.ModelCaller, error) {
					return wire.ModelCaller{Session: "s", Generation: 1, Model: c.model}, nil
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			control := httptest.NewServer(h)
			t.Cleanup(control.Close)
			over := false
			door := gateway.NewDoor(gateway.DoorOptions{
				Control: control.URL, Header: func(http.Header) {}, OnBudget: func(_, _ int64, o bool) { over = over || o },
			})
			box := newBox(t, door, map[string]string{"a": "1\n"})
			events := harnesstest.NewEvents()
			s, err := Harness{}.Boot(t.Context(), box, harness.Input{
				Dir: sandbox.Workspace, Home: sandbox.Home, Model: c.model, API: c.api,
				Gateway: harnesstest.Gateway, Proxy: harnesstest.Proxy, Env: []string{box.Path},
			}, events.Add)
			if err != nil {
				t.Fatal(err)
			}
			r := run{events, s, m, box}
			<-r.Ready()
			if n := len(m.Requests()); n != 0 {
				t.Errorf("%d requests before the first prompt", n)
			}
			r.prompt(t, "do it")
			res := r.wait(t)
			if !strings.Contains(res.Failed, "budget is used up") || !over {
				t.Errorf("result %+v, over budget %v", res, over)
			}
			tools := r.Tools()
			if r.Messages() != "I look.\n" || len(tools) != 3 || !slices.Equal(tools[1].Files, []string{"b"}) || tools[1].Failed || tools[2].Output != "three\n" {
				t.Errorf("said %q, did %+v", r.Messages(), tools)
			}
			for _, q := range m.Requests() {
				if q.API != c.api || q.Status != 200 || !q.Stream {
					t.Errorf("request %d: %s %d", q.N, q.Path, q.Status)
				}
			}
		})
	}
}
