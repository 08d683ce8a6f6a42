package pull

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"inspect/envs/egress"
	"inspect/envs/image/unpack"
)

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is a registry, and hosts beside it, with certificates of one authority.
type world struct {
	t     *testing.T
	cert  tls.Certificate
	reach egress.Config
	host  string // of the registry, with its port
	plain http.Handler

	mu   sync.Mutex
	in   func(http.ResponseWriter, *http.Request) bool // answers in place of the registry
	seen []*http.Request                               // of all hosts
}

func newWorld(t *testing.T) *world {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"*.pull.example"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	w := &world{t: t, cert: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, plain: registry.New(registry.Logger(quiet()))}
	w.reach = egress.Config{
		Roots: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		Resolve: map[string]string{
			"metadata.pull.example": "169.254.169.254", "inner.pull.example": "10.0.0.1", "loop.pull.example": "127.0.0.1",
		},
	}
	w.host = w.serve("registry", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		in := w.in
		w.mu.Unlock()
		if in == nil || !in(rw, r) {
			w.plain.ServeHTTP(rw, r)
		}
	}))
	return w
}

// serve serves a host below pull.example.
func (w *world) serve(name string, h http.Handler) (host string) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		w.seen = append(w.seen, r)
		w.mu.Unlock()
		h.ServeHTTP(rw, r)
	}))
	srv.Config.ErrorLog = quiet()
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{w.cert}}
	srv.StartTLS()
	w.t.Cleanup(srv.Close)
	addr := srv.Listener.Addr().(*net.TCPAddr)
	name += ".pull.example"
	w.reach.Resolve[name] = "127.0.0.1"
	w.reach.AllowAddresses = append(w.reach.AllowAddresses, addr.String())
	return fmt.Sprintf("%s:%d", name, addr.Port)
}

// answer has the registry answer what in says.
func (w *world) answer(in func(http.ResponseWriter, *http.Request) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.in = in
}

// push has the registry hold an image, and returns its name.
func (w *world) push(tag string, what remote.Taggable) string {
	w.t.Helper()
	base, err := egress.Transport(w.reach)
	must(w.t, err)
	defer base.CloseIdleConnections()
	ref, err := name.NewTag(w.host + "/octocat/dev:" + tag)
	must(w.t, err)
	options := []remote.Option{remote.WithTransport(base)}
	if index, ok := what.(v1.ImageIndex); ok {
		must(w.t, remote.WriteIndex(ref, index, options...))
	} else {
		must(w.t, remote.Write(ref, what.(v1.Image), options...))
	}
	d, err := what.(interface{ Digest() (v1.Hash, error) }).Digest()
	must(w.t, err)
	return w.host + "/octocat/dev@" + d.String()
}

func (w *world) config(image string) Config {
	return Config{Image: image, Limit: 1 << 30, Reach: w.reach, Patience: 10 * time.Second}
}

// pull is a pull that must not take longer than a person would wait.
func (w *world) pull(c Config) (archive []byte, err error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	var b bytes.Buffer
	err = Pull(ctx, c, &b)
	return b.Bytes(), err
}

// anImage is one for this machine.
func anImage(t *testing.T, layers int64) v1.Image {
	t.Helper()
	im, err := random.Image(2000, layers)
	must(t, err)
	c, err := im.ConfigFile()
	must(t, err)
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", runtime.GOARCH
	im, err = mutate.ConfigFile(im, c)
	must(t, err)
	return im
}

// unpacked unpacks an archive as a sandbox does.
func unpacked(t *testing.T, archive []byte) (digest string, layers int) {
	t.Helper()
	dir := t.TempDir()
	digest, err := unpack.Receive(dir, bytes.NewReader(archive), unpack.DefaultLimits())
	must(t, err)
	im, err := unpack.Write(dir, unpack.DefaultLimits())
	must(t, err)
	if im.Digest != digest {
		t.Errorf("said to be %s, is %s", digest, im.Digest)
	}
	if found, err := filepath.Glob(filepath.Join(dir, unpack.RootDir, "*")); err != nil || len(found) == 0 {
		t.Errorf("nothing was unpacked: %v", err)
	}
	return digest, im.Layers
}

