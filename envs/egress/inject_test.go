package egress

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"inspect/envs/wire"
)

const registryToken = "npm/S3cret+canary_0123456789abcdef"

// privateRegistry is a registry with a credential, another host and a plain
// one, and what each was asked for.
type privateRegistry struct {
	*world
	port, otherPort, plainPort int
	inner, theirs              *x509.CertPool // what trusts the proxy, what trusts the hosts
	seen                       chan *http.Request
}

func newPrivateRegistry(t *testing.T, opt Options) *privateRegistry {
	t.Helper()
	ca := newAuthority(t)
	r := &privateRegistry{seen: make(chan *http.Request, 100), theirs: ca.pool}
	handler := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		req.Body = io.NopCloser(bytes.NewReader(b))
		r.seen <- req
		switch req.URL.Path {
		case "/echo":
			auth := req.Header.Get("Authorization")
			word := strings.TrimPrefix(auth, "Bearer ")
			w.Header().Set("X-Auth", auth)
			w.Header().Set("X-Base64", base64.StdEncoding.EncodeToString([]byte("x"+auth)))
			w.Header().Set("X-Url", url.QueryEscape(word))
			w.Header().Add("Set-Cookie", "session=made-with-it")
			w.Header().Set("Alt-Svc", `h3=":443"`)
			w.Header().Set("Connection", "X-Near")
			w.Header().Set("X-Near", "1")
			w.Header().Set("Trailer", "X-Last")
			body := fmt.Sprintf("%s|%s|%s|%s|%s", auth, base64.StdEncoding.EncodeToString([]byte(word)), base64.RawURLEncoding.EncodeToString([]byte("ab"+word)), url.QueryEscape(word), strings.ReplaceAll(word, "/", `\/`))
			body = strings.Repeat("-", 40_000) + body + strings.Repeat("-", 40_000)
			if strings.Contains(req.Header.Get("Accept-Encoding"), "gzip") {
				w.Header().Set("Content-Encoding", "gzip")
				z := gzip.NewWriter(w)
				_, _ = io.WriteString(z, body)
				z.Close()
			} else {
				_, _ = io.WriteString(w, body)
			}
			w.Header().Set("X-Last", auth)
		case "/away":
			http.Redirect(w, req, fmt.Sprintf("https://other.example:%d/landed", r.otherPort), http.StatusFound)
		case "/switch":
			c, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n%s", req.Header.Get("Authorization"))
				c.Close()
			}
		case "/broken":
			c, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				fmt.Fprintf(c, "%s\r\n\r\n", req.Header.Get("Authorization"))
				c.Close()
			}
		case "/cut":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
		case "/early":
			w.Header().Set("Link", req.Header.Get("Authorization"))
			w.WriteHeader(http.StatusEarlyHints)
			fallthrough
		default:
			fmt.Fprintf(w, "%s %s", req.Method, req.URL.RequestURI())
		}
	})
	secure, other := ca.server(t, handler, "registry.example"), ca.server(t, handler, "other.example", "wrong.example")
	plain := httptest.NewServer(handler)
	t.Cleanup(plain.Close)
	r.port, r.otherPort, r.plainPort = portOf(secure.Listener.Addr()), portOf(other.Listener.Addr()), portOf(plain.Listener.Addr())
	opt.Roots = ca.pool
	opt.Allow = append(opt.Allow, fmt.Sprintf("registry.example:%d", r.port), fmt.Sprintf("other.example:%d", r.otherPort), fmt.Sprintf("registry.example:%d", r.plainPort), "registry.example")
	if opt.Inject == nil {
		opt.Inject = []Credential{{Host: fmt.Sprintf("registry.example:%d", r.port), Header: "authorization", Secret: "NPM_TOKEN", Value: registryToken + "\n"}}
	}
	r.world = newWorld(t, opt)
	r.names.then = func(string) []string { return []string{"127.0.0.1"} }
	r.inner = x509.NewCertPool()
	if !r.inner.AppendCertsFromPEM(r.p.Authority()) {
		t.Fatal("the proxy has no certificate authority")
	}
	return r
}

