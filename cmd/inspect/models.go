package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"inspect/app/web"
	"inspect/envs/gateway"
	"inspect/envs/wire"
	"inspect/scheduler"
)

// loadModels reads the configuration of models; without a file there are none.
func loadModels(file string) (gateway.Config, error) {
	if file == "" {
		return gateway.Config{}, nil
	}
	cfg, err := gateway.Load(file)
	if err != nil {
		return cfg, fmt.Errorf("--models: %w", err)
	}
	return cfg, nil
}

// offered says which model a kind of harness works with: the one asked for, or
// the default for "". The error is for people.
func offered(cfg gateway.Config) func(kind, model string) (string, error) {
	return func(kind, model string) (string, error) {
		if model == "" {
			model = cfg.Default
		}
		if model == "" {
			return "", errors.New("no model is named, and whoever runs Inspect has set no default (`default` in the file of `inspect serve --models`)")
		}
		if _, err := cfg.API(model, kind); err != nil {
			return "", err
		}
		return model, nil
	}
}

// modelGateway is the gateway's handler for the machines' listener. Money is
// kept by the scheduler, callers are the runners it knows.
func modelGateway(cfg gateway.Config, sched *scheduler.Scheduler, log *slog.Logger) (http.Handler, error) {
	return gateway.NewHandler(gateway.HandlerOptions{
		Config: cfg, Ledger: sched, Log: log,
		Authenticate: func(r *http.Request) (wire.ModelCaller, error) {
			run, err := web.RunnerOf(sched, r)
			if err != nil {
				return wire.ModelCaller{}, err
			}
			return sched.ModelCaller(r.Context(), run)
		},
	})
}
