package node_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/envs/node/dial"
	"inspect/envs/sandbox/dialer"
	"inspect/envs/sandbox/stream"
	"inspect/envs/services"
	"inspect/envs/snapshot"
	"inspect/envs/wire"
)

// needs fails a test without programs that .ci/setup installs.
func needs(t *testing.T, patterns ...string) {
	t.Helper()
	for _, p := range patterns {
		if _, err := os.Stat(p); err != nil {
			t.Fatalf("make test installs %s: %v", p, err)
		}
	}
}

// threeServices are PostgreSQL, Redis and RabbitMQ, as a repository declares them.
func threeServices() []wire.Service {
	return []wire.Service{
		{Name: "postgres", Command: "postgres -D /var/lib/pg -c listen_addresses=127.0.0.1", Ready: "pg_isready -h 127.0.0.1", Stop: "pg_ctl stop -D /var/lib/pg -m fast"},
		{Name: "redis", Command: `mkdir -p "$HOME/redis" && exec redis-server --bind 127.0.0.1 --dir "$HOME/redis" --appendonly yes`, Port: 6379},
		{Name: "rabbitmq", Port: 5672, Command: `mkdir -p /var/lib/rabbitmq && cd /var/lib/rabbitmq && : >plugins &&
			RABBITMQ_MNESIA_BASE=$PWD/data RABBITMQ_LOG_BASE=$PWD/log RABBITMQ_ENABLED_PLUGINS_FILE=$PWD/plugins RABBITMQ_NODENAME=rabbit@localhost \
			RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 ERL_EPMD_ADDRESS=127.0.0.1 rabbitmq-server`},
	}
}

// rabbit runs rabbitmqctl's Erlang code in the running broker: one short start
// of a virtual machine for all that is asked.
const rabbit = "rabbitmqctl -n rabbit@localhost --quiet "

// serviced starts services in the sandbox of a grant.
func (w *world) serviced(grant string, list []wire.Service) (*stream.Client, *services.Set, []wire.ServiceState) {
	w.t.Helper()
	_, err := dial.Restore(w.t.Context(), w.socket, grant)
	must(w.t, err)
	c, _, err := dialSandbox(w.t.Context(), w.socket, grant)
	must(w.t, err)
	var mu sync.Mutex
	var states []wire.ServiceState
	set, err := services.Start(w.t.Context(), c, list, services.Options{
		Timeout: 3 * time.Minute, // RabbitMQ is slow on a busy machine
		Dial:    func(ctx context.Context, addr string) (net.Conn, error) { return dialer.Dial(ctx, c, addr) },
		Event: func(s wire.ServiceState) {
			mu.Lock()
			defer mu.Unlock()
			states = append(states, s)
		},
	})
	must(w.t, err)
	mu.Lock()
	defer mu.Unlock()
	return c, set, append([]wire.ServiceState(nil), states...)
}

// shl is sh with the programs of services.
func shl(t *testing.T, c *stream.Client, line string) string {
	t.Helper()
	var out strings.Builder
	exit, err := c.Run(t.Context(), stream.Exec{Argv: services.Shell(line), Stdout: &out, Stderr: &out})
	if err != nil || exit.Code != 0 {
		t.Fatalf("%s: %+v, %v\n%s", line, exit, err, out.String())
	}
	return strings.TrimSpace(out.String())
}