func digestOf(image string) string { _, d, _ := strings.Cut(image, "@"); return d }

func TestPull(t *testing.T) {
	w := newWorld(t)
	mine, other := anImage(t, 3), anImage(t, 1)
	image := w.push("latest", mine)
	for _, im := range []string{image, w.push("index", mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "other"}}},
		mutate.IndexAddendum{Add: mine, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}},
	))} {
		archive, err := w.pull(w.config(im))
		must(t, err)
		if digest, layers := unpacked(t, archive); digest != digestOf(im) || layers != 3 {
			t.Errorf("%s: %s with %d layers", im, digest, layers)
		}
	}
	// A layer that is there twice is fetched once.
	layers, err := mine.Layers()
	must(t, err)
	twice, err := mutate.AppendLayers(mine, layers[0])
	must(t, err)
	archive, err := w.pull(w.config(w.push("twice", twice)))
	must(t, err)
	if _, layers := unpacked(t, archive); layers != 4 {
		t.Errorf("%d layers", layers)
	}
	// Where a tag has moved to is no matter.
	w.push("latest", other)
	archive, err = w.pull(w.config(image))
	must(t, err)
	if digest, _ := unpacked(t, archive); digest != digestOf(image) {
		t.Errorf("%s came", digest)
	}
}

// blob and manifest say which requests are for one.
func blob(r *http.Request) bool     { return strings.Contains(r.URL.Path, "/blobs/") }
func manifest(r *http.Request) bool { return strings.Contains(r.URL.Path, "/manifests/") }

// endless writes until nobody reads.
func endless(rw http.ResponseWriter) {
	for some := bytes.Repeat([]byte(" "), 1<<16); ; {
		if _, err := rw.Write(some); err != nil {
			return
		}
	}
}

