package storage

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// provider returns the migrations bound to a database.
func provider(db *sql.DB) (*goose.Provider, error) {
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectPostgres, db, files)
}

// migrationLock keeps two processes from migrating at once: neither goose nor
// River does by itself.
const migrationLock = 0x696e7370656374 // "inspect"

// migrate brings our own tables and River's up to date.
func (d *DB) migrate(ctx context.Context) error {
	// A connection of its own: the pool may have but one.
	conn, err := pgx.ConnectConfig(ctx, d.pool.Config().ConnConfig)
	if err != nil {
		return fmt.Errorf("connecting for the migrations: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) // gives the lock back
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", migrationLock); err != nil {
		return fmt.Errorf("waiting for another process to migrate: %w", err)
	}
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
