package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"inspect/app/github"
	"inspect/app/publish"
	"inspect/app/web"
	"inspect/checks/redact"
	"inspect/cmd/inspect/try"
	"inspect/envs/gateway"
	"inspect/envs/sandbox"
	"inspect/scheduler"
	"inspect/scheduler/local"
	"inspect/storage"
)

// house is the control plane of `inspect try` while it is built and taken down:
// the rooms of `inspect serve` without a forge and without people's pages.
type house struct {
	ctx        context.Context // of what is started, until the end
	log        *slog.Logger
	dirs       directories
	config     serveConfig
	pricesAsOf string
	failed     chan error
	closing    sync.Once
	undo       []func() // what takes it down, newest last
}

// houses builds houses with the given models, sandboxes and store.
func houses(models gateway.Config, tier tierFlags, store storeFlags) try.Opener {
	return func(ctx context.Context, o try.HouseOptions) (*try.House, error) {
		h := &house{
			ctx: context.WithoutCancel(ctx), failed: make(chan error, 8),
			log: slog.New(slog.NewTextHandler(o.Log, nil)), pricesAsOf: models.PricesAsOf,
		}
		h.config.Sandbox, h.config.Store = tier, store
		out, err := h.open(ctx, o, models)
		if err != nil {
			h.close()
			return nil, err
		}
		out.Close = h.close
		return out, nil
	}
}

func (h *house) close() {
	h.closing.Do(func() {
		for i := len(h.undo) - 1; i >= 0; i-- {
			h.undo[i]()
		}
	})
}

func (h *house) later(f func()) { h.undo = append(h.undo, f) }

// room runs a part of the house until its context ends. One that ends before is
// told.
func (h *house) room(name string, ctx context.Context, run func(context.Context) error) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := run(ctx); ctx.Err() == nil {
			h.failed <- fmt.Errorf("%s: %w", name, errors.Join(err, errEnded))
		}
	}()
	return func() { <-done }
}

var errEnded = errors.New("it ended by itself")

// nodeTries is how often in a row the node daemon may fail before all is given up.
const nodeTries = 5

// fileURL is the address of a file of this machine.
func fileURL(path string) string { return (&url.URL{Scheme: "file", Path: path}).String() }

// within is a context for taking something down.
func (h *house) within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(h.ctx, d)
}

func (h *house) open(ctx context.Context, o try.HouseOptions, models gateway.Config) (*try.House, error) {
	h.config = serveConfig{
		Data: o.Data, Git: fileURL(o.Origins), Expose: o.Expose, Limits: o.Limits, Sandbox: h.config.Sandbox, Store: h.config.Store, LogFormat: "text",
		NodeName: localNode, SandboxUID: sandboxUID, RunnerUID: tryRunnerUID, EgressUID: egressUID, MirrorUID: mirrorUID,
	}
	if me := os.Getuid(); os.Geteuid() != 0 {
		h.config.SandboxUID, h.config.RunnerUID, h.config.EgressUID, h.config.MirrorUID = me, me, me, me
	}
	var err error
	if h.dirs, err = layOut(o.Data); err != nil {
		return nil, fmt.Errorf("the data directory: %w", err)
	}
	signing, err := grantKey(h.dirs.private)
	if err != nil {
		return nil, err
	}
	nodeToken, err := secretFile(h.dirs.private, "node.token", randomToken)
	if err != nil {
		return nil, err
	}
	binary, err := ownBinary(h.dirs.bin)
	if err != nil {
		return nil, fmt.Errorf("copy this program to where sandboxes can reach it: %w", err)
	}
	redactor := redact.New(append(models.Secrets(), string(nodeToken))...)

	out := &try.House{Failed: h.failed}
	if err := h.database(ctx, out); err != nil {
		return nil, err
	}
	if out.Blobs, err = storage.OpenBlobs(ctx, fileURL(filepath.Join(o.Data, "evidence"))); err != nil {
		return nil, fmt.Errorf("the store of evidence: %w", err)
	}
	h.later(func() { out.Blobs.Close() })
	publisher, err := h.publisher(ctx, o, out, binary, redactor)
	if err != nil {
		return nil, err
	}
	machines, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("the listener for machines: %w", err)
	}
	h.later(func() { machines.Close() })
	control := "http://" + machines.Addr().String()
	runner := 0 // ourselves
	if os.Geteuid() == 0 {
		runner = h.config.RunnerUID
	}
	engine, err := local.New(local.Options{
		Binary: binary, ControlURL: control, NodeSocket: h.dirs.nodeSocket, Dir: h.dirs.spool,
		UID: runner, Args: []string{"--parent", strconv.Itoa(os.Getpid())}, Log: h.log,
	})
	if err != nil {
		return nil, fmt.Errorf("the local engine: %w", err)
	}
	out.Scheduler, err = scheduler.New(scheduler.Options{
		DB: out.DB, Blobs: out.Blobs, Effects: o.Effects(publisher), Engine: engine, Log: h.log, NoForge: true,
		Times:    scheduler.Times{Refresh: o.Prepare, Publish: 5 * time.Minute, Drain: 5 * time.Second},
		GrantKey: signing, RunnerUID: h.config.RunnerUID, ModelAPI: models.API,
		CloneURL: func(r storage.Repository) string { return o.CloneURL(r.ID) },
	})
	if err != nil {
		return nil, fmt.Errorf("the scheduler: %w", err)
	}
	hash := sha256.Sum256(nodeToken)
	if err := out.Scheduler.RegisterNode(ctx, localNode, hash[:]); err != nil {
		return nil, fmt.Errorf("the local node: %w", err)
	}
	model, err := modelGateway(models, out.Scheduler, h.log)
	if err != nil {
		return nil, fmt.Errorf("the model gateway: %w", err)
	}
	if err := out.Scheduler.SettleLost(ctx); err != nil {
		return nil, err
	}
	h.later(func() {
		end, cancel := h.within(time.Minute)
		defer cancel()
		if err := h.config.Store.erase(end, h.dirs.node, ownerOf(h.config.Data)); err != nil {
			h.log.Error("what is in the pool could not be removed", "error", err)
		}
	})
	h.start(out.Scheduler, engine, machines, web.MachinesOptions{Machines: out.Scheduler, Model: model, Log: h.log},
		nodeProcess{binary: binary, dirs: h.dirs, control: control, config: h.config, log: h.log, says: o.Log, tries: nodeTries})
	return out, nil
}

