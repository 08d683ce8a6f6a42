// Package plugin holds the files of the Buildkite plugin and the example pipelines,
// so that inspect can write and print them. Nothing comes in.
package plugin

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed plugin.yml README.md hooks/command
var files embed.FS

//go:embed examples/*.yml
var examples embed.FS

// Examples are the names of the example pipelines; the first is the usual one.
func Examples() []string {
	entries, err := fs.ReadDir(examples, "examples")
	if err != nil {
		panic(err) // they are in the program
	}
	names := []string{"fix-build"}
	for _, e := range entries {
		if name := strings.TrimSuffix(e.Name(), ".yml"); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// Example is a pipeline that asks server for work.
func Example(name, server string) (string, error) {
	body, err := examples.ReadFile("examples/" + name + ".yml")
	if err != nil {
		return "", fmt.Errorf("there is no example %q: there are %s", name, strings.Join(Examples(), ", "))
	}
	return strings.ReplaceAll(string(body), "https://inspect.example", server), nil
}

// Write puts the plugin into a directory, such as .buildkite/plugins/inspect. Files
// of the same names there are replaced.
func Write(dir string) error {
	return fs.WalkDir(files, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.FromSlash(name))
		if e.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		body, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if strings.HasPrefix(name, "hooks/") {
			mode = 0o755
		}
		if err := os.WriteFile(to, body, mode); err != nil {
			return err
		}
		return os.Chmod(to, mode)
	})
}
