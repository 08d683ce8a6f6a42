package publish

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"inspect/app/policy"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/storage"
)

// rulesOfDefault are the rules of a repository that says nothing.
func rulesOfDefault() policy.Rules { return policy.PublishRules(spec.Default().Publish) }

// Names that git takes and no repository should have. They come in one result;
// each alone must be reason enough to refuse it.
func TestHostileNamesAreRefused(t *testing.T) {
	q := newSandboxed(t)
	work, mirror, base := newRepo(t)
	names := []string{
		"new\nline", "carriage\rreturn", "tab\there", "esc\x1b[2Jape", "\x1b]8;;evil:\x07link", "bell\x07", "del\x7fete", "c1\u0085",
		"bidi\u202egpj.exe", "isolate\u2066x", "mark\u200f", "zero\u200bwidth", "soft\u00adhyphen", "joiner\u034fx", "filler\u3164x", "half\uffa0filler", "line\u2028separator",
		"bom\ufeff", "not\xffutf8", "over\xc0\xaflong", "surrogate\xed\xa0\x80", "back\\slash", "..\\evil", "dot.", "space ", strings.Repeat("n", 256),
		strings.Repeat("d/", 64) + "deep", strings.Repeat("long-name/", 110) + "x",
		".g\u034fit", ".\u3164git", ".gi\uffa0t", "．ｇｉｔ", ".ｇit/config", "dir/．git/hooks/post-checkout", "dir/.g\u034fit/config",
		".GITATTRIBUTES", ".gitIgnore", ".gitattributes\u034f", ".mailmap.", ".Mailmap", ".LFSconfig", "．lfsconfig", "gitatt~1", "GI7D29~1", "gitign~2",
	}
	p := newPacker(t)
	content := p.add(objBlob, []byte("x\n"))
	tree := p.trees(names, content, work.must("", "git", "rev-parse", base+"^{tree}"), work)
	tip := p.commit(tree, base, "names\n")
	_, im, err := imported(t, q, mirror, base, p.bundle(tip, base))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]policy.Entry{}
	for _, e := range im.Change.Entries {
		seen[e.Path] = e
	}
	for _, name := range names {
		e, ok := seen[name]
		if !ok {
			t.Errorf("%q did not arrive", name)
			continue
		}
		v := policy.Judge(policy.Change{Entries: []policy.Entry{e}}, rulesOfDefault())
		if v.Refusal == nil || v.Refusal.Reason != policy.ReasonFileName {
			t.Errorf("%q is let pass: %+v", name, v.Refusal)
			continue
		}
		if w := v.Refusal.Words; strings.ContainsFunc(w, func(r rune) bool {
			return r < ' ' || r >= 0x7f && r < 0xa0 || r == utf8.RuneError || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r)
		}) || len(w) > 1000 {
			t.Errorf("%q: the words are not clean: %q", name, w)
		}
	}
	delete(seen, "")
	if len(seen) != len(names) {
		t.Errorf("%d paths arrived, %d were sent", len(seen), len(names))
	}
}

