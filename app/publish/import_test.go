package publish

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"inspect/app/policy"
	"inspect/envs/spec"
)

// imported reads a bundle in a fresh cell.
func imported(t *testing.T, q Quarantine, mirror, base string, bundle []byte) (*cell, Imported, error) {
	t.Helper()
	name := sha1.Sum([]byte(t.Name()))
	c, err := newCell(q, "t-"+hex.EncodeToString(name[:8]), openDir(t), mirror)
	if err != nil {
		t.Fatal(err)
	}
	im, err := c.importBundle(context.Background(), bytes.NewReader(bundle), base, 4<<20)
	return c, im, err
}

func TestImportGoodBundle(t *testing.T) {
	q := newSandboxed(t)
	work, mirror, base := newRepo(t)
	work.write("calc/add.go", "package calc\n\nfunc Add(a, b int) int { return a + b }\n")
	work.write("calc/add_test.go", "package calc\n\n// ++ a line that looks like a header\n++ b/evil\n")
	work.write("with space/größe.txt", "x\r\ny")
	work.write("binary.dat", "a\x00b\nc")
	if err := os.Symlink("README.md", filepath.Join(work.path, "LINK")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(work.path, "go.mod")); err != nil {
		t.Fatal(err)
	}
	work.commit("first\n\nwith a body")
	tip := work.commit("second")
	c, im, err := imported(t, q, mirror, base, work.bundle(tip, base))
	if err != nil {
		t.Fatal(err)
	}
	if im.Tip != tip || im.Tree != work.must("", "git", "rev-parse", tip+"^{tree}") || im.Commits != 2 {
		t.Errorf("%+v", im)
	}
	if len(im.Messages) != 2 || im.Messages[0] != "first\n\nwith a body" || im.Messages[1] != "second" {
		t.Errorf("messages %q", im.Messages)
	}
	var names []string
	for _, e := range im.Change.Entries {
		names = append(names, string(e.Status)+" "+e.Path)
	}
	if got, want := strings.Join(names, ", "), "A LINK, A binary.dat, M calc/add.go, A calc/add_test.go, D go.mod, A with space/größe.txt"; got != want {
		t.Errorf("entries %s, want %s", got, want)
	}
	if im.Change.Links["LINK"] != "README.md" {
		t.Errorf("links %q", im.Change.Links)
	}
	lines := map[string]string{}
	for _, a := range im.Change.Added {
		lines[a.Path] = strings.Join(a.Lines, "|")
	}
	for path, want := range map[string]string{
		"calc/add_test.go":     "package calc||// ++ a line that looks like a header|++ b/evil",
		"calc/add.go":          "func Add(a, b int) int { return a + b }",
		"binary.dat":           "a\x00b|c",
		"with space/größe.txt": "x\r|y",
		"LINK":                 "README.md",
	} {
		if lines[path] != want {
			t.Errorf("added to %s: %q, want %q", path, lines[path], want)
		}
	}
	if v := policy.Judge(im.Change, policy.PublishRules(spec.Default().Publish)); v.Refusal != nil {
		t.Errorf("refused: %s", v.Refusal.Words)
	}
	var patch bytes.Buffer
	if complete, err := c.patchForPeople(context.Background(), &patch, im, nil); err != nil || !complete {
		t.Fatal(complete, err)
	}
	// The patch gives the same tree on a fresh clone.
	clone := gitDir{t, filepath.Join(openDir(t), "clone")}
	clone.must("", "git", "clone", "-q", mirror, clone.path)
	clone.must(patch.String(), "git", "apply", "--index", "-")
	if got := clone.must("", "git", "write-tree"); got != im.Tree {
		t.Errorf("the patch gives the tree %s, want %s", got, im.Tree)
	}
}

func TestImportMergeOfOlderHistory(t *testing.T) {
	q := newSandboxed(t)
	work, mirror, first := newRepo(t)
	work.write("more", "x")
	base := work.commit("second")
	work.must("", "git", "push", "-q", mirror, "HEAD:main")
	work.must("", "git", "checkout", "-q", "-b", "side", first)
	work.write("side", "y")
	work.commit("side")
	work.must("", "git", "checkout", "-q", "main")
	work.must("", "git", "merge", "-q", "-m", "merge", "side")
	tip := work.must("", "git", "rev-parse", "HEAD")
	work.must("", "git", "update-ref", ResultRef, tip)
	file := filepath.Join(openDir(t), "b")
	work.must("", "git", "bundle", "create", "-q", file, ResultRef, "^"+base) // with git's own boundary commits
	bundle, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, im, err := imported(t, q, mirror, base, bundle); err != nil || im.Tip != tip {
		t.Fatal(im.Tip, err)
	}
}

