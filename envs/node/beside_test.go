package node_test

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"inspect/envs/node/dial"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

func besideOf(t *testing.T, w *world, grant, name string) (dial.Running, error) {
	return dial.Start(t.Context(), w.socket, wire.SandboxRequest{Grant: grant, Beside: name})
}

func TestCompartmentsOfASandbox(t *testing.T) {
	w, f := newFakeWorld(t)
	f.publish("snap-1")
	grant := w.grant("s1", wire.PurposeWork, "snap-1")
	beside := func(name string) (*stream.Client, error) {
		r, err := besideOf(t, w, grant, name)
		return r.Client, err
	}
	if _, err := beside("db"); code(err) != "not_found" {
		t.Errorf("without a clone: %v", err)
	}
	_, err := dial.Restore(t.Context(), w.socket, grant)
	must(t, err)
	if _, err := beside("db"); code(err) != "not_found" || !strings.Contains(err.Error(), "does not run") {
		t.Errorf("without a sandbox: %v", err)
	}
	main, _, err := dialSandbox(t.Context(), w.socket, grant)
	must(t, err)
	defer main.Close()
	for _, name := range []string{"../x", "A", "a b", "a.b", strings.Repeat("a", 41)} {
		if _, err := beside(name); code(err) != "bad_request" {
			t.Errorf("%q: %v", name, err)
		}
	}
	var all []*stream.Client
	for i := range 20 {
		c, err := beside("n-" + strconv.Itoa(i))
		must(t, err)
		defer c.Close()
		all = append(all, c)
	}
	if _, err := beside("one-more"); code(err) != "bad_request" || !strings.Contains(err.Error(), "20 services and steps") {
		t.Errorf("the 21st: %v", err)
	}
	// Asked for again, the earlier one ends.
	again, err := beside("n-7")
	must(t, err)
	defer again.Close()
	<-all[7].Done()
	// Another session's sandbox has none of them.
	other := w.grant("s2", wire.PurposeWork, "snap-1")
	_, err = dial.Restore(t.Context(), w.socket, other)
	must(t, err)
	if _, err := besideOf(t, w, other, "db"); code(err) != "not_found" {
		t.Errorf("beside another session's: %v", err)
	}
	must(t, dial.Discard(t.Context(), w.socket, grant))
	for _, c := range append(all, again, main) {
		<-c.Done()
	}
}

// What runs beside a sandbox is found and ended with it, by a daemon that has
// started neither.
func TestCompartmentOutlivesTheDaemonAndEndsWithItsSandbox(t *testing.T) {
	w := newWorld(t)
	first := w.spawn()
	w.refreshed(1, "snap-1")
	w.plane.set(func(p *plane) {
		p.refs = wire.Refs{Sessions: []wire.SessionRef{{Session: "s1", Generation: 1}}, Snapshots: []string{"snap-1"}}
	})
	grant := w.grant("s1", wire.PurposeWork, "snap-1")
	_, err := dial.Restore(t.Context(), w.socket, grant)
	must(t, err)
	main, _, err := dialSandbox(t.Context(), w.socket, grant)
	must(t, err)
	defer main.Close()
	if os.Geteuid() != 0 {
		if _, err := besideOf(t, w, grant, "db"); code(err) != "bad_request" || !strings.Contains(err.Error(), "only root") {
			t.Errorf("as an ordinary user: %v", err)
		}
		return
	}
	db, err := besideOf(t, w, grant, "db")
	must(t, err)
	defer db.Client.Close()
	sh(t, main, "echo shared > f")
	sh(t, db.Client, "grep -q shared f")
	kill(t, first, syscall.SIGKILL)
	w.spawn()
	sh(t, db.Client, "true")
	web, err := besideOf(t, w, grant, "web")
	must(t, err)
	defer web.Client.Close()
	sh(t, web.Client, "true")
	must(t, dial.Discard(t.Context(), w.socket, grant))
	for _, c := range []*stream.Client{main, db.Client, web.Client} {
		<-c.Done()
	}
}
