package spec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// MaxFileBytes bounds a .inspect.yml before it is parsed.
const MaxFileBytes = 64 << 10

// maxProblems bounds what one file can make us say.
const maxProblems = 20

// notYet is how a known key that nothing acts upon is refused.
const notYet = "not supported yet"

// Parse reads a .inspect.yml. With no problems the Spec is complete: every
// default is filled in and every value is in its range. With problems the Spec
// must not be used.
func Parse(body []byte) (Spec, Problems) {
	root, problems := read(body, MaxFileBytes, schema(), (*validator).crossCheck)
	if len(problems) > 0 {
		return Spec{}, problems
	}
	return build(root), nil
}

// read makes a tree of one YAML document and validates it: against f, and with
// cross, which finds what no single key shows.
func read(body []byte, most int, f field, cross func(*validator, *yaml.Node)) (*yaml.Node, Problems) {
	whole := func(want string) (*yaml.Node, Problems) { return nil, Problems{{Want: want}} }
	if len(body) > most {
		return whole(fmt.Sprintf("expected at most %d bytes, but found %d", most, len(body)))
	}
	dec := yaml.NewDecoder(bytes.NewReader(body))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, Problems{{Line: 1, Key: "version", Want: "expected the number 1 (the file is empty)"}}
		}
		return nil, Problems{yamlProblem(err)}
	}
	var second yaml.Node
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return whole("expected one YAML document, but found more")
	}
	v := validator{}
	root := &doc
	if doc.Kind == yaml.DocumentNode && len(doc.Content) == 1 {
		root = doc.Content[0]
	}
	v.walk(root, f, "", 0)
	cross(&v, root)
	if len(v.problems) > 0 {
		sort.SliceStable(v.problems, func(i, j int) bool { return v.problems[i].Line < v.problems[j].Line })
		return nil, v.problems
	}
	return root, nil
}

var yamlLine = regexp.MustCompile(`line (\d+): (.*)`)

func yamlProblem(err error) Problem {
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		n, _ := strconv.Atoi(m[1])
		return Problem{Line: n, Want: "expected YAML, but " + cut(m[2], 200)}
	}
	return Problem{Want: "expected YAML, but " + cut(strings.TrimPrefix(err.Error(), "yaml: "), 200)}
}

type validator struct{ problems Problems }

func (v *validator) add(n *yaml.Node, key, want, got string) {
	if len(v.problems) < maxProblems {
		v.problems = append(v.problems, Problem{Line: n.Line, Key: key, Want: want, Got: got})
	}
}

func (v *validator) walk(n *yaml.Node, f field, key string, depth int) {
	if depth > 8 {
		v.add(n, key, "expected fewer levels", "")
		return
	}
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		v.add(n, key, "expected a plain value; anchors and aliases are not allowed", "")
		return
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		v.add(n, key, "expected "+f.help, "nothing")
		return
	}
	before := len(v.problems)
	switch f.kind {
	case kindMap:
		v.walkMap(n, f, key, depth)
	case kindList:
		if n.Kind != yaml.SequenceNode {
			v.add(n, key, "expected "+f.help, describe(n))
			return
		}
		if most := orElse(f.max, 100); len(n.Content) > most {
			v.add(n, key, fmt.Sprintf("expected at most %d entries", most), strconv.Itoa(len(n.Content)))
			return
		}
		for i, c := range n.Content {
			v.walk(c, *f.item, fmt.Sprintf("%s[%d]", key, i), depth+1)
		}
	case kindAny:
		for _, variant := range f.variants {
			if (variant.kind == kindMap) == (n.Kind == yaml.MappingNode) {
				v.walk(n, variant, key, depth)
				return
			}
		}
		v.add(n, key, "expected "+f.help, describe(n))
	default:
		v.walkScalar(n, f, key)
	}
	// A key that is wrong in itself is said to be wrong first.
	if len(v.problems) == before && f.later && !(f.kind == kindList && len(n.Content) == 0) {
		v.add(n, key, notYet, "")
	}
}

