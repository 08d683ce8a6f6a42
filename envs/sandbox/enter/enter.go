// Package enter is the step between a root launcher and the program of a
// sandbox's tier: a process joins the sandbox's cgroups while it may, becomes the
// sandbox's uid for good, and executes what follows. (The first version of
// cgroups cannot start a process in a group, and the program forks before anyone
// could move it.) It is a package of its own because it starts with each sandbox:
// it brings nothing along.
package enter

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Word is the first argument with which a program becomes Main.
const Word = "sandbox-enter"

// JoinFailed is what Main says when it may not or cannot join the network.
const JoinFailed = "join the network of the sandbox beside"

// Main does the step and returns only if something failed, with an exit status.
// The arguments are those after Word:
//
//	--procs FILE   a cgroup.procs file to join; may be repeated
//	--net FD       a pidfd of whose network namespace is joined
//	--uid N --gid N
//	-- PROGRAM ARGUMENTS…
func Main(args []string) int {
	err := enter(args)
	fmt.Fprintf(os.Stderr, "enter the sandbox: %v\n", err)
	return 125
}

type repeated []string

func (r *repeated) String() string     { return "" }
func (r *repeated) Set(s string) error { *r = append(*r, s); return nil }

func enter(args []string) error {
	var procs repeated
	f := flag.NewFlagSet(Word, flag.ContinueOnError)
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
			return fmt.Errorf("%s: %w", JoinFailed, err)
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
