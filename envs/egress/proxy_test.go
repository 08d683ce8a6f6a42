package egress

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/envs/wire"
)

func TestAllowedAndRefused(t *testing.T) {
	ca := newAuthority(t)
	secure := ca.server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "secure ", r.Host) }), "registry.example")
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "plain ", r.Host, r.URL.Path) }))
	defer plain.Close()
	sp, pp := portOf(secure.Listener.Addr()), portOf(plain.Listener.Addr())
	w := newWorld(t, Options{Allow: []string{fmt.Sprintf("registry.example:%d", sp), fmt.Sprintf("*.plain.example:%d", pp)}})
	w.names.m["registry.example"], w.names.m["a.plain.example"] = []string{"127.0.0.1"}, []string{"127.0.0.1"}
	client := w.client(ca.pool)
	get := func(url string) (int, string, error) {
		res, err := client.Get(url)
		if err != nil {
			return 0, "", err
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		return res.StatusCode, string(b), err
	}

	if _, body, err := get(fmt.Sprintf("https://registry.example:%d/x", sp)); err != nil || body != fmt.Sprintf("secure registry.example:%d", sp) {
		t.Errorf("https: %q %v", body, err)
	}
	if e := w.last(); e != (wire.Egress{Host: "registry.example", Port: sp, Allowed: true, Command: "npm ci"}) {
		t.Errorf("decision %+v", e)
	}
	if _, body, err := get(fmt.Sprintf("http://A.Plain.Example.:%d/x", pp)); err != nil || body != fmt.Sprintf("plain a.plain.example:%d/x", pp) {
		t.Errorf("http: %q %v", body, err)
	}
	if e := w.last(); e != (wire.Egress{Host: "a.plain.example", Port: pp, Allowed: true, Command: "npm ci"}) {
		t.Errorf("decision %+v", e)
	}

	// A refusal of plain HTTP says everything.
	code, body, err := get("http://other.example/secret")
	if err != nil || code != 403 {
		t.Errorf("refused: %d %v", code, err)
	}
	for _, want := range []string{"other.example:80", "npm ci", ".inspect.yml", `egress: ["other.example"]`} {
		if !strings.Contains(body, want) {
			t.Errorf("the refusal does not say %q:\n%s", want, body)
		}
	}
	if e := w.last(); e != (wire.Egress{Host: "other.example", Port: 80, Reason: NotListed, Command: "npm ci"}) {
		t.Errorf("decision %+v", e)
	}
	// That of a tunnel says it in its status line too, which is all some show.
	_, _, res := w.connect("other.example:8443")
	b, _ := io.ReadAll(res.Body)
	if res.Status != "403 egress to other.example:8443 refused by Inspect" || !strings.Contains(string(b), `egress: ["other.example:8443"]`) {
		t.Errorf("refused tunnel: %q %s", res.Status, b)
	}
	if e := w.last(); e.Allowed || e.Port != 8443 {
		t.Errorf("decision %+v", e)
	}
	if _, _, err := get("https://registry.npmjs.org/x"); err == nil || !strings.Contains(err.Error(), "egress to registry.npmjs.org:443 refused by Inspect") {
		t.Errorf("what Go says of a refused tunnel: %v", err)
	}
	w.last()
	// An ecosystem's host is suggested by the ecosystem's name.
	_, body, _ = get("http://registry.npmjs.org/x")
	if !strings.Contains(body, `egress: ["npm"]`) {
		t.Errorf("no ecosystem is suggested: %s", body)
	}
	w.last()
	// The root of a domain is not below it, a longer name is not the same.
	for _, url := range []string{
		fmt.Sprintf("http://plain.example:%d/", pp), fmt.Sprintf("http://xplain.example:%d/", pp),
		fmt.Sprintf("http://a.plain.example.evil.example:%d/", pp), "http://a.plain.example/", "http://a.plain.example:443/",
	} {
		if code, _, err := get(url); code != 403 || err != nil {
			t.Errorf("%s: %d %v", url, code, err)
		}
		if e := w.last(); e.Allowed {
			t.Errorf("%s: %+v", url, e)
		}
	}
}

