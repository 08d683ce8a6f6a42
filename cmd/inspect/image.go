package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"inspect/envs/image"
	"inspect/envs/sandbox"
	"inspect/envs/wire"
)

// imageGroup is below an installation's control group, for imports.
const imageGroup = "/images"

// imageConfig is the configuration of `inspect env image`.
type imageConfig struct {
	data, limits string
	sandboxUID   int
}

func imageCommand() *cobra.Command {
	var c imageConfig
	cmd := &cobra.Command{Use: "image", Short: "Container images of this node, as root file systems of sandboxes"}
	f := cmd.PersistentFlags()
	f.StringVar(&c.data, "data", "/var/lib/inspect", "directory of everything Inspect keeps")
	f.StringVar(&c.limits, "limits", "enforce", "enforce, or best-effort where cgroups cannot be had")
	f.IntVar(&c.sandboxUID, "sandbox-uid", sandboxUID, "account id of sandboxes when started as root")
	cmd.AddCommand(withEnvironment(&cobra.Command{
		Use:   "import ARCHIVE",
		Short: "Unpack an image for this node: an OCI layout in a tar, or what docker save writes (standard input with -)",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var from io.Reader = os.Stdin
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				from = f
			}
			store, done, err := c.store()
			if err != nil {
				return err
			}
			defer done()
			im, err := store.Import(cmd.Context(), from, "")
			if err != nil {
				return fmt.Errorf("import %s: %w", args[0], err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Unpacked %d layers, %d files, %d MiB", im.Layers, im.Files, im.Bytes>>20)
			if im.Skipped > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "; %d devices and pipes were left out", im.Skipped)
			}
			fmt.Fprintf(cmd.OutOrStdout(), ".\nIn .inspect.yml, with any name before the @:\nimage: imported@%s\n", im.Digest)
			return nil
		},
	}), withEnvironment(&cobra.Command{
		Use:   "list",
		Short: "List the images of this node",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := image.New(image.Options{Dir: c.dir()}).List()
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, im := range all {
				fmt.Fprintf(w, "%s\t%d layers\t%d files\t%d MiB\n", im.Digest, im.Layers, im.Files, im.Bytes>>20)
			}
			return w.Flush()
		},
	}))
	return cmd
}

// dir is where the node daemon of `inspect serve` looks for images.
func (c imageConfig) dir() string { return filepath.Join(c.data, "node", "images") }

// store is the node's images, with sandboxes to unpack them in.
func (c imageConfig) store() (*image.Store, func(), error) {
	if c.limits != "enforce" && c.limits != "best-effort" {
		return nil, nil, usagef("--limits: expected enforce or best-effort")
	}
	data, err := filepath.Abs(c.data)
	if err != nil {
		return nil, nil, err
	}
	c.data = data
	if os.Geteuid() != 0 { // an ordinary user has one account for everything
		c.sandboxUID = os.Getuid()
	}
	binary, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	// All that a running serve has here stays as it is.
	if err := os.MkdirAll(filepath.Dir(c.dir()), 0o711); err != nil {
		return nil, nil, err
	}
	if err := passableBy(c.dir(), c.sandboxUID); err != nil {
		return nil, nil, err
	}
	l, err := sandbox.New(sandbox.Options{
		Binary: initProgram(binary, slog.New(slog.DiscardHandler)), RunDir: filepath.Join(c.dir(), "run"), CgroupRoot: cgroupRoot(data) + imageGroup,
		UID: c.sandboxUID, GID: c.sandboxUID, BestEffort: c.limits == "best-effort",
	})
	if err != nil {
		return nil, nil, setupError{err}
	}
	return image.New(image.Options{
		Dir: c.dir(), UID: c.sandboxUID, GID: c.sandboxUID,
		Start: func(ctx context.Context, s sandbox.Spec) (func() wire.SandboxEnd, error) {
			b, err := l.Start(ctx, s)
			if err != nil {
				return nil, err
			}
			return b.Wait, nil
		},
	}), func() { _ = l.Close() }, nil
}
