package storage

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"
)

// PostgresOptions says how to run a private Postgres.
type PostgresOptions struct {
	// Dir holds everything: data/, sock/, log. It is made if it is not there.
	Dir string
	Log *slog.Logger
	// AllowUsers are accounts of this machine that may connect, besides the one
	// we run as.
	AllowUsers []string
	// User is the account the server runs as, if this process is root; empty:
	// "postgres".
	User string
	// ClientUID, if this process is root, is a further account that may connect:
	// the socket's directory lets its group pass, and no other. It need not have
	// a name.
	ClientUID int
	// Settings are added to ours and win over them.
	Settings map[string]string
}

// Postgres is a private server: a child of this process that only this
// machine's allowed accounts can reach, through a unix socket.
type Postgres struct {
	url    string
	admin  string
	cmd    *exec.Cmd
	lock   *os.File
	exited chan struct{} // closed after the server was waited for
	err    error         // of Wait, once exited is closed
}

const (
	postgresRole     = "inspect"
	postgresDatabase = "inspect"
	// Linux: sun_path is 108 bytes, one of them the closing zero.
	maxSocketPath = 107
	// How long a server may take to start, crash recovery included.
	postgresStartLimit = 60 * time.Second
	// How long remains of a crashed server may stand in the way.
	leftoverLimit = 10 * time.Second
)

// StartPostgres runs a private Postgres in dir from the machine's own
// binaries, with its data kept between runs. It returns once the server
// answers. As root the server runs as the account "postgres".
func StartPostgres(ctx context.Context, dir string, log *slog.Logger) (*Postgres, error) {
	return StartPostgresWith(ctx, PostgresOptions{Dir: dir, Log: log})
}

// StartPostgresWith is StartPostgres with more to choose.
func StartPostgresWith(ctx context.Context, o PostgresOptions) (_ *Postgres, err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	// The socket is named by Postgres itself: .s.PGSQL.<port>.
	if n := len(filepath.Join(dir, "sock", ".s.PGSQL.5432")); n > maxSocketPath {
		return nil, fmt.Errorf("the directory %s is too long for Postgres' socket (%d bytes, at most %d): choose a shorter data directory", dir, n, maxSocketPath)
	}
	acc, err := serverAccount(cmp.Or(o.User, "postgres"))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("making Postgres' directory: %w", err)
	}
	lock, err := lockDirectory(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = lock.Close()
		}
	}()
	data, sock := filepath.Join(dir, "data"), filepath.Join(dir, "sock")
	if err := acc.ownDirectory(sock); err != nil {
		return nil, err
	}
	if o.ClientUID != 0 && acc.drop {
		if err := acc.letPass(sock, o.ClientUID); err != nil {
			return nil, err
		}
	}
	if err := acc.mayEnter(dir); err != nil {
		return nil, err
	}
	bin, err := findBinaries(data)
	if err != nil {
		return nil, err
	}
	if err := initCluster(ctx, bin, data, acc); err != nil {
		return nil, err
	}
	if err := writeAccess(data, acc, o.ClientUID, o.AllowUsers); err != nil {
		return nil, err
	}
	if err := clearLeftovers(ctx, data, sock, o.Log); err != nil {
		return nil, err
	}
	p := &Postgres{url: postgresURL(sock, postgresDatabase), admin: postgresURL(sock, "postgres"), lock: lock}
	logPath := filepath.Join(dir, "postgres.log")
	if err := p.run(bin, data, sock, logPath, acc, o.Settings); err != nil {
		return nil, err
	}
	if err := p.ready(ctx, logPath); err != nil {
		p.kill()
		return nil, err
	}
	o.Log.Debug("the private Postgres answers", "directory", dir, "pid", p.cmd.Process.Pid)
	return p, nil
}

// URL is the address of the database, for Open.
func (p *Postgres) URL() string { return p.url }

// Exited is closed when the server is over, whoever ended it.
func (p *Postgres) Exited() <-chan struct{} { return p.exited }

// Stop ends the server and waits for it; when ctx ends first the server is
// killed, which costs the next start a recovery but no data.
func (p *Postgres) Stop(ctx context.Context) error {
	defer p.lock.Close()
	_ = p.cmd.Process.Signal(syscall.SIGINT) // "fast": sessions are ended, data written
	select {
	case <-p.exited:
		return p.exitError()
	case <-ctx.Done():
	}
	p.kill()
	return fmt.Errorf("Postgres did not stop in time and was killed: %w", ctx.Err())
}

