package gateway

import (
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"sort"
	"strings"

	"inspect/envs/spec"
	"inspect/envs/wire"
)

// Config is what the operator says of models: who serves them, under which
// name and key, and at what price. It does not change after it was made.
type Config struct {
	// Default is the model of sessions that name none; empty if there is none.
	Default string
	// PricesAsOf is the day the prices were looked up, "2026-11-01"; empty if no
	// model has one.
	PricesAsOf string

	models    map[string]Model
	providers map[string]provider
}

// Model is one entry of the configuration.
type Model struct {
	ID        string // as sessions name it, "anthropic/claude-sonnet"
	Name      string // as its provider names it
	Provider  string // key of its provider
	MaxOutput int64  // tokens one answer may have at most
	Priced    bool   // Price says something; else calls cost nothing that we know of
	Price     Price

	api string // of its provider
}

type provider struct {
	id   string
	api  string // apiAnthropic, …
	base string // "https://api.openai.com/v1", without a slash behind it
	key  string // may be empty
}

// What a provider speaks.
const (
	apiAnthropic  = "anthropic"   // messages
	apiOpenAI     = "openai"      // chat completions and responses
	apiOpenAIChat = "openai-chat" // chat completions only
)

var spoken = map[string][]string{
	apiAnthropic:  {wire.APIMessages},
	apiOpenAI:     {wire.APIChat, wire.APIResponses},
	apiOpenAIChat: {wire.APIChat},
}

// Model finds a model by its id.
func (c Config) Model(id string) (Model, bool) {
	m, ok := c.models[id]
	return m, ok
}

