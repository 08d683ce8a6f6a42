package node_test

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"inspect/envs/node/dial"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// sh runs a shell line in a sandbox and returns its output.
func sh(t *testing.T, c *stream.Client, line string) string {
	t.Helper()
	var out bytes.Buffer
	exit, err := c.Run(t.Context(), stream.Exec{Argv: []string{"sh", "-c", line}, Stdout: &out, Stderr: &out})
	if err != nil || exit.Code != 0 {
		t.Fatalf("%s: %+v, %v\n%s", line, exit, err, out.String())
	}
	return strings.TrimSpace(out.String())
}

func TestLifeOfAnEnvironment(t *testing.T) {
	w := newWorld(t)
	w.start()
	ctx := t.Context()
	offer := w.refreshed(7, "snap-1", "mkdir built && echo one > built/out", "echo warm > $HOME/cache")
	if offer.Work != 7 || offer.Snapshot != "snap-1" || offer.Commit != w.git.head() || offer.Store != storeName() || offer.Bytes == 0 || offer.ConfigDigest != "digest" {
		t.Errorf("offer = %+v", offer)
	}
	for _, phase := range []string{"fetch", "checkout", "setup", "scan", "snapshot", "proof"} {
		if offer.Phases[phase] <= 0 {
			t.Errorf("no duration of phase %s: %v", phase, offer.Phases)
		}
	}
	if got := w.listed("session"); len(got) != 0 {
		t.Errorf("after the proof there is %v", got)
	}

	grant := w.grant("s1", wire.PurposeWork, "snap-1")
	reply, err := dial.Restore(ctx, w.socket, grant)
	must(t, err)
	if reply.Commit != offer.Commit || reply.Store != storeName() || !strings.HasPrefix(reply.Tier, "bubblewrap ") || reply.Limits == "" || reply.Duration <= 0 {
		t.Errorf("reply = %+v", reply)
	}
	again, err := dial.Restore(ctx, w.socket, grant)
	if err != nil || again.Commit != reply.Commit {
		t.Errorf("repeated: %+v, %v", again, err)
	}

	c, ends, err := dialSandbox(ctx, w.socket, grant)
	must(t, err)
	if got := sh(t, c, "pwd; cat built/out $HOME/cache; git rev-parse HEAD; git status --porcelain; git symbolic-ref --short HEAD; git rev-parse --abbrev-ref @{u}"); got != "/workspace\none\nwarm\n"+offer.Commit+"\nmain\norigin/main" {
		t.Errorf("in the sandbox: %q", got)
	}
	// Drift: a commit that came after the snapshot, brought by the mirror.
	later := w.git.commit("main", map[string]string{"new.txt": "later"})
	w.plane.give(wire.Work{ID: 8, Kind: wire.WorkFetch, Fetch: &wire.FetchWork{Remote: w.refreshWork(0, "").Refresh.Remote, Commit: later}})
	if r := <-w.plane.results; !r.OK {
		t.Fatalf("fetch: %s", r.Words)
	}
	sh(t, c, "git fetch -q --no-tags /run/inspect/mirror.git "+later+" && git checkout -q -B inspect/work "+later+" && test -f new.txt")
	if got := sh(t, c, "touch /run/inspect/mirror.git/x 2>/dev/null || echo refused"); got != "refused" {
		t.Error("the sandbox can write to the mirror")
	}
	// Nothing secret is in the environment or the files.
	if got := sh(t, c, "env; cat /run/inspect/mirror.git/config .git/config; grep -rl canary /workspace /home /run /tmp /etc 2>/dev/null | head -3; true"); strings.Contains(got, "canary") {
		t.Errorf("the sandbox sees a token: %s", got)
	}
	must(t, c.Close())
	select {
	case _, told := <-ends:
		if !told {
			t.Error("the sandbox's end was not told")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("no end")
	}

	// A verification sees the snapshot, not the work.
	verify := w.grant("s1", wire.PurposeVerify, "snap-1")
	_, err = dial.Restore(ctx, w.socket, verify)
	must(t, err)
	v, _, err := dialSandbox(ctx, w.socket, verify)
	must(t, err)
	if got := sh(t, v, "git rev-parse HEAD; ls"); strings.Contains(got, "new.txt") || !strings.HasPrefix(got, offer.Commit) {
		t.Errorf("the second clone has the first's work: %q", got)
	}
	// Discard ends the sandbox that still runs.
	for range 2 {
		must(t, dial.Discard(ctx, w.socket, grant))
		must(t, dial.Discard(ctx, w.socket, verify))
	}
	if err := v.Ready(ctx); err == nil {
		<-v.Done()
	}
	if got := w.listed("session"); len(got) != 0 {
		t.Errorf("after discard: %v", got)
	}
	if w.plane.tokens != 2 { // one for each fetch that was needed
		t.Errorf("%d tokens were asked for", w.plane.tokens)
	}
}

func TestRefreshAgainOffersTheSame(t *testing.T) {
	w := newWorld(t)
	stop := w.start()
	first := w.refreshed(1, "snap-1", "date +%N > built-at; mkdir built; date +%N > built/at")
	grant := w.grant("s1", wire.PurposeWork, "snap-1")
	read := func() string {
		_, err := dial.Restore(t.Context(), w.socket, grant)
		must(t, err)
		b, err := os.ReadFile(filepath.Join(w.tree("session", work("s1").String()), "work/built/at"))
		must(t, err)
		must(t, dial.Discard(t.Context(), w.socket, grant))
		return string(b)
	}
	before := read()
	again := w.refreshed(1, "snap-1", "date +%N > built-at; mkdir built; date +%N > built/at")
	if again.Commit != first.Commit || again.Bytes != first.Bytes || again.Phases["setup"] != 0 {
		t.Errorf("repeated: %+v", again)
	}
	// The same after a restart: the daemon died before its offer arrived.
	stop()
	w.start()
	w.refreshed(1, "snap-1", "date +%N > built-at; mkdir built; date +%N > built/at")
	if after := read(); after != before {
		t.Error("the snapshot was built again")
	}
	// The id with another commit is refused, and what is there stays.
	w.git.commit("main", map[string]string{"x": "y"})
	w.plane.give(w.refreshWork(1, "snap-1"))
	if r := <-w.plane.results; r.OK || !strings.Contains(r.Words, "something else") {
		t.Errorf("another commit under the same id: %+v", r)
	}
	if after := read(); after != before {
		t.Error("the snapshot was replaced")
	}
}

func TestSetupsUntrackedFilesNeverBecomeAChange(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.refreshed(1, "snap-1", `mkdir "odd [dir]*"; touch "odd [dir]*/f" "a b " 'back\slash' '#hash' '!bang' coverage.out`)
	grant := w.grant("s1", wire.PurposeWork, "snap-1")
	_, err := dial.Restore(t.Context(), w.socket, grant)
	must(t, err)
	c, _, err := dialSandbox(t.Context(), w.socket, grant)
	must(t, err)
	defer c.Close()
	if got := sh(t, c, "touch 'odd d' coverage.outer; git status --porcelain; ls"); !strings.Contains(got, "coverage.outer") || strings.Count(got, "?? ") != 2 || !strings.Contains(got, "#hash") {
		t.Errorf("git status: %q", got)
	}
}

func TestLeftoversAreGone(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.refreshed(1, "snap-1",
		`mkdir -p $HOME/pg built && echo 7 > $HOME/pg/postmaster.pid && touch .git/index.lock .git/refs/heads/main.lock && mkfifo built/fifo`,
		`(sleep 1000 & setsid sleep 1000 &) >/dev/null 2>&1`)
	_, err := dial.Restore(t.Context(), w.socket, w.grant("s1", wire.PurposeWork, "snap-1"))
	must(t, err)
	tree := w.tree("session", work("s1").String())
	err = filepath.WalkDir(tree, func(p string, d os.DirEntry, err error) error {
		if name := d.Name(); name == "postmaster.pid" || strings.HasSuffix(name, ".lock") || name == "fifo" {
			t.Errorf("%s is still there", p)
		}
		return err
	})
	must(t, err)
}

func TestFailedRefreshSaysWhyAndLeavesNothing(t *testing.T) {
	w := newWorld(t)
	w.start()
	for name, test := range map[string]struct {
		setup  []string
		change func(*wire.Work)
		words  []string
		not    string
	}{
		"exit status": {
			setup: []string{"true", "echo first line; echo token ghs_0123456789abcdefABCDEF0123456789abcd >&2; exit 3"},
			words: []string{"setup command 2 of 2", "exit status 3", "first line"}, not: "ghs_0123456789",
		},
		"not there":           {setup: []string{"no-such-program-here"}, words: []string{"exit status 127", "no-such-program-here"}},
		"killed":              {setup: []string{"kill -9 $$"}, words: []string{"SIGKILL"}},
		"changes a file":      {setup: []string{"echo x >> README.md"}, words: []string{"setup changed files of the repository: README.md"}},
		"deletes a file":      {setup: []string{"rm main.go"}, words: []string{"main.go"}},
		"commits":             {setup: []string{"git -c user.name=x -c user.email=x@example.com commit -q --allow-empty -m x"}, words: []string{"must not commit"}},
		"deletes .git":        {setup: []string{"rm -rf .git"}, words: []string{"git status"}},
		"damages .git":        {setup: []string{"rm -rf .git/objects/*"}, words: []string{"failed"}},
		"name with newline":   {setup: []string{"touch 'a\nb'"}, words: []string{"line break"}},
		"too deep":            {setup: []string{"p=built; for i in $(seq 600); do p=$p/d; done; mkdir -p $p"}, words: []string{"nested too deeply"}},
		"takes too long":      {setup: []string{"sleep 600"}, change: func(w *wire.Work) { w.Refresh.Timeout = 3 * time.Second }, words: []string{"longer than 3s", "was stopped while in phase"}},
		"no such commit":      {change: func(w *wire.Work) { w.Refresh.Commit = strings.Repeat("ab", 20) }, words: []string{"git fetch"}},
		"elsewhere":           {change: func(w *wire.Work) { w.Refresh.Remote.URL = "https://example.com/x.git" }, words: []string{"not below"}},
		"a file":              {change: func(w *wire.Work) { w.Refresh.Remote.URL = "file:///etc" }, words: []string{"not below"}},
		"odd branch":          {change: func(w *wire.Work) { w.Refresh.Remote.Branch = "--upload-pack=x" }, words: []string{"branch"}},
		"bad snapshot id":     {change: func(w *wire.Work) { w.Refresh.Snapshot = "../x" }, words: []string{"not a valid name"}},
		"unknown kind":        {change: func(w *wire.Work) { w.Kind = "dance" }, words: []string{"dance"}},
		"too many setup":      {setup: make([]string, 100), words: []string{"at most 64"}},
		"setup with NUL byte": {setup: []string{"echo \x00"}, words: []string{"zero byte"}},
	} {
		t.Run(name, func(t *testing.T) {
			work := w.refreshWork(1, "snap-x", test.setup...)
			if test.change != nil {
				test.change(&work)
			}
			w.plane.give(work)
			select {
			case r := <-w.plane.results:
				if r.OK {
					t.Error("reported as done")
				}
				for _, want := range test.words {
					if !strings.Contains(r.Words, want) {
						t.Errorf("words lack %q: %s", want, r.Words)
					}
				}
				if test.not != "" && strings.Contains(r.Words, test.not) {
					t.Errorf("words tell a secret: %s", r.Words)
				}
			case o := <-w.plane.offers:
				t.Errorf("offered: %+v", o)
			case <-time.After(60 * time.Second):
				t.Fatal("no result")
			}
			for _, kind := range []string{"base", "snapshot", "session", "tmp", "trash"} {
				if got := w.listed(kind); len(got) != 0 {
					t.Errorf("%s holds %v", kind, got)
				}
			}
		})
	}
}

func TestRefusedOfferIsRemoved(t *testing.T) {
	w := newWorld(t)
	w.plane.refuse = true
	w.start()
	w.refreshed(1, "snap-1")
	until(t, "the refused snapshot is gone", func() bool { return len(w.listed("snapshot")) == 0 })
}

func TestOfferWaitsForTheControlPlane(t *testing.T) {
	w := newWorld(t)
	w.start()
	// While it is away for everybody but who asks for work and tokens, a
	// restore and a refresh go on; the offer comes when it is back.
	w.plane.give(w.refreshWork(1, "snap-1", "touch /workspace/.git/marker; while [ ! -e $HOME/go ]; do sleep 0.02; done"))
	base := w.tree("base", "snap-1")
	until(t, "setup runs", func() bool { _, err := os.Stat(filepath.Join(base, "work/.git/marker")); return err == nil })
	w.plane.set(func(p *plane) { p.down = true })
	must(t, os.WriteFile(filepath.Join(base, "home/go"), nil, 0o644))
	until(t, "the snapshot is there", func() bool { return len(w.listed("snapshot")) == 1 && len(w.listed("session")) == 0 })
	_, err := dial.Restore(t.Context(), w.socket, w.grant("s1", wire.PurposeWork, "snap-1"))
	must(t, err)
	w.plane.set(func(p *plane) { p.down = false })
	select {
	case <-w.plane.offers:
	case <-time.After(30 * time.Second):
		t.Fatal("never offered")
	}
}

// Refreshes of one environment never overlap; restores go on meanwhile.
func TestRefreshesOfOneEnvironmentDoNotOverlap(t *testing.T) {
	w := newWorld(t)
	w.start(func(o *nodeOptions) { o.Refreshes = 4 })
	w.refreshed(1, "snap-1")
	wait := "touch $HOME/here; while [ ! -e $HOME/go ]; do sleep 0.02; done"
	home := func(id, name string) string { return filepath.Join(w.tree("base", id), "home", name) }
	there := func(id string) bool { _, err := os.Stat(home(id, "here")); return err == nil }
	w.plane.give(w.refreshWork(2, "snap-2", wait))
	until(t, "the second refresh runs", func() bool { return there("snap-2") })
	w.plane.give(w.refreshWork(3, "snap-3", wait))
	other := w.refreshWork(4, "snap-4", wait)
	other.Refresh.Environment = "env-2"
	w.plane.give(other)
	until(t, "that of another environment runs", func() bool { return there("snap-4") })
	if there("snap-3") {
		t.Error("two refreshes of one environment run at the same time")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := dial.Restore(ctx, w.socket, w.grant("s1", wire.PurposeWork, "snap-1"))
	must(t, err)
	for _, id := range []string{"snap-2", "snap-4"} {
		must(t, os.WriteFile(home(id, "go"), nil, 0o644))
	}
	until(t, "the third refresh runs", func() bool { return there("snap-3") })
	must(t, os.WriteFile(home("snap-3", "go"), nil, 0o644))
	for range 3 {
		select {
		case <-w.plane.offers:
		case r := <-w.plane.results:
			t.Error(r.Words)
		case <-time.After(30 * time.Second):
			t.Fatal("no offer")
		}
	}
}

// The token goes to the git host and is not carried on by a redirect.
func TestRedirectIsNotFollowed(t *testing.T) {
	w, _ := newFakeWorld(t)
	other := newGitHost(t)
	w.git.mu.Lock()
	w.git.redirect = other.srv.URL
	w.git.mu.Unlock()
	w.plane.give(wire.Work{ID: 1, Kind: wire.WorkFetch, Fetch: &wire.FetchWork{
		Remote: w.refreshWork(0, "").Refresh.Remote, Commit: w.git.head(),
	}})
	if r := <-w.plane.results; r.OK || strings.Contains(r.Words, "canary") {
		t.Errorf("result: %+v", r)
	}
	if other.requests != 0 {
		t.Errorf("%d requests reached the other host", other.requests)
	}
}

// A commit no branch leads to any more is fetched by its id; one that is there
// costs no request; a mirror with a killed git's locks or damaged beyond use is
// put right.
func TestMirrorFetches(t *testing.T) {
	w, f := newFakeWorld(t)
	orphan := w.git.commit("gone", map[string]string{"x": "y"})
	w.git.run(w.git.repo, "update-ref", "-d", "refs/heads/gone")
	fetch := func(commit string, f *fakeNode) {
		t.Helper()
		w.plane.give(wire.Work{ID: 1, Kind: wire.WorkFetch, Fetch: &wire.FetchWork{Remote: w.refreshWork(0, "").Refresh.Remote, Commit: commit}})
		if r := <-w.plane.results; !r.OK {
			t.Fatalf("fetch: %s", r.Words)
		}
	}
	fetch(w.git.head(), f)
	fetch(orphan, f)
	requests := w.git.requests
	fetch(orphan, f)
	fetch(w.git.head(), f)
	if w.git.requests != requests {
		t.Errorf("%d requests for what was there", w.git.requests-requests)
	}
	mirror := filepath.Join(w.root, "mirrors", "4242.git")
	for _, broken := range []func(){
		func() {
			for _, p := range []string{"refs/heads/main.lock", "packed-refs.lock", "HEAD.lock", "objects/pack/tmp_pack_x"} {
				must(t, os.WriteFile(filepath.Join(mirror, p), nil, 0o644))
			}
		},
		func() { must(t, os.Remove(filepath.Join(mirror, "HEAD"))) },
	} {
		f.stop()
		broken()
		commit := w.git.commit("main", map[string]string{"more": time.Now().String()})
		f = w.startFake()
		fetch(commit, f)
		w.git.run(mirror, "cat-file", "-e", commit+"^{tree}")
		w.ownedByMirrors(mirror)
		for _, p := range []string{"refs/heads/main.lock", "objects/pack/tmp_pack_x"} {
			if _, err := os.Lstat(filepath.Join(mirror, p)); err == nil {
				t.Errorf("%s is still there", p)
			}
		}
	}
}

// A fetch says how far the commit is from a snapshot's.
func TestFetchCountsTheDrift(t *testing.T) {
	w, _ := newFakeWorld(t)
	since := w.git.head()
	fetch := func(branch, since, commit string) *wire.Drift {
		t.Helper()
		remote := w.refreshWork(0, "").Refresh.Remote
		remote.Branch = branch
		w.plane.give(wire.Work{ID: 1, Kind: wire.WorkFetch, Fetch: &wire.FetchWork{Remote: remote, Commit: commit, Since: since}})
		r := <-w.plane.results
		if !r.OK {
			t.Fatalf("fetch: %s", r.Words)
		}
		return r.Drift
	}
	if d := fetch("main", "", since); d != nil {
		t.Errorf("nobody asked: %+v", d)
	}
	// Two more on the branch; a rewritten branch that leaves them out; one that
	// has nothing to do with it.
	for i := range 2 {
		w.git.commit("main", map[string]string{"x": strconv.Itoa(i)})
	}
	later := w.git.head()
	w.git.run(w.git.repo, "update-ref", "refs/heads/rewritten", since)
	rewritten := w.git.commit("rewritten", map[string]string{"y": "z"})
	other := w.git.commit("other", map[string]string{"z": "z"})
	for _, c := range []struct {
		name, branch, since, commit string
		want                        wire.Drift
	}{
		{"the same", "main", since, since, wire.Drift{}},
		{"forward", "main", since, later, wire.Drift{Commits: 2}},
		{"back", "main", later, since, wire.Drift{Behind: 2}},
		{"rewritten", "rewritten", later, rewritten, wire.Drift{Commits: 1, Behind: 2}},
		{"unrelated", "other", later, other, wire.Drift{Unrelated: true}},
		{"never seen", "main", strings.Repeat("0a", 20), later, wire.Drift{Unrelated: true}},
	} {
		if got := fetch(c.branch, c.since, c.commit); got == nil || *got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	if d := fetch("main", "--all", later); d != nil {
		t.Errorf("since what is no commit: %+v", d)
	}
}

// ownedByMirrors looks whether all in a mirror was made by the mirrors' account,
// and nothing by a daemon that is root.
func (w *world) ownedByMirrors(mirror string) {
	w.t.Helper()
	if os.Geteuid() != 0 {
		return // one account for everything
	}
	sandboxes, _ := sandboxAccount()
	must(w.t, filepath.WalkDir(mirror, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		if uid := int(info.Sys().(*syscall.Stat_t).Uid); uid != sandboxes+4 {
			w.t.Errorf("%s is of account %d", path, uid)
		}
		return nil
	}))
}