// A redirect leads to one more request, which is decided like any other.
func TestRedirect(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://elsewhere.example/", http.StatusFound)
	}))
	defer plain.Close()
	port := portOf(plain.Listener.Addr())
	w := newWorld(t, Options{Allow: []string{fmt.Sprintf("a.example:%d", port)}})
	w.names.m["a.example"], w.names.m["elsewhere.example"] = []string{"127.0.0.1"}, []string{"127.0.0.1"}
	res, err := w.client(nil).Get(fmt.Sprintf("http://a.example:%d/", port))
	must(t, err)
	res.Body.Close()
	if res.StatusCode != 403 {
		t.Errorf("status %s", res.Status)
	}
	told := w.decisions(2)
	if !told[0].Allowed || told[1].Allowed || told[1].Host != "elsewhere.example" {
		t.Errorf("%+v", told)
	}
}

func TestHostileRequests(t *testing.T) {
	trap, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer trap.Close()
	caught := make(chan string, 16)
	go func() {
		for {
			c, err := trap.Accept()
			if err != nil {
				return
			}
			b := make([]byte, 200)
			_ = c.SetReadDeadline(time.Now().Add(time.Second))
			n, _ := c.Read(b)
			caught <- string(b[:n])
			c.Close()
		}
	}()
	port := portOf(trap.Addr())
	// Everything is allowed by name: what is refused is refused for its form.
	w := newWorld(t, Options{Allow: []string{"good.example", fmt.Sprintf("good.example:%d", port), "*.good.example"}})
	w.names.then = func(string) []string { return []string{"127.0.0.1"} }
	self := fmt.Sprintf("127.0.0.1:%d", port)
	for name, c := range map[string]struct{ request, reason string }{
		"a further proxy":                          {"CONNECT good.example:443 HTTP/1.1\r\nHost: good.example\r\nX-Upstream-Https-Proxy: http://" + self + "\r\n\r\n", furtherProxy},
		"a further proxy, lower":                   {"CONNECT good.example:443 HTTP/1.1\r\nHost: x\r\nx-upstream-https-proxy: https://user@" + self + "\r\n\r\n", furtherProxy},
		"a further proxy, second":                  {"CONNECT good.example:443 HTTP/1.1\r\nHost: x\r\nX-Upstream-Https-Proxy:\r\nX-Upstream-Https-Proxy: http://" + self + "\r\n\r\n", furtherProxy},
		"a further proxy for plain":                {"GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nX-Upstream-Https-Proxy: http://" + self + "\r\n\r\n", furtherProxy},
		"an address":                               {"CONNECT " + self + " HTTP/1.1\r\nHost: x\r\n\r\n", "an IP address cannot be allowed, only the name of a host"},
		"an address, plain":                        {"GET http://" + self + "/ HTTP/1.1\r\nHost: good.example\r\n\r\n", "an IP address cannot be allowed, only the name of a host"},
		"a short address":                          {"CONNECT 127.1:443 HTTP/1.1\r\nHost: x\r\n\r\n", "an IP address cannot be allowed, only the name of a host"},
		"a decimal address":                        {"CONNECT 2130706433:443 HTTP/1.1\r\nHost: x\r\n\r\n", "an IP address cannot be allowed, only the name of a host"},
		"a hexadecimal address":                    {"CONNECT 0x7f000001:443 HTTP/1.1\r\nHost: x\r\n\r\n", "an IP address cannot be allowed, only the name of a host"},
		"an address with a dot":                    {"CONNECT 127.0.0.1.:443 HTTP/1.1\r\nHost: x\r\n\r\n", "an IP address cannot be allowed, only the name of a host"},
		"an address of version six":                {"CONNECT [::1]:443 HTTP/1.1\r\nHost: x\r\n\r\n", "an IP address cannot be allowed, only the name of a host"},
		"a mapped address":                         {"CONNECT [::ffff:127.0.0.1]:443 HTTP/1.1\r\nHost: x\r\n\r\n", "an IP address cannot be allowed, only the name of a host"},
		"an octal address, literal":                {"CONNECT 0177.0.0.1:443 HTTP/1.1\r\nHost: good.example\r\n\r\n", "an IP address cannot be allowed, only the name of a host"},
		"a long octal address, literal":            {"CONNECT 017700000001:443 HTTP/1.1\r\nHost: good.example\r\n\r\n", "an IP address cannot be allowed, only the name of a host"},
		"a mixed address, literal":                 {"CONNECT 0x7f.0.0.1:443 HTTP/1.1\r\nHost: good.example\r\n\r\n", "an IP address cannot be allowed, only the name of a host"},
		"three parts, literal":                     {"CONNECT 127.0.1:443 HTTP/1.1\r\nHost: good.example\r\n\r\n", "an IP address cannot be allowed, only the name of a host"},
		"capital hexadecimal, literal":             {"CONNECT 0X7F000001:443 HTTP/1.1\r\nHost: good.example\r\n\r\n", "an IP address cannot be allowed, only the name of a host"},
		"a zone, literal":                          {"CONNECT [fe80::1%25eth0]:443 HTTP/1.1\r\nHost: good.example\r\n\r\n", "an IP address cannot be allowed, only the name of a host"},
		"NAT64, literal":                           {"CONNECT [64:ff9b::7f00:1]:443 HTTP/1.1\r\nHost: good.example\r\n\r\n", "an IP address cannot be allowed, only the name of a host"},
		"a mapped address in hexadecimal, literal": {"CONNECT [::ffff:7f00:1]:443 HTTP/1.1\r\nHost: good.example\r\n\r\n", "an IP address cannot be allowed, only the name of a host"},
		"the metadata server, literal":             {"CONNECT 169.254.169.254:443 HTTP/1.1\r\nHost: good.example\r\n\r\n", "an IP address cannot be allowed, only the name of a host"},
		"its number, literal":                      {"CONNECT 2852039166:443 HTTP/1.1\r\nHost: good.example\r\n\r\n", "an IP address cannot be allowed, only the name of a host"},
		"nothing, literal":                         {"CONNECT 0.0.0.0:443 HTTP/1.1\r\nHost: good.example\r\n\r\n", "an IP address cannot be allowed, only the name of a host"},
		"nothing, short, literal":                  {"CONNECT 0:443 HTTP/1.1\r\nHost: good.example\r\n\r\n", "an IP address cannot be allowed, only the name of a host"},
		"localhost":                                {"CONNECT localhost:443 HTTP/1.1\r\nHost: good.example\r\n\r\n", NotListed},
		"the Host of a tunnel":                     {"CONNECT bad.test:443 HTTP/1.1\r\nHost: good.example:443\r\n\r\n", NotListed},
		"a name for an address":                    {"CONNECT 10.0.0.1.nip.io:443 HTTP/1.1\r\nHost: x\r\n\r\n", NotListed},
		"a name of the metadata":                   {"GET http://metadata.google.internal/ HTTP/1.1\r\nHost: good.example\r\n\r\n", NotListed},
		"userinfo, plain":                          {"GET http://good.example@bad.test/ HTTP/1.1\r\nHost: good.example\r\n\r\n", NotListed},
		"userinfo of a tunnel":                     {"CONNECT x@good.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", noHost},
		"two dots at the end":                      {"CONNECT good.example..:443 HTTP/1.1\r\nHost: x\r\n\r\n", noHost},
		"a huge name":                              {"CONNECT " + strings.Repeat("a", 20_000) + ":443 HTTP/1.1\r\nHost: x\r\n\r\n", "the host's name is too long"},
		"a long part":                              {"CONNECT " + strings.Repeat("a", 64) + ".good.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", noHost},
		"an odd port":                              {"CONNECT good.example:22 HTTP/1.1\r\nHost: x\r\n\r\n", NotListed},
		"the mail port":                            {"CONNECT good.example:25 HTTP/1.1\r\nHost: x\r\n\r\n", NotListed},
		"no port":                                  {"CONNECT good.example HTTP/1.1\r\nHost: x\r\n\r\n", "a CONNECT request must name a port"},
		"port zero":                                {"CONNECT good.example:0 HTTP/1.1\r\nHost: x\r\n\r\n", "the request names no usable port"},
		"a large port":                             {"CONNECT good.example:65979 HTTP/1.1\r\nHost: x\r\n\r\n", "the request names no usable port"},
		"a port with a zero":                       {"CONNECT good.example:0443 HTTP/1.1\r\nHost: x\r\n\r\n", "the request names no usable port"},
		"https in the open":                        {"GET https://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n", needsConnect},
		"another scheme":                           {"GET ftp://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n", needsConnect},
		"no host":                                  {"GET http:///x HTTP/1.1\r\nHost:\r\n\r\n", "the request names no host"},
		"another host in the header":               {"GET http://bad.test/ HTTP/1.1\r\nHost: good.example\r\n\r\n", NotListed},
		"an empty part":                            {"CONNECT a..good.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", noHost},
		"beyond ASCII":                             {"CONNECT g\u00f6\u00f6d.good.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", noHost},
		"broken punycode":                          {"CONNECT xn--0.good.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", noHost},
		"a long name":                              {"CONNECT " + strings.Repeat("a.", 130) + "example:443 HTTP/1.1\r\nHost: x\r\n\r\n", "the host's name is too long"},
	} {
		t.Run(name, func(t *testing.T) {
			status, header, body := w.raw(c.request)
			if !strings.HasPrefix(status, "403 ") || header.Get("Proxy-Authenticate") != "" || !strings.Contains(body, c.reason) {
				t.Errorf("%s: %v %s", status, header, body)
			}
			if e := w.last(); e.Allowed || e.Reason != c.reason || e.Command != "npm ci" {
				t.Errorf("decision %+v, want the reason %q", e, c.reason)
			}
		})
	}
	// These name no host: there is nothing to decide.
	for _, request := range []string{"GET / HTTP/1.1\r\nHost: good.example\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: good.example\r\n\r\n", "nonsense\r\n\r\n",
		"GET http://good.example/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"POST http://good.example/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
		"POST http://good.example/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		"GET http://good.example/ HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"GET http://good.example/ HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 2*maxHeader) + "\r\n\r\n"} {
		if status, _, _ := w.raw(request); !strings.HasPrefix(status, "4") && !strings.HasPrefix(status, "5") {
			t.Errorf("%.60q: %s", request, status)
		}
	}
	w.decisions(0)
	w.stop()
	select {
	case got := <-caught:
		t.Errorf("the trap was reached: %q", got)
	default:
	}
}

