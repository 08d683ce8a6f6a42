package publish

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What is taken over from the quarantine is not believed.
func TestAdoptChecksWhatGitLeft(t *testing.T) {
	work, bare, base := newRepo(t)
	work.write("a", "x")
	tip := work.commit("a")
	c, im, err := imported(t, light{}, bare, base, work.bundle(tip, base))
	if err != nil {
		t.Fatal(err)
	}
	packs := filepath.Join(c.dir, "repo.git", "objects", "pack")
	pack, idx := filepath.Join(packs, "pack-"+im.Pack+".pack"), filepath.Join(packs, "pack-"+im.Pack+".idx")
	good := map[string][]byte{}
	for _, f := range []string{pack, idx} {
		if good[f], err = os.ReadFile(f); err != nil {
			t.Fatal(err)
		}
	}
	adopt := func() error {
		tr, err := newTrusted(t.TempDir(), bare)
		if err != nil {
			t.Fatal(err)
		}
		return tr.adopt(c.dir, im.Pack)
	}
	if err := adopt(); err != nil {
		t.Fatal(err)
	}
	put := func(f string, content []byte) {
		t.Helper()
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
		if content != nil {
			if err := os.WriteFile(f, content, 0o444); err != nil {
				t.Fatal(err)
			}
		}
	}
	aside := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.WriteFile(aside, good[pack], 0o444); err != nil {
		t.Fatal(err)
	}
	otherPack := rawPack(t, 0, nil)
	for name, change := range map[string]func(){
		"a link instead of the pack":  func() { put(pack, nil); os.Symlink(aside, pack) },
		"a pipe instead of the pack":  func() { put(pack, nil); unix.Mkfifo(pack, 0o644) },
		"a folder":                    func() { put(pack, nil); os.Mkdir(pack, 0o755) },
		"a damaged pack":              func() { put(pack, flip(good[pack])) },
		"a cut pack":                  func() { put(pack, good[pack][:len(good[pack])-3]) },
		"another pack":                func() { put(pack, otherPack) },
		"a damaged index":             func() { put(idx, flip(good[idx])) },
		"the pack as its own index":   func() { put(idx, good[pack]) },
		"an empty index":              func() { put(idx, []byte{}) },
		"no index":                    func() { put(idx, nil) },
		"something before the index":  func() { put(idx, append([]byte{0}, good[idx]...)) },
		"an index of version 1 (old)": func() { put(idx, good[idx][8:]) },
	} {
		t.Run(name, func(t *testing.T) {
			change()
			if err := adopt(); err == nil {
				t.Error("taken over")
			}
			os.RemoveAll(pack)
			os.RemoveAll(idx)
			for f, content := range good {
				if err := os.WriteFile(f, content, 0o444); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	if err := adopt(); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestCommitIsTheSameEveryTime(t *testing.T) {
	_, bare, base := newRepo(t)
	tree, err := mirror(bare).objects(context.Background(), []string{base + "^{tree}"})
	if err != nil {
		t.Fatal(err)
	}
	var shas []string
	for _, zone := range []string{"UTC", "Asia/Kathmandu"} {
		loc, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		tr, err := newTrusted(t.TempDir(), bare)
		if err != nil {
			t.Fatal(err)
		}
		sha, err := tr.commit(context.Background(), tree[0].id, base, "message\n", identity("inspect[bot]", "1+inspect[bot]@users.noreply.github.com"), time.Unix(1_800_000_000, 5).In(loc))
		if err != nil {
			t.Fatal(err)
		}
		shas = append(shas, sha)
	}
	if shas[0] != shas[1] {
		t.Errorf("%s, then %s", shas[0], shas[1])
	}
}

func TestIdentityCannotBreakOut(t *testing.T) {
	got := identity("a\nb<c>\x00", "x>\ncommitter y <z")
	if strings.ContainsAny(got.Name+got.Email, "\n<>\x00") {
		t.Errorf("%q", got)
	}
}

// A machine's configuration, hooks and templates have no say.
func TestQuarantinedRepositoryIsBare(t *testing.T) {
	_, bare, _ := newRepo(t)
	c, err := newCell(light{}, "t", openDir(t), bare)
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.text(context.Background(), nil, 4<<10, "config", "--list", "--show-origin")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		if !strings.HasPrefix(line, "command line:") && !strings.HasPrefix(line, "file:"+quarantineRepo+"/config") {
			t.Errorf("configuration from elsewhere: %s", line)
		}
	}
	if _, err := os.Stat(filepath.Join(c.dir, "repo.git", "hooks")); err == nil {
		t.Error("there are hooks")
	}
	// More output than is read ends the command.
	var b bytes.Buffer
	if _, err := c.git(context.Background(), nil, &b, 10, "config", "--list"); !errors.Is(err, errOverflow) || b.Len() != 10 {
		t.Errorf("%v, %d bytes", err, b.Len())
	}
}
