package diagnosis

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// Workflow judges which events of ours start a workflow of the default branch.
// prefix is that of our branches.
func Workflow(file string, body []byte, prefix string) []Finding {
	what := "workflow " + file
	var doc yaml.Node
	if err := yaml.Unmarshal(body, &doc); err != nil || len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return []Finding{{Warn, what, "it cannot be read, so that it is not known what starts it", "Look at its `on:` yourself."}}
	}
	on := triggers(member(doc.Content[0], "on"))
	exclude := fmt.Sprintf("Leave our branches out, as in `on: {push: {branches-ignore: [\"%s/**\"]}}`, if it holds secrets; pull requests are started by `pull_request`.", prefix)
	var out []Finding
	if n, ok := on["push"]; ok && firesOnPush(n, prefix) {
		out = append(out, Finding{Warn, what, "a push to our branches starts it: code that an agent wrote runs there with the repository's secrets", exclude})
	}
	if _, ok := on["create"]; ok {
		out = append(out, Finding{Warn, what, "a new branch of ours starts it (`create`): code that an agent wrote may run there with the repository's secrets", exclude})
	}
	if _, ok := on["pull_request_target"]; ok {
		out = append(out, Finding{Warn, what, "our pull requests start it (`pull_request_target`), with the repository's secrets and a token that may write",
			"Let it never check out, build or run what the pull request brings."})
	}
	if _, ok := on["pull_request"]; ok {
		out = append(out, Finding{OK, what, "our draft pull requests start it (`pull_request`), with the repository's secrets: they come from the repository itself", ""})
	}
	return out
}

// member is the value of a key of a mapping, or nil.
func member(n *yaml.Node, key string) *yaml.Node {
	n = resolved(n)
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return resolved(n.Content[i+1])
		}
	}
	return nil
}

func resolved(n *yaml.Node) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// triggers are the events of an `on:`, which is a word, a list or a map.
func triggers(on *yaml.Node) map[string]*yaml.Node {
	out := map[string]*yaml.Node{}
	if on == nil {
		return out
	}
	switch on.Kind {
	case yaml.ScalarNode:
		out[on.Value] = nil
	case yaml.SequenceNode:
		for _, e := range on.Content {
			out[resolved(e).Value] = nil
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(on.Content); i += 2 {
			out[on.Content[i].Value] = resolved(on.Content[i+1])
		}
	}
	return out
}

// firesOnPush says whether a push to a branch of ours passes the filters of a
// push trigger. Filters of paths do not count: what an agent changes nobody knows
// beforehand.
func firesOnPush(push *yaml.Node, prefix string) bool {
	only, ignored := member(push, "branches"), member(push, "branches-ignore")
	if only == nil && ignored == nil {
		// Filters of tags alone leave branches out.
		return member(push, "tags") == nil && member(push, "tags-ignore") == nil
	}
	for _, branch := range []string{prefix + "/1-a-title-0123456789", prefix + "/wip/0123456789"} {
		if only != nil && named(only, branch, true) || only == nil && !named(ignored, branch, false) {
			return true
		}
	}
	return false
}

// named says whether a list of patterns names a branch. The last one that fits
// decides; one that begins with ! takes away. unread is what one that cannot be
// read means.
func named(patterns *yaml.Node, branch string, unread bool) bool {
	list := []*yaml.Node{patterns}
	if patterns.Kind == yaml.SequenceNode {
		list = patterns.Content
	}
	found := false
	for _, n := range list {
		pattern, not := strings.CutPrefix(resolved(n).Value, "!")
		switch fit, err := fits(pattern, branch); {
		case err != nil:
			return unread
		case fit:
			found = !not
		}
	}
	return found
}

// fits compares by GitHub's filter patterns: * is any part of a name without /,
// ** any part, ? and + repeat what stands before them, [] is one of several, \
// takes the meaning from what follows.
func fits(pattern, branch string) (bool, error) {
	var b strings.Builder
	b.WriteString("^")
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '*' && strings.HasPrefix(pattern[i:], "**"):
			b.WriteString(".*")
			i++
		case c == '*':
			b.WriteString("[^/]*")
		case slices.Contains([]byte("?+[]-"), c):
			b.WriteByte(c)
		case c == '\\' && i+1 < len(pattern):
			i++
			b.WriteString(regexp.QuoteMeta(pattern[i : i+1]))
		default:
			b.WriteString(regexp.QuoteMeta(pattern[i : i+1]))
		}
	}
	re, err := regexp.Compile(b.String() + "$")
	if err != nil {
		return false, err
	}
	return re.MatchString(branch), nil
}
