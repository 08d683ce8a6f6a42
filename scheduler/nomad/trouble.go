package nomad

import (
	"fmt"
	"net/http"
	"strings"
	"unicode"

	"inspect/scheduler"
)

// taken is Nomad's answer to a job that is to be new and is not (status 500).
const taken = "job already exists"

const (
	tokenExpired = "ACL token expired" // Nomad's
	tokenUnknown = "Nomad does not know the token that Inspect has for it"
)

// troubles are found by Nomad's words: it answers what a user did wrong with 500
// as well, and not with a status of its own.
var troubles = []struct{ has, words string }{
	{"ACL token not found", tokenUnknown},
	{tokenExpired, "the token that Inspect has for Nomad has expired"},
	{"Permission denied", "Nomad does not let Inspect's token do that in the namespace {namespace}; `inspect doctor --nomad` prints the policy that it needs"},
	{"nonexistent namespace", "Nomad has no namespace {namespace}"},
	{"nonexistent node pool", "Nomad has no node pool {pool}"},
	{"not allowed in namespace", "Nomad's namespace {namespace} does not allow the driver raw_exec"},
	{"No cluster leader", "Nomad's servers have no leader now"},
	{"Not ready to serve consistent reads", "Nomad's servers have only just chosen a leader"},
	{"No path to region", "Nomad knows no region {region}"},
	{"disabled by the scheduler configuration", "Nomad's operator has switched the registration of jobs off"},
}

// trouble puts an error of a call into words for people. What Nomad itself says
// is quoted only as far as it is text.
func (o Options) trouble(err error) error {
	if err == nil {
		return nil
	}
	status, body, ok := answered(err)
	t := &scheduler.EngineTrouble{Words: "Nomad does not answer", Cause: err}
	if !ok {
		return t
	}
	for _, known := range troubles {
		if strings.Contains(body, known.has) {
			t.Words = strings.NewReplacer("{namespace}", o.Namespace, "{pool}", o.NodePool, "{region}", o.Region).Replace(known.words)
			return t
		}
	}
	switch {
	case status == http.StatusTooManyRequests:
		t.Words = "Nomad has too many requests now"
	case status == http.StatusForbidden:
		t.Words = "Nomad refuses what Inspect asks for: " + quote(body)
	default:
		t.Words = fmt.Sprintf("Nomad answered %d: %s", status, quote(body))
	}
	return t
}

// quote makes one short line of what a server says.
func quote(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	if r := []rune(strings.Join(strings.Fields(s), " ")); len(r) > 200 {
		return string(r[:200]) + "…"
	} else if len(r) > 0 {
		return string(r)
	}
	return "nothing"
}
