package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"inspect/envs/gateway"
	"inspect/storage"
)

// given is what only whoever starts a control plane may read, and hands to it.
type given struct {
	Key         string         `json:"key"`      // the App's private key
	Webhooks    []string       `json:"webhooks"` // secrets, the present one first
	Client      string         `json:"client"`   // the App's client secret; empty: nobody signs in
	GrantSeed   []byte         `json:"grant_seed"`
	NodeToken   string         `json:"node_token"`
	PeopleToken string         `json:"people_token"`
	Models      gateway.Files  `json:"models"`
	Database    string         `json:"database"` // its address
	Nomad       nomadGiven     `json:"nomad"`
	Buildkite   buildkiteGiven `json:"buildkite"`
}

// gather reads all of it. What an operator must correct is a usageError.
func gather(c serveConfig, dirs directories) (given, error) {
	g := given{Database: c.PostgresURL}
	var err error
	if g.Key, err = readSecret(c.KeyFile, "the App's private key"); err != nil {
		return g, usageError{err}
	}
	for _, path := range []string{c.SecretFile, c.OldSecretFile} {
		if path == "" {
			continue
		}
		s, err := readSecret(path, "the webhook secret")
		if err != nil {
			return g, usageError{err}
		}
		g.Webhooks = append(g.Webhooks, s)
	}
	if c.ClientSecretFile != "" {
		if g.Client, err = readSecret(c.ClientSecretFile, "the App's client secret"); err != nil {
			return g, usageError{err}
		}
	}
	signing, err := grantKey(dirs.private)
	if err != nil {
		return g, err
	}
	g.GrantSeed = signing.Seed()
	for name, to := range map[string]*string{"node.token": &g.NodeToken, "people.token": &g.PeopleToken} {
		token, err := secretFile(dirs.private, name, randomToken)
		if err != nil {
			return g, err
		}
		*to = string(token)
	}
	if c.ModelsFile != "" {
		if g.Models, err = gateway.Read(c.ModelsFile); err != nil {
			return g, usageError{fmt.Errorf("--models: %w", err)}
		}
	}
	if g.Buildkite, err = c.Buildkite.read(); err != nil {
		return g, usageError{err}
	}
	if c.Engine == engineNomad {
		if g.Nomad, err = c.Nomad.read(); err != nil {
			return g, usageError{err}
		}
	}
	return g, nil
}

// models are those of the configuration; without a file there are none.
func (g given) models() (gateway.Config, error) {
	if g.Models.Path == "" {
		return gateway.Config{}, nil
	}
	return g.Models.Config()
}

// startPostgres starts the private database.
func startPostgres(ctx context.Context, c serveConfig, dirs directories, log *slog.Logger) (*storage.Postgres, error) {
	pg, err := storage.StartPostgresWith(ctx, storage.PostgresOptions{
		Dir: filepath.Join(c.Data, "postgres"), User: c.PostgresUser, ClientUID: c.ControlUID, Log: log,
	})
	if errors.Is(err, storage.ErrNotInstalled) {
		return nil, setupError{err}
	}
	if err != nil {
		return nil, fmt.Errorf("the private database: %w", err)
	}
	return pg, nil
}

func stopPostgres(ctx context.Context, pg *storage.Postgres, log *slog.Logger) {
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if err := pg.Stop(stop); err != nil {
		log.Error("the private database did not stop", "error", err)
	}
}