func (v *validator) walkMap(n *yaml.Node, f field, key string, depth int) {
	if n.Kind != yaml.MappingNode {
		v.add(n, key, "expected "+f.help, describe(n))
		return
	}
	if len(n.Content)/2 > orElse(f.max, 100) {
		v.add(n, key, "expected fewer entries", strconv.Itoa(len(n.Content)/2))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, val := n.Content[i], n.Content[i+1]
		name := k.Value
		at := joinKey(key, cut(name, 60))
		switch {
		case k.Kind != yaml.ScalarNode || k.Tag == "!!merge" || k.Anchor != "":
			v.add(k, at, "expected a plain key", describe(k))
			continue
		case seen[name]:
			v.add(k, at, "expected each key once", "it again")
			continue
		}
		seen[name] = true
		child, known := f.fields[name]
		switch {
		case known:
			v.walk(val, child, at, depth+1)
		case f.anyKey != nil:
			if !f.anyName && !regexp.MustCompile(`^[a-z][a-z0-9_-]{0,39}$`).MatchString(name) {
				v.add(k, at, "expected a name of lower-case letters, digits, '-' and '_'", "")
				continue
			}
			v.walk(val, *f.anyKey, at, depth+1)
		default:
			want := "unknown key; expected one of " + strings.Join(sortedKeys(f.fields), ", ")
			if near := nearest(name, sortedKeys(f.fields)); near != "" {
				want = "unknown key; did you mean " + near + "?"
			}
			v.add(k, at, want, "")
		}
	}
	for _, name := range sortedKeys(f.fields) {
		if f.fields[name].required && !seen[name] {
			v.add(n, joinKey(key, name), "expected "+f.fields[name].help+"; the key is missing", "")
		}
	}
}

var scalarTags = map[kind][]string{
	kindText: {"!!str"}, kindInt: {"!!int"}, kindNumber: {"!!int", "!!float"}, kindBool: {"!!bool"},
	kindSize: {"!!str"}, kindDuration: {"!!str"},
}

func (v *validator) walkScalar(n *yaml.Node, f field, key string) {
	if n.Kind != yaml.ScalarNode || !slices.Contains(scalarTags[f.kind], n.Tag) {
		v.add(n, key, "expected "+f.help, describe(n))
		return
	}
	val := n.Value
	bad := f.only != nil && !slices.Contains(f.only, val) || f.check != nil && !f.check(val)
	if f.kind == kindText && len(val) > orElse(f.max, 4096) {
		v.add(n, key, fmt.Sprintf("expected at most %d bytes", orElse(f.max, 4096)), strconv.Itoa(len(val)))
		return
	}
	if f.kind == kindBool {
		bad = val != "true" && val != "false"
	}
	if bad {
		v.add(n, key, "expected "+f.help, describe(n))
		return
	}
	if f.problem != nil {
		if words := f.problem(val); words != "" {
			v.add(n, key, words, describe(n))
			return
		}
	}
	if f.laterIf != nil && f.laterIf(val) {
		v.add(n, key, strconv.Quote(cut(val, 60))+" is "+notYet, "")
	}
}

// crossCheck finds what no single key shows.
func (v *validator) crossCheck(root *yaml.Node) {
	verify := child(root, "verify")
	if verify != nil && verify.Kind == yaml.SequenceNode {
		names := map[string]bool{}
		for i, item := range verify.Content {
			at := fmt.Sprintf("verify[%d]", i)
			if n := child(item, "name"); n != nil {
				if names[n.Value] {
					v.add(n, at+".name", "expected each name once", strconv.Quote(cut(n.Value, 60)))
				}
				names[n.Value] = true
			}
			v.checkScreenshot(item, at)
		}
		v.countScreenshots(verify)
	}
	if h := child(root, "harness"); h != nil {
		kind, command := child(h, "kind"), child(h, "command")
		ours := kind != nil && kind.Value == HarnessCommand
		switch {
		case command != nil && !ours:
			v.add(command, "harness.command", "expected only with kind: command", "")
		case command == nil && ours:
			v.add(h, "harness.command", "expected a shell line, because the kind is command; the key is missing", "")
		}
	}
	if services := child(root, "services"); services != nil && services.Kind == yaml.MappingNode {
		taken := map[int64]string{}
		for i := 0; i+1 < len(services.Content); i += 2 {
			name := cut(services.Content[i].Value, 60)
			port := child(services.Content[i+1], "port")
			if port == nil {
				continue
			}
			n, err := strconv.ParseInt(port.Value, 10, 64)
			if other := taken[n]; other != "" && err == nil {
				v.add(port, "services."+name+".port", "expected each port once; "+other+" has it too", strconv.Quote(cut(port.Value, 60)))
				continue
			}
			taken[n] = name
		}
	}
	if list := child(root, "egress"); list != nil && list.Kind == yaml.SequenceNode {
		seen := map[string]bool{}
		for i, n := range list.Content {
			name := n
			if n.Kind == yaml.MappingNode {
				if name = child(n, "host"); name == nil {
					continue
				}
			}
			entry := strings.ToLower(name.Value)
			if name.Kind == yaml.ScalarNode && seen[entry] {
				v.add(n, fmt.Sprintf("egress[%d]", i), "expected each entry once", strconv.Quote(cut(name.Value, 60)))
			}
			seen[entry] = true
		}
	}
}