// start starts the rooms that run by themselves. They are taken down as those
// of `inspect serve`: machines are heard until the runners have ended.
func (h *house) start(sched *scheduler.Scheduler, engine *local.Engine, machines net.Listener, o web.MachinesOptions, node nodeProcess) {
	run, stop := context.WithCancel(h.ctx)
	late, stopLate := context.WithCancel(h.ctx)
	waitListener := h.room("the listener for machines", late, func(ctx context.Context) error { return listen(ctx, machines, web.NewMachines(o)) })
	waitNode := h.room("the node daemon", late, node.run)
	waitScheduler := h.room("the scheduler", run, sched.Run)
	h.later(func() {
		stop()
		waitScheduler()
		end, cancel := h.within(30 * time.Second)
		defer cancel()
		engine.StopAll(end)
		stopLate()
		waitNode()
		waitListener()
	})
}

// database starts the private database.
func (h *house) database(ctx context.Context, out *try.House) error {
	pg, err := storage.StartPostgres(ctx, filepath.Join(h.config.Data, "postgres"), h.log)
	if errors.Is(err, storage.ErrNotInstalled) {
		return setupError{err}
	}
	if err != nil {
		return fmt.Errorf("the private database: %w", err)
	}
	stopped := make(chan struct{})
	h.later(func() {
		close(stopped)
		end, cancel := h.within(30 * time.Second)
		defer cancel()
		if err := pg.Stop(end); err != nil {
			h.log.Error("the private database did not stop", "error", err)
		}
	})
	go func() {
		select {
		case <-stopped:
		case <-pg.Exited():
			h.failed <- fmt.Errorf("the private database: %w", errEnded)
		}
	}()
	if out.DB, err = storage.Open(ctx, pg.URL(), h.log); err != nil {
		return fmt.Errorf("the database: %w", err)
	}
	h.later(out.DB.Close)
	return nil
}

// publisher judges results and keeps evidence.
func (h *house) publisher(ctx context.Context, o try.HouseOptions, out *try.House, binary string, redactor *redact.Redactor) (*publish.Publisher, error) {
	uid := h.config.SandboxUID
	launcher, err := sandbox.New(sandbox.Options{
		Binary: initProgram(binary, h.log), RunDir: h.dirs.run, CgroupRoot: cgroupRoot(o.Data) + quarantineGroup, UID: uid, GID: uid,
		BestEffort: o.Limits == "best-effort", Log: h.log,
	})
	if err != nil {
		return nil, setupError{err}
	}
	h.later(func() { launcher.Close() })
	if _, err := launcher.Probe(ctx); err != nil {
		return nil, setupError{fmt.Errorf("this machine cannot isolate a sandbox: %w", err)}
	}
	if err := passableBy(h.dirs.publish, uid); err != nil {
		return nil, fmt.Errorf("the directory to publish from: %w", err)
	}
	reapAll(launcher, h.log)
	p, err := publish.New(publish.Options{
		DB: out.DB, Blobs: out.Blobs, NoForge: true, PricesAsOf: h.pricesAsOf, Redactor: redactor, Log: h.log,
		GitHub:     func(int64) publish.GitHub { return o.GitHub },
		CloneURL:   func(r github.Repo) string { return o.CloneURL(r.ID) },
		Quarantine: quarantine{launcher: launcher, uid: uid, gid: uid},
		Mirrors:    h.dirs.mirrors, WorkDir: h.dirs.publish,
		Record: func(ctx context.Context, session string, w github.Write) error {
			return out.Scheduler.Record(ctx, session, scheduler.EventGitHub, w)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("publishing: %w", err)
	}
	return p, nil
}
