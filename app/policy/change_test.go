package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"inspect/checks/redact"
	"inspect/envs/spec"
)

func rules() Rules { return PublishRules(spec.Default().Publish) }

func added(path string) Entry {
	return Entry{Status: 'A', NewMode: ModeFile, NewSHA: strings.Repeat("a", 40), Path: path}
}

func changed(path string) Entry {
	return Entry{Status: 'M', OldMode: ModeFile, NewMode: ModeFile, OldSHA: strings.Repeat("b", 40), NewSHA: strings.Repeat("a", 40), Path: path}
}

func deleted(path string) Entry {
	return Entry{Status: 'D', OldMode: ModeFile, OldSHA: strings.Repeat("b", 40), Path: path}
}

// moved is a file that is in another place with the same content.
func moved(from, to string) Change {
	there := added(to)
	there.NewSHA = strings.Repeat("b", 40)
	return of(deleted(from), there)
}

func of(es ...Entry) Change { return Change{Entries: es, PatchBytes: 100} }

func TestJudge(t *testing.T) {
	link := func(path, target string) Change {
		c := of(Entry{Status: 'A', NewMode: ModeLink, Path: path})
		c.Links = map[string]string{path: target}
		return c
	}
	many := Change{}
	for i := range 101 {
		many.Entries = append(many.Entries, added("f"+strings.Repeat("x", i)))
	}
	secret := of(added("config.txt"))
	secret.Added = []AddedText{{Path: "config.txt", Lines: []string{"a", "token = ghs_" + strings.Repeat("a1B2", 9)}, Numbers: []int{7, 9}}}
	said := of(added("config.txt"))
	said.Messages = []string{"one", "two\n\nwith ghs_" + strings.Repeat("a1B2", 9)}
	big := of(added("a"))
	big.PatchBytes = 4<<20 + 1
	collision := of(added("readme.md"))
	collision.Collisions = []Collision{{New: "readme.md", Other: "README.md"}}
	for name, c := range map[string]struct {
		change Change
		reason string   // "" for a change that may be pushed
		words  []string // that must be in the refusal
	}{
		"one new file":             {of(added("a/b.go")), "", nil},
		"one changed file":         {of(changed("a/b.go")), "", nil},
		"a deleted file":           {of(deleted("a/b.go")), "", nil},
		"executable":               {of(Entry{Status: 'A', NewMode: ModeExecutable, Path: "run.sh"}), "", nil},
		"unicode name":             {of(added("docs/größe 日本.md")), "", nil},
		"nothing":                  {Change{}, ReasonNoChange, nil},
		"protected":                {of(changed("a.go"), changed(".github/dependabot.yml")), ReasonProtectedPath, []string{`".github/dependabot.yml"`, ".github/**"}},
		"owners":                   {of(changed("a.go"), changed("docs/codeowners")), ReasonProtectedPath, []string{`"docs/codeowners"`}},
		"what Inspect does":        {of(changed("a.go"), added(".inspect.yml")), ReasonProtectedPath, []string{`".inspect.yml"`}},
		"another's pipeline":       {of(changed("a.go"), changed(".buildkite/pipeline.yml")), ReasonProtectedPath, []string{`".buildkite/pipeline.yml"`}},
		"protected, other case":    {of(added(".GitHub/dependabot.yml")), ReasonProtectedPath, nil},
		"workflow, other case":     {of(added(".github/Workflows/x.yml")), ReasonProtectedPath, nil},
		"protected deletion":       {of(deleted(".github/CODEOWNERS")), ReasonProtectedPath, nil},
		"workflows become a file":  {of(added(".github/workflows")), ReasonProtectedPath, nil},
		"link among workflows":     {link(".github/workflows/x.yml", "../../a"), ReasonProtectedPath, nil},
		"deleted test":             {of(changed("a.go"), deleted("a/b_test.go")), ReasonTestsVanished, []string{`"a/b_test.go" (deleted)`}},
		"deleted test data":        {of(deleted("Testdata/x.json")), ReasonTestsVanished, nil},
		"moved test":               {moved("a_test.go", "b/a_test.go"), "", nil},
		"moved out of the tests":   {moved("a_test.go", "a.go.old"), ReasonTestsVanished, nil},
		"tests that did not run":   {Change{Entries: []Entry{changed("a_test.go")}, Doubts: []Item{{ReasonTestsVanished, "unit: TestAdd does not run any more"}}}, ReasonTestsVanished, []string{"unit: TestAdd does not run any more"}},
		"workflows only":           {of(changed(".github/workflows/ci.yml")), ReasonWithheldOnly, []string{"ci.yml"}},
		"workflows beside":         {of(changed(".github/workflows/ci.yml"), changed("a.go")), "", nil},
		"too many":                 {many, ReasonTooManyFiles, []string{"101", "100"}},
		"too large":                {big, ReasonTooLarge, []string{"4194305"}},
		"secret":                   {secret, ReasonSecretFound, []string{`"config.txt" line 9`, "github-token"}},
		"secret in a name":         {of(added("a"), added("k/ghs_"+strings.Repeat("a1B2", 9)+"/x")), ReasonSecretFound, []string{"the name of file 2 of the change"}},
		"secret in a message":      {said, ReasonSecretFound, []string{"the message of commit 2 line 3", "github-token"}},
		"secret in a link":         {link("x", "ghs_"+strings.Repeat("a1B2", 9)), ReasonSecretFound, nil},
		"dot dot":                  {of(added("a/../../etc/passwd")), ReasonFileName, nil},
		"absolute":                 {of(added("/etc/passwd")), ReasonFileName, nil},
		"double slash":             {of(added("a//b")), ReasonFileName, nil},
		".git":                     {of(added("a/.git/config")), ReasonFileName, nil},
		".GiT":                     {of(added(".GiT/config")), ReasonFileName, nil},
		"git~1":                    {of(added("git~1/config")), ReasonFileName, nil},
		"GIT~2":                    {of(added("GIT~2")), ReasonFileName, nil},
		".git with a stream":       {of(added(".git::$INDEX_ALLOCATION/config")), ReasonFileName, nil},
		".git and a space":         {of(added(".git /config")), ReasonFileName, nil},
		".git, ignorable":          {of(added(".g\u200cit/config")), ReasonFileName, nil},
		".git, full width":         {of(added("．ｇｉｔ/config")), ReasonFileName, nil},
		".Gitmodules":              {of(added(".Gitmodules")), ReasonFileName, nil},
		"gitmod~1":                 {of(added("gitmod~1")), ReasonFileName, nil},
		".gitmodules":              {of(added(".gitmodules")), ReasonSubmodule, nil},
		"newline":                  {of(added("a\nb")), ReasonFileName, []string{`"a\nb"`, "control"}},
		"escape":                   {of(added("a\x1b[2J")), ReasonFileName, nil},
		"bidi":                     {of(added("a\u202egnp.exe")), ReasonFileName, []string{`\u202e`, "bidirectional"}},
		"zero width":               {of(added("a\u200bb")), ReasonFileName, nil},
		"backslash":                {of(added(`..\evil`)), ReasonFileName, nil},
		"not UTF-8":                {of(added("a\xff")), ReasonFileName, nil},
		"trailing dot":             {of(added("a./b")), ReasonFileName, nil},
		"long name":                {of(added(strings.Repeat("x", 256))), ReasonFileName, nil},
		"long path":                {of(added(strings.Repeat("x/", 60) + strings.Repeat("y", 905))), ReasonFileName, nil},
		"deep":                     {of(added(strings.Repeat("x/", 64) + "y")), ReasonFileName, nil},
		"old odd name, changed":    {of(changed("a\\b")), "", nil},
		"old odd name, deleted":    {of(deleted("a\nb")), "", nil},
		"submodule":                {of(Entry{Status: 'A', NewMode: ModeSubmodule, Path: "lib"}), ReasonSubmodule, []string{"not supported yet"}},
		"submodule moved on":       {of(Entry{Status: 'M', OldMode: ModeSubmodule, NewMode: ModeSubmodule, Path: "lib"}), ReasonSubmodule, nil},
		"mode 100664":              {of(Entry{Status: 'A', NewMode: 0o100664, Path: "a"}), ReasonFileMode, []string{"100664"}},
		"device":                   {of(Entry{Status: 'A', NewMode: 0o020644, Path: "a"}), ReasonFileMode, nil},
		"setuid":                   {of(Entry{Status: 'A', NewMode: 0o104755, Path: "a"}), ReasonFileMode, nil},
		"link inside":              {link("a/b", "../c"), "", nil},
		"link beside":              {link("a/b", "c/d"), "", nil},
		"link out":                 {link("a/b", "../../c"), ReasonLink, []string{"out of the repository"}},
		"link out of the root":     {link("b", ".."), ReasonLink, nil},
		"link absolute":            {link("b", "/etc/passwd"), ReasonLink, []string{"absolute"}},
		"link into .git":           {link("b", ".git/config"), ReasonLink, nil},
		"link down and up":         {link("a/b", "c/../../../d"), ReasonLink, nil},
		"link, control characters": {link("b", "a\nb"), ReasonLink, nil},
		"link without target":      {of(Entry{Status: 'A', NewMode: ModeLink, Path: "a"}), ReasonLink, nil},
		"link as .gitattributes":   {link(".gitattributes", "a"), ReasonLink, nil},
		"collision":                {collision, ReasonNameCollision, []string{`"readme.md" and "README.md"`}},
		"several": {func() Change { c := of(added(".git/x"), changed(".github/x")); return c }(), ReasonFileName,
			[]string{"not safe", "protected paths"}},
	} {
		t.Run(name, func(t *testing.T) {
			v := Judge(c.change, rules())
			asked := slices.ContainsFunc(askable, func(a struct{ reason, intro string }) bool { return a.reason == c.reason })
			switch {
			case v.Refusal != nil && asked:
				t.Fatalf("refused for %s, should be asked for %s", v.Refusal.Reason, c.reason)
			case asked && (len(v.Ask) == 0 || v.Ask[0].Reason != c.reason):
				t.Fatalf("asked for %+v, want %s", v.Ask, c.reason)
			case asked:
				v.Refusal = &ChangeRefusal{c.reason, AskWords(v.Ask)}
			case v.Refusal == nil && c.reason != "":
				t.Fatalf("passed, should be refused for %s", c.reason)
			case v.Refusal != nil && v.Refusal.Reason != c.reason:
				t.Fatalf("refused for %s (%s), want %q", v.Refusal.Reason, v.Refusal.Words, c.reason)
			case v.Refusal == nil:
				if len(v.Ask) > 0 {
					t.Fatalf("asked for %+v", v.Ask)
				}
				return
			}
			for _, w := range c.words {
				if !strings.Contains(v.Refusal.Words, w) {
					t.Errorf("the words %q lack %q", v.Refusal.Words, w)
				}
			}
			for _, r := range v.Refusal.Words {
				if r < ' ' || isBidi(r) || r == 0x200b {
					t.Errorf("the words hold the character %U: %q", r, v.Refusal.Words)
				}
			}
			if strings.Contains(v.Refusal.Words, "ghs_a1B2") {
				t.Errorf("the words show a secret: %s", v.Refusal.Words)
			}
		})
	}
}

