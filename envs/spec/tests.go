package spec

import (
	"path"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// globProblem says why the files of a report cannot be named so; empty if they can.
func globProblem(report string) string {
	_, glob := ReportFiles(report)
	if glob == "" {
		return "" // another rule speaks of that
	}
	if path.Clean(glob) != glob || strings.HasPrefix(glob, "/") || glob == ".." || strings.HasPrefix(glob, "../") || strings.ContainsAny(glob, "\\\x00\n") ||
		strings.EqualFold(strings.SplitN(glob, "/", 2)[0], ".git") {
		return "expected a path in the repository, relative to its root, without '..', '\\' and not of .git"
	}
	if !plainPattern(glob) {
		return "expected a glob such as reports/*.xml"
	}
	return ""
}

// TestPatterns say, for each language, which files of a repository are its tests
// and what only they use, in doublestar's patterns. Those of any language match
// without regard to case. They decide which files the base's tests consist of.
var TestPatterns = []struct {
	Language string
	Patterns []string
}{
	{"any", []string{"**/{test,tests,testdata,__tests__,__snapshots__,__mocks__,spec,specs,e2e,fixtures}/**/*"}},
	{"Go", []string{"**/*_test.go"}},
	{"JavaScript, TypeScript", []string{"**/*.{test,spec,cy,e2e}.{js,jsx,ts,tsx,mjs,cjs,mts,cts}", "**/{jest,vitest,vite,karma,playwright,cypress,mocha,ava,wdio}.{config,conf,setup}.*", "**/.mocharc*"}},
	{"Python", []string{"**/test_*.py", "**/*_test.py", "**/conftest.py", "**/{pytest,tox}.ini", "**/.coveragerc", "**/noxfile.py"}},
	{"Java, Kotlin, Scala, Groovy", []string{"**/src/*{Test,test}*/**/*", "**/*{Test,Tests,TestCase,IT,Spec}.{java,kt,scala,groovy}"}},
	{"Rust", []string{"**/tests.rs", "**/{test_*,*_test,*_tests}.rs", "**/.config/nextest.toml"}},
	{"Ruby", []string{"**/*_{spec,test}.rb", "**/test_*.rb", "**/.rspec"}},
	{"PHP", []string{"**/*Test.php", "**/phpunit.xml*"}},
	{"C, C++", []string{"**/{test_*,*_test,*_tests,*_unittest}.{c,cc,cpp,cxx,h,hpp}"}},
	{"C#", []string{"**/*{Test,Tests}.cs"}},
	{"Elixir", []string{"**/*_test.exs"}},
	{"Swift", []string{"**/*Tests.swift"}},
	{"shell", []string{"**/*.bats", "**/*.t"}},
}

// IsTest says whether a path is that of a test, or of what only tests use, by
// TestPatterns.
func IsTest(file string) bool {
	for i, l := range TestPatterns {
		name := file
		if i == 0 {
			name = strings.ToLower(file)
		}
		if slices.ContainsFunc(l.Patterns, func(p string) bool { return doublestar.MatchUnvalidated(p, name) }) {
			return true
		}
	}
	return false
}

// IsTestOfLanguage is IsTest without the patterns of directories that any
// language may have: those hold scripts as well.
func IsTestOfLanguage(file string) bool {
	for _, l := range TestPatterns[1:] {
		if slices.ContainsFunc(l.Patterns, func(p string) bool { return doublestar.MatchUnvalidated(p, file) }) {
			return true
		}
	}
	return false
}

// Runs says whether a command names a file, by its path or its last part: then
// the file decides what the command does.
func Runs(command, file string) bool {
	base := path.Base(file)
	for _, word := range strings.FieldsFunc(command, func(r rune) bool { return strings.ContainsRune(" \t\n;&|()<>\"'`=", r) }) {
		word = strings.TrimPrefix(word, "./")
		if word == file || word == base {
			return true
		}
	}
	return false
}
