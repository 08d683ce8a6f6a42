package demo

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"inspect/fixtures/harnesses"
	"inspect/fixtures/modeld"
)

// A real agent needs a model. Without a key of a provider it is one without a
// mind, that follows a script.

// scriptedModel is the id of the model without a mind, and what calls of it
// are said to cost.
const scriptedModel = "modeld/scripted"

// openModel starts the model the agent is to use, if it uses one, and returns
// the flags that tell `inspect serve` of it.
func (st *story) openModel() ([]string, error) {
	if st.o.Harness == "" {
		return nil, nil
	}
	model, text := st.o.Model, ""
	var err error
	if model == "" {
		model = scriptedModel
		text, err = st.scripted()
	} else {
		text, err = st.real(model)
	}
	if err != nil {
		return nil, err
	}
	file := filepath.Join(st.dir, "models.yml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	args := []string{"--harness", st.o.Harness, "--models", file}
	programs := st.o.Programs
	if len(programs) == 0 {
		// Those that tests run, if they are installed; else serve looks on PATH.
		if path, err := harnesses.Find(st.o.Harness); err == nil {
			programs = []string{st.o.Harness + "=" + path}
		}
	}
	for _, p := range programs {
		args = append(args, "--program", p)
	}
	return args, nil
}

// scripted starts the model without a mind, which resolves the sample issue.
func (st *story) scripted() (string, error) {
	done := st.out.step("a model without a mind, that follows a script")
	scripts := st.scripts
	if scripts == nil {
		scripts = []modeld.Script{modeld.FixSample(st.repo.Test, modeld.EditLine(st.repo.Edit, st.repo.Replace, st.repo.With),
			"git commit -qam 'Bounds belong to the cheaper class'")}
	}
	// The provider's key must be found nowhere but there, in the control plane
	// and in the demo.
	st.key = "sk-demo-" + rand.Text()
	m, err := modeld.New(modeld.Options{Key: st.key, Scripts: scripts})
	if err != nil {
		return "", err
	}
	if err := m.Start("127.0.0.1:0"); err != nil {
		return "", err
	}
	st.model = m
	key, err := st.keyFile(st.key)
	if err != nil {
		return "", err
	}
	done(m.URL())
	api := map[string]string{"codex": "openai", "claude": "anthropic"}[st.o.Harness]
	if api == "" {
		api = "openai-chat"
	}
	return fmt.Sprintf(`prices_as_of: 2026-11-29 # made up, as the model is
providers:
  modeld: {api: %s, base_url: %q, key_file: %q}
models:
  %s: {provider: modeld, name: scripted, max_output: 4096, price: {input: 3, cache_read: 0.3, cache_write: 3.75, output: 15}}
default: %s
`, api, m.URL(), key, scriptedModel, scriptedModel), nil
}

// real tells of a provider's model, whose key is in the environment.
func (st *story) real(model string) (string, error) {
	provider, name, _ := strings.Cut(model, "/")
	p, ok := map[string]struct{ api, key, base, otherwise string }{
		"openai":    {"openai", "OPENAI_API_KEY", "OPENAI_BASE_URL", "https://api.openai.com"},
		"anthropic": {"anthropic", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "https://api.anthropic.com"},
	}[provider]
	if !ok || name == "" {
		return "", fmt.Errorf("--model: expected openai/NAME or anthropic/NAME, but found %q", model)
	}
	key := os.Getenv(p.key)
	if key == "" {
		return "", fmt.Errorf("--model %s needs %s; without --model the demo brings a model without a mind", model, p.key)
	}
	base := os.Getenv(p.base)
	if base == "" {
		base = p.otherwise
	}
	file, err := st.keyFile(key)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("providers:\n  %s: {api: %s, base_url: %q, key_file: %q}\nmodels:\n  %q: {provider: %s, name: %q}\ndefault: %q\n",
		provider, p.api, base, file, model, provider, name, model), nil
}

func (st *story) keyFile(key string) (string, error) {
	file := filepath.Join(st.dir, "model.key")
	return file, os.WriteFile(file, []byte(key+"\n"), 0o600)
}