// Whatever git lets pass of trees and links, policy does not.
func TestHostileTreesAreRefused(t *testing.T) {
	q := light{}
	work, mirror, base := newRepo(t)
	all := newPacker(t)
	link := func(target string) string { return all.add(objBlob, []byte(target)) }
	b := link("hello\n")
	sub := all.tree
	of := func(entries ...entry) []byte {
		tree := all.tree(inGitOrder(append(listed(work, base), entries...))...)
		tip := all.commit(tree, base, "hostile\n")
		return all.reachable(tip).bundle(tip, base)
	}
	for name, test := range map[string]struct {
		bundle []byte
		reason string // of policy; empty: git in quarantine refuses it already
	}{
		"mode 100664":                   {of(entry{"100664", "a", b}), ""},
		"mode 100600":                   {of(entry{"100600", "a", b}), ""},
		"mode 104755 (setuid)":          {of(entry{"104755", "a", b}), ""},
		"mode 010644 (pipe)":            {of(entry{"10644", "a", b}), ""},
		"mode 060644 (device)":          {of(entry{"60644", "a", b}), ""},
		"mode 0":                        {of(entry{"0", "a", b}), ""},
		"mode that is no number":        {of(entry{"1x0644", "a", b}), ""},
		"a tree said to be a file":      {of(entry{"100644", "a", sub(entry{"100644", "x", b})}), ""},
		"a file said to be a tree":      {of(entry{"40000", "a", b}), ""},
		"a commit said to be a file":    {of(entry{"100644", "a", base}), ""},
		"empty tree in a tree":          {of(entry{"40000", "a", sub()}), policy.ReasonNoChange},
		"null id":                       {of(entry{"160000", "a", strings.Repeat("0", 40)}), ""},
		"submodule":                     {of(entry{"160000", "a", base}), policy.ReasonSubmodule},
		"submodule in a directory":      {of(entry{"40000", "a", sub(entry{"160000", "b", base})}), policy.ReasonSubmodule},
		".gitmodules":                   {of(entry{"100644", ".gitmodules", link("[submodule \"x\"]\n\tpath = x\n\turl = https://example.com/x\n")}), policy.ReasonSubmodule},
		".gitmodules with ext::":        {of(entry{"100644", ".gitmodules", link("[submodule \"x\"]\n\tpath = x\n\turl = ext::sh -c touch% x\n")}), policy.ReasonSubmodule},
		".gitmodules with ..":           {of(entry{"100644", ".gitmodules", link("[submodule \"../../x\"]\n\tpath = x\n\turl = ./x\n")}), ""},
		".lfsconfig":                    {of(entry{"100644", ".lfsconfig", link("[lfs]\n\turl = https://evil.example/lfs\n")}), policy.ReasonProtectedPath},
		"linked .lfsconfig":             {of(entry{"120000", ".lfsconfig", link("x")}), policy.ReasonLink},
		"linked .gitattributes":         {of(entry{"120000", ".gitattributes", link("x")}), ""},
		"linked .gitignore in a folder": {of(entry{"40000", "d", sub(entry{"120000", ".gitignore", link("x")})}), ""},
		"linked .mailmap":               {of(entry{"120000", ".mailmap", link("x")}), ""},
		"link to an absolute path":      {of(entry{"120000", "l", link("/etc/passwd")}), policy.ReasonLink},
		"link out of the tree":          {of(entry{"120000", "l", link("../x")}), policy.ReasonLink},
		"link out of a folder":          {of(entry{"40000", "d", sub(entry{"120000", "l", link("../../x")})}), policy.ReasonLink},
		"link down and up":              {of(entry{"120000", "l", link("calc/../../x")}), policy.ReasonLink},
		"link to git's directory":       {of(entry{"120000", "l", link(".git/config")}), policy.ReasonLink},
		"link to GIT~1":                 {of(entry{"120000", "l", link("GIT~1/hooks")}), policy.ReasonLink},
		"link to .g\\u034fit":           {of(entry{"120000", "l", link(".g\u034fit/hooks")}), policy.ReasonLink},
		"empty link":                    {of(entry{"120000", "l", link("")}), policy.ReasonLink},
		"long link":                     {of(entry{"120000", "l", link(strings.Repeat("a/", 600) + "b")}), policy.ReasonLink},
		"endless link":                  {of(entry{"120000", "l", link(strings.Repeat("a/", 600_000) + "b")}), ""},
		"link with a line break":        {of(entry{"120000", "l", link("a\nb")}), policy.ReasonLink},
		"link with NUL":                 {of(entry{"120000", "l", link("a\x00b")}), policy.ReasonLink},
		"README.md and readme.md":       {of(entry{"100644", "readme.md", b}), policy.ReasonNameCollision},
		"a folder in another case":      {of(entry{"40000", "CALC", sub(entry{"100644", "x", b})}), policy.ReasonNameCollision},
		"a file like a folder":          {of(entry{"100644", "Calc", b}), policy.ReasonNameCollision},
		"composed and decomposed":       {of(entry{"100644", "caf\u00e9", b}, entry{"100644", "cafe\u0301", b}), policy.ReasonNameCollision},
		"sharp s":                       {of(entry{"100644", "stra\u00dfe", b}, entry{"100644", "strasse", b}), policy.ReasonNameCollision},
		"Kelvin sign":                   {of(entry{"100644", "\u212aey", b}, entry{"100644", "key", b}), policy.ReasonNameCollision},
		"long s":                        {of(entry{"100644", "\u017fecret", b}, entry{"100644", "Secret", b}), policy.ReasonNameCollision},
		"ligature":                      {of(entry{"100644", "\ufb01le", b}, entry{"100644", "file", b}), policy.ReasonNameCollision},
		"variation selector":            {of(entry{"100644", "a\ufe0f", b}, entry{"100644", "a", b}), policy.ReasonNameCollision},
		"folders in two cases, nested":  {of(entry{"40000", "d", sub(entry{"40000", "E", sub(entry{"100644", "x", b})}, entry{"40000", "e", sub(entry{"100644", "y", b})})}), policy.ReasonNameCollision},
		"a file and a folder of a name": {of(entry{"100644", "a", b}, entry{"40000", "a", sub(entry{"100644", "x", b})}), ""},
		"workflow in another case":      {of(entry{"40000", ".GitHub", sub(entry{"40000", "workflows", sub(entry{"100644", "x.yml", b})})}), policy.ReasonNameCollision},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, im, err := imported(t, q, mirror, base, test.bundle)
			var r *refusal
			switch {
			case test.reason == "" && !errors.As(err, &r):
				t.Fatalf("%+v, %v: git should not take it", im.Change.Entries, err)
			case test.reason == "":
				return
			case err != nil:
				t.Fatal(err)
			}
			v := policy.Judge(im.Change, rulesOfDefault())
			if v.Refusal == nil && len(v.Ask) > 0 {
				v.Refusal = &policy.ChangeRefusal{Reason: v.Ask[0].Reason}
			}
			if v.Refusal == nil || v.Refusal.Reason != test.reason {
				t.Errorf("%+v, want %s", v.Refusal, test.reason)
			}
		})
	}
}

