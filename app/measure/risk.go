package measure

import (
	"path"
	"slices"
	"strings"
)

// Weights of changed files, in units of risk: one unit is a changed file that
// nothing runs in production.
const (
	riskText       = 1  // text and tests
	riskSource     = 3  // everything else
	riskDependency = 5  // what says which other people's code is taken
	riskDelivery   = 10 // what decides how code is built, shipped, stored or let in
)

var (
	delivery     = []string{".inspect.yml", ".gitlab-ci.yml", ".travis.yml", "azure-pipelines.yml", "jenkinsfile", "codeowners", "makefile", "dockerfile", "containerfile"}
	deliveryDirs = []string{".github", ".buildkite", ".circleci", "migrations", "migrate", "terraform", "helm", "k8s", "deploy"}
	dependencies = append([]string{
		"go.mod", "package.json", "cargo.toml", "pyproject.toml", "setup.py", "requirements.txt", "pipfile", "pipfile.lock", "gemfile", "composer.json",
		"pom.xml", "build.gradle", "build.gradle.kts",
	}, common...)
	textEnds = []string{".md", ".rst", ".txt", ".adoc"}
	testDirs = []string{"test", "tests", "__tests__", "testdata", "spec", "docs", "doc"}
)

// Risk of a change in units, by the files that it changed alone; see
// docs/metrics.md. 0: no files, nothing can be said.
func Risk(paths []string) (units int) {
	for _, p := range paths {
		units += weight(p)
	}
	return units
}

func weight(p string) int {
	p = strings.ToLower(p)
	name, end := path.Base(p), path.Ext(p)
	dirs := strings.Split(path.Dir(p), "/")
	in := func(list []string) bool {
		return slices.ContainsFunc(dirs, func(d string) bool { return slices.Contains(list, d) })
	}
	stem := strings.TrimSuffix(name, end)
	switch {
	case slices.Contains(delivery, name), in(deliveryDirs), end == ".tf", end == ".sql",
		strings.HasPrefix(name, "dockerfile."), strings.HasPrefix(name, "docker-compose."), strings.HasPrefix(name, "compose."):
		return riskDelivery
	case slices.ContainsFunc(dependencies, func(d string) bool { return strings.EqualFold(d, name) && d != "CHANGELOG.md" }):
		return riskDependency
	case slices.Contains(textEnds, end), in(testDirs), strings.HasPrefix(stem, "test_"),
		strings.HasSuffix(stem, "_test"), strings.HasSuffix(stem, ".test"), strings.HasSuffix(stem, ".spec"), strings.HasSuffix(stem, "_spec"):
		return riskText
	}
	return riskSource
}
