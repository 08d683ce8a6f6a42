package github

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// A route is one kind of request this program may send. What is no route is
// never sent: there is none for merging, reviewing, branch protection,
// administration, deleting refs, or anything else that nobody asked for.
type route struct {
	method string
	// path below the API's base, segment by segment: a literal, {a name} for
	// one segment of a known form, or {a name...} for all that follow.
	path string
	// what a write writes, for the record.
	what string
	// body is what may be sent, field by field; nil allows no body.
	body shape
	// purpose is what a token for it is minted for; empty: the App's own proof or
	// the token it is about.
	purpose purpose
	// token marks the minting and revoking of tokens and of an App's first key: no
	// content, so it is neither counted nor serialised with the writes, and may be
	// repeated.
	token bool
	// query marks a question that is asked with POST: it changes nothing.
	query bool
}

// write says whether a request changes something on GitHub.
func (r *route) write() bool { return r.method != http.MethodGet && !r.token && !r.query }

// graph is the one route to GraphQL: questions that are written in this package,
// with variables for names and numbers. There is none for mutations.
var graph = &route{method: "POST", path: "graphql", body: graphBody, purpose: forPulls, query: true}

const (
	repository = "repos/{owner}/{name}"
	byID       = "repositories/{id}" // where GitHub redirects to when a repository was renamed
)

// perRepository lists the routes below a repository.
var perRepository = []route{
	{method: "GET", path: "", purpose: forReading},
	{method: "GET", path: "/collaborators/{login}/permission", purpose: forReading},
	{method: "GET", path: "/git/ref/{ref...}", purpose: forReading},
	{method: "GET", path: "/contents/{path...}", purpose: forReading},
	{method: "GET", path: "/rules/branches/{ref...}", purpose: forReading},
	{method: "GET", path: "/issues", purpose: forTalking},
	{method: "GET", path: "/issues/{id}", purpose: forTalking},
	{method: "GET", path: "/issues/{id}/events", purpose: forTalking},
	{method: "GET", path: "/rulesets/{id}", purpose: forReading},
	{method: "GET", path: "/branches/{ref}", purpose: forReading},
	{method: "GET", path: "/issues/{id}/comments", purpose: forTalking},
	{method: "POST", path: "/issues/{id}/comments", what: "comment", body: commentBody, purpose: forTalking},
	{method: "PATCH", path: "/issues/comments/{id}", what: "comment", body: commentBody, purpose: forTalking},
	{method: "POST", path: "/issues/{id}/reactions", what: "reaction", body: reactionBody, purpose: forTalking},
	{method: "POST", path: "/issues/comments/{id}/reactions", what: "reaction", body: reactionBody, purpose: forTalking},
	{method: "DELETE", path: "/issues/{id}/labels/{label}", what: "label", purpose: forTalking},
	{method: "GET", path: "/git/commits/{sha}", purpose: forReading},
	{method: "GET", path: "/branches/{ref}", purpose: forReading}, // one segment: what is below a branch is its protection
	{method: "GET", path: "/commits", purpose: forReading},
	{method: "GET", path: "/commits/{sha}", purpose: forReading},
	{method: "GET", path: "/activity", purpose: forReading},
	{method: "GET", path: "/commits/{sha}/check-runs", purpose: forChecks},
	{method: "GET", path: "/actions/jobs/{id}/logs", purpose: forLogs},
	{method: "POST", path: "/check-runs", what: "check run", body: newCheckRunBody, purpose: forChecks},
	{method: "PATCH", path: "/check-runs/{id}", what: "check run", body: checkRunBody, purpose: forChecks},
	{method: "GET", path: "/pulls", purpose: forPulls},
	{method: "GET", path: "/pulls/{id}", purpose: forPulls},
	{method: "GET", path: "/pulls/{id}/files", purpose: forPulls},
	{method: "GET", path: "/pulls/{id}/comments", purpose: forPulls},
	{method: "GET", path: "/pulls/{id}/reviews", purpose: forPulls},
	{method: "POST", path: "/pulls/comments/{id}/reactions", what: "reaction", body: reactionBody, purpose: forPulls},
	{method: "GET", path: "/pulls/{id}/requested_reviewers", purpose: forPulls},
	{method: "POST", path: "/pulls/{id}/requested_reviewers", what: "request for a review", body: reviewersBody, purpose: forPulls},
	{method: "POST", path: "/git/blobs", what: "file", body: blobBody, purpose: forPushing},
	{method: "POST", path: "/git/trees", what: "tree", body: treeBody, purpose: forPushing},
	{method: "POST", path: "/git/commits", what: "commit", body: commitBody, purpose: forPushing},
	{method: "POST", path: "/git/refs", what: "branch", body: newBranchBody, purpose: forPushing},
	{method: "PATCH", path: "/git/refs/heads/{ref...}", what: "branch", body: branchBody, purpose: forPushing},
	{method: "POST", path: "/pulls", what: "pull request", body: newPullBody, purpose: forPulls},
}