// Commits whose headers are meant to confuse. What is taken of them is bounded
// text; none of them is ever pushed.
func TestHostileCommits(t *testing.T) {
	q := light{}
	work, mirror, base := newRepo(t)
	tree := work.tree(entry{"100644", "new", work.blob("hello\n")})
	const who = "a <a@example.com> 1700000000 +0000"
	plain := "tree " + tree + "\nparent " + base + "\nauthor " + who + "\ncommitter " + who + "\n"
	for name, test := range map[string]struct {
		commit string
		taken  bool
	}{
		"no author":                    {"tree " + tree + "\nparent " + base + "\ncommitter " + who + "\n\nx\n", false},
		"no committer":                 {"tree " + tree + "\nparent " + base + "\nauthor " + who + "\n\nx\n", false},
		"two authors":                  {"tree " + tree + "\nparent " + base + "\nauthor " + who + "\nauthor " + who + "\ncommitter " + who + "\n\nx\n", false},
		"two trees":                    {"tree " + tree + "\n" + plain + "\nx\n", false},
		"parent behind the author":     {"tree " + tree + "\nauthor " + who + "\nparent " + base + "\ncommitter " + who + "\n\nx\n", false},
		"brackets in the author":       {strings.Replace(plain, "author a <a@example.com>", "author <<a>> <a@<x>>", 1) + "\nx\n", false},
		"no space before the date":     {strings.Replace(plain, "> 1700000000", ">1700000000", 1) + "\nx\n", false},
		"negative date":                {strings.ReplaceAll(plain, " 1700000000 ", " -1 ") + "\nx\n", false},
		"date too large":               {strings.ReplaceAll(plain, " 1700000000 ", " 99999999999999999999999 ") + "\nx\n", false},
		"date that is no number":       {strings.ReplaceAll(plain, " 1700000000 ", " today ") + "\nx\n", false},
		"NUL in the message":           {plain + "\nbefore\x00after\n", false},
		"NUL in a header":              {plain + "x-odd a\x00b\n\nx\n", false},
		"a parent that is a tree":      {strings.Replace(plain, "parent "+base, "parent "+tree, 1) + "\nx\n", false},
		"a tree that is a commit":      {strings.Replace(plain, "tree "+tree, "tree "+base, 1) + "\nx\n", false},
		"itself cut off":               {"tree " + tree + "\nparent " + base, false},
		"date far ahead":               {strings.ReplaceAll(plain, " 1700000000 ", " 253402300799 ") + "\nx\n", true},
		"odd zone":                     {strings.ReplaceAll(plain, "+0000", "+9999") + "\nx\n", true},
		"unknown encoding":             {plain + "encoding evil-\x1b[2J\n\n\xff\xfe x\n", true},
		"UTF-16":                       {plain + "encoding UTF-16\n\na\x01b\n", true},
		"extra headers":                {plain + "x-odd value\nparent-of evil\n\nx\n", true},
		"signature of 8 MiB":           {plain + "gpgsig -----BEGIN PGP SIGNATURE-----\n" + strings.Repeat(" "+strings.Repeat("A", 70)+"\n", 8<<20/72) + "\nx\n", true},
		"merge tag":                    {plain + "mergetag object " + base + "\n type commit\n tag x\n tagger a <a@example.com> 1 +0000\n \n x\n\nx\n", true},
		"message that looks like data": {plain + "\nx\n> " + shaA + " " + shaB + "\n< " + shaA + " " + shaB + "\n", true},
		"escapes in the message":       {plain + "\n\x1b]8;;http://evil.example\x07x\x1b[2J\n", true},
		"message of 6 MiB":             {plain + "\n" + strings.Repeat("long ", 6<<20/5) + "\n", true},
		"no message":                   {plain + "\n", true},
		"author with escapes":          {strings.Replace(plain, "author a", "author \x1b[2Ja", 1) + "\nx\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tip := work.must(test.commit, "git", "hash-object", "-t", "commit", "-w", "--stdin", "--literally")
			bundle := join([]byte(signatureV2+"-"+base+" base\n"+tip+" "+ResultRef+"\n\n"), onlyObjects(work, tip, tree, work.must("", "git", "rev-parse", tree+":new")))
			_, im, err := imported(t, q, mirror, base, bundle)
			var r *refusal
			if err != nil && !errors.As(err, &r) {
				t.Fatal(err)
			}
			if (err == nil) != test.taken {
				t.Fatalf("%v, taken should be %t", err, test.taken)
			}
			if err != nil {
				return
			}
			if im.Commits != 1 || len(im.Messages) > 1 || im.Tree != tree {
				t.Errorf("%d commits, messages %.100q, tree %s", im.Commits, im.Messages, im.Tree)
			}
			for _, m := range im.Messages {
				if len(m) > maxMessageBytes || !utf8.ValidString(m) || strings.ContainsRune(m, 0) {
					t.Errorf("a message of %d bytes: %.100q", len(m), m)
				}
			}
		})
	}
}

