package main

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"inspect/checks/redact"
	"inspect/envs/node"
	"inspect/envs/proc"
	"inspect/envs/sandbox"
	"inspect/scheduler/local"
)

// nodeConfig is the configuration of `inspect node`.
type nodeConfig struct {
	name, root, control, tokenFile, grantKey, gitBase, owner, cgroups, limits string
	expose                                                                    []string
	sandbox                                                                   tierFlags
	store                                                                     storeFlags
	sandboxUID, egressUID, mirrorUID, parent                                  int
	controlUID, runnerUID, quarantineUID                                      int
	spool, quarantines, registryAuth                                          string
	agent                                                                     agentFlags
	log                                                                       string
}

func nodeCommand() *cobra.Command {
	var c nodeConfig
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run the node daemon (inspect serve starts one of its own)",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runNode(cmd.Context(), c) },
	}
	f := cmd.Flags()
	f.StringVar(&c.name, "name", localNode, "name of this node, as the control plane knows it")
	f.StringVar(&c.root, "root", "/var/lib/inspect/node", "directory of snapshots, clones and mirrors")
	f.StringVar(&c.control, "control", "http://127.0.0.1:7462", "address of the control plane's machine listener")
	f.StringVar(&c.tokenFile, "token-file", "", "file with this node's token")
	f.StringVar(&c.grantKey, "grant-key", "", "the control plane's public key, hexadecimal")
	f.StringVar(&c.gitBase, "github-git", "https://github.com", "base address of repositories, or file:// and a directory; nothing else is fetched from")
	f.StringVar(&c.owner, "owner", "", "id of the installation: nothing of another is ever removed")
	f.StringVar(&c.cgroups, "cgroup-root", "/inspect", "control group of sandboxes")
	f.StringVar(&c.limits, "limits", "enforce", "enforce or best-effort")
	f.StringVar(&c.registryAuth, "registry-auth", "", registryAuthUsage)
	f.StringSliceVar(&c.expose, "expose", nil, "host directories that sandboxes may read")
	c.sandbox.flags(f)
	c.store.flags(f)
	f.IntVar(&c.sandboxUID, "sandbox-uid", sandboxUID, "account id of sandboxes")
	f.IntVar(&c.egressUID, "egress-uid", egressUID, "account id of the proxies of setup")
	f.IntVar(&c.mirrorUID, "mirror-uid", mirrorUID, "account id of git in the mirrors of repositories")
	f.IntVar(&c.controlUID, "control-uid", 0, "account id of a control plane on this machine that has runners and quarantines started here; 0: there is none")
	f.IntVar(&c.runnerUID, "runner-uid", runnerUID, fmt.Sprintf("first of the %d account ids of the runners it starts", runnerUIDs))
	f.IntVar(&c.quarantineUID, "quarantine-uid", quarantineUID, "account id of its quarantines")
	f.StringVar(&c.spool, "spool", "", "directory of the runners it starts")
	f.StringVar(&c.quarantines, "quarantines", "", "directory of its quarantines")
	f.IntVar(&c.parent, "parent", 0, "end, with everything that runs here, when the process with this id, which started this one, has ended")
	c.agent.flags(f)
	f.StringVar(&c.log, "log", "text", "text or json")
	cmd.AddCommand(nodeAddCommand(), drainCommand())
	return withEnvironment(cmd)
}