// What a registry may do that is hostile, or broken: each ends with words.
func TestHostileRegistry(t *testing.T) {
	w := newWorld(t)
	im := anImage(t, 2)
	image := w.push("latest", im)
	other := anImage(t, 2)
	w.push("other", other)
	raw, err := im.RawManifest()
	must(t, err)
	otherRaw, err := other.RawManifest()
	must(t, err)
	// forged is an image with another manifest, by the digest of that.
	forged := func(change func(*v1.Manifest)) string {
		m, err := v1.ParseManifest(bytes.NewReader(raw))
		must(t, err)
		change(m)
		b, err := json.Marshal(m)
		must(t, err)
		d, _, err := v1.SHA256(bytes.NewReader(b))
		must(t, err)
		w.answer(func(rw http.ResponseWriter, r *http.Request) bool {
			if !manifest(r) {
				return false
			}
			rw.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			_, _ = rw.Write(b)
			return true
		})
		return w.host + "/octocat/dev@" + d.String()
	}
	forBlobs := func(h http.HandlerFunc) string {
		w.answer(func(rw http.ResponseWriter, r *http.Request) bool {
			if blob(r) {
				h(rw, r)
			}
			return blob(r)
		})
		return image
	}
	forManifests := func(h http.HandlerFunc) string {
		w.answer(func(rw http.ResponseWriter, r *http.Request) bool {
			if manifest(r) {
				rw.Header().Set("Content-Type", string(types.OCIManifestSchema1))
				h(rw, r)
			}
			return manifest(r)
		})
		return image
	}
	to := func(where string) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, where, http.StatusTemporaryRedirect)
		}
	}
	for name, test := range map[string]struct {
		words string
		image func() string
		hurry time.Duration // patience
	}{
		"wrong digest": {"does not match", func() string {
			return forManifests(func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write(otherRaw) })
		}, 0},
		"forged blob": {"checksum", func() string {
			return forBlobs(func(rw http.ResponseWriter, r *http.Request) {
				rec := httptest.NewRecorder()
				w.plain.ServeHTTP(rec, r)
				b := rec.Body.Bytes()
				b[len(b)/2] ^= 1
				_, _ = rw.Write(b)
			})
		}, 0},
		"short blob": {"less than|checksum", func() string {
			return forBlobs(func(rw http.ResponseWriter, _ *http.Request) { rw.(http.Flusher).Flush() })
		}, 0},
		"long blob": {"more than", func() string {
			return forBlobs(func(rw http.ResponseWriter, r *http.Request) {
				rec := httptest.NewRecorder()
				w.plain.ServeHTTP(rec, r)
				rw.(http.Flusher).Flush() // says no length
				_, _ = rw.Write(rec.Body.Bytes())
				endless(rw)
			})
		}, 0},
		"endless blob":     {"checksum|more than", func() string { return forBlobs(func(rw http.ResponseWriter, _ *http.Request) { endless(rw) }) }, 0},
		"endless manifest": {"longer than a document", func() string { return forManifests(func(rw http.ResponseWriter, _ *http.Request) { endless(rw) }) }, 0},
		"endless refusal": {"longer than a document", func() string {
			return forBlobs(func(rw http.ResponseWriter, _ *http.Request) {
				rw.WriteHeader(http.StatusForbidden)
				endless(rw)
			})
		}, 0},
		"many layers": {"257 layers", func() string {
			return forged(func(m *v1.Manifest) { m.Layers = slices.Repeat(m.Layers[:1], 257) })
		}, 0},
		"more than there is room for": {"larger than", func() string {
			return forged(func(m *v1.Manifest) { m.Layers[0].Size, m.Layers[1].Size = math.MaxInt64, math.MaxInt64 })
		}, 0},
		"less than nothing":   {"larger than", func() string { return forged(func(m *v1.Manifest) { m.Layers[0].Size = -5 }) }, 0},
		"large configuration": {"configuration has", func() string { return forged(func(m *v1.Manifest) { m.Config.Size = 1 << 30 }) }, 0},
		"to the metadata":     {"not a public one", func() string { return forBlobs(to("https://metadata.pull.example/latest")) }, 0},
		"to the inside":       {"not a public one", func() string { return forBlobs(to("https://inner.pull.example/")) }, 0},
		"to this machine":     {"not a public one", func() string { return forBlobs(to("https://loop.pull.example:1/")) }, 0},
		"to an address":       {"an IP address", func() string { return forBlobs(to("https://169.254.169.254/latest")) }, 0},
		"to plain http":       {"only https", func() string { return forBlobs(to("http://loop.pull.example/")) }, 0},
		"in circles": {"10 redirects", func() string {
			return forBlobs(func(rw http.ResponseWriter, r *http.Request) { to(r.URL.Path)(rw, r) })
		}, 0},
		"manifest elsewhere": {"not a public one", func() string { return forManifests(to("https://metadata.pull.example/x")) }, 0},
		"silent": {"too slow|awaiting response headers", func() string {
			return forBlobs(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		}, 200 * time.Millisecond},
		"silent in the midst": {"too slow", func() string {
			return forBlobs(func(rw http.ResponseWriter, r *http.Request) {
				rw.(http.Flusher).Flush()
				<-r.Context().Done()
			})
		}, 200 * time.Millisecond},
		"a trickle": {"too slow", func() string {
			return forBlobs(func(rw http.ResponseWriter, r *http.Request) {
				for tick := time.NewTicker(10 * time.Millisecond); ; { // is what is tested
					select {
					case <-tick.C:
						_, _ = rw.Write([]byte("x"))
						rw.(http.Flusher).Flush()
					case <-r.Context().Done():
						tick.Stop()
						return
					}
				}
			})
		}, 300 * time.Millisecond},
		"no image": {"no image there", func() string {
			return forManifests(func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("Content-Type", "text/html")
				_, _ = rw.Write(raw)
			})
		}, 0},
		"it is deleted": {"was it deleted", func() string {
			return forManifests(func(rw http.ResponseWriter, r *http.Request) { http.NotFound(rw, r) })
		}, 0},
		"private": {"give its node daemon a credential", func() string {
			return forManifests(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusForbidden) })
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := w.config(test.image())
			if test.hurry > 0 {
				c.Patience = test.hurry
			}
			archive, err := w.pull(c)
			if err == nil || !slices.ContainsFunc(strings.Split(test.words, "|"), func(s string) bool { return strings.Contains(err.Error(), s) }) {
				t.Errorf("%v", err)
			}
			if len(archive) > 1<<20 {
				t.Errorf("%d bytes were taken", len(archive))
			}
		})
	}
	// And it was the registry's doing.
	w.answer(nil)
	_, err = w.pull(w.config(image))
	must(t, err)
}

