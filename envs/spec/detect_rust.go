package spec

import (
	"net/url"
	"slices"
	"strings"
)

// rust recognises a package or workspace of Cargo in the root.
func (d *detector) rust() *guess {
	if !d.has("Cargo.toml") {
		return nil
	}
	g := &guess{marker: "Cargo.toml", programs: []string{"cargo"}}
	manifest, readable := d.text("Cargo.toml")
	toml := parseTOML(manifest)
	workspace := ""
	if toml.hasTable("workspace") {
		workspace = " --workspace"
	}
	fetch := !readable
	for table, keys := range toml {
		last := table[strings.LastIndex(table, ".")+1:]
		if slices.Contains([]string{"dependencies", "dev-dependencies", "build-dependencies"}, last) {
			for _, value := range keys {
				in, _ := value.(map[string]any)
				fetch = fetch || in["path"] == nil // a version, or a table without a path
			}
		}
	}
	locked := ""
	if lock, ok := d.text("Cargo.lock"); ok {
		locked = " --locked"
		var registry bool
		registry, hosts := sources(lock)
		fetch = registry || len(hosts) > 0
		for _, h := range hosts {
			g.gap("Cargo.lock names packages from %s: add that host to egress in %s", show(h), FileName)
		}
	} else if d.has("Cargo.lock") {
		locked, fetch = " --locked", true
	}
	if fetch {
		g.setup, g.egress = []string{"cargo fetch" + locked}, []string{"crates"}
	}
	if name := d.first("rust-toolchain.toml", "rust-toolchain"); name != "" {
		text, _ := d.text(name)
		channel := parseTOML(text).text("toolchain", "channel")
		if channel == "" && !strings.Contains(text, "[") {
			channel = strings.TrimSpace(text)
		}
		if channel != "" && channel != "stable" {
			g.gap("%s asks for Rust %s, which must be installed on the machine", name, show(channel))
		}
	}
	g.setup = append(g.setup, "cargo test --offline --no-run"+workspace)
	g.tests("cargo test --offline"+workspace, ReportExit)
	return g
}

// cratesIndex begins the source of a package of the public registry.
var cratesIndex = []string{"registry+https://github.com/rust-lang/crates.io-index", "sparse+https://index.crates.io"}

// sources reads from a Cargo.lock where its packages come from: the public
// registry, and which other hosts.
func sources(lock string) (registry bool, hosts []string) {
	for line := range strings.Lines(lock) {
		value, ok := strings.CutPrefix(strings.TrimSpace(line), "source = ")
		if !ok {
			continue
		}
		value = strings.Trim(value, `"`)
		if slices.ContainsFunc(cratesIndex, func(p string) bool { return strings.HasPrefix(value, p) }) {
			registry = true
			continue
		}
		_, at, _ := strings.Cut(value, "+")
		u, err := url.Parse(at)
		if err == nil && u.Hostname() != "" && !slices.Contains(hosts, u.Hostname()) && len(hosts) < 5 {
			hosts = append(hosts, u.Hostname())
		}
	}
	return registry, hosts
}
