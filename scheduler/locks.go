package scheduler

import (
	"context"
	"hash/fnv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// locks makes sure that a session (or a delivery) is worked on by one goroutine
// of one process at a time. A lock is a Postgres advisory lock on one
// connection kept for the purpose, so it ends with the process at the latest.
// What is written stays guarded by compare-and-set; the lock keeps effects in
// the world from being begun twice at once.
type locks struct {
	pool *pgxpool.Pool
	mu   sync.Mutex
	conn *pgx.Conn
	held map[int64]bool
}

func newLocks(pool *pgxpool.Pool) *locks { return &locks{pool: pool, held: map[int64]bool{}} }

// try takes the lock of key and returns the function that gives it back, or
// ok = false if somebody else has it.
func (l *locks) try(ctx context.Context, key int64) (unlock func(), ok bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[key] { // advisory locks do not keep their own connection out
		return nil, false, nil
	}
	if ok, err = l.take(ctx, key); err != nil {
		// The connection may have died long ago; a second try uses a new one.
		l.drop()
		if ok, err = l.take(ctx, key); err != nil {
			l.drop()
			return nil, false, err
		}
	}
	if !ok {
		return nil, false, nil
	}
	l.held[key] = true
	return func() { l.give(key) }, true, nil
}

func (l *locks) take(ctx context.Context, key int64) (ok bool, err error) {
	if l.conn == nil {
		conn, err := pgx.ConnectConfig(ctx, l.pool.Config().ConnConfig)
		if err != nil {
			return false, err
		}
		l.conn = conn
		// What the lost connection held is taken again, if nobody was faster.
		for held := range l.held {
			if _, err := conn.Exec(ctx, "SELECT pg_try_advisory_lock($1)", held); err != nil {
				return false, err
			}
		}
	}
	err = l.conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", key).Scan(&ok)
	return ok, err
}

func (l *locks) give(key int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, key)
	if l.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := l.conn.Exec(ctx, "SELECT pg_advisory_unlock($1)", key); err != nil {
		l.drop()
	}
}

func (l *locks) drop() {
	if l.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = l.conn.Close(ctx)
		l.conn = nil
	}
}

func (l *locks) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop()
}

// Lock keys: the first byte tells what is locked, the rest which one.
const (
	lockSessions   = 0x51 << 56
	lockDeliveries = 0x52 << 56
	lockLooks      = 0x53 << 56
)

// sessionLock is exact: an id is ten characters of five bits.
func sessionLock(id string) int64 {
	if len(id) > 11 {
		return lockSessions | hashed(id)
	}
	var n int64
	for i := range len(id) {
		bits := strings.IndexByte(idAlphabet, id[i])
		if bits < 0 {
			return lockSessions | hashed(id)
		}
		n = n<<5 | int64(bits)
	}
	return lockSessions | n
}

// deliveryLock is a hash: two deliveries that share one wait for one another, no more.
func deliveryLock(guid string) int64 { return lockDeliveries | hashed(guid) }

// lookLock is exact for ids below 2^56.
func lookLock(repository int64) int64 { return lockLooks | repository&(1<<56-1) }

func hashed(s string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s))
	return int64(h.Sum64() >> 8)
}

// idAlphabet is that of base32 in lower case, as ids are written.
const idAlphabet = "abcdefghijklmnopqrstuvwxyz234567"
