package nomad

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// agentTimeout bounds one call to the agent of this machine.
const agentTimeout = 10 * time.Second

// AgentOptions say how a node daemon reaches the Nomad agent of its machine.
type AgentOptions struct {
	// Address is http://127.0.0.1:4646, https://HOST:PORT, or unix:// and the path
	// of a task's api.sock.
	Address                   string
	Token                     func() (string, error) // read anew for each call; nil: none
	CAFile, CertFile, KeyFile string                 // PEM
}

// Agent is the Nomad agent of this machine.
type Agent struct {
	client *api.Client
	token  func() (string, error)
}

// NewAgent checks the options. Nothing is asked yet.
func NewAgent(o AgentOptions) (*Agent, error) {
	u, err := url.Parse(o.Address)
	switch {
	case err != nil || u.User != nil:
		return nil, errors.New("the Nomad agent's address is not one")
	case u.Scheme == "unix" && u.Path != "", u.Scheme == "https" && u.Host != "":
	case u.Scheme == "http" && loopback(u.Hostname()):
	default:
		return nil, fmt.Errorf("to the Nomad agent at %s the token would travel in clear: expected https://, http:// to a loopback address, or unix:// and a path", o.Address)
	}
	c := &api.Config{Address: o.Address, TLSConfig: &api.TLSConfig{CACert: o.CAFile, ClientCert: o.CertFile, ClientKey: o.KeyFile}}
	if u.Scheme != "unix" {
		// No proxy from the environment: the token is for the agent alone.
		t := &http.Transport{DialContext: (&net.Dialer{Timeout: agentTimeout}).DialContext, TLSHandshakeTimeout: agentTimeout, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, IdleConnTimeout: 90 * time.Second}
		c.HttpClient = &http.Client{Transport: t}
		if err := api.ConfigureTLS(c.HttpClient, c.TLSConfig); err != nil {
			return nil, fmt.Errorf("TLS to the Nomad agent: %w", err)
		}
	}
	client, err := api.NewClient(c)
	if err != nil {
		return nil, fmt.Errorf("the Nomad agent at %s: %w", o.Address, err)
	}
	return &Agent{client: client, token: o.Token}, nil
}

// Advert is what a node has for sessions. A zero one takes back all that was told.
type Advert struct {
	Node      string            // as it is registered with us; empty: it takes none
	Snapshots map[string]string // environment -> commit of its newest snapshot
	FreeBytes int64
}

func (a Advert) meta() map[string]string {
	if a.Node == "" {
		return nil
	}
	m := map[string]string{MetaNode: a.Node, MetaFree: strconv.FormatInt(a.FreeBytes, 10)}
	for environment, commit := range a.Snapshots {
		m[MetaSnapshot+environment] = commit
	}
	return m
}

// Advertise makes the metadata of this machine's node in Nomad what a says. Keys
// of snapshots that are gone are removed, also those that an earlier process
// wrote. Nobody else's key is touched, and nothing is sent that is so already.
func (a *Agent) Advertise(ctx context.Context, ad Advert) error {
	token := ""
	if a.token != nil {
		var err error
		if token, err = a.token(); err != nil {
			return fmt.Errorf("the token for the Nomad agent: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	q := (&api.QueryOptions{AuthToken: token}).WithContext(ctx)
	have, err := a.client.Nodes().Meta().Read("", q)
	if err != nil {
		return fmt.Errorf("read this node's metadata from the Nomad agent: %w", err)
	}
	change := map[string]*string{}
	want := ad.meta()
	for k, v := range have.Dynamic {
		ours := k == MetaNode || k == MetaFree || strings.HasPrefix(k, MetaSnapshot)
		if _, keep := want[k]; ours && !keep && v != nil {
			change[k] = nil
		}
	}
	for k, v := range want {
		if old, ok := have.Meta[k]; !ok || old != v {
			change[k] = &v
		}
	}
	if len(change) == 0 {
		return nil
	}
	if _, err := a.client.Nodes().Meta().Apply(&api.NodeMetaApplyRequest{Meta: change}, q); err != nil {
		return fmt.Errorf("change this node's metadata at the Nomad agent: %w", err)
	}
	return nil
}