// Whatever a name resolves to, only public addresses are dialled.
func TestAddresses(t *testing.T) {
	w := newWorld(t, Options{Allow: []string{"*.t.example"}, AllowAddresses: []string{}})
	refused := []string{
		"127.0.0.1", "127.8.9.1", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "169.254.170.2",
		"100.64.0.1", "100.100.100.200", "192.0.0.192", "168.63.129.16", "198.18.0.1",
		"224.0.0.1", "240.0.0.1", "255.255.255.255",
		"::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1",
		"::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::10.0.0.1", "::ffff:0:10.0.0.1",
		"64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::a00:1", "2002:7f00:1::", "2002:a00:1::1", "2001:0:a00:1::1", "2001:db8::1", "100::1",
	}
	for _, a := range w.p.inner.own {
		if ip := net.ParseIP(a); ip != nil && ip.IsGlobalUnicast() {
			refused = append(refused, a)
		}
	}
	for i, addr := range refused {
		name := fmt.Sprintf("n%d.t.example", i)
		w.names.m[name] = []string{addr}
		for _, request := range []string{
			"CONNECT " + name + ":443 HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://" + name + "/ HTTP/1.1\r\nHost: " + name + "\r\n\r\n",
		} {
			status, _, body := w.raw(request)
			if !strings.HasPrefix(status, "403 ") || !strings.Contains(body, notPublic) || strings.Contains(body, addr) {
				t.Errorf("%s: %s %s", addr, status, body)
			}
			if e := w.last(); e.Allowed || e.Reason != notPublic {
				t.Errorf("%s: %+v", addr, e)
			}
		}
	}
}