// build fills a Spec from a tree that has been validated.
func build(root *yaml.Node) Spec {
	s := Default()
	text(child(root, "image"), &s.Image)
	s.Setup = steps(child(root, "setup"))
	data := child(root, "data")
	text(child(data, "provenance"), &s.Data.Provenance)
	s.Data.Load = steps(child(data, "load"))
	if n := child(root, "services"); n != nil {
		for i := 0; i+1 < len(n.Content); i += 2 {
			svc := Service{Name: n.Content[i].Value}
			text(child(n.Content[i+1], "command"), &svc.Command)
			text(child(n.Content[i+1], "ready"), &svc.Ready)
			text(child(n.Content[i+1], "stop"), &svc.Stop)
			number(child(n.Content[i+1], "port"), &svc.Port)
			texts(child(n.Content[i+1], "secrets"), &svc.Secrets)
			s.Services = append(s.Services, svc)
		}
	}
	if n := child(root, "egress"); n != nil {
		s.Egress = nil
		for _, c := range n.Content {
			host := c.Value
			if c.Kind == yaml.MappingNode {
				in := Injection{Header: "Authorization"}
				text(child(c, "host"), &in.Host)
				text(child(c, "header_from"), &in.Secret)
				text(child(c, "header"), &in.Header)
				in.Host = strings.ToLower(in.Host)
				host = in.Host
				s.Inject = append(s.Inject, in)
			}
			s.Egress = append(s.Egress, strings.ToLower(host))
		}
	}
	if n := child(root, "verify"); n != nil {
		for _, item := range n.Content {
			c := Verify{Report: ReportExit}
			text(child(item, "name"), &c.Name)
			text(child(item, "run"), &c.Run)
			text(child(item, "report"), &c.Report)
			text(child(item, "coverage"), &c.Coverage)
			texts(child(item, "secrets"), &c.Secrets)
			buildScreenshot(item, &c)
			s.Verify = append(s.Verify, c)
		}
	}
	buildLimits(child(root, "limits"), &s.Limits)
	refresh := child(root, "refresh")
	duration(child(refresh, "every"), &s.Refresh.Every)
	duration(child(refresh, "max_age"), &s.Refresh.MaxAge)
	number(child(refresh, "max_drift"), &s.Refresh.MaxDrift)
	text(child(refresh, "when_stale"), &s.Refresh.WhenStale)
	duration(child(root, "keep_failed"), &s.KeepFailed)
	harness := child(root, "harness")
	text(child(harness, "kind"), &s.Harness.Kind)
	text(child(harness, "command"), &s.Harness.Command)
	text(child(harness, "model"), &s.Harness.Model)
	publish := child(root, "publish")
	text(child(publish, "prefix"), &s.Publish.Prefix)
	var push string
	if text(child(publish, "push"), &push); push == PushHead {
		s.Publish.Push = push
	}
	texts(child(publish, "protected"), &s.Publish.Protected)
	number(child(publish, "max_files"), &s.Publish.MaxFiles)
	size(child(publish, "max_bytes"), &s.Publish.MaxBytes)
	s.Publish.FourEyes = yes(child(publish, "four_eyes"))
	if text(child(publish, "signed"), &s.Publish.Signed); s.Publish.Signed == SignedAuto {
		s.Publish.Signed = ""
	}
	s.Publish.SignOff = yes(child(publish, "signoff"))
	if text(child(publish, "reviewers"), &s.Publish.Reviewers); s.Publish.Reviewers == ReviewersCode {
		s.Publish.Reviewers = ""
	}
	s.Checks.Required = yes(child(child(root, "checks"), "required"))
	triggers := child(root, "triggers")
	texts(child(triggers, "labels"), &s.Triggers.Labels)
	s.Triggers.OnBuildkiteFailure = yes(child(triggers, "on_buildkite_failure"))
	number(child(triggers, "buildkite_attempts"), &s.Triggers.BuildkiteAttempts)
	builds := child(child(root, "checks"), "buildkite")
	text(child(builds, "builds"), &s.Checks.Buildkite.Builds)
	s.Checks.Buildkite.Required = yes(child(builds, "required"))
	duration(child(builds, "timeout"), &s.Checks.Buildkite.Timeout)
	return s
}

