package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"inspect/envs/proc"
	"inspect/envs/wire"
)

// workBranch is the branch the agent starts on and verification runs on.
const workBranch = "inspect/work"

// repository is git's directory in the clone.
func (a *attempt) repository() string { return a.places().workspace + "/.git" }

// sync, in a sandbox that was prepared, brings the clone to the base commit on workBranch. What the snapshot
// lacks comes from the read-only mirror, never from the network. Tracked files
// are as committed afterwards, whatever setup made of them; files that are not
// tracked stay.
func (b *box) sync(ctx context.Context) error {
	a := b.a
	base := a.spec.BaseSHA
	if err := b.have(ctx, base); err != nil {
		return err
	}
	return b.checkout(ctx, base)
}

// have makes sure that a commit is in the clone.
func (b *box) have(ctx context.Context, sha string) error {
	a := b.a
	there, err := b.run(ctx, a.git(a.repository(), "cat-file", "-e", sha+"^{commit}"))
	if err != nil || there.ok() {
		return err
	}
	c := a.git(a.repository(), "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", a.places().mirror, sha)
	c.step = "sync"
	if _, err := b.must(ctx, c); err != nil {
		return fmt.Errorf("fetch commit %s from the mirror: %w", short12(sha), err)
	}
	return nil
}

// checkout puts workBranch and the files on a commit.
func (b *box) checkout(ctx context.Context, sha string) error {
	c := b.a.git(b.a.repository(), "checkout", "--quiet", "--force", "--no-track", "-B", workBranch, sha)
	c.step = "sync"
	if _, err := b.must(ctx, c); err != nil {
		return fmt.Errorf("check out commit %s: %w", short12(sha), err)
	}
	return b.submodules(ctx, sha)
}

// submodulesScript brings the submodules that the snapshot has to the commits
// that the one checked out names, from their mirrors. If that cannot be done
// their directories are emptied: with what was there before, they would look
// like a change.
const submodulesScript = `[ -d .git/modules ] || exit 0
git submodule --quiet update --force --checkout && exit 0
git submodule --quiet deinit --force --all
exit 3`

func (b *box) submodules(ctx context.Context, sha string) error {
	c := b.a.git(b.a.repository())
	c.argv = []string{"sh", "-c", submodulesScript}
	c.env = append(c.env, "GIT_ALLOW_PROTOCOL=file")
	r, err := b.run(ctx, c)
	if err == nil && !r.ok() {
		b.a.events.note("The submodules could not be brought to where commit %s has them, so their directories are empty: %v.", short12(sha), failed(c.argv, r))
	}
	return err
}

// goOn makes the clone of another's turn fit to be worked in: what worked there
// when the turn was kept has left its locks.
func (b *box) goOn(ctx context.Context) error {
	f := b.a.spec.Fork
	_, err := b.must(ctx, call{argv: []string{"find", b.a.repository(), "-xdev", "-name", "*.lock", "-type", "f", "-delete"}, dir: "/"})
	if err != nil {
		return fmt.Errorf("go on from turn %d of session %s: %w", f.Turn, f.Session, err)
	}
	b.a.events.note("Going on from turn %d of session %s.", f.Turn, f.Session)
	return nil
}

// resume applies the bundle of an earlier attempt. Trouble with it is told and
// costs only what was in it: the work starts at the base again then.
func (b *box) resume(ctx context.Context) error {
	a, r := b.a, b.a.spec.Resume
	if r == nil {
		return nil
	}
	err := func() error {
		bun, err := a.control.getBundle(ctx, r.SHA256, a.spool)
		if err != nil {
			return err
		}
		defer bun.remove()
		tip, err := b.applyBundle(ctx, "sync", a.repository(), a.spec.BaseSHA, bun)
		if err != nil {
			return err
		}
		if r.Tip != "" && tip != r.Tip {
			return fmt.Errorf("it ends at %s, not at %s", short12(tip), short12(r.Tip))
		}
		return b.checkout(ctx, tip)
	}()
	switch {
	case err == nil:
		a.events.note("Going on from the work of attempt %d, in a new clone: what was neither committed nor taken at its end is not there.", r.Generation)
		return nil
	case ctx.Err() != nil, isGone(err), errors.Is(err, ErrStale):
		return err
	}
	a.events.note("The work of attempt %d could not be applied, so this one starts at the base commit: %v. Its bundle is still kept.", r.Generation, err)
	return b.checkout(ctx, a.spec.BaseSHA)
}

// baseline is what was there before the agent came.
type baseline struct {
	untracked []string          // paths that setup left and git does not ignore
	heads     map[string]string // local branches and their commits
}

// baseline looks at the clone before the agent does.
func (b *box) baseline(ctx context.Context) (baseline, error) {
	a := b.a
	out := baseline{heads: map[string]string{}}
	if a.spec.Fork != nil { // what is untracked there is that agent's work
		var err error
		out.heads, err = b.heads(ctx)
		return out, err
	}
	r, err := b.must(ctx, a.git(a.repository(), "ls-files", "--others", "--exclude-standard", "-z"))
	if err != nil {
		return out, err
	}
	paths := string(r.out)
	if i := strings.LastIndexByte(paths, 0); i >= 0 {
		out.untracked = strings.Split(paths[:i], "\x00")
	}
	if n := len(out.untracked); n > 0 {
		more := ""
		if r.cut {
			more = " or more"
		}
		a.events.note("%d%s files that setup left are neither tracked nor ignored by git; they are not part of the result. The first is %s.", n, more, out.untracked[0])
	}
	if out.heads, err = b.heads(ctx); err != nil {
		return out, err
	}
	return out, nil
}

// maxHeads is how many local branches are looked at.
const maxHeads = 200

// heads are the repository's local branches.
func (b *box) heads(ctx context.Context) (map[string]string, error) {
	a := b.a
	c := a.git(a.repository(), "for-each-ref", fmt.Sprintf("--count=%d", maxHeads), "--format=%(objectname) %(refname)", "refs/heads/")
	c.wait = a.opt.pace.script
	r, err := b.must(ctx, c)
	if err != nil {
		return nil, err
	}
	heads := map[string]string{}
	for _, line := range strings.Split(string(r.out), "\n") {
		if sha, ref, ok := strings.Cut(line, " "); ok && isSHA(sha) {
			heads[ref] = sha
		}
	}
	return heads, nil
}

// restore restores the clone of a purpose and tells of it.
func (a *attempt) restore(ctx context.Context, purpose string) (wire.Restored, error) {
	ctx, cancel := proc.WithTimeout(ctx, a.clock, a.opt.pace.restore)
	defer cancel()
	begun := a.clock.Now()
	reply, err := a.node.Restore(ctx, a.grant(purpose))
	if err != nil {
		return wire.Restored{}, fmt.Errorf("restore snapshot %s: %w", a.spec.SnapshotID, err)
	}
	out := wire.Restored{
		Purpose: purpose, Snapshot: a.spec.SnapshotID, Commit: reply.Commit, Store: reply.Store,
		Tier: reply.Tier, Limits: reply.Limits, Duration: reply.Duration,
	}
	if out.Duration <= 0 {
		out.Duration = a.clock.Now().Sub(begun)
	}
	a.events.add(wire.EventRestore, out)
	return out, nil
}

func short12(sha string) string {
	if len(sha) > 12 {
		return sha[:12]
	}
	return sha
}
