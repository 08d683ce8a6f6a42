package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	bkdoor "inspect/app/buildkite"
	"inspect/app/builds"
	"inspect/app/github"
	"inspect/app/intake"
	"inspect/app/oidc"
	"inspect/app/policy"
	"inspect/app/publish"
	"inspect/app/report"
	"inspect/app/webhook"
	"inspect/checks/buildkite"
	"inspect/checks/evidence"
	"inspect/envs/spec"
	"inspect/scheduler"
	"inspect/storage"
)

// buildkiteFlags are the flags of `inspect serve` about Buildkite. Which pipelines
// may ask for what is in the policy.
type buildkiteFlags struct {
	API, TokenFile                    string
	Issuer, Keys, Audience            string
	SecretFile, OldSecretFile, Proves string
	ArtifactHosts                     []string
}

// What a webhook of Buildkite proves itself with.
const (
	provesSignature = "signature"
	provesToken     = "token"
)

func (b *buildkiteFlags) flags(f *pflag.FlagSet) {
	f.StringVar(&b.TokenFile, "buildkite-token-file", "", "file with an API access token of Buildkite, with the scopes read_builds, read_build_logs, read_artifacts and, to ask for builds, write_builds")
	f.StringVar(&b.API, "buildkite-api", buildkite.DefaultURL, "base address of Buildkite's REST API")
	f.StringVar(&b.Issuer, "buildkite-issuer", oidc.DefaultIssuer, "who signs the tokens that steps show")
	f.StringVar(&b.Keys, "buildkite-keys", "", "address of the issuer's keys (default: "+oidc.KeysPath+" at the issuer)")
	f.StringVar(&b.Audience, "buildkite-audience", "", "whom the tokens of steps must be for (default: --public-url)")
	f.StringVar(&b.SecretFile, "buildkite-webhook-secret-file", "", "file with the token of Buildkite's webhook, which its signatures are made with")
	f.StringVar(&b.OldSecretFile, "buildkite-webhook-secret-previous-file", "", "file with the one before a rotation, still accepted")
	f.StringVar(&b.Proves, "buildkite-webhook", provesSignature, "what webhooks must have: signature, or token, where Buildkite sends it in clear text and nothing keeps a delivery from being sent again")
	f.StringSliceVar(&b.ArtifactHosts, "buildkite-artifact-host", nil, "hosts of your own artifact store that may have private addresses")
}

func (b *buildkiteFlags) check() error {
	switch {
	case b.Proves != provesSignature && b.Proves != provesToken:
		return usagef("--buildkite-webhook: expected signature or token, but found %q", b.Proves)
	case b.OldSecretFile != "" && b.SecretFile == "":
		return usagef("--buildkite-webhook-secret-previous-file is of use only beside --buildkite-webhook-secret-file")
	}
	return nil
}

// buildkiteGiven is what only whoever starts a control plane may read.
type buildkiteGiven struct {
	Token    string   `json:"token"`
	Webhooks []string `json:"webhooks"` // the present one first
}

func (b *buildkiteFlags) read() (g buildkiteGiven, err error) {
	if b.TokenFile != "" {
		if g.Token, err = readSecret(b.TokenFile, "the API access token of Buildkite"); err != nil {
			return g, err
		}
	}
	for _, path := range []string{b.SecretFile, b.OldSecretFile} {
		if path == "" {
			continue
		}
		s, err := readSecret(path, "the token of Buildkite's webhook")
		if err != nil {
			return g, err
		}
		g.Webhooks = append(g.Webhooks, s)
	}
	return g, nil
}

func (g buildkiteGiven) secrets() []string {
	if g.Token == "" {
		return g.Webhooks
	}
	return append([]string{g.Token}, g.Webhooks...)
}

// client of the API; nil where there is no token.
func (b *buildkiteFlags) client(g buildkiteGiven) (*buildkite.Client, error) {
	if g.Token == "" {
		return nil, nil
	}
	c, err := buildkite.New(buildkite.Options{
		URL: b.API, Token: func(context.Context) (string, error) { return g.Token, nil }, ArtifactHosts: b.ArtifactHosts,
	})
	if err != nil {
		return nil, usagef("--buildkite-api: %w", err)
	}
	return c, nil
}

