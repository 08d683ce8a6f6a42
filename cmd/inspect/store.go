package main

import (
	"context"
	"log/slog"
	"os"
	"strconv"

	"github.com/spf13/pflag"

	"inspect/envs/snapshot"
	"inspect/envs/snapshot/dir"
	"inspect/envs/snapshot/zfs"
)

// The kinds of stores.
const (
	storeDir = "dir"
	storeZFS = "zfs"
)

// storeFlags say where snapshots and clones are kept.
type storeFlags struct {
	Kind    string // empty: storeDir
	Dataset string
	Fill    int
}

func (s *storeFlags) flags(f *pflag.FlagSet) {
	f.StringVar(&s.Kind, "store", storeDir, "where snapshots are kept: dir, a directory on any filesystem, or zfs, a pool: restores take no longer for large repositories, and disk limits are hard")
	f.StringVar(&s.Dataset, "zfs-root", "", "POOL/DATASET below which --store zfs keeps everything; made if the pool is there")
	f.IntVar(&s.Fill, "zfs-fill", 80, "how full the pool may be, in percent, for something new to be made in it")
}

func (s *storeFlags) check() error {
	switch {
	case s.Kind != "" && s.Kind != storeDir && s.Kind != storeZFS:
		return usagef("--store: expected dir or zfs, but found %q", s.Kind)
	case s.Kind == storeZFS && s.Dataset == "":
		return usagef("--store zfs needs --zfs-root POOL/DATASET")
	case s.Kind != storeZFS && s.Dataset != "":
		return usagef("--zfs-root is for --store zfs")
	case s.Kind == storeZFS && (s.Fill < 1 || s.Fill > 100):
		return usagef("--zfs-fill: expected 1 to 100 percent, but found %d", s.Fill)
	case s.Kind == storeZFS && os.Geteuid() != 0:
		return usagef("--store zfs needs root: only root may mount")
	}
	return nil
}

// args are the flags for another of this program's commands.
func (s storeFlags) args() []string {
	if s.Kind != storeZFS {
		return nil
	}
	return []string{"--store", s.Kind, "--zfs-root", s.Dataset, "--zfs-fill", strconv.Itoa(s.Fill)}
}

// erase removes all that an installation has in a pool; the trees of a directory
// go with it.
func (s storeFlags) erase(ctx context.Context, root, owner string) error {
	if s.Kind != storeZFS {
		return nil
	}
	return zfs.Erase(ctx, zfs.Options{Dataset: s.Dataset, Mounts: root, Owner: owner, Fill: s.Fill})
}

// open opens the store; its trees are below root.
func (s storeFlags) open(ctx context.Context, root, owner string, log *slog.Logger) (snapshot.Store, error) {
	if s.Kind == storeZFS {
		return zfs.Open(ctx, zfs.Options{Dataset: s.Dataset, Mounts: root, Owner: owner, Fill: s.Fill, Log: log})
	}
	return dir.Open(dir.Options{Root: root, Owner: owner, Log: log})
}
