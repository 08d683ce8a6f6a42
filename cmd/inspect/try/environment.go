package try

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"inspect/envs/spec"
)

// Wishes are what a person asks for besides the words of the prompt. Zero
// values ask for nothing.
type Wishes struct {
	Harness string // kind
	Command string // of kind command
	Model   string
	Setup   []string // replaces what the environment has
	Verify  []string // replaces it too: NAME=LINE or LINE
	Egress  []string // is added
	Budget  spec.Money
	Timeout time.Duration
}

// or fills what w leaves open from other wishes.
func (w Wishes) or(o Wishes) Wishes {
	if w.Harness == "" && w.Command == "" {
		w.Harness, w.Command = o.Harness, o.Command
	}
	w.Model = cmp.Or(w.Model, o.Model)
	w.Budget = cmp.Or(w.Budget, o.Budget)
	w.Timeout = cmp.Or(w.Timeout, o.Timeout)
	if w.Setup == nil {
		w.Setup = o.Setup
	}
	if w.Verify == nil {
		w.Verify = o.Verify
	}
	if w.Egress == nil {
		w.Egress = o.Egress
	}
	return w
}

// Environment is what a try works in.
type Environment struct {
	Spec     spec.Spec
	Source   string   // where it comes from, for people
	Gaps     []string // what is not provided for, a sentence each
	Programs []string // what this machine must have
}

// environment reads the commit's .inspect.yml, or guesses from its files, and
// then does what the person wishes. The error is a Usage.
func environment(ctx context.Context, r *Repository, w Wishes) (Environment, error) {
	env, err := declared(ctx, r)
	if err != nil {
		return env, err
	}
	if w.Setup != nil {
		env.Spec.Setup = spec.Steps(w.Setup...)
	}
	if w.Verify != nil {
		if env.Spec.Verify, err = verifies(w.Verify); err != nil {
			return env, err
		}
	}
	for i, e := range w.Egress {
		w.Egress[i] = strings.ToLower(e)
		if problem := spec.EgressProblem(w.Egress[i]); problem != "" {
			return env, Usagef("--egress %s: %s", quote(e), problem)
		}
	}
	if len(w.Egress) > 0 {
		// The person answers for all of it.
		env.Spec.Egress = slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(w.Egress), env.Spec.Egress...))))
		env.Spec.EgressGuessed = false
	}
	if w.Timeout > 0 {
		env.Spec.Limits.Timeout = w.Timeout
	}
	if w.Budget > 0 {
		env.Spec.Limits.Budget = w.Budget
	}
	if env.Spec.Harness, err = chooseHarness(env.Spec.Harness, w); err != nil {
		return env, err
	}
	if names := env.Spec.SecretNames(); len(names) > 0 {
		return env, Usagef("%s names secrets (%s), and a try has no store to take them from: try it without what needs them, with --setup and --verify, or have inspect serve do it",
			env.Source, strings.Join(names, ", "))
	}
	if len(env.Spec.Verify) == 0 {
		what := "nothing in " + r.name() + " says how its tests are run"
		if len(env.Gaps) > 0 {
			what = strings.Join(env.Gaps, "; ")
		}
		return env, Usagef("there is nothing to verify the work with: %s. Give the command with --verify (for example --verify %s) or write %s",
			strings.TrimRight(what, "."), quote("make test"), spec.FileName)
	}
	return env, nil
}