// A file that hides behind attributes, encodings or its size is read all the
// same.
func TestContentCannotHide(t *testing.T) {
	q := light{}
	work, mirror, base := newRepo(t)
	secret := "ghp_" + strings.Repeat("A1b2C3d4", 5)
	for name, fn := range map[string]func(gitDir){
		"-diff": func(g gitDir) {
			g.write(".gitattributes", "* -diff -text binary\n")
			g.write("hidden.txt", "token "+secret+"\n")
		},
		"a driver": func(g gitDir) {
			g.write(".gitattributes", "* diff=evil filter=evil merge=evil ident eol=crlf\n")
			g.write(".gitconfig", "[diff \"evil\"]\n\ttextconv = true\n\tcommand = true\n")
			g.write("hidden.txt", "token "+secret+"\n")
		},
		"export-ignore and linguist": func(g gitDir) {
			g.write(".gitattributes", "* export-ignore linguist-generated\n")
			g.write("hidden.txt", secret)
		},
		"after NUL":    func(g gitDir) { g.write("hidden.bin", "\x00\x00\n"+secret+"\n") },
		"header in it": func(g gitDir) { g.write("hidden.txt", "x\n--- a/x\n+++ b/x\n@@ -1,1 +1,1 @@\n-a\n+b\n"+secret+"\n") },
		"GIT binary": func(g gitDir) {
			g.write("hidden.txt", "GIT binary patch\nliteral 0\n\nBinary files a and b differ\n"+secret)
		},
		"a quoted name": func(g gitDir) { g.write("\"b/x\" \\t.txt", secret) },
		"a link":        func(g gitDir) { must(g.t, os.Symlink(secret, g.path+"/hidden")) },
		"a file that becomes a link": func(g gitDir) {
			must(g.t, os.Remove(g.path+"/README.md"))
			must(g.t, os.Symlink(secret, g.path+"/README.md"))
		},
		"a name": func(g gitDir) { g.write(secret+".txt", "x\n") },
	} {
		work.must("", "git", "checkout", "-q", "-f", base)
		work.must("", "git", "clean", "-fdq")
		fn(work)
		bundle := work.bundle(work.commit("hide"), base)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, im, err := imported(t, q, mirror, base, bundle)
			if err != nil {
				t.Fatal(err)
			}
			v := policy.Judge(im.Change, rulesOfDefault())
			if words := policy.AskWords(v.Ask); !strings.Contains(words, "secrets") || strings.Contains(words, secret) {
				t.Errorf("%+v", v)
			}
		})
	}
}