// A credential goes to its registry and to where that has tokens made, and never
// along to where blobs are.
func TestCredential(t *testing.T) {
	w := newWorld(t)
	image := w.push("latest", anImage(t, 2))
	const password, token = "password-of-octocat", "token-for-one-repository"
	var elsewhere atomic.Int64
	cdn := w.serve("cdn", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		elsewhere.Add(1)
		if r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "" {
			t.Errorf("sent along: %v", r.Header)
		}
		w.plain.ServeHTTP(rw, r)
	}))
	tokens := w.serve("tokens", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if user, p, ok := r.BasicAuth(); !ok || user != "octocat" || p != password {
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(rw).Encode(map[string]string{"token": token})
	}))
	w.answer(func(rw http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.Header.Get("Authorization") != "Bearer "+token:
			rw.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="https://%s/token",service="registry",scope="repository:octocat/dev:pull"`, tokens))
			rw.WriteHeader(http.StatusUnauthorized)
		case blob(r):
			http.Redirect(rw, r, "https://"+cdn+r.URL.Path, http.StatusTemporaryRedirect)
		default:
			return false
		}
		return true
	})
	c := w.config(image)
	c.Auth = &authn.AuthConfig{Username: "octocat", Password: password}
	archive, err := w.pull(c)
	must(t, err)
	if digest, _ := unpacked(t, archive); digest != digestOf(image) || elsewhere.Load() == 0 {
		t.Errorf("%s, %d blobs from elsewhere", digest, elsewhere.Load())
	}
	for words, auth := range map[string]*authn.AuthConfig{
		"with the credential that the node has": {Username: "octocat", Password: "wrong"},
		"give its node daemon a credential":     nil,
	} {
		c.Auth = auth
		if _, err := w.pull(c); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v", err)
		}
	}
	// Another port is another host, which the library beneath does not see.
	bare := w.serve("registry", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if h := r.Header; h.Get("Authorization") != "" || h.Get("Cookie") != "" {
			t.Errorf("sent along to another port: %v", h)
		}
	}))
	w.answer(func(rw http.ResponseWriter, r *http.Request) bool {
		http.Redirect(rw, r, "https://"+bare+"/", http.StatusTemporaryRedirect)
		return true
	})
	base, err := egress.Transport(w.reach)
	must(t, err)
	defer base.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+w.host+"/v2/octocat/dev/blobs/x", nil)
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Cookie", "a=b")
	resp, err := (&http.Client{Transport: &guard{base: base, patience: time.Minute, end: func(error) {}}}).Do(req)
	must(t, err)
	must(t, resp.Body.Close())
	// A refresh token is in the body of a request, which a redirect would repeat.
	w.answer(nil)
	thief := w.serve("thief", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		t.Errorf("the thief has %q", b)
	}))
	realm := w.serve("realm", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, "https://"+thief+"/", http.StatusTemporaryRedirect)
	}))
	w.answer(func(rw http.ResponseWriter, _ *http.Request) bool {
		rw.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="https://%s/token",service="registry"`, realm))
		rw.WriteHeader(http.StatusUnauthorized)
		return true
	})
	c = w.config(image)
	c.Auth = &authn.AuthConfig{IdentityToken: "identity-of-octocat"}
	if _, err := w.pull(c); err == nil || !strings.Contains(err.Error(), "where it does not go") {
		t.Errorf("%v", err)
	}
}

