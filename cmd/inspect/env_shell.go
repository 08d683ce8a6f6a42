package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"inspect/envs/node/dial"
	"inspect/envs/sandbox/stream"
	"inspect/scheduler"
	"inspect/storage"
)

func shellCommand() *cobra.Command {
	var d dataFlags
	cmd := &cobra.Command{
		Use:   "shell SESSION [-- COMMAND…]",
		Short: "Open a terminal in what a failed session left, inside its sandbox",
		Long: `Open a terminal in what a failed session left, inside its sandbox: the same
files, programs and limits, and no way to the network. SESSION is its id, or the
beginning of it. It must have failed with keep_failed in its ` + "`.inspect.yml`" + `;
` + "`inspect env status`" + ` shows what is kept, on which node, until when and how large it
is. Run it on that node, as root or as the account that serves. Services of the
environment are not started. What the command ends with is the exit status.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			db, err := openDatabase(cmd.Context(), d)
			if err != nil {
				return err
			}
			defer db.Close()
			grant, until, err := openScene(cmd.Context(), db.Q(), d.data, args[0])
			if err != nil {
				return err
			}
			db.Close() // a shell may be open for hours
			return shell(cmd.Context(), filepath.Join(d.data, "node", "node.sock"), grant, until, args[1:])
		},
	}
	d.flags(cmd.Flags())
	return withEnvironment(cmd)
}

// openScene is a grant for what is kept of a session, and until when it is.
func openScene(ctx context.Context, q *storage.Queries, data, beginning string) (grant string, until time.Time, err error) {
	id, err := sessionNamed(ctx, q, beginning)
	if err != nil {
		return "", until, err
	}
	sess, err := q.GetSession(ctx, id)
	if err != nil {
		return "", until, fmt.Errorf("read session %s: %w", id, err)
	}
	if !sess.FinishedAt.Valid {
		return "", until, fmt.Errorf("session %s is %s: what it works in is its own until it has ended", id, sess.State)
	}
	a, err := q.GetAttempt(ctx, storage.GetAttemptParams{SessionID: id, Generation: sess.Generation})
	if err != nil && !storage.IsMissing(err) {
		return "", until, fmt.Errorf("read the attempt of session %s: %w", id, err)
	}
	if err != nil || a.ReapedAt.Valid || !a.KeepUntil.Valid || !a.KeepUntil.Time.After(time.Now()) {
		return "", until, fmt.Errorf("nothing of session %s is kept: only a session that failed is, with keep_failed in .inspect.yml, and for so long", id)
	}
	private := placesIn(data).private
	if _, err := os.Stat(filepath.Join(private, "grant.seed")); err != nil {
		return "", until, fmt.Errorf("the key that the node obeys cannot be read; run this as root or as the account that serves: %w", err)
	}
	key, err := grantKey(private)
	if err != nil {
		return "", until, err
	}
	grant, err = scheduler.SceneGrant(key, sess, a, os.Getuid())
	return grant, a.KeepUntil.Time, err
}

// exitStatus ends the program with a status and no words.
type exitStatus int

func (exitStatus) Error() string   { return "" }
func (e exitStatus) ExitCode() int { return int(e) }

// shell runs a command, or a shell, over what is kept; on a terminal if this
// program has one.
func shell(ctx context.Context, socket, grant string, until time.Time, argv []string) error {
	if len(argv) == 0 {
		argv = []string{"sh", "-c", "command -v bash >/dev/null && exec bash; exec sh"}
	}
	start, cancel := context.WithTimeout(ctx, 2*time.Minute)
	run, err := dial.Sandbox(start, socket, grant)
	cancel()
	if err != nil {
		return fmt.Errorf("start the sandbox: %w; the node daemon of this machine must run and be the one that keeps it", err)
	}
	defer func() {
		_ = run.Client.Close()
		<-run.Ends
	}()
	e := stream.Exec{Argv: argv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	in := int(os.Stdin.Fd())
	if onTerminal := term.IsTerminal(in) && term.IsTerminal(int(os.Stdout.Fd())); onTerminal {
		fmt.Fprintf(os.Stderr, "Kept until %s. Leave with exit.\n", until.Local().Format(time.RFC1123))
		e.TTY = terminalSize(in)
		e.Env = []string{"TERM=" + os.Getenv("TERM")}
		before, err := term.MakeRaw(in)
		if err != nil {
			return fmt.Errorf("take the terminal: %w", err)
		}
		defer func() { _ = term.Restore(in, before) }()
	}
	cmd, err := run.Client.Start(ctx, e)
	if err != nil {
		return err
	}
	if e.TTY != nil {
		changed := make(chan os.Signal, 1)
		signal.Notify(changed, syscall.SIGWINCH)
		defer signal.Stop(changed)
		done := make(chan struct{})
		defer close(done)
		go func() {
			for {
				select {
				case <-changed:
					_ = cmd.Resize(*terminalSize(in))
				case <-done:
					return
				}
			}
		}()
	}
	exit, err := cmd.Wait()
	switch {
	case errors.Is(err, stream.ErrEnded):
		return errors.New("the sandbox has ended: what was kept was discarded, a limit was reached, or the node stops")
	case err != nil && !errors.Is(err, io.EOF):
		return err
	case exit.Code != 0:
		return exitStatus(exit.Code)
	}
	return nil
}

func terminalSize(fd int) *stream.Size {
	cols, rows, err := term.GetSize(fd)
	if err != nil || cols <= 0 || rows <= 0 || cols > 1<<16-1 || rows > 1<<16-1 {
		return &stream.Size{Rows: 24, Cols: 80}
	}
	return &stream.Size{Rows: uint16(rows), Cols: uint16(cols)}
}
