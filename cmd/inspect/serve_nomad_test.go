package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// engineConfig is a configuration that flags were given to.
func engineConfig(t *testing.T, args ...string) (serveConfig, error) {
	t.Helper()
	var c serveConfig
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.flags(f)
	if err := f.Parse(append([]string{"--github-app-id", "1", "--github-key-file", "k", "--webhook-secret-file", "s"}, args...)); err != nil {
		t.Fatal(err)
	}
	return c, c.check()
}

func TestEngineFlags(t *testing.T) {
	sum := "sha256:" + strings.Repeat("a", 64)
	for args, want := range map[string]string{ // part of the error; empty: good
		"": "",
		"--engine nomad --nomad-address http://127.0.0.1:4646":                                              "",
		"--engine nomad --node none --node-name control-2":                                                  "",
		"--engine nomad --nomad-address https://nomad.example:4646 --nomad-control https://inspect.example": "",
		"--engine nomad --nomad-artifact https://files.example/inspect --nomad-artifact-checksum " + sum:    "",
		"--engine docker":             "--engine",
		"--node none":                 "--node none needs",
		"--engine nomad --node three": "--node",
		"--engine nomad --nomad-address http://10.0.0.1:4646":                                               "in clear",
		"--engine nomad --nomad-address nomad.example":                                                      "--nomad-address",
		"--engine nomad --nomad-control http://inspect.example":                                             "--nomad-control",
		"--engine nomad --nomad-namespace a/b":                                                              "--nomad-namespace",
		"--engine nomad --nomad-pool a/b":                                                                   "--nomad-pool",
		"--engine nomad --nomad-user root":                                                                  "not root",
		"--engine nomad --nomad-user A;b":                                                                   "--nomad-user",
		"--engine nomad --nomad-artifact https://files.example/inspect":                                     "go together",
		"--engine nomad --nomad-artifact https://files.example/inspect --nomad-artifact-checksum sha256:aa": "64 hexadecimal",
		"--engine nomad --nomad-binary inspect":                                                             "absolute",
		"--engine nomad --nomad-node-socket node.sock":                                                      "absolute",
		"--engine nomad --nomad-cert-file c":                                                                "go together",
		"--engine nomad --nomad-mhz 0":                                                                      "--nomad-mhz",
	} {
		_, err := engineConfig(t, strings.Fields(args)...)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
	if os.Geteuid() == 0 {
		if _, err := engineConfig(t, "--engine", "nomad", "--nomad-user="); err == nil || !strings.Contains(err.Error(), "which is root") {
			t.Errorf("runners as root: %v", err)
		}
	}
	for _, c := range []struct {
		args []string
		want int
	}{{nil, 4}, {[]string{"--engine", "nomad"}, maxNomadSessions}, {[]string{"--engine", "nomad", "--max-sessions", "7"}, 7}} {
		if got, err := engineConfig(t, c.args...); err != nil || got.MaxSessions != c.want {
			t.Errorf("%v: %d sessions at once, want %d (%v)", c.args, got.MaxSessions, c.want, err)
		}
	}
}

// Whoever starts the control plane reads Nomad's secrets, and only from files
// that nobody else can read.
func TestNomadSecretsAreGathered(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	n := nomadFlags{clusterFlags: clusterFlags{
		TokenFile: write("token", "the-token\n", 0o600), CAFile: write("ca", "the ca", 0o644), CertFile: write("cert", "the cert", 0o644), KeyFile: write("key", "the key\n", 0o600),
	}, Template: write("job", "{}", 0o644)}
	g, err := n.read()
	if err != nil || g.Token != "the-token" || string(g.CA) != "the ca" || string(g.Cert) != "the cert" || string(g.Key) != "the key" || string(g.Template) != "{}" {
		t.Errorf("%+v %v", g, err)
	}
	for name, edit := range map[string]func(*nomadFlags){
		"open token":    func(n *nomadFlags) { n.TokenFile = write("open", "x", 0o644) },
		"open key":      func(n *nomadFlags) { n.KeyFile = n.CAFile },
		"no such file":  func(n *nomadFlags) { n.CAFile = filepath.Join(dir, "none") },
		"empty token":   func(n *nomadFlags) { n.TokenFile = write("empty", "\n", 0o600) },
		"huge template": func(n *nomadFlags) { n.Template = write("huge", strings.Repeat(" ", maxNomadFile+1), 0o644) },
	} {
		bad := n
		edit(&bad)
		if _, err := bad.read(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
