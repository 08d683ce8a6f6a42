package main

import (
	"context"
	"crypto/ed25519"
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
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"inspect/app/authority"
	"inspect/app/comment"
	"inspect/app/diagnosis"
	"inspect/app/fate"
	"inspect/app/github"
	"inspect/app/intake"
	"inspect/app/policy"
	"inspect/app/publish"
	"inspect/app/recovery"
	"inspect/app/report"
	"inspect/app/review"
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

// serve runs the product on this machine until ctx ends. As root it is split:
// see supervise. An ordinary user has one account, and one process for the
// control plane and what starts it. It returns nil after a stop that was asked for.
func serve(ctx context.Context, c serveConfig) error {
	redactor := redact.New() // knows more as soon as secrets are read
	log := newLog(c.LogFormat, redactor)
	root := os.Geteuid() == 0
	dirs, err := layOut(c.Data)
	if err != nil {
		return fmt.Errorf("the data directory: %w", err)
	}
	lock, err := soleServe(ctx, filepath.Join(dirs.private, "serve.lock"))
	if err != nil {
		return fmt.Errorf("inspect serve over %s: %w", c.Data, err)
	}
	defer lock.Close()
	if root {
		if err := dirs.giveAway(c); err != nil {
			return fmt.Errorf("the data directory: %w", err)
		}
	}
	given, err := gather(c, dirs)
	if err != nil {
		return err
	}
	keys, err := secretKeys(c.SecretsKeyFile, dirs.private, newSecretsKey)
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

	// What this machine lacks is said at once. As root it is the node daemon that
	// starts sandboxes, with a launcher of its own.
	runDir := dirs.run
	if root {
		runDir = ""
	}
	launcher, err := sandbox.New(sandbox.Options{
		Binary: initProgram(binary, log), RunDir: runDir, CgroupRoot: cgroupRoot(c.Data) + quarantineGroup, UID: c.SandboxUID, GID: c.SandboxUID,
		BestEffort: c.Limits == "best-effort", Log: log,
	})
	if err != nil {
		return setupError{err}
	}
	defer launcher.Close()
	// Listeners first: a taken port is said before anything is started.
	ports, err := openPorts(c)
	if err != nil {
		return err
	}
	defer ports.Close()
	node := nodeProcess{
		binary: binary, dirs: dirs, control: ports.control(), config: c, log: log, says: os.Stderr, orphan: true, split: root,
	}
	if root {
		return supervise(ctx, supervised{config: c, dirs: dirs, given: given, binary: binary, ports: ports, lock: lock, node: node, keys: keys, log: log})
	}

	if given.Database == "" {
		pg, err := startPostgres(ctx, c, dirs, log)
		if err != nil {
			return err
		}
		defer stopPostgres(ctx, pg, log)
		given.Database = pg.URL()
	}
	if err := passableBy(dirs.publish, c.SandboxUID); err != nil {
		return fmt.Errorf("the directory to publish from: %w", err)
	}
	reapAll(launcher, log) // what an earlier process left in the middle of reading a bundle
	floor, err := openFloor(c.PolicyFile, log)
	if err != nil {
		return usageError{err}
	}
	p := plane{
		config: c, dirs: dirs, given: given, ports: ports, floor: floor, keys: keys, redactor: redactor, log: log,
		runnerUID:  c.RunnerUID,
		quarantine: quarantine{launcher: launcher, uid: c.SandboxUID, gid: c.SandboxUID},
		beside:     node.run,
	}
	if c.Engine == engineNomad {
		p.engine, p.watch, err = nomadEngine(c.Nomad.options(given.Nomad, ports.control(), c.Nomad.token, redactor, log))
		if err != nil {
			return err
		}
		return p.run(ctx)
	}
	engine, err := local.New(local.Options{
		Binary: binary, ControlURL: ports.control(), NodeSocket: dirs.nodeSocket, Dir: dirs.spool, Log: log,
	})
	if err != nil {
		return fmt.Errorf("the local engine: %w", err)
	}
	p.engine, p.stopRunners = engine, engine.StopAll
	return p.run(ctx)
}

// ports are the three listeners.
type ports struct {
	hooks, people, machines net.Listener
}

func openPorts(c serveConfig) (p ports, err error) {
	for _, l := range []struct {
		flag, address string
		to            *net.Listener
	}{{"--listen-hooks", c.Hooks, &p.hooks}, {"--listen-people", c.People, &p.people}, {"--listen-machines", c.Machines, &p.machines}} {
		if *l.to, err = net.Listen("tcp", l.address); err != nil {
			p.Close()
			return p, fmt.Errorf("%s: %w", l.flag, err)
		}
	}
	return p, nil
}

func (p ports) all() []net.Listener { return []net.Listener{p.hooks, p.people, p.machines} }

// Close closes those that are open.
func (p ports) Close() {
	for _, l := range p.all() {
		if l != nil {
			l.Close()
		}
	}
}

// control is the address of the listener for machines.
func (p ports) control() string { return "http://" + p.machines.Addr().String() }

// plane is the control plane with what it needs from whoever starts it.
type plane struct {
	config   serveConfig
	dirs     directories
	given    given
	ports    ports
	floor    *floorFile
	keys     keyText // of environments' secrets
	redactor *redact.Redactor
	log      *slog.Logger // redacts by it

	engine      scheduler.Engine
	watch       func(context.Context) error // keeps the engine informed until ctx ends; nil: it needs none
	stopRunners func(context.Context)       // at the end; nil: runners go on
	runnerUID   int                         // of their grants
	quarantine  publish.Quarantine
	beside      func(context.Context) error // runs until the runners have ended; nil: nothing does
}

// run puts the rooms together, runs them and takes them down in the opposite
// order.
func (p plane) run(ctx context.Context) error {
	c, dirs, log, floor, redactor := p.config, p.dirs, p.log, p.floor, p.redactor
	secrets, signing := p.given.Webhooks, ed25519.NewKeyFromSeed(p.given.GrantSeed)
	models, err := p.given.models()
	if err != nil {
		return usageError{err}
	}
	redactor.Add(slices.Concat(secrets, models.Secrets(), p.given.Buildkite.secrets(), []string{p.given.Key, p.given.NodeToken, p.given.PeopleToken})...)
	public := strings.TrimRight(c.PublicURL, "/")
	if public == "" {
		public = "http://" + p.ports.people.Addr().String()
	}
	sessionURL := func(id string) string { return public + "/sessions/" + id }
	db, err := storage.Open(ctx, p.given.Database, log)
	if err != nil {
		return fmt.Errorf("the database: %w", err)
	}
	defer db.Close()
	vault := newVault(db, p.keys, redactor, log)
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
		AppID: c.AppID, Key: []byte(p.given.Key), APIBase: c.API, GitBase: c.Git,
		WriteSpacing: spacing, Redactor: redactor, Record: record, Log: log,
	})
	if err != nil {
		return usageError{err}
	}
	defer app.Close(ctx) // tokens do not outlive us
	fx := &effects{app: app, db: db}
	var in *intake.Intake
	sched, err = scheduler.New(scheduler.Options{
		DB: db, Blobs: blobs, Effects: fx, Engine: p.engine, Log: log, KeepEvents: time.Duration(c.KeepEvents),
		Limits: scheduler.Limits{
			Total: c.MaxSessions, PerRepository: c.MaxPerRepository, PerOwner: c.MaxPerOwner, PerInstallation: c.MaxPerInstallation,
		},
		MaxRefreshes: c.MaxRefreshes,
		Times:        scheduler.Times{Refresh: 15 * time.Minute},
		GrantKey:     signing, RunnerUID: p.runnerUID, MirrorNode: c.NodeName, ModelAPI: models.API, Bound: floor.bound, EgressInternal: c.EgressInternal,
		Secrets: vault, SecretsAllowed: floor.secrets, SubmoduleAllowed: floor.submodule, Redactor: redactor,
		Delivery: func(ctx context.Context, guid string) error {
			defer app.Revoke(ctx, guid)
			return in.Deliver(github.For(ctx, guid), guid)
		},
		Look: func(ctx context.Context, repositoryID int64) error {
			who := fmt.Sprintf("look %d", repositoryID)
			defer app.Revoke(context.WithoutCancel(ctx), who)
			return in.Look(github.For(ctx, who), repositoryID)
		},
		CloneURL: func(r storage.Repository) string {
			return app.CloneURL(github.Repo{ID: r.ID, Owner: r.Owner, Name: r.Name})
		},
	})
	if err != nil {
		return fmt.Errorf("the scheduler: %w", err)
	}
	judge := authority.Judge{OwnAppID: c.AppID, AllowedApps: c.AllowedApps, Pipelines: floor.pipeline}
	builder, err := c.Buildkite.client(p.given.Buildkite)
	if err != nil {
		return err
	}
	fates, err := fate.New(fate.Options{DB: db, GitHub: func(id int64) fate.GitHub { return app.Installation(id) }, Log: log})
	if err != nil {
		return fmt.Errorf("the fate of pull requests: %w", err)
	}
	reviews, err := review.New(review.Options{
		DB: db, Fates: fates, Floor: floor.For, SessionURL: sessionURL, Log: log,
		GitHub: func(id int64) review.GitHub { return app.Installation(id) },
		Decide: func(ctx context.Context, installation int64, repo github.Repo, a policy.Actor, need policy.Need) (policy.ActorDecision, error) {
			return judge.Decide(ctx, app.Installation(installation), repo, a, need)
		},
	})
	if err != nil {
		return fmt.Errorf("independent reviews: %w", err)
	}
	intakeOptions := intake.Options{
		DB: db, Sessions: sched, AppID: c.AppID, AllowedApps: c.AllowedApps, Labels: c.Labels, Harness: c.harness(), Models: offered(models), Floor: floor.For,
		Prepare: preparedAtInstall, SessionURL: sessionURL, Redactor: redactor, Log: log, Reviews: reviews, Fates: fates,
		Snapshots: func(ctx context.Context, repositoryID int64) ([]diagnosis.Snapshot, error) {
			all, err := currentSnapshots(ctx, db.Q(), time.Now())
			return all[repositoryID], err
		},
		GitHub:    func(id int64) intake.GitHub { return app.Installation(id) },
		Pipelines: floor.pipeline, PipelineByID: floor.pipelineByID, CloneURL: app.CloneURL,
	}
	if builder != nil {
		intakeOptions.Builds = builder
	}
	if in, err = intake.New(intakeOptions); err != nil {
		return fmt.Errorf("the intake: %w", err)
	}
	fx.publisher, err = publish.New(publish.Options{
		DB: db, Blobs: blobs, CloneURL: app.CloneURL, Bot: app.Bot, Redactor: redactor, SessionURL: sessionURL, Log: log,
		GitHub:     func(id int64) publish.GitHub { return app.Installation(id) },
		Authority:  judge,
		Quarantine: p.quarantine,
		Fetch: func(ctx context.Context, repository int64, branch, ref, commit string) error {
			return sched.Fetch(ctx, c.NodeName, repository, branch, ref, commit)
		},
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
	lost, err := recovery.New(recovery.Options{
		DB: db, App: app, Missed: in.Missed, Pull: reviews.Look, Working: in.LookAtPull, Fates: fates, Labels: c.Labels, Kept: keptDeliveries(app.Bases()), Log: log,
		GitHub: func(id int64) recovery.GitHub { return app.Installation(id) },
		Unreachable: func(ctx context.Context, session string) error {
			return sched.Supersede(ctx, session, scheduler.ReasonUnreachable, comment.RepositoryGone())
		},
	})
	if err != nil {
		return fmt.Errorf("the recovery of what was missed: %w", err)
	}
	hook, err := webhook.New(webhook.Options{DB: db, Jobs: sched, Log: log, Secrets: secrets, AppID: c.AppID, Events: intake.Events()})
	if err != nil {
		return usageError{err}
	}
	bk := buildkiteParts{
		flags: c.Buildkite, given: p.given.Buildkite, public: public, db: db, blobs: blobs, steps: in, jobs: sched, reporter: fx.reporter,
		sessionURL: sessionURL, repository: app.CloneURL, log: log,
	}
	steps, err := bk.door()
	if err != nil {
		return err
	}
	follower, err := bk.follower(builder, floor, fx.Report)
	if err != nil {
		return err
	}
	pageOptions := web.PagesOptions{
		Public: public, Press: in.Press,
		Ask: func(ctx context.Context, installation int64, repo github.Repo, a policy.Actor) (authority.Known, error) {
			return judge.Ask(ctx, app.Installation(installation), repo, a)
		},
		DB: db, Blobs: blobs, Token: p.given.PeopleToken, TokenPlace: "in " + filepath.Join(dirs.private, "people.token"),
		AllowedHosts: hostsOf(public), GitHub: app.Bases().Git, Redactor: redactor, Log: log,
	}
	if p.given.Client != "" {
		o := github.Options{APIBase: c.API, GitBase: c.Git, Log: log, Redactor: redactor}
		if pageOptions.SignIn, err = github.NewSignIn(o, c.ClientID, p.given.Client, public+web.BackPath); err != nil {
			return err
		}
	}
	pages, err := web.NewPages(pageOptions)
	if err != nil {
		return fmt.Errorf("people's pages: %w", err)
	}
	hash := sha256.Sum256([]byte(p.given.NodeToken))
	if err := sched.RegisterNode(ctx, c.NodeName, hash[:]); err != nil {
		return fmt.Errorf("the local node: %w", err)
	}
	if c.Node == nodeNone { // it keeps mirrors and reads results
		if _, err := db.Q().SetNodeDraining(ctx, storage.SetNodeDrainingParams{Name: c.NodeName, Draining: true}); err != nil {
			return fmt.Errorf("the local node: %w", err)
		}
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
	group.Go(func() error { return listen(run, p.ports.hooks, hooks(hook, steps)) })
	group.Go(func() error { return listen(run, p.ports.people, pages) })
	group.Go(func() error {
		// Machines are heard until the runners have ended.
		return listen(stopped, p.ports.machines, web.NewMachines(web.MachinesOptions{Machines: sched, Model: model, Log: log}))
	})
	if p.beside != nil {
		group.Go(func() error { return p.beside(stopped) })
	}
	if p.watch != nil {
		group.Go(func() error {
			if err := p.watch(stopped); stopped.Err() == nil {
				return fmt.Errorf("the engine: %w", errors.Join(err, errEnded))
			}
			return nil
		})
	}
	group.Go(func() error {
		err := sched.Run(run)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if p.stopRunners != nil {
			p.stopRunners(end) // sessions go on from their last bundle when we start again
		}
		stopAll(nil)
		return err
	})
	group.Go(func() error { knowBot(run, app, log); return nil })
	group.Go(func() error { return lost.Run(run) })
	group.Go(func() error { return follower.Run(run) })
	log.Info("inspect serves", "version", version(), "hooks", "http://"+p.ports.hooks.Addr().String()+webhook.DefaultPath, "people", public, "token", "in "+filepath.Join(dirs.private, "people.token"), "machines", p.ports.control())
	err = group.Wait()
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}

// keptDeliveries is for how long GitHub can be asked for what it sent.
func keptDeliveries(b github.Bases) time.Duration {
	if strings.HasSuffix(b.API, "/api/v3/") {
		return recovery.KeptByEnterprise
	}
	return recovery.KeptByGitHub
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
	if scheduler.Terminal(s.State) {
		// Also when the end could not be told: that may have been the last try.
		e.app.Revoke(context.WithoutCancel(ctx), s.ID)
	}
	return err
}

// mirrorOf owns the tokens that a repository's mirrors, and those of its
// submodules, are fetched with.
func mirrorOf(repositoryID int64) string { return fmt.Sprintf("mirror %d", repositoryID) }

func (e *effects) GitTokenDone(ctx context.Context, repositoryID int64) {
	e.app.Revoke(ctx, mirrorOf(repositoryID))
}

func (e *effects) GitToken(ctx context.Context, repositoryID, of int64) (wire.GitToken, error) {
	repo, err := e.db.Q().GetRepositoryRow(ctx, repositoryID)
	if err != nil {
		return wire.GitToken{}, fmt.Errorf("repository %d: %w", repositoryID, err)
	}
	return e.app.Installation(repo.InstallationID).ReadToken(github.For(ctx, mirrorOf(of)), repositoryID)
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

// placesIn is where everything of a data directory is.
func placesIn(data string) directories {
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
	return d
}

// layOut makes them.
func layOut(data string) (directories, error) {
	d := placesIn(data)
	if len(d.nodeSocket) > 107 {
		return d, fmt.Errorf("%s is too long a path: the node daemon's socket in it must stay under 108 bytes", data)
	}
	for dir, mode := range map[string]fs.FileMode{data: 0o711, d.private: 0o700, d.bin: 0o755, d.node: 0o711, d.spool: 0o711, d.publish: 0o711, d.run: 0o711} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return d, err
		}
		if err := os.Chmod(dir, mode); err != nil {
			return d, err
		}
	}
	return d, nil
}

// giveAway gives the accounts of a split installation what is theirs: the
// control plane its evidence and the directory it publishes from, through which
// also the quarantines' account passes. What an earlier control plane left there
// in the middle of its work is removed: only root can remove all of it.
func (d directories) giveAway(c serveConfig) error {
	if err := os.RemoveAll(d.publish); err != nil {
		return err
	}
	if err := passableBy(d.publish, c.SandboxUID); err != nil {
		return err
	}
	if err := os.Chown(d.publish, c.ControlUID, -1); err != nil {
		return err
	}
	evidence, ok := strings.CutPrefix(c.EvidenceURL, "file://")
	if !ok || !strings.HasPrefix(evidence, c.Data+"/") {
		return nil // the operator's, who lets the control plane write there
	}
	if err := os.MkdirAll(evidence, 0o700); err != nil {
		return err
	}
	if st, err := os.Lstat(evidence); err != nil || int(st.Sys().(*syscall.Stat_t).Uid) == c.ControlUID {
		return err
	}
	// Made by root, before the control plane had an account: nobody else could
	// come here until now.
	return filepath.WalkDir(evidence, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, c.ControlUID, c.ControlUID)
	})
}

// cgroupRoot is where an installation's control groups are: two on one machine
// do not meet.
func cgroupRoot(data string) string {
	sum := sha256.Sum256([]byte(data))
	return "/inspect-" + hex.EncodeToString(sum[:4])
}

func hostsOf(public string) []string {
	host := strings.TrimPrefix(strings.TrimPrefix(public, "https://"), "http://")
	host, _, _ = strings.Cut(host, "/")
	return []string{host}
}
