package runner

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"

	"inspect/envs/spec"
	"inspect/envs/wire"
)

// Bounds of what is told of a drift.
const (
	maxManifests = 100
	maxPathShown = 400      // bytes; a longer path is not told
	maxLineShown = 300      // bytes
	maxDrifted   = 48 << 10 // bytes of the event, as JSON
)

// emptyTree is git's name of a tree without files. Git knows it without having it.
const emptyTree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

// drift finds out what the way from the snapshot's commit to the base changed
// for the environment, tells of it, and leaves in a.rerun the steps of setup
// that have to run again. The clone is at the base. What git says of it is an
// enemy's word: it decides only which of the repository's own steps run.
func (b *box) drift(ctx context.Context, from string) error {
	a := b.a
	setup := a.spec.Setup
	d := wire.Drifted{}
	if from != "" && from != a.spec.BaseSHA {
		changed, cold, err := b.changed(ctx, from)
		if err != nil {
			return err
		}
		switch {
		case cold != "":
			again := ""
			if len(setup) > 0 && a.spec.Fork == nil {
				again = " All of setup runs again."
			}
			a.events.note("%s, so the files were reset to %s and nothing that setup had made for the snapshot is relied on.%s", cold, short12(a.spec.BaseSHA), again)
			a.rerun = setup
		default:
			var lines []string
			for _, s := range setup {
				lines = append(lines, s.Run)
			}
			a.rerun = setup[spec.RerunFrom(lines, changed):]
		}
		for _, name := range changed[:min(len(changed), maxManifests)] {
			d.Manifests = append(d.Manifests, a.events.text(name, maxPathShown))
		}
	}
	if a.spec.Fork == nil {
		for _, s := range a.rerun {
			d.Steps = append(d.Steps, a.events.text(s.Run, maxLineShown))
		}
	}
	var err error
	if d.Lockfiles, err = b.lockfiles(ctx); err != nil {
		return err
	}
	a.events.add(wire.EventDrift, fit(d))
	return nil
}

// fit leaves out the ends of the lists until an event can hold it.
func fit(d wire.Drifted) wire.Drifted {
	for {
		j, err := json.Marshal(d)
		if err == nil && len(j) <= maxDrifted {
			return d
		}
		d.Manifests, d.Steps, d.Lockfiles = d.Manifests[:len(d.Manifests)/2], d.Steps[:len(d.Steps)/2], d.Lockfiles[:len(d.Lockfiles)/2]
	}
}

// changed are the manifests that differ between the snapshot's commit and the
// base. cold says, in words, why that cannot be told.
func (b *box) changed(ctx context.Context, from string) (names []string, cold string, err error) {
	a := b.a
	base := a.spec.BaseSHA
	if !isSHA(from) {
		return nil, "The snapshot's commit is not known", nil
	}
	common, err := b.run(ctx, a.git(a.repository(), "merge-base", from, base))
	switch {
	case err != nil:
		return nil, "", err
	case common.code == 1:
		return nil, fmt.Sprintf("The snapshot's commit %s and the session's have no commit in common", short12(from)), nil
	case !common.ok():
		return nil, fmt.Sprintf("The snapshot's commit %s is not in its own repository", short12(from)), nil
	}
	r, err := b.run(ctx, a.git(a.repository(), diffManifests([]string{"--name-only", from, base})...))
	if err != nil {
		return nil, "", err
	}
	if !r.ok() {
		return nil, fmt.Sprintf("What changed since the snapshot's commit %s cannot be told", short12(from)), nil
	}
	for _, name := range zeroed(r.out) {
		if _, ok := spec.Manifest(name); ok {
			names = append(names, name)
		}
	}
	return names, "", nil
}

// diffManifests compares two commits, as far as manifests go.
func diffManifests(what []string) []string {
	args := append([]string{"diff-tree", "-r", "-z", "--no-renames", "--no-ext-diff", "--no-textconv"}, what...)
	return append(append(args, "--"), spec.ManifestPathspecs()...)
}

// zeroed are the words of what git writes with -z; one that does not end is none.
func zeroed(out []byte) (words []string) {
	for {
		word, rest, ok := bytes.Cut(out, []byte{0})
		if !ok {
			return words
		}
		words, out = append(words, string(word)), rest
	}
}

// lockfiles are the manifests of the base and what they hold.
func (b *box) lockfiles(ctx context.Context) ([]wire.Lockfile, error) {
	a := b.a
	r, err := b.run(ctx, a.git(a.repository(), diffManifests([]string{"--raw", "--no-abbrev", emptyTree, a.spec.BaseSHA})...))
	if err != nil {
		return nil, err
	}
	var list []wire.Lockfile
	var blobs []string
	words := zeroed(r.out)
	for i := 0; i+1 < len(words) && len(list) < maxManifests; i += 2 {
		// :000000 100644 0000… <blob> A
		f := strings.Fields(words[i])
		name := a.events.text(words[i+1], maxPathShown)
		if _, ok := spec.Manifest(words[i+1]); !ok || name != words[i+1] || len(f) != 5 || !strings.HasPrefix(f[1], "100") || !isSHA(f[3]) {
			continue // a link, for one, or a name that cannot be told as it is
		}
		list, blobs = append(list, wire.Lockfile{Path: name}), append(blobs, f[3])
	}
	if len(list) == 0 {
		return nil, nil
	}
	sums := &digests{want: blobs}
	c := a.git(a.repository(), "cat-file", "--batch")
	c.stdin, c.stdout = strings.NewReader(strings.Join(blobs, "\n")+"\n"), sums
	if _, err := b.run(ctx, c); err != nil && fatal(ctx, err) {
		return nil, err
	}
	list = list[:len(sums.sums)]
	for i, sum := range sums.sums {
		list[i].SHA256 = sum
	}
	return list, nil
}

// digests takes what git cat-file --batch writes and keeps the SHA-256 of each
// object, as long as they are what was asked for.
type digests struct {
	want []string // ids, in order
	sums []string

	head []byte
	sum  hash.Hash // of the object that comes; nil: its head comes
	left int64     // bytes of it, and the line break after it
}

var errNotAsked = errors.New("it is not what was asked for")

func (d *digests) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		if d.sum == nil {
			end := bytes.IndexByte(p, '\n')
			if end < 0 {
				end = len(p)
			}
			if d.head = append(d.head, p[:end]...); len(d.head) > 100 {
				return 0, errNotAsked
			}
			if end == len(p) {
				return n, nil
			}
			p = p[end+1:]
			f := strings.Fields(string(d.head))
			if len(d.sums) >= len(d.want) || len(f) != 3 || f[0] != d.want[len(d.sums)] || f[1] != "blob" {
				return 0, errNotAsked
			}
			size, err := strconv.ParseInt(f[2], 10, 62)
			if err != nil || size < 0 {
				return 0, errNotAsked
			}
			d.head, d.sum, d.left = nil, sha256.New(), size+1
			continue
		}
		part := p[:min(int64(len(p)), d.left)]
		p, d.left = p[len(part):], d.left-int64(len(part))
		if d.left == 0 {
			part = part[:len(part)-1] // the line break
		}
		d.sum.Write(part)
		if d.left == 0 {
			d.sums, d.sum = append(d.sums, hex.EncodeToString(d.sum.Sum(nil))), nil
		}
	}
	return n, nil
}
