package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"

	"github.com/spf13/pflag"

	"inspect/checks/redact"
	"inspect/scheduler"
	"inspect/scheduler/nomad"
)

// Engines of `inspect serve`.
const (
	engineLocal = "local"
	engineNomad = "nomad"
)

// What a machine with a control plane has of its own besides.
const (
	nodeHere = "local" // sessions run here, too
	nodeNone = "none"  // the daemon keeps mirrors and reads results, no session runs here
)

// clusterFlags say how to reach a Nomad cluster, and what in it is ours.
type clusterFlags struct {
	Address, Region, Namespace, Pool     string
	Datacenters                          []string
	TokenFile, CAFile, CertFile, KeyFile string
}

func (n *clusterFlags) flags(f *pflag.FlagSet) {
	f.StringVar(&n.Address, "nomad-address", "http://127.0.0.1:4646", "address of a Nomad agent: https://, or http:// to this machine")
	f.StringVar(&n.Region, "nomad-region", "", "region of the cluster (default: the agent's)")
	f.StringVar(&n.Namespace, "nomad-namespace", "inspect", "namespace of the jobs of sessions, which is for nothing else")
	f.StringVar(&n.Pool, "nomad-pool", "inspect", "node pool that sessions run in")
	f.StringSliceVar(&n.Datacenters, "nomad-datacenters", []string{"*"}, "datacenters that sessions run in")
	f.StringVar(&n.TokenFile, "nomad-token-file", "", "file with an ACL token of the policy that inspect doctor --nomad --policy-hcl prints")
	f.StringVar(&n.CAFile, "nomad-ca-file", "", "file with the certificates of authorities that Nomad's is trusted by (default: the machine's)")
	f.StringVar(&n.CertFile, "nomad-cert-file", "", "file with our certificate for Nomad")
	f.StringVar(&n.KeyFile, "nomad-key-file", "", "file with that certificate's key")
}

var (
	nomadName    = regexp.MustCompile(`^[A-Za-z0-9-]{1,128}$`)
	nomadPool    = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)
	nomadAccount = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)
	sha256Sum    = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

func (n *clusterFlags) check() error {
	u, err := url.Parse(n.Address)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http":
		return usagef("--nomad-address: expected an address like https://nomad.example:4646, but found %q", n.Address)
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return usagef("--nomad-address: to %s the token would travel in clear, and who answers could be anybody; only https:// may lead to another machine, http:// to a loopback address", u.Host)
	case !nomadName.MatchString(n.Namespace):
		return usagef("--nomad-namespace: %q cannot be the name of one", n.Namespace)
	case !nomadPool.MatchString(n.Pool):
		return usagef("--nomad-pool: %q cannot be the name of one", n.Pool)
	case len(n.Datacenters) == 0:
		return usagef("--nomad-datacenters: expected at least one")
	case (n.CertFile == "") != (n.KeyFile == ""):
		return usagef("--nomad-cert-file and --nomad-key-file go together")
	}
	return nil
}

// nomadFlags say how sessions run in a Nomad cluster.
type nomadFlags struct {
	clusterFlags
	Template            string // file
	Binary              string
	Artifact, Checksum  string
	User                string
	MHz                 int
	RunnerMB            int
	Socket              string
	Control             string
	AgentAddress, Agent string // of the node daemon beside this control plane, and its token's file
}

func (n *nomadFlags) flags(f *pflag.FlagSet) {
	n.clusterFlags.flags(f)
	f.StringVar(&n.Template, "nomad-template", "", "file with a job in Nomad's JSON that sessions' jobs are made from, see docs/nomad.md (default: none)")
	f.StringVar(&n.Binary, "nomad-binary", "/usr/local/bin/inspect", "path of inspect on the nodes")
	f.StringVar(&n.Artifact, "nomad-artifact", "", "address that nodes fetch inspect from for each session, in place of --nomad-binary")
	f.StringVar(&n.Checksum, "nomad-artifact-checksum", "", "sha256:… of that")
	f.StringVar(&n.User, "nomad-user", "inspect-runner", "account of runners on the nodes, with the id of --runner-uid on each of them")
	f.IntVar(&n.MHz, "nomad-mhz", 1000, "MHz that Nomad counts for a core of a session")
	f.IntVar(&n.RunnerMB, "nomad-runner-memory", 256, "MiB that Nomad counts for the runner beside its session's memory")
	f.StringVar(&n.Socket, "nomad-node-socket", "/var/lib/inspect/node/node.sock", "path of the node daemon's socket on the nodes")
	f.StringVar(&n.Control, "nomad-control", "", "address of --listen-machines as nodes reach it, that of an https proxy in front (default: http:// and --listen-machines, for nodes on this machine alone)")
	f.StringVar(&n.AgentAddress, "nomad-agent-address", "", "address of the Nomad agent of this machine, if it is not --nomad-address; with --node local it is told the snapshots here")
	f.StringVar(&n.Agent, "nomad-agent-token-file", "", "file with a token for that which may write nodes (default: --nomad-token-file)")
}

