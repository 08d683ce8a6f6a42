package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Where the directory of a sandbox is in an overlay of two file systems, what is
// in it has another device.
func TestFilesOfAnOverlayAreOurs(t *testing.T) {
	if !root {
		t.Skip("only root mounts an overlay")
	}
	dir := t.TempDir()
	must(t, unix.Mount("upper", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"upper", "work", "merged"} {
		must(t, os.Mkdir(at(name), 0o755))
	}
	must(t, unix.Mount("overlay", at("merged"), "overlay", 0, fmt.Sprintf("lowerdir=/usr,upperdir=%s,workdir=%s", at("upper"), at("work"))))
	t.Cleanup(func() { must(t, unix.Unmount(at("merged"), unix.MNT_DETACH)) })
	open := func(path string) (link string, dev uint64) {
		f, err := os.Create(path)
		must(t, err)
		t.Cleanup(func() { f.Close() })
		must(t, os.Remove(path))
		var st unix.Stat_t
		must(t, unix.Fstat(int(f.Fd()), &st))
		return fmt.Sprintf("/proc/self/fd/%d", f.Fd()), uint64(st.Dev)
	}
	var st unix.Stat_t
	must(t, unix.Stat(at("merged"), &st))
	fs, known := systemOf(at("merged"))
	h := held{devices: map[uint64]bool{uint64(st.Dev): true}, systems: map[system]bool{fs: known}}
	link, dev := open(at("merged/file"))
	if dev == uint64(st.Dev) {
		t.Log("files and directories have one device here")
	}
	if !h.ours(link, dev) {
		t.Error("a file of the overlay is not seen")
	}
	if link, dev := open(at("upper/other")); h.ours(link, dev) {
		t.Error("a file elsewhere counts")
	}
}
