package storage_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"inspect/storage"
	"inspect/storage/storagetest"
)

func TestMigrationsGoUpDownUp(t *testing.T) {
	ctx := context.Background()
	url := storagetest.EmptyURL(t)
	db, err := storage.Open(ctx, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	first := describe(t, db)
	if len(first) < 100 {
		t.Fatalf("only %d columns after migrating", len(first))
	}
	if err := storage.MigrateDown(ctx, db); err != nil {
		t.Fatal(err)
	}
	if rest := describe(t, db); len(rest) != 0 {
		t.Fatalf("left after going down: %v", rest)
	}
	db2, err := storage.Open(ctx, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db2.Close()
	second := describe(t, db2)
	if len(first) != len(second) {
		t.Fatalf("%d columns the first time, %d the second", len(first), len(second))
	}
	for i := range first {
		if first[i] != second[i] {
			t.Fatalf("the schema differs: %s, %s", first[i], second[i])
		}
	}
}

// describe lists our own columns and types, in order.
func describe(t *testing.T, db *storage.DB) []string {
	t.Helper()
	rows, err := db.SQL().Query(`
		SELECT table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' ' || COALESCE(column_default, '')
		FROM information_schema.columns
		WHERE table_schema = 'public' AND table_name NOT LIKE 'river\_%' AND table_name NOT LIKE 'goose\_%'
		UNION ALL
		SELECT 'type ' || typname FROM pg_type WHERE typname = 'session_state'
		ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestOpenMigratesOnceWhenTwoProcessesStart(t *testing.T) {
	url := storagetest.EmptyURL(t)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			db, err := storage.Open(context.Background(), url, nil)
			if err != nil {
				t.Errorf("opening: %v", err)
				return
			}
			db.Close()
		})
	}
	wg.Wait()
}

func TestInTxRetriesConflicts(t *testing.T) {
	ctx := context.Background()
	db := storagetest.New(t)
	if _, err := db.SQL().Exec("CREATE TABLE counter (n integer NOT NULL); INSERT INTO counter VALUES (0)"); err != nil {
		t.Fatal(err)
	}
	const workers, each = 4, 5
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				err := db.InTx(ctx, func(tx *storage.Tx) error {
					var n int
					if err := tx.SQL().QueryRow("SELECT n FROM counter").Scan(&n); err != nil {
						return err
					}
					_, err := tx.SQL().Exec("UPDATE counter SET n = $1", n+1)
					return err
				})
				if err != nil {
					t.Errorf("in a transaction: %v", err)
				}
			}
		})
	}
	wg.Wait()
	var n int
	if err := db.SQL().QueryRow("SELECT n FROM counter").Scan(&n); err != nil || n != workers*each {
		t.Fatalf("counted %d (%v), want %d", n, err, workers*each)
	}
}

func TestInTxGivesBackErrorsAndRollsBack(t *testing.T) {
	ctx := context.Background()
	db := storagetest.New(t)
	mine := errors.New("mine")
	runs := 0
	err := db.InTx(ctx, func(tx *storage.Tx) error {
		runs++
		if err := tx.Q().UpsertNode(ctx, storage.UpsertNodeParams{Name: "n", TokenHash: []byte("h")}); err != nil {
			return err
		}
		return mine
	})
	if !errors.Is(err, mine) || runs != 1 {
		t.Fatalf("got %v after %d runs", err, runs)
	}
	if _, err := db.Q().NodeByToken(ctx, []byte("h")); !storage.IsMissing(err) || !errors.Is(err, sql.ErrNoRows) {
		t.Fatalf("the row of a failed transaction is there: %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = db.InTx(ctx, func(tx *storage.Tx) error { panic("a bug") })
	}()
	if n := db.Pool().Stat().AcquiredConns(); n != 0 {
		t.Fatalf("%d connections are still held after a panic", n)
	}
}

func TestIsUnique(t *testing.T) {
	ctx := context.Background()
	db := storagetest.New(t)
	insert := func() error {
		_, err := db.SQL().ExecContext(ctx, "INSERT INTO deliveries (guid, event, payload) VALUES ('g', 'ping', '')")
		return err
	}
	if err := insert(); err != nil {
		t.Fatal(err)
	}
	err := insert()
	if !storage.IsUnique(err, "") || !storage.IsUnique(err, "deliveries_pkey") || storage.IsUnique(err, "other") || storage.IsUnique(nil, "") {
		t.Fatalf("not told apart: %v", err)
	}
}

func TestMomentsSurviveAnOddTimeZone(t *testing.T) {
	ctx := context.Background()
	db := storagetest.New(t)
	var zone string
	if err := db.SQL().QueryRow("SHOW timezone").Scan(&zone); err != nil || zone != storagetest.TimeZone {
		t.Fatalf("the server's zone is %q (%v)", zone, err)
	}
	at := time.Date(2026, 3, 29, 1, 30, 0, 123456000, time.UTC)
	if err := db.Q().UpsertNode(ctx, storage.UpsertNodeParams{Name: "n", TokenHash: []byte("h")}); err != nil {
		t.Fatal(err)
	}
	if err := db.Q().TouchNode(ctx, storage.TouchNodeParams{Name: "n", Now: at}); err != nil {
		t.Fatal(err)
	}
	nodes, err := db.Q().Nodes(ctx)
	if err != nil || len(nodes) != 1 || !nodes[0].SeenAt.Time.Equal(at) {
		t.Fatalf("got %v (%v), want %v", nodes, err, at)
	}
}
