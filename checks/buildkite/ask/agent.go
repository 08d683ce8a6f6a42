package ask

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"inspect/envs/proc"
)

// Claims that the control plane authorises by: ids that are never used again,
// which Buildkite puts into a token only if they are asked for.
var Claims = []string{"organization_id", "pipeline_id", "build_id"}

// agentTime bounds one call of buildkite-agent, which tries again by itself.
const agentTime = 3 * time.Minute

// ErrNoAgent is the error of a machine without buildkite-agent.
var ErrNoAgent = errors.New("buildkite-agent is not there: this command runs in a step of a pipeline, where it is on PATH")

// Agent is the buildkite-agent of this job.
type Agent struct {
	// Program is its name or path; empty means "buildkite-agent".
	Program string
	// Env is the job's environment, of which the agent takes its endpoint, its
	// token and the job's id.
	Env []string
}

var jwt = regexp.MustCompile(`^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$`)

// Token is an OIDC token of this job for an audience. It holds for five minutes.
func (a Agent) Token(ctx context.Context, audience string) (string, error) {
	args := []string{"oidc", "request-token", "--audience", audience}
	for _, c := range Claims {
		args = append(args, "--claim", c)
	}
	res, err := a.run(ctx, proc.Command{Argv: args})
	if err != nil {
		return "", fmt.Errorf("ask Buildkite for an OIDC token: %w", err)
	}
	token := strings.TrimSpace(string(res.Stdout))
	if len(token) > 16<<10 || !jwt.MatchString(token) {
		return "", errors.New("ask Buildkite for an OIDC token: what buildkite-agent says is none")
	}
	return token, nil
}

// IDs are what the control plane's policy knows a pipeline by.
type IDs struct {
	OrganizationID   string `json:"organization_id"`
	PipelineID       string `json:"pipeline_id"`
	OrganizationSlug string `json:"organization_slug"`
	PipelineSlug     string `json:"pipeline_slug"`
}

// IDs of this job's pipeline, out of a token that nobody else gets.
func (a Agent) IDs(ctx context.Context) (IDs, error) {
	token, err := a.Token(ctx, "inspect:ids")
	if err != nil {
		return IDs{}, err
	}
	var ids IDs
	body, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err == nil {
		err = json.Unmarshal(body, &ids)
	}
	if err != nil || ids.OrganizationID == "" || ids.PipelineID == "" {
		return IDs{}, errors.New("ask Buildkite for an OIDC token: it names no ids")
	}
	return ids, nil
}

// Annotate pins body to the build's page, in place of what has the same context.
func (a Agent) Annotate(ctx context.Context, style, context, body string) error {
	_, err := a.run(ctx, proc.Command{Argv: []string{"annotate", "--style", style, "--context", context}, Stdin: strings.NewReader(body)})
	if err != nil {
		return fmt.Errorf("annotate the build: %w", err)
	}
	return nil
}

// SetMetaData sets what every step of the build can read.
func (a Agent) SetMetaData(ctx context.Context, key, value string) error {
	if _, err := a.run(ctx, proc.Command{Argv: []string{"meta-data", "set", key}, Stdin: strings.NewReader(value)}); err != nil {
		return fmt.Errorf("set the build's meta-data %s: %w", key, err)
	}
	return nil
}

// Upload keeps a file of dir as an artifact of the job.
func (a Agent) Upload(ctx context.Context, dir, name string) error {
	if _, err := a.run(ctx, proc.Command{Argv: []string{"artifact", "upload", name}, Dir: dir}); err != nil {
		return fmt.Errorf("upload the artifact %s: %w", name, err)
	}
	return nil
}

// Outcome is how a step of this build went, by its key: passed, hard_failed,
// soft_failed, errored, neutral, or empty while it runs.
func (a Agent) Outcome(ctx context.Context, key string) (string, error) {
	res, err := a.run(ctx, proc.Command{Argv: []string{"step", "get", "outcome", "--step", key}})
	if err != nil {
		return "", fmt.Errorf("ask Buildkite how the step %q went: %w", key, err)
	}
	return strings.TrimSpace(string(res.Stdout)), nil
}

func (a Agent) run(ctx context.Context, c proc.Command) (proc.Result, error) {
	program := a.Program
	if program == "" {
		program = "buildkite-agent"
	}
	ctx, cancel := context.WithTimeout(ctx, agentTime)
	defer cancel()
	c.Argv = append([]string{program}, c.Argv...)
	c.Grace = 2 * time.Second
	for _, e := range a.Env {
		// These would change what annotate, meta-data and artifact do, or write the
		// token into the log.
		name, _, _ := strings.Cut(e, "=")
		switch {
		case strings.HasPrefix(name, "BUILDKITE_ANNOTATION_"), strings.HasPrefix(name, "BUILDKITE_AGENT_DEBUG"), name == "BUILDKITE_ARTIFACT_PATHS":
		default:
			c.Env = append(c.Env, e)
		}
	}
	if len(c.Env) == 0 {
		c.Env = []string{"PATH=" + proc.DefaultPath}
	}
	res, err := proc.Run(ctx, c)
	if errors.Is(err, proc.ErrNotFound) {
		return res, ErrNoAgent
	}
	return res, err
}
