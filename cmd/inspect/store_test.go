package main

import (
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// What serve is told of the store reaches the node daemon unchanged.
func TestStoreFlags(t *testing.T) {
	parse := func(args ...string) storeFlags {
		var s storeFlags
		f := pflag.NewFlagSet("node", pflag.ContinueOnError)
		s.flags(f)
		if err := f.Parse(args); err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, args := range [][]string{{}, {"--store", "dir"}, {"--store", "zfs", "--zfs-root", "tank/inspect", "--zfs-fill", "70"}} {
		told := parse(args...)
		if diff := cmp.Diff(told, parse(told.args()...)); diff != "" {
			t.Errorf("%q: %s", args, diff)
		}
	}
	for _, args := range [][]string{
		{"--store", "btrfs"}, {"--store", "zfs"}, {"--zfs-root", "tank/inspect"},
		{"--store", "zfs", "--zfs-root", "tank/inspect", "--zfs-fill", "0"}, {"--store", "zfs", "--zfs-root", "tank/inspect", "--zfs-fill", "101"},
	} {
		s := parse(args...)
		if err := s.check(); !errors.As(err, new(usageError)) {
			t.Errorf("%q: %v", args, err)
		}
	}
	zfs := parse("--store", "zfs", "--zfs-root", "tank/inspect")
	if err := zfs.check(); (err == nil) != (os.Geteuid() == 0) {
		t.Errorf("a pool as account %d: %v", os.Geteuid(), err)
	}
}
