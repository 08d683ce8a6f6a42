package try

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"inspect/envs/spec"
)

// Bounds of a file of tasks.
const (
	maxTasksFile = 4 << 20
	maxTasks     = 500
)

// task is one entry of a file of frozen tasks.
type task struct {
	Name       string   `yaml:"name"`
	Repository string   `yaml:"repository"` // directory; relative to the file
	Commit     string   `yaml:"commit"`
	Prompt     string   `yaml:"prompt"`
	Verify     []string `yaml:"verify"`
	Setup      []string `yaml:"setup"`
	Egress     []string `yaml:"egress"`
	Harness    string   `yaml:"harness"`
	Command    string   `yaml:"command"`
	Model      string   `yaml:"model"`
	Budget     string   `yaml:"budget"`  // US dollars: "2.50"
	Timeout    string   `yaml:"timeout"` // "30m"
}

var taskName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$`)

// readTasks reads a file of tasks. Every error names the entry.
func readTasks(path string) ([]wish, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, Usagef("--task: %v", err)
	}
	defer f.Close()
	body, err := io.ReadAll(io.LimitReader(f, maxTasksFile+1))
	if err != nil {
		return nil, Usagef("--task %s: %v", path, err)
	}
	if len(body) > maxTasksFile {
		return nil, Usagef("--task %s: expected at most %d bytes", path, maxTasksFile)
	}
	dec := yaml.NewDecoder(bytes.NewReader(body))
	dec.KnownFields(true)
	var tasks []task
	if err := dec.Decode(&tasks); err != nil && !errors.Is(err, io.EOF) {
		return nil, Usagef("--task %s: expected a list of {name, repository, commit, prompt, verify, setup, egress, harness, command, model, budget, timeout}: %s",
			path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(tasks) == 0 || len(tasks) > maxTasks {
		return nil, Usagef("--task %s: expected 1 to %d tasks, but found %d", path, maxTasks, len(tasks))
	}
	seen := map[string]bool{}
	var out []wish
	for i, t := range tasks {
		w, err := t.wish(filepath.Dir(path))
		if err == nil && seen[t.Name] {
			err = errors.New("name: expected each name once")
		}
		if err != nil {
			return nil, Usagef("--task %s: task %d (%s): %v", path, i+1, plain(t.Name, 80), err)
		}
		seen[t.Name] = true
		out = append(out, w)
	}
	return out, nil
}

// wish is the task as it will be run; dir is where relative paths begin.
func (t task) wish(dir string) (wish, error) {
	w := wish{task: t.Name, repo: t.Repository, commit: t.Commit, prompt: t.Prompt, Wishes: Wishes{
		Harness: t.Harness, Command: t.Command, Model: t.Model, Setup: t.Setup, Verify: t.Verify, Egress: t.Egress,
	}}
	switch {
	case !taskName.MatchString(t.Name):
		return w, errors.New("name: expected letters, digits, '.', '_' and '-', at most 80")
	case t.Repository == "":
		return w, errors.New("repository: expected the directory of a repository; the key is missing")
	case t.Commit == "":
		return w, errors.New("commit: expected the commit the task starts from; the key is missing")
	case strings.HasPrefix(t.Commit, "-"):
		return w, fmt.Errorf("commit: expected a commit, but found %q", t.Commit)
	case strings.TrimSpace(t.Prompt) == "":
		return w, errors.New("prompt: expected what the agent is asked; the key is missing")
	}
	if !filepath.IsAbs(w.repo) {
		w.repo = filepath.Join(dir, w.repo)
	}
	var err error
	if t.Budget != "" {
		if w.Budget, err = spec.ParseMoney(t.Budget); err != nil {
			return w, fmt.Errorf("budget: %w", err)
		}
	}
	if t.Timeout != "" {
		if w.Timeout, err = time.ParseDuration(t.Timeout); err != nil || w.Timeout <= 0 {
			return w, fmt.Errorf("timeout: expected a duration like 30m, but found %q", t.Timeout)
		}
	}
	return w, nil
}
