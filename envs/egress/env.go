package egress

import (
	"fmt"
	"os"
	"strconv"
)

// authorities is the machine's bundle of certificate authorities.
const authorities = "/etc/ssl/certs/ca-certificates.crt"

// Environment is what tells the programs in a sandbox of the proxy at a port of
// their loopback, "NAME=value".
func Environment(port int) []string {
	p := "http://127.0.0.1:" + strconv.Itoa(port)
	env := []string{
		"HTTP_PROXY=" + p, "HTTPS_PROXY=" + p, "http_proxy=" + p, "https_proxy=" + p,
		"NO_PROXY=localhost,127.0.0.1,::1", "no_proxy=localhost,127.0.0.1,::1",
		"NODE_USE_ENV_PROXY=1", // Node's own fetch, from 24 on; older ones know no proxy
		// npm tries again after 10 and 60 seconds, also when it was refused.
		"NPM_CONFIG_FETCH_RETRY_MINTIMEOUT=1000", "NPM_CONFIG_FETCH_RETRY_MAXTIMEOUT=3000",
		"GRADLE_OPTS=" + javaProperties(port), "MAVEN_OPTS=" + javaProperties(port) + " -Daether.connector.http.useSystemProperties=true",
	}
	if _, err := os.Stat(authorities); err == nil {
		// The host's own npm configuration may name a file that is not inside.
		env = append(env, "NPM_CONFIG_CAFILE="+authorities, "NODE_EXTRA_CA_CERTS="+authorities)
	}
	return env
}

// javaProperties are for programs of the Java machine, which reads no variables.
func javaProperties(port int) string {
	return fmt.Sprintf("-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=%d -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=%d", port, port)
}
