// Program runsc is gVisor's runsc with what a sandbox of Inspect's needs of it,
// started with less work. Inspect runs it as the sandbox's user, who is not root in
// any user namespace. gVisor's own program starts each of its processes twice
// then: once to wait for its user, and again to give up rights. Go can give
// them up in all threads of a process that runs, and gVisor does so for root.
//
// Its system-call filters, which take it long, are compiled by make setup. The same
// program works without (then it compiles at each start), and Inspect works with
// gVisor's own. Package early saves most of the page faults.
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"first/runsc/early"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/version"
)

func main() {
	if slices.Equal(os.Args[1:], []string{"compile-filter"}) {
		text, err := compileFilters()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Print(text)
		return
	}
	_ = version.Version() // links the variable that the build sets
	// gVisor leaves its kernel capabilities over files. The files of a sandbox are
	// its user's, who the kernel is: it needs none.
	*sentrycmd.DirectfsSandboxLinuxCaps = specs.LinuxCapabilities{}
	startWithoutCollecting()
	switch {
	case slices.Contains(os.Args, "boot"), slices.Contains(os.Args, "gofer"):
		useFilters()
	case slices.Contains(os.Args, "run"), slices.Contains(os.Args, "exec"):
		runtime.GOMAXPROCS(1) // it does one thing after the other
	}
	os.Args = withoutWait(os.Args)
	cli.Run(nil, map[util.SubCommand]string{
		new(cmd.Run): "", new(cmd.Exec): "", new(sentrycmd.Boot): "", new(cmd.Gofer): "",
	}, nil)
}

// startWithoutCollecting leaves garbage where it is for the first two seconds, in
// which each of the processes makes a few megabytes of it and no more than 64.
func startWithoutCollecting() {
	most := debug.SetMemoryLimit(64 << 20)
	time.AfterFunc(2*time.Second, func() {
		debug.SetGCPercent(early.GCPercent)
		debug.SetMemoryLimit(most)
	})
}

// withoutWait removes the option to wait for the user of a new namespace, and with
// it the start anew, if this process is that user already: a namespace of one user
// has its user before a program is executed in it.
func withoutWait(args []string) []string {
	const wait = "--sync-userns-fd="
	at := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, wait) })
	if at < 0 || !slices.Contains(args, fmt.Sprintf("--uid=%d", os.Getuid())) || !slices.Contains(args, fmt.Sprintf("--gid=%d", os.Getgid())) {
		return args
	}
	fd, err := strconv.Atoi(args[at][len(wait):])
	if err != nil || fd < 3 || keepBounds() != nil {
		return args
	}
	_ = unix.Close(fd)
	return slices.Delete(slices.Clone(args), at, at+1)
}

// keepBounds gives up the right to narrow what a program executed later could
// gain. In a process with threads that takes long, one call to all of them for each
// capability, and it bounds nothing: neither process may execute a program, or
// gain a right if it did.
func keepBounds() error {
	if err := unix.Capget(&self, &caps[0]); err != nil {
		return err
	}
	caps[0].Effective &^= 1 << unix.CAP_SETPCAP
	caps[0].Permitted &^= 1 << unix.CAP_SETPCAP
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&self)), uintptr(unsafe.Pointer(&caps[0])), 0); errno != 0 {
		return errno
	}
	return nil
}

// What the kernel is told lies where it stays while all threads tell it.
var (
	self = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	caps [2]unix.CapUserData
)
