// Package oidc checks the tokens by which jobs of Buildkite prove which pipeline
// and build they belong to. A token comes in, what it proves goes out; what a
// pipeline may do with it is decided by package authority. Why a token is
// refused is for the log: whoever shows it learns nothing.
package oidc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v4"

	"inspect/envs/proc"
	"inspect/scheduler/jwks"
)

// DefaultIssuer signs the tokens of Buildkite's jobs.
const DefaultIssuer = "https://agent.buildkite.com"

// KeysPath is where an issuer publishes its keys, unless it is said otherwise.
const KeysPath = "/.well-known/jwks"

// leeway is by how much clocks may differ.
const leeway = 30 * time.Second

// longest is the longest that a token may be good for: Buildkite's default is 5
// minutes, and a step has no use for more than an hour.
const longest = time.Hour

// ErrUntold says that the issuer's keys cannot be had now: the token may be good.
var ErrUntold = jwks.ErrUntold

// Job is what a token proves. The ids are Buildkite's and never used again; slugs
// can be renamed and used again, and a fork can choose a branch's name: they are
// for people and for addresses.
type Job struct {
	OrganizationID string `json:"organization_id"`
	PipelineID     string `json:"pipeline_id"`
	JobID          string `json:"job_id"`
	BuildID        string `json:"build_id,omitempty"` // empty: the step did not ask for it
	BuildNumber    int    `json:"build_number"`
	StepKey        string `json:"step_key,omitempty"`
	Organization   string `json:"organization_slug"`
	Pipeline       string `json:"pipeline_slug"`
	Branch         string `json:"build_branch"`
	Commit         string `json:"build_commit"`
	Source         string `json:"build_source"`
}

// Options of a Verifier.
type Options struct {
	Issuer   string // empty: DefaultIssuer
	Keys     string // address of its keys; empty: KeysPath at the issuer
	Audience string // our own address, exactly as the steps name it
	// Client fetches the keys; nil: one of our own, which follows no redirects.
	Client *http.Client
	Clock  proc.Clock // nil: the machine's
}

// Verifier checks tokens. It is safe for concurrent use.
type Verifier struct {
	issuer, audience string
	keys             *jwks.Keys
	clock            proc.Clock
}

// New refuses an issuer or keys that could be anybody's: addresses are https, or
// http to this machine.
func New(o Options) (*Verifier, error) {
	if o.Issuer == "" {
		o.Issuer = DefaultIssuer
	}
	if o.Keys == "" {
		o.Keys = strings.TrimSuffix(o.Issuer, "/") + KeysPath
	}
	for what, address := range map[string]string{"issuer": o.Issuer, "keys": o.Keys} {
		if err := checkAddress(address); err != nil {
			return nil, fmt.Errorf("the %s of Buildkite's tokens: %w", what, err)
		}
	}
	if o.Audience == "" {
		return nil, errors.New("the audience of Buildkite's tokens is missing: it is the address at which steps reach Inspect")
	}
	if o.Clock == nil {
		o.Clock = proc.System()
	}
	if o.Client == nil {
		o.Client = &http.Client{Timeout: 10 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	fetch := func(ctx context.Context) ([]byte, error) { return get(ctx, o.Client, o.Keys) }
	return &Verifier{issuer: o.Issuer, audience: o.Audience, keys: jwks.New(o.Clock, fetch), clock: o.Clock}, nil
}

func checkAddress(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("expected an address like %s, but found %q", DefaultIssuer, s)
	case u.Scheme == "https":
		return nil
	case u.Scheme == "http" && loopback(u.Hostname()):
		return nil
	}
	return fmt.Errorf("expected https, or http to this machine, but found %q", s)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func get(ctx context.Context, c *http.Client, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers with status %d", address, resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, jwks.MaxSet+1))
	if err == nil && len(body) > jwks.MaxSet {
		err = fmt.Errorf("%s answers with more than %d bytes", address, jwks.MaxSet)
	}
	return body, err
}

// claims of a token. Buildkite puts all but the first two groups and job_id in
// only if it knows them, and the ids only if the step asks for them.
type claims struct {
	Issuer    string           `json:"iss"`
	Audience  jwt.ClaimStrings `json:"aud"`
	Expires   *jwt.NumericDate `json:"exp"`
	NotBefore *jwt.NumericDate `json:"nbf"`
	IssuedAt  *jwt.NumericDate `json:"iat"`
	Job
}

// Valid implements jwt.Claims. It is not asked: check is, which has a clock.
func (claims) Valid() error { return errors.New("claims are checked elsewhere") }

// Verify says what a token proves. The error is why it proves nothing, for the
// log; ErrUntold is no refusal.
func (v *Verifier) Verify(ctx context.Context, token string) (Job, error) {
	var c claims
	if err := v.keys.Verify(ctx, token, &c); errors.Is(err, ErrUntold) {
		return Job{}, err
	} else if err != nil {
		return Job{}, fmt.Errorf("it is not signed by %s: %w", v.issuer, err)
	}
	if err := c.check(v.issuer, v.audience, v.clock.Now()); err != nil {
		return Job{}, err
	}
	return c.Job, nil
}

var uuid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// check looks at claims that are signed.
func (c *claims) check(issuer, audience string, now time.Time) error {
	c.OrganizationID, c.PipelineID = strings.ToLower(c.OrganizationID), strings.ToLower(c.PipelineID)
	c.JobID, c.BuildID = strings.ToLower(c.JobID), strings.ToLower(c.BuildID)
	switch {
	case c.Issuer != issuer:
		return fmt.Errorf("it is of the issuer %q", cut(c.Issuer))
	case !slices.Equal(c.Audience, jwt.ClaimStrings{audience}): // for nobody else besides
		return fmt.Errorf("it is for %q, not for %q", cut(strings.Join(c.Audience, " ")), audience)
	case c.Expires == nil || c.NotBefore == nil || c.IssuedAt == nil:
		return errors.New("it does not say when it is good")
	case !now.Before(c.Expires.Add(leeway)):
		return fmt.Errorf("it has expired at %s", c.Expires.UTC().Format(time.RFC3339))
	case now.Add(leeway).Before(c.NotBefore.Time) || now.Add(leeway).Before(c.IssuedAt.Time):
		return fmt.Errorf("it is not good before %s", c.NotBefore.UTC().Format(time.RFC3339))
	case c.Expires.Sub(c.IssuedAt.Time) > longest:
		return fmt.Errorf("it is good for longer than %s", longest)
	case c.OrganizationID == "" || c.PipelineID == "":
		return errors.New("it does not name organization_id and pipeline_id: the step must ask for both claims")
	case !uuid.MatchString(c.OrganizationID) || !uuid.MatchString(c.PipelineID):
		return errors.New("its organization_id or pipeline_id is no id")
	case !uuid.MatchString(c.JobID):
		return errors.New("it names no job")
	case c.BuildNumber <= 0 || c.BuildID != "" && !uuid.MatchString(c.BuildID):
		return errors.New("it names no build")
	case longer(c.StepKey, 255) || longer(c.Organization, 255) || longer(c.Pipeline, 255) || longer(c.Branch, 1000) || longer(c.Commit, 100) || longer(c.Source, 100):
		return errors.New("one of its claims is too long or no text")
	}
	return nil
}

func longer(s string, most int) bool { return len(s) > most || strings.ContainsRune(s, 0) }

func cut(s string) string {
	if len(s) > 100 {
		s = s[:100] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}
