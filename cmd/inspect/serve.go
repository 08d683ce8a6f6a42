package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"inspect/app/github"
	"inspect/app/intake"
	"inspect/app/publish"
	"inspect/app/report"
	"inspect/app/web"
	"inspect/app/webhook"
	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/sandbox"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/scheduler/local"
	"inspect/storage"
)

// localNode is the name of the one node that `inspect serve` brings along.
const localNode = "local"

func serveCommand() *cobra.Command {
	var c serveConfig
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the control plane and a node daemon on this machine",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.check(); err != nil {
				return err
			}
			return serve(cmd.Context(), c)
		},
	}
	c.flags(cmd.Flags())
	return withEnvironment(cmd)
}

// serve puts the rooms together, runs them and takes them down in the opposite
// order. It returns nil after a stop that was asked for.
func serve(ctx context.Context, c serveConfig) error {
	redactor := redact.New() // knows more as soon as secrets are read
	log := newLog(c.LogFormat, redactor)
	dirs, err := layOut(c.Data)
	if err != nil {
		return fmt.Errorf("the data directory: %w", err)
	}
	lock, err := lockFile(filepath.Join(dirs.private, "serve.lock"))
	if err != nil {
		return fmt.Errorf("inspect serve over %s: %w", c.Data, err)
	}
	defer lock.Close()

	key, err := readSecret(c.KeyFile, "the App's private key")
	if err != nil {
		return usageError{err}
	}
	secrets, err := webhookSecrets(c)
	if err != nil {
		return usageError{err}
	}
	signing, err := grantKey(dirs.private)
	if err != nil {
		return err
	}
	nodeToken, err := secretFile(dirs.private, "node.token", randomToken)
	if err != nil {
		return err
	}
	peopleToken, err := secretFile(dirs.private, "people.token", randomToken)
	if err != nil {
		return err
	}
	sealing, err := secretKeys(c.SecretsKeyFile, dirs.private, newSecretsKey)
	if err != nil {
		return usageError{err}
	}
	models, err := loadModels(c.ModelsFile)
	if err != nil {
		return usageError{err}
	}
	floor, err := openFloor(c.PolicyFile, log)
	if err != nil {
		return usageError{err}
	}
	binary, err := ownBinary(dirs.bin)
	if err != nil {
		return fmt.Errorf("copy this program to where sandboxes can reach it: %w", err)
	}
	agents, err := lendAgents(c, filepath.Join(dirs.bin, "agents"))
	if err != nil {
		return err
	}
	c.Expose = append(c.Expose, agents...)
	redactor.Add(append(append(secrets, models.Secrets()...), key, string(nodeToken), string(peopleToken))...)

	// Listeners first: a taken port is said before anything is started.
	hooks, err := net.Listen("tcp", c.Hooks)
	if err != nil {
		return fmt.Errorf("--listen-hooks: %w", err)
	}
	defer hooks.Close()
	people, err := net.Listen("tcp", c.People)
	if err != nil {
		return fmt.Errorf("--listen-people: %w", err)
	}
	defer people.Close()
	machines, err := net.Listen("tcp", c.Machines)
	if err != nil {
		return fmt.Errorf("--listen-machines: %w", err)
	}
	defer machines.Close()
	control := "http://" + machines.Addr().String()
	public := strings.TrimRight(c.PublicURL, "/")
	if public == "" {
		public = "http://" + people.Addr().String()
	}
	sessionURL := func(id string) string { return public + "/sessions/" + id }

	url := c.PostgresURL
	if url == "" {
		pg, err := storage.StartPostgres(ctx, filepath.Join(c.Data, "postgres"), log)
		if errors.Is(err, storage.ErrNotInstalled) {
			return setupError{err}
		}
		if err != nil {
			return fmt.Errorf("the private database: %w", err)
		}
		defer func() {
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
			defer cancel()
			if err := pg.Stop(stop); err != nil {
				log.Error("the private database did not stop", "error", err)
			}
		}()
		url = pg.URL()
	}
	db, err := storage.Open(ctx, url, log)
	if err != nil {
		return fmt.Errorf("the database: %w", err)
	}
	defer db.Close()
	vault := newVault(db, sealing, redactor, log)
	if err := vault.Learn(ctx); err != nil {
		return err
	}
	blobs, err := storage.OpenBlobs(ctx, c.EvidenceURL)
	if err != nil {
		return fmt.Errorf("the store of evidence: %w", err)
	}
	defer blobs.Close()

	spacing := c.WriteSpacing
	if spacing == 0 {
		spacing = -1 // none
	}
	var sched *scheduler.Scheduler
	record := func(ctx context.Context, session string, w github.Write) error {
		return sched.Record(ctx, session, scheduler.EventGitHub, w)
	}
	app, err := github.New(github.Options{
		AppID: c.AppID, Key: []byte(key), APIBase: c.API, GitBase: c.Git,
		WriteSpacing: spacing, Redactor: redactor, Record: record, Log: log,
	})
	if err != nil {
		return usageError{err}
	}
	defer app.Close(ctx) // tokens do not outlive us
	launcher, err := sandbox.New(sandbox.Options{
		Binary: binary, RunDir: dirs.run, CgroupRoot: cgroupRoot(c.Data) + "/quarantine", UID: c.SandboxUID, GID: c.SandboxUID,
		BestEffort: c.Limits == "best-effort", Log: log,
	})
	if err != nil {
		return setupError{err}
	}
	defer launcher.Close()
	if err := passableBy(dirs.publish, c.SandboxUID); err != nil {
		return fmt.Errorf("the directory to publish from: %w", err)
	}
	reapAll(launcher, log) // what an earlier process left in the middle of reading a bundle
	engine, err := local.New(local.Options{
		Binary: binary, ControlURL: control, NodeSocket: dirs.nodeSocket, Dir: dirs.spool,
		Credential: credential(c.RunnerUID), Log: log,
	})
	if err != nil {
		return fmt.Errorf("the local engine: %w", err)
	}

	fx := &effects{app: app, db: db}
	var in *intake.Intake
	sched, err = scheduler.New(scheduler.Options{
		DB: db, Blobs: blobs, Effects: fx, Engine: engine, Log: log, KeepEvents: time.Duration(c.KeepEvents),
		Limits:   scheduler.Limits{Total: c.MaxSessions},
		Times:    scheduler.Times{Refresh: 15 * time.Minute},
		GrantKey: signing, RunnerUID: c.RunnerUID, ModelAPI: models.API, Bound: floor.bound,
		Secrets: vault, SecretsAllowed: floor.secrets, Redactor: redactor,
		Delivery: func(ctx context.Context, guid string) error {
			defer app.Revoke(ctx, guid)
			return in.Deliver(github.For(ctx, guid), guid)
		},
		CloneURL: func(r storage.Repository) string {
			return app.CloneURL(github.Repo{ID: r.ID, Owner: r.Owner, Name: r.Name})
		},
	})
	if err != nil {
		return fmt.Errorf("the scheduler: %w", err)
	}
	in, err = intake.New(intake.Options{
		DB: db, Sessions: sched, AppID: c.AppID, Labels: c.Labels, Harness: c.harness(), Models: offered(models), Floor: floor.For,
		Prepare: preparedAtInstall, SessionURL: sessionURL, Redactor: redactor, Log: log,
		GitHub: func(id int64) intake.GitHub { return app.Installation(id) },
	})
	if err != nil {
		return fmt.Errorf("the intake: %w", err)
	}
	fx.publisher, err = publish.New(publish.Options{
		DB: db, Blobs: blobs, CloneURL: app.CloneURL, Bot: app.Bot, Redactor: redactor, SessionURL: sessionURL, Log: log,
		GitHub:     func(id int64) publish.GitHub { return app.Installation(id) },
		Quarantine: quarantine{launcher: launcher, uid: c.SandboxUID, gid: c.SandboxUID},
		PricesAsOf: models.PricesAsOf, Floor: floor.For, Record: record,
		Mirrors: dirs.mirrors, WorkDir: dirs.publish,
	})
	if err != nil {
		return fmt.Errorf("publishing: %w", err)
	}
	fx.reporter, err = report.New(report.Options{
		DB: db, Evidence: fx.publisher, SessionURL: sessionURL, Redactor: redactor, Log: log,
		RepositoryURL: func(r github.Repo) string { return strings.TrimSuffix(app.CloneURL(r), ".git") },
		GitHub:        func(id int64) report.GitHub { return app.Installation(id) },
	})
	if err != nil {
		return fmt.Errorf("reporting: %w", err)
	}
	hook, err := webhook.New(webhook.Options{DB: db, Jobs: sched, Log: log, Secrets: secrets, AppID: c.AppID, Events: intake.Events()})
	if err != nil {
		return usageError{err}
	}
	pages, err := web.NewPages(web.PagesOptions{
		DB: db, Blobs: blobs, Token: string(peopleToken), TokenPlace: "in " + filepath.Join(dirs.private, "people.token"),
		AllowedHosts: hostsOf(public), GitHub: app.Bases().Git, Log: log,
	})
	if err != nil {
		return fmt.Errorf("people's pages: %w", err)
	}
	hash := sha256.Sum256(nodeToken)
	if err := sched.RegisterNode(ctx, localNode, hash[:]); err != nil {
		return fmt.Errorf("the local node: %w", err)
	}

	model, err := modelGateway(models, sched, log)
	if err != nil {
		return fmt.Errorf("the model gateway: %w", err)
	}
	// What an earlier process had under way with a provider has ended with it.
	if err := sched.SettleLost(ctx); err != nil {
		return err
	}

	stopped, stopAll := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopAll(nil)
	group, run := errgroup.WithContext(ctx)
	group.Go(func() error { return listen(run, hooks, hook) })
	group.Go(func() error { return listen(run, people, pages) })
	group.Go(func() error {
		// Machines are heard until the runners have ended.
		return listen(stopped, machines, web.NewMachines(web.MachinesOptions{Machines: sched, Model: model, Log: log}))
	})
	group.Go(func() error {
		return nodeProcess{binary: binary, dirs: dirs, control: control, config: c, log: log, says: os.Stderr, orphan: true}.run(stopped)
	})
	group.Go(func() error {
		err := sched.Run(run)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		engine.StopAll(end) // sessions go on from their last bundle when we start again
		stopAll(nil)
		return err
	})
	group.Go(func() error { knowBot(run, app, log); return nil })
	log.Info("inspect serves", "hooks", "http://"+hooks.Addr().String()+webhook.DefaultPath, "people", public, "token", "in "+filepath.Join(dirs.private, "people.token"), "machines", control)
	err = group.Wait()
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}

