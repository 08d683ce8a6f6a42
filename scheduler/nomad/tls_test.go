package nomad

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"inspect/scheduler/jwks"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// issued is a certificate with its key, PEM.
type issued struct{ cert, key []byte }

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	made := a.sign(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	a.pem = made.cert
	return a
}

// sign makes a certificate for a new key; the first is the authority's own.
func (a *authority) sign(t *testing.T, of *x509.Certificate) issued {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of.SerialNumber, of.NotBefore, of.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = of, key
	}
	der, err := x509.CreateCertificate(rand.Reader, of, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert == nil {
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			t.Fatal(err)
		}
		a.key = key
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return issued{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})}
}

// Keys are taken from nobody but the cluster: it must show a certificate of its
// authority for its name, and one that wants to see ours is shown it.
func TestKeysOverTLS(t *testing.T) {
	cluster, stranger := newAuthority(t), newAuthority(t)
	own := cluster.sign(t, &x509.Certificate{DNSNames: []string{"server.global.nomad"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	pair, err := tls.X509KeyPair(own.cert, own.key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cluster.pem)
	answer := keyJSON(t, "a")
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != jwksPath {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(answer)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)

	client := &x509.Certificate{DNSNames: []string{"cli.global.nomad"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	ours, theirs := cluster.sign(t, client), stranger.sign(t, client)
	for _, c := range []struct {
		name   string
		change func(*Options)
		ok     bool
	}{
		{"as it should be", func(*Options) {}, true},
		{"without our certificate", func(o *Options) { o.ClientCert, o.ClientKey = nil, nil }, false},
		{"with a certificate of another authority", func(o *Options) { o.ClientCert, o.ClientKey = theirs.cert, theirs.key }, false},
		{"from a server of another authority", func(o *Options) { o.CACert = stranger.pem }, false},
		{"from a server that the machine's authorities do not know", func(o *Options) { o.CACert = nil }, false},
		{"from a server of another name", func(o *Options) { o.ServerName = "server.west.nomad" }, false},
		{"from a server without the name of its address", func(o *Options) { o.ServerName = "" }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := options(t, server.URL)
			o.Token, o.CACert, o.ClientCert, o.ClientKey, o.ServerName = nil, cluster.pem, ours.cert, ours.key, "server.global.nomad"
			c.change(&o)
			key, err := asking(t, o).keys.Key(t.Context(), "a")
			if (err == nil) != c.ok || (key != nil) != c.ok || errors.Is(err, jwks.ErrNoKey) {
				t.Errorf("%v, %v", key, err)
			}
		})
	}
}

// keyJSON is a key set of one key of that id.
func keyJSON(t *testing.T, id string) []byte {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(map[string]any{"keys": []map[string]string{{
		"kty": "RSA", "use": "sig", "alg": "RS256", "kid": id, "n": base64.RawURLEncoding.EncodeToString(key.N.Bytes()), "e": "AQAB",
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}
