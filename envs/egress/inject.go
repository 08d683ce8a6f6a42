package egress

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"inspect/envs/wire"
)

// Credential is a header that is added to what goes to a host over HTTPS.
type Credential struct {
	Host   string `json:"host"`   // host, which is its port 443, or host:port
	Header string `json:"header"` // its name
	Secret string `json:"secret"` // the secret's name, which may be told
	Value  string `json:"value"`  // the secret's
}

// Credentials joins injections with the values of their secrets. The error
// says which is missing.
func Credentials(inject []wire.Injection, values map[string]string) ([]Credential, error) {
	var out []Credential
	for _, in := range inject {
		v, ok := values[in.Secret]
		if !ok {
			return nil, fmt.Errorf("there is no value of the secret %s, which is added for %s", in.Secret, in.Host)
		}
		out = append(out, Credential{Host: in.Host, Header: in.Header, Secret: in.Secret, Value: v})
	}
	return out, nil
}

// SecretNames are those of injections, each once.
func SecretNames(inject []wire.Injection) (names []string) {
	for _, in := range inject {
		if !slices.Contains(names, in.Secret) {
			names = append(names, in.Secret)
		}
	}
	return names
}

// injected is a Credential at work.
type injected struct {
	host   string // canonical
	port   int
	bare   bool // the entry named no port, so that it allows port 80 too
	header string
	value  string
	secret string
	cert   tls.Certificate // shown inside in the place of the host's own
	scrub  scrubber
}

// prepareInjection checks the credentials and makes the certificates.
func (p *Proxy) prepareInjection() error {
	if len(p.opt.Inject) == 0 {
		return nil
	}
	var hosts []string
	for _, c := range p.opt.Inject {
		in := &injected{bare: !strings.Contains(c.Host, ":"), header: http.CanonicalHeaderKey(c.Header), secret: c.Secret}
		var problem string
		in.host, in.port, problem = target(c.Host, 443)
		if problem != "" {
			return fmt.Errorf("the credential for %q cannot be added: %s", clean(c.Host, 100), problem)
		}
		if p.injectedAt(in.host, in.port) != nil {
			return fmt.Errorf("two credentials are to be added for %s", c.Host)
		}
		var err error
		if in.value, err = headerValue(in.header, c.Value); err != nil {
			return fmt.Errorf("the secret %s cannot be added for %s: %w", c.Secret, c.Host, err)
		}
		in.scrub = newScrubber(in.value)
		p.inject = append(p.inject, in)
		if !slices.Contains(hosts, in.host) {
			hosts = append(hosts, in.host)
		}
	}
	var err error
	if p.issuer, err = newIssuer(hosts); err != nil {
		return fmt.Errorf("make a certificate authority: %w", err)
	}
	for _, in := range p.inject {
		if in.cert, err = p.issuer.issue(in.host); err != nil {
			return fmt.Errorf("make a certificate for %s: %w", in.host, err)
		}
	}
	return nil
}

// headerValue is what stands in a header for a secret: itself, with Bearer
// before it if it is one word for Authorization.
func headerValue(header, secret string) (string, error) {
	v := strings.TrimSpace(secret)
	switch {
	case !httpguts.ValidHeaderFieldName(header):
		return "", errors.New("its header has no proper name")
	case v == "":
		return "", errors.New("it is empty")
	case !httpguts.ValidHeaderFieldValue(v):
		return "", errors.New("it holds line breaks or control characters, which no header can")
	case header == "Authorization" && !strings.ContainsAny(v, " \t"):
		v = "Bearer " + v
	}
	return v, nil
}

// injectedAt is what is to be added for a host at a port, or would be if it
// were spoken to by HTTPS.
func (p *Proxy) injectedAt(host string, port int) *injected {
	for _, in := range p.inject {
		if in.host == host && (in.port == port || in.bare && port == 80) {
			return in
		}
	}
	return nil
}

// Authority is the certificate, in PEM, of the authority whose certificates
// the proxy shows inside; nil if it shows none. It is as old as the proxy.
func (p *Proxy) Authority() []byte {
	if p.issuer == nil {
		return nil
	}
	return p.issuer.encoded()
}