// hostile bundles that git or we refuse. Each is made by real git, or to the
// letter where git would not make it.
func TestImportRefusesHostileBundles(t *testing.T) {
	q := newSandboxed(t)
	work, mirror, base := newRepo(t)
	blob := work.blob("hello\n")
	config := work.blob("[core]\n\tsshCommand = touch /quarantine/pwned\n")
	gitTree := work.tree(entry{"100644", "config", config})
	of := func(entries ...entry) []byte {
		return work.bundle(work.commitTree(work.tree(entries...), base), base)
	}
	header := func(tip string) []byte {
		return []byte(signatureV2 + "-" + base + " base\n" + tip + " " + ResultRef + "\n\n")
	}
	good := work.commitTree(work.tree(entry{"100644", "new", blob}), base)
	missing := strings.Repeat("12", 20)
	link := work.blob("../../../etc/passwd")
	tag := work.must("object "+good+"\ntype commit\ntag x\ntagger a <a@example.com> 1 +0000\n\nx\n", "git", "hash-object", "-t", "tag", "-w", "--stdin")
	pack := work.pack(good, base)

	for name, test := range map[string]struct {
		bundle []byte
		words  string // that must be in the refusal
	}{
		".git folder":     {of(entry{"40000", ".git", gitTree}), "complains"},
		".GiT folder":     {of(entry{"40000", ".GiT", gitTree}), "complains"},
		"git~1 folder":    {of(entry{"40000", "git~1", gitTree}), "complains"},
		".. folder":       {of(entry{"40000", "..", gitTree}), "complains"},
		". folder":        {of(entry{"40000", ".", gitTree}), "complains"},
		"slash in a name": {of(entry{"100644", "a/b", blob}), "complains"},
		"empty name": {func() []byte {
			tree := work.tree(entry{"100644", "", blob})
			c := work.commitTree(tree, base)
			return join(header(c), onlyObjects(work, c, tree, blob))
		}(), "complains"},
		"linked .gitmodules":     {of(entry{"120000", ".gitmodules", link}), "complains"},
		"option in .gitmodules":  {of(entry{"100644", ".gitmodules", work.blob("[submodule \"x\"]\n\tpath = x\n\turl = -u./x\n")}), "complains"},
		"command in .gitmodules": {of(entry{"100644", ".gitmodules", work.blob("[submodule \"x\"]\n\tpath = x\n\turl = ./x\n\tupdate = !touch x\n")}), "complains"},
		"an entry twice":         {of(entry{"100644", "a", blob}, entry{"100644", "a", config}), "complains"},
		"unsorted entries":       {of(entry{"100644", "b", blob}, entry{"100644", "a", blob}), "complains"},
		"zero-padded mode":       {of(entry{"0100644", "a", blob}), "complains"},
		"missing blob":           {join(header(good), onlyObjects(work, good, work.must("", "git", "rev-parse", good+"^{tree}"))), "complains"},
		"missing tree":           {join(header(good), onlyObjects(work, good)), "complains"},
		"missing parent": {func() []byte {
			w := danglingCommit(work, missing)
			return join(header(w), onlyObjects(work, w))
		}(), "complains"},
		"unknown prerequisite":      {join([]byte(signatureV2+"-"+base+" x\n-"+missing+" y\n"+good+" "+ResultRef+"\n\n"), pack), "does not have"},
		"other prerequisite":        {join([]byte(signatureV2+"-"+blob+" x\n"+good+" "+ResultRef+"\n\n"), pack), "does not build upon"},
		"prerequisite is no commit": {join([]byte(signatureV2+"-"+base+" x\n-"+work.must("", "git", "rev-parse", base+"^{tree}")+" y\n"+good+" "+ResultRef+"\n\n"), pack), "does not have"},
		"ref is a blob":             {join(header(blob), onlyObjects(work, blob)), "complains"},
		"ref is a tree":             {join(header(gitTree), onlyObjects(work, gitTree, config)), "complains"},
		"ref is a tag":              {join(header(tag), onlyObjects(work, tag, good, work.must("", "git", "rev-parse", good+"^{tree}"), blob)), "not a commit"},
		"ref is missing":            {join(header(missing), pack), "complains"},
		"unrelated history": {func() []byte {
			c := work.commitTree(work.tree(entry{"100644", "a", blob}))
			return join(header(c), work.pack(c))
		}(), "does not descend"},
		"extra ref":              {join([]byte(signatureV2+"-"+base+" x\n"+good+" refs/heads/main\n"+good+" "+ResultRef+"\n\n"), pack), "refs/heads/main"},
		"replace ref":            {join([]byte(signatureV2+"-"+base+" x\n"+good+" "+ResultRef+"\n"+good+" refs/replace/"+base+"\n\n"), pack), "refs/replace"},
		"version 3":              {join([]byte("# v3 git bundle\n@object-format=sha1\n-"+base+" x\n"+good+" "+ResultRef+"\n\n"), pack), "version 3"},
		"gitdir file":            {[]byte("gitdir: " + mirror + "\n"), "does not begin"},
		"no pack":                {header(good), "complains"},
		"cut pack":               {join(header(good), pack[:len(pack)-30]), "complains"},
		"damaged pack":           {join(header(good), flip(pack)), "complains"},
		"more objects than said": {join(header(good), rawPack(t, 3, []byte{0x30})), "complains"},
		"bomb of deltas":         {join(header(good), deltaBomb(t)), ""},
		"bomb of zeros":          {join(header(good), zeroBomb(t)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, im, err := imported(t, q, mirror, base, test.bundle)
			var r *refusal
			if !errors.As(err, &r) {
				t.Fatalf("%+v, %v: should be refused", im, err)
			}
			if !strings.Contains(r.Words, test.words) {
				t.Errorf("refused with the words %q", r.Words)
			}
			if _, err := os.Stat(filepath.Join(c.dir, "pwned")); err == nil {
				t.Error("a command of the bundle ran")
			}
		})
	}
}

