// Package nomad is the engine that runs each attempt as a batch job of a
// HashiCorp Nomad cluster. In come attempts; out goes whether Nomad still runs
// them, what they wait for and whom their runners prove to be. Nomad says only
// whether an attempt is over: what came of it is said by its runner alone.
package nomad

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"inspect/envs/proc"
)

// What every part of Inspect and every cluster calls these things.
const (
	// DefaultUser is the account that runners have on nodes.
	DefaultUser = "inspect-runner"
	// Audience is of the identities that Nomad signs for runners.
	Audience = "inspect"
	// MetaNode is the key of a node's metadata that says as what it is registered
	// with us. Only nodes that have it get attempts.
	MetaNode = "inspect.node"
	// MetaSnapshot begins the keys that say of which commit the node has an
	// environment's snapshot: inspect.snapshot.ENVIRONMENT = COMMIT.
	MetaSnapshot = "inspect.snapshot."
	// MetaFree is the key that says how many bytes are free in the node's store.
	MetaFree = "inspect.free_bytes"
)

// Options of an Engine.
type Options struct {
	// Address of Nomad's HTTP API: https, or http to a loopback address.
	Address    string
	Region     string   // empty: "global"
	Namespace  string   // for our jobs alone; empty: "inspect"
	NodePool   string   // empty: "inspect"
	Datacenter []string // that may be used, with * as in Nomad; empty: all

	// Token reads the ACL token. It is called for each request, so that a token can
	// be replaced at any time. nil: none.
	Token func() (string, error)
	// CACert, ClientCert and ClientKey are for TLS, PEM; empty: the machine's
	// authorities, and no certificate of ours. ServerName is what Nomad's
	// certificate is for, if not for the host of Address.
	CACert, ClientCert, ClientKey []byte
	ServerName                    string

	// Binary is the path of inspect on the nodes. Artifact, if set, is where nodes
	// get it from instead.
	Binary     string
	Artifact   Artifact
	ControlURL string   // base address of the machines' API
	NodeSocket string   // the node daemon's socket, on the nodes
	User       string   // whom runners run as; empty: whom Nomad runs as, for tests
	Args       []string // further arguments for the runner

	MHzPerCore   int   // that Nomad counts for a core; zero: 1000
	RunnerMemory int64 // bytes that a runner needs besides its sandbox; zero: 256 MiB
	// LostAfter is how long Nomad waits for a node that is away before it gives its
	// attempts up; zero: 240 h. It is never less than an attempt may take.
	LostAfter time.Duration
	// Template is a job as JSON of Nomad's API that ours are laid over; empty: none.
	Template []byte

	Clock proc.Clock // zero: the machine's
	Log   *slog.Logger
}

// Artifact is a file that nodes fetch.
type Artifact struct {
	URL      string // without credentials
	Checksum string // sha256:HEX
}

const (
	defaultName   = "inspect"
	defaultRegion = "global"
	mib           = 1 << 20
)

// complete fills in what is not set and refuses what cannot work.
func (o Options) complete() (Options, error) {
	o.Region = cmp.Or(o.Region, defaultRegion)
	o.Namespace, o.NodePool = cmp.Or(o.Namespace, defaultName), cmp.Or(o.NodePool, defaultName)
	o.MHzPerCore = cmp.Or(o.MHzPerCore, 1000)
	o.RunnerMemory, o.LostAfter = cmp.Or(o.RunnerMemory, 256*mib), cmp.Or(o.LostAfter, 240*time.Hour)
	if len(o.Datacenter) == 0 {
		o.Datacenter = []string{"*"}
	}
	if o.Clock == nil {
		o.Clock = proc.System()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o, errors.Join(o.checkAddress(), o.checkRunner())
}

func (o Options) checkAddress() error {
	u, err := url.Parse(o.Address)
	switch {
	case err != nil || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "":
		return fmt.Errorf("the address of Nomad %q is not like https://nomad.example.com:4646", o.Address)
	case u.Scheme == "https":
	case u.Scheme == "http" && loopback(u.Hostname()):
	default:
		return fmt.Errorf("the address of Nomad %q is neither https nor http to a loopback address: whoever sits between could vouch for runners", o.Address)
	}
	if (len(o.ClientCert) == 0) != (len(o.ClientKey) == 0) {
		return errors.New("a client certificate for Nomad needs its key, and a key its certificate")
	}
	for what, name := range map[string]string{"region": o.Region, "namespace": o.Namespace} {
		if strings.ContainsAny(name, ":*/ ") { // a colon separates the parts of an identity's subject
			return fmt.Errorf("the %s of Nomad cannot be %q", what, name)
		}
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (o Options) checkRunner() error {
	for what, v := range map[string]string{"control address": o.ControlURL, "node socket": o.NodeSocket} {
		if v == "" {
			return fmt.Errorf("the Nomad engine needs a %s", what)
		}
	}
	if u, err := url.Parse(o.ControlURL); err != nil || u.Host == "" || u.User != nil {
		return fmt.Errorf("the control address %q is not a URL without credentials", o.ControlURL)
	}
	if !filepath.IsAbs(o.NodeSocket) {
		return fmt.Errorf("the node socket %q must be an absolute path", o.NodeSocket)
	}
	switch a := o.Artifact; {
	case (a == Artifact{}):
		if !filepath.IsAbs(o.Binary) {
			return fmt.Errorf("the path of inspect on the nodes %q must be absolute", o.Binary)
		}
	case o.Binary != "":
		return errors.New("inspect is either on the nodes or an artifact, not both")
	default:
		u, err := url.Parse(a.URL)
		sum, ok := strings.CutPrefix(a.Checksum, "sha256:")
		if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" {
			return fmt.Errorf("the artifact's address %q is not a URL without credentials and parameters", a.URL)
		}
		if !ok || !sha256Form.MatchString(sum) {
			return fmt.Errorf("the artifact's checksum %q is not sha256: and 64 hexadecimal digits", a.Checksum)
		}
	}
	return nil
}
