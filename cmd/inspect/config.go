package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"inspect/envs/egress"
	"inspect/envs/spec"
)

// serveConfig is the configuration of `inspect serve`. Each flag can also be
// given as an environment variable: --listen-hooks is INSPECT_LISTEN_HOOKS. A
// flag wins. Secrets are never values, only files that hold them.
type serveConfig struct {
	Data        string
	PostgresURL string
	EvidenceURL string

	AppID                                             int64
	KeyFile                                           string
	SecretFile                                        string
	OldSecretFile                                     string
	SecretsKeyFile                                    string
	ClientID, ClientSecretFile                        string
	API, Git                                          string
	WriteSpacing                                      time.Duration
	Hooks                                             string
	People                                            string
	PublicURL                                         string
	Machines                                          string
	Labels                                            []string
	AllowedApps                                       []int64
	Harness                                           string
	HarnessCommand                                    string
	HarnessLabel                                      string
	ModelsFile                                        string
	PolicyFile                                        string
	Programs                                          []string
	Expose                                            []string
	EgressInternal                                    []string
	RegistryAuth                                      string
	Limits                                            string
	Sandbox                                           tierFlags
	Store                                             storeFlags
	Engine                                            string
	Nomad                                             nomadFlags
	Buildkite                                         buildkiteFlags
	Node                                              string
	NodeName                                          string
	MaxSessions                                       int
	MaxPerRepository, MaxPerOwner, MaxPerInstallation int
	MaxRefreshes                                      int
	PostgresUser                                      string
	ControlUID                                        int
	SandboxUID                                        int
	RunnerUID                                         int
	EgressUID                                         int
	QuarantineUID                                     int
	MirrorUID                                         int
	LogFormat                                         string
	KeepEvents                                        keepDuration
}

