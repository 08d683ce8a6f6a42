package storage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// DB is one database: a pgx pool with database/sql on top of it, so that
// sqlc's queries, River's inserts and River's workers share connections.
type DB struct {
	pool *pgxpool.Pool
	sql  *sql.DB
	q    *Queries
	log  *slog.Logger
}

// defaultMaxConns is used where the URL has no pool_max_conns. pgx's own
// default (the number of cores, at least 4) is fewer than the workers need.
const defaultMaxConns = 24

// Open connects to the database, brings its schema up to date and returns it.
// The URL is anything pgx understands (postgres://… or key=value pairs).
func Open(ctx context.Context, url string, log *slog.Logger) (*DB, error) {
	d, err := open(ctx, url, log)
	if err != nil {
		return nil, err
	}
	if err := d.migrate(ctx); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// OpenMigrated is Open for a database whose schema is known to be up to date.
func OpenMigrated(ctx context.Context, url string, log *slog.Logger) (*DB, error) {
	return open(ctx, url, log)
}

func open(ctx context.Context, url string, log *slog.Logger) (*DB, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		// pgx leaves the password out of its message.
		return nil, fmt.Errorf("the Postgres URL cannot be understood: %w", err)
	}
	if _, set := cfg.ConnConfig.RuntimeParams["application_name"]; !set {
		cfg.ConnConfig.RuntimeParams["application_name"] = "inspect"
	}
	// pgx reads pool_max_conns from the URL and takes it out; its own default
	// tells that there was none.
	if cfg.MaxConns < defaultMaxConns && !poolSizeGiven(url) {
		cfg.MaxConns = defaultMaxConns
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connecting to Postgres: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("connecting to Postgres: %w", err)
	}
	db := stdlib.OpenDBFromPool(pool)
	// The pool below keeps the idle connections; a second layer would hold them back.
	db.SetMaxIdleConns(0)
	return &DB{pool: pool, sql: db, q: New(db), log: log}, nil
}

// Q returns the queries outside of any transaction.
func (d *DB) Q() *Queries { return d.q }

// SQL returns the database/sql face of the pool.
func (d *DB) SQL() *sql.DB { return d.sql }

// Pool returns the pgx pool below.
func (d *DB) Pool() *pgxpool.Pool { return d.pool }

// Close gives all connections back.
func (d *DB) Close() {
	_ = d.sql.Close()
	d.pool.Close()
}

// Tx is one transaction.
type Tx struct {
	tx *sql.Tx
	q  *Queries
}

// Q returns the queries inside the transaction.
func (t *Tx) Q() *Queries { return t.q }

// SQL returns the transaction itself, for River's inserts.
func (t *Tx) SQL() *sql.Tx { return t.tx }

// maxTxTries bounds how often InTx runs its function.
const maxTxTries = 12

// InTx runs fn in one serialisable transaction and commits if it returns nil.
// fn is run again, up to a bound, when Postgres could not serialise it, so it
// must have no effect but through its Tx. Errors of fn are returned as they are.
func (d *DB) InTx(ctx context.Context, fn func(*Tx) error) error {
	return d.inTx(ctx, sql.LevelSerializable, fn)
}

// InLockTx is InTx at the level read committed, for functions that first lock
// the rows they decide about (SELECT … FOR UPDATE, an advisory lock): they
// wait for one another instead of failing.
func (d *DB) InLockTx(ctx context.Context, fn func(*Tx) error) error {
	return d.inTx(ctx, sql.LevelReadCommitted, fn)
}

// InReadTx runs fn in a transaction that changes nothing and sees the database
// as it is when it begins, whatever others write meanwhile.
func (d *DB) InReadTx(ctx context.Context, fn func(*Tx) error) error {
	tx, err := d.sql.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return err
	}
	defer tx.Rollback() // nothing was written
	return fn(&Tx{tx: tx, q: d.q.WithTx(tx)})
}

func (d *DB) inTx(ctx context.Context, level sql.IsolationLevel, fn func(*Tx) error) error {
	var err error
	for try := range maxTxTries {
		if try > 0 {
			// Half of the wait is chance, so that two losers do not meet again.
			wait := min(time.Duration(1<<try)*time.Millisecond, 200*time.Millisecond)
			wait = wait/2 + rand.N(wait/2+1)
			t := time.NewTimer(wait)
			select {
			case <-ctx.Done():
				t.Stop()
				return err
			case <-t.C:
			}
		}
		err = d.once(ctx, level, fn)
		if err == nil || !retryable(err) {
			return err
		}
	}
	return fmt.Errorf("a transaction was in conflict with others %d times: %w", maxTxTries, err)
}

func (d *DB) once(ctx context.Context, level sql.IsolationLevel, fn func(*Tx) error) (err error) {
	tx, err := d.sql.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done { // an error of fn, or a panic passing through
			_ = tx.Rollback()
		}
	}()
	if err := fn(&Tx{tx: tx, q: d.q.WithTx(tx)}); err != nil {
		return err
	}
	done = true
	return tx.Commit()
}

// Postgres error codes a caller decides on.
const (
	codeSerialization = "40001"
	codeDeadlock      = "40P01"
	codeUnique        = "23505"
)

func retryable(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && (pe.Code == codeSerialization || pe.Code == codeDeadlock)
}

// IsUnique tells whether err says that a unique key is already taken, of the
// named constraint if one is named.
func IsUnique(err error, constraint string) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.Code == codeUnique && (constraint == "" || pe.ConstraintName == constraint)
}

// IsMissing tells whether err says that there is no such row.
func IsMissing(err error) bool { return errors.Is(err, sql.ErrNoRows) }
