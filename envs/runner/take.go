package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// taken is the work that was taken out of a clone. With a reason it is kept
// but is not a result.
type taken struct {
	tip    string // empty: there is no change
	bundle blob   // of tip; no path if there is none
	patch  blob   // the same as a patch for people; no path if there is none
	reason string // why this cannot be the result, see wire.Reason…
	words  string // the same for people
	err    error  // why the work could not be taken at all

	partial  bool // only committed and tracked files could be taken
	diskFull bool // the disk limit was in the way
}

// maxParents bounds the commits that are tied together to be kept.
const maxParents = 16

// maxPatch bounds the patch, in bytes.
const maxPatch = 32 << 20

// takeScript makes a git directory of our own beside the agent's: its objects
// are read through, nothing else of it counts. $4 is "rescue" if the agent's
// own repository is not to be used, $5 a home to be emptied but for our own
// directory. The patterns of files that are not to be taken come in on standard
// input.
const takeScript = `
umask 077
w=$1 t=$2 m=$3
if [ -n "$5" ]; then find "$5" -mindepth 1 -maxdepth 1 ! -name .inspect -exec rm -rf -- {} +; fi
rm -rf -- "$t"
# What git cannot read it would leave out, and a pipe would hold it for ever.
chmod -R u+rwX -- "$w" 2>/dev/null
find "$w" -path "$w/.git" -prune -o \( -type p -o -type s -o -type b -o -type c \) -exec rm -f -- {} + 2>/dev/null
git init -q --bare --template= "$t" || exit 1
mkdir -p "$t/info" "$t/objects/info"
if [ "$4" != rescue ] && [ -d "$w/.git" ] && [ ! -L "$w/.git" ]; then
  echo "$w/.git/objects" >"$t/objects/info/alternates"
  if [ -f "$w/.git/index" ]; then cp -p -- "$w/.git/index" "$t/index" || rm -f "$t/index"; fi
  if [ -f "$w/.git/info/exclude" ]; then cat "$w/.git/info/exclude" >"$t/info/exclude"; fi
fi
echo "$m/objects" >>"$t/objects/info/alternates"
{ echo; cat; } >>"$t/info/exclude" || exit 1
if [ -f "$t/index" ] && GIT_DIR=$t git ls-files -z >/dev/null 2>&1; then echo index; else rm -f -- "$t/index"; fi
`

// take takes the work of the agent out of its clone, in a fresh sandbox: what
// the agent left running is gone, and nothing it did to the first sandbox is in
// the way. If the sandbox dies once more it is tried again with committed and
// tracked files alone. If it died for want of disk space, all other files are
// removed first: the clone is not needed again.
func (a *attempt) take(ctx context.Context, base baseline, diskFull bool) taken {
	var err error
	for try := range 2 {
		var b *box
		if b, err = a.open(ctx, wire.PurposeWork); err == nil {
			var t taken
			tk := &taking{
				box: b, base: base, dir: a.places().scratch() + "/take",
				modest: diskFull || try > 0, free: diskFull,
			}
			t, err = tk.all(ctx)
			end := b.close()
			diskFull = diskFull || end.DiskFull
			if err == nil {
				t.diskFull = diskFull
				return t
			}
		}
		if ctx.Err() != nil {
			break
		}
		a.events.note("Taking the work did not succeed: %v.", err)
	}
	return taken{err: err, diskFull: diskFull}
}

// taking is one try of taking the work.
type taking struct {
	*box
	base   baseline
	modest bool   // leave untracked files where they are
	free   bool   // remove untracked files first, there is no space
	dir    string // our git directory
	index  bool   // the agent's index was there and could be read
	notes  []string

	incomplete bool // some files of the clone could not be taken
}

func (t *taking) all(ctx context.Context) (taken, error) {
	a := t.a
	if err := t.prepare(ctx); err != nil {
		return taken{}, err
	}
	out, err := t.judge(ctx)
	if err != nil {
		return taken{}, err
	}
	out.partial = t.incomplete
	if t.modest {
		out.partial = true
		t.notes = append(t.notes, "Files that git did not track were not taken.")
	}
	for _, n := range t.notes {
		a.events.note("%s", n)
	}
	if out.tip != "" && out.reason == "" {
		if out.tip, err = t.unlessEmpty(ctx, out.tip); err != nil {
			return taken{}, err
		}
	}
	if out.tip == "" {
		return out, nil
	}
	out.bundle, err = t.makeBundle(ctx, t.dir, a.spec.BaseSHA, out.tip)
	switch {
	case errors.Is(err, errTooLarge):
		out.reason, out.words = wire.ReasonBundleTooLarge, fmt.Sprintf("The result is too large: as a bundle it has more than %d MiB.", a.opt.maxBundle>>20)
	case err != nil:
		return taken{}, err
	}
	if out.patch, err = t.makePatch(ctx, out.tip); err != nil {
		if isGone(err) || ctx.Err() != nil {
			return taken{}, err
		}
		a.events.note("There is no patch of the work: %v.", err)
	}
	return out, nil
}

