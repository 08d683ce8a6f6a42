// Package storagetest gives tests a real Postgres: one private server per test
// binary and a fresh database for each test, copied from a migrated template.
// The server's time zone is an odd one, so that a test notices where a moment
// was mistaken for a wall clock. Nothing is left after the test binary has
// ended, however it ended.
package storagetest

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"inspect/storage"
)

// TimeZone of the test server: 5 hours 45 minutes from UTC.
const TimeZone = "Asia/Kathmandu"

const template = "inspect_template"

// server is the one Postgres of this test binary. Tests of one binary share
// it on purpose: starting one takes most of a second.
var server struct {
	sync.Mutex
	pg    *storage.Postgres
	dir   string
	n     int
	err   error
	guard *exec.Cmd
	hold  io.Closer
	free  []string // databases that were emptied and can be used again
}

// New returns a fresh, migrated database that is dropped when the test ends.
func New(t testing.TB) *storage.DB {
	t.Helper()
	db, err := storage.OpenMigrated(context.Background(), URL(t), nil)
	if err != nil {
		t.Fatalf("opening a test database: %v", err)
	}
	t.Cleanup(db.Close)
	return db
}

// URL is the address of a fresh, migrated database that is dropped when the
// test ends, for tests that open it more than once.
func URL(t testing.TB) string {
	t.Helper()
	return fresh(t, template)
}

// EmptyURL is the address of a fresh database without any schema.
func EmptyURL(t testing.TB) string {
	t.Helper()
	return fresh(t, "template1")
}

func fresh(t testing.TB, from string) string {
	t.Helper()
	ctx := context.Background()
	server.Lock()
	defer server.Unlock()
	if server.pg == nil && server.err == nil {
		server.err = start(ctx)
	}
	if server.err != nil {
		t.Fatalf("starting Postgres for tests: %v", server.err)
	}
	var name string
	if n := len(server.free); n > 0 && from == template {
		name, server.free = server.free[n-1], server.free[:n-1]
	} else {
		server.n++
		name = fmt.Sprintf("t%d", server.n)
		if err := admin(ctx, "CREATE DATABASE "+name+" TEMPLATE "+from); err != nil {
			t.Fatalf("making a test database: %v", err)
		}
	}
	t.Cleanup(func() {
		server.Lock()
		defer server.Unlock()
		switch {
		case server.pg == nil:
		case from == template && empty(ctx, name) == nil:
			server.free = append(server.free, name)
		default:
			_ = admin(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
		}
	})
	return withDatabase(server.pg.URL(), name)
}

// empty makes a database as it was when it was copied, which takes a tenth of
// the time of a new copy. It fails if a test changed the schema or somebody
// still uses the database.
func empty(ctx context.Context, name string) error {
	c, err := pgx.Connect(ctx, withDatabase(server.pg.URL(), name))
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	_, err = c.Exec(ctx, `DO $$
		DECLARE r record;
		BEGIN
			IF EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()) THEN
				RAISE 'somebody still uses the database';
			END IF;
			IF (SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'public')
				<> (SELECT shape FROM inspect_test_shape) THEN
				RAISE 'the schema was changed';
			END IF;
			SET LOCAL session_replication_role = replica; -- no foreign keys
			FOR r IN SELECT tablename FROM pg_tables WHERE schemaname = 'public'
				AND tablename NOT IN ('goose_db_version', 'river_migration', 'inspect_test_shape') LOOP
				EXECUTE format('DELETE FROM %I', r.tablename);
			END LOOP;
			FOR r IN SELECT sequencename FROM pg_sequences WHERE schemaname = 'public' AND sequencename NOT LIKE 'goose%' LOOP
				EXECUTE format('ALTER SEQUENCE %I RESTART', r.sequencename);
			END LOOP;
		END $$`)
	return err
}

// withDatabase puts another database into the address of the server.
func withDatabase(address, name string) string {
	u, err := url.Parse(address)
	if err != nil {
		panic(err) // our own address
	}
	u.Path = "/" + name
	return u.String()
}

// admin runs one statement on a connection of its own: a database that is
// copied must have no other user.
func admin(ctx context.Context, sql string) error {
	c, err := pgx.Connect(ctx, withDatabase(server.pg.URL(), "postgres"))
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	_, err = c.Exec(ctx, sql)
	return err
}

func start(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "inspect-pg-")
	if err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	pg, err := storage.StartPostgresWith(ctx, storage.PostgresOptions{Dir: dir, Settings: map[string]string{
		"timezone":           TimeZone,
		"fsync":              "off",
		"synchronous_commit": "off",
		"full_page_writes":   "off",
		"max_connections":    "300",
		"autovacuum":         "off",
	}})
	if err != nil {
		_ = os.RemoveAll(dir)
		return err
	}
	server.pg, server.dir = pg, dir
	if err := guard(dir); err != nil {
		return err
	}
	if err := admin(ctx, "CREATE DATABASE "+template); err != nil {
		return err
	}
	db, err := storage.Open(ctx, withDatabase(pg.URL(), template), nil)
	if err != nil {
		return err
	}
	defer db.Close()
	// How many tables and indexes there are, to notice a test that changes them.
	_, err = db.SQL().ExecContext(ctx, `CREATE TABLE inspect_test_shape (shape bigint NOT NULL);
		INSERT INTO inspect_test_shape SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'public'`)
	return err
}

// guard leaves a small process behind that waits for this one to end, whatever
// ends it, and then removes the directory. The server stops by itself then.
func guard(dir string) error {
	script := `read -r _; i=0
while [ -e "$0/data/postmaster.pid" ] && [ $i -lt 100 ]; do i=$((i+1)); sleep 0.1; done
rm -rf -- "$0"`
	cmd := exec.Command("/bin/sh", "-c", script, dir)
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		_ = w.Close()
		return err
	}
	server.guard, server.hold = cmd, w
	return nil
}

// stop ends the server and removes its directory.
func stop() {
	server.Lock()
	defer server.Unlock()
	if server.pg == nil {
		return
	}
	_ = server.pg.Stop(context.Background())
	if server.hold != nil {
		_ = server.hold.Close()
		_ = server.guard.Wait()
	}
	_ = os.RemoveAll(server.dir)
	server.pg, server.guard, server.hold = nil, nil, nil
}

// M is a testing.M that stops the server when the tests are over. A package
// that also looks for leaked goroutines passes it on:
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(storagetest.Main(m)) }
//
// Any other needs nothing: the server ends with the process.
type M struct{ m *testing.M }

// Main wraps m.
func Main(m *testing.M) M { return M{m} }

// Run runs the tests and then stops the server.
func (m M) Run() int {
	code := m.m.Run()
	stop()
	return code
}

// Dir returns a directory under the system's temporary one whose path is short
// enough for unix sockets and which other accounts may enter.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", strings.ToLower("inspect-t-"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Dump is all rows of all tables as text, one a line, to look for what must
// not be there. Bytes are in hexadecimal.
func Dump(t testing.TB, db *storage.DB) string {
	t.Helper()
	var b strings.Builder
	tables, err := db.SQL().Query("SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	for tables.Next() {
		var name string
		if err := tables.Scan(&name); err != nil {
			t.Fatal(err)
		}
		rows, err := db.SQL().Query("SELECT x::text FROM " + name + " x")
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var row string
			if err := rows.Scan(&row); err != nil {
				t.Fatal(err)
			}
			b.WriteString(name + " " + row + "\n")
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		_ = rows.Close()
	}
	if err := tables.Err(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
