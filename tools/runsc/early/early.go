// Package early is initialised before gVisor's packages, of which there are 250:
// Go does so in the order of their import paths, as far as those they import
// allow. So this module's path is before theirs, and the package imports next to
// nothing.
package early

import (
	"runtime"
	"slices"
	"syscall"
	"unsafe"
)

// GCPercent is what debug.SetGCPercent was at the start. It is off now.
var GCPercent int

//go:linkname setGCPercent runtime/debug.setGCPercent
func setGCPercent(int32) int32

//go:linkname arguments os.runtime_args
func arguments() []string

func init() {
	// What boot executes while it may not see any other program, to give up
	// /proc by one who still has the right to: a process of two system calls.
	if args := arguments(); len(args) == 4 && slices.Equal(args[1:], []string{"umount", "--sync-fd=3", "/proc"}) {
		syscall.Exit(umount(args[3]))
	}
	GCPercent = int(setGCPercent(-1))
	useHugePages()
}

// umount unmounts a directory when it is told to by a byte, and returns its exit status.
func umount(dir string) int {
	if n, err := syscall.Read(3, make([]byte, 1)); n != 1 || err != nil {
		return 1
	}
	if syscall.Unmount(dir, syscall.MNT_DETACH) != nil {
		return 1
	}
	return 0
}

const (
	hugePage = 2 << 20
	heap     = 24 << 20 // more than a start needs
	collapse = 25       // MADV_COLLAPSE, Linux 6.1: madvise(2)
)

// block is what useHugePages has the heap grow by.
var block []byte

// useHugePages has the heap lie in huge pages where the machine gives them to those
// who ask. A process touches thousands of pages for the first time when it starts,
// up to 17 MB in gVisor's kernel, and each costs up to 25 µs on a virtual machine.
func useHugePages() {
	block = make([]byte, 1) // lies in the page in use
	first := address(block) &^ (hugePage - 1)
	block = make([]byte, heap)
	// It works as well without: then it starts in the time it would have taken.
	_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, first, address(block)+heap-first, syscall.MADV_HUGEPAGE)
	_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, first, hugePage, collapse)
	block = nil
	runtime.GC() // frees the block
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
