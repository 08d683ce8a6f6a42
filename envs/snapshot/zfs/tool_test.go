package zfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inspect/envs/proc"
	"inspect/envs/snapshot"
)

// What zfs-fuse 0.7.0 and OpenZFS 2.1 print.
func TestMeaning(t *testing.T) {
	for said, want := range map[string]error{
		"cannot open 'tank/x': dataset does not exist":                                                                                         snapshot.ErrNotFound,
		"cannot open 'tank': no such pool":                                                                                                     snapshot.ErrNotFound,
		"could not find any snapshots to destroy; check snapshot names.":                                                                       snapshot.ErrNotFound,
		"cannot create 'tank/x': dataset already exists":                                                                                       snapshot.ErrExists,
		"cannot hold 'tank/x@s': tag already exists on this dataset":                                                                           snapshot.ErrExists,
		"cannot mount 'tank/x': filesystem already mounted":                                                                                    snapshot.ErrExists,
		"cannot destroy 'tank/x': dataset is busy":                                                                                             snapshot.ErrBusy,
		"umount: /m/x: target is busy.\ncannot unmount '/m/x': umount failed: umount child process failed":                                     snapshot.ErrBusy,
		"cannot destroy 'tank/x@s': snapshot has dependent clones\nuse '-R' to destroy the following datasets:":                                errDependent,
		"cannot destroy 'tank/x': filesystem has children\nuse '-r' to destroy the following datasets:\ntank/x@":                               errDependent,
		"cannot create 'tank/x': out of space":                                                                                                 snapshot.ErrNoSpace,
		"cannot release 'inspect' from 'tank/x@s': no such tag on this dataset":                                                                errNoTag,
		"unrecognized command 'version'\nusage: zfs command args ...":                                                                          errUnknown,
		"connect: Connection refused\nPlease make sure that the zfs-fuse daemon is running.\ninternal error: failed to initialize ZFS library": snapshot.ErrUnavailable,
		"The ZFS modules are not loaded.\nTry running '/sbin/modprobe zfs' as root to load them.":                                              snapshot.ErrUnavailable,
		"cannot open 'tank/x': pool I/O is currently suspended":                                                                                snapshot.ErrUnavailable,
		"cannot set property for 'tank/x': size is less than current used or reserved space":                                                   errLess,
		"cannot create 'tank/busybody': invalid character ' ' in name":                                                                         nil,
	} {
		if got := meaning(said); !errors.Is(got, want) && got != want {
			t.Errorf("%q means %v, want %v", said, got, want)
		}
	}
}

func TestParseIsStrict(t *testing.T) {
	props := []string{"used", propOwner}
	got, err := parse("tank/a\tused\t12\t-\ntank/a\tio.inspect:owner\tocto cat\tinherited from tank\ntank/a@s\tused\t0\t-\n", props)
	if err != nil || len(got) != 2 || got["tank/a"][propOwner] != (value{"octo cat", "inherited from tank"}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{
		"tank/a\tused\t12\n", "tank/a\tused\t1\t2\t-\n", "\tused\t12\t-\n", "tank/a\tother\t12\t-\n", "\n",
		"tank/a\tused\t12\t-\ntank/a\tused\t13\t-\n", "tank/a used 12 -\n",
	} {
		if got, err := parse(bad, props); err == nil {
			t.Errorf("%q was understood as %v", bad, got)
		}
	}
	if _, err := referenced(map[string]value{"referenced": {"1.5M", "-"}}); err == nil {
		t.Error("a size for people was taken for a number")
	}
	if !onlyMissing("cannot open 'tank/a': dataset does not exist\ncannot open 'tank/b': dataset does not exist\n") ||
		onlyMissing("cannot open 'tank/a': dataset does not exist\ninternal error\n") || onlyMissing("") {
		t.Error("what a get complained of is not understood")
	}
}

// A mark never passes what a property can hold, whatever was left out.
func TestMarksFit(t *testing.T) {
	a := about{Created: time.Now(), LeftOutCount: 1000}
	for i := range snapshot.MaxLeftOut {
		a.LeftOut = append(a.LeftOut, fmt.Sprint(i)+strings.Repeat("\x01<", 98))
	}
	argv, err := marks("octocat", a)
	if err != nil {
		t.Fatal(err)
	}
	for _, arg := range argv {
		if len(arg) > len(propAbout)+1+valueBytes || strings.ContainsAny(arg, "\n\t") {
			t.Errorf("%d bytes: %.80q", len(arg), arg)
		}
	}
	a = about{Meta: snapshot.Meta{Environment: strings.Repeat("x", valueBytes)}}
	if _, err := marks("octocat", a); err == nil {
		t.Error("a mark that is too large was made")
	}
}

// A pool that is suspended answers nothing: a call ends all the same, a while
// after its context or by itself, with words for who has to do something.
func TestSuspendedPool(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "zfs")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	for name, ends := range map[string]bool{"by itself": false, "after its context": true} {
		t.Run(name, func(t *testing.T) {
			clock := proc.NewFake(time.Now())
			run := tool{program: program, clock: clock, locks: []*os.File{lock}, slots: make(chan struct{}, 1)}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error)
			go func() {
				_, err := run.run(ctx, "clone", "tank/a@s", "tank/b")
				done <- err
			}()
			wait := func(n int) {
				if err := clock.BlockUntil(t.Context(), n); err != nil {
					t.Fatal(err)
				}
			}
			wait(1)
			// Another waits for its turn.
			second, stop := context.WithCancel(t.Context())
			stop()
			if _, err := run.run(second, "list"); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "zpool status") {
				t.Errorf("one that had no turn: %v", err)
			}
			if ends {
				cancel()
				wait(2)
				clock.Advance(endTime)
			} else {
				clock.Advance(commandTime)
			}
			err := <-done
			if !errors.Is(err, snapshot.ErrUnavailable) || errors.Is(err, context.Canceled) != ends || !strings.Contains(err.Error(), "zpool clear") {
				t.Errorf("it ended with: %v", err)
			}
		})
	}
}
