package shot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"inspect/checks/redact"
	"inspect/envs/sandbox/collect"
	"inspect/envs/wire"
)

// Command is the first argument of inspect where it takes a picture for a runner.
const Command = "shot-to-runner"

// Exit statuses of a picture.
const (
	ExitFailed    = 1 // the page could not be shown as was asked
	ExitUsage     = 2
	ExitNoBrowser = 3
)

// Args is what a runner has the program at path do.
func Args(path string, page wire.Screenshot) ([]string, error) {
	body, err := json.Marshal(page)
	return []string{path, Command, string(body)}, err
}

// Main takes the picture that Args asks for, writes record and picture to out as
// package collect does and words to said, and returns the exit status.
func Main(args []string, out, said io.Writer) int {
	var page wire.Screenshot
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &page) != nil {
		fmt.Fprintln(said, "inspect: "+Command+" is for runners; use inspect shot")
		return ExitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	record, picture, err := Take(ctx, Options{Page: page, NoSandbox: Inside()})
	if err != nil {
		fmt.Fprintln(said, "inspect: "+redact.Visible(err.Error()))
		if errors.Is(err, ErrNoBrowser) {
			return ExitNoBrowser
		}
		return ExitFailed
	}
	body, err := json.Marshal(record)
	if err == nil {
		err = collect.Put(out, wire.ShotRecord, body)
	}
	if err == nil && picture != nil {
		err = collect.Put(out, wire.ShotPicture, picture)
	}
	Tell(said, record, "")
	if err != nil || record.Failed != "" {
		return ExitFailed
	}
	return 0
}

// Tell writes a record as people and agents read it. file is where the picture
// is; empty: there is none.
func Tell(w io.Writer, s wire.Shot, file string) {
	line := func(format string, args ...any) { fmt.Fprintln(w, redact.Visible(fmt.Sprintf(format, args...))) }
	if s.Failed != "" {
		line("%s", s.Failed)
	}
	if s.Status != 0 {
		line("%s: status %d, %q", s.Final, s.Status, s.Title)
	}
	if file != "" {
		line("picture: %s", file)
	}
	if s.Cut {
		line("the page goes on below the picture")
	}
	for _, e := range s.Errors {
		line("console error: %s", e)
	}
	if s.MoreErrors > 0 {
		line("%d more console errors", s.MoreErrors)
	}
	for _, r := range s.Requests {
		line("failed request: %s: %s", r.URL, r.Words)
	}
	if s.MoreRequests > 0 {
		line("%d more failed requests", s.MoreRequests)
	}
}