// onlyObjects is a pack of exactly these objects.
func onlyObjects(g gitDir, ids ...string) []byte {
	g.t.Helper()
	out, err := g.run(strings.Join(ids, "\n")+"\n", "git", "pack-objects", "-q", "--stdout")
	if err != nil {
		g.t.Fatal(err)
	}
	return []byte(out)
}

// danglingCommit is a commit whose parent does not exist.
func danglingCommit(g gitDir, parent string) string {
	g.t.Helper()
	tree := g.must("", "git", "rev-parse", "HEAD^{tree}")
	return g.must("tree "+tree+"\nparent "+parent+"\nauthor a <a@example.com> 1 +0000\ncommitter a <a@example.com> 1 +0000\n\nx\n",
		"git", "hash-object", "-t", "commit", "-w", "--stdin", "--literally")
}

func flip(pack []byte) []byte {
	out := bytes.Clone(pack)
	out[len(out)/2] ^= 0x55
	return out
}

// rawPack is a pack of that many objects, written to the letter.
func rawPack(t testing.TB, objects uint32, body []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	b.WriteString("PACK")
	for _, n := range []uint32{2, objects} {
		if err := binary.Write(&b, binary.BigEndian, n); err != nil {
			t.Fatal(err)
		}
	}
	b.Write(body)
	sum := sha1.Sum(b.Bytes())
	return append(b.Bytes(), sum[:]...)
}

// object is the head of a pack's object of a type and size.
func packObject(kind byte, size int) []byte {
	b := []byte{kind<<4 | byte(size&15)}
	for size >>= 4; size > 0; size >>= 7 {
		b[len(b)-1] |= 0x80
		b = append(b, byte(size&0x7f))
	}
	return b
}

func deflated(t testing.TB, write func(*zlib.Writer)) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := zlib.NewWriterLevel(&b, zlib.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	write(z)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// zeroBomb is a pack of under 3 MB with one file of 700 MiB of zeros.
func zeroBomb(t testing.TB) []byte {
	t.Helper()
	const size = 700 << 20
	zeros := make([]byte, 1<<20)
	body := deflated(t, func(z *zlib.Writer) {
		for range size >> 20 {
			z.Write(zeros)
		}
	})
	return rawPack(t, 1, append(packObject(3, size), body...))
}

// deltaBomb is a pack of a few hundred bytes whose deltas each double what is
// before them: 1 MiB becomes 1 GiB.
func deltaBomb(t testing.TB) []byte {
	t.Helper()
	const first, doublings = 1 << 20, 10
	var b bytes.Buffer
	b.Write(packObject(3, first))
	b.Write(deflated(t, func(z *zlib.Writer) { z.Write(make([]byte, first)) }))
	last := 12 // where the object before begins in the pack
	for i, size := 0, first; i < doublings; i, size = i+1, size*2 {
		var d []byte
		d = append(d, deltaSize(size)...)
		d = append(d, deltaSize(2*size)...)
		for range 2 { // copy all of what is before, in pieces of at most 1 MiB
			for at := 0; at < size; at += 1 << 20 {
				d = append(d, 0x80|0x0f|0x40, byte(at), byte(at>>8), byte(at>>16), byte(at>>24), 0x10) // 0x10<<16 = 1 MiB
			}
		}
		here := 12 + b.Len()
		b.Write(packObject(6, len(d)))
		b.Write(offset(here - last))
		b.Write(deflated(t, func(z *zlib.Writer) { z.Write(d) }))
		last = here
	}
	return rawPack(t, doublings+1, b.Bytes())
}

func deltaSize(n int) []byte {
	var b []byte
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}

// offset of an OFS_DELTA, in git's own way of writing it.
func offset(n int) []byte {
	b := []byte{byte(n & 0x7f)}
	for n >>= 7; n > 0; n >>= 7 {
		n--
		b = append([]byte{0x80 | byte(n&0x7f)}, b...)
	}
	return b
}
