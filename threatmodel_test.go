package inspect_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// attackTable is the head of the threat model's tables in which each row needs a test.
var attackTable = []string{"attack", "what stops it", "test"}

// testName is how the threat model names a test: `package: TestName` or
// `package: TestName/case`.
var (
	testName = regexp.MustCompile(`^([a-z0-9/]+): (Test[A-Z]\w*)(?:/(.+))?$`)
	inCode   = regexp.MustCompile("`([^`]*)`")
)

// tested is what the test files of one package have: functions, and the texts
// that cases can be named by.
type tested struct{ functions, texts map[string]bool }

func readTests(pkg string) (tested, error) {
	out := tested{map[string]bool{}, map[string]bool{}}
	files, err := filepath.Glob(filepath.Join(filepath.FromSlash(pkg), "*_test.go"))
	if err != nil {
		return out, err
	}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return out, err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv == nil {
					out.functions[n.Name.Name] = true
				}
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					out.texts[text] = true
				}
			}
			return true
		})
	}
	return out, nil
}

// cellsOf are the cells of a table's row, nil if the line is none.
func cellsOf(line string) (cells []string) {
	inner, ok := strings.CutPrefix(strings.TrimSpace(line), "|")
	if inner, ok2 := strings.CutSuffix(inner, "|"); ok && ok2 {
		for cell := range strings.SplitSeq(inner, "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
	}
	return cells
}

// unproved says which attacks of a threat model have no test, and which of the
// tests it names are not there. It counts the attacks.
func unproved(doc string, read func(pkg string) (tested, error)) (attacks int, problems []string) {
	packages := map[string]tested{}
	names := func(line string) (n int, wrong []string) {
		for _, m := range inCode.FindAllStringSubmatch(line, -1) {
			name := testName.FindStringSubmatch(m[1])
			if name == nil {
				continue
			}
			pkg, function, of := name[1], name[2], name[3]
			p, ok := packages[pkg]
			if !ok {
				var err error
				if p, err = read(pkg); err != nil {
					wrong = append(wrong, err.Error())
				}
				packages[pkg] = p
			}
			switch {
			case !p.functions[function]:
				wrong = append(wrong, fmt.Sprintf("%s has no test %s", pkg, function))
			case of != "" && !p.texts[of]:
				wrong = append(wrong, fmt.Sprintf("%s has no case %q for %s", pkg, of, function))
			default:
				n++
			}
		}
		return n, wrong
	}
	var head []string
	for i, line := range strings.Split(doc, "\n") {
		cells := cellsOf(line)
		n, wrong := names(line)
		for _, w := range wrong {
			problems = append(problems, fmt.Sprintf("line %d: %s", i+1, w))
		}
		switch {
		case cells == nil:
			head = nil
		case head == nil:
			head = cells
		case strings.Trim(line, "|-: ") == "" || !slices.Equal(head, attackTable):
		default:
			attacks++
			if last, _ := names(cells[len(cells)-1]); len(cells) != len(head) || last == 0 || last != n || last != strings.Count(cells[len(cells)-1], "`")/2 {
				problems = append(problems, fmt.Sprintf("line %d: the attack %q has no test, or something else beside it", i+1, cells[0]))
			}
		}
	}
	return attacks, problems
}

// Each attack of the threat model has a test, and each test that it names is there.
func TestThreatModel(t *testing.T) {
	doc, err := os.ReadFile("docs/threat-model.md")
	if err != nil {
		t.Fatal(err)
	}
	attacks, problems := unproved(string(doc), readTests)
	for _, p := range problems {
		t.Error(p)
	}
	if attacks < 100 {
		t.Errorf("only %d attacks were found", attacks)
	}
}

// What is missing is seen.
func TestUnprovedAttacksAreSeen(t *testing.T) {
	read := func(pkg string) (tested, error) {
		if pkg != "envs/a" {
			return tested{}, nil
		}
		return tested{map[string]bool{"TestOne": true}, map[string]bool{"a case": true}}, nil
	}
	table := func(rows ...string) string {
		return "# x\n\n| attack | what stops it | test |\n|---|---|---|\n" + strings.Join(rows, "\n") + "\n\nend\n"
	}
	for name, c := range map[string]struct {
		doc  string
		want string // part of the one problem; empty: none
	}{
		"good":              {table("| a | b | `envs/a: TestOne` |", "| a `x` | b | `envs/a: TestOne/a case`, `envs/a: TestOne` |"), ""},
		"no such function":  {table("| a | b | `envs/a: TestOne`, `envs/a: TestTwo` |"), "no test TestTwo"},
		"no such case":      {"see `envs/a: TestOne/another`", "no case \"another\""},
		"no such package":   {"see `envs/b: TestOne`", "envs/b has no test"},
		"an empty cell":     {table("| a | b | |"), "has no test"},
		"words for a test":  {table("| a | b | everybody knows |"), "has no test"},
		"not as tests are":  {table("| a | b | `envs/a: TestOne`, `TestOne` |"), "something else beside it"},
		"in another column": {table("| a | `envs/a: TestOne` | |"), "has no test"},
		"another table":     {"| part | account |\n|---|---|\n| a | b |\n", ""},
	} {
		_, problems := unproved(c.doc, read)
		if c.want == "" && len(problems) > 0 || c.want != "" && !strings.Contains(strings.Join(problems, "\n"), c.want) {
			t.Errorf("%s: %q, want %q", name, problems, c.want)
		}
	}
}