// What stands around the pack.
func TestHostilePacks(t *testing.T) {
	q := newSandboxed(t)
	work, mirror, base := newRepo(t)
	other := work.commitTree(work.tree(entry{"100644", "other", work.blob("other\n")}), base)
	good := work.commitTree(work.tree(entry{"100644", "new", work.blob("hello\n")}), base)
	header := []byte(signatureV2 + "-" + base + " base\n" + good + " " + ResultRef + "\n\n")
	pack := work.pack(good, base)
	for name, test := range map[string]struct {
		bundle []byte
		taken  bool
	}{
		"gzip": {func() []byte {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			_, err := z.Write(join(header, pack))
			must(t, errors.Join(err, z.Close()))
			return b.Bytes()
		}(), false},
		"an empty pack":                          {join(header, rawPack(t, 0, nil)), false},
		"the result in a second pack":            {join(header, work.pack(other, base), pack), false},
		"a second pack":                          {join(header, pack, work.pack(other, base)), false},
		"a byte behind the pack":                 {join(header, pack, []byte("x")), false},
		"garbage behind the pack":                {join(header, pack, bytes.Repeat([]byte("garbage"), 1<<20)), false},
		"version 3 of a pack":                    {join(header, sealed(append([]byte("PACK\x00\x00\x00\x03"), pack[8:len(pack)-20]...))), true},
		"version 4 of a pack":                    {join(header, sealed(append([]byte("PACK\x00\x00\x00\x04"), pack[8:len(pack)-20]...))), false},
		"wrong checksum":                         {join(header, pack[:len(pack)-20], make([]byte, 20)), false},
		"4 billion objects said":                 {join(header, rawPack(t, 0xffffffff, pack[12:len(pack)-20])), false},
		"an object of 2^60 bytes":                {join(header, rawPack(t, 1, append(packObject(3, 1<<60), 0x78, 0x9c))), false},
		"an object of unknown kind":              {join(header, rawPack(t, 1, append(packObject(5, 1), deflated(t, func(z *zlib.Writer) { z.Write([]byte("x")) })...))), false},
		"a delta without its base":               {join(header, rawPack(t, 1, join(packObject(7, 4), make([]byte, 20), deflated(t, func(z *zlib.Writer) { z.Write([]byte{1, 1, 1, 'x'}) })))), false},
		"a delta that leads before the pack":     {join(header, rawPack(t, 1, join(packObject(6, 4), offset(4000), deflated(t, func(z *zlib.Writer) { z.Write([]byte{1, 1, 1, 'x'}) })))), false},
		"the header said to be of another order": {join([]byte(signatureV2+good+" "+ResultRef+"\n-"+base+" base\n\n"), pack), false},
		"a shallow line":                         {join([]byte(signatureV2+"-"+base+" base\nshallow "+base+"\n"+good+" "+ResultRef+"\n\n"), pack), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, im, err := imported(t, q, mirror, base, test.bundle)
			var r *refusal
			if err != nil && !errors.As(err, &r) {
				t.Fatal(err)
			}
			if (err == nil) != test.taken {
				t.Fatalf("%v, taken should be %t", err, test.taken)
			}
			if err != nil {
				return
			}
			if len(im.Change.Entries) == 0 || im.Tip != good {
				t.Errorf("%+v", im)
			}
			packs, err := os.ReadDir(c.dir + "/repo.git/objects/pack")
			must(t, err)
			if len(packs) > 3 { // pack, index, reverse index
				t.Errorf("the quarantine has %v", packs)
			}
		})
	}
}

