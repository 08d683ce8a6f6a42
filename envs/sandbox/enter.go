package sandbox

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// enterWord is the first argument with which the binary becomes Enter.
const enterWord = "sandbox-enter"

// joinFailed is what Enter says when it may not or cannot join the network.
const joinFailed = "join the network of the sandbox beside"

// Enter is the step between a root launcher and the tier's program: it joins the
// sandbox's cgroups while it may, becomes the sandbox's uid for good, and
// executes what follows. (The first version of cgroups cannot start a process
// in a group, and the program forks before anyone could move it.) The arguments
// are those after the word sandbox-enter:
//
//	--procs FILE   a cgroup.procs file to join; may be repeated
//	--net FD       a pidfd of whose network namespace is joined
//	--uid N --gid N
//	-- PROGRAM ARGUMENTS…
//
// It returns only if something failed.
func Enter(args []string) int {
	err := enter(args)
	fmt.Fprintf(os.Stderr, "enter the sandbox: %v\n", err)
	return 125
}

type repeated []string

func (r *repeated) String() string     { return "" }
func (r *repeated) Set(s string) error { *r = append(*r, s); return nil }

func enter(args []string) error {
	var procs repeated
	f := flag.NewFlagSet(enterWord, flag.ContinueOnError)
	uid := f.Int("uid", 0, "")
	gid := f.Int("gid", 0, "")
	net := f.Int("net", -1, "")
	f.Var(&procs, "procs", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() == 0 {
		return errors.New("no program was named")
	}
	if *uid <= 0 || *gid <= 0 {
		return errors.New("a sandbox is never root outside")
	}
	for _, p := range procs {
		if err := os.WriteFile(p, []byte("0"), 0); err != nil {
			return fmt.Errorf("join the cgroup: %w", err)
		}
	}
	if *net >= 0 {
		// A namespace is a thread's until this one executes the rest. It comes
		// after the cgroup: a process that still lives now ends after we joined,
		// and its end takes everybody in the cgroup along.
		runtime.LockOSThread()
		if err := unix.Setns(*net, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("%s: %w", joinFailed, err)
		}
	}
	if err := syscall.Setgroups([]int{}); err != nil {
		return fmt.Errorf("drop the groups: %w", err)
	}
	if err := syscall.Setresgid(*gid, *gid, *gid); err != nil {
		return fmt.Errorf("become group %d: %w", *gid, err)
	}
	if err := syscall.Setresuid(*uid, *uid, *uid); err != nil {
		return fmt.Errorf("become user %d: %w", *uid, err)
	}
	if unix.Setuid(0) == nil || unix.Geteuid() != *uid {
		return errors.New("root's rights could not be dropped")
	}
	if err := syscall.Exec(f.Arg(0), f.Args(), []string{}); err != nil {
		return fmt.Errorf("execute %s: %w", f.Arg(0), err)
	}
	return nil
}