// A name that resolves to another address the second time is asked once: what
// was checked is what is dialled.
func TestRebinding(t *testing.T) {
	good := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "good") }))
	defer good.Close()
	port := portOf(good.Listener.Addr())
	w := newWorld(t, Options{Allow: []string{fmt.Sprintf("*.t.example:%d", port)}, AllowAddresses: []string{fmt.Sprintf("127.0.0.1:%d", port)}})
	n := 0
	w.names.then = func(string) []string {
		if n++; n == 1 {
			return []string{"127.0.0.1", "127.0.0.1"}
		}
		return []string{"10.9.8.7"}
	}
	c, r, res := w.connect(fmt.Sprintf("a.t.example:%d", port))
	if res.StatusCode != 200 || w.names.times() != 1 {
		t.Fatalf("%s after %d lookups", res.Status, w.names.times())
	}
	_, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
	must(t, err)
	if b, _ := io.ReadAll(r); !strings.HasSuffix(string(b), "good") {
		t.Errorf("%q", b)
	}
	w.last()
	n = 0
	if _, _, body := w.raw(fmt.Sprintf("GET http://B.T.example:%d/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", port)); body != "good" || w.names.times() != 2 {
		t.Errorf("%q after %d lookups", body, w.names.times())
	}
	w.last()
	// The name was asked for as an absolute one: no search domain is added.
	if w.names.asked[1] != "b.t.example." {
		t.Errorf("asked for %q", w.names.asked)
	}
}

