package spec

import (
	"fmt"
	"maps"
	"regexp"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// MaxFloorBytes bounds an operator's policy file before it is parsed.
const MaxFloorBytes = 256 << 10

// Floor is a validated policy file as it stands; package policy decides by it.
type Floor struct {
	// Listed says that the file lists the repositories that may use Inspect;
	// without a list all may.
	Listed       bool
	Repositories []FloorRepository
	Defaults     FloorKeys // of every repository
	// Pipelines of Buildkite that may ask for work. None: nobody's.
	Pipelines []FloorPipeline
}

// FloorPipeline lets one pipeline of Buildkite ask for work. The ids are never
// given to another, so they are what it is known by; its slugs are only how it
// is asked about.
type FloorPipeline struct {
	Organization string // id
	ID           string
	Slug         string               // organization/pipeline, of addresses
	Repositories []PipelineRepository // that it may ask for
	May          []string             // Pipeline…; what its steps may ask for
	// OwnBranches lets builds of branches that sessions pushed start sessions.
	OwnBranches bool
	// NoForks is the operator's word that the pipeline builds no pull requests of
	// forks. Without it each build is looked up before it is believed.
	NoForks bool
	// Attempts is how many sessions may try to fix one commit.
	Attempts int
	// Builds: "follow" looks at its builds of what sessions pushed, "create" may
	// also ask for one.
	Builds string
}

// PipelineRepository is a repository by number or by name.
type PipelineRepository struct {
	ID   int64  // 0: by name
	Name string // owner/name in lower case
}

// What a pipeline's steps may ask for.
const (
	PipelinePrompt = "prompt"
	PipelineIssue  = "issue"
	PipelineFix    = "fix_build"
)

// What may be done about a pipeline's builds of what sessions pushed.
const (
	BuildsFollow = "follow"
	BuildsCreate = "create"
)

// MaxAttempts bounds how many sessions may try to fix one commit.
const MaxAttempts = 5

// FloorRepository is an entry of the list: it has either an ID or a Match.
type FloorRepository struct {
	ID    int64  // GitHub's number of the repository, the same after a rename
	Match string // doublestar pattern of owner/name, in lower case
	Keys  FloorKeys
}

// FloorKeys are bounds. A nil list and a zero number bind nothing; a list
// without entries leaves nothing.
type FloorKeys struct {
	Egress    []string // as in Spec
	Models    []string // doublestar patterns
	Harnesses []string // kinds
	Data      []string // provenances
	Secrets   []string // names, in which * stands for any part
	Limits    Limits
	Protected []string // added to those of a repository
	// Push is "head" where results may go onto the head of somebody's pull
	// request, and "stacked" where not. Where nobody says anything they may not.
	Push     string
	MaxFiles int
	MaxBytes int64
	FourEyes bool // no repository can do without
	// RefreshEvery is the least a repository may ask for under refresh.every.
	RefreshEvery time.Duration
	// KeepFailed is the most a repository may ask for under keep_failed; 0 keeps
	// nothing, nil binds nothing.
	KeepFailed *time.Duration
	Images     []string // doublestar patterns of registry/repository, or with @ of registry/repository@sha256:…
	Sandbox    string   // the least tier of sandboxes, of Tiers; empty: any
	// Submodules are doublestar patterns of owner/name, in lower case: what a
	// repository's submodules may be read from with a token. Where nobody has such
	// a list there is none.
	Submodules []string
	// Priority is the most that a command may ask for; nil binds nothing. Where
	// nobody says anything it is 0.
	Priority *int
	// PriorityLabels give a session that is started on an issue with that label,
	// in lower case, its priority.
	PriorityLabels map[string]int
	// RequireProtection starts nothing where GitHub would let the App push or merge
	// to the default branch.
	RequireProtection bool
}

// Tiers of sandboxes a floor can ask for, the weaker first.
func Tiers() []string { return []string{"bubblewrap", "gvisor"} }

// ParseFloor reads a policy file. With problems the Floor must not be used.
func ParseFloor(body []byte) (Floor, Problems) {
	root, problems := read(body, MaxFloorBytes, floorSchema(), (*validator).crossCheckFloor)
	if len(problems) > 0 {
		return Floor{}, problems
	}
	f := Floor{Defaults: buildFloorKeys(child(root, "defaults"))}
	if list := child(root, "repositories"); list != nil {
		f.Listed = true
		for _, n := range list.Content {
			r := FloorRepository{Keys: buildFloorKeys(n)}
			number(child(n, "id"), &r.ID)
			text(child(n, "match"), &r.Match)
			r.Match = strings.ToLower(r.Match)
			f.Repositories = append(f.Repositories, r)
		}
	}
	f.Pipelines = buildPipelines(child(child(root, "buildkite"), "pipelines"))
	return f, nil
}

var secretPattern = regexp.MustCompile(`^[A-Z*][A-Z0-9_*]{0,63}$`)

// floorSchema shares with .inspect.yml what bounds the same values.
func floorSchema() field {
	file := schema().fields
	host := file["egress"].item.variants[0]
	harness := file["harness"].fields["kind"]
	provenance := file["data"].fields["provenance"]
	publish := file["publish"]
	publish.fields = map[string]field{}
	for _, key := range []string{"protected", "max_files", "max_bytes", "push", "four_eyes"} {
		publish.fields[key] = file["publish"].fields[key]
	}
	limits := file["limits"]
	limits.fields = maps.Clone(limits.fields)
	limits.fields["keep_failed"] = file["keep_failed"]
	limits.fields["priority"] = field{kind: kindInt, help: "a number from 0 to 50", check: between(0, 50)}
	urgency := field{kind: kindInt, help: "a number from 1 to 50", check: between(1, 50)}
	refresh := field{kind: kindMap, help: "a map", fields: map[string]field{"every": file["refresh"].fields["every"]}}
	pattern := func(help string) field {
		return field{kind: kindText, help: help, max: 200, check: func(s string) bool {
			return plainPattern(s) && (s == "**" || strings.Contains(s, "/"))
		}}
	}
	image := pattern("a pattern of images like registry.example/dev/*, or **/*@sha256:… (a * does not reach over a /, ** does)")
	model := pattern("a pattern of models like anthropic/* (a * does not reach over a /, ** does)")
	secret := field{kind: kindText, help: "the name of a secret, or a pattern like NPM_*", check: secretPattern.MatchString}
	repositories := pattern("a pattern of owner/name like octocat/* (a * does not reach over a /, ** does)")
	keys := map[string]field{
		"egress":             {kind: kindList, help: "a list of hosts and ecosystems", max: 200, item: &host},
		"limits":             limits,
		"refresh":            refresh,
		"models":             {kind: kindList, help: "a list of patterns of models", max: 100, item: &model},
		"harnesses":          {kind: kindList, help: "a list of kinds of harness", item: &harness},
		"data":               {kind: kindList, help: "a list of provenances", item: &provenance},
		"secrets":            {kind: kindList, help: "a list of names of secrets", max: 200, item: &secret},
		"submodules":         {kind: kindList, help: "a list of patterns of repositories", max: 200, item: &repositories},
		"publish":            publish,
		"images":             {kind: kindList, help: "a list of patterns of images", max: 100, item: &image},
		"priority_labels":    {kind: kindMap, help: "a map of labels to numbers", max: 50, anyKey: &urgency, anyName: true},
		"require_protection": {kind: kindBool, help: "true or false"},
		"sandbox":            {kind: kindText, help: "the least tier of sandboxes, bubblewrap or gvisor", only: Tiers()},
	}
	repository := maps.Clone(keys)
	repository["match"] = repositories
	repository["id"] = field{kind: kindInt, help: "the number of a repository", check: between(1, 1<<53)}
	return field{kind: kindMap, help: "a map", fields: map[string]field{
		"version": file["version"],
		"repositories": {kind: kindList, help: "a list of repositories", max: 1000, item: &field{
			kind: kindMap, help: "a map with match or id", fields: repository,
		}},
		"defaults":  {kind: kindMap, help: "a map", fields: keys},
		"buildkite": pipelineSchema(),
	}}
}

// crossCheckFloor finds what no single key shows.
func (v *validator) crossCheckFloor(root *yaml.Node) {
	v.crossCheckPipelines(root)
	list := child(root, "repositories")
	if list == nil || list.Kind != yaml.SequenceNode {
		return
	}
	for i, n := range list.Content {
		at := fmt.Sprintf("repositories[%d]", i)
		match, id := child(n, "match"), child(n, "id")
		switch {
		case n.Kind != yaml.MappingNode:
		case match != nil && id != nil:
			v.add(n, at, "expected either match or id, but found both", "")
		case match == nil && id == nil:
			v.add(n, at+".match", "expected a pattern of owner/name, or the key id; both are missing", "")
		}
	}
}

func buildFloorKeys(n *yaml.Node) FloorKeys {
	var k FloorKeys
	list := func(key string, into *[]string) {
		if l := child(n, key); l != nil {
			texts(l, into)
			if *into == nil {
				*into = []string{} // there, and empty: nothing is left
			}
		}
	}
	list("egress", &k.Egress)
	for i, e := range k.Egress {
		k.Egress[i] = strings.ToLower(e)
	}
	list("models", &k.Models)
	list("harnesses", &k.Harnesses)
	list("data", &k.Data)
	list("secrets", &k.Secrets)
	list("submodules", &k.Submodules)
	for i, m := range k.Submodules {
		k.Submodules[i] = strings.ToLower(m)
	}
	list("images", &k.Images)
	text(child(n, "sandbox"), &k.Sandbox)
	buildLimits(child(n, "limits"), &k.Limits)
	if keep := child(child(n, "limits"), "keep_failed"); keep != nil {
		k.KeepFailed = new(time.Duration)
		duration(keep, k.KeepFailed)
	}
	if most := child(child(n, "limits"), "priority"); most != nil {
		k.Priority = new(int)
		number(most, k.Priority)
	}
	if labels := child(n, "priority_labels"); labels != nil {
		k.PriorityLabels = map[string]int{}
		for i := 0; i+1 < len(labels.Content); i += 2 {
			var priority int
			number(labels.Content[i+1], &priority)
			k.PriorityLabels[strings.ToLower(labels.Content[i].Value)] = priority
		}
	}
	if required := child(n, "require_protection"); required != nil {
		k.RequireProtection = required.Value == "true"
	}
	duration(child(child(n, "refresh"), "every"), &k.RefreshEvery)
	publish := child(n, "publish")
	text(child(publish, "push"), &k.Push)
	texts(child(publish, "protected"), &k.Protected)
	number(child(publish, "max_files"), &k.MaxFiles)
	size(child(publish, "max_bytes"), &k.MaxBytes)
	k.FourEyes = yes(child(publish, "four_eyes"))
	return k
}