// unlessEmpty returns tip, or nothing if its files are those of the base.
func (t *taking) unlessEmpty(ctx context.Context, tip string) (string, error) {
	before, err := t.treeOf(ctx, t.a.spec.BaseSHA)
	if err != nil {
		return "", err
	}
	after, err := t.treeOf(ctx, tip)
	if err != nil || before != after {
		return tip, err
	}
	t.a.events.note("The agent made commits that change no file.")
	return "", nil
}

// judge finds the commit that is the result, or why there is none.
func (t *taking) judge(ctx context.Context) (taken, error) {
	base := t.a.spec.BaseSHA
	if err := t.begin(ctx, ""); err != nil {
		return taken{}, err
	}
	intact, err := t.run(ctx, t.look("cat-file", "-e", base+"^{commit}"))
	if err != nil && fatal(ctx, err) {
		return taken{}, err
	}
	if !intact.ok() {
		return t.rescue(ctx)
	}
	head, heads, err := t.tips(ctx)
	if err != nil && fatal(ctx, err) {
		return taken{}, err
	}
	if err != nil || head == "" && len(heads) == 0 {
		return t.rescue(ctx)
	}
	out, err := t.choose(ctx, head, heads)
	if err != nil && !fatal(ctx, err) {
		// Its history cannot be read: the files are what is left.
		t.notes = append(t.notes, fmt.Sprintf("The repository could not be read: %v.", err))
		return t.rescue(ctx)
	}
	return out, err
}

// look is a quick command on the agent's own repository, in which anything may
// lie in wait: a pipe where a file should be, for one.
func (t *taking) look(args ...string) call {
	c := t.a.git(t.a.repository(), args...)
	c.wait = t.a.opt.pace.script
	return c
}

