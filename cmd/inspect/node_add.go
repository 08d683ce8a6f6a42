package main

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"inspect/scheduler"
	"inspect/storage"
)

func nodeAddCommand() *cobra.Command {
	var d dataFlags
	var tokenFile, control, gitBase string
	var replace bool
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Make a further node known, and print what its daemon needs to be told",
		Long: `Make a further machine known to a running ` + "`inspect serve`" + `, and print the flags with which
its node daemon, ` + "`inspect node`" + `, is started there. The daemon proves itself with a token. It is
printed once, or written to a file; bring it to the node by a way that you trust with it.
Run this as the account that serves, or as root: the control plane's public key is in --data.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := filepath.Abs(d.data)
			if err != nil {
				return usagef("--data: %w", err)
			}
			if control != "" {
				if err := checkControl(control); err != nil {
					return err
				}
			}
			key, err := publicGrantKey(filepath.Join(data, "private"))
			if err != nil {
				return err
			}
			token, err := randomToken()
			if err != nil {
				return err
			}
			db, err := openDatabase(cmd.Context(), d)
			if err != nil {
				return err
			}
			defer db.Close()
			name, hash := args[0], sha256.Sum256(token)
			err = db.InTx(cmd.Context(), func(tx *storage.Tx) error {
				if err := scheduler.AddNode(cmd.Context(), tx, name, hash[:], replace); err != nil || tokenFile == "" {
					return err
				}
				// A token that could not be kept counts for nothing.
				return writeNew(tokenFile, token)
			})
			if errors.Is(err, scheduler.ErrNodeThere) {
				return fmt.Errorf("%w; --replace gives it a new token, and its daemon must be started anew with that", err)
			}
			if err != nil {
				return err
			}
			tellNode(cmd.OutOrStdout(), nodeFlags{
				name: name, key: key, owner: ownerOf(data), control: control, gitBase: gitBase, tokenFile: tokenFile, token: string(token),
			})
			return nil
		},
	}
	f := cmd.Flags()
	d.flags(f)
	f.StringVar(&tokenFile, "token-file", "", "new file of mode 0600 that the node's token is written to (default: it is printed)")
	f.StringVar(&control, "control", "", "address of the control plane's machine listener as the node reaches it, https:// and the host of the proxy in front of it; only for what is printed")
	f.StringVar(&gitBase, "github-git", "https://github.com", "as of inspect serve; only for what is printed")
	f.BoolVar(&replace, "replace", false, "give a node that is there another token; the old one is good no more")
	return withEnvironment(cmd)
}

// publicGrantKey is the public half of the key that grants are signed with. It
// makes none: nodes must know the one that is used.
func publicGrantKey(private string) (string, error) {
	if _, err := os.Stat(filepath.Join(private, "grant.seed")); err != nil {
		return "", fmt.Errorf("the control plane's key cannot be read (%w): give the --data of `inspect serve`, and run this as the account that started it", err)
	}
	key, err := grantKey(private)
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(key.Public().(ed25519.PublicKey)), nil
}

// writeNew writes a file that only we can read and that was not there.
func writeNew(path string, body []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(body, '\n'))
	return errors.Join(err, f.Close())
}

// nodeFlags are what a node daemon of ours is told.
type nodeFlags struct{ name, key, owner, control, gitBase, tokenFile, token string }

func tellNode(w io.Writer, n nodeFlags) {
	fmt.Fprintf(w, "Node %s is known. ", n.name)
	if n.tokenFile != "" {
		fmt.Fprintf(w, "Its token is in %s: bring that file to the node, mode 0600, owned by root.\n", n.tokenFile)
	} else {
		fmt.Fprintf(w, "Its token, which is not shown again:\n\n    %s\n\nOn the node put it into /etc/inspect/node.token, mode 0600, owned by root.\n", n.token)
	}
	control := n.control
	if control == "" {
		control = "https://HOST"
	}
	fmt.Fprintf(w, "Its daemon is started as root, by `inspect nomad node-job` or a unit, as\n\n"+
		"    inspect node --name %s --token-file /etc/inspect/node.token \\\n"+
		"        --grant-key %s --owner %s \\\n"+
		"        --control %s --github-git %s\n", n.name, n.key, n.owner, control, n.gitBase)
	if n.control == "" {
		fmt.Fprint(w, "\nHOST is that of the proxy in front of --listen-machines (docs/nomad.md).\n")
	}
	fmt.Fprint(w, "\nWith the Nomad engine also --nomad-address of the agent of that machine. With the first state it tells it takes part.\n")
}
