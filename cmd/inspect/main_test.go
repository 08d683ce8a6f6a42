package main

import (
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"inspect/envs/spec"
)

// What a repository's file names in an error does not reach a terminal as more
// than letters.
func TestComplaint(t *testing.T) {
	_, problems := spec.Parse([]byte("version: 1\n\"\\e]0;title\\a\\e[2J\": 1\nservices: {\"\\e[31m\": {command: x}}\n"))
	if len(problems) < 2 {
		t.Fatal(problems)
	}
	got := complaint(problems.Error())
	if strings.ContainsAny(got, "\x1b\a") || !strings.Contains(got, "\n") || !strings.Contains(got, "unknown key") {
		t.Errorf("%q", got)
	}
}

// Whoever mistypes learns it from the exit status.
func TestMistyped(t *testing.T) {
	for _, c := range []struct {
		args  []string
		words string
	}{
		{[]string{"sesion"}, "did you mean session?"}, {[]string{"session", "lss"}, "did you mean logs or ls?"}, {[]string{"session", "show"}, "see inspect session show --help"},
		{[]string{"session", "stop", "a", "b"}, "accepts 1 arg(s), received 2"}, {[]string{"report", "x"}, "inspect report --help"}, {[]string{"evidence", "verify", "--nothing"}, "unknown flag"},
	} {
		root := rootCommand()
		root.SetArgs(c.args)
		root.SetOut(io.Discard)
		err := root.ExecuteContext(t.Context())
		var usage usageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%q: %v", c.args, err)
		}
	}
	for _, args := range [][]string{{}, {"session"}, {"session", "--help"}, {"help", "session"}} {
		root := rootCommand()
		root.SetArgs(args)
		root.SetOut(io.Discard)
		if err := root.ExecuteContext(t.Context()); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Args == nil && c.Runnable() {
			t.Errorf("%s takes whatever it is given", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(rootCommand())
}

// Which program it is comes first in any report of a fault.
func TestVersion(t *testing.T) {
	var out strings.Builder
	root := rootCommand()
	root.SetArgs([]string{"--version"})
	root.SetOut(&out)
	if err := root.ExecuteContext(t.Context()); err != nil || !strings.HasPrefix(out.String(), "inspect version ") || !strings.Contains(out.String(), runtime.Version()) {
		t.Errorf("%q %v", out.String(), err)
	}
}
