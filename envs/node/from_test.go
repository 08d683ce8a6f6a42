package node_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inspect/envs/node/dial"
	"inspect/envs/snapshot"
	"inspect/envs/wire"
)

// from is a refresh that goes on from an earlier snapshot.
func (w *world) from(id int64, snapshotID, earlier string, setup ...string) wire.Work {
	work := w.refreshWork(id, snapshotID, setup...)
	work.Refresh.From = earlier
	return work
}

// offer gives work and waits for the offer.
func (w *world) offer(work wire.Work) wire.SnapshotOffer {
	w.t.Helper()
	w.plane.give(work)
	select {
	case o := <-w.plane.offers:
		return o
	case r := <-w.plane.results:
		w.t.Fatalf("the refresh failed: %s", r.Words)
	case <-time.After(2 * time.Minute):
		w.t.Fatal("no offer")
	}
	panic("unreachable")
}

// look restores a snapshot for a session, runs a line there and discards it.
func (w *world) look(session, snapshotID, line string) string {
	w.t.Helper()
	grant := w.grant(session, wire.PurposeWork, snapshotID)
	_, err := dial.Restore(w.t.Context(), w.socket, grant)
	must(w.t, err)
	c, _, err := dialSandbox(w.t.Context(), w.socket, grant)
	must(w.t, err)
	out := sh(w.t, c, line)
	must(w.t, c.Close())
	must(w.t, dial.Discard(w.t.Context(), w.socket, grant))
	return out
}

// A refresh goes on from an earlier snapshot: what setup left is there, what
// git tracks is as committed, and the earlier snapshot stays as it was.
func TestRefreshGoesOnFromAnEarlierSnapshot(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.git.commit("main", map[string]string{"gone.txt": "x", "dir/f": "x"})
	setup := `mkdir -p built; date +%N >>built/runs; echo left >>left.txt; touch "$HOME/cache"; mkdir /var/lib/pg && echo data >/var/lib/pg/data`
	first := w.refreshed(1, "snap-1", setup)
	if first.From != "" || first.Phases["checkout"] <= 0 || first.Phases["sync"] != 0 || first.Phases["fsck"] <= 0 {
		t.Errorf("afresh: %+v", first)
	}
	// A file that is no more, a directory that is a file now, and one that is
	// tracked now where setup has left its own.
	w.git.run(w.git.repo, "update-ref", "refs/heads/before", "main")
	clone := t.TempDir()
	w.git.run(clone, "clone", "-q", "-b", "main", w.git.repo, ".")
	w.git.run(clone, "rm", "-rq", "gone.txt", "dir")
	for name, content := range map[string]string{"dir": "a file now", "left.txt": "tracked now"} {
		must(t, os.WriteFile(filepath.Join(clone, name), []byte(content), 0o644))
	}
	w.git.run(clone, "add", "-A")
	w.git.run(clone, "commit", "-qm", "second")
	w.git.run(clone, "push", "-q", "origin", "HEAD:main")

	second := w.offer(w.from(2, "snap-2", "snap-1", strings.Replace(setup, "echo left >>left.txt; ", "", 1)))
	if second.From != "snap-1" || second.Phases["sync"] <= 0 || second.Phases["checkout"] != 0 || second.Commit != w.git.head() {
		t.Errorf("from: %+v", second)
	}
	const line = `wc -l <built/runs; cat left.txt dir 2>/dev/null; echo; ls gone.txt 2>/dev/null; ls $HOME/cache; cat /var/lib/pg/data; git status --porcelain; git rev-parse HEAD; git rev-parse --abbrev-ref @{u}; grep -c __pycache__ .git/info/exclude`
	if got := w.look("s2", "snap-2", line); got != "2\ntracked nowa file now\n/home/agent/cache\ndata\n"+second.Commit+"\norigin/main\n1" {
		t.Errorf("the second has %q", got)
	}
	if got := w.look("s1", "snap-1", line); got != "1\nleft\n\ngone.txt\n/home/agent/cache\ndata\n"+first.Commit+"\norigin/main\n1" {
		t.Errorf("the first has %q", got)
	}

	// What needs no fetch, and a branch of another name.
	work := w.from(3, "snap-3", "snap-2", "true")
	work.Refresh.Commit, work.Refresh.Remote.Branch = first.Commit, "before"
	if third := w.offer(work); third.From != "snap-2" {
		t.Errorf("back: %+v", third)
	}
	if got := w.look("s3", "snap-3", `git status --porcelain; git symbolic-ref --short HEAD; git rev-parse --abbrev-ref @{u}; git rev-parse origin/HEAD; cat built/runs | wc -l`); got != "before\norigin/before\n"+first.Commit+"\n2" {
		t.Errorf("the third has %q", got)
	}
}