// A real PostgreSQL, Redis and RabbitMQ are prepared with data in one snapshot;
// two sandboxes restored from it have the data, on the same ports, and do not
// see one another.
func TestServicesOfAnEnvironment(t *testing.T) {
	needs(t, "/usr/lib/postgresql", "/usr/bin/redis-server", "/usr/lib/rabbitmq/bin/rabbitmq-server")
	w := newWorld(t)
	w.start()
	work := w.refreshWork(1, "snap-1", "initdb -D /var/lib/pg -A trust --no-sync --locale=C -E UTF8 >/dev/null")
	work.Refresh.Services = threeServices()
	work.Refresh.Load = steps([]string{
		`psql -qh 127.0.0.1 postgres -c "create table t as select generate_series(1, 1000) as n"`,
		`redis-cli set word snapshot`,
		rabbit + "add_vhost kept",
	})
	work.Refresh.Timeout = 3 * time.Minute
	work.Refresh.Limits.Pids = 512
	w.plane.give(work)
	select {
	case o := <-w.plane.offers:
		t.Logf("phases: %v", o.Phases)
		for _, phase := range []string{"services", "load", "stop"} {
			if o.Phases[phase] <= 0 {
				t.Errorf("no duration of phase %s", phase)
			}
		}
	case r := <-w.plane.results:
		t.Fatalf("the refresh failed: %s", r.Words)
	case <-time.After(3 * time.Minute):
		t.Fatal("no offer")
	}

	list, second := threeServices(), snapshot.CloneID{Session: "s2", Generation: 1, Purpose: wire.PurposeWork}
	big := func(g *wire.Grant) { g.Limits.CPU, g.Limits.MemoryBytes, g.Limits.Pids = 2, 1<<30, 512 }
	grants := []string{w.grant("s1", wire.PurposeWork, "snap-1", big), w.grant("s2", wire.PurposeWork, "snap-1", big)}
	var boxes [2]*stream.Client
	var sets [2]*services.Set
	var both sync.WaitGroup
	for i, grant := range grants {
		both.Go(func() {
			var states []wire.ServiceState
			boxes[i], sets[i], states = w.serviced(grant, list)
			var names []string
			for _, s := range states {
				names = append(names, s.Name+" "+s.State)
				t.Logf("sandbox %d: %s %s after %s", i, s.Name, s.State, s.After)
			}
			if got := strings.Join(names, ", "); got != "postgres ready, redis ready, rabbitmq ready" {
				t.Errorf("states: %s", got)
			}
		})
	}
	both.Wait()
	if t.Failed() {
		return
	}
	for i, c := range boxes {
		word := []string{"one", "two"}[i]
		both.Go(func() {
			queue := rabbit + "list_vhosts | grep -x kept"
			if i == 1 { // to be asked costs RabbitMQ seconds
				queue = "cat /var/lib/rabbitmq/data/*/msg_stores/vhosts/*/.vhost | grep -o kept"
			}
			got := shl(t, c, `psql -Atqh 127.0.0.1 postgres -c "select count(*) from t"; redis-cli get word; `+queue+`
				psql -qh 127.0.0.1 postgres -c "insert into t values (0)"; redis-cli set word `+word+`; echo; git status --porcelain`)
			if got != "1000\nsnapshot\nkept\nOK" {
				t.Errorf("sandbox %d has:\n%s", i, got)
			}
		})
	}
	both.Wait()
	for i, c := range boxes {
		if got := shl(t, c, `psql -Atqh 127.0.0.1 postgres -c "select count(*) from t"; redis-cli get word`); got != "1001\n"+[]string{"one", "two"}[i] {
			t.Errorf("sandbox %d has %q: the other one is in it", i, got)
		}
	}
	must(t, sets[0].Stop(t.Context()))
	if got := shl(t, boxes[0], "ls /var/lib/pg/postmaster.pid 2>&1; true"); !strings.Contains(got, "No such file") {
		t.Errorf("PostgreSQL was not stopped cleanly: %s", got)
	}

	// The second is killed in the middle, and its tree started again: the pid
	// file of another life, whose number is now another process's, does not keep
	// PostgreSQL from starting.
	must(t, boxes[1].Close())
	pidFile := filepath.Join(w.root, "session", second.String(), "tree", "lib", "pg", "postmaster.pid")
	left, err := os.ReadFile(pidFile)
	must(t, err)
	_, rest, _ := strings.Cut(string(left), "\n")
	must(t, os.WriteFile(pidFile, []byte("1\n"+rest), 0o600))
	c, set, _ := w.serviced(grants[1], list[:2])
	if got := shl(t, c, `psql -Atqh 127.0.0.1 postgres -c "select count(*) from t"; redis-cli get word`); got != "1001\ntwo" {
		t.Errorf("after a kill: %q", got)
	}
	must(t, set.Stop(t.Context()))
}

// A refresh whose services or data do not come up fails and says which.
func TestRefreshWithServicesThatFail(t *testing.T) {
	w := newWorld(t)
	w.start()
	up := wire.Service{Name: "up", Command: "touch $HOME/up; exec sleep 1000", Ready: "test -e $HOME/up"}
	for name, c := range map[string]struct {
		services []wire.Service
		load     []string
		words    []string
	}{
		"does not start": {
			services: []wire.Service{up, {Name: "db", Command: "echo no data directory; exit 1", Ready: "false"}},
			words:    []string{"service db ended with exit status 1 before it was ready", "no data directory"},
		},
		"load fails": {
			services: []wire.Service{up}, load: []string{"true", "echo no such table >&2; exit 3"},
			words: []string{"loading data, line 2 of 2, failed with exit status 3", "no such table"},
		},
		"dies meanwhile": {
			services: []wire.Service{{Name: "db", Command: `echo $$ >"$HOME/up"; until [ -e "$HOME/die" ]; do sleep 0.01; done; echo disk on fire`, Ready: `test -s "$HOME/up"`}},
			load:     []string{`touch "$HOME/die"; while kill -s 0 "$(cat "$HOME/up")" 2>/dev/null; do sleep 0.01; done`, "true", "true"},
			words:    []string{"service db ended with exit status 0 while the data was loaded", "disk on fire"},
		},
		"no name":               {services: []wire.Service{{Name: "../x", Command: "x"}}, words: []string{"no proper name"}},
		"load without services": {load: []string{"exit 4"}, words: []string{"loading data, line 1 of 1, failed with exit status 4"}},
	} {
		t.Run(name, func(t *testing.T) {
			work := w.refreshWork(1, "snap-x")
			work.Refresh.Services, work.Refresh.Load = c.services, steps(c.load)
			w.plane.give(work)
			select {
			case r := <-w.plane.results:
				for _, want := range c.words {
					if r.OK || !strings.Contains(r.Words, want) {
						t.Errorf("words lack %q: %s", want, r.Words)
					}
				}
			case o := <-w.plane.offers:
				t.Errorf("offered: %+v", o)
			case <-time.After(60 * time.Second):
				t.Fatal("no result")
			}
			for _, kind := range []string{"base", "snapshot", "session"} {
				if got := w.listed(kind); len(got) != 0 {
					t.Errorf("%s holds %v", kind, got)
				}
			}
		})
	}
}