func (c *serveConfig) flags(f *pflag.FlagSet) {
	f.StringVar(&c.Data, "data", "/var/lib/inspect", "directory of everything Inspect keeps")
	f.StringVar(&c.PostgresURL, "postgres-url", "", "database to use instead of a private one in the data directory")
	f.StringVar(&c.EvidenceURL, "evidence-url", "", "where evidence is kept (file://, default: in the data directory)")
	f.Int64Var(&c.AppID, "github-app-id", 0, "id of the GitHub App")
	f.StringVar(&c.KeyFile, "github-key-file", "", "file with the App's private key (PEM)")
	f.StringVar(&c.SecretFile, "webhook-secret-file", "", "file with the webhook secret")
	f.StringVar(&c.OldSecretFile, "webhook-secret-previous-file", "", "file with the secret before a rotation, still accepted")
	f.StringVar(&c.ClientID, "github-client-id", "", "client id of the App; with a client secret, people sign in to the pages with GitHub and act there")
	f.StringVar(&c.ClientSecretFile, "github-client-secret-file", "", "file with a client secret of the App")
	f.StringVar(&c.SecretsKeyFile, "secrets-key-file", "", secretsKeyHelp)
	f.StringVar(&c.API, "github-api", "https://api.github.com", "base address of the REST API (GHES: https://HOST/api/v3)")
	f.StringVar(&c.Git, "github-git", "https://github.com", "base address of repositories")
	f.DurationVar(&c.WriteSpacing, "github-write-spacing", time.Second, "least time between two writes to GitHub of one installation")
	f.StringVar(&c.Hooks, "listen-hooks", "127.0.0.1:7460", "address for webhooks")
	f.StringVar(&c.People, "listen-people", "127.0.0.1:7461", "address for people's pages")
	f.StringVar(&c.PublicURL, "public-url", "", "address of people's pages in links (default: http://ADDRESS of --listen-people)")
	f.StringVar(&c.Machines, "listen-machines", "127.0.0.1:7462", "loopback address for runners and the node daemon; for other machines an https proxy stands in front")
	f.Int64SliceVar(&c.AllowedApps, "allow-app", nil, "numbers of GitHub Apps whose bots may start sessions as if they had write access; by default no bot may")
	f.StringSliceVar(&c.Labels, "label", []string{"inspect"}, "labels that may start a session; a repository's file can only narrow them")
	f.StringVar(&c.Harness, "harness", "", "agent for repositories that name none: opencode, codex, claude or command (default: command if --harness-command is given, else opencode)")
	f.StringVar(&c.HarnessCommand, "harness-command", "", "shell line of the agent of kind command")
	f.StringVar(&c.HarnessLabel, "harness-label", "", "what that agent is called on GitHub (default: its first word)")
	f.StringVar(&c.ModelsFile, "models", "", "file with model providers, models and prices (docs/models.yml)")
	f.StringVar(&c.PolicyFile, "policy", "", "file with what no repository can pass (default: all repositories may use Inspect, nothing is bound)")
	f.StringSliceVar(&c.Programs, "program", nil, "NAME=PATH of an agent's native program; default: found on PATH")
	f.StringSliceVar(&c.EgressInternal, "egress-internal", nil, "address ranges of your own network where hosts of an environment's egress may be, like 10.20.0.0/16 (default: none)")
	f.StringVar(&c.RegistryAuth, "registry-auth", "", registryAuthUsage)
	f.StringSliceVar(&c.Expose, "expose", nil, "host directories that sandboxes may read, at the same path")
	f.StringVar(&c.Limits, "limits", "enforce", "enforce, or best-effort where cgroups cannot be had")
	c.Sandbox.flags(f)
	c.Store.flags(f)
	f.StringVar(&c.Engine, "engine", engineLocal, "where sessions run: local, on this machine, or nomad, in a cluster")
	c.Nomad.flags(f)
	c.Buildkite.flags(f)
	f.StringVar(&c.Node, "node", nodeHere, "local: sessions run on this machine, too, or none: its node daemon only keeps mirrors and reads results (with --engine nomad)")
	f.StringVar(&c.NodeName, "node-name", localNode, "name of this machine's node; each control plane on one database needs another")
	f.IntVar(&c.MaxSessions, "max-sessions", 0, "sessions at once, of all repositories together (default: 4, or with --engine nomad as many as there is room for)")
	f.IntVar(&c.MaxPerRepository, "max-sessions-per-repository", 0, "sessions at once of one repository; its own limits.concurrent counts too (default: no limit but that)")
	f.IntVar(&c.MaxPerOwner, "max-sessions-per-owner", 0, "sessions at once of all repositories of one owner (default: no limit)")
	f.IntVar(&c.MaxPerInstallation, "max-sessions-per-installation", 0, "sessions at once of one installation of the App (default: no limit)")
	f.IntVar(&c.MaxRefreshes, "max-refreshes", 4, "environments that are prepared at once on all nodes together; each node prepares at most 2")
	f.StringVar(&c.PostgresUser, "postgres-user", "postgres", "account of the private database when started as root")
	f.IntVar(&c.ControlUID, "control-uid", controlUID, "account id of the control plane when started as root")
	f.IntVar(&c.SandboxUID, "sandbox-uid", sandboxUID, "account id of sandboxes when started as root")
	f.IntVar(&c.QuarantineUID, "quarantine-uid", quarantineUID, "account id of git on hostile bundles when started as root")
	f.IntVar(&c.MirrorUID, "mirror-uid", mirrorUID, "account id of git in the mirrors of repositories when started as root")
	f.IntVar(&c.EgressUID, "egress-uid", egressUID, "account id of the proxies of setup when started as root")
	f.IntVar(&c.RunnerUID, "runner-uid", runnerUID, fmt.Sprintf("first of the %d account ids of runners when started as root; with --engine nomad the one of --nomad-user on each node", runnerUIDs))
	f.Var(&c.KeepEvents, "keep-events", "how long events of ended sessions are kept, as in 2555d (default: for ever)")
	f.StringVar(&c.LogFormat, "log", "text", "text or json")
}

// Account ids that a root installation uses if it is told no others. Those of
// runners lie where nothing else on a Linux machine is given accounts
// (systemd's UIDS-GIDS: 60578 to 61183 are unused): each living runner has one
// to itself, so that none can look into another's.
const (
	controlUID    = 64000
	sandboxUID    = 64001
	egressUID     = 64003
	quarantineUID = 64004
	mirrorUID     = 64005
	runnerUID     = 60600
	runnerUIDs    = 100
	// The runners of inspect try have one that is none of those: an installation
	// on the same machine kills everything of an account when its runner ends.
	tryRunnerUID = runnerUID + runnerUIDs
)

// checkAccounts refuses accounts that are root's or the same: each part is
// closed to the others only if it has its own.
func (c *serveConfig) checkAccounts() error {
	taken := map[int]string{0: "root"}
	for _, a := range []struct {
		flag      string
		first, of int
	}{
		{"--control-uid", c.ControlUID, 1}, {"--sandbox-uid", c.SandboxUID, 1}, {"--quarantine-uid", c.QuarantineUID, 1},
		{"--egress-uid", c.EgressUID, 1}, {"--mirror-uid", c.MirrorUID, 1}, {"--runner-uid", c.RunnerUID, c.runnerAccounts()},
	} {
		for uid := a.first; uid < a.first+a.of; uid++ {
			if who, ok := taken[uid]; ok || uid < 0 {
				return usagef("%s: account id %d is that of %s; each part needs its own, runners %d in a row", a.flag, uid, who, runnerUIDs)
			}
			taken[uid] = a.flag
		}
	}
	if c.Engine != engineNomad && c.MaxSessions > runnerUIDs {
		return usagef("--max-sessions: at most %d, the number of accounts of runners", runnerUIDs)
	}
	return nil
}