// perApp lists the routes of the App itself.
var perApp = []route{
	{method: "GET", path: "app"},
	{method: "GET", path: "apps/{slug}"},
	{method: "GET", path: "app/installations"},
	{method: "POST", path: "app/installations/{id}/access_tokens", body: tokenBody, token: true},
	{method: "GET", path: "app/hook/config"},
	{method: "GET", path: "app/hook/deliveries"},
	{method: "POST", path: "app/hook/deliveries/{id}/attempts", what: "redelivery"},
	{method: "DELETE", path: "installation/token", token: true},
	{method: "POST", path: "app-manifests/{code}/conversions", token: true},
	{method: "GET", path: "installation/repositories", purpose: forNames},
	{method: "GET", path: "users/{login}", purpose: forNames},
}

// forms of the placeholders. Segments are compared unescaped, after splitting
// at the slashes of the escaped path.
var forms = map[string]*regexp.Regexp{
	"owner": regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9_-]{0,99})$`),
	"name":  regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`),
	"login": regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}(?:\[bot\])?$`),
	"slug":  regexp.MustCompile(`^[a-z0-9-]{1,100}$`),
	"id":    regexp.MustCompile(`^[1-9][0-9]{0,18}$`),
	"sha":   regexp.MustCompile(`^(?:[0-9a-f]{40}|[0-9a-f]{64})$`),
	"code":  regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`),
	"label": regexp.MustCompile(`^[^\x00-\x1f\x7f]{1,200}$`),
	"ref":   regexp.MustCompile(`^[^\x00-\x20\x7f~^:?*\[\\]{1,250}$`),
	"path":  regexp.MustCompile(`^[^\x00-\x1f\x7f\\]{1,250}$`),
}

// route tells which route a request is, as findRoute does; GraphQL has an address
// of its own, beside the API's base.
func (a *App) route(method string, u *url.URL) (*route, string, bool) {
	if method == graph.method && u.String() == a.bases.GraphQL {
		return graph, "", true
	}
	return findRoute(a.api, method, u)
}

// findRoute tells which route a request is, if any, and the repository id in
// its path (0 if it names none). api is the API's base.
func findRoute(api *url.URL, method string, u *url.URL) (*route, string, bool) {
	if u.Scheme != api.Scheme || u.Host != api.Host || u.User != nil || u.Fragment != "" {
		return nil, "", false
	}
	rel, ok := strings.CutPrefix(u.EscapedPath(), api.EscapedPath())
	if !ok {
		return nil, "", false
	}
	segments := strings.Split(rel, "/")
	for i := range perApp {
		if r := &perApp[i]; r.method == method && matches(r.path, segments) {
			return r, "", true
		}
	}
	for i := range perRepository {
		r := &perRepository[i]
		if r.method != method {
			continue
		}
		if matches(repository+r.path, segments) {
			return r, "", true
		}
		if matches(byID+r.path, segments) {
			return r, segments[1], true
		}
	}
	return nil, "", false
}

func matches(shape string, segments []string) bool {
	want := strings.Split(shape, "/")
	for i, w := range want {
		name, isForm := strings.CutPrefix(w, "{")
		name = strings.TrimSuffix(name, "}")
		if rest, all := strings.CutSuffix(name, "..."); isForm && all {
			return i < len(segments) && restMatches(rest, segments[i:])
		}
		if i >= len(segments) {
			return false
		}
		if !isForm {
			if segments[i] != w {
				return false
			}
			continue
		}
		if !segmentMatches(name, segments[i]) {
			return false
		}
	}
	return len(segments) == len(want)
}

func segmentMatches(form, segment string) bool {
	s, err := url.PathUnescape(segment)
	if err != nil || s == "." || s == ".." {
		return false
	}
	return forms[form].MatchString(s)
}

// restMatches allows an empty last segment for a path only: contents/ is the
// root folder.
func restMatches(form string, segments []string) bool {
	if form == "path" && len(segments) == 1 && segments[0] == "" {
		return true
	}
	return !slices.ContainsFunc(segments, func(s string) bool {
		return strings.Contains(strings.ToLower(s), "%2f") || !segmentMatches(form, s)
	})
}