// Models are the ids of all models, sorted.
func (c Config) Models() []string {
	ids := make([]string, 0, len(c.models))
	for id := range c.models {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	return ids
}

// Secrets are the providers' keys, for the redactor and for nobody else.
func (c Config) Secrets() []string {
	var all []string
	for _, p := range c.providers {
		if p.key != "" {
			all = append(all, p.key)
		}
	}
	sort.Strings(all)
	return all
}

// APIs are those the model can be spoken to with: wire.APIChat, …
func (m Model) APIs() []string { return slices.Clone(spoken[m.api]) }

// harnesses are the APIs a kind of harness can speak, the one it does best first.
var harnesses = map[string][]string{
	spec.HarnessCodex:    {wire.APIResponses},
	spec.HarnessClaude:   {wire.APIMessages},
	spec.HarnessOpenCode: {wire.APIMessages, wire.APIChat},
}

// API chooses what a kind of harness is to speak with a model. Kinds not known
// here can speak anything. The error says in words what does not fit.
func (c Config) API(model, harnessKind string) (string, error) {
	m, ok := c.models[model]
	if !ok {
		return "", fmt.Errorf("the model %q is not configured; there are: %s", model, orNone(c.Models()))
	}
	can := m.APIs()
	wants, known := harnesses[harnessKind]
	if !known {
		return can[0], nil
	}
	for _, api := range wants {
		if slices.Contains(can, api) {
			return api, nil
		}
	}
	return "", fmt.Errorf("%s speaks %s only, but the provider %s of the model %s serves %s; choose another model or another harness",
		harnessKind, strings.Join(wants, " and "), m.Provider, model, strings.Join(can, " and "))
}

func orNone(ids []string) string {
	if len(ids) == 0 {
		return "none"
	}
	return strings.Join(ids, ", ")
}

// versioned is a path that names a version of the API itself.
var versioned = regexp.MustCompile(`/v[0-9]+[a-z0-9]*(/|$)`)

// baseOf checks an address of a provider and makes it the one that an
// endpoint's path, without its /v1, is put behind.
func baseOf(s string) (string, error) {
	const want = "an address like https://api.example.com or https://api.example.com/v1"
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Opaque != "" {
		return "", fmt.Errorf("expected %s", want)
	}
	switch {
	case u.User != nil:
		return "", fmt.Errorf("expected an address without a password; the key goes into key_file")
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		return "", fmt.Errorf("expected %s, nothing behind the path", want)
	case u.Scheme == "https":
	case u.Scheme == "http" && loopback(u.Hostname()):
	case u.Scheme == "http":
		return "", fmt.Errorf("expected https: the key would cross the network in the clear (http is for this machine alone)")
	default:
		return "", fmt.Errorf("expected %s", want)
	}
	base := strings.TrimRight(u.String(), "/")
	if !versioned.MatchString(u.Path) {
		base += "/v1"
	}
	return base, nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// checkKey says what is wrong with a key. The key itself is in no message.
func checkKey(key string) error {
	if len(key) < 1 || len(key) > 4096 {
		return fmt.Errorf("expected a key of 1 to 4096 letters on one line")
	}
	for _, c := range []byte(key) {
		if c <= ' ' || c > '~' {
			return fmt.Errorf("expected a key of visible ASCII letters on one line")
		}
	}
	return nil
}

// urlOf is where an endpoint of the provider is.
func (p provider) urlOf(ep endpoint) string {
	return p.base + strings.TrimPrefix(ep.path, "/v1")
}

// DefaultMaxOutput is how long an answer of a model may be, in tokens, if
// nobody said.
const DefaultMaxOutput = 32_000

// FromEnvironment makes a configuration of one model, without prices, from the
// variables that model clients know: ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL,
// OPENAI_API_KEY and OPENAI_BASE_URL. "anthropic/NAME" and "openai/NAME" choose
// between them; at another address than OpenAI's own, "openai/NAME" may be a
// model's real name and is kept whole. Without a key only an address on this
// machine is taken.
func FromEnvironment(model string, getenv func(string) string) (Config, error) {
	if len(model) > maxModelID || !modelID.MatchString(model) || model == wire.ReadyModel {
		return Config{}, fmt.Errorf("expected a model like anthropic/claude-sonnet or openai/gpt, but found %q", short(model))
	}
	const openAI, anthropic = "https://api.openai.com", "https://api.anthropic.com"
	type source struct{ prefix, api, home, key, base string }
	from := func(name, api, home string) source {
		upper := strings.ToUpper(name)
		return source{name, api, home, strings.TrimSpace(getenv(upper + "_API_KEY")), strings.TrimSpace(getenv(upper + "_BASE_URL"))}
	}
	a, o := from("anthropic", apiAnthropic, anthropic), from("openai", apiOpenAI, openAI)
	given := func(s source) bool { return s.key != "" || s.base != "" }

	var use source
	prefix, _, _ := strings.Cut(model, "/")
	switch {
	case given(a) && (prefix == a.prefix || strings.HasPrefix(model, "claude")):
		use = a
	case given(o):
		use = o
	case given(a) && prefix != o.prefix:
		use = a
	case prefix == o.prefix:
		return Config{}, fmt.Errorf("no key for %s: set OPENAI_API_KEY, or OPENAI_BASE_URL to a server on this machine", model)
	case prefix == a.prefix:
		return Config{}, fmt.Errorf("no key for %s: set ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL to a server on this machine", model)
	default:
		return Config{}, fmt.Errorf("no key for %s: set OPENAI_API_KEY or ANTHROPIC_API_KEY, or one of their _BASE_URL to a server on this machine", model)
	}
	upper := strings.ToUpper(use.prefix)
	where := use.base
	if where == "" {
		where = use.home
	}
	base, err := baseOf(where)
	if err != nil {
		return Config{}, fmt.Errorf("%s_BASE_URL: %w", upper, err)
	}
	if use.key != "" {
		if err := checkKey(use.key); err != nil {
			return Config{}, fmt.Errorf("%s_API_KEY: %w", upper, err)
		}
	} else if u, _ := url.Parse(base); u == nil || !loopback(u.Hostname()) {
		return Config{}, fmt.Errorf("no key for %s: set %s_API_KEY", model, upper)
	}
	name := model
	if use.api == apiAnthropic || base == openAI+"/v1" {
		name = strings.TrimPrefix(model, use.prefix+"/")
	}
	return Config{
		Default:   model,
		providers: map[string]provider{use.prefix: {id: use.prefix, api: use.api, base: base, key: use.key}},
		models: map[string]Model{model: {
			ID: model, Name: name, Provider: use.prefix, MaxOutput: DefaultMaxOutput, api: use.api,
		}},
	}, nil
}
