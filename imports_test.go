// Package inspect_test holds the rules of the house: which room may know which.
package inspect_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// leaves import nothing of ours and may be imported by all.
var leaves = []string{"envs/spec", "envs/wire", "envs/proc", "checks/redact"}

// rooms lists, for each room, the rooms it may import besides itself and the leaves.
var rooms = map[string][]string{
	"app":       {"scheduler", "checks", "storage"},
	"scheduler": {"storage"},
	"envs":      {},
	"checks":    {},
	"storage":   {},
	"cmd":       {"app", "scheduler", "envs", "checks", "storage", "docs"},
	"docs":      {},
	"fixtures":  {},
}

// pure packages decide; they do not touch the world.
var pure = []string{"app/command", "app/policy", "app/context", "app/comment", "app/manifest", "app/diagnosis", "app/measure", "envs/spec", "envs/wire", "checks/redact", "checks/render", "checks/buildkite/step"}

// world is what pure packages must not import.
var world = []string{"net", "net/http", "os", "os/exec", "io/fs", "path/filepath", "database/sql", "syscall", "golang.org/x/sys/unix", "log/slog", "math/rand", "math/rand/v2", "crypto/rand"}

// only one package may know each of these.
var only = map[string]string{
	"github.com/google/go-github/v60":            "app/github",
	"github.com/bradleyfalzon/ghinstallation/v2": "app/github",
	"github.com/hashicorp/nomad/api":             "scheduler/nomad",
	"github.com/buildkite/go-buildkite/v3":       "checks/buildkite",
	"github.com/stripe/smokescreen":              "envs/egress",
	"github.com/stripe/goproxy":                  "envs/egress",
	"github.com/chromedp/chromedp":               "envs/shot",
	"github.com/chromedp/cdproto":                "envs/shot",
}

type pkg struct {
	ImportPath  string
	Imports     []string
	TestImports []string
	Doc         string
	Name        string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,Doc,Name", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if p.ImportPath != "inspect" {
			all = append(all, p)
		}
	}
	if len(all) < 20 {
		t.Fatalf("only %d packages found", len(all))
	}
	return all
}

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, "inspect/")
		for _, rule := range broken(name, p.Imports) {
			t.Errorf("%s %s", name, rule)
		}
	}
}

// broken says which rules the imports of a package break.
func broken(name string, imports []string) (out []string) {
	room, _, _ := strings.Cut(name, "/")
	leaf := slices.Contains(leaves, name)
	for _, imp := range imports {
		for module, owner := range only {
			if (imp == module || strings.HasPrefix(imp, module+"/")) && name != owner {
				out = append(out, "imports "+imp+", which only "+owner+" may")
			}
		}
		if slices.Contains(pure, name) && (slices.Contains(world, imp) || strings.HasPrefix(imp, "net/")) && imp != "net/url" {
			out = append(out, "is pure and must not import "+imp)
		}
		of, ours := strings.CutPrefix(imp, "inspect/")
		if !ours || slices.Contains(leaves, of) && !leaf {
			continue
		}
		other, _, _ := strings.Cut(of, "/")
		switch {
		case leaf:
			out = append(out, "is a leaf and must not import "+of)
		case other == "fixtures":
			if room != "fixtures" && !strings.HasPrefix(name, "cmd/inspect/demo") {
				out = append(out, "imports "+of+", which only fixtures and the demo may")
			}
		case other != room && !slices.Contains(rooms[room], other):
			out = append(out, "must not import "+of)
		}
	}
	return out
}

// The rules can fail: each of these breaks one.
func TestBrokenRulesAreSeen(t *testing.T) {
	for _, c := range []struct{ name, imp string }{
		{"envs/wire", "inspect/envs/proc"},
		{"envs/node", "inspect/scheduler"},
		{"checks/render", "inspect/app/comment"},
		{"scheduler", "inspect/app/github"},
		{"storage", "inspect/scheduler"},
		{"app/web", "inspect/envs/node"},
		{"app/intake", "inspect/fixtures/githubd"},
		{"app/intake", "github.com/google/go-github/v60/github"},
		{"app/command", "net/http"},
		{"checks/render", "os"},
	} {
		if len(broken(c.name, []string{c.imp})) == 0 {
			t.Errorf("%s may import %s unseen", c.name, c.imp)
		}
	}
	for _, c := range []struct{ name, imp string }{
		{"app/web", "inspect/scheduler"}, {"app/web", "inspect/envs/wire"}, {"cmd/inspect", "inspect/envs/node"},
		{"cmd/inspect/demo", "inspect/fixtures/githubd"}, {"envs/node", "inspect/envs/sandbox"}, {"app/github", "github.com/google/go-github/v60/github"},
	} {
		if got := broken(c.name, []string{c.imp}); len(got) > 0 {
			t.Errorf("%s must be able to import %s: %v", c.name, c.imp, got)
		}
	}
}

// Every folder says what it is for.
func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		if len(strings.Fields(p.Doc)) < 5 {
			t.Errorf("%s: no package comment that says what the room is for", p.ImportPath)
		}
	}
}
