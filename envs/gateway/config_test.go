package gateway

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"inspect/envs/wire"
)

const goodConfig = `
prices_as_of: 2026-11-01
providers:
  anthropic: {api: anthropic, base_url: https://api.anthropic.com, key_file: a.key}
  openai:    {api: openai, base_url: https://api.openai.com/v1/, key_file: o.key}
  local:     {api: openai-chat, base_url: "http://127.0.0.1:8000"}
models:
  anthropic/claude-sonnet: {provider: anthropic, name: claude-x, max_output: 64000, price: {input: 3, cache_read: 0.30, cache_write: 3.75, output: 15}}
  openai/gpt: {provider: openai, name: gpt-x, max_output: 128000, price: {input: 1.25, cache_read: 0.125, output: 10}}
  local/qwen: {provider: local, name: Qwen/Qwen3, max_output: 8192}
default: anthropic/claude-sonnet
`

func testKeys(name string) ([]byte, error) { return []byte("key-of-" + name + "\n"), nil }

func TestParse(t *testing.T) {
	c, err := Parse([]byte(goodConfig), testKeys)
	if err != nil {
		t.Fatal(err)
	}
	m, ok := c.Model("anthropic/claude-sonnet")
	want := Model{ID: "anthropic/claude-sonnet", Name: "claude-x", Provider: "anthropic", MaxOutput: 64000, Priced: true,
		Price: Price{Input: 3000, CacheRead: 300, CacheWrite: 3750, Output: 15000}, api: apiAnthropic}
	if !ok || m != want {
		t.Errorf("got %+v, want %+v", m, want)
	}
	m, _ = c.Model("openai/gpt")
	if (m.Price != Price{Input: 1250, CacheRead: 125, CacheWrite: 1250, Output: 10000}) {
		t.Errorf("got %+v", m.Price)
	}
	if m, _ = c.Model("local/qwen"); m.Priced {
		t.Error("a model without a price is priced")
	}
	if _, ok := c.Model("other"); ok {
		t.Error("an unknown model is known")
	}
	if c.Default != "anthropic/claude-sonnet" || c.PricesAsOf != "2026-11-01" {
		t.Errorf("got %q, %q", c.Default, c.PricesAsOf)
	}
	if got := c.Secrets(); !slices.Equal(got, []string{"key-of-a.key", "key-of-o.key"}) {
		t.Errorf("got %q", got)
	}
	if got := c.Models(); !slices.Equal(got, []string{"anthropic/claude-sonnet", "local/qwen", "openai/gpt"}) {
		t.Errorf("got %q", got)
	}
	for id, want := range map[string]string{
		"anthropic": "https://api.anthropic.com/v1/messages", "openai": "https://api.openai.com/v1/messages", "local": "http://127.0.0.1:8000/v1/messages",
	} {
		if got := c.providers[id].urlOf(endpoint{path: "/v1/messages"}); got != want {
			t.Errorf("%s: got %s, want %s", id, got, want)
		}
	}
}

