package runner

import (
	"context"
	"errors"
	"strings"

	"inspect/checks/redact"
	"inspect/envs/harness"
)

// maxInstructions bounds one of the repository's files of instructions, in bytes.
const maxInstructions = 64 << 10

// instruct is the agent's first prompt: what the control plane wrote, with the
// repository's own instructions in their place. It keeps the text as an artifact.
func (a *attempt) instruct(ctx context.Context, b *box) (string, error) {
	var files []harness.Instructions
	for _, name := range []string{"AGENTS.md", "CLAUDE.md"} {
		text, err := b.instructions(ctx, name)
		if err != nil {
			return "", err
		}
		if text != "" {
			files = append(files, harness.Instructions{Name: name, Text: text})
		}
	}
	prompt := harness.Instruct(a.spec.Prompt, files)
	if r := a.spec.Resume; r != nil {
		prompt += "\n# An earlier attempt\n\nAn earlier attempt at this was cut off by a failure that was not its own. " +
			"What it had committed is in the branch already: look at it with git log and go on from there.\n"
	}
	w, err := a.spool.create(int64(len(prompt))+1<<20, a.red)
	if err != nil {
		return "", err
	}
	_, _ = w.Write([]byte(prompt))
	kept, err := w.finish()
	if err != nil {
		return "", err
	}
	a.instructed = kept.sha256
	a.up.artifact(kept)
	return prompt, nil
}

// instructions reads a file of the default branch, as it was when the session
// was made: what a pull request or the agent itself writes there is not obeyed.
// A link is followed by name only, to its sibling; none is no file.
func (b *box) instructions(ctx context.Context, name string) (string, error) {
	a := b.a
	sha := a.spec.InstructionsSHA
	if sha == "" {
		sha = a.spec.BaseSHA
	}
	if !isSHA(sha) {
		return "", errors.New("the commit of the instructions is not a commit id")
	}
	if err := b.have(ctx, sha); err != nil {
		return "", err
	}
	kind, err := b.run(ctx, a.git(a.repository(), "ls-tree", sha, "--", name))
	if err != nil || !kind.ok() || !strings.HasPrefix(kind.line(), "100") {
		return "", err // absent, or a link: the other file is read itself
	}
	r, err := b.run(ctx, a.git(a.repository(), "cat-file", "blob", sha+":"+name))
	if err != nil || !r.ok() {
		return "", err
	}
	text := strings.TrimSpace(redact.Visible(harness.Clean(string(r.out))))
	if r.cut || len(text) > maxInstructions {
		text = redact.Cut(text, maxInstructions)
		a.events.note("%s is longer than %d KiB; the agent was given its beginning.", name, maxInstructions>>10)
	}
	return text, nil
}
