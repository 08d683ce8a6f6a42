package intake

import (
	"errors"
	"strings"
	"testing"

	"inspect/app/command"
	"inspect/envs/spec"
)

func TestChooseHarness(t *testing.T) {
	models := func(kind, model string) (string, error) {
		switch {
		case model == "":
			model = "anthropic/claude-sonnet"
		case model == "nobody/knows":
			return "", errors.New("the model `nobody/knows` is not offered here")
		}
		if kind == spec.HarnessCodex && strings.HasPrefix(model, "anthropic/") {
			return "", errors.New("codex cannot speak with it")
		}
		return model, nil
	}
	operator := spec.Harness{Kind: spec.HarnessOpenCode}
	script := spec.Harness{Kind: spec.HarnessCommand, Command: "agent --run"}
	for name, c := range map[string]struct {
		flags          command.Flags
		file, operator spec.Harness
		none           bool // no models
		want           spec.Harness
		words          string
	}{
		"the operator's default":           {operator: operator, want: spec.Harness{Kind: "opencode", Model: "anthropic/claude-sonnet"}},
		"the file wins":                    {operator: operator, file: script, want: script},
		"the flag wins":                    {operator: operator, file: script, flags: command.Flags{Harness: "claude"}, want: spec.Harness{Kind: "claude", Model: "anthropic/claude-sonnet"}},
		"the file's model":                 {operator: operator, file: spec.Harness{Kind: "opencode", Model: "openai/gpt"}, want: spec.Harness{Kind: "opencode", Model: "openai/gpt"}},
		"the flag's model":                 {operator: operator, file: spec.Harness{Kind: "opencode", Model: "openai/gpt"}, flags: command.Flags{Model: "local/x"}, want: spec.Harness{Kind: "opencode", Model: "local/x"}},
		"a command with a model":           {operator: operator, file: script, flags: command.Flags{Model: "local/x"}, want: spec.Harness{Kind: "command", Command: "agent --run", Model: "local/x"}},
		"the file's command for the flag":  {operator: operator, file: script, flags: command.Flags{Harness: "command"}, want: script},
		"no command for the flag":          {operator: operator, flags: command.Flags{Harness: "command"}, words: "names a command"},
		"an unknown harness":               {operator: operator, flags: command.Flags{Harness: "emacs"}, words: "the harnesses are"},
		"an unknown model":                 {operator: operator, flags: command.Flags{Model: "nobody/knows"}, words: "not offered"},
		"a model the harness cannot speak": {operator: operator, flags: command.Flags{Harness: "codex"}, words: "cannot speak"},
		"no models":                        {operator: operator, none: true, words: "has configured none"},
		"nothing":                          {},
		"a command without models":         {operator: script, none: true, want: script},
	} {
		t.Run(name, func(t *testing.T) {
			m := models
			if c.none {
				m = nil
			}
			got, words := chooseHarness(c.flags, c.file, c.operator, m)
			if c.words != "" {
				if !strings.Contains(words, c.words) {
					t.Fatalf("said %q, want something with %q", words, c.words)
				}
				return
			}
			if words != "" || got != c.want {
				t.Fatalf("got %+v (%s), want %+v", got, words, c.want)
			}
		})
	}
}
