package main

import (
	"os"
	"strings"
	"testing"

	"inspect/app/command"

	"github.com/spf13/pflag"
)

// The README's tables are what the program says.
func TestReadme(t *testing.T) {
	body, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	readme := string(body)
	const from, to = "<!-- commands: written by `inspect commands`, held by a test -->\n", "<!-- end of commands -->"
	_, rest, ok := strings.Cut(readme, from)
	table, _, ok2 := strings.Cut(rest, to)
	if !ok || !ok2 {
		t.Fatal("README.md has no place for the commands")
	}
	if table != command.Table() {
		t.Errorf("README.md's commands are not those of the program: put the output of `inspect commands` between the marks")
	}
	var c serveConfig
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.flags(flags)
	flags.VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(readme, "`--"+f.Name+"`") {
			t.Errorf("README.md does not name --%s", f.Name)
		}
	})
}