// preparedAtInstall is how many repositories of a new installation get their
// environment prepared before anybody asks.
const preparedAtInstall = 20

// listen serves h on l until ctx ends and what is going on has been answered.
func listen(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := web.NewServer(h)
	base, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	srv.BaseContext = func(net.Listener) context.Context { return base }
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	cut() // long polls answer at once
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := srv.Shutdown(end); err != nil {
		srv.Close()
	}
	<-done
	return nil
}

// knowBot asks GitHub who we are as soon as there is an installation, so that
// no session waits for it.
func knowBot(ctx context.Context, app *github.App, log *slog.Logger) {
	wait := time.Second
	for {
		if _, err := app.Bot(ctx); err == nil || ctx.Err() != nil {
			return
		} else if wait >= time.Minute {
			log.Warn("GitHub does not say who we are", "error", err)
		}
		if proc.Sleep(ctx, proc.System(), wait) != nil {
			return
		}
		wait = min(2*wait, 5*time.Minute)
	}
}

// effects joins what app does for the scheduler.
type effects struct {
	app       *github.App
	publisher *publish.Publisher
	reporter  *report.Reporter
	db        *storage.DB
}

func (e *effects) Publish(ctx context.Context, s storage.Session) (scheduler.Published, error) {
	return e.publisher.Publish(github.For(ctx, s.ID), s)
}

