package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"inspect/envs/wire"
)

// tips reads what the agent's repository points at.
func (t *taking) tips(ctx context.Context) (head string, heads map[string]string, err error) {
	r, err := t.run(ctx, t.look("rev-parse", "--quiet", "--verify", "HEAD^{commit}"))
	if err != nil {
		return "", nil, err
	}
	if r.ok() && isSHA(r.line()) {
		head = r.line()
	}
	heads, err = t.heads(ctx)
	return head, heads, err
}

// choose decides which commit is the result.
func (t *taking) choose(ctx context.Context, head string, heads map[string]string) (taken, error) {
	a, base := t.a, t.a.spec.BaseSHA
	var unmerged ran
	if t.index {
		var err error
		if unmerged, err = t.must(ctx, a.git(t.dir, "ls-files", "--unmerged", "-z")); err != nil {
			return taken{}, err
		}
	}
	parent := head
	if parent == "" {
		parent = base
	}
	tree, err := t.tree(ctx, parent)
	if err != nil {
		return taken{}, err
	}
	clean, err := t.treeOf(ctx, parent)
	if err != nil {
		return taken{}, err
	}
	dirty := tree != clean

	headNew, headOurs := false, false
	if head != "" {
		if headNew, headOurs, err = t.place(ctx, head); err != nil {
			return taken{}, err
		}
	}
	others, names, err := t.others(ctx, head, heads)
	if err != nil {
		return taken{}, err
	}

	keep := func(reason, words string) (taken, error) {
		tip, err := t.keep(ctx, head, tree, dirty, others)
		return taken{tip: tip, reason: reason, words: words}, err
	}
	switch {
	case len(unmerged.out) > 0:
		path := unmergedPath(unmerged.out)
		return keep(wire.ReasonConflict, fmt.Sprintf("The agent left a merge conflict unresolved, in %s.", path))

	case headNew && !headOurs, head == "" && dirty && len(others) == 0, head != base && !headNew && dirty && len(others) == 0:
		return keep(wire.ReasonUnrelatedHistory, fmt.Sprintf("The agent's result does not descend from the base commit %s.", short12(base)))

	case headNew, dirty && len(others) == 0:
		tip := head
		if dirty {
			if tip, err = t.commit(ctx, tree, "Changes the agent left uncommitted", head); err != nil {
				return taken{}, err
			}
			t.notes = append(t.notes, "The agent left changes uncommitted; they were committed for it.")
		}
		if len(names) > 0 {
			t.notes = append(t.notes, fmt.Sprintf("The agent also left commits on other branches, which are not part of the result: %s.", strings.Join(names, ", ")))
		}
		return taken{tip: tip}, nil

	case len(others) == 0 && t.incomplete:
		// That is not "nothing": it could not be seen.
		return taken{}, errors.New("not all files of the clone could be read, and what could be read is unchanged")
	case len(others) == 0:
		return taken{}, nil

	case len(others) == 1 && !dirty:
		_, ours, err := t.place(ctx, others[0])
		if err != nil {
			return taken{}, err
		}
		if !ours {
			return keep(wire.ReasonUnrelatedHistory, fmt.Sprintf("The agent's result, on branch %s, does not descend from the base commit %s.", names[0], short12(base)))
		}
		t.notes = append(t.notes, fmt.Sprintf("The agent committed on branch %s; that is taken as its result.", names[0]))
		return taken{tip: others[0]}, nil
	}
	where := strings.Join(names, ", ")
	if dirty {
		where += " and uncommitted files elsewhere"
	}
	return keep(wire.ReasonElsewhere, fmt.Sprintf("The agent left its work in several places, so that none of them is its result: %s.", where))
}

// place tells whether a commit has anything the base has not, and whether it
// descends from the base.
func (t *taking) place(ctx context.Context, sha string) (isNew, ours bool, err error) {
	a, base := t.a, t.a.spec.BaseSHA
	r, err := t.must(ctx, a.git(t.dir, "rev-list", "--max-count=1", sha, "^"+base))
	if err != nil {
		return false, false, err
	}
	isNew = r.line() != ""
	anc, err := t.run(ctx, a.git(t.dir, "merge-base", "--is-ancestor", base, sha))
	if err != nil {
		return false, false, err
	}
	if anc.code > 1 || anc.code < 0 {
		return false, false, failed([]string{"git", "merge-base"}, anc)
	}
	return isNew, anc.ok(), nil
}

// others are the branches with new commits that are not at head and were not
// there before the agent came, each commit once.
func (t *taking) others(ctx context.Context, head string, heads map[string]string) (shas, names []string, err error) {
	refs := make([]string, 0, len(heads))
	for ref := range heads {
		refs = append(refs, ref)
	}
	sort.Strings(refs)
	for _, ref := range refs {
		sha := heads[ref]
		if sha == head || t.base.heads[ref] == sha || slices.Contains(shas, sha) {
			continue
		}
		isNew, _, err := t.place(ctx, sha)
		if err != nil {
			return nil, nil, err
		}
		if isNew {
			shas = append(shas, sha)
			names = append(names, strings.TrimPrefix(ref, "refs/heads/"))
		}
	}
	return shas, names, nil
}

// keep ties everything there is into one commit that descends from the base,
// so that one bundle holds it. It is never a result.
func (t *taking) keep(ctx context.Context, head, tree string, dirty bool, others []string) (string, error) {
	base := t.a.spec.BaseSHA
	first := head
	if dirty {
		parent := head
		if parent == "" {
			parent = base
		}
		var err error
		if first, err = t.commit(ctx, tree, "Changes the agent left uncommitted", parent); err != nil {
			return "", err
		}
	}
	parents := []string{base}
	for _, tip := range append([]string{first}, others...) {
		if tip != "" && !slices.Contains(parents, tip) && len(parents) < maxParents {
			parents = append(parents, tip)
		}
	}
	if len(parents) == 1 {
		return "", nil
	}
	if len(parents) == 2 {
		if _, ours, err := t.place(ctx, parents[1]); err != nil || ours {
			return parents[1], err
		}
	}
	tree, err := t.treeOf(ctx, parents[1])
	if err != nil {
		return "", err
	}
	return t.commit(ctx, tree, "What the agent left, kept together", parents...)
}

// unmergedPath is the first path of git ls-files --unmerged -z.
func unmergedPath(out []byte) string {
	first, _, _ := strings.Cut(string(out), "\x00")
	_, path, _ := strings.Cut(first, "\t")
	return path
}