// A registry that speaks no TLS is not spoken to, whatever it is called.
func TestOnlyTLS(t *testing.T) {
	w := newWorld(t)
	plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was asked") }))
	t.Cleanup(plain.Close)
	plain.Config.ErrorLog = quiet()
	port := plain.Listener.Addr().(*net.TCPAddr).Port
	w.reach.AllowAddresses = append(w.reach.AllowAddresses, "127.0.0.1")
	digest := "@sha256:" + strings.Repeat("0", 64)
	for _, host := range []string{"registry.local", "x.localhost", "plain.pull.example", "127.0.0.1", "localhost"} {
		w.reach.Resolve[host] = "127.0.0.1"
		if _, err := w.pull(w.config(fmt.Sprintf("%s:%d/octocat/dev%s", host, port, digest))); err == nil {
			t.Errorf("%s was pulled from", host)
		}
	}
	for _, no := range []string{"dev" + digest, "octocat/dev" + digest, "registry.example/dev:latest", "registry.example/dev", "https://registry.example/dev" + digest, "a@registry.example/dev" + digest, ""} {
		if _, err := w.pull(w.config(no)); err == nil || !strings.Contains(err.Error(), "says no registry") {
			t.Errorf("%q: %v", no, err)
		}
	}
}

func TestCredentials(t *testing.T) {
	c, err := ParseCredentials([]byte(`{"auths": {
		"registry.example": {"username": "octocat", "password": "all"},
		"registry.example/team": {"auth": "aHVib3Q6dGVhbQ=="},
		"https://index.docker.io/v1/": {"identitytoken": "hub"},
		"kept.example": {}
	}, "credHelpers": {"cloud.example": "cloud"}, "credsStore": "desktop"}`))
	must(t, err)
	digest := "@sha256:" + strings.Repeat("0", 64)
	for image, want := range map[string]string{
		"registry.example/dev": "all", "registry.example/team/dev": "team", "registry.example/teams/dev": "all",
		"docker.io/octocat/dev": "hub", "other.example/dev": "", "registry.example.evil.example/dev": "", "registry.example:5000/dev": "",
	} {
		got, err := c.For(image + digest)
		must(t, err)
		if want == "" && got != nil || want != "" && (got == nil || got.Password+got.IdentityToken != want) {
			t.Errorf("%s: %+v", image, got)
		}
		if got != nil && !slices.Contains(Values(*got), want) {
			t.Errorf("%s: %q is not hidden", image, want)
		}
	}
	for _, image := range []string{"kept.example/dev", "cloud.example/dev"} {
		if _, err := c.For(image + digest); err == nil || !strings.Contains(err.Error(), "helper") {
			t.Errorf("%s: %v", image, err)
		}
	}
	for _, bad := range []string{"", "x", "[]", `{"auths": {"a.example": {"auth": "%"}}}`} {
		if _, err := ParseCredentials([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// As a process: what it is told comes on standard input, the archive or its words
// go out.
func TestChild(t *testing.T) {
	w := newWorld(t)
	line, err := json.Marshal(w.config(w.push("latest", anImage(t, 1))))
	must(t, err)
	var out bytes.Buffer
	must(t, child(bytes.NewReader(append(line, '\n')), &out))
	unpacked(t, out.Bytes())
	if err := child(strings.NewReader("{}"), io.Discard); err == nil {
		t.Error("half a line is taken")
	}
}