func TestWithheldAndRisks(t *testing.T) {
	v := Judge(of(changed(".github/workflows/ci.yml"), deleted(".github/workflows/old.yml"), added("run.sh"),
		Entry{Status: 'A', NewMode: ModeExecutable, Path: "x.sh"}, changed(".inspect.yml"), changed("go.sum"), deleted("a")), rules())
	if v.Refusal != nil {
		t.Fatal(v.Refusal.Words)
	}
	if want := []string{".github/workflows/ci.yml", ".github/workflows/old.yml"}; !slices.Equal(v.Withheld, want) {
		t.Errorf("withheld %q, want %q", v.Withheld, want)
	}
	all := strings.Join(v.Risks, "; ")
	for _, w := range []string{".inspect.yml", "executable: \"x.sh\"", "go.sum", "deletes"} {
		if !strings.Contains(all, w) {
			t.Errorf("the risks %q lack %q", all, w)
		}
	}
	c := of(added("a.go"))
	c.Added = []AddedText{{Path: "a.go", Lines: []string{"ok", "if admin /* \u202e */ {"}, Numbers: []int{1, 2}}}
	if all := strings.Join(Judge(c, rules()).Risks, ";"); !strings.Contains(all, `"a.go" line 2`) {
		t.Errorf("the risks %q do not name the bidirectional text", all)
	}
}

