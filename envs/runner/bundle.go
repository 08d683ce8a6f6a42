package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// resultRef is the one reference in every bundle.
const resultRef = "refs/inspect/result"

// maxBundleHead bounds a bundle's header, in bytes.
const maxBundleHead = 256 << 10

var isSHA = regexp.MustCompile(`^[0-9a-f]{40}$`).MatchString

// bundleHead is the header of a git bundle of version 2.
type bundleHead struct {
	tip           string
	prerequisites []string
	pack          int64 // offset of the pack
}

// parseBundle reads a bundle's header, which whoever wrote the bundle wrote.
// It has to hold exactly one reference, resultRef.
func parseBundle(b []byte) (bundleHead, error) {
	var h bundleHead
	const signature = "# v2 git bundle\n"
	rest, ok := bytes.CutPrefix(b, []byte(signature))
	if !ok {
		return h, errors.New("it is not a git bundle of version 2")
	}
	for {
		line, after, ok := bytes.Cut(rest, []byte("\n"))
		if !ok {
			return h, errors.New("its header does not end")
		}
		rest = after
		if len(line) == 0 {
			break
		}
		if id, ok := bytes.CutPrefix(line, []byte("-")); ok {
			sha, _, _ := strings.Cut(string(id), " ")
			if !isSHA(sha) || h.tip != "" {
				return h, errors.New("a prerequisite in its header is malformed")
			}
			h.prerequisites = append(h.prerequisites, sha)
			continue
		}
		sha, ref, _ := strings.Cut(string(line), " ")
		if !isSHA(sha) || ref != resultRef || h.tip != "" {
			return h, fmt.Errorf("it does not hold %s alone", resultRef)
		}
		h.tip = sha
	}
	if h.tip == "" {
		return h, fmt.Errorf("it does not hold %s", resultRef)
	}
	h.pack = int64(len(b) - len(rest))
	return h, nil
}

// errTooLarge is the error of a bundle over wire.MaxBundleBytes.
var errTooLarge = errors.New("the bundle is too large")

// makeBundle bundles everything of tip that base does not have, from the
// repository at dir. The bytes come out through the command's output.
func (b *box) makeBundle(ctx context.Context, dir, base, tip string) (blob, error) {
	a := b.a
	if _, err := b.must(ctx, a.git(dir, "update-ref", resultRef, tip)); err != nil {
		return blob{}, err
	}
	w, err := a.spool.create(a.opt.maxBundle, nil)
	if err != nil {
		return blob{}, err
	}
	c := a.git(dir, "-c", "pack.threads=1", "bundle", "create", "--quiet", "--version=2", "-", resultRef, "^"+base)
	c.step, c.stdout = "bundle", w
	if _, err := b.must(ctx, c); err != nil {
		w.abandon()
		return blob{}, err
	}
	out, err := w.finish()
	if err != nil {
		return blob{}, err
	}
	if out.truncated {
		out.remove()
		return blob{}, errTooLarge
	}
	head, err := out.readHead(maxBundleHead)
	if err == nil {
		var h bundleHead
		if h, err = parseBundle(head); err == nil && h.tip != tip {
			err = errors.New("it does not hold the commit it was made of")
		}
	}
	if err != nil {
		out.remove()
		return blob{}, fmt.Errorf("the bundle that came out of the sandbox cannot be used: %w", err)
	}
	return out, nil
}

// applyBundle brings the commits of a bundle into the repository at dir and
// returns its tip. Only the pack goes in; git never gets to see the file, whose
// kind it would guess.
func (b *box) applyBundle(ctx context.Context, step, dir, base string, bun blob) (tip string, err error) {
	head, err := bun.readHead(maxBundleHead)
	if err != nil {
		return "", err
	}
	h, err := parseBundle(head)
	if err != nil {
		return "", fmt.Errorf("the bundle cannot be used: %w", err)
	}
	pack, err := bun.openAt(h.pack)
	if err != nil {
		return "", err
	}
	defer pack.Close()
	c := b.a.git(dir, "index-pack", "--stdin", "--fix-thin", "--threads=1")
	c.step, c.stdin = step, pack
	if _, err := b.must(ctx, c); err != nil {
		return "", err
	}
	if _, err := b.must(ctx, b.a.git(dir, "rev-list", "--quiet", "--objects", h.tip, "--not", base)); err != nil {
		return "", fmt.Errorf("the bundle is not complete: %w", err)
	}
	return h.tip, nil
}