// fromEnvironment sets every flag that was not given from its variable.
func fromEnvironment(f *pflag.FlagSet) error {
	var first error
	f.VisitAll(func(flag *pflag.Flag) {
		name := "INSPECT_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		value, ok := os.LookupEnv(name)
		if flag.Changed || !ok || first != nil {
			return
		}
		if err := f.Set(flag.Name, value); err != nil {
			first = usagef("%s: %w", name, err)
		}
	})
	return first
}

// check completes the configuration and refuses what cannot work.
func (c *serveConfig) check() error {
	switch {
	case c.AppID <= 0:
		return usagef("--github-app-id is missing: it stands on the App's settings page")
	case c.KeyFile == "":
		return usagef("--github-key-file is missing: generate a private key on the App's settings page")
	case c.SecretFile == "":
		return usagef("--webhook-secret-file is missing: without a webhook secret anyone could start sessions, so Inspect does not start")
	case (c.ClientID == "") != (c.ClientSecretFile == ""):
		return usagef("--github-client-id and --github-client-secret-file are only of use together")
	case c.Limits != "enforce" && c.Limits != "best-effort":
		return usagef("--limits: expected enforce or best-effort, but found %q", c.Limits)
	case c.LogFormat != "text" && c.LogFormat != "json":
		return usagef("--log: expected text or json, but found %q", c.LogFormat)
	case c.MaxSessions < 0:
		return usagef("--max-sessions: expected 1 or more, but found %d", c.MaxSessions)
	case min(c.MaxPerRepository, c.MaxPerOwner, c.MaxPerInstallation) < 0:
		return usagef("--max-sessions-per-repository, --max-sessions-per-owner, --max-sessions-per-installation: expected 1 or more, or nothing for no limit")
	case c.MaxRefreshes < 0:
		return usagef("--max-refreshes: expected 1 or more, but found %d", c.MaxRefreshes)
	case c.Harness != "" && !slices.Contains(spec.Harnesses(), c.Harness):
		return usagef("--harness: expected one of %s, but found %q", strings.Join(spec.Harnesses(), ", "), c.Harness)
	case c.Harness == spec.HarnessCommand && c.HarnessCommand == "":
		return usagef("--harness command needs --harness-command")
	case len(c.Labels) == 0:
		return usagef("--label: expected at least one label")
	}
	if host, _, err := net.SplitHostPort(c.Machines); err != nil || !isLoopback(host) {
		return usagef("--listen-machines: expected a loopback address like 127.0.0.1:7462, but found %q: tokens and secrets pass there in clear", c.Machines)
	}
	if err := c.Sandbox.check(); err != nil {
		return err
	}
	if err := c.Store.check(); err != nil {
		return err
	}
	if err := c.Buildkite.check(); err != nil {
		return err
	}
	if err := c.checkEngine(); err != nil {
		return err
	}
	for _, r := range c.EgressInternal {
		if err := egress.CheckInternal(r); err != nil {
			return usagef("--egress-internal: %w", err)
		}
	}
	if c.RegistryAuth != "" {
		path, err := filepath.Abs(c.RegistryAuth)
		if err != nil {
			return usagef("--registry-auth: %w", err)
		}
		c.RegistryAuth = path
	}
	data, err := filepath.Abs(c.Data)
	if err != nil {
		return usagef("--data: %w", err)
	}
	c.Data = data
	if c.EvidenceURL == "" {
		c.EvidenceURL = "file://" + filepath.Join(c.Data, "evidence")
	}
	if c.Harness == "" {
		if c.Harness = spec.HarnessOpenCode; c.HarnessCommand != "" {
			c.Harness = spec.HarnessCommand
		}
	}
	if c.HarnessLabel == "" && c.HarnessCommand != "" {
		c.HarnessLabel = filepath.Base(strings.Fields(c.HarnessCommand)[0])
	}
	if os.Geteuid() != 0 { // an ordinary user has one account for everything
		me := os.Getuid()
		c.ControlUID, c.SandboxUID, c.RunnerUID, c.EgressUID, c.QuarantineUID, c.MirrorUID = me, me, me, me, me, me
		return nil
	}
	return c.checkAccounts()
}

// withEnvironment makes a command's flags settable by environment variables.
func withEnvironment(cmd *cobra.Command) *cobra.Command {
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd.Flags()) }
	return cmd
}

// harness is the operator's default. Its model is chosen with the others'.
func (c *serveConfig) harness() spec.Harness {
	if c.Harness == spec.HarnessCommand {
		return spec.Harness{Kind: c.Harness, Command: c.HarnessCommand, Label: c.HarnessLabel}
	}
	return spec.Harness{Kind: c.Harness}
}