func TestProtected(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"**/migrations/**", "db/migrations/1.sql", true},
		{"**/migrations/**", "migrations/1.sql", true},
		{"**/migrations/**", "db/Migrations/1.sql", true},
		{"**/migrations/**", "db/migration/1.sql", false},
		{"secrets/", "secrets/a/b", true},
		{"/deploy", "deploy/x", true},
		{"Makefile", "sub/Makefile", true},
		{"*.pem", "a/b/key.PEM", true},
		{"*.pem", "a/b/key.pem.txt", false},
		{"infra/*.tf", "infra/a.tf", true},
		{"infra/*.tf", "infra/x/a.tf", false},
		{"[", "anything", true}, // cannot be read: protects
	} {
		if got := protectedBy(c.path, []string{c.pattern}) != ""; got != c.want {
			t.Errorf("%q protects %q: %v, want %v", c.pattern, c.path, got, c.want)
		}
	}
	r := PublishRules(spec.Publish{MaxFiles: 1, MaxBytes: 1})
	if v := Judge(of(changed(".github/x")), r); len(v.Ask) != 1 || v.Ask[0].Reason != ReasonProtectedPath {
		t.Errorf("the default protection can be taken away: %+v", v)
	}
}

func TestStricter(t *testing.T) {
	a := Rules{Prefix: "inspect", Protected: []string{"a"}, MaxFiles: 100, MaxBytes: 10}
	got := a.Stricter(Rules{Protected: []string{"b"}, MaxFiles: 5, MaxBytes: 50})
	if got.MaxFiles != 5 || got.MaxBytes != 10 || !slices.Equal(got.Protected, []string{"a", "b"}) || got.Prefix != "inspect" {
		t.Errorf("%+v", got)
	}
	if !a.Stricter(Rules{FourEyes: true}).FourEyes || !(Rules{FourEyes: true}).Stricter(a).FourEyes {
		t.Error("four eyes can be taken away")
	}
	if got := a.Stricter(Rules{}); got.MaxFiles != 100 || got.MaxBytes != 10 {
		t.Errorf("a floor without values bounds: %+v", got)
	}
}