// The proxies this process is told of are none of the sandbox's business.
func TestEnvironmentProxiesAreNotUsed(t *testing.T) {
	trap, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer trap.Close()
	hit := make(chan struct{}, 8)
	go func() {
		for {
			c, err := trap.Accept()
			if err != nil {
				return
			}
			hit <- struct{}{}
			c.Close()
		}
	}()
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"} {
		t.Setenv(name, "http://"+trap.Addr().String())
	}
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "reached") }))
	defer plain.Close()
	port := portOf(plain.Listener.Addr())
	w := newWorld(t, Options{Allow: []string{fmt.Sprintf("a.example:%d", port)}})
	w.names.m["a.example"] = []string{"127.0.0.1"}
	if _, _, body := w.raw(fmt.Sprintf("GET http://a.example:%d/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", port)); body != "reached" {
		t.Errorf("plain: %q", body)
	}
	c, r, res := w.connect(fmt.Sprintf("a.example:%d", port))
	if res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
	_, err = io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
	must(t, err)
	if b, _ := io.ReadAll(r); !strings.HasSuffix(string(b), "reached") {
		t.Errorf("tunnel: %q", b)
	}
	select {
	case <-hit:
		t.Error("the environment's proxy was used")
	default:
	}
}

// What cannot be reached although it may is told once, as what it is.
func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	port := portOf(l.Addr())
	l.Close()
	w := newWorld(t, Options{Allow: []string{fmt.Sprintf("*.t.example:%d", port)}})
	w.names.m["a.t.example"] = []string{"127.0.0.1"}
	for host, want := range map[string][2]string{"a.t.example": {"could not be reached", ""}, "b.t.example": {notResolved, notResolved}} {
		for _, request := range []string{"CONNECT %s:%d HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://%s:%d/ HTTP/1.1\r\nHost: x\r\n\r\n"} {
			status, _, body := w.raw(fmt.Sprintf(request, host, port))
			if !strings.HasPrefix(status, "502 ") || !strings.Contains(body, want[0]) {
				t.Errorf("%s: %s %q", host, status, body)
			}
			if e := w.last(); !e.Allowed || e.Reason != want[1] || e.Host != host {
				t.Errorf("%s: %+v", host, e)
			}
		}
	}
}

func TestTunnelHalfClose(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b, _ := io.ReadAll(c) // until the other side has said all
				_, _ = c.Write(bytes.ToUpper(b))
			}()
		}
	}()
	port := portOf(l.Addr())
	w := newWorld(t, Options{Allow: []string{fmt.Sprintf("a.example:%d", port)}})
	w.names.m["a.example"] = []string{"127.0.0.1"}
	c, r, res := w.connect(fmt.Sprintf("a.example:%d", port))
	if res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
	sent := bytes.Repeat([]byte("words and "), 50_000)
	go func() { _, _ = c.Write(sent); _ = c.(*net.UnixConn).CloseWrite() }()
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, bytes.ToUpper(sent)) {
		t.Errorf("%d bytes of %d came back, %v", len(got), len(sent), err)
	}
}