// What cannot be gone on from is left alone and the refresh is made afresh, once.
func TestRefreshFallsBackToAfresh(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.refreshed(1, "good", "mkdir built; touch built/earlier")
	w.refreshed(2, "damaged", "mkdir built; touch built/earlier")
	// A disk that loses data: the store's copy is damaged where nobody looks.
	tree := filepath.Join(w.root, "snapshot", "damaged", "tree/work/.git")
	must(t, os.RemoveAll(filepath.Join(tree, "objects")))
	w.git.commit("main", map[string]string{"x": "y"})
	rewritten := w.git.commit("rewritten", map[string]string{"all": "new"}) // without a parent
	once := "mkdir built"                                                   // does not succeed twice over the same files
	for name, c := range map[string]struct {
		work   wire.Work
		change func(*wire.RefreshWork)
	}{
		"damaged":             {w.from(3, "a", "damaged", "true"), nil},
		"unrelated":           {w.from(4, "b", "good", "true"), func(r *wire.RefreshWork) { r.Commit, r.Remote.Branch = rewritten, "rewritten" }},
		"not there":           {w.from(5, "c", "never-was", "true"), nil},
		"other environment":   {w.from(6, "d", "good", "true"), func(r *wire.RefreshWork) { r.Environment = "env-2" }},
		"other configuration": {w.from(7, "e", "good", "true"), func(r *wire.RefreshWork) { r.ConfigDigest = "another" }},
		"setup works once":    {w.from(8, "f", "good", once), nil},
	} {
		t.Run(name, func(t *testing.T) {
			if c.change != nil {
				c.change(c.work.Refresh)
			}
			o := w.offer(c.work)
			if o.From != "" || o.Phases["checkout"] <= 0 {
				t.Errorf("offer %+v", o)
			}
			if got := w.look("s-"+o.Snapshot, o.Snapshot, "ls built/earlier 2>/dev/null; git status --porcelain; git rev-parse HEAD"); got != o.Commit {
				t.Errorf("it has %q", got)
			}
		})
	}
	if got := w.listed("base"); len(got) != 0 {
		t.Errorf("bases are left: %v", got)
	}
}

// A refresh that fails leaves nothing of itself, and the earlier snapshot as it was.
func TestFailedRefreshKeepsTheEarlierSnapshot(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.refreshed(1, "snap-1", "mkdir -p built; echo one >built/f")
	w.git.commit("main", map[string]string{"x": "y"})
	for name, setup := range map[string]string{
		"fails":          "echo two >built/f; echo in vain; exit 3",
		"changes a file": "echo x >>README.md",
		"damages .git":   "rm -rf .git/objects/*",
		// Still there, but not what it was: git status does not see it.
		"corrupts an object": `f=$(git ls-tree HEAD main.go | cut -c13-52); o=.git/objects/$(echo $f | cut -c1-2)/$(echo $f | cut -c3-)
			git cat-file -t $f >/dev/null; [ -e $o ] || { p=$(ls .git/objects/pack/*.pack); mv $p $p.out; rm .git/objects/pack/*.idx; git unpack-objects -q <$p.out; rm $p.out; }
			chmod u+w $o; echo garbage >$o`,
	} {
		t.Run(name, func(t *testing.T) {
			w.plane.give(w.from(2, "snap-2", "snap-1", setup))
			select {
			case r := <-w.plane.results:
				if r.OK || name == "fails" && !strings.Contains(r.Words, "in vain") {
					t.Errorf("result %+v", r)
				}
			case o := <-w.plane.offers:
				t.Errorf("offered: %+v", o)
			case <-time.After(time.Minute):
				t.Fatal("no result")
			}
			for _, kind := range []string{"base", "session", "tmp", "trash"} {
				if got := w.listed(kind); len(got) != 0 {
					t.Errorf("%s holds %v", kind, got)
				}
			}
			if got := w.look("s1", "snap-1", "cat built/f; git status --porcelain; git fsck --no-dangling 2>&1"); got != "one" {
				t.Errorf("the earlier snapshot has %q", got)
			}
		})
	}
}