// Bombs end within seconds, with words, and cost this process no memory.
func TestBombs(t *testing.T) {
	q := newSandboxed(t)
	_, mirror, base := newRepo(t)
	nested := func(depth int) func() []byte {
		return func() []byte {
			p := newPacker(t)
			id, mode := p.add(objBlob, []byte("x\n")), "100644"
			for range depth {
				id, mode = p.tree(entry{mode, "d", id}), "40000"
			}
			return p.bundle(p.commit(id, base, "deep\n"), base)
		}
	}
	for _, test := range []struct {
		name   string
		bundle func() []byte
		taken  bool // then policy must refuse it
	}{
		{"200,000 nested trees", nested(200_000), false},
		{"2,000 nested trees", nested(2_000), true},
		{"trees that hold one tree twice each", func() []byte { // 2^40 files in 40 trees
			p := newPacker(t)
			id, mode := p.add(objBlob, []byte("x\n")), "100644"
			for range 40 {
				id, mode = p.tree(entry{mode, "a", id}, entry{mode, "b", id}), "40000"
			}
			return p.bundle(p.commit(id, base, "wide and deep\n"), base)
		}, false},
		{"a tree of 300,000 files", func() []byte {
			p := newPacker(t)
			id := p.add(objBlob, []byte("x\n"))
			entries := make([]entry, 300_000)
			for i := range entries {
				entries[i] = entry{"100644", fmt.Sprintf("file-%07d", i), id}
			}
			return p.bundle(p.commit(p.tree(entries...), base, "wide\n"), base)
		}, false},
		{"400,000 objects nobody needs", func() []byte {
			p := newPacker(t)
			for i := range 400_000 {
				p.add(objBlob, []byte(strconv.Itoa(i)))
			}
			return p.bundle(p.commit(p.tree(entry{"100644", "x", p.add(objBlob, []byte("x\n"))}), base, "many\n"), base)
		}, true},
		{"60,000 commits", func() []byte {
			p := newPacker(t)
			tree := p.tree(entry{"100644", "x", p.add(objBlob, []byte("x\n"))})
			tip := base
			for i := range 60_000 {
				tip = p.commit(tree, tip, strconv.Itoa(i))
			}
			return p.bundle(tip, base)
		}, false},
		{"a ladder of merges", func() []byte { // 2^400 ways from the tip to the base
			p := newPacker(t)
			tree := p.tree(entry{"100644", "x", p.add(objBlob, []byte("x\n"))})
			a, b := p.commit(tree, base, "a"), p.commit(tree, base, "b")
			for range 400 {
				a, b = p.commit(tree, a+" "+b, "a"), p.commit(tree, b+" "+a, "b")
			}
			return p.bundle(p.commit(tree, a+" "+b, "tip"), base)
		}, true},
		{"a file of 200 MiB", func() []byte {
			p := newPacker(t)
			id := p.add(objBlob, make([]byte, 200<<20))
			return p.bundle(p.commit(p.tree(entry{"100644", "x", id}), base, "large\n"), base)
		}, false},
		{"zeros", func() []byte {
			return join([]byte(signatureV2+"-"+base+" base\n"+shaA+" "+ResultRef+"\n\n"), zeroBomb(t))
		}, false},
		{"deltas", func() []byte {
			return join([]byte(signatureV2+"-"+base+" base\n"+shaA+" "+ResultRef+"\n\n"), deltaBomb(t))
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			bundle := test.bundle()
			before := resetPeak(t)
			began := time.Now()
			_, im, err := imported(t, q, mirror, base, bundle)
			took, grown := time.Since(began), peak(t)-before
			var r *refusal
			switch {
			case err != nil && !errors.As(err, &r):
				t.Fatal(err)
			case (err == nil) != test.taken:
				t.Errorf("%v, taken should be %t", err, test.taken)
			case err == nil:
				if v := policy.Judge(im.Change, rulesOfDefault()); v.Refusal == nil && len(im.Change.Entries) > 5 {
					t.Errorf("%d paths may be pushed", len(im.Change.Entries))
				}
			case r.Words == "" || len(r.Words) > 600:
				t.Errorf("the words are %q", r.Words)
			}
			t.Logf("bundle of %d bytes: %s, %d MiB more, %v", len(bundle), took.Round(time.Millisecond), grown>>20, err)
			if took > gitTimeout { // seconds where the machine is free
				t.Errorf("it took %s", took)
			}
			if grown > 256<<20 {
				t.Errorf("it cost %d MiB of this process", grown>>20)
			}
		})
	}
}

// resetPeak makes the kernel forget how much memory this process had, and says
// how much it has.
func resetPeak(t *testing.T) int64 {
	t.Helper()
	must(t, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0))
	return peak(t)
}

// peak is the most memory this process had, in bytes.
func peak(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	must(t, err)
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	must(t, err)
	return kib << 10
}