// declared is what the repository says of itself, or what can be guessed.
func declared(ctx context.Context, r *Repository) (Environment, error) {
	switch mode := r.modes[spec.FileName]; mode {
	case "":
		d := spec.DetectFiles(r.names, func(name string) ([]byte, bool) { return r.read(ctx, name, 2<<20) })
		if !d.OK {
			d.Spec, d.Source = spec.Default(), "no "+spec.FileName
		}
		return Environment{Spec: d.Spec, Source: d.Source, Gaps: d.Gaps, Programs: d.Programs}, nil
	case "100644", "100755":
	default:
		return Environment{}, Usagef("%s of %.10s is no plain file", spec.FileName, r.Commit)
	}
	body, ok := r.read(ctx, spec.FileName, spec.MaxFileBytes+1)
	if !ok {
		return Environment{}, Usagef("%s of %.10s cannot be read, or has more than %d bytes", spec.FileName, r.Commit, spec.MaxFileBytes)
	}
	s, problems := spec.Parse(body)
	if len(problems) > 0 {
		return Environment{}, Usagef("%s at %.10s, the commit that is worked on, cannot be used:\n%v", spec.FileName, r.Commit, problems)
	}
	return Environment{Spec: s, Source: spec.FileName}, nil
}

// chooseHarness is the agent a person names, else the one the file names, else
// OpenCode.
func chooseHarness(file spec.Harness, w Wishes) (spec.Harness, error) {
	h := file
	switch {
	case w.Command != "" && w.Harness != "" && w.Harness != spec.HarnessCommand:
		return h, Usagef("--command goes with --harness command, not with %s", w.Harness)
	case w.Command != "":
		h = spec.Harness{Kind: spec.HarnessCommand, Command: w.Command, Model: file.Model}
	case w.Harness != "" && w.Harness != file.Kind:
		h = spec.Harness{Kind: w.Harness, Model: file.Model}
	case h.Kind == "":
		h.Kind = spec.HarnessOpenCode
	}
	h.Model = cmp.Or(w.Model, h.Model)
	switch h.Kind {
	case spec.HarnessOpenCode, spec.HarnessClaude, spec.HarnessCodex:
		h.Label = h.Kind
	case spec.HarnessCommand:
		words := strings.Fields(h.Command)
		if len(words) == 0 {
			return h, Usagef("--harness command needs --command LINE: the shell line of the agent, which gets the prompt on standard input")
		}
		h.Label = words[0][strings.LastIndexByte(words[0], '/')+1:]
	default:
		return h, Usagef("--harness: expected opencode, codex, claude or command, but found %q", h.Kind)
	}
	return h, nil
}

// A name of a verify command stands before the first "="; shell variables,
// which look the same, are not written in small letters.
var namedVerify = regexp.MustCompile(`(?s)^([a-z][a-z0-9_-]{0,39})=(.*)$`)

// verifies are the verify commands of --verify.
func verifies(lines []string) ([]spec.Verify, error) {
	var out []spec.Verify
	seen := map[string]bool{}
	for _, l := range lines {
		v := spec.Verify{Run: strings.TrimSpace(l), Report: spec.ReportExit}
		if m := namedVerify.FindStringSubmatch(v.Run); m != nil {
			v.Name, v.Run = m[1], strings.TrimSpace(m[2])
		}
		if v.Run == "" || strings.ContainsAny(v.Run, "\x00") || len(v.Run) > 8192 {
			return nil, Usagef("--verify %s: expected a shell line, or NAME=LINE", quote(l))
		}
		if strings.HasPrefix(v.Run, "go test ") && slices.Contains(strings.Fields(v.Run), "-json") {
			v.Report = spec.ReportGoTest
		}
		given := v.Name != ""
		if !given {
			v.Name = verifyName(v.Run)
		}
		for n, name := 2, v.Name; seen[v.Name]; n++ {
			if given {
				return nil, Usagef("--verify: the name %s is given twice", v.Name)
			}
			v.Name = fmt.Sprintf("%s-%d", name, n)
		}
		seen[v.Name] = true
		out = append(out, v)
	}
	return out, nil
}

// verifyName makes a name of a command's first two words.
func verifyName(line string) string {
	words := strings.Fields(line)
	words = words[:min(len(words), 2)]
	name := strings.Trim(notInName.ReplaceAllString(strings.ToLower(strings.Join(words, "-")), "-"), "-")
	if name == "" || name[0] < 'a' || name[0] > 'z' {
		name = "verify"
	}
	return strings.TrimRight(name[:min(len(name), 30)], "-")
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)
