package node_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io/fs"
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
	"inspect/envs/node/dial"
	"inspect/envs/snapshot"
	"inspect/envs/wire"
)

// rootsFile is what the proxies of a test process trust, if it is there.
func rootsFile(process int) string { return fmt.Sprintf("/tmp/inspect-node-test-%d.pem", process) }

// hostOf is an HTTPS server for a name, with an authority that egressMain trusts.
func hostOf(t *testing.T, name string, h http.Handler) int {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(cryptorand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	must(t, os.WriteFile(rootsFile(os.Getpid()), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644))
	t.Cleanup(func() { must(t, os.Remove(rootsFile(os.Getpid()))) })
	srv := httptest.NewUnstartedServer(h)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().(*net.TCPAddr).Port
}

// canary is a secret that is in no file, not even in this program's.
var canary = "canary-" + cryptorand.Text()

// Setup fetches from a private registry; the credential is in no file of the
// snapshot and in nothing that another user could look at.
func TestSetupWithACredential(t *testing.T) {
	w := newWorld(t)
	w.plane.secrets = map[string]string{"NPM_TOKEN": canary}
	w.start()
	seen := make(chan string, 8)
	port := hostOf(t, "packages.egress.test", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Get("Authorization")
		// What the machine shows of the proxy at this moment.
		for _, pid := range pidsOf(egress.Command) {
			for _, name := range []string{"cmdline", "environ"} {
				if b, err := os.ReadFile(filepath.Join("/proc", pid, name)); err != nil || bytes.Contains(b, []byte(canary)) {
					t.Errorf("%s of the proxy: %q %v", name, b, err)
				}
			}
		}
		fmt.Fprint(rw, "a package, asked for with ", r.Header.Get("Authorization"))
	}))
	at := fmt.Sprintf("packages.egress.test:%d", port)
	work := w.refreshWork(1, "snap-1", "mkdir -p built; env > built/env; cat /proc/1/environ > built/init; curl -sSf https://"+at+"/x -o built/x && curl -sS -X PUT https://"+at+"/x -o built/put")
	work.Refresh.Egress = []string{at}
	work.Refresh.Inject = []wire.Injection{{Host: at, Header: "Authorization", Secret: "NPM_TOKEN"}}
	w.plane.give(work)
	select {
	case <-w.plane.offers:
	case r := <-w.plane.results:
		t.Fatalf("failed: %s", r.Words)
	case <-time.After(time.Minute):
		t.Fatal("no result within a minute")
	}
	if got := <-seen; got != "Bearer "+canary || len(seen) > 0 {
		t.Errorf("%q, and %d more", got, len(seen))
	}
	grant := w.grant("s1", wire.PurposeWork, "snap-1", sockets(wire.SocketEgress))
	_, err := dial.Restore(t.Context(), w.socket, grant)
	must(t, err)
	sessionClone := snapshot.CloneID{Session: "s1", Generation: 1, Purpose: wire.PurposeWork}
	tree := filepath.Join(w.root, "session", sessionClone.String(), "tree")
	for name, want := range map[string]string{"x": "a package, asked for with ****", "put": "one can fetch", "env": "SSL_CERT_FILE=/run/inspect/authorities.pem\n"} {
		if b, err := os.ReadFile(filepath.Join(tree, "work/built", name)); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: %q %v", name, b, err)
		}
	}
	// Neither the credential nor the certificate of an authority that is gone.
	must(t, filepath.WalkDir(w.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(canary)) || bytes.Contains(b, []byte("BEGIN CERTIFICATE")) && filepath.Base(path) != "init" { // a program, which has these words
			t.Errorf("%s holds it", path)
		}
		return err
	}))

	// A session's sandbox trusts what its runner's proxy says, and keeps none of it.
	p, err := egress.New(egress.Options{Allow: []string{at}, Inject: []egress.Credential{{Host: at, Header: "Authorization", Secret: "NPM_TOKEN", Value: canary}}})
	must(t, err)
	r, err := dial.Start(t.Context(), w.socket, wire.SandboxRequest{Grant: grant, Authority: string(p.Authority())})
	must(t, err)
	lines := strings.Split(strings.TrimSpace(string(p.Authority())), "\n")
	if got := sh(t, r.Client, "tail -n "+fmt.Sprint(len(lines))+" $SSL_CERT_FILE; grep -c BEGIN $GIT_SSL_CAINFO; ! touch $SSL_CERT_FILE 2>/dev/null"); !strings.HasPrefix(got, string(p.Authority())) {
		t.Errorf("trusted inside: %s", got)
	}
	_ = r.Client.Close()
	<-r.Ends
	until(t, "the certificate is gone", func() bool { return len(w.ways()) == 0 })
	if _, err := dial.Start(t.Context(), w.socket, wire.SandboxRequest{Grant: grant, Authority: "nonsense"}); code(err) != "bad_request" {
		t.Errorf("%v", err)
	}
	must(t, dial.Discard(t.Context(), w.socket, grant))
}

func TestSetupWithoutItsSecret(t *testing.T) {
	w := newWorld(t)
	w.start()
	work := w.refreshWork(1, "snap-1", "true")
	work.Refresh.Egress = []string{"packages.egress.test"}
	work.Refresh.Inject = []wire.Injection{{Host: "packages.egress.test", Header: "Authorization", Secret: "NPM_TOKEN"}}
	w.plane.give(work)
	select {
	case r := <-w.plane.results:
		if !strings.Contains(r.Words, "NPM_TOKEN is not stored") {
			t.Errorf("%s", r.Words)
		}
	case <-time.After(time.Minute):
		t.Fatal("no result within a minute")
	}
	if got := w.ways(); len(got) > 0 {
		t.Errorf("sockets are left: %v", got)
	}
}

// What goes through the proxy of a refresh is bounded as a session's.
func TestLimitOfSetup(t *testing.T) {
	w := newWorld(t)
	w.start()
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { _, _ = rw.Write(make([]byte, 4<<20)) }))
	defer srv.Close()
	at := fmt.Sprintf("packages.egress.test:%d", srv.Listener.Addr().(*net.TCPAddr).Port)
	work := w.refreshWork(1, "snap-1", "curl -sSf http://"+at+"/ -o x")
	work.Refresh.Egress, work.Refresh.Limits.EgressBytes = []string{at}, 1<<20
	w.plane.give(work)
	select {
	case r := <-w.plane.results:
		if !strings.Contains(r.Words, "the egress proxy: the limit of 1 MiB") {
			t.Errorf("%s", r.Words)
		}
	case <-w.plane.offers:
		t.Error("it was offered")
	case <-time.After(time.Minute):
		t.Fatal("no result within a minute")
	}
}

// giveSecrets answers POST work/{id}/secrets.
func (p *plane) giveSecrets(w http.ResponseWriter, r *http.Request) {
	var ask wire.SecretsRequest
	_ = json.NewDecoder(r.Body).Decode(&ask)
	reply := wire.SecretsReply{Values: map[string]string{}}
	for _, name := range ask.Names {
		v, ok := p.secrets[name]
		if !ok {
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(wire.Error{Code: "bad_request", Message: "the secret " + name + " is not stored"})
			return
		}
		reply.Values[name] = v
	}
	_ = json.NewEncoder(w).Encode(reply)
}
