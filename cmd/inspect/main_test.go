package main

import (
	"strings"
	"testing"

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
