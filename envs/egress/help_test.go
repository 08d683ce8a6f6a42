package egress

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"inspect/envs/sandbox/sandboxtest"
	"inspect/envs/wire"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case Command:
			os.Exit(Main(os.Args[2:]))
		}
	}
	goleak.VerifyTestMain(sandboxtest.Main(m))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// names is a resolver of made-up names.
type names struct {
	mu    sync.Mutex
	m     map[string][]string // addresses of a name, without the dot at its end
	asked []string
	then  func(host string) []string // instead of m
}

func (n *names) LookupIP(_ context.Context, _, host string) ([]net.IP, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, host)
	name := strings.TrimSuffix(host, ".")
	addrs := n.m[name]
	if n.then != nil {
		addrs = n.then(name)
	}
	var ips []net.IP
	for _, a := range addrs {
		ips = append(ips, net.ParseIP(a))
	}
	if len(ips) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return ips, nil
}

func (n *names) times() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.asked)
}

// world is a proxy at work.
type world struct {
	t      testing.TB
	p      *Proxy
	socket string
	names  *names
	stop   func()

	mu   sync.Mutex
	told []wire.Egress
}

// anywhere lets every port of the loopback be reached.
var anywhere = []string{"127.0.0.1"}

func newWorld(t testing.TB, opt Options) *world {
	t.Helper()
	w := &world{t: t, names: &names{m: map[string][]string{}}}
	if opt.Resolver == nil {
		opt.Resolver = w.names
	}
	if opt.AllowAddresses == nil {
		opt.AllowAddresses = anywhere
	}
	opt.Decide = func(e wire.Egress) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.told = append(w.told, e)
	}
	var err error
	w.p, err = New(opt)
	must(t, err)
	w.socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", w.socket)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- w.p.Serve(ctx, l) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-served:
			must(t, err)
		case <-time.After(20 * time.Second):
			t.Fatal("the proxy does not end")
		}
	})
	t.Cleanup(w.stop)
	return w
}

// dial connects as the init of a sandbox does for a command.
func (w *world) dial() net.Conn {
	w.t.Helper()
	c, err := net.Dial("unix", w.socket)
	must(w.t, err)
	w.t.Cleanup(func() { c.Close() })
	must(w.t, c.SetDeadline(time.Now().Add(20*time.Second)))
	line, err := json.Marshal(map[string]any{"pid": 7, "command": "npm ci"})
	must(w.t, err)
	_, err = c.Write(append(line, '\n'))
	must(w.t, err)
	return c
}

// raw sends a request as it stands and returns the answer.
func (w *world) raw(request string) (status string, header http.Header, body string) {
	w.t.Helper()
	c := w.dial()
	defer c.Close()
	_, err := io.WriteString(c, request)
	must(w.t, err)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		w.t.Fatalf("%q: %v", request, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	must(w.t, err)
	return res.Status, res.Header, string(b)
}

// connect asks for a tunnel and returns it when there is one.
func (w *world) connect(hostport string) (net.Conn, *bufio.Reader, *http.Response) {
	w.t.Helper()
	c := w.dial()
	_, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", hostport, hostport)
	must(w.t, err)
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	must(w.t, err)
	return c, r, res
}

// client is an HTTP client that uses the proxy.
func (w *world) client(ca *x509.CertPool) *http.Client {
	tr := &http.Transport{
		Proxy: func(*http.Request) (*url.URL, error) { return url.Parse("http://127.0.0.1:41710") },
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, "unix", w.socket)
			if err == nil {
				_, err = io.WriteString(c, `{"pid":7,"command":"npm ci"}`+"\n")
			}
			return c, err
		},
		TLSClientConfig: &tls.Config{RootCAs: ca},
	}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// decisions waits until there are n and returns them.
func (w *world) decisions(n int) []wire.Egress {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.told) != n {
		w.t.Fatalf("%d decisions, want %d: %+v", len(w.told), n, w.told)
	}
	return w.told
}

// last is the one decision that was told since the call before.
func (w *world) last() wire.Egress {
	w.t.Helper()
	told := w.decisions(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = nil
	return told[0]
}

// authority is a made-up certificate authority.
type authority struct {
	pool *x509.CertPool
	pem  []byte
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "made up"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	a := &authority{key: key, pool: x509.NewCertPool(), pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
	a.cert, err = x509.ParseCertificate(der)
	must(t, err)
	a.pool.AddCert(a.cert)
	return a
}

// server is an HTTPS server for a name.
func (a *authority) server(t testing.TB, h http.Handler, hosts ...string) *httptest.Server {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: hosts[0]}, DNSNames: hosts,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	must(t, err)
	srv := httptest.NewUnstartedServer(h)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

func portOf(addr net.Addr) int { return addr.(*net.TCPAddr).Port }
