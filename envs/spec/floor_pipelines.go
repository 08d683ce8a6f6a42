package spec

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

var (
	pipelineID   = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	pipelineSlug = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,254}/[A-Za-z0-9][A-Za-z0-9_-]{0,254}$`)
	// repositoryName has no pattern: a pipeline is bound to repositories one by one.
	repositoryName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,99}/[A-Za-z0-9._-]{1,100}$`)
)

// pipelineSchema is what a policy says of Buildkite.
func pipelineSchema() field {
	id := field{kind: kindText, help: "an id like 0184990a-477b-4fa8-9968-496074483cee, not a slug: slugs can change hands", max: 36, check: pipelineID.MatchString, required: true}
	repository := field{kind: kindText, help: "owner/name", max: 210, check: repositoryName.MatchString}
	number := field{kind: kindInt, help: "the number of a repository", check: between(1, 1<<53)}
	may := field{kind: kindText, help: "prompt, issue or fix_build", only: []string{PipelinePrompt, PipelineIssue, PipelineFix}}
	return field{kind: kindMap, help: "a map with pipelines", fields: map[string]field{
		"pipelines": {kind: kindList, help: "a list of pipelines", max: 500, required: true, item: &field{
			kind: kindMap, help: "a map with organization_id, pipeline_id, slug and repositories", fields: map[string]field{
				"organization_id": id,
				"pipeline_id":     id,
				"slug":            {kind: kindText, help: "organization/pipeline, as in the pipeline's address", max: 511, check: pipelineSlug.MatchString, required: true},
				"repositories":    {kind: kindList, help: "a list of repositories, each owner/name", max: 100, item: &repository},
				"repository_ids":  {kind: kindList, help: "a list of numbers of repositories", max: 100, item: &number},
				"may":             {kind: kindList, help: "a list of prompt, issue and fix_build", item: &may},
				"own_branches":    {kind: kindBool, help: "true or false"},
				"no_forks":        {kind: kindBool, help: "true or false"},
				"attempts":        {kind: kindInt, help: fmt.Sprintf("a number from 1 to %d", MaxAttempts), check: between(1, MaxAttempts)},
				"builds":          {kind: kindText, help: "follow or create", only: []string{BuildsFollow, BuildsCreate}},
			},
		}},
	}}
}

// crossCheckPipelines finds a pipeline that is listed twice: which entry counts
// would be a matter of chance.
func (v *validator) crossCheckPipelines(root *yaml.Node) {
	list := child(child(root, "buildkite"), "pipelines")
	if list == nil || list.Kind != yaml.SequenceNode {
		return
	}
	seen := map[string]int{}
	for i, n := range list.Content {
		id := child(n, "pipeline_id")
		if id == nil || id.Kind != yaml.ScalarNode {
			continue
		}
		at := fmt.Sprintf("buildkite.pipelines[%d]", i)
		if first, ok := seen[strings.ToLower(id.Value)]; ok {
			v.add(id, at+".pipeline_id", fmt.Sprintf("expected each pipeline once, but buildkite.pipelines[%d] has this one too", first), "")
		}
		seen[strings.ToLower(id.Value)] = i
		if len(v.problems) == 0 && !filled(child(n, "repositories")) && !filled(child(n, "repository_ids")) {
			v.add(id, at+".repositories", "expected at least one repository, here or in repository_ids: a pipeline that is bound to none can ask for nothing", "")
		}
	}
}

func filled(n *yaml.Node) bool { return n != nil && len(n.Content) > 0 }

func buildPipelines(n *yaml.Node) (out []FloorPipeline) {
	if n == nil {
		return nil
	}
	for _, c := range n.Content {
		p := FloorPipeline{May: []string{PipelinePrompt, PipelineIssue}, Attempts: 1}
		text(child(c, "organization_id"), &p.Organization)
		text(child(c, "pipeline_id"), &p.ID)
		p.Organization, p.ID = strings.ToLower(p.Organization), strings.ToLower(p.ID)
		text(child(c, "slug"), &p.Slug)
		var repositories, numbers []string
		texts(child(c, "repositories"), &repositories)
		for _, r := range repositories {
			p.Repositories = append(p.Repositories, PipelineRepository{Name: strings.ToLower(r)})
		}
		texts(child(c, "repository_ids"), &numbers)
		for _, n := range numbers {
			id, _ := strconv.ParseInt(n, 10, 64)
			p.Repositories = append(p.Repositories, PipelineRepository{ID: id})
		}
		texts(child(c, "may"), &p.May)
		p.OwnBranches, p.NoForks = yes(child(c, "own_branches")), yes(child(c, "no_forks"))
		number(child(c, "attempts"), &p.Attempts)
		text(child(c, "builds"), &p.Builds)
		out = append(out, p)
	}
	return out
}