func (r *privateRegistry) url(path string) string {
	return fmt.Sprintf("https://registry.example:%d%s", r.port, path)
}

// both trusts what a sandbox would: the proxy's authority and the others.
func (r *privateRegistry) both() *http.Client {
	pool := r.theirs.Clone()
	pool.AppendCertsFromPEM(r.p.Authority())
	return r.client(pool)
}

// exchange sends a request as it stands through a tunnel and returns the answer.
func (r *privateRegistry) exchange(request string) (int, string) {
	r.t.Helper()
	c, _, res := r.connect(fmt.Sprintf("registry.example:%d", r.port))
	defer c.Close()
	if res.StatusCode != 200 {
		r.t.Fatal(res.Status)
	}
	s := tls.Client(c, &tls.Config{ServerName: "registry.example", RootCAs: r.inner})
	_, err := io.WriteString(s, request)
	must(r.t, err)
	// Who is refused while it still speaks may find the end to be a reset.
	b, err := io.ReadAll(s)
	if !errors.Is(err, syscall.ECONNRESET) {
		must(r.t, err)
	}
	var code int
	if _, err := fmt.Sscanf(string(b[min(len(b), 8):]), "%d", &code); err != nil {
		r.t.Fatalf("%q", b)
	}
	return code, string(b)
}

