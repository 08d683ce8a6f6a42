package egress

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"inspect/checks/redact"
	"inspect/envs/spec"
	"inspect/envs/wire"
)

// What a proxy tells is bounded, and so what a sandbox can make it tell: of
// refusals that many, then no more. What is let through is always told, so
// that after that many connections nothing is.
const (
	maxRefused = 5000
	maxAllowed = 20_000
)

// NotListed is the Reason of what an entry in .inspect.yml would allow.
const NotListed = wire.EgressNotListed

// Other reasons.
const (
	notPublic    = "its address is not a public one"
	notResolved  = "its name could not be resolved"
	tooMany      = "as many connections were made as are recorded of one sandbox"
	furtherProxy = "a request may not name a further proxy"
	needsConnect = "https goes by CONNECT"
	noHost       = "this is not the name of a host (names beyond ASCII need their xn-- form)"
)

// attempt is one request on its way to a decision, which is told once.
type attempt struct {
	p       *Proxy
	host    string // canonical
	port    int
	command string

	injected *injected // what is to be added to what goes there; nil: nothing
	secret   string    // the name of what was added

	once   sync.Once
	reason string // of the refusal, set before it is answered
}

// target is the host and port of a request.
func target(hostport string, port int) (string, int, string) {
	host := hostport
	if i := strings.LastIndexByte(hostport, ':'); i > strings.LastIndexByte(hostport, ']') {
		n, err := strconv.Atoi(hostport[i+1:])
		if err != nil || n < 1 || n > 65535 || strconv.Itoa(n) != hostport[i+1:] {
			host, _ = canonical(hostport[:i])
			return host, 0, "the request names no usable port"
		}
		host, port = hostport[:i], n
	}
	host, problem := canonical(host)
	return host, port, problem
}

func (a *attempt) tell(allowed bool, reason string) {
	a.once.Do(func() {
		a.p.decided(wire.Egress{
			Host: clean(a.host, maxHost), Port: a.port, Allowed: allowed, Reason: reason, Command: clean(a.command, 500), Secret: a.secret,
			Noise: a.p.opt.Noise != nil && a.p.opt.Noise(a.host, a.port),
		})
	})
}

// words is the answer to a refused request: what happened and what to do.
func (a *attempt) words() string {
	w := "Inspect's egress proxy refused " + a.where()
	if c := clean(a.command, 500); c != "" {
		w += " (asked for by: " + c + ")"
	}
	w += ": " + a.reason + ".\n"
	switch a.reason {
	case NotListed:
		if add := suggestion(clean(a.host, maxHost), a.port); spec.EgressProblem(strings.ToLower(add)) == "" {
			w += fmt.Sprintf("To allow it, add it in .inspect.yml on the default branch:\n\negress: [%q]\n", add)
		}
	case notPublic:
		w += "Private, local and metadata addresses are never reached, whatever name leads to them.\n"
	}
	return w
}

// status is the same in the few words that fit a status line; some programs
// show nothing else.
func (a *attempt) status() string {
	return "403 egress to " + a.where() + " refused by Inspect"
}

func (a *attempt) where() string {
	host := clean(a.host, maxHost)
	if host == "" {
		host = "(no host)"
	}
	if a.port == 0 {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(a.port))
}

// decided passes a decision on, one after the other and not without end.
func (p *Proxy) decided(e wire.Egress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !e.Allowed {
		p.refusals++
		if p.refusals == maxRefused+1 {
			e = wire.Egress{Reason: fmt.Sprintf("%d refusals were told; more are made and not told", maxRefused)}
		}
	}
	if p.opt.Decide != nil && (e.Allowed || p.refusals <= maxRefused+1) {
		p.opt.Decide(e)
	}
}

// clean makes a word of the sandbox one line of visible text of at most n bytes.
func clean(s string, n int) string {
	if len(s) > 8*n {
		s = s[:8*n]
	}
	s = strings.Join(strings.Fields(redact.Visible(s)), " ")
	for len(s) > n {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:min(len(s)-size, n)]
	}
	return strings.ToValidUTF8(s, "")
}