func TestKnownSecretsCount(t *testing.T) {
	r := rules()
	known := redact.New("hunter2hunter2")
	r.Find = func(_, text string) []redact.Finding { return known.Find(text) }
	c := of(added("a"))
	c.Added = []AddedText{{Path: "a", Lines: []string{"x hunter2hunter2"}, Numbers: []int{3}}}
	if v := Judge(c, r); len(v.Ask) != 1 || v.Ask[0].Reason != ReasonSecretFound || strings.Contains(v.Ask[0].What, "hunter2") {
		t.Errorf("%+v", v)
	}
	// Nobody can allow the value of one that is in use.
	r.Known = func(text string) bool { return strings.Contains(text, "hunter2hunter2") }
	link := of(Entry{Status: 'A', NewMode: ModeLink, Path: "l"})
	link.Links = map[string]string{"l": "hunter2hunter2"}
	for _, c := range []Change{c, of(added("k/hunter2hunter2")), link} {
		if v := Judge(c, r); v.Refusal == nil || v.Refusal.Reason != ReasonKnownSecret || strings.Contains(v.Refusal.Words, "hunter2") {
			t.Errorf("%+v", v.Refusal)
		}
	}
}

// An approval counts under the same rules only, whatever order they come in.
func TestRulesDigest(t *testing.T) {
	base := Rules{Prefix: "inspect", Protected: []string{"a", "b"}, MaxFiles: 1, MaxBytes: 1, Verify: []string{"make"}}
	same := base
	same.Protected = []string{"b", "a", "b"}
	if base.Digest() != same.Digest() {
		t.Error("the order of the patterns counts")
	}
	for name, change := range map[string]func(*Rules){
		"prefix": func(r *Rules) { r.Prefix = "x" }, "protected": func(r *Rules) { r.Protected = []string{"a"} }, "files": func(r *Rules) { r.MaxFiles++ },
		"bytes": func(r *Rules) { r.MaxBytes++ }, "verify": func(r *Rules) { r.Verify = nil }, "four eyes": func(r *Rules) { r.FourEyes = true },
	} {
		r := base
		change(&r)
		if r.Digest() == base.Digest() {
			t.Errorf("another %s is the same", name)
		}
	}
}