func TestIdleConnectionsEnd(t *testing.T) {
	hung := make(chan struct{})
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		<-hung
	}))
	defer plain.Close()
	defer close(hung)
	port := portOf(plain.Listener.Addr())
	w := newWorld(t, Options{Allow: []string{fmt.Sprintf("a.example:%d", port)}, idle: 100 * time.Millisecond})
	w.names.m["a.example"] = []string{"127.0.0.1"}
	c, r, res := w.connect(fmt.Sprintf("a.example:%d", port))
	if res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
	if b, err := r.ReadByte(); err == nil {
		t.Errorf("the idle tunnel said %q", b)
	}
	c.Close()
	// A server that does not answer, and a client that does not go on.
	if status, _, _ := w.raw(fmt.Sprintf("GET http://a.example:%d/ HTTP/1.1\r\nHost: x\r\n\r\n", port)); !strings.HasPrefix(status, "50") {
		t.Errorf("a hung server: %s", status)
	}
	if status, _, _ := w.raw(fmt.Sprintf("POST http://a.example:%d/ HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf", port)); !strings.HasPrefix(status, "50") {
		t.Errorf("a hung client: %s", status)
	}
}

// The end of the context ends tunnels, requests and connections in the making.
func TestServeEnds(t *testing.T) {
	begun := make(chan struct{}, 2)
	release := make(chan struct{})
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "begin")
		w.(http.Flusher).Flush()
		begun <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer plain.Close()
	defer close(release)
	port := portOf(plain.Listener.Addr())
	w := newWorld(t, Options{Allow: []string{fmt.Sprintf("a.example:%d", port)}})
	w.names.m["a.example"] = []string{"127.0.0.1"}
	tunnel, r, res := w.connect(fmt.Sprintf("a.example:%d", port))
	if res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
	request := w.dial()
	_, err := fmt.Fprintf(request, "GET http://a.example:%d/ HTTP/1.1\r\nHost: x\r\n\r\n", port)
	must(t, err)
	<-begun
	idle := w.dial()
	w.stop()
	if _, err := r.ReadByte(); err == nil {
		t.Error("the tunnel goes on")
	}
	for _, c := range []net.Conn{tunnel, request, idle} {
		if _, err := io.ReadAll(c); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("a connection did not end: %v", err)
		}
	}
	if _, err := net.Dial("unix", w.socket); err == nil {
		t.Error("the socket is open")
	}
}

// A lookup that hangs does not hold up the end.
func TestServeEndsInALookup(t *testing.T) {
	asked := make(hanging, 1)
	w := newWorld(t, Options{Allow: []string{"a.example"}, Resolver: asked})
	c := w.dial()
	_, err := io.WriteString(c, "CONNECT a.example:443 HTTP/1.1\r\nHost: x\r\n\r\n")
	must(t, err)
	<-asked
	begun := time.Now()
	w.stop()
	if d := time.Since(begun); d > lookupTimeout/2 {
		t.Errorf("it took %s", d)
	}
}

// hanging is a resolver that does not answer, and says that it was asked.
type hanging chan struct{}

