package intake

import (
	"cmp"
	"fmt"

	"inspect/app/command"
	"inspect/envs/spec"
)

// chooseHarness decides which agent works, and with which model: what the
// command names, else what the repository's file names, else the operator's
// default. models says whether a kind of harness can work with a model; it has
// the default model for "". The words, if any, are an answer to who asked.
func chooseHarness(f command.Flags, file, operator spec.Harness, models func(kind, model string) (string, error)) (h spec.Harness, words string) {
	h = operator
	if file.Kind != "" {
		h = file
	}
	if f.Harness != "" && f.Harness != h.Kind {
		switch f.Harness {
		case spec.HarnessCommand:
			if h = operator; h.Kind != spec.HarnessCommand {
				return h, "No session was started: neither this repository's file nor whoever runs Inspect names a command for `--harness command`."
			}
		case spec.HarnessOpenCode, spec.HarnessCodex, spec.HarnessClaude:
			h = spec.Harness{Kind: f.Harness, Model: h.Model}
		default:
			return h, "No session was started: the harnesses are `opencode`, `codex`, `claude` and `command`."
		}
	}
	if h.Kind == "" || h.Kind == spec.HarnessCommand && h.Command == "" {
		return spec.Harness{}, ""
	}
	h.Model = cmp.Or(f.Model, h.Model)
	if h.Kind == spec.HarnessCommand && h.Model == "" {
		return h, "" // an agent without a model of ours
	}
	if models == nil {
		return h, fmt.Sprintf("No session was started: the harness `%s` needs a model, and whoever runs Inspect has configured none (`inspect serve --models`).", h.Kind)
	}
	model, err := models(h.Kind, cmp.Or(h.Model, operator.Model))
	if err != nil {
		return h, "No session was started: " + err.Error() + "."
	}
	h.Model = model
	return h, ""
}