// What holds a secret is told, so that nothing that is kept shows it.
func TestVerdictTellsWhatHoldsSecrets(t *testing.T) {
	const path, target = "k/hunter2hunter2", "../hunter2hunter2"
	c := of(added(path), Entry{Status: 'A', NewMode: ModeLink, Path: "l"})
	c.Links = map[string]string{"l": target}
	c.Added = []AddedText{{Path: path, Lines: []string{"a", "b hunter2hunter2", "c", "d"}, Numbers: []int{3, 4, 5, 6}}}
	c.Messages = []string{"m\nn hunter2hunter2"}
	r := rules()
	r.Find = func(_, text string) []redact.Finding {
		at := strings.Index(text, "hunter2hunter2")
		if at < 0 {
			return nil
		}
		line := strings.Count(text[:at], "\n") + 1
		return []redact.Finding{{Line: line, End: line + 1, Rule: "x"}}
	}
	v := Judge(c, r)
	if want := []string{path, target, "b hunter2hunter2", "c", "n hunter2hunter2"}; !slices.Equal(v.Secret, want) {
		t.Errorf("%q, want %q", v.Secret, want)
	}
	if w := AskWords(v.Ask); strings.Contains(w, "hunter2") || !strings.Contains(w, "file 1 of the change line 4 (x)") {
		t.Error(w)
	}
}