func (e *effects) Report(ctx context.Context, s storage.Session) error {
	err := e.reporter.Report(github.For(ctx, s.ID), s)
	if err == nil && scheduler.Terminal(s.State) {
		e.app.Revoke(ctx, s.ID)
	}
	return err
}

// mirrorOf owns the token that a repository's mirrors are fetched with.
func mirrorOf(repositoryID int64) string { return fmt.Sprintf("mirror %d", repositoryID) }

func (e *effects) GitTokenDone(ctx context.Context, repositoryID int64) {
	e.app.Revoke(ctx, mirrorOf(repositoryID))
}

func (e *effects) GitToken(ctx context.Context, repositoryID int64) (wire.GitToken, error) {
	repo, err := e.db.Q().GetRepositoryRow(ctx, repositoryID)
	if err != nil {
		return wire.GitToken{}, fmt.Errorf("repository %d: %w", repositoryID, err)
	}
	return e.app.Installation(repo.InstallationID).ReadToken(github.For(ctx, mirrorOf(repositoryID)), repositoryID)
}

// directories of an installation. Only private is closed to the accounts of
// runners and sandboxes; through the others they can pass, not look around.
type directories struct {
	private    string // keys, tokens, lock
	bin        string // this program, for sandboxes and runners
	node       string
	nodeSocket string
	mirrors    string
	spool      string // of runners
	run        string // what the launcher of quarantines needs
	publish    string // quarantines
}