func (n *nomadFlags) check() error {
	if err := n.clusterFlags.check(); err != nil {
		return err
	}
	if n.Control != "" {
		if err := checkControl(n.Control); err != nil {
			return usagef("--nomad-control: to another machine only https:// may lead: %w", err)
		}
	}
	switch {
	case n.User != "" && !nomadAccount.MatchString(n.User):
		return usagef("--nomad-user: %q cannot be the name of an account", n.User)
	case n.User == "root":
		return usagef("--nomad-user: runners are not root")
	case n.User == "" && os.Geteuid() == 0:
		return usagef("--nomad-user: without one runners would have the account of the Nomad agents, which is root")
	case n.MHz < 1 || n.RunnerMB < 32:
		return usagef("--nomad-mhz: expected 1 or more, --nomad-runner-memory: 32 or more")
	case (n.Artifact == "") != (n.Checksum == ""):
		return usagef("--nomad-artifact and --nomad-artifact-checksum go together: nobody else says what it is that nodes run")
	case n.Checksum != "" && !sha256Sum.MatchString(n.Checksum):
		return usagef("--nomad-artifact-checksum: expected sha256: and 64 hexadecimal digits")
	case n.Artifact == "" && !filepath.IsAbs(n.Binary):
		return usagef("--nomad-binary: expected an absolute path")
	case !filepath.IsAbs(n.Socket) || len(n.Socket) > 107:
		return usagef("--nomad-node-socket: expected an absolute path of at most 107 bytes")
	}
	return nil
}

// agent is how the node daemon of this machine reaches its agent.
func (n nomadFlags) agent() agentFlags {
	a := agentFlags{Address: n.AgentAddress, TokenFile: n.Agent, CAFile: n.CAFile, CertFile: n.CertFile, KeyFile: n.KeyFile}
	if a.Address == "" {
		a.Address = n.Address
	}
	if a.TokenFile == "" {
		a.TokenFile = n.TokenFile
	}
	return a
}

// checkEngine completes and checks what belongs to an engine.
func (c *serveConfig) checkEngine() error {
	switch {
	case c.Engine != engineLocal && c.Engine != engineNomad:
		return usagef("--engine: expected local or nomad, but found %q", c.Engine)
	case c.Node != nodeHere && c.Node != nodeNone:
		return usagef("--node: expected local or none, but found %q", c.Node)
	case c.Node == nodeNone && c.Engine == engineLocal:
		return usagef("--node none needs --engine nomad: the local engine runs sessions on this machine only")
	case c.NodeName == "":
		return usagef("--node-name: expected a name")
	}
	if c.Engine == engineNomad {
		if err := c.Nomad.check(); err != nil {
			return err
		}
	}
	if c.MaxSessions == 0 {
		if c.MaxSessions = 4; c.Engine == engineNomad {
			c.MaxSessions = maxNomadSessions
		}
	}
	return nil
}

// maxNomadSessions at once is more than nodes of one cluster have had room for.
const maxNomadSessions = 1000

// runnerAccounts is how many accounts runners of this machine have. Nomad's all
// have one.
func (c *serveConfig) runnerAccounts() int {
	if c.Engine == engineNomad {
		return 1
	}
	return runnerUIDs
}

// nomadGiven is what of Nomad's only whoever starts a control plane may read.
type nomadGiven struct {
	Token    string `json:"token"`
	CA       []byte `json:"ca"` // PEM
	Cert     []byte `json:"cert"`
	Key      []byte `json:"key"`
	Template []byte `json:"template"`
}

// maxNomadFile bounds what is read of one file; a job has at most 1 MiB.
const maxNomadFile = 1 << 20

// read reads all of it.
func (n nomadFlags) read() (g nomadGiven, err error) {
	for path, to := range map[string]*[]byte{n.CAFile: &g.CA, n.CertFile: &g.Cert, n.Template: &g.Template} {
		if path == "" {
			continue
		}
		if *to, err = readBounded(path, maxNomadFile); err != nil {
			return g, err
		}
		if len(*to) > maxNomadFile {
			return g, fmt.Errorf("%s has more than %d bytes", path, maxNomadFile)
		}
	}
	if n.KeyFile != "" {
		key, err := readSecret(n.KeyFile, "the key of --nomad-key-file")
		if err != nil {
			return g, err
		}
		g.Key = []byte(key)
	}
	if n.TokenFile != "" {
		g.Token, err = n.token()
	}
	return g, err
}

// token reads the ACL token as it is now.
func (n nomadFlags) token() (string, error) {
	if n.TokenFile == "" {
		return "", nil
	}
	return readSecret(n.TokenFile, "Nomad's token")
}

// options are the engine's. token reads the ACL token as it is now.
func (n nomadFlags) options(g nomadGiven, control string, token func() (string, error), redactor *redact.Redactor, log *slog.Logger) nomad.Options {
	o := nomad.Options{
		Address: n.Address, Region: n.Region, Namespace: n.Namespace, NodePool: n.Pool, Datacenter: n.Datacenters,
		CACert: g.CA, ClientCert: g.Cert, ClientKey: g.Key, Template: g.Template,
		Binary: n.Binary, ControlURL: cmp.Or(n.Control, control), NodeSocket: n.Socket, User: n.User,
		MHzPerCore: n.MHz, RunnerMemory: int64(n.RunnerMB) << 20, Log: log,
	}
	if n.Artifact != "" {
		o.Binary, o.Artifact = "", nomad.Artifact{URL: n.Artifact, Checksum: n.Checksum}
	}
	if n.TokenFile != "" {
		o.Token = func() (string, error) {
			text, err := token()
			redactor.Add(text) // it may be another than before
			return text, err
		}
	}
	return o
}

// nomadEngine is the engine, and what keeps it informed.
func nomadEngine(o nomad.Options) (scheduler.Engine, func(context.Context) error, error) {
	engine, err := nomad.New(o)
	if err != nil {
		return nil, nil, usageError{fmt.Errorf("the Nomad engine: %w", err)}
	}
	return engine, engine.Run, nil
}