func (p *Postgres) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGQUIT) // children end themselves without writing
	select {
	case <-p.exited:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
	_ = p.lock.Close()
}

func (p *Postgres) exitError() error {
	if p.err != nil {
		return fmt.Errorf("Postgres ended badly: %w", p.err)
	}
	return nil
}

// settings fit a small installation; durability is left as it is.
func settings(sock string, more map[string]string) []string {
	all := map[string]string{
		"listen_addresses":                "",
		"unix_socket_directories":         sock,
		"unix_socket_permissions":         "0777", // the directory above is closed
		"max_connections":                 "80",
		"shared_buffers":                  "64MB",
		"max_wal_size":                    "256MB",
		"min_wal_size":                    "32MB",
		"wal_level":                       "minimal",
		"max_wal_senders":                 "0",
		"max_worker_processes":            "2",
		"max_parallel_workers_per_gather": "0",
		"jit":                             "off",
		"timezone":                        "UTC",
		"log_timezone":                    "UTC",
		"log_min_messages":                "fatal", // conflicts between transactions are everyday
		"logging_collector":               "off",
	}
	for k, v := range more {
		all[k] = v
	}
	var args []string
	for _, k := range slices.Sorted(maps.Keys(all)) {
		args = append(args, "-c", k+"="+all[k])
	}
	return args
}

// run starts the server. The goroutine that starts it stays on its thread
// until the server is over, because the parent-death signal is bound to the
// thread and not to the process.
func (p *Postgres) run(bin, data, sock, logPath string, acc account, more map[string]string) error {
	logFile, err := openLog(logPath)
	if err != nil {
		return err
	}
	defer logFile.Close()
	cmd := exec.Command(filepath.Join(bin, "postgres"), append([]string{"-D", data}, settings(sock, more)...)...)
	cmd.Dir = data
	cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "LC_ALL=C"}
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true, // Ctrl-C in a terminal is for us; the server is stopped after our drain
		Pdeathsig:  syscall.SIGINT,
		Credential: acc.credential(),
	}
	p.cmd, p.exited = cmd, make(chan struct{})
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("starting Postgres: %w", err)
	}
	return nil
}

// ready waits until the server answers and our database is there.
func (p *Postgres) ready(ctx context.Context, logPath string) error {
	ctx, cancel := context.WithTimeout(ctx, postgresStartLimit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ensureDatabase(ctx, p.admin)
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("Postgres did not start; its log ends with: %s", lastLines(logPath, 5))
		case <-ctx.Done():
			return fmt.Errorf("Postgres did not answer in time (%w); its log ends with: %s", err, lastLines(logPath, 5))
		case <-tick.C:
		}
	}
}

func ensureDatabase(ctx context.Context, admin string) error {
	c, err := pgx.Connect(ctx, admin)
	if err != nil {
		return err
	}
	defer c.Close(context.WithoutCancel(ctx))
	var there bool
	if err := c.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)", postgresDatabase).Scan(&there); err != nil {
		return err
	}
	if there {
		return nil
	}
	_, err = c.Exec(ctx, "CREATE DATABASE "+postgresDatabase)
	return err
}

// PostgresURL is the address of the private Postgres in dir, for another
// process of an account that may connect.
func PostgresURL(dir string) string {
	return postgresURL(filepath.Join(dir, "sock"), postgresDatabase)
}

func postgresURL(sock, database string) string {
	u := url.URL{Scheme: "postgres", User: url.User(postgresRole), Path: "/" + database,
		RawQuery: url.Values{"host": {sock}, "sslmode": {"disable"}}.Encode()}
	return u.String()
}

// lockDirectory makes sure that one process at a time serves from a directory.
// The lock ends with the process.
func lockDirectory(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking Postgres' directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("another process already runs its Postgres in %s: stop it or choose another data directory", dir)
	}
	return f, nil
}

// maxLogBytes is how large the server's log may be at a start; a larger one is begun anew.
const maxLogBytes = 4 << 20

func openLog(path string) (*os.File, error) {
	if fi, err := os.Stat(path); err == nil && fi.Size() > maxLogBytes {
		_ = os.Truncate(path, 0)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening Postgres' log: %w", err)
	}
	return f, nil
}

func lastLines(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return tail(string(b), n)
}

func tail(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}
