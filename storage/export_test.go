package storage

import "context"

// MigrateDown takes our own schema away again.
func MigrateDown(ctx context.Context, d *DB) error {
	p, err := provider(d.sql)
	if err != nil {
		return err
	}
	_, err = p.DownTo(ctx, 0)
	return err
}

// Queries that must not read a table whole which only grows.
const (
	PushTold    = pushTold
	WebSessions = webSessions
)