func runNode(ctx context.Context, c nodeConfig) error {
	// SIGTERM is for the daemon alone: sandboxes go on and the next daemon finds
	// them. SIGQUIT ends everything this installation runs on the node.
	run, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	family, done := withParent(run, c.parent)
	defer done()
	context.AfterFunc(family, func() {
		if errors.Is(context.Cause(family), errOrphaned) {
			stop(node.ErrStopAll)
		}
	})
	quit := make(chan os.Signal, 1)
	signal.Notify(quit, syscall.SIGQUIT)
	defer signal.Stop(quit)
	go func() {
		select {
		case <-quit:
			stop(node.ErrStopAll)
		case <-run.Done():
		}
	}()
	redactor := redact.New() // knows more as soon as secrets are read
	log := newLog(c.log, redactor).With("node", c.name)
	if err := checkControl(c.control); err != nil {
		return err
	}
	token, err := readSecret(c.tokenFile, "the node's token")
	if err != nil {
		return usageError{err}
	}
	redactor.Add(token)
	key, err := hex.DecodeString(c.grantKey)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return usagef("--grant-key: expected %d hexadecimal bytes", ed25519.PublicKeySize)
	}
	if c.owner == "" {
		return usagef("--owner is missing")
	}
	if err := c.sandbox.check(); err != nil {
		return err
	}
	if err := c.store.check(); err != nil {
		return err
	}
	if c.registryAuth != "" {
		if _, err := node.ReadRegistryAuth(c.registryAuth); err != nil {
			return usagef("--registry-auth: %w", err)
		}
	}
	advertise, err := c.agent.advertise(redactor)
	if err != nil {
		return usageError{err}
	}
	if err := os.MkdirAll(c.root, 0o711); err != nil {
		return err
	}
	lock, err := takeOver(ctx, proc.System(), filepath.Join(c.root, "daemon.lock"))
	if err != nil {
		return fmt.Errorf("the node daemon: %w", err)
	}
	defer lock.Close()
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	initFile := initProgram(binary, log)
	launcher, err := sandbox.New(sandbox.Options{
		Binary: initFile, Tool: binary, RunDir: filepath.Join(c.root, "run"), CgroupRoot: c.cgroups, UID: c.sandboxUID, GID: c.sandboxUID, Expose: c.expose,
		BestEffort: c.limits == "best-effort", Tier: c.sandbox.Tier, Runsc: c.sandbox.Runsc, Log: log,
	})
	if err != nil {
		return setupError{err}
	}
	defer launcher.Close()
	// The proxies' account starts what the sandboxes see as a tool.
	program := launcher.Tool()
	store, err := c.store.open(ctx, c.root, c.owner, log)
	if err != nil {
		return fmt.Errorf("the store of snapshots: %w", err)
	}
	defer store.Close()
	if err := closeToOthers(c.root, c.sandboxUID); err != nil {
		return fmt.Errorf("the node's directories: %w", err)
	}
	o := node.Options{
		Name: c.name, Root: c.root, Socket: filepath.Join(c.root, "node.sock"), ControlURL: c.control, Token: token,
		GrantKey: key, GitBase: c.gitBase, Store: store, Launcher: node.Sandboxes(launcher),
		SandboxUID: c.sandboxUID, SandboxGID: c.sandboxUID, EgressUID: c.egressUID, EgressGID: c.egressUID, MirrorUID: c.mirrorUID, MirrorGID: c.mirrorUID, Binary: program,
		RegistryAuth: c.registryAuth, Expose: c.expose, Redactor: redactor, Refreshes: 2, Advertise: advertise, Log: log,
	}
	if c.controlUID != 0 {
		q, err := forControl(c, binary, initFile, &o)
		if err != nil {
			return err
		}
		defer q.Close()
	}
	n, err := node.New(o)
	if err != nil {
		return err
	}
	err = n.Run(run)
	if errors.Is(context.Cause(run), node.ErrStopAll) {
		reapAll(launcher, log)
	}
	if errors.Is(context.Cause(family), errOrphaned) {
		// Nobody else is left to clear where the control plane read bundles.
		q, qerr := sandbox.New(sandbox.Options{
			Binary: initFile, CgroupRoot: c.cgroups + quarantineGroup, UID: c.sandboxUID, GID: c.sandboxUID, BestEffort: c.limits == "best-effort", Log: log,
		})
		if qerr == nil {
			reapAll(q, log)
			qerr = q.Close()
		}
		if qerr != nil {
			log.Warn("the control groups of quarantines stay", "error", qerr)
		}
	}
	return err
}

const registryAuthUsage = "file with credentials for registries of images, in the form of docker's config.json, that only root can read (only its owner, where the node daemon is not root)"

// checkControl refuses to send the node's token, and to be sent tokens and
// secrets, over a network in clear.
func checkControl(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.User != nil:
		return usagef("--control: expected an address like http://127.0.0.1:7462")
	case u.Scheme == "https", u.Scheme == "http" && isLoopback(u.Hostname()):
		return nil
	}
	return usagef("--control: to %s the node's token, GitHub tokens and secrets would travel in clear; only https:// may lead to another machine, http:// to a loopback address", u.Host)
}