func read(t *testing.T, res *http.Response, err error) string {
	t.Helper()
	must(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	must(t, err)
	return string(b)
}

func TestCredentialIsAdded(t *testing.T) {
	r := newPrivateRegistry(t, Options{})
	client := r.client(r.inner)
	req, err := http.NewRequest("GET", r.url("/@octo%2fcat?x=1%20;2"), nil)
	must(t, err)
	req.Header.Set("Authorization", "Bearer mine")
	req.Header["authorization"] = []string{"Bearer mine too"}
	req.Header.Set("Connection", "Authorization, X-Own")
	req.Header.Set("X-Own", "1")
	req.Header.Set("Range", "bytes=1-2")
	req.Header.Set("X-HTTP-Method-Override", "DELETE")
	req.Header.Set("Accept", "application/json")
	res, err := client.Do(req)
	if body := read(t, res, err); body != "GET /@octo%2fcat?x=1%20;2" {
		t.Errorf("%q", body)
	}
	got := <-r.seen
	if a := got.Header["Authorization"]; !slices.Equal(a, []string{"Bearer " + registryToken}) {
		t.Errorf("Authorization %q", a)
	}
	for _, name := range []string{"X-Own", "Range", "X-Http-Method-Override", "Connection", "X-Forwarded-For"} {
		if got.Header.Get(name) != "" {
			t.Errorf("%s was passed on", name)
		}
	}
	if got.Host != fmt.Sprintf("registry.example:%d", r.port) || got.Header.Get("Accept") != "application/json" || got.Proto != "HTTP/1.1" {
		t.Errorf("%s %s %v", got.Host, got.Proto, got.Header)
	}
	if e := r.last(); e != (wire.Egress{Host: "registry.example", Port: r.port, Allowed: true, Command: "npm ci", Secret: "NPM_TOKEN"}) {
		t.Errorf("%+v", e)
	}
	// Many requests go through one tunnel, and one more after the host has hung up.
	for range 3 {
		res, err := client.Get(r.url("/again"))
		if body := read(t, res, err); body != "GET /again" {
			t.Errorf("%q", body)
		}
		(<-r.seen).Body.Close()
	}
	res, err = client.Get(r.url("/broken"))
	if body := read(t, res, err); res.StatusCode != 502 || strings.Contains(body, registryToken) {
		t.Errorf("%s %q", res.Status, body)
	}
	<-r.seen
	res, err = client.Get(r.url("/after"))
	if body := read(t, res, err); body != "GET /after" {
		t.Errorf("%q", body)
	}
	<-r.seen
	r.decisions(0)
}

// The values are whole headers, or one word for Authorization.
func TestHeaderValue(t *testing.T) {
	for _, c := range []struct{ header, secret, want string }{
		{"Authorization", "word\n", "Bearer word"}, {"Authorization", "Basic dTpw", "Basic dTpw"}, {"Authorization", " token x ", "token x"},
		{"X-Api-Key", "word", "word"}, {"Authorization", "", ""}, {"X-Api-Key", "a\nb: c", ""}, {"X-Api-Key", "a\x00", ""}, {"X Y", "a", ""},
	} {
		got, err := headerValue(c.header, c.secret)
		if got != c.want || (err == nil) != (c.want != "") || err != nil && len(c.secret) > 1 && strings.Contains(err.Error(), c.secret) {
			t.Errorf("%s %q: %q %v", c.header, c.secret, got, err)
		}
	}
	for _, bad := range [][]Credential{
		{{Host: "*.example", Header: "A", Value: "v"}}, {{Host: "10.0.0.1", Header: "A", Value: "v"}}, {{Host: "a.example:0", Header: "A", Value: "v"}},
		{{Host: "a.example", Header: "A", Value: ""}}, {{Host: "a.example", Header: "A", Value: "v"}, {Host: "A.example:443", Header: "B", Value: "v"}},
	} {
		if _, err := New(Options{Inject: bad}); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	in := []wire.Injection{{Host: "a.example", Header: "A", Secret: "S"}, {Host: "b.example", Header: "A", Secret: "S"}}
	if _, err := Credentials(in, map[string]string{"T": "v"}); err == nil || !strings.Contains(err.Error(), "secret S") {
		t.Errorf("%v", err)
	}
	if got, err := Credentials(in, map[string]string{"S": "v"}); err != nil || len(got) != 2 || got[1] != (Credential{"b.example", "A", "S", "v"}) {
		t.Errorf("%+v %v", got, err)
	}
	if got := SecretNames(in); !slices.Equal(got, []string{"S"}) {
		t.Errorf("%q", got)
	}
}

// A server that tells what it was sent does not tell the secret.
func TestCredentialIsNotEchoed(t *testing.T) {
	for name, value := range map[string]string{
		"a token": registryToken, "basic": "Basic " + base64.StdEncoding.EncodeToString([]byte("octocat:pass/word0123")),
	} {
		t.Run(name, func(t *testing.T) {
			r := newPrivateRegistry(t, Options{})
			r.p.inject[0].value, _ = headerValue("Authorization", value)
			r.p.inject[0].scrub = newScrubber(r.p.inject[0].value)
			for _, encoding := range []string{"gzip", "identity", "br"} {
				req, err := http.NewRequest("GET", r.url("/echo"), nil)
				must(t, err)
				req.Header.Set("Accept-Encoding", encoding)
				res, err := r.client(r.inner).Do(req)
				body := read(t, res, err)
				sent := (<-r.seen).Header.Get("Authorization")
				if !strings.HasSuffix(sent, value) || len(body) < 80_000 || !strings.Contains(body, "****") {
					t.Fatalf("%s: nothing was echoed: %q", encoding, body)
				}
				all := body + fmt.Sprint(res.Header, res.Trailer)
				_, word, _ := strings.Cut(sent, " ")
				for _, secret := range []string{word, base64.StdEncoding.EncodeToString([]byte(word))[:20], url.QueryEscape(word), strings.ReplaceAll(word, "/", `\/`)} {
					if strings.Contains(all, secret) {
						t.Errorf("%s: %q is told", encoding, secret)
					}
				}
				for _, shift := range []string{"x" + sent, "ab" + word} {
					enc := base64.RawStdEncoding.EncodeToString([]byte(shift))
					if strings.Contains(all, enc[len(enc)-24:len(enc)-4]) {
						t.Errorf("%s: %q is told in base64", encoding, shift)
					}
				}
				for _, name := range []string{"Set-Cookie", "Alt-Svc", "X-Near", "Trailer", "Content-Encoding"} {
					if res.Header.Get(name) != "" {
						t.Errorf("%s: %s came back", encoding, name)
					}
				}
			}
			for _, path := range []string{"/switch", "/early", "/broken"} {
				_, all := r.exchange(fmt.Sprintf("GET %s HTTP/1.1\r\nHost: registry.example:%d\r\nConnection: close\r\n\r\n", path, r.port))
				if got := <-r.seen; strings.Contains(all, got.Header.Get("Authorization")) || strings.Contains(all, " 101 ") || strings.Contains(all, " 103 ") {
					t.Errorf("%s: %s", path, all)
				}
			}
		})
	}
}

func TestScrubber(t *testing.T) {
	s := newScrubber("Bearer " + registryToken)
	text := strings.Repeat("x", 32<<10-10) + registryToken + "y" + registryToken[:20] + registryToken
	want := strings.Repeat("x", 32<<10-10) + strings.Repeat("*", len(registryToken)) + "y" + registryToken[:20] + strings.Repeat("*", len(registryToken))
	for name, r := range map[string]io.Reader{
		"at once": strings.NewReader(text), "byte by byte": iotest.OneByteReader(strings.NewReader(text)), "with its end": iotest.DataErrReader(strings.NewReader(text)),
	} {
		got, err := io.ReadAll(iotest.OneByteReader(s.reader(r)))
		if err != nil || string(got) != want {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	broken := errors.New("broken")
	got, err := io.ReadAll(s.reader(io.MultiReader(strings.NewReader("some"), iotest.ErrReader(broken))))
	if string(got) != "some" || !errors.Is(err, broken) {
		t.Errorf("%q %v", got, err)
	}
	if got := newScrubber("short").text("a short one"); got != "a short one" {
		t.Errorf("%q", got)
	}
}

// The credential goes to its host at its port, in a request for it, by HTTPS,
// and to nobody else.
func TestCredentialGoesNowhereElse(t *testing.T) {
	r := newPrivateRegistry(t, Options{})
	none := func(what string) {
		t.Helper()
		for {
			select {
			case got := <-r.seen:
				if strings.Contains(fmt.Sprint(got.Header), registryToken) {
					t.Errorf("%s: the credential went to %s%s", what, got.Host, got.URL)
				}
			default:
				return
			}
		}
	}
	// A redirect to another host: the program goes there by itself.
	res, err := r.both().Get(r.url("/away"))
	if body := read(t, res, err); body != "GET /landed" {
		t.Errorf("%q", body)
	}
	if first := <-r.seen; first.Header.Get("Authorization") == "" {
		t.Error("the first had none")
	}
	none("a redirect")
	if told := r.decisions(2); told[0].Secret != "NPM_TOKEN" || told[1].Secret != "" || told[1].Host != "other.example" {
		t.Errorf("%+v", told)
	}
	r.mu.Lock()
	r.told = nil
	r.mu.Unlock()
	// The same host at another port.
	if status, _, body := r.raw(fmt.Sprintf("GET http://registry.example:%d/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", r.plainPort)); status != "200 OK" {
		t.Errorf("%s %s", status, body)
	}
	none("another port")
	r.last()
	// Plain HTTP to the port.
	for _, host := range []string{"registry.example", "REGISTRY.example."} {
		status, _, body := r.raw(fmt.Sprintf("GET http://%s:%d/ HTTP/1.1\r\nHost: x\r\n\r\n", host, r.port))
		if e := r.last(); !strings.HasPrefix(status, "403") || !strings.Contains(body, onlyHTTPS) || e.Allowed || e.Reason != onlyHTTPS {
			t.Errorf("%s %s %+v", status, body, e)
		}
	}
	none("plain HTTP")

	// In the tunnel: everything but a request to fetch from this very host.
	at := fmt.Sprintf("registry.example:%d", r.port)
	for name, c := range map[string]struct{ request, reason string }{
		"another host":       {"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n", otherHost},
		"the host's port":    {"GET / HTTP/1.1\r\nHost: registry.example\r\n\r\n", otherHost},
		"another port":       {"GET / HTTP/1.1\r\nHost: registry.example:444\r\n\r\n", otherHost},
		"no host":            {"GET / HTTP/1.1\r\nHost:\r\n\r\n", otherHost},
		"no host, old":       {"GET / HTTP/1.0\r\n\r\n", otherHost},
		"absolute":           {"GET https://other.example/ HTTP/1.1\r\nHost: " + at + "\r\n\r\n", otherHost},
		"absolute, the same": {"GET https://" + at + "/ HTTP/1.1\r\nHost: " + at + "\r\n\r\n", otherHost},
		"a tunnel in it":     {"CONNECT " + at + " HTTP/1.1\r\nHost: " + at + "\r\n\r\n", otherHost},
		"publish":            {"PUT /lib HTTP/1.1\r\nHost: " + at + "\r\nContent-Length: 1\r\n\r\nx", onlyFetches},
		"delete":             {"DELETE /lib HTTP/1.1\r\nHost: " + at + "\r\n\r\n", onlyFetches},
		"post":               {"POST /lib HTTP/1.1\r\nHost: " + at + "\r\nContent-Length: 0\r\n\r\n", onlyFetches},
		"trace":              {"TRACE / HTTP/1.1\r\nHost: " + at + "\r\n\r\n", onlyFetches},
		"options":            {"OPTIONS * HTTP/1.1\r\nHost: " + at + "\r\n\r\n", otherHost},
		"get with a body":    {"GET / HTTP/1.1\r\nHost: " + at + "\r\nContent-Length: 3\r\n\r\nabc", onlyFetches},
		"get with chunks":    {"GET / HTTP/1.1\r\nHost: " + at + "\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", onlyFetches},
		"upgrade":            {"GET / HTTP/1.1\r\nHost: " + at + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", noUpgrade},
		"upgrade, bare":      {"GET / HTTP/1.1\r\nHost: " + at + "\r\nUpgrade:\r\n\r\n", noUpgrade},
		"git push":           {"POST /r.git/git-receive-pack HTTP/1.1\r\nHost: " + at + "\r\nContent-Type: application/x-git-receive-pack-request\r\nContent-Length: 4\r\n\r\n0000", onlyFetches},
		"git, not quite":     {"POST /r.git/git-upload-pack?x HTTP/1.1\r\nHost: " + at + "\r\nContent-Type: application/x-git-upload-pack-request\r\nContent-Length: 4\r\n\r\n0000", onlyFetches},
	} {
		t.Run(name, func(t *testing.T) {
			code, all := r.exchange(strings.Replace(c.request, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))
			if code != 403 || !strings.Contains(all, c.reason) {
				t.Errorf("%s", all)
			}
			told := r.decisions(2)
			if told[0].Secret != "NPM_TOKEN" || told[1].Allowed || told[1].Reason != c.reason || told[1].Secret != "" || told[1].Command != "npm ci" {
				t.Errorf("%+v", told)
			}
			r.mu.Lock()
			r.told = nil
			r.mu.Unlock()
		})
	}
	// What cannot be read in one way only is not read at all.
	for name, request := range map[string]string{
		"two lengths":       "POST /r.git/git-upload-pack HTTP/1.1\r\nHost: " + at + "\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n0000",
		"unknown encoding":  "POST /r.git/git-upload-pack HTTP/1.1\r\nHost: " + at + "\r\nTransfer-Encoding: chunked, x\r\n\r\n0\r\n\r\n",
		"two hosts":         "GET / HTTP/1.1\r\nHost: " + at + "\r\nHost: other.example\r\n\r\n",
		"a space in a name": "GET / HTTP/1.1\r\nHost: " + at + "\r\nContent-Length : 4\r\n\r\n0000",
		"userinfo":          "GET / HTTP/1.1\r\nHost: x@" + at + "\r\n\r\n",
		"nonsense":          "nonsense\r\n\r\n",
		"a large header":    "GET / HTTP/1.1\r\nHost: " + at + "\r\nX: " + strings.Repeat("x", 2*maxHeader) + "\r\n\r\n",
	} {
		if code, all := r.exchange(request); code < 400 || code >= 600 || strings.Contains(all, "Inspect") {
			t.Errorf("%s: %s", name, all)
		}
	}
	none("hostile requests")
	// A length and chunks: the chunks count, and what follows is another request.
	_, all := r.exchange("POST /r.git/git-upload-pack HTTP/1.1\r\nHost: " + at + "\r\nContent-Type: application/x-git-upload-pack-request\r\n" +
		"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nDELETE / HTTP/1.1\r\nHost: " + at + "\r\nConnection: close\r\n\r\n")
	if got := <-r.seen; got.Method != "POST" || len(r.seen) > 0 {
		t.Errorf("%s, and %d more: %s", got.Method, len(r.seen), all)
	}
}

func TestGitFetchWithCredential(t *testing.T) {
	r := newPrivateRegistry(t, Options{})
	req, err := http.NewRequest("POST", r.url("/r.git/git-upload-pack"), io.MultiReader(strings.NewReader("0000"), strings.NewReader("more")))
	must(t, err)
	req.Header.Set("Content-Type", "application/x-git-upload-pack-request")
	res, err := r.client(r.inner).Do(req)
	if body := read(t, res, err); body != "POST /r.git/git-upload-pack" {
		t.Errorf("%q", body)
	}
	got := <-r.seen
	if b, _ := io.ReadAll(got.Body); string(b) != "0000more" || got.Header.Get("Authorization") != "Bearer "+registryToken {
		t.Errorf("%q %v", b, got.Header)
	}
}

// Two names that are not the same, and what is no TLS.
func TestTunnelThatIsNotWhatItSeems(t *testing.T) {
	r := newPrivateRegistry(t, Options{})
	at := fmt.Sprintf("registry.example:%d", r.port)
	shake := func(c *tls.Config) func(net.Conn) error {
		return func(conn net.Conn) error { return tls.Client(conn, c).Handshake() }
	}
	for name, c := range map[string]struct {
		talk   func(c net.Conn) error
		reason string
	}{
		"another name":    {shake(&tls.Config{ServerName: "other.example", InsecureSkipVerify: true}), otherHost},
		"no trust":        {shake(&tls.Config{ServerName: "registry.example", RootCAs: r.theirs, MaxVersion: tls.VersionTLS12}), noTLS},
		"an old protocol": {shake(&tls.Config{ServerName: "registry.example", RootCAs: r.inner, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}), noTLS},
		"only h2":         {shake(&tls.Config{ServerName: "registry.example", RootCAs: r.inner, NextProtos: []string{"h2"}}), noTLS},
		"plain HTTP": {func(c net.Conn) error {
			_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+at+"\r\n\r\n")
			return errors.Join(err, errors.New("written"))
		}, noTLS},
	} {
		t.Run(name, func(t *testing.T) {
			conn, _, res := r.connect(at)
			if res.StatusCode != 200 {
				t.Fatal(res.Status)
			}
			if c.talk(conn) == nil {
				t.Error("it came about")
			}
			_, _ = io.Copy(io.Discard, conn) // until the proxy has hung up
			if e := r.last(); e.Allowed || e.Reason != c.reason || e.Secret != "" {
				t.Errorf("%+v", e)
			}
		})
	}
	// Without a name in the greeting the Host header decides.
	conn, _, _ := r.connect(at)
	s := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	_, err := io.WriteString(s, "GET / HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n")
	must(t, err)
	if b, _ := io.ReadAll(s); !strings.Contains(string(b), otherHost) {
		t.Errorf("%s", b)
	}
	if len(r.seen) > 0 {
		t.Error("a request came through")
	}
}

// A host whose certificate is not good gets no credential and no request.
func TestCertificateOfTheHost(t *testing.T) {
	stranger := newAuthority(t)
	asked := make(chan struct{}, 8)
	h := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{} })
	ca := newAuthority(t)
	for name, srv := range map[string]*httptest.Server{
		"another authority": stranger.server(t, h, "registry.example"), "another name": ca.server(t, h, "registry.example.evil.example"),
	} {
		t.Run(name, func(t *testing.T) {
			port := portOf(srv.Listener.Addr())
			at := fmt.Sprintf("registry.example:%d", port)
			w := newWorld(t, Options{Allow: []string{at}, Roots: ca.pool, Inject: []Credential{{Host: at, Header: "Authorization", Secret: "NPM_TOKEN", Value: registryToken}}})
			w.names.m["registry.example"] = []string{"127.0.0.1"}
			inner := x509.NewCertPool()
			inner.AppendCertsFromPEM(w.p.Authority())
			res, err := w.client(inner).Get("https://" + at + "/")
			if body := read(t, res, err); res.StatusCode != 502 || !strings.Contains(body, notVerified) {
				t.Errorf("%s %s", res.Status, body)
			}
			if e := w.last(); !e.Allowed || e.Reason != notVerified || e.Secret != "" {
				t.Errorf("%+v", e)
			}
			if len(asked) > 0 {
				t.Error("it was asked")
			}
		})
	}
}

// An injected host without a port is spoken to at 443 and at no other.
func TestInjectionWithoutAPort(t *testing.T) {
	w := newWorld(t, Options{Allow: []string{"registry.example"}, Inject: []Credential{{Host: "Registry.Example", Header: "X-Key", Secret: "KEY", Value: registryToken}}})
	w.names.then = func(string) []string { return []string{"127.0.0.1"} }
	for _, request := range []string{"GET http://registry.example/ HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT registry.example:80 HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://registry.example:443/ HTTP/1.1\r\nHost: x\r\n\r\n"} {
		if status, _, body := w.raw(request); !strings.HasPrefix(status, "403") || !strings.Contains(body, onlyHTTPS) {
			t.Errorf("%q: %s %s", request, status, body)
		}
	}
	if in := w.p.injectedAt("registry.example", 443); in == nil || in.header != "X-Key" || in.value != registryToken {
		t.Errorf("%+v", in)
	}
	// It need not be a host that can be reached.
	if status, _, _ := w.raw("CONNECT registry.example:443 HTTP/1.1\r\nHost: x\r\n\r\n"); !strings.HasPrefix(status, "502") {
		t.Error(status)
	}
	if e := w.decisions(4)[3]; !e.Allowed || e.Secret != "" {
		t.Errorf("%+v", e)
	}
}

// What a sandbox is given to trust is good for the hosts and nothing else, and
// is another one for each proxy.
func TestAuthority(t *testing.T) {
	r := newPrivateRegistry(t, Options{})
	plain, err := CheckAuthority(r.p.Authority())
	if err != nil || !bytes.Equal(plain, r.p.Authority()) || bytes.Contains(plain, []byte("PRIVATE")) {
		t.Errorf("%s %v", plain, err)
	}
	leaf, err := r.p.issuer.issue("evil.example")
	must(t, err)
	cert, err := x509.ParseCertificate(leaf.Certificate[0])
	must(t, err)
	if _, err := cert.Verify(x509.VerifyOptions{Roots: r.inner, DNSName: "evil.example"}); err == nil {
		t.Error("the authority is good for any host")
	}
	again := newPrivateRegistry(t, Options{})
	if bytes.Equal(again.p.Authority(), r.p.Authority()) {
		t.Error("two proxies have one authority")
	}
	bundle, err := Bundle(r.p.Authority())
	if err != nil || !bytes.HasSuffix(bundle, r.p.Authority()) {
		t.Errorf("%v", err)
	}
	for name, bad := range map[string][]byte{
		"nothing": nil, "text": []byte("x"), "two": append(bytes.Clone(plain), plain...), "any authority": newAuthority(t).pem,
		"a key": []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"),
	} {
		if _, err := CheckAuthority(bad); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	if w := newWorld(t, Options{}); w.p.Authority() != nil {
		t.Error("a proxy that adds nothing has an authority")
	}
}

// The end comes to tunnels in which TLS ends, too.
func TestServeEndsWithInjection(t *testing.T) {
	r := newPrivateRegistry(t, Options{})
	open, _, _ := r.connect(fmt.Sprintf("registry.example:%d", r.port)) // no greeting yet
	s, _, _ := r.connect(fmt.Sprintf("registry.example:%d", r.port))
	idle := tls.Client(s, &tls.Config{ServerName: "registry.example", RootCAs: r.inner})
	must(t, idle.Handshake())
	r.stop()
	for _, c := range []net.Conn{open, idle} {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a connection goes on")
		}
	}
}
