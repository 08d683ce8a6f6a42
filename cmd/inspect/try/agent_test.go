package try

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"inspect/envs/spec"
	"inspect/fixtures/harnesses"
	"inspect/fixtures/modeld"
)

// The real OpenCode, on a repository that says nothing of itself but by its
// Makefile, with a model through the gateway: what it does is told, and what it
// cost is what the provider billed.
func TestRealAgent(t *testing.T) {
	t.Parallel()
	const key = "sk-try-canary-71d0a94be2c8"
	m, err := modeld.New(modeld.Options{Key: key, Scripts: []modeld.Script{
		modeld.FixSample("make test", modeld.EditLine("price.txt", "price=11", "price=10"), "git commit -qam 'Ten is enough'"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	dir := openTemp(t)
	r := newRepo(t, filepath.Join(dir, "shop"), map[string]string{
		"price.txt": "price=11\n",
		"Makefile":  "test:\n\t@grep -q price=10 price.txt\n",
	})
	base := r.git("rev-parse", "HEAD")
	keyFile, models := filepath.Join(dir, "model.key"), filepath.Join(dir, "models.yml")
	for path, body := range map[string]string{keyFile: key + "\n", models: fmt.Sprintf(`prices_as_of: 2026-11-29
providers:
  modeld: {api: openai-chat, base_url: %q, key_file: %q}
models:
  modeld/scripted: {provider: modeld, name: scripted, max_output: 4096, price: {input: 3, cache_read: 0.3, output: 15}}
default: modeld/scripted
`, m.URL(), keyFile)} {
		if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := &call{t: t}
	status := c.run("--repo", r.path, "--prompt", "Make the price 10", "--models", models, "--program", "opencode="+harnesses.Path(t, "opencode"), "--budget", "1.50", "--json")
	res := c.result()
	if status != 0 || res.Model != "modeld/scripted" || res.Harness != "opencode" || res.Source != "detected from Makefile" {
		t.Fatalf("status %d, %+v\n%s", status, res, c.stderr.String())
	}
	onBranch(t, r, res.Branch, res.Commit, base)
	var billed int64 // billionths of a dollar: the prices above are per million tokens
	for _, u := range m.Billed() {
		billed += int64(u.Input)*3_000 + int64(u.CacheRead)*300 + int64(u.Output)*15_000
	}
	if want := spec.Money(billed).Decimal(); billed == 0 || res.CostUSD.String() != want {
		t.Errorf("it cost %s, billed was %s", res.CostUSD, want)
	}
	for _, want := range []string{"$ make test", "says: ", "shop at " + base[:10] + " (main), opencode with modeld/scripted, environment detected from Makefile"} {
		if !strings.Contains(c.stderr.String(), want) {
			t.Errorf("the progress lacks %q:\n%s", want, c.stderr.String())
		}
	}
	err = filepath.WalkDir(res.Evidence, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if body, _ := os.ReadFile(path); strings.Contains(string(body), key) {
				t.Errorf("%s holds the model's key", path)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	c.nothingLeft()
}