// begin makes our git directory.
func (t *taking) begin(ctx context.Context, how string) error {
	a := t.a
	var exclude strings.Builder
	for _, p := range t.base.untracked {
		if line, ok := ignorePattern(p); ok {
			exclude.WriteString(line + "\n")
		}
	}
	p := a.places()
	r, err := t.must(ctx, call{
		argv:  []string{"sh", "-c", takeScript, "sh", p.workspace, t.dir, p.mirror, how, t.freeHome()},
		dir:   "/",
		wait:  a.opt.pace.git,
		env:   []string{"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "LC_ALL=C"},
		stdin: strings.NewReader(exclude.String()),
	})
	if err != nil {
		return fmt.Errorf("make a place to take the work to: %w", err)
	}
	t.index = r.line() == "index"
	return nil
}

func (t *taking) freeHome() string {
	if t.free {
		return t.a.places().home
	}
	return ""
}

// rescue takes the files as they are, on top of the base commit.
func (t *taking) rescue(ctx context.Context) (taken, error) {
	base := t.a.spec.BaseSHA
	if err := t.begin(ctx, "rescue"); err != nil {
		return taken{}, err
	}
	tree, err := t.tree(ctx, base)
	if err != nil {
		return taken{}, err
	}
	out := taken{reason: wire.ReasonRepositoryGone, words: "The agent deleted or damaged the repository's .git directory."}
	clean, err := t.treeOf(ctx, base)
	if err != nil {
		return taken{}, err
	}
	if tree == clean {
		return out, nil
	}
	out.words += " Its changed files were rescued."
	out.tip, err = t.commit(ctx, tree, "Files rescued from a damaged repository", base)
	return out, err
}

// tree is the tree of the files as they are now, based on the index the agent
// left or, if that cannot be used, on a commit. What cannot be added is told
// and left out.
func (t *taking) tree(ctx context.Context, commit string) (string, error) {
	a := t.a
	what := "--all"
	if t.modest {
		what = "--update"
	}
	var last error
	for _, fresh := range []bool{false, true} {
		if fresh {
			if _, err := t.must(ctx, a.git(t.dir, "read-tree", commit)); err != nil {
				return "", err
			}
		} else if !t.index {
			continue
		}
		if t.free {
			if _, err := t.must(ctx, a.git(t.dir, "clean", "-ffdxq")); err != nil {
				if fatal(ctx, err) {
					return "", err
				}
			}
		}
		add, err := t.run(ctx, a.git(t.dir, "-c", "advice.addEmbeddedRepo=false", "add", what, "--ignore-errors", "."))
		if err != nil && fatal(ctx, err) {
			return "", err
		}
		r, werr := t.must(ctx, a.git(t.dir, "write-tree"))
		if werr != nil {
			if fatal(ctx, werr) {
				return "", werr
			}
			last = werr
			continue
		}
		t.incomplete = err != nil || !add.ok()
		switch {
		case err != nil:
			t.notes = append(t.notes, fmt.Sprintf("Not all files could be taken: %v.", err))
		case !add.ok():
			t.notes = append(t.notes, fmt.Sprintf("Not all files could be taken: %v.", failed([]string{"git", "add"}, add)))
		}
		return r.line(), nil
	}
	t.incomplete = true
	t.notes = append(t.notes, fmt.Sprintf("Uncommitted files could not be taken: %v.", last))
	return t.treeOf(ctx, commit)
}

func (t *taking) treeOf(ctx context.Context, commit string) (string, error) {
	r, err := t.must(ctx, t.a.git(t.dir, "rev-parse", "--verify", commit+"^{tree}"))
	if err != nil {
		return "", err
	}
	if !isSHA(r.line()) {
		return "", fmt.Errorf("git gave no tree for commit %s", short12(commit))
	}
	return r.line(), nil
}

func (t *taking) commit(ctx context.Context, tree, message string, parents ...string) (string, error) {
	args := []string{"commit-tree", tree, "-m", message}
	for _, p := range parents {
		args = append(args, "-p", p)
	}
	r, err := t.must(ctx, t.a.git(t.dir, args...))
	if err != nil {
		return "", err
	}
	if !isSHA(r.line()) {
		return "", errors.New("git made no commit")
	}
	return r.line(), nil
}

// makePatch makes the patch of everything since the base. Secrets in it are
// replaced; it is for people, not for pushing.
func (t *taking) makePatch(ctx context.Context, tip string) (blob, error) {
	a := t.a
	w, err := a.spool.create(maxPatch, a.red)
	if err != nil {
		return blob{}, err
	}
	c := a.git(t.dir, "diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", a.spec.BaseSHA, tip)
	c.stdout = w
	if _, err := t.must(ctx, c); err != nil {
		w.abandon()
		return blob{}, err
	}
	p, err := w.finish()
	if err != nil {
		return blob{}, err
	}
	if p.truncated {
		p.remove()
		return blob{}, fmt.Errorf("it is larger than %d MiB", maxPatch>>20)
	}
	return p, nil
}

// turn bundles the committed work of an agent that is still at work, if there
// is any since the last time.
func (b *box) turn(ctx context.Context, last string) (tip string, bun blob, err error) {
	a := b.a
	r, err := b.run(ctx, a.git(a.repository(), "rev-parse", "--quiet", "--verify", "HEAD^{commit}"))
	if err != nil || !r.ok() {
		return "", blob{}, err
	}
	tip = r.line()
	if !isSHA(tip) || tip == last || tip == a.spec.BaseSHA {
		return "", blob{}, nil
	}
	t := &taking{box: b, dir: a.places().scratch() + "/turn"}
	if err := t.begin(ctx, ""); err != nil {
		return "", blob{}, err
	}
	isNew, ours, err := t.place(ctx, tip)
	if err != nil || !isNew || !ours {
		return "", blob{}, err
	}
	bun, err = b.makeBundle(ctx, t.dir, a.spec.BaseSHA, tip)
	return tip, bun, err
}

// ignorePattern is the line of an exclude file that matches exactly one path.
// A path with a line break has none.
func ignorePattern(path string) (string, bool) {
	if path == "" || strings.ContainsAny(path, "\n\r\x00") {
		return "", false
	}
	var b strings.Builder
	b.WriteByte('/')
	for i, r := range []byte(path) {
		if strings.IndexByte(`\*?[]`, r) >= 0 || r == ' ' && i == len(path)-1 {
			b.WriteByte('\\')
		}
		b.WriteByte(r)
	}
	return b.String(), true
}

// isGone reports whether the sandbox has ended or does not answer.
func isGone(err error) bool {
	return errors.Is(err, stream.ErrEnded) || errors.Is(err, stream.ErrUnresponsive)
}

// fatal reports whether nothing further can be done in this sandbox.
func fatal(ctx context.Context, err error) bool { return ctx.Err() != nil || isGone(err) }
