package harnesstest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
)

// Host is a sandbox that is none: it runs commands on this machine, with an
// environment of its own. For what needs no isolation and should be quick.
type Host struct {
	Env []string // all of it, but for what a command adds
}

// Run is harness.Sandbox's.
func (h Host) Run(ctx context.Context, e stream.Exec) (stream.Exit, error) {
	if err := context.Cause(ctx); err != nil {
		return stream.Exit{}, fmt.Errorf("%s was not started: %w", e.Argv[0], err)
	}
	env := append(append([]string{"PATH=" + proc.DefaultPath}, h.Env...), e.Env...)
	path, err := proc.LookPath(e.Argv[0], env)
	if err != nil {
		return stream.Exit{}, &stream.StartError{Program: e.Argv[0], Words: "program not found"}
	}
	cmd := &exec.Cmd{
		Path: path, Args: e.Argv, Env: env, Dir: e.Dir, Stdout: e.Stdout, Stderr: e.Stderr,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true}, WaitDelay: 5 * time.Second,
	}
	if e.Stdin != nil {
		// Not cmd.Stdin: Wait would wait for a Read that nobody ends.
		in, err := cmd.StdinPipe()
		if err != nil {
			return stream.Exit{}, err
		}
		go func() {
			_, _ = io.Copy(in, e.Stdin)
			_ = in.Close()
		}()
	}
	if err := cmd.Start(); err != nil {
		return stream.Exit{}, &stream.StartError{Program: e.Argv[0], Words: err.Error()}
	}
	ended := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-ended:
			return
		case <-ctx.Done():
		}
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGTERM)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		}
	}()
	waitErr := cmd.Wait()
	close(ended)
	<-stopped
	var exit stream.Exit
	st, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case !ok:
		return exit, errors.Join(errors.New("no status"), waitErr)
	case st.Signaled():
		exit.Code, exit.Signal = 128+int(st.Signal()), unix.SignalName(st.Signal())
	default:
		exit.Code = st.ExitStatus()
	}
	if cause := context.Cause(ctx); cause != nil {
		return exit, fmt.Errorf("%s was stopped: %w", e.Argv[0], cause)
	}
	return exit, nil
}

// Script writes a shell script into a directory for the PATH.
func Script(t interface {
	Helper()
	Fatal(...any)
	TempDir() string
}, name, text string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(dir+"/"+name, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
