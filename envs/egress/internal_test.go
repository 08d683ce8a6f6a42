package egress

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stripe/smokescreen/pkg/smokescreen"
)

func TestCheckInternal(t *testing.T) {
	for _, good := range []string{"10.0.0.0/8", "10.20.0.0/16", "172.16.5.0/24", "192.168.1.7/32", "100.64.0.0/10", "fd00:1::/64"} {
		if err := CheckInternal(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{
		"", "10.0.0.1", "10.0.0.1/8", "0.0.0.0/0", "::/0", "10.0.0.0/7", "127.0.0.0/8", "169.254.0.0/16", "169.254.169.254/32",
		"8.8.8.0/24", "fe80::/10", "::1/128", "::ffff:10.0.0.0/104", "fc00::/6", "172.0.0.0/8", "x/8",
	} {
		if CheckInternal(bad) == nil {
			t.Errorf("%q was taken", bad)
		}
		if _, err := New(Options{Internal: []string{bad}}); err == nil {
			t.Errorf("a proxy took %q", bad)
		}
	}
}

// The operator's own network is reached by names, as far as the operator said,
// and never this machine itself by it.
func TestInternal(t *testing.T) {
	n := &names{m: map[string][]string{
		"a.example": {"10.20.1.1"}, "b.example": {"10.21.1.1"}, "c.example": {"10.20.1.1", "10.21.1.1"}, "d.example": {"169.254.169.254"},
		"e.example": {"10.20.9.9"}, "f.example": {"93.184.216.34", "10.20.1.1"},
	}}
	p, err := New(Options{Allow: []string{"*.t.example"}, Internal: []string{"10.20.0.0/16"}, Resolver: n})
	must(t, err)
	p.life.ctx = t.Context()
	p.inner.own = append(p.inner.own, "10.20.9.9")
	may := func(host string) bool {
		ips, err := resolver{p}.LookupIP(context.Background(), "ip", host)
		if err != nil {
			if !errors.Is(err, errOwn) {
				t.Errorf("%s: %v", host, err)
			}
			return false
		}
		// What smokescreen goes by: what is allowed comes before what is refused.
		return !slices.ContainsFunc(ips, func(ip net.IP) bool {
			in := func(r smokescreen.RuleRange) bool { return r.Net.Contains(ip) }
			return !slices.ContainsFunc(p.config.AllowRanges, in) && (ip.IsPrivate() || !ip.IsGlobalUnicast())
		})
	}
	for host, want := range map[string]bool{"a.example": true, "b.example": false, "c.example": false, "d.example": false, "e.example": false, "f.example": true} {
		if may(host) != want {
			t.Errorf("%s: %v", host, !want)
		}
	}
}

// What dials for us goes by the same rules.
func TestTransport(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	defer srv.Close()
	c := Config{
		Internal: []string{"10.20.0.0/16"}, AllowAddresses: []string{srv.Listener.Addr().String()},
		Roots: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})),
		Resolve: map[string]string{
			"a.example": "10.21.1.1", "b.example": "169.254.169.254", "c.example": "127.0.0.1", "d.example": "::1", "e.example": "::ffff:10.21.1.1",
			"f.example": "100.64.0.1", "g.example": "10.20.9.9", "example.com": "127.0.0.1",
		},
	}
	tr, err := Transport(c)
	must(t, err)
	defer tr.CloseIdleConnections()
	res, err := (&http.Client{Transport: tr}).Get(fmt.Sprintf("https://example.com:%d/", portOf(srv.Listener.Addr())))
	must(t, err)
	must(t, res.Body.Close())
	d, err := c.dialer()
	must(t, err)
	d.p.inner.own = append(d.p.inner.own, "10.20.9.9")
	for _, host := range []string{"a.example", "b.example", "c.example", "d.example", "e.example", "f.example", "g.example", "127.0.0.1", "[::1]", "2130706433", "unknown.example", ""} {
		if conn, err := d.dial(t.Context(), "tcp", host+":443"); err == nil || !strings.Contains(err.Error(), "is not reached") {
			t.Errorf("%s: %v %v", host, conn, err)
		}
	}
	if d.never(net.ParseIP("10.20.1.1"), 443) || d.never(net.ParseIP("93.184.216.34"), 443) {
		t.Error("what the operator opened, or all the world, is not reached")
	}
}