func (h hanging) LookupIP(ctx context.Context, _, _ string) ([]net.IP, error) {
	h <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestListenerThatBreaks(t *testing.T) {
	p, err := New(Options{})
	must(t, err)
	if err := p.Serve(t.Context(), brokenListener{}); err == nil || !strings.Contains(err.Error(), "it broke") {
		t.Errorf("%v", err)
	}
}

type brokenListener struct{}

func (brokenListener) Accept() (net.Conn, error) { return nil, fmt.Errorf("it broke") }
func (brokenListener) Close() error              { return nil }
func (brokenListener) Addr() net.Addr            { return &net.UnixAddr{} }

// What goes through is not changed.
func TestContentIsLeftAlone(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write([]byte("unpacked"))
	must(t, z.Close())
	seen := make(chan *http.Request, 1)
	bodies := make(chan []byte, 1)
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		bodies <- b
		seen <- r
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("X-Two", "a")
		w.Header().Add("X-Two", "b")
		_, _ = w.Write(packed.Bytes())
	}))
	defer plain.Close()
	port := portOf(plain.Listener.Addr())
	w := newWorld(t, Options{Allow: []string{fmt.Sprintf("a.example:%d", port)}})
	w.names.m["a.example"] = []string{"127.0.0.1"}
	big := strings.Repeat("0123456789", 100_000)
	_, header, body := w.raw(fmt.Sprintf("PUT http://a.example:%d/p%%61th?q=%%20 HTTP/1.1\r\nHost: wrong.example\r\nAccept-Encoding: gzip, zstd\r\n"+
		"Proxy-Authorization: secret\r\nAuthorization: mine\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", port, len(big), big))
	if body != packed.String() || header.Get("Content-Encoding") != "gzip" || strings.Join(header.Values("X-Two"), "") != "ab" {
		t.Errorf("answer %v %q", header, body)
	}
	r := <-seen
	if b := <-bodies; string(b) != big {
		t.Errorf("%d bytes of the body arrived", len(b))
	}
	if r.Header.Get("Accept-Encoding") != "gzip, zstd" || r.Header.Get("Authorization") != "mine" || r.Header.Get("Proxy-Authorization") != "" ||
		r.Host != fmt.Sprintf("a.example:%d", port) || r.RequestURI != "/p%61th?q=%20" || r.Header.Get("X-Forwarded-For") != "" || r.Header.Get("User-Agent") != "" {
		t.Errorf("request %s %v", r.RequestURI, r)
	}
}

func TestManyAtOnce(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	defer plain.Close()
	port := portOf(plain.Listener.Addr())
	w := newWorld(t, Options{Allow: []string{fmt.Sprintf("a.example:%d", port)}})
	w.names.m["a.example"] = []string{"127.0.0.1"}
	var wg sync.WaitGroup
	const n = maxConns + 60
	for i := range n {
		wg.Go(func() {
			c := w.dial()
			defer c.Close()
			word := strconv.Itoa(i)
			_, err := fmt.Fprintf(c, "POST http://a.example:%d/ HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", port, len(word), word)
			if err != nil {
				t.Error(err)
				return
			}
			b, err := io.ReadAll(c)
			if err != nil || !strings.HasSuffix(string(b), "\r\n\r\n"+word) {
				t.Errorf("%d: %q %v", i, b, err)
			}
		})
	}
	wg.Wait()
	w.decisions(n)
}

func TestDecisionsHaveAnEnd(t *testing.T) {
	var told []wire.Egress
	p, err := New(Options{Decide: func(e wire.Egress) { told = append(told, e) }})
	must(t, err)
	for range maxRefused + 10 {
		(&attempt{p: p, host: "a.example", port: 443}).tell(false, NotListed)
	}
	if len(told) != maxRefused+1 || told[maxRefused-1].Host != "a.example" || told[maxRefused].Host != "" || !strings.Contains(told[maxRefused].Reason, "not told") {
		t.Errorf("%d decisions, the last %+v", len(told), told[len(told)-1])
	}
	// Who has made all that noise is seen all the same, until nothing goes any more.
	(&attempt{p: p, host: "b.example", port: 443}).tell(true, "")
	if last := told[len(told)-1]; last.Host != "b.example" || !last.Allowed {
		t.Errorf("the last is %+v", last)
	}
	w := newWorld(t, Options{Allow: []string{"*.t.example"}})
	w.p.allowed.Store(maxAllowed)
	if status, _, body := w.raw("CONNECT a.t.example:443 HTTP/1.1\r\nHost: x\r\n\r\n"); !strings.HasPrefix(status, "403 ") || !strings.Contains(body, tooMany) {
		t.Errorf("%s %s", status, body)
	}
}

func TestNoise(t *testing.T) {
	w := newWorld(t, Options{Noise: func(host string, port int) bool { return host == "updates.example" && port == 443 }})
	for host, noise := range map[string]bool{"updates.example:443": true, "updates.example:80": false, "other.example:443": false} {
		w.connect(host)
		if e := w.last(); e.Noise != noise {
			t.Errorf("%s: %+v", host, e)
		}
	}
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"a.example": "a.example", "a\nb\x1b[31m\u202ec": "a bc", "\xff": "\uFFFD", strings.Repeat("ä", 300): strings.Repeat("ä", 126),
		strings.Repeat("x", 1<<20): strings.Repeat("x", 253),
	} {
		if got := clean(in, maxHost); got != want {
			t.Errorf("%.40q became %.40q", in, got)
		}
	}
}

