package spec

import (
	"encoding/json"
	"path"
	"slices"
	"strings"
)

// node recognises a package.json in the root.
func (d *detector) node() *guess {
	if !d.has("package.json") {
		return nil
	}
	g := &guess{marker: "package.json"}
	text, readable := d.text("package.json")
	var p manifest
	if readable {
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			g.gap("package.json is not the JSON that npm reads: correct it, or write %s with setup and verify", FileName)
			return g
		}
	}
	d.nodeSetup(g, p, readable)
	runner := "npm"
	if len(g.programs) > 0 {
		runner = g.programs[0]
	}
	test := str(p.Scripts["test"])
	switch {
	case !readable, test != "" && !strings.Contains(test, "no test specified"):
		// Without CI some runners wait for changes and never end.
		g.tests("CI=true "+runner+" test", ReportExit)
		if len(g.programs) == 0 {
			g.programs = []string{"npm"}
		}
	case slices.ContainsFunc(d.sorted, isNodeTest):
		g.tests("node --test", ReportExit)
		if len(g.programs) == 0 {
			g.programs = []string{"node"}
		}
	default:
		g.gap("package.json has no test script: add one, or say under verify in %s what proves a change", FileName)
	}
	return g
}

// manifest is what is read of a package.json. Nothing is as it should be there,
// so that only the outer shape is taken for granted.
type manifest struct {
	Scripts        jsonMap         `json:"scripts"`
	Dependencies   jsonMap         `json:"dependencies"`
	Dev            jsonMap         `json:"devDependencies"`
	Optional       jsonMap         `json:"optionalDependencies"`
	Workspaces     json.RawMessage `json:"workspaces"`
	PackageManager json.RawMessage `json:"packageManager"`
}

// jsonMap is an object of anything; what is no object is an empty one.
type jsonMap map[string]json.RawMessage

func (m *jsonMap) UnmarshalJSON(b []byte) error {
	var plain map[string]json.RawMessage
	if json.Unmarshal(b, &plain) == nil {
		*m = plain
	}
	return nil
}

// str is a JSON string's text, or nothing.
func str(raw json.RawMessage) (s string) {
	_ = json.Unmarshal(raw, &s)
	return s
}

// nodeSetup says how the dependencies are installed, and by which program.
func (d *detector) nodeSetup(g *guess, p manifest, readable bool) {
	install := func(program, line string) {
		g.programs, g.setup, g.egress = []string{program}, []string{line}, []string{"npm"}
	}
	unusual := func(lock, program, line string) {
		install(program, line)
		g.gap("%s asks for %s, which must be installed on the machine", lock, program)
	}
	manager, version, _ := strings.Cut(str(p.PackageManager), "@")
	hasDeps := len(p.Dependencies)+len(p.Dev)+len(p.Optional) > 0 || len(p.Workspaces) > 0
	lock := d.first("package-lock.json", "npm-shrinkwrap.json")
	if lock != "" && manager != "" && manager != "npm" {
		lock = "" // a leftover
	}
	switch {
	case lock != "":
		if !readable || hasDeps {
			install("npm", "npm ci --no-audit --no-fund")
		}
	case d.has("pnpm-lock.yaml"):
		unusual("pnpm-lock.yaml", "pnpm", "pnpm install --frozen-lockfile")
	case d.has("yarn.lock"):
		flag := "--frozen-lockfile"
		if d.has(".yarnrc.yml") || manager == "yarn" && !strings.HasPrefix(version, "1.") {
			flag = "--immutable" // Yarn 2 and later
		}
		unusual("yarn.lock", "yarn", "yarn install "+flag)
	case d.first("bun.lock", "bun.lockb") != "":
		unusual(d.first("bun.lock", "bun.lockb"), "bun", "bun install --frozen-lockfile")
	case hasDeps:
		install("npm", "npm install --no-package-lock --no-audit --no-fund")
		g.gap("package.json has dependencies but no lock file: the newest versions it allows are installed")
	}
	for _, deps := range []jsonMap{p.Dependencies, p.Dev, p.Optional} {
		for _, name := range sorted(deps) {
			v := str(deps[name])
			if len(g.gaps) < 4 && (strings.HasPrefix(v, "git") || strings.Contains(v, "://") || isGitHub(v)) {
				g.gap("package.json takes %s from %s, not from the registry: add that host to egress in %s", show(name), show(withoutAccount(v)), FileName)
			}
		}
	}
}

// isGitHub says whether a version is the short form of a repository, "octocat/hello".
func isGitHub(v string) bool {
	owner, repo, ok := strings.Cut(v, "/")
	return ok && owner != "" && repo != "" && !strings.ContainsAny(v, ":@ .<>=^~*|")
}

// withoutAccount is an address without what may be a password.
func withoutAccount(v string) string {
	scheme, rest, ok := strings.Cut(v, "://")
	if !ok {
		return v
	}
	host, _, _ := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(host, '@'); i >= 0 {
		rest = rest[i+1:]
	}
	return scheme + "://" + rest
}

// isNodeTest says whether `node --test` finds a file by its name.
func isNodeTest(name string) bool {
	ext := path.Ext(name)
	if !slices.Contains([]string{".js", ".mjs", ".cjs"}, ext) || strings.HasPrefix(name, "node_modules/") || strings.Contains(name, "/node_modules/") {
		return false
	}
	base := strings.TrimSuffix(path.Base(name), ext)
	return base == "test" || strings.HasPrefix(base, "test-") || strings.HasSuffix(base, ".test") || strings.HasSuffix(base, "-test") ||
		strings.HasSuffix(base, "_test") || slices.Contains(strings.Split(path.Dir(name), "/"), "test")
}

func sorted(m jsonMap) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
