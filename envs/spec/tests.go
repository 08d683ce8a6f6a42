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
	{"any", []string{"**/{test,tests,testdata,__tests__,__snapshots__,__mocks__,spec,specs,e2e,fixtures,testutil,testutils,testhelper,testhelpers,testsupport,test_helpers,test_utils,test-utils}/**/*"}},
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

// Runs says whether a shell line runs a file: as a command, as what an interpreter
// is given first, or, for shell scripts and makefiles, anywhere. The file is named
// by its path or its last part. What a command merely reads is not what it runs.
func Runs(line, file string) bool {
	base := path.Base(file)
	is := func(word string) bool {
		word = strings.TrimPrefix(word, "./")
		return word == file || word == base || strings.HasSuffix(word, "/"+base)
	}
	switch path.Ext(base) {
	case ".sh", ".bash", ".zsh", ".ps1", ".bat", ".cmd", ".mk", ".bats":
		if slices.ContainsFunc(strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\n;&|()<>\"'`=", r) }), is) {
			return true
		}
	}
	for _, command := range strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune("\n;&|()`", r) }) {
		for i, word := range ranBy(command) {
			if is(word) {
				return true
			}
			if i == 0 && !interpreter(path.Base(word)) || i > 0 && strings.ContainsAny(word, "./") {
				break // what follows are arguments
			}
		}
	}
	return false
}

// ranBy are the words of a simple command from its program on that are no options.
func ranBy(command string) (out []string) {
	for _, word := range strings.FieldsFunc(command, func(r rune) bool { return strings.ContainsRune(" \t\"'<>", r) }) {
		switch {
		case strings.HasPrefix(word, "-"), strings.Trim(word, "0123456789.smh") == "":
		case len(out) == 0 && (strings.Contains(word, "=") || slices.Contains(around, word)):
		case len(out) == 1 && (word == "run" || word == "exec"):
		default:
			out = append(out, word)
		}
	}
	return out
}

// around are words that stand before a command.
var around = []string{"!", "{", "if", "then", "else", "do", "while", "until", "env", "exec", "time", "timeout", "nice", "sudo", "command", "xvfb-run", "nohup", "stdbuf"}

// interpreter says whether a program runs the file it is given first.
func interpreter(program string) bool {
	for _, p := range []string{"sh", "bash", "dash", "ash", "zsh", "python", "node", "nodejs", "ruby", "perl", "php", "deno", "bun", "tsx", "ts-node", "npx", "source", ".", "make", "pwsh", "lua", "Rscript"} {
		if program == p || strings.HasPrefix(program, p) && strings.Trim(program[len(p):], "0123456789.") == "" {
			return true
		}
	}
	return false
}
