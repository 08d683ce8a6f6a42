package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// breakable is a cluster whose parts a test takes away and brings back.
type breakable struct {
	*Cluster
	kill, revive func() error // the agent of the node; killed, it is away when kill returns
	giveUp       func() error // while it is away: Nomad gives up what runs there
	down, up     func() error // the servers
	// absence is how long a control plane is away.
	absence time.Duration
	flags   []string // of serve
}

// breakableCluster is the double, or agents of the program at NOMAD_BIN.
func breakableCluster(t *testing.T) *breakable {
	t.Helper()
	if bin := os.Getenv("NOMAD_BIN"); bin != "" {
		return startCluster(t, bin)
	}
	const node = "node-1"
	c, d := double(t)
	return &breakable{
		Cluster: c, absence: time.Second,
		kill: func() error { return d.Kill(node) }, revive: func() error { return d.Revive(node) },
		giveUp: func() error { return d.LostAfter(node) },
		down:   d.Down, up: d.Up,
	}
}

// realAgent is an agent of Nomad that a test starts and kills.
type realAgent struct {
	t   *testing.T
	bin string
	dir string
	cmd *exec.Cmd
}

// startRealAgent prepares one; its log is told if the test fails.
func startRealAgent(t *testing.T, bin, dir, config string) *realAgent {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "agent.hcl"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &realAgent{t: t, bin: bin, dir: dir}
	if err := a.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = a.end(syscall.SIGTERM)
		if log, err := os.ReadFile(filepath.Join(dir, "log")); err == nil && t.Failed() {
			t.Logf("the Nomad agent in %s said:\n%s", dir, log[max(0, len(log)-8<<10):])
		}
	})
	return a
}

func (a *realAgent) start() error {
	log, err := os.OpenFile(filepath.Join(a.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	a.cmd = exec.Command(a.bin, "agent", "-config", filepath.Join(a.dir, "agent.hcl"))
	a.cmd.Stdout, a.cmd.Stderr = log, log
	a.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + a.dir}
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return a.cmd.Start()
}

func (a *realAgent) end(with syscall.Signal) error {
	if a.cmd.ProcessState != nil {
		return nil
	}
	if err := a.cmd.Process.Signal(with); err != nil {
		return err
	}
	var exit *exec.ExitError
	if err := a.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return err
	}
	return nil
}

// common is the part of an agent's configuration that is of no interest here.
const common = `
data_dir             = "%s/data"
bind_addr            = "127.0.0.1"
disable_update_check = true
name                 = "%s"
ports {
  http = %d
  rpc  = %d
  serf = %d
}
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
`

// startCluster starts a server and, as another process, a client.
func startCluster(t *testing.T, bin string) *breakable {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("NOMAD_BIN is set, and only root can run a Nomad client with raw_exec as other accounts")
	}
	dir, err := os.MkdirTemp("", "inspect-nomad-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmountBelow(t, dir); os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil { // runners have another account
		t.Fatal(err)
	}
	var port [6]int
	for i := range port {
		addr, err := freeAddress()
		if err != nil {
			t.Fatal(err)
		}
		_, p, _ := net.SplitHostPort(addr)
		fmt.Sscan(p, &port[i])
	}
	for _, name := range []string{"server", "client"} {
		if err := os.MkdirAll(filepath.Join(dir, name, "data"), 0o711); err != nil { // left to Nomad it is closed to runners
			t.Fatal(err)
		}
	}
	server := startRealAgent(t, bin, filepath.Join(dir, "server"), fmt.Sprintf(common+`
server {
  enabled           = true
  bootstrap_expect  = 1
  min_heartbeat_ttl = "2s"
  heartbeat_grace   = "2s"
}
`, filepath.Join(dir, "server"), "server", port[0], port[1], port[2]))
	client := startRealAgent(t, bin, filepath.Join(dir, "client"), fmt.Sprintf(common+`
client {
  enabled           = true
  servers           = ["127.0.0.1:%d"]
  network_interface = "lo"
  options           = { "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean" }
}
plugin "raw_exec" {
  config { enabled = true }
}
`, filepath.Join(dir, "client"), "client", port[3], port[4], port[5], port[1]))
	env := map[string]string{"NOMAD_ADDR": fmt.Sprintf("http://127.0.0.1:%d", port[0])}
	c, err := ClusterFrom(func(name string) string { return env[name] }, "default")
	if err != nil {
		t.Fatal(err)
	}
	b := &breakable{
		Cluster: c, absence: 2 * time.Minute,
		flags: []string{"--nomad-agent-address", fmt.Sprintf("http://127.0.0.1:%d", port[3])},
		up:    server.start, down: func() error { return server.end(syscall.SIGKILL) },
	}
	b.kill = func() error { return errors.Join(client.end(syscall.SIGKILL), b.awaitNode(t, "disconnected")) }
	b.revive = client.start
	b.giveUp = func() error {
		n, err := b.theNode(t.Context())
		if err != nil {
			return err
		}
		status, body, err := c.ask(t.Context(), http.MethodPut, "/v1/node/"+n.ID+"/purge")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("purging the node: %d %s", status, body)
		}
		return err
	}
	if err := b.awaitNode(t, "ready"); err != nil {
		t.Fatal(err)
	}
	return b
}

type nodeStub struct{ ID, Status string }

func (b *breakable) theNode(ctx context.Context) (nodeStub, error) {
	status, body, err := b.ask(ctx, http.MethodGet, "/v1/nodes")
	var nodes []nodeStub
	if err == nil {
		err = json.Unmarshal(body, &nodes)
	}
	if err != nil || len(nodes) != 1 {
		return nodeStub{}, fmt.Errorf("the nodes are not one: %d %.200s: %w", status, body, err)
	}
	return nodes[0], nil
}

// awaitNode waits for what Nomad's servers say of the node.
func (b *breakable) awaitNode(t *testing.T, want string) error {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	return await(ctx, "the node is not "+want, nil, func() (bool, error) {
		n, err := b.theNode(ctx)
		return n.Status == want, err
	})
}

// unmountBelow takes away what agents that were killed leave mounted.
func unmountBelow(t *testing.T, dir string) {
	body, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(string(body)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], dir+"/") {
			if err := unix.Unmount(f[1], unix.MNT_DETACH); err != nil {
				t.Errorf("unmount %s: %v", f[1], err)
			}
		}
	}
}