func TestList(t *testing.T) {
	l, err := parseList([]string{"Host.Example", "port.example:8443", "*.below.example", "*.port.below.test:22", "go"})
	must(t, err)
	for hostport, want := range map[string]bool{
		"host.example:443": true, "host.example:80": true, "host.example:8443": false, "x.host.example:443": false,
		"port.example:8443": true, "port.example:443": false,
		"a.below.example:443": true, "a.b.below.example:80": true, "below.example:443": false, "abelow.example:443": false,
		"x.port.below.test:22": true, "x.port.below.test:443": false,
		"proxy.golang.org:443": true, "sum.golang.org:443": true, "golang.org:443": false,
	} {
		host, port, _ := net.SplitHostPort(hostport)
		n, _ := strconv.Atoi(port)
		if got := l.allows(host, n); got != want {
			t.Errorf("%s: %v", hostport, got)
		}
	}
	for _, bad := range []string{"", "*", "*.", "*.com", "https://a.example", "a.example/path", "10.0.0.1", "a.example:0", "a.*.example", "npn", "[::1]:443"} {
		if _, err := New(Options{Allow: []string{bad}}); err == nil || !strings.Contains(err.Error(), "egress") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// Every name the configuration takes is known here, and every host in the table
// is a good entry.
func TestEcosystems(t *testing.T) {
	for _, name := range Ecosystems() {
		hosts, ok := Hosts(name)
		if !ok || len(hosts) == 0 {
			t.Errorf("%s: %v", name, hosts)
		}
		if _, err := parseList(hosts); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, h := range hosts {
			if slices.Contains([]string{"storage.googleapis.com", "github.com", "api.github.com"}, h) {
				t.Errorf("%s: %s holds anybody's data", name, h)
			}
		}
	}
	if _, ok := Hosts("a.example"); ok {
		t.Error("a host is taken for an ecosystem")
	}
	hosts, _ := Hosts("npm")
	hosts[0] = "changed"
	if again, _ := Hosts("npm"); again[0] == "changed" {
		t.Error("the table can be changed from outside")
	}
}

func FuzzTarget(f *testing.F) {
	for _, s := range []string{"a.example:443", "[::1]:80", "127.1:443", "0x7f.1", "a", ":", "a:b:c", "a.example:0443", "\u00df.example:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, port, problem := target(s, 80)
		if problem != "" {
			return
		}
		if port < 1 || port > 65535 || net.ParseIP(host) != nil || host == "" || len(host) > maxHost || host != strings.ToLower(host) ||
			strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" || strings.HasSuffix(host, ".") {
			t.Fatalf("%q became %q %d", s, host, port)
		}
		if again, p, problem := target(net.JoinHostPort(host, strconv.Itoa(port)), 80); again != host || p != port || problem != "" {
			t.Fatalf("%q became %q, and then %q %s", s, host, again, problem)
		}
	})
}

// What the proxy costs a request, with a new connection each time.
func BenchmarkConnect(b *testing.B) {
	ca := newAuthority(b)
	secure := ca.server(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}), "registry.example")
	port := portOf(secure.Listener.Addr())
	w := newWorld(b, Options{Allow: []string{fmt.Sprintf("registry.example:%d", port)}})
	w.names.m["registry.example"] = []string{"127.0.0.1"}
	through := w.client(ca.pool)
	direct := w.client(ca.pool)
	tr := direct.Transport.(*http.Transport)
	tr.Proxy = nil
	tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", secure.Listener.Addr().String())
	}
	for name, c := range map[string]*http.Client{"through": through, "direct": direct} {
		c.Transport.(*http.Transport).DisableKeepAlives = true
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				res, err := c.Get(fmt.Sprintf("https://registry.example:%d/", port))
				must(b, err)
				res.Body.Close()
			}
		})
	}
}