func TestCollisions(t *testing.T) {
	for name, c := range map[string]struct {
		entries []Entry
		base    []string
		want    []Collision
	}{
		"none":                   {[]Entry{added("a")}, []string{"b", "c"}, nil},
		"case of a file":         {[]Entry{added("readme")}, []string{"README"}, []Collision{{"readme", "README"}}},
		"case of a folder":       {[]Entry{added("Src/new")}, []string{"src/old"}, []Collision{{"Src", "src"}}},
		"file and folder":        {[]Entry{added("SRC")}, []string{"src/old"}, []Collision{{"SRC", "src"}}},
		"composed, decomposed":   {[]Entry{added("e\u0301")}, []string{"é"}, []Collision{{"e\u0301", "é"}}},
		"sharp s":                {[]Entry{added("STRASSE")}, []string{"straße"}, []Collision{{"STRASSE", "straße"}}},
		"within the change":      {[]Entry{added("a"), added("A")}, nil, []Collision{{"A", "a"}}},
		"renamed in case":        {[]Entry{deleted("README"), added("readme")}, []string{"README"}, nil},
		"collision of before":    {[]Entry{added("Src/new")}, []string{"Src/a", "src/b"}, nil},
		"deletion and changes":   {[]Entry{deleted("a"), changed("B")}, []string{"A", "b"}, nil},
		"folder renamed in case": {[]Entry{deleted("Src/a"), added("src/a")}, []string{"Src/a"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			col := NewCollisions(c.entries)
			for _, b := range c.base {
				col.Base(b)
			}
			if got := col.Found(); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestBranchName(t *testing.T) {
	for title, want := range map[string]string{
		"Add subtraction":           "inspect/12-add-subtraction-abcdefgh23",
		"  Fix: the --flag (#3)!! ": "inspect/12-fix-the-flag-3-abcdefgh23",
		"日本語 😀":                     "inspect/issue-12-abcdefgh23",
		"":                          "inspect/issue-12-abcdefgh23",
		"../../etc/passwd":          "inspect/12-etc-passwd-abcdefgh23",
		"a..b.lock @{1}":            "inspect/12-a-b-lock-1-abcdefgh23",
		"v1.2.3 release":            "inspect/12-v1.2.3-release-abcdefgh23",
		strings.Repeat("long ", 99): "inspect/12-" + strings.TrimSuffix(strings.Repeat("long-", 12), "-") + "-abcdefgh23",
	} {
		got := BranchName("inspect", 12, title, "abcdefgh23")
		if got != want {
			t.Errorf("%q: %q, want %q", title, got, want)
		}
		if why := BadBranch(got, "inspect"); why != "" {
			t.Errorf("%q: %s", got, why)
		}
	}
	for title, want := range map[string]string{"Add subtraction": "inspect/add-subtraction-abcdefgh23", "日本語": "inspect/work-abcdefgh23", "-x": "inspect/x-abcdefgh23"} {
		if got := BranchName("inspect", 0, title, "abcdefgh23"); got != want || BadBranch(got, "inspect") != "" {
			t.Errorf("without an issue %q: %q, want %q", title, got, want)
		}
	}
	for _, bad := range []string{"main", "inspect", "inspect/", "other/x", "inspect/A", "inspect/a/b", "inspect/a..b", "inspect/a.lock", "inspect/.a", "inspect/-a", "inspect/a b", "inspect/a~1", "inspect/a\n", "refs/heads/inspect/a"} {
		if BadBranch(bad, "inspect") == "" {
			t.Errorf("%q is taken for a branch of ours", bad)
		}
	}
}

func FuzzBranchName(f *testing.F) {
	for _, s := range []string{"a", "..", ".lock", "a.lock.lock", "@{", "ÄÖ", "a.-.b", "x....", "-_.-_."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, title string) {
		name := BranchName("inspect", 1, title, "abcdefgh23")
		for _, n := range []string{name, BranchName("inspect", 0, title, "abcdefgh23")} {
			if why := BadBranch(n, "inspect"); why != "" {
				t.Fatalf("%q gives %q: %s", title, n, why)
			}
		}
		if len(name) > len("inspect/1--abcdefgh23")+maxSlug {
			t.Fatalf("%q gives %d bytes", title, len(name))
		}
	})
}

func FuzzJudgeNames(f *testing.F) {
	for _, s := range []string{"a/b", ".git", "a\u202e", "..", "a/./b", "\xff", "．git", ".git\u200d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		v := Judge(of(added(path)), rules())
		if v.Refusal != nil {
			return
		}
		for _, part := range strings.Split(path, "/") {
			if part == "" || part == "." || part == ".." || strings.EqualFold(part, ".git") {
				t.Fatalf("%q passed", path)
			}
		}
		if strings.ContainsAny(path, "\x00\n\r\x1b\\\u202e\u2066") {
			t.Fatalf("%q passed", path)
		}
	})
}

// A later configuration can take away, and gives nothing.
func TestStricterPublish(t *testing.T) {
	now := StricterPublish(
		spec.Publish{Prefix: "a", Push: spec.PushHead, MaxFiles: 5, MaxBytes: 9, Protected: []string{"x"}},
		spec.Publish{Prefix: "b", MaxFiles: 7, MaxBytes: 3, Protected: []string{"y", "x"}, FourEyes: true})
	want := spec.Publish{Prefix: "a", MaxFiles: 5, MaxBytes: 3, Protected: []string{"x", "y"}, FourEyes: true}
	if diff := cmp.Diff(want, now); diff != "" {
		t.Error(diff)
	}
	if again := StricterPublish(now, spec.Publish{Push: spec.PushHead, MaxFiles: 50, MaxBytes: 90}); again.Push != "" || !again.FourEyes || again.MaxFiles != 5 || len(again.Protected) != 2 {
		t.Errorf("%+v", again)
	}
}

func TestReplacedVerification(t *testing.T) {
	verify := []string{"./ci/check.sh", "npm test", "make -C . test", "pytest tests/test_a.py", "sh tests/all.sh"}
	pkg := func(old, new string) Change {
		c := of(changed("package.json"))
		c.Scripts = map[string]Texts{"package.json": {old, new}}
		return c
	}
	for name, c := range map[string]struct {
		change Change
		want   string // "" if nothing is replaced
	}{
		"script of the command":       {of(changed("ci/check.sh")), `"ci/check.sh"`},
		"script deleted":              {of(deleted("ci/check.sh")), `"ci/check.sh"`},
		"script among the tests":      {of(changed("tests/all.sh")), `"tests/all.sh"`},
		"another script":              {of(changed("ci/other.sh")), ""},
		"a test that is named":        {of(changed("tests/test_a.py")), ""},
		"makefile":                    {of(changed("Makefile")), `"Makefile"`},
		"makefile that goes before":   {of(added("GNUmakefile")), `"GNUmakefile"`},
		"included makefile":           {of(changed("mk/test.mk")), `"mk/test.mk"`},
		"justfile":                    {of(changed("justfile")), ""},
		"scripts":                     {pkg(`{"scripts":{"test":"jest"}}`, `{"scripts":{"test":"true"}}`), `"package.json"`},
		"dependencies":                {pkg(`{"scripts":{"test":"jest"},"dependencies":{"a":"1"}}`, `{"dependencies":{"a":"2"},"scripts":{"test":"jest"}}`), ""},
		"settings of the tests":       {pkg(`{"jest":{"bail":1}}`, `{"jest":{"testMatch":[]}}`), `"package.json"`},
		"package.json broken":         {pkg(`{}`, `{`), `"package.json"`},
		"package.json nobody read":    {of(changed("package.json")), `"package.json" (it could not be compared: it is no plain file, or larger than is read)`},
		"what a script of npm's runs": {Change{Entries: []Entry{changed("run.js"), changed("package.json")}, Scripts: map[string]Texts{"package.json": {`{"scripts":{"test":"node run.js"}}`, `{"scripts":{"test":"node run.js"}}`}}}, `"run.js"`},
	} {
		v := Judge(c.change, Rules{MaxFiles: 10, MaxBytes: 1000, Verify: verify})
		got := ""
		for _, i := range v.Ask {
			if i.Reason == ReasonReplaced {
				got += i.What
			}
		}
		if got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
	for _, reason := range []string{ReasonReplaced, ReasonReportDoubted, ReasonTestsVanished, ReasonNotCompared} {
		if !NeedsAnother(reason) {
			t.Errorf("a requester may accept %s", reason)
		}
	}
	if NeedsAnother(ReasonProtectedPath) || NeedsAnother(ReasonSecretFound) {
		t.Error("four eyes where nobody asks for them")
	}
}