// What a result held on its way and no more at its end is pushed by nobody:
// the pushed commit is made here, of the tree that policy has seen.
func TestOnlyWhatPolicySawIsPushed(t *testing.T) {
	w := newWorld(t)
	g := w.work
	secret := "ghp_" + strings.Repeat("A1b2C3d4", 5)
	g.must("", "git", "checkout", "-q", "-f", w.base)
	g.write("leak.txt", secret+"\n")
	g.write(".github/workflows/evil.yml", "on: push\nname: evil\n")
	g.write("large.bin", strings.Repeat("\x00large", 1<<20))
	on := g.commit("with a leak")
	hidden := []string{
		on, g.must("", "git", "rev-parse", on+":leak.txt"), g.must("", "git", "rev-parse", on+":large.bin"),
		g.must("", "git", "rev-parse", on+":.github/workflows/evil.yml"),
	}
	// A second line of work whose change the merge throws away.
	g.must("", "git", "checkout", "-q", "-b", "side", w.base)
	g.write("side.txt", "AKIA"+strings.Repeat("Q", 16)+"\n")
	side := g.commit("side")
	hidden = append(hidden, side, g.must("", "git", "rev-parse", side+":side.txt"))
	// The merge shows neither of both, but a change of its own.
	g.must("", "git", "checkout", "-q", "-f", w.base)
	g.write("calc/add.go", "package calc\n\nfunc Add(a, b int) int { return a + b }\n")
	g.must("", "git", "add", "-A")
	tree := g.must("", "git", "write-tree")
	tip := g.commitTree(tree, on, side)

	r := w.deliver(w.session(tip, nil))
	c := w.clone(r.Branch)
	if got := c.must("", "git", "rev-list", "--count", w.base+"..HEAD"); got != "1" {
		t.Errorf("%s commits were pushed", got)
	}
	if got := c.must("", "git", "diff", "--name-only", w.base, "HEAD"); got != "calc/add.go" {
		t.Errorf("pushed were %q", got)
	}
	// Not even as an object nobody names.
	dir, err := w.server.GitDir(repoName)
	must(t, err)
	remote := gitDir{t, dir}
	for _, id := range append(hidden, tip) {
		if _, err := remote.run("", "git", "cat-file", "-e", id); err == nil {
			t.Errorf("%s came to the remote: %s", id, g.must("", "git", "cat-file", "-t", id))
		}
	}
	if p := w.pushes(); len(p) != 1 || p[0].New != r.HeadSHA {
		t.Errorf("pushes %+v", p)
	}
	if m := c.must("", "git", "log", "-1", "--format=%B"); strings.Contains(m, secret) {
		t.Errorf("the message tells the secret: %s", m)
	}
}

// A mode that only some programs read as a file's: the tree that policy judged
// is not the tree that would be pushed.
func TestTreesMustBeWrittenAsGitWritesThem(t *testing.T) {
	w := newWorld(t)
	p := newPacker(t)
	b := p.add(objBlob, []byte("hello\n"))
	tree := p.tree(inGitOrder(append(listed(w.work, w.base), entry{"37777777777100644", "a", b}))...)
	tip := p.commit(tree, w.base, "odd\n")
	s := w.sessionOf(w.fixed(), p.bundle(tip, w.base), func(_ *storage.Session, _ *spec.Spec, o *wire.Outcome) { o.Tip, o.Tree = tip, tree })
	w.refused(s, ReasonBundle, "not as git writes them")
	if p := w.pushes(); len(p) != 0 {
		t.Errorf("pushes %+v", p)
	}
}

// An evil merge's own change is judged although it is in neither parent.
func TestEvilMerge(t *testing.T) {
	w := newWorld(t)
	g := w.work
	one := w.fixed()
	g.must("", "git", "checkout", "-q", "-f", w.base)
	g.write("other.txt", "x\n")
	two := g.commit("two")
	g.must("", "git", "checkout", "-q", "-f", one)
	g.write("other.txt", "x\n")
	g.write("evil.txt", "ghp_"+strings.Repeat("A1b2C3d4", 5)+"\n")
	g.must("", "git", "add", "-A")
	tip := g.commitTree(g.must("", "git", "write-tree"), one, two)
	w.refused(w.session(tip, nil), policy.ReasonSecretFound, "evil.txt", "line 1")
	if p := w.pushes(); len(p) != 0 {
		t.Errorf("pushes %+v", p)
	}
}