func TestParseProblems(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"default: anthropic/claude-sonnet", "default: openai/other", `line 11: default: expected one of anthropic/claude-sonnet, local/qwen, openai/gpt, but found "openai/other"`},
		{"default:", "defualt:", "line 11: defualt: unknown key; expected one of prices_as_of, providers, models, default"},
		{"prices_as_of: 2026-11-01", "prices_as_of: november", `line 2: prices_as_of: expected a day like 2026-11-01, but found "november"`},
		{"prices_as_of: 2026-11-01\n", "\n", "prices_as_of: expected the day the prices were looked up"},
		{"api: openai,", "api: opanai,", `line 5: providers.openai.api: expected anthropic, openai or openai-chat, but found "opanai"`},
		{"api: openai, ", "", "line 5: providers.openai.api: expected anthropic, openai or openai-chat; the key is missing"},
		{"https://api.anthropic.com", "http://api.anthropic.com", "line 4: providers.anthropic.base_url: expected https"},
		{"https://api.anthropic.com", "https://u:p@api.anthropic.com", "without a password"},
		{"https://api.anthropic.com", "'https://api.anthropic.com/?a=b'", "nothing behind the path"},
		{"https://api.anthropic.com", "ftp://api.anthropic.com", "expected an address like"},
		{"https://api.anthropic.com", "api.anthropic.com", "expected an address like"},
		{"http://127.0.0.1:8000", "http://10.0.0.1:8000", "expected https"},
		{", key_file: a.key", "", "line 4: providers.anthropic.key_file: expected the name of a file"},
		{"key_file: a.key", "key_file: missing", "line 4: providers.anthropic.key_file: cannot open missing: no such file"},
		{"key_file: a.key", "key_file: empty", "expected a key of 1 to 4096 letters on one line in empty"},
		{"key_file: a.key", "key_file: lines", "expected a key of visible ASCII letters on one line in lines"},
		{"key_file: a.key", "key: sk-1", "unknown key; expected one of api, base_url, key_file"},
		{"provider: local", "provider: nobody", `line 10: models.local/qwen.provider: expected one of anthropic, local, openai, but found "nobody"`},
		{"max_output: 8192", "max_output: lots", `line 10: models.local/qwen.max_output: expected a number of tokens like 64000, but found "lots"`},
		{"name: Qwen/Qwen3, ", "", "name: expected the provider's own name of the model; the key is missing"},
		{"local/qwen:", "../qwen:", "expected an id like anthropic/claude-sonnet"},
		{"local/qwen:", "inspect/ready:", "expected an id like anthropic/claude-sonnet"},
		{"input: 3,", "input: 3.0001,", `line 8: models.anthropic/claude-sonnet.price.input: expected US dollars per million tokens, like 3 or 0.30, at most three decimals, but found "3.0001"`},
		{"input: 3,", "input: -3,", "price.input: expected US dollars"},
		{"input: 3,", "input: 3e3,", "price.input: expected US dollars"},
		{"input: 3,", "input: 100000,", "price.input: expected US dollars"},
		{"input: 3,", "", "price.input: expected US dollars per million tokens, like 3 or 0.30, at most three decimals; the key is missing"},
		{"cache_write: 3.75, ", "", "price.cache_write: expected US dollars"},
		{"cache_read: 0.125", "cache_raed: 0.125", "unknown key; expected one of input, cache_read, cache_write, cache_write_1h, output"},
		{"local/qwen:", "openai/gpt:", "line 10: models.openai/gpt: expected each key once"},
		{"local/qwen: {", "local/qwen: &a {", "anchors and aliases are not allowed"},
		{"models:", "models: []\nmodel:", "expected a map of models"},
		{"providers:", "\tproviders:", "expected YAML"},
		{"default: anthropic/claude-sonnet", "---\nx: 1", "expected one YAML document"},
	} {
		text := strings.Replace(goodConfig, c.from, c.to, 1)
		if text == goodConfig {
			t.Fatalf("%q is not in the text", c.from)
		}
		_, err := Parse([]byte(text), func(name string) ([]byte, error) {
			switch name {
			case "missing":
				_, err := os.ReadFile("missing")
				return nil, err
			case "empty":
				return []byte("\n"), nil
			case "lines":
				return []byte("secretpart\nsecretpart"), nil
			}
			return testKeys(name)
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q for %q:\ngot  %v\nwant %s", c.to, c.from, err, c.want)
		} else if strings.Contains(err.Error(), "secretpart") || strings.Contains(err.Error(), "key-of") {
			t.Errorf("a key is in %v", err)
		}
	}
	for _, text := range []string{"", "[]", "x", strings.Repeat("#", maxConfig+1), "models: {}\n" + strings.Repeat("a: {}\n", 3)} {
		if _, err := Parse([]byte(text), testKeys); err == nil {
			t.Errorf("%.20q is taken", text)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(goodConfig)
	f.Add("a: &a [*a]")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := Parse([]byte(s), testKeys)
		if err != nil {
			return
		}
		for _, id := range c.Models() {
			if m, _ := c.Model(id); m.MaxOutput < 1 || len(m.APIs()) == 0 || c.providers[m.Provider].base == "" {
				t.Fatalf("%q: %+v", s, m)
			}
		}
	})
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "models.yml")
	write("models.yml", goodConfig, 0o644)
	write("a.key", "key-of-anthropic\n", 0o600)
	write("o.key", "key-of-openai\n", 0o640)
	c, err := Load(file)
	if err != nil || !slices.Contains(c.Secrets(), "key-of-anthropic") {
		t.Fatalf("got %v", err)
	}
	write("a.key", "key-of-anthropic\n", 0o644)
	if _, err := Load(file); err == nil || !strings.Contains(err.Error(), "chmod 600") || !strings.Contains(err.Error(), "line 4") || !strings.Contains(err.Error(), file) {
		t.Errorf("an open key file: %v", err)
	}
	write("a.key", strings.Repeat("k", maxKeyFile+1), 0o600)
	if _, err := Load(file); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("a large key file: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "a.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(file); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a missing key file: %v", err)
	}
	if _, err := Load(dir); err == nil {
		t.Error("a folder is taken")
	}
	if _, err := Load(filepath.Join(dir, "no.yml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// The example of the documentation is one.
func TestExampleFile(t *testing.T) {
	body, err := os.ReadFile("../../docs/models.yml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse(body, testKeys)
	if err != nil || len(c.Models()) == 0 || c.Default == "" {
		t.Errorf("got %v, %v", c.Models(), err)
	}
	for _, id := range c.Models() {
		if m, _ := c.Model(id); m.Priced {
			t.Errorf("the example has a price for %s; prices are for the operator to look up", id)
		}
	}
}

func TestAPI(t *testing.T) {
	c, err := Parse([]byte(goodConfig), testKeys)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ model, kind, api, words string }{
		{"anthropic/claude-sonnet", "opencode", wire.APIMessages, ""},
		{"anthropic/claude-sonnet", "claude", wire.APIMessages, ""},
		{"anthropic/claude-sonnet", "codex", "", "codex speaks responses only, but the provider anthropic of the model anthropic/claude-sonnet serves messages; choose another model or another harness"},
		{"anthropic/claude-sonnet", "command", wire.APIMessages, ""},
		{"openai/gpt", "opencode", wire.APIChat, ""},
		{"openai/gpt", "codex", wire.APIResponses, ""},
		{"openai/gpt", "claude", "", "claude speaks messages only, but the provider openai of the model openai/gpt serves chat and responses"},
		{"openai/gpt", "command", wire.APIChat, ""},
		{"local/qwen", "opencode", wire.APIChat, ""},
		{"local/qwen", "codex", "", "codex speaks responses only"},
		{"other", "opencode", "", "the model \"other\" is not configured; there are: anthropic/claude-sonnet, local/qwen, openai/gpt"},
	} {
		api, err := c.API(x.model, x.kind)
		if api != x.api || (err == nil) != (x.words == "") || err != nil && !strings.Contains(err.Error(), x.words) {
			t.Errorf("%s with %s: got %q, %v", x.model, x.kind, api, err)
		}
	}
}

func TestBaseOf(t *testing.T) {
	for in, want := range map[string]string{
		"https://api.openai.com":               "https://api.openai.com/v1",
		"https://api.openai.com/":              "https://api.openai.com/v1",
		"https://api.openai.com/v1":            "https://api.openai.com/v1",
		"https://api.openai.com/v1/":           "https://api.openai.com/v1",
		"https://models.example/api/v1":        "https://models.example/api/v1",
		"https://models.example/proxy":         "https://models.example/proxy/v1",
		"https://models.example/api/paas/v4":   "https://models.example/api/paas/v4",
		"https://models.example/v1beta/openai": "https://models.example/v1beta/openai",
		"http://localhost:8000":                "http://localhost:8000/v1",
		"http://[::1]:8000/v1":                 "http://[::1]:8000/v1",
		"http://127.0.0.1.example:8000":        "",
		"http://localhost.example":             "",
		"":                                     "",
		"https://":                             "",
		"https:api.openai.com":                 "",
		"https://api.openai.com/v1#x":          "",
		"https://api.openai.com/v1?":           "",
		"unix:///run/model":                    "",
		"https://user@api.openai.com":          "",
	} {
		if got, err := baseOf(in); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v", in, got, err)
		}
	}
}

func TestFromEnvironment(t *testing.T) {
	const oa, an = "sk-openai-1", "sk-anthropic-1"
	for _, c := range []struct {
		name, model string
		env         map[string]string
		want        string // provider, address and name; or words of the error
	}{
		{"anthropic", "anthropic/claude-x", map[string]string{"ANTHROPIC_API_KEY": an, "OPENAI_API_KEY": oa}, "anthropic https://api.anthropic.com/v1 claude-x"},
		{"openai", "openai/gpt-x", map[string]string{"ANTHROPIC_API_KEY": an, "OPENAI_API_KEY": oa}, "openai https://api.openai.com/v1 gpt-x"},
		{"by its name", "claude-x", map[string]string{"ANTHROPIC_API_KEY": an, "OPENAI_API_KEY": oa}, "anthropic https://api.anthropic.com/v1 claude-x"},
		{"by its name", "gpt-x", map[string]string{"ANTHROPIC_API_KEY": an, "OPENAI_API_KEY": oa}, "openai https://api.openai.com/v1 gpt-x"},
		{"the only one", "some-model", map[string]string{"ANTHROPIC_API_KEY": an}, "anthropic https://api.anthropic.com/v1 some-model"},
		{"a server of many", "anthropic/claude-x", map[string]string{"OPENAI_API_KEY": oa, "OPENAI_BASE_URL": "https://models.example/api/v1"}, "openai https://models.example/api/v1 anthropic/claude-x"},
		{"a server of many", "openai/gpt-oss", map[string]string{"OPENAI_BASE_URL": "http://127.0.0.1:8000/v1"}, "openai http://127.0.0.1:8000/v1 openai/gpt-oss"},
		{"this machine", "anthropic/claude-x", map[string]string{"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}, "anthropic http://127.0.0.1:9/v1 claude-x"},
		{"nothing", "anthropic/claude-x", nil, "set ANTHROPIC_API_KEY"},
		{"nothing", "openai/gpt-x", nil, "set OPENAI_API_KEY"},
		{"nothing", "x", nil, "set OPENAI_API_KEY or ANTHROPIC_API_KEY"},
		{"the other key", "openai/gpt-x", map[string]string{"ANTHROPIC_API_KEY": an}, "set OPENAI_API_KEY"},
		{"no key", "gpt-x", map[string]string{"OPENAI_BASE_URL": "https://models.example"}, "set OPENAI_API_KEY"},
		{"in the clear", "gpt-x", map[string]string{"OPENAI_API_KEY": oa, "OPENAI_BASE_URL": "http://models.example"}, "OPENAI_BASE_URL: expected https"},
		{"no key at all", "gpt-x", map[string]string{"OPENAI_API_KEY": "a b"}, "OPENAI_API_KEY: expected a key"},
		{"no model", "", map[string]string{"OPENAI_API_KEY": oa}, "expected a model like"},
		{"the ready model", wire.ReadyModel, map[string]string{"OPENAI_API_KEY": oa}, "expected a model like"},
	} {
		cfg, err := FromEnvironment(c.model, func(name string) string { return c.env[name] })
		if err != nil {
			if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), oa) {
				t.Errorf("%s: %s: got %v, want %s", c.name, c.model, err, c.want)
			}
			continue
		}
		m, ok := cfg.Model(c.model)
		if got := m.Provider + " " + cfg.providers[m.Provider].base + " " + m.Name; !ok || got != c.want || m.Priced || m.MaxOutput < 1 || cfg.Default != c.model {
			t.Errorf("%s: %s: got %q %+v, want %q", c.name, c.model, got, m, c.want)
		}
	}
}
