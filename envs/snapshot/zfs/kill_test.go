package zfs_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/envs/snapshot"
	"inspect/envs/snapshot/storetest"
	"inspect/envs/snapshot/zfs"
)

const (
	stressSessions = 60 // the node's tests kill a daemon with more
	stressWorkers  = 16
	stressKills    = 5
)

// keeps: every fourth session is not discarded.
func keeps(session int) bool { return session%4 == 0 }

// child is what this program does as the process that is killed: it opens the
// store, sweeps it, and restores and discards the sessions that its standard
// input names. It says what it has done.
func child() int {
	dataset, mounts, _ := strings.Cut(os.Getenv(childEnv), " ")
	ctx := context.Background()
	s, err := zfs.Open(ctx, zfs.Options{Dataset: dataset, Mounts: mounts, Owner: "octocat"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// As the node's callers do: under load zfs-fuse's own programs crash or get
	// I/O errors now and then.
	again := func(fn func() error) (err error) {
		for range 5 {
			if err = fn(); err == nil || errors.Is(err, snapshot.ErrBusy) {
				return err
			}
			time.Sleep(100 * time.Millisecond)
		}
		return err
	}
	if err := again(func() error { return s.Sweep(ctx) }); err != nil && !errors.Is(err, snapshot.ErrBusy) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	work := make(chan int)
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := false
	say := func(err error, what ...any) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			failed = true
			fmt.Fprintln(os.Stderr, err)
			return
		}
		fmt.Println(what...)
	}
	for range stressWorkers {
		wg.Go(func() {
			for n := range work {
				id := storetest.Clone("s" + strconv.Itoa(n))
				err := again(func() error { _, err := s.Restore(ctx, "s1", id, 1<<20); return err })
				say(err, "restored", n)
				if err == nil && !keeps(n) {
					err = again(func() error { return s.Discard(ctx, id) })
					say(err, "discarded", n)
				}
				if err == nil {
					say(nil, "done", n)
				}
			}
		})
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		n, err := strconv.Atoi(in.Text())
		if err != nil {
			return 1
		}
		work <- n
	}
	close(work)
	wg.Wait()
	if failed || s.Close() != nil {
		return 1
	}
	return 0
}

// TestKilled kills the process that has the store open, again and again while
// sixteen workers restore and discard. Afterwards exactly what should be there
// is, and nothing else is mounted or held.
func TestKilled(t *testing.T) {
	p := newPlace(t)
	s := p.open(t, "octocat")
	publish(t, s, "s1", "x")
	must(t, s.Close())
	todo := map[int]bool{}
	var want []string
	for n := range stressSessions {
		todo[n] = true
		if keeps(n) {
			want = append(want, storetest.Clone("s"+strconv.Itoa(n)).String())
		}
	}
	slices.Sort(want)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for kill := range stressKills + 1 {
		// Killed somewhere in its share of the whole.
		after := 1 + random.IntN(2*stressSessions/(stressKills+1))
		if kill == stressKills {
			after = 0 // never
		}
		runChild(t, p, todo, after)
	}
	if len(todo) > 0 {
		t.Fatalf("%d sessions are not done", len(todo))
	}

	s = p.open(t, "octocat")
	must(t, s.Sweep(t.Context()))
	l, err := s.List(t.Context())
	must(t, err)
	var have []string
	for _, c := range l.Clones {
		have = append(have, c.ID.String())
		if got := content(t, c.Path+"/f"); got != "x" {
			t.Errorf("%s has %q", c.ID, got)
		}
	}
	if !slices.Equal(have, want) || len(l.Bases) != 0 || len(l.Snapshots) != 1 || len(l.Foreign) != 0 {
		t.Errorf("clones %q\nwant %q\nbeside them %+v %+v %+v", have, want, l.Bases, l.Snapshots, l.Foreign)
	}
	expected := []string{"base", "image", "reserve", "session", "snapshot", "snapshot/s1", "snapshot/s1@published"}
	var at []string
	for _, id := range want {
		expected = append(expected, "session/"+id)
		at = append(at, p.mounts+"/session/"+id)
	}
	slices.Sort(expected)
	got := datasets(t, p.dataset)
	slices.Sort(got)
	if !slices.Equal(got, expected) {
		t.Errorf("datasets %q\nwant %q", got, expected)
	}
	var mountedAt []string
	for _, m := range mounts(t, p.mounts) {
		mountedAt = append(mountedAt, m.path)
	}
	slices.Sort(mountedAt)
	if !slices.Equal(mountedAt, at) {
		t.Errorf("mounted %q\nwant %q", mountedAt, at)
	}
	dirs, err := os.ReadDir(p.mounts + "/session")
	must(t, err)
	if len(dirs) != len(want) {
		t.Errorf("%d directories for %d clones", len(dirs), len(want))
	}
	if refs := run(t, "zfs", "get", "-H", "-p", "-o", "value", "userrefs", p.dataset+"/snapshot/s1@published"); refs != "0" {
		t.Errorf("the snapshot has %s holds", refs)
	}
}

// runChild has a child do what is left and kills it after so many lines; 0:
// never. What it says is done is taken from todo.
func runChild(t *testing.T, p place, todo map[int]bool, after int) {
	t.Helper()
	var list strings.Builder
	for n := range stressSessions {
		if todo[n] {
			fmt.Fprintln(&list, n)
		}
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+p.dataset+" "+p.mounts)
	cmd.Stdin = strings.NewReader(list.String())
	var words strings.Builder
	cmd.Stderr = &words
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for n := 1; lines.Scan(); n++ {
		if of, ok := strings.CutPrefix(lines.Text(), "done "); ok {
			s, err := strconv.Atoi(of)
			must(t, err)
			delete(todo, s)
		}
		if n == after {
			must(t, cmd.Process.Kill())
		}
	}
	err = cmd.Wait()
	if after == 0 && err != nil {
		t.Fatalf("%v: %s", err, words.String())
	}
	if words.Len() > 0 {
		t.Errorf("a child complains: %s", words.String())
	}
}