// A session with such a result ends in words, and GitHub hears of no push.
func TestHostileBundleEndsTheSession(t *testing.T) {
	w := newWorld(t)
	tip := w.fixed()
	for name, bundle := range map[string][]byte{
		"a gitdir file": []byte("gitdir: " + w.mirror + "\n"),
		"nothing":       {},
		"cut":           w.work.bundle(tip, w.base)[:200],
	} {
		s := w.sessionOf(tip, bundle, nil)
		if r := w.refused(s, ReasonBundle); strings.ContainsAny(r.Words, "\x00\x1b") {
			t.Errorf("%s: %q", name, r.Words)
		}
	}
	if p := w.pushes(); len(p) != 0 {
		t.Errorf("pushes %+v", p)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sealed adds a pack's checksum.
func sealed(pack []byte) []byte {
	sum := sha1.Sum(pack)
	return append(pack, sum[:]...)
}

// inGitOrder puts entries into git's order.
func inGitOrder(entries []entry) []entry {
	key := func(e entry) string {
		if e.mode == "40000" {
			return e.name + "/"
		}
		return e.name
	}
	out := append([]entry(nil), entries...)
	for i := range out {
		for j := i; j > 0 && key(out[j]) < key(out[j-1]); j-- {
			out[j], out[j-1] = out[j-1], out[j]
		}
	}
	return out
}

// Kinds of objects in a pack.
const (
	objCommit = 1
	objTree   = 2
	objBlob   = 3
)

// listed are the entries of a tree of g.
func listed(g gitDir, tree string) (out []entry) {
	for _, line := range strings.Split(g.must("", "git", "ls-tree", tree), "\n") {
		meta, name, _ := strings.Cut(line, "\t")
		f := strings.Fields(meta)
		out = append(out, entry{strings.TrimPrefix(f[0], "0"), name, f[2]})
	}
	return out
}

// packer writes a pack to the letter, without git.
type packer struct {
	t    testing.TB
	body bytes.Buffer
	z    *zlib.Writer
	n    uint32
	kept map[string]packed // small objects
}

// packed is an object and those it names.
type packed struct {
	kind    byte
	content []byte
	names   []string
}

func newPacker(t testing.TB) *packer {
	z, err := zlib.NewWriterLevel(nil, zlib.BestSpeed)
	must(t, err)
	return &packer{t: t, z: z, kept: map[string]packed{}}
}

// reachable is a packer of the objects that tip leads to.
func (p *packer) reachable(tip string) *packer {
	out := newPacker(p.t)
	var take func(string)
	take = func(id string) {
		o, ok := p.kept[id]
		if _, had := out.kept[id]; !ok || had {
			return
		}
		out.add(o.kind, o.content, o.names...)
		for _, n := range o.names {
			take(n)
		}
	}
	take(tip)
	return out
}

func (p *packer) add(kind byte, content []byte, names ...string) string {
	h := sha1.New()
	fmt.Fprintf(h, "%s %d\x00", [...]string{objCommit: "commit", objTree: "tree", objBlob: "blob"}[kind], len(content))
	h.Write(content)
	id := hex.EncodeToString(h.Sum(nil))
	if _, had := p.kept[id]; had {
		return id
	}
	if len(content) <= 2<<20 {
		p.kept[id] = packed{kind, content, names}
	}
	p.body.Write(packObject(kind, len(content)))
	p.z.Reset(&p.body)
	_, err := p.z.Write(content)
	must(p.t, errors.Join(err, p.z.Close()))
	p.n++
	return id
}

func (p *packer) tree(entries ...entry) string {
	var b bytes.Buffer
	var names []string
	for _, e := range entries {
		id, err := hex.DecodeString(e.id)
		must(p.t, err)
		fmt.Fprintf(&b, "%s %s\x00%s", e.mode, e.name, id)
		names = append(names, e.id)
	}
	return p.add(objTree, b.Bytes(), names...)
}

// trees adds the paths, all with one content, to what a tree of g holds.
func (p *packer) trees(paths []string, content, onto string, g gitDir) string {
	type dir map[string]any
	root := dir{}
	for _, e := range listed(g, onto) {
		root[e.name] = e
	}
	for _, path := range paths {
		at := root
		parts := strings.Split(path, "/")
		for _, part := range parts[:len(parts)-1] {
			next, ok := at[part].(dir)
			if !ok {
				next = dir{}
				at[part] = next
			}
			at = next
		}
		name := parts[len(parts)-1]
		at[name] = entry{"100644", name, content}
	}
	var write func(dir) string
	write = func(d dir) string {
		var entries []entry
		for name, e := range d {
			switch e := e.(type) {
			case entry:
				entries = append(entries, e)
			case dir:
				entries = append(entries, entry{"40000", name, write(e)})
			}
		}
		return p.tree(inGitOrder(entries)...)
	}
	return write(root)
}

// commit adds one; several parents are parted by spaces.
func (p *packer) commit(tree, parents, message string) string {
	var b strings.Builder
	b.WriteString("tree " + tree + "\n")
	for _, parent := range strings.Fields(parents) {
		b.WriteString("parent " + parent + "\n")
	}
	b.WriteString("author a <a@example.com> 1700000000 +0000\ncommitter a <a@example.com> 1700000000 +0000\n\n" + message)
	return p.add(objCommit, []byte(b.String()), tree)
}

func (p *packer) bundle(tip, base string) []byte {
	return join([]byte(signatureV2+"-"+base+" base\n"+tip+" "+ResultRef+"\n\n"), rawPack(p.t, p.n, p.body.Bytes()))
}
