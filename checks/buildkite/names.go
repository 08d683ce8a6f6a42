package buildkite

import (
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

var (
	slug   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,254}$`)
	uuid   = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	commit = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
)

// Slug says whether s can be the slug of an organization or a pipeline.
func Slug(s string) bool { return slug.MatchString(s) }

// UUID says whether s can be the id of anything at Buildkite.
func UUID(s string) bool { return uuid.MatchString(s) }

// address is a path below the API's, of parts that were looked at one by one:
// go-buildkite puts what it is given into paths as it is.
func address(org, pipeline string, more ...string) (string, error) {
	if !slug.MatchString(org) {
		return "", fmt.Errorf("%q cannot be an organization's slug at Buildkite", short(org))
	}
	if !slug.MatchString(pipeline) {
		return "", fmt.Errorf("%q cannot be a pipeline's slug at Buildkite", short(pipeline))
	}
	parts := []string{"v2", "organizations", org, "pipelines", pipeline, "builds"}
	for _, m := range more {
		parts = append(parts, url.PathEscape(m))
	}
	return strings.Join(parts, "/"), nil
}

// ofBuild is the path of a build and of what belongs to it.
func ofBuild(org, pipeline string, number int, more ...string) (string, error) {
	if number <= 0 {
		return "", fmt.Errorf("%d cannot be a build's number", number)
	}
	return address(org, pipeline, append([]string{strconv.Itoa(number)}, more...)...)
}

// ofJob is the path of a job and of what belongs to it.
func ofJob(org, pipeline string, number int, job string, more ...string) (string, error) {
	if !uuid.MatchString(job) {
		return "", fmt.Errorf("%q cannot be a job's id at Buildkite", short(job))
	}
	return ofBuild(org, pipeline, number, append([]string{"jobs", job}, more...)...)
}

func short(s string) string {
	if len(s) > 60 {
		return s[:60] + "…"
	}
	return s
}

// SameRepository says whether two addresses that git knows name one repository:
// "git@host:owner/name.git", "ssh://git@host/owner/name", "git://…" and
// "https://…" are spellings of one. What cannot be read is the same as nothing.
func SameRepository(a, b string) bool {
	x, y := Repository(a), Repository(b)
	return x != "" && x == y
}

// Repository is "host/owner/name" in lower case of an address that git knows, or
// empty if it is none. Hosts and GitHub's names do not tell cases apart.
func Repository(s string) string {
	if len(s) > 1000 || strings.ContainsAny(s, " \t\r\n\x00") {
		return ""
	}
	host, path := "", ""
	if u, err := url.Parse(s); err == nil && u.Host != "" && strings.Contains(s, "://") {
		switch u.Scheme {
		case "https", "http", "ssh", "git", "git+ssh":
		default:
			return ""
		}
		host, path = u.Hostname(), u.Path
	} else if before, after, ok := strings.Cut(s, ":"); ok && !strings.Contains(before, "/") && !strings.HasPrefix(after, "//") {
		host, path = before[strings.LastIndexByte(before, '@')+1:], after
	}
	path = strings.TrimSuffix(strings.Trim(path, "/"), ".git")
	if host == "" || path == "" || strings.Contains(path, "//") {
		return ""
	}
	for _, part := range strings.Split(path, "/") {
		if part == "." || part == ".." {
			return ""
		}
	}
	return strings.ToLower(host + "/" + path)
}