func buildLimits(n *yaml.Node, l *Limits) {
	if cpu := child(n, "cpu"); cpu != nil {
		l.CPU, _ = strconv.ParseFloat(cpu.Value, 64)
	}
	size(child(n, "memory"), &l.MemoryBytes)
	size(child(n, "disk"), &l.DiskBytes)
	size(child(n, "egress"), &l.EgressBytes)
	number(child(n, "pids"), &l.Pids)
	duration(child(n, "timeout"), &l.Timeout)
	number(child(n, "concurrent"), &l.Concurrent)
	number(child(n, "open_pull_requests"), &l.OpenPullRequests)
	number(child(n, "open_pull_requests_per_requester"), &l.OpenPullRequestsEach)
	if budget := child(n, "budget_usd"); budget != nil {
		l.Budget, _ = ParseMoney(budget.Value)
	}
}

// text, texts, number, size and duration take over a value that has been validated; a
// key that is missing leaves what was there.
func text(n *yaml.Node, into *string) {
	if n != nil {
		*into = n.Value
	}
}

func texts(n *yaml.Node, into *[]string) {
	if n == nil {
		return
	}
	*into = nil
	for _, c := range n.Content {
		*into = append(*into, c.Value)
	}
}

// steps reads a list of lines and of maps with run and secrets.
func steps(n *yaml.Node) (out []Step) {
	if n == nil {
		return nil
	}
	for _, c := range n.Content {
		s := Step{Run: c.Value}
		text(child(c, "run"), &s.Run)
		texts(child(c, "secrets"), &s.Secrets)
		out = append(out, s)
	}
	return out
}

func number[N int | int64](n *yaml.Node, into *N) {
	if n != nil {
		v, _ := strconv.ParseInt(n.Value, 10, 64)
		*into = N(v)
	}
}

func size(n *yaml.Node, into *int64) {
	if n != nil {
		*into, _ = parseSize(n.Value)
	}
}

// yes tells whether a key is there and true.
func yes(n *yaml.Node) bool { return n != nil && n.Value == "true" }

func duration(n *yaml.Node, into *time.Duration) {
	if n != nil {
		*into, _ = time.ParseDuration(n.Value)
	}
}

// child returns the value of a key of a mapping, nil if there is none.
func child(n *yaml.Node, name string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i+1]
		}
	}
	return nil
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	}
	return strconv.Quote(cut(n.Value, 60))
}

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

func joinKey(a, b string) string {
	if a == "" {
		return b
	}
	return a + "." + b
}

func orElse(n, fallback int) int {
	if n > 0 {
		return n
	}
	return fallback
}

func sortedKeys(m map[string]field) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// nearest returns the known word within two edits of s, if there is just one best.
func nearest(s string, known []string) string {
	best, at := 3, ""
	for _, k := range known {
		if len(s) > 40 {
			return ""
		}
		if d := edits(s, k); d < best {
			best, at = d, k
		}
	}
	return at
}

// edits is the Levenshtein distance.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		prev := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			old := row[j]
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(row[j]+1, row[j-1]+1, prev+cost)
			prev = old
		}
	}
	return row[len(b)]
}
