package storage

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"strings"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// provider returns the migrations bound to a database. A Postgres advisory
// lock keeps two processes from migrating at once.
func provider(db *sql.DB) (*goose.Provider, error) {
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return nil, err
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 120)) // tries each second
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker))
}

// migrate brings our own tables and River's up to date.
func (d *DB) migrate(ctx context.Context) error {
	p, err := provider(d.sql)
	if err != nil {
		return fmt.Errorf("reading the migrations: %w", err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("bringing the schema up to date: %w", err)
	}
	river, err := rivermigrate.New(riverpgxv5.New(d.pool), &rivermigrate.Config{Logger: d.log})
	if err != nil {
		return fmt.Errorf("reading the queue's migrations: %w", err)
	}
	if _, err := river.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("bringing the queue's schema up to date: %w", err)
	}
	return nil
}

func poolSizeGiven(url string) bool { return strings.Contains(url, "pool_max_conns") }
