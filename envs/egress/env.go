package egress

import (
	"fmt"
	"os"
	"strconv"
)

// bundles are where the systems keep their certificate authorities as one file;
// the first that is there counts.
var bundles = []string{
	"/etc/ssl/certs/ca-certificates.crt", // Debian, Alpine
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// systemBundle is this machine's; empty: it has none.
func systemBundle() string {
	for _, name := range bundles {
		if _, err := os.Stat(name); err == nil {
			return name
		}
	}
	return ""
}

// Bundle is what a sandbox is to trust: this machine's authorities, and the
// proxy's.
func Bundle(authority []byte) ([]byte, error) {
	name := systemBundle()
	if name == "" {
		return authority, nil
	}
	all, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read this machine's certificate authorities: %w", err)
	}
	return append(append(all, '\n'), authority...), nil
}

// Environment is what tells the programs in a sandbox of the proxy at a port of
// their loopback, "NAME=value". trust is the path of a Bundle inside; empty:
// they trust what the machine does.
func Environment(port int, trust string) []string {
	p := "http://127.0.0.1:" + strconv.Itoa(port)
	env := []string{
		"HTTP_PROXY=" + p, "HTTPS_PROXY=" + p, "http_proxy=" + p, "https_proxy=" + p,
		"NO_PROXY=localhost,127.0.0.1,::1", "no_proxy=localhost,127.0.0.1,::1",
		"NODE_USE_ENV_PROXY=1", // Node's own fetch, from 24 on; older ones know no proxy
		// npm tries again after 10 and 60 seconds, also when it was refused.
		"NPM_CONFIG_FETCH_RETRY_MINTIMEOUT=1000", "NPM_CONFIG_FETCH_RETRY_MAXTIMEOUT=3000",
		"GRADLE_OPTS=" + javaProperties(port), "MAVEN_OPTS=" + javaProperties(port) + " -Daether.connector.http.useSystemProperties=true",
	}
	names := []string{"NPM_CONFIG_CAFILE", "NODE_EXTRA_CA_CERTS"} // the host's own npm configuration may name a file that is not inside
	if trust != "" {
		names = append(names,
			"SSL_CERT_FILE", // OpenSSL, Go, Python, Ruby
			"CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "REQUESTS_CA_BUNDLE", "PIP_CERT",
		)
	} else if trust = systemBundle(); trust == "" {
		return env
	}
	for _, name := range names {
		env = append(env, name+"="+trust)
	}
	return env
}

// javaProperties are for programs of the Java machine, which reads no variables.
func javaProperties(port int) string {
	return fmt.Sprintf("-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=%d -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=%d", port, port)
}