func layOut(data string) (directories, error) {
	d := directories{
		private: filepath.Join(data, "private"),
		bin:     filepath.Join(data, "bin"),
		node:    filepath.Join(data, "node"),
		spool:   filepath.Join(data, "spool"),
		publish: filepath.Join(data, "publish"),
		run:     filepath.Join(data, "run"),
	}
	d.nodeSocket = filepath.Join(d.node, "node.sock")
	d.mirrors = filepath.Join(d.node, "mirrors")
	if len(d.nodeSocket) > 107 {
		return d, fmt.Errorf("%s is too long a path: the node daemon's socket in it must stay under 108 bytes", data)
	}
	for dir, mode := range map[string]fs.FileMode{data: 0o711, d.private: 0o700, d.bin: 0o755, d.node: 0o711, d.spool: 0o711, d.publish: 0o711, d.run: 0o755} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return d, err
		}
		if err := os.Chmod(dir, mode); err != nil {
			return d, err
		}
	}
	return d, nil
}

// ownBinary copies this program into dir under a name made of its content, so
// that an upgrade does not pull it away from what runs.
func ownBinary(dir string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	body, err := os.ReadFile(self)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(body)
	path := filepath.Join(dir, "inspect-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, body, 0o755); err != nil {
		return "", err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", err
	}
	return path, os.Rename(tmp, path)
}

// cgroupRoot is where an installation's control groups are: two on one machine
// do not meet.
func cgroupRoot(data string) string {
	sum := sha256.Sum256([]byte(data))
	return "/inspect-" + hex.EncodeToString(sum[:4])
}

func webhookSecrets(c serveConfig) ([]string, error) {
	var out []string
	for _, path := range []string{c.SecretFile, c.OldSecretFile} {
		if path == "" {
			continue
		}
		s, err := readSecret(path, "the webhook secret")
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// credential is the account of runners; nil where this process may not choose.
func credential(uid int) *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid), Groups: []uint32{}}
}

func hostsOf(public string) []string {
	host := strings.TrimPrefix(strings.TrimPrefix(public, "https://"), "http://")
	host, _, _ = strings.Cut(host, "/")
	return []string{host}
}
