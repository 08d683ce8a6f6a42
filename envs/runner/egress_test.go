package runner

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inspect/envs/egress"
	"inspect/envs/sandbox"
	"inspect/envs/wire"
)

const registryToken = "canary-registry-token-0123456789"

// oneAddress is a resolver for which every name is on the loopback.
type oneAddress struct{}

func (oneAddress) LookupIP(context.Context, string, string) ([]net.IP, error) {
	return []net.IP{net.IPv4(127, 0, 0, 1)}, nil
}

// withEgress gives a world's sandboxes a way to a registry, which it returns.
func withEgress(t *testing.T, w *world, h http.Handler) (at string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"registry.example"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(h)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	at = fmt.Sprintf("registry.example:%d", srv.Listener.Addr().(*net.TCPAddr).Port)
	roots := x509.NewCertPool()
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(cert)
	w.opt.egress = func(o *egress.Options) {
		o.Resolver, o.AllowAddresses, o.Roots = oneAddress{}, []string{"127.0.0.1"}, roots
	}
	w.node.addWay = func(ask wire.SandboxRequest, s *sandbox.Spec) map[string]net.Listener {
		dir, err := os.MkdirTemp(w.node.dir, "way")
		if err != nil {
			t.Fatal(err)
		}
		bundle, err := egress.Bundle([]byte(ask.Authority))
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", filepath.Join(dir, "egress"))
		if err != nil {
			t.Fatal(err)
		}
		for path, mode := range map[string]os.FileMode{dir: 0o755, filepath.Join(dir, "egress"): 0o666} {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "trust"), bundle, 0o644); err != nil {
			t.Fatal(err)
		}
		s.Forwards = []sandbox.Forward{{Port: sandbox.EgressPort, Socket: filepath.Join(dir, "egress"), Named: true}}
		s.Mounts = append(s.Mounts, sandbox.Mount{Source: filepath.Join(dir, "trust"), Target: "/run/inspect/trust"})
		s.Env = egress.Environment(sandbox.EgressPort, "/run/inspect/trust")
		return map[string]net.Listener{wire.SocketEgress: l}
	}
	w.control.intercept = func(rw http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/secrets") {
			return false
		}
		_ = json.NewEncoder(rw).Encode(wire.SecretsReply{Values: map[string]string{"NPM_TOKEN": registryToken}})
		return true
	}
	w.spec.Egress = []string{at}
	return at
}

// egressOf are the decisions and the last count of a run.
func egressOf(t *testing.T, w *world) (told []wire.Egress, use wire.EgressUse) {
	t.Helper()
	for _, e := range w.control.events() {
		switch e.Kind {
		case wire.EventEgress:
			var x wire.Egress
			if err := json.Unmarshal(e.Data, &x); err != nil {
				t.Fatal(err)
			}
			told = append(told, x)
		case wire.EventUse:
			if err := json.Unmarshal(e.Data, &use); err != nil {
				t.Fatal(err)
			}
		}
	}
	return told, use
}

// The credential is added by the runner's proxy; the sandbox, the events and
// what is uploaded have nothing of it.
func TestCredentialOfASession(t *testing.T) {
	w := newWorld(t)
	seen := make(chan string, 8)
	at := withEgress(t, w, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Get("X-Key")
		fmt.Fprint(rw, "hello, you are ", r.Header.Get("X-Key"))
	}))
	w.spec.Inject = []wire.Injection{{Host: at, Header: "X-Key", Secret: "NPM_TOKEN"}}
	w.spec.Verify = []wire.Verify{{Name: "fetch", Run: "curl -sSf https://" + at + "/; env", Report: "exit"}}
	o := w.outcome()
	if o.Kind != wire.OutcomeVerified || o.Results[0].ExitCode != 0 {
		t.Fatalf("%+v", o)
	}
	if got := <-seen; got != registryToken {
		t.Errorf("%q", got)
	}
	told, use := egressOf(t, w)
	if len(told) != 1 || !told[0].Allowed || told[0].Secret != "NPM_TOKEN" || !strings.HasPrefix(told[0].Command, "curl -sSf") {
		t.Errorf("%+v", told)
	}
	if use.Sent == 0 || use.Received == 0 {
		t.Errorf("%+v", use)
	}
	out := string(w.control.artifacts[o.Results[0].Stdout])
	if !strings.Contains(out, "hello, you are "+strings.Repeat("*", len(registryToken))) {
		t.Errorf("%q", out)
	}
	for sha, b := range w.control.artifacts {
		if strings.Contains(string(b), registryToken) {
			t.Errorf("artifact %s holds it", sha)
		}
	}
	for _, e := range w.control.events() {
		if strings.Contains(string(e.Data), registryToken) {
			t.Errorf("an event tells it: %s", e.Data)
		}
	}
}

// Agent and verification have one limit together.
func TestEgressLimitOfASession(t *testing.T) {
	w := newWorld(t)
	at := withEgress(t, w, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = rw.Write(make([]byte, 3<<20))
	}))
	w.spec.Limits.EgressBytes = 4 << 20
	w.spec.Harness.Command = []string{"sh", "-c", "curl -sSk https://" + at + "/ | wc -c; sed -i s/bad/good/ state.txt"}
	w.spec.Verify = []wire.Verify{{Name: "fetch", Run: "curl -sSk https://" + at + "/ | wc -c; curl -sSk https://" + at + "/", Report: "exit"}}
	o := w.outcome()
	if o.Kind != wire.OutcomeVerified || o.Results[0].ExitCode == 0 {
		t.Fatalf("%+v", o)
	}
	told, use := egressOf(t, w)
	if use.Sent+use.Received != 4<<20 || use.Limit != 4<<20 {
		t.Errorf("%+v", use)
	}
	said := 0
	for _, e := range told {
		if e.Host == "" && strings.Contains(e.Reason, "limit of 4 MiB") {
			said++
		}
	}
	if last := told[len(told)-1]; said != 1 || last.Allowed || !strings.Contains(last.Reason, "limit of 4 MiB") {
		t.Errorf("%+v", told)
	}
}

func TestSecretThatIsNotThere(t *testing.T) {
	w := newWorld(t)
	at := withEgress(t, w, http.NotFoundHandler())
	w.control.intercept = func(rw http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/secrets") {
			return false
		}
		rw.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(rw).Encode(wire.Error{Code: "bad_request", Message: "the secret NPM_TOKEN is not stored"})
		return true
	}
	w.spec.Inject = []wire.Injection{{Host: at, Header: "X-Key", Secret: "NPM_TOKEN"}}
	o := w.outcome()
	if o.Kind != wire.OutcomeFailed || o.Reason != wire.ReasonSecret || !strings.Contains(o.Words, "NPM_TOKEN is not stored") {
		t.Errorf("%+v", o)
	}
}
