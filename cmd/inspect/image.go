package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"inspect/checks/render"
	"inspect/envs/node/dial"
)

func imageCommand() *cobra.Command {
	var data string
	socket := func() string { return filepath.Join(data, "node", "node.sock") }
	cmd := &cobra.Command{Use: "image", Short: "Container images of this node, as root file systems of sandboxes"}
	cmd.PersistentFlags().StringVar(&data, "data", "/var/lib/inspect", "directory of everything Inspect keeps")
	cmd.AddCommand(withEnvironment(&cobra.Command{
		Use:   "import ARCHIVE",
		Short: "Bring an image to this node: an OCI layout in a tar, or what docker save writes (standard input with -)",
		Long: `Bring an image to this node: an OCI layout in a tar, or what docker save writes
(standard input with -). The node daemon unpacks it, so it must run, and this is
for root or the account that serves. What is there already is not unpacked again.
An image that no snapshot and no clone on the node needs, and that was neither
used nor brought for 30 days, is removed.`,
		Args: cobra.ExactArgs(1),
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
			im, err := dial.ImportImage(cmd.Context(), socket(), from)
			if err != nil {
				return fmt.Errorf("import %s: %w", args[0], err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "The node has it: %s, %s, %s", render.Count(im.Layers, "layer", "layers"), render.Count(im.Files, "file", "files"), render.Bytes(im.Bytes))
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
			all, err := dial.Images(cmd.Context(), socket())
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, im := range all {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", im.Digest, render.Count(im.Layers, "layer", "layers"), render.Count(im.Files, "file", "files"), render.Bytes(im.Bytes))
			}
			return w.Flush()
		},
	}))
	return cmd
}