// isLoopback says whether a host, without a port, is this machine for itself.
func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// forControl adds what a control plane on this machine that is not root needs
// done here.
func forControl(c nodeConfig, binary, initFile string, o *node.Options) (*sandbox.Launcher, error) {
	engine, err := local.New(local.Options{
		Binary: binary, ControlURL: c.control, NodeSocket: o.Socket, Dir: c.spool, UID: c.runnerUID, UIDs: runnerUIDs, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	q, err := sandbox.New(sandbox.Options{
		Binary: initFile, RunDir: filepath.Join(c.root, "run", "quarantine"), CgroupRoot: c.cgroups + quarantineGroup,
		UID: c.quarantineUID, GID: c.sandboxUID, BestEffort: c.limits == "best-effort", Log: o.Log,
	})
	if err != nil {
		return nil, setupError{err}
	}
	o.ControlUID, o.Runners, o.Quarantines = c.controlUID, runners{engine}, node.Sandboxes(q)
	o.QuarantineDir, o.QuarantineUID = c.quarantines, c.quarantineUID
	return q, nil
}

// quarantineGroup is below an installation's control group, for quarantines.
const quarantineGroup = "/quarantine"

// reapAll ends whatever is left of sandboxes, those of an interrupted start
// included.
func reapAll(l *sandbox.Launcher, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ids, err := l.List()
	if err != nil {
		log.Warn("sandboxes cannot be listed", "error", err)
	}
	for _, id := range ids {
		if err := l.Reap(ctx, id); err != nil {
			log.Warn("a sandbox that was left could not be ended", "sandbox", id, "error", err)
		}
	}
}

// nodeProcess is the node daemon as a process of its own, kept running.
type nodeProcess struct {
	binary  string
	dirs    directories
	control string
	config  serveConfig
	log     *slog.Logger
	says    io.Writer // what the daemon logs
	split   bool      // the control plane is not root: the daemon does for it what needs root
	orphan  bool      // it goes on when this process is killed, for the next one to take over
	tries   int       // how often in a row it may fail; 0: for ever
}

// run keeps the daemon running until ctx ends and then stops all it started.
func (p nodeProcess) run(ctx context.Context) error {
	signing, err := grantKey(p.dirs.private)
	if err != nil {
		return err
	}
	argv := []string{
		p.binary, "node", "--name", p.config.NodeName, "--root", p.dirs.node, "--control", p.control,
		"--token-file", filepath.Join(p.dirs.private, "node.token"),
		"--grant-key", hex.EncodeToString(signing.Public().(ed25519.PublicKey)),
		"--github-git", p.config.Git, "--owner", ownerOf(p.config.Data), "--cgroup-root", cgroupRoot(p.config.Data),
		"--limits", p.config.Limits, "--sandbox-uid", strconv.Itoa(p.config.SandboxUID),
		"--egress-uid", strconv.Itoa(p.config.EgressUID), "--mirror-uid", strconv.Itoa(p.config.MirrorUID), "--log", p.config.LogFormat,
	}
	argv = append(append(argv, p.config.Sandbox.args()...), p.config.Store.args()...)
	if c := p.config; c.Engine == engineNomad && c.Node == nodeHere {
		argv = append(argv, c.Nomad.agent().args()...)
	}
	if c := p.config; p.split {
		argv = append(argv, "--control-uid", strconv.Itoa(c.ControlUID), "--runner-uid", strconv.Itoa(c.RunnerUID), "--spool", p.dirs.spool,
			"--quarantine-uid", strconv.Itoa(c.QuarantineUID), "--quarantines", p.dirs.publish)
	}
	if f := p.config.RegistryAuth; f != "" {
		argv = append(argv, "--registry-auth", f)
	}
	if !p.orphan {
		argv = append(argv, "--parent", strconv.Itoa(os.Getpid()))
	}
	if len(p.config.Expose) > 0 {
		argv = append(argv, "--expose", strings.Join(p.config.Expose, ","))
	}
	wait := 100 * time.Millisecond
	for try := 1; ; try++ {
		started := time.Now()
		err := p.once(ctx, argv)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(started) > time.Minute {
			wait, try = 100*time.Millisecond, 1
		}
		if try == p.tries {
			return err
		}
		p.log.Warn("the node daemon ended and is started again", "error", err, "after", wait)
		if proc.Sleep(ctx, proc.System(), wait) != nil {
			return nil
		}
		wait = min(2*wait, 10*time.Second)
	}
}

// once runs the daemon until it ends, or until ctx ends and it has stopped
// everything, except under Nomad: runners go on there, and so do their sandboxes.
func (p nodeProcess) once(ctx context.Context, argv []string) error {
	run, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	done := make(chan error, 1)
	go func() {
		_, err := proc.Run(run, proc.Command{Argv: argv, Stdout: p.says, Stderr: p.says, Grace: 10 * time.Second})
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	stop := syscall.SIGQUIT
	if p.config.Engine == engineNomad {
		stop = syscall.SIGTERM
	}
	// The lock is held by the daemon, so the id in it is the daemon's.
	if pid := holder(filepath.Join(p.dirs.node, "daemon.lock")); pid > 1 {
		_ = syscall.Kill(pid, stop)
	}
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		end()
		return <-done
	}
}

// ownerOf is the id of the installation whose data directory this is.
func ownerOf(data string) string { return strings.TrimPrefix(cgroupRoot(data), "/") }

// closeToOthers lets only the sandboxes' group pass through the directories
// that hold repositories: other accounts of this machine see nothing of them.
func closeToOthers(root string, gid int) error {
	for _, name := range []string{"mirrors", "base", "snapshot", "session", "image", "tmp", "trash"} {
		path := filepath.Join(root, name)
		if err := passableBy(path, gid); err != nil {
			return err
		}
	}
	return nil
}

// passableBy makes a directory that its owner and one group can enter.
func passableBy(path string, gid int) error {
	if err := os.MkdirAll(path, 0o710); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, -1, gid); err != nil {
			return err
		}
	}
	return os.Chmod(path, 0o710)
}
