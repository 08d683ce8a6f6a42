package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"inspect/envs/shot"
	"inspect/envs/spec"
	"inspect/envs/wire"
)

// shotCommand takes pictures of pages. It is there inside sandboxes too, for the
// agent.
func shotCommand() *cobra.Command {
	var viewport, out string
	var asJSON bool
	var wait time.Duration
	page := wire.Screenshot{}
	c := &cobra.Command{
		Use:   "shot URL",
		Short: "Take a picture of a page with Chromium, and say what the browser said (also inside sandboxes)",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if page.Width, page.Height, err = spec.ParseViewport(viewport); err != nil {
				return usagef("--viewport %q: %w", viewport, err)
			}
			if page.URL, err = pageAddress(args[0]); err != nil {
				return err
			}
			if wait < time.Second || wait > 10*time.Minute {
				return usagef("--timeout: expected a time from 1s to 10m")
			}
			record, picture, err := shot.Take(cmd.Context(), shot.Options{Page: page, Wait: wait, NoSandbox: shot.Inside()})
			if errors.Is(err, shot.ErrNoBrowser) {
				return setupError{err}
			}
			if err != nil {
				return err
			}
			return showShot(record, picture, out, asJSON)
		},
	}
	f := c.Flags()
	f.StringVar(&viewport, "viewport", fmt.Sprintf("%dx%d", spec.DefaultWidth, spec.DefaultHeight), "size of the window")
	f.StringVar(&page.WaitFor, "wait-for", "", "CSS selector of what must be visible first")
	f.BoolVar(&page.FullPage, "full-page", false, "as high as the page is")
	f.StringVar(&out, "out", "screenshot.png", "file for the picture; empty: none is written")
	f.DurationVar(&wait, "timeout", 30*time.Second, "how long the page may take to load, and to show what is waited for")
	f.BoolVar(&asJSON, "json", false, "print what the browser said as JSON")
	return c
}

// pageAddress is an address of the web, with http:// before it if that was left out.
func pageAddress(s string) (string, error) {
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", usagef("expected the address of a page like http://127.0.0.1:5173/, but found %q", s)
	}
	return s, nil
}

// silent ends the program with a status and no further words.
type silent struct{ status int }

func (silent) Error() string   { return "" }
func (s silent) ExitCode() int { return s.status }

// showShot writes the picture and says what the browser said. A page that could
// not be shown as was asked is the status of the whole.
func showShot(record wire.Shot, picture []byte, out string, asJSON bool) error {
	if picture == nil {
		out = ""
	}
	if out != "" {
		if err := os.WriteFile(out, picture, 0o644); err != nil {
			return fmt.Errorf("write the picture: %w", err)
		}
	}
	if asJSON {
		if err := json.NewEncoder(os.Stdout).Encode(record); err != nil {
			return err
		}
	} else {
		shot.Tell(os.Stdout, record, out)
	}
	if record.Failed != "" {
		return silent{exitFailed}
	}
	return nil
}