// inspected looks at a base at the moment it becomes a snapshot.
type inspected struct {
	snapshot.Store
	at func(base string)
}

func (s inspected) Snapshot(ctx context.Context, b snapshot.BaseID, id snapshot.SnapshotID, m snapshot.Meta) (snapshot.Info, error) {
	l, err := s.List(ctx)
	if err != nil {
		return snapshot.Info{}, err
	}
	for _, base := range l.Bases {
		if base.ID == b {
			s.at(base.Path)
		}
	}
	return s.Store.Snapshot(ctx, b, id, m)
}

// Whatever setup and the services started, and however little they care to be
// stopped: nothing of it runs when the snapshot is taken. What PostgreSQL had
// committed is there all the same.
func TestNoSnapshotOfARunningPostgres(t *testing.T) {
	needs(t, "/usr/lib/postgresql")
	w := newWorld(t)
	looked := 0
	w.start(func(o *nodeOptions) {
		o.Store = inspected{o.Store, func(base string) {
			looked++
			for _, p := range processesIn(t, base) {
				t.Errorf("when the snapshot is taken there runs %s", p)
			}
			for _, left := range []string{"lib/pg/postmaster.pid", "lib/pg2/postmaster.pid", "lib/sock/.s.PGSQL.5433", "lib/sock/.s.PGSQL.5433.lock"} {
				if _, err := os.Lstat(filepath.Join(base, left)); err == nil {
					t.Errorf("%s is in the snapshot", left)
				}
			}
			if _, err := os.Lstat(filepath.Join(base, "lib/pg/PG_VERSION")); err != nil {
				t.Error(err)
			}
		}}
	})
	const initdb = "initdb -A trust --locale=C -E UTF8 -D "
	// A second server that no service is, and that outlives what started it.
	work := w.refreshWork(1, "snap-1", initdb+"/var/lib/pg >/dev/null", "mkdir /var/lib/sock; "+initdb+`/var/lib/pg2 >/dev/null &&
		pg_ctl start -w -D /var/lib/pg2 -l /dev/null -o '-c listen_addresses= -c unix_socket_directories=/var/lib/sock -p 5433'`)
	work.Refresh.Services = []wire.Service{{
		Name: "postgres", Ready: "pg_isready -h 127.0.0.1", Stop: "false",
		Command: `trap '' TERM INT QUIT; (trap '' TERM INT QUIT; exec setsid -f postgres -D /var/lib/pg -c listen_addresses=127.0.0.1) ; while :; do sleep 60; done`,
	}}
	work.Refresh.Load = steps([]string{
		`psql -qh 127.0.0.1 postgres -c "create table t as select generate_series(1, 1000) as n"`,
		`psql -qh /var/lib/sock -p 5433 postgres -c "create table t as select generate_series(1, 10) as n"`,
	})
	work.Refresh.Timeout, work.Refresh.Limits.Pids = 3*time.Minute, 512
	w.offer(work)
	if looked != 1 {
		t.Fatalf("%d snapshots", looked)
	}
	c, set, _ := w.serviced(w.grant("s1", wire.PurposeWork, "snap-1"), []wire.Service{{
		Name: "postgres", Command: "postgres -D /var/lib/pg -c listen_addresses=127.0.0.1", Ready: "pg_isready -h 127.0.0.1",
	}})
	if got := shl(t, c, `psql -Atqh 127.0.0.1 postgres -c "select count(*) from t"`); got != "1000" {
		t.Errorf("it has %q rows", got)
	}
	// The look at processes can find some.
	if got := processesIn(t, filepath.Join(w.root, "session")); len(got) == 0 {
		t.Error("a sandbox that runs is not seen")
	}
	must(t, set.Stop(t.Context()))
	must(t, c.Close())
}

// processesIn are the processes, in whatever namespace, that have something of
// dir mounted.
func processesIn(t *testing.T, dir string) (out []string) {
	t.Helper()
	mounts, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	must(t, err)
	for _, m := range mounts {
		if b, err := os.ReadFile(m); err != nil || !strings.Contains(string(b), dir) {
			continue // it has ended, for one
		}
		name, _ := os.ReadFile(filepath.Join(filepath.Dir(m), "comm"))
		out = append(out, m+" "+strings.TrimSpace(string(name)))
	}
	return out
}
