package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"inspect/checks/redact"
	"inspect/envs/node"
	"inspect/scheduler/nomad"
)

// agentFlags say how a node daemon reaches the Nomad agent of its machine.
type agentFlags struct {
	Address, TokenFile, CAFile, CertFile, KeyFile string
}

func (a *agentFlags) flags(f *pflag.FlagSet) {
	f.StringVar(&a.Address, "nomad-address", "", "address of the Nomad agent of this machine, which is told the snapshots there are: http://127.0.0.1:4646, https://…, or unix:// and the path of a task's api.sock (default: there is none)")
	f.StringVar(&a.TokenFile, "nomad-token-file", "", "file with a token for it that may write nodes, read anew each time (default: the variable NOMAD_TOKEN)")
	f.StringVar(&a.CAFile, "nomad-ca-file", "", "file with the certificates of authorities it is trusted by")
	f.StringVar(&a.CertFile, "nomad-cert-file", "", "file with our certificate for it")
	f.StringVar(&a.KeyFile, "nomad-key-file", "", "file with that certificate's key")
}

// args are the flags for another of this program's commands.
func (a agentFlags) args() (argv []string) {
	for _, f := range [][2]string{
		{"--nomad-address", a.Address}, {"--nomad-token-file", a.TokenFile}, {"--nomad-ca-file", a.CAFile}, {"--nomad-cert-file", a.CertFile}, {"--nomad-key-file", a.KeyFile},
	} {
		if f[1] != "" {
			argv = append(argv, f[0], f[1])
		}
	}
	return argv
}

// advertise tells the agent what a node has; nil: there is no agent.
func (a agentFlags) advertise(redactor *redact.Redactor) (func(context.Context, node.Advert) error, error) {
	if a.Address == "" {
		return nil, nil
	}
	agent, err := nomad.NewAgent(nomad.AgentOptions{
		Address: a.Address, CAFile: a.CAFile, CertFile: a.CertFile, KeyFile: a.KeyFile,
		Token: func() (string, error) {
			token, err := a.token()
			redactor.Add(token)
			return token, err
		},
	})
	if err != nil {
		return nil, fmt.Errorf("--nomad-address: %w", err)
	}
	return func(ctx context.Context, ad node.Advert) error {
		return agent.Advertise(ctx, nomad.Advert{Node: ad.Node, Snapshots: ad.Snapshots, FreeBytes: ad.FreeBytes})
	}, nil
}

// token may be in a file that Nomad itself wrote and renews.
func (a agentFlags) token() (string, error) {
	if a.TokenFile == "" {
		return os.Getenv("NOMAD_TOKEN"), nil
	}
	f, err := os.Open(a.TokenFile)
	if err != nil {
		return "", err
	}
	defer f.Close()
	body, err := io.ReadAll(io.LimitReader(f, 64<<10))
	return strings.TrimSpace(string(body)), err
}
