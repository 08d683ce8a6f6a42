package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/envs/wire"
)

func TestMeter(t *testing.T) {
	m := NewMeter(10)
	if n := m.take(7, &m.sent); n != 7 || m.Full() {
		t.Errorf("%d", n)
	}
	if n := m.take(7, &m.received); n != 3 || !m.Full() {
		t.Errorf("%d", n)
	}
	if n := m.take(1, &m.sent); n != 0 {
		t.Errorf("%d", n)
	}
	if sent, received := m.Used(); sent != 7 || received != 3 {
		t.Errorf("%d %d", sent, received)
	}
	if !m.first() || m.first() {
		t.Error("the first is not one")
	}
	none := NewMeter(0)
	if n := none.take(1<<40, &none.sent); n != 1<<40 || none.Full() {
		t.Errorf("%d", n)
	}
	// Many at once take no more than there is.
	many := NewMeter(1000)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 50 {
				many.take(3, &many.received)
			}
		})
	}
	wg.Wait()
	if _, got := many.Used(); got != 1000 {
		t.Errorf("%d", got)
	}
}

// The limit holds for plain requests, tunnels and those with a credential, of
// all proxies together.
func TestLimitOfBytes(t *testing.T) {
	const limit = 1 << 20
	for _, way := range []string{"down", "up", "plain", "credential"} {
		t.Run(way, func(t *testing.T) {
			m := NewMeter(limit)
			endless := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					_, _ = io.Copy(io.Discard, r.Body)
					return
				}
				b := make([]byte, 10_000)
				for range 10 * limit / len(b) {
					if _, err := w.Write(b); err != nil {
						return
					}
				}
			})
			opt := Options{Meter: m}
			var r *privateRegistry
			var w *world
			plain := httptest.NewServer(endless)
			defer plain.Close()
			at := fmt.Sprintf("a.example:%d", portOf(plain.Listener.Addr()))
			opt.Allow = []string{at}
			if way == "credential" {
				r = newPrivateRegistry(t, opt)
				w = r.world
			} else {
				w = newWorld(t, opt)
				w.names.then = func(string) []string { return []string{"127.0.0.1"} }
			}
			idle, _, res := w.connect(at) // it has nothing to do with the others
			if res.StatusCode != 200 {
				t.Fatal(res.Status)
			}
			got := int64(0)
			switch way {
			case "plain":
				c := w.dial()
				fmt.Fprintf(c, "GET http://%s/ HTTP/1.1\r\nHost: x\r\n\r\n", at)
				got, _ = io.Copy(io.Discard, c)
			case "down", "up":
				c, rd, _ := w.connect(at)
				if way == "down" {
					fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
					got, _ = io.Copy(io.Discard, rd)
				} else {
					fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 10*limit)
					got, _ = io.Copy(c, io.LimitReader(zeros{}, 10*limit))
					got -= 4 * limit // what the sockets between us hold
				}
			case "credential":
				client := r.client(r.inner)
				for range 2000 {
					res, err := client.Get(r.url("/" + strings.Repeat("x", 1000)))
					if err != nil {
						break
					}
					n, _ := io.Copy(io.Discard, res.Body)
					res.Body.Close()
					got += n
					<-r.seen
				}
			}
			if got > limit {
				t.Errorf("%d bytes came through", got)
			}
			if sent, received := m.Used(); sent+received != limit {
				t.Errorf("%d were sent and %d received", sent, received)
			}
			if _, err := idle.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a connection goes on: %v", err)
			}
			// From now on nothing is reached, and it is said why.
			for _, request := range []string{"GET http://" + at + "/ HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT " + at + " HTTP/1.1\r\nHost: x\r\n\r\n"} {
				status, _, body := w.raw(request)
				if !strings.HasPrefix(status, "403") || !strings.Contains(body, "limit of 1 MiB") || !strings.Contains(body, ".inspect.yml") {
					t.Errorf("%s %s", status, body)
				}
			}
			// Another proxy of the same session is under the same limit.
			next := newWorld(t, Options{Meter: m, Allow: []string{at}})
			if status, _, _ := next.raw("CONNECT " + at + " HTTP/1.1\r\nHost: x\r\n\r\n"); !strings.HasPrefix(status, "403") {
				t.Error(status)
			}
			next.stop()
			w.stop()
			said := 0
			for _, e := range slices.Concat(w.told, next.told) {
				if e == (wire.Egress{Reason: m.reason()}) {
					said++
				}
			}
			if said != 1 {
				t.Errorf("it was said %d times that the limit is reached", said)
			}
		})
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// What is public is dialled, at the address that was resolved and checked.
func TestPublicAddresses(t *testing.T) {
	w := newWorld(t, Options{Allow: []string{"*.t.example"}, AllowAddresses: []string{}})
	var dialled []string
	w.p.config.ProxyDialTimeout = func(_ context.Context, _, address string, _ time.Duration) (net.Conn, error) {
		dialled = append(dialled, address)
		return nil, errors.New("there is no network")
	}
	for i, addr := range []string{"93.184.216.34", "8.8.8.8", "1.0.0.1", "172.32.0.1", "100.128.0.1", "223.255.255.1", "2606:2800:220:1::1", "2a00::1", "2003::1", "::ffff:93.184.216.34"} {
		name := fmt.Sprintf("n%d.t.example", i)
		w.names.m[name] = []string{addr}
		status, _, body := w.raw("CONNECT " + name + ":443 HTTP/1.1\r\nHost: x\r\n\r\n")
		if !strings.HasPrefix(status, "502") {
			t.Errorf("%s: %s %s", addr, status, body)
		}
		if e := w.last(); !e.Allowed {
			t.Errorf("%s: %+v", addr, e)
		}
		if want := net.JoinHostPort(net.ParseIP(addr).String(), "443"); len(dialled) != i+1 || dialled[i] != want {
			t.Errorf("%s: dialled %q", addr, dialled)
		}
	}
	// One that leads inside as well leads nowhere, in whatever order.
	count := len(dialled)
	for i, addrs := range [][]string{
		{"93.184.216.34", "10.0.0.1"}, {"127.0.0.1", "93.184.216.34"}, {"93.184.216.34", "8.8.8.8", "::1"}, {"2a00::1", "169.254.169.254"},
		{"93.184.216.34", "::ffff:10.0.0.1"}, {"93.184.216.34", "64:ff9b::a00:1"}, {"93.184.216.34", "100.64.0.1"}, {"93.184.216.34", "2002:a00:1::"},
	} {
		name := fmt.Sprintf("m%d.t.example", i)
		w.names.m[name] = addrs
		for _, request := range []string{"CONNECT " + name + ":443 HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://" + name + "/ HTTP/1.1\r\nHost: x\r\n\r\n"} {
			status, _, body := w.raw(request)
			if e := w.last(); !strings.HasPrefix(status, "403") || !strings.Contains(body, notPublic) || e.Reason != notPublic {
				t.Errorf("%s: %s %s", addrs, status, body)
			}
		}
	}
	if len(dialled) != count {
		t.Errorf("dialled %q", dialled[count:])
	}
}