// pipelines are of the policy as it is now.
func (f *floorFile) pipeline(id policy.PipelineID) (policy.Pipeline, bool) {
	return f.now().Pipeline(id)
}

func (f *floorFile) pipelineByID(id string) (policy.Pipeline, bool) { return f.now().PipelineByID(id) }

func (f *floorFile) builds(repositoryID int64, ownerName string, c spec.BuildkiteChecks) []policy.BuildWanted {
	return f.now().Builds(repositoryID, ownerName, c)
}

func (f *floorFile) now() policy.Floor {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path != "" {
		f.reread()
	}
	return f.floor
}

// buildkiteParts are what of a control plane the door for Buildkite needs.
type buildkiteParts struct {
	flags      buildkiteFlags
	given      buildkiteGiven
	public     string
	db         *storage.DB
	blobs      *storage.Blobs
	steps      *intake.Intake
	jobs       *scheduler.Scheduler
	reporter   *report.Reporter
	sessionURL func(string) string
	repository func(github.Repo) string
	log        *slog.Logger
}

// door for steps and webhooks.
func (p buildkiteParts) door() (http.Handler, error) {
	audience := p.flags.Audience
	if audience == "" {
		audience = p.public
	}
	tokens, err := oidc.New(oidc.Options{Issuer: p.flags.Issuer, Keys: p.flags.Keys, Audience: audience})
	if err != nil {
		return nil, usageError{fmt.Errorf("--buildkite-issuer, --buildkite-keys, --buildkite-audience: %w", err)}
	}
	return bkdoor.New(bkdoor.Options{
		DB: p.db, Steps: p.steps, Jobs: p.jobs, Tokens: tokens, SessionURL: p.sessionURL, Log: p.log,
		Webhook:       buildkite.Proof{Secrets: p.given.Webhooks, SignatureOnly: p.flags.Proves == provesSignature},
		RepositoryURL: func(owner, name string) string { return p.repository(github.Repo{Owner: owner, Name: name}) },
		Told: func(ctx context.Context, session string) (bkdoor.Told, error) {
			run, err := p.reporter.Told(ctx, session)
			return bkdoor.Told{Conclusion: run.Conclusion, Title: run.Title, Summary: run.Summary}, err
		},
		Evidence: func(ctx context.Context, to io.Writer, session string) error {
			b, s, err := readEvidence(ctx, p.db, p.blobs, session)
			if errors.Is(err, errNoEvidence) {
				return bkdoor.ErrNoEvidence
			}
			if err != nil {
				return err
			}
			var m evidence.Manifest
			if err := json.Unmarshal(b.manifest, &m); err != nil {
				return err
			}
			if slices.ContainsFunc(m.Files, func(f evidence.File) bool { return f.Name == publish.FileUnsearched }) {
				return bkdoor.ErrUnsearched
			}
			return publish.Export(ctx, to, p.db.Q(), p.blobs, s, b.manifest)
		},
	})
}

// follower of the builds of what was pushed.
func (p buildkiteParts) follower(client *buildkite.Client, floor *floorFile, tell func(context.Context, storage.Session) error) (*builds.Follower, error) {
	o := builds.Options{
		DB: p.db, Wanted: floor.builds, CloneURL: p.repository, Record: p.jobs.Record, Report: tell, Log: p.log,
		Failed: p.steps.BuildFailed,
		Keep: func(ctx context.Context, session string, body []byte) (string, error) {
			sum, _, err := p.blobs.Put(ctx, session, bytes.NewReader(body), int64(len(body)))
			return sum, err
		},
	}
	if client != nil {
		o.Buildkite = client
	}
	return builds.New(o)
}

// hooks serves GitHub's webhook and all that is Buildkite's on one listener.
func hooks(github, buildkite http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, bkdoor.Path) {
			buildkite.ServeHTTP(w, r)
			return
		}
		github.ServeHTTP(w, r)
	})
}

var _ http.Handler = (*webhook.Handler)(nil)
