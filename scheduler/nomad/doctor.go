package nomad

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Levels of a Finding.
const (
	FindingOK   = "ok"
	FindingWarn = "warn" // it works, and is not as it should be
	FindingFail = "fail" // sessions do not run, or not as they are meant to
)

// Finding is one thing that Examine looked at.
type Finding struct {
	Level string
	What  string // that was looked at, in a word or two
	Words string // what is there, and if it is not ok what to do
}

// KnownNode is a node as the control plane knows it.
type KnownNode struct {
	Name      string
	Alive     bool // was heard of lately
	Draining  bool
	Snapshots map[string]string // environment -> commit of the current one
}

// Policy is the least an ACL token of the control plane must be allowed, in HCL.
func Policy(namespace string) string {
	return fmt.Sprintf(`# The control plane: jobs in its own namespace, and looking at nodes.
namespace %q {
  capabilities = ["list-jobs", "read-job", "submit-job", "read-logs"]
}
node {
  policy = "read"
}
`, namespace)
}

// Versions of Nomad that matter.
var (
	oldestVersion = [3]int{1, 8, 0} // the disconnect block
	limitVersion  = [3]int{2, 0, 3} // max_run_duration
)

// Bounds on clocks. An identity that is not valid yet is refused.
const (
	skewWarn = 2 * time.Second
	skewFail = 30 * time.Second
)

// maxExamined nodes are looked at one by one.
const maxExamined = 500

// doctor collects findings.
type doctor struct {
	o        Options
	client   *client
	dates    *dates
	known    []KnownNode
	findings []Finding
	kill     killTimeouts
}

func (d *doctor) say(level, what, format string, args ...any) {
	d.findings = append(d.findings, Finding{Level: level, What: what, Words: fmt.Sprintf(format, args...)})
}

// Examine looks at a cluster the way the engine uses it, and changes nothing.
// The nodes are all that are registered with us; nil: they are not known. The
// error is that of the options.
func Examine(ctx context.Context, o Options, known []KnownNode) ([]Finding, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	d := &doctor{o: o, known: known}
	h, err := httpClient(o)
	if err != nil {
		return nil, err
	}
	d.dates = &dates{inner: h.Transport, now: o.Clock.Now}
	h.Transport = d.dates
	if d.client, err = clientOver(o, h); err != nil {
		return nil, err
	}
	if _, err := d.client.token(); err != nil {
		d.say(FindingFail, "token", "%v", err)
		return d.findings, nil
	}
	if !d.reach(ctx) {
		return d.findings, nil
	}
	d.clocks()
	d.token(ctx)
	d.identities(ctx)
	d.rights(ctx)
	d.namespace(ctx)
	d.nodes(ctx)
	return d.findings, nil
}

// query is one of our namespace. The token was read before; one that cannot be
// read any more is no token.
func (d *doctor) query(ctx context.Context) *api.QueryOptions {
	q, err := d.client.query(ctx, d.client.here())
	if err != nil {
		q = (&api.QueryOptions{Namespace: d.o.Namespace, Region: d.o.Region}).WithContext(ctx)
	}
	return q
}

func (d *doctor) write(ctx context.Context) *api.WriteOptions {
	w, err := d.client.write(ctx, d.client.here())
	if err != nil {
		w = (&api.WriteOptions{Namespace: d.o.Namespace, Region: d.o.Region}).WithContext(ctx)
	}
	return w
}

func (d *doctor) reach(ctx context.Context) bool {
	// Needs no right.
	var leader string
	if _, err := d.client.Raw().Query("/v1/status/leader", &leader, d.query(ctx)); err != nil {
		d.say(FindingFail, "reachable", "%s does not answer: %v. Is the agent running, and are address and TLS files right?", d.o.Address, plain(err))
		return false
	}
	if leader == "" {
		d.say(FindingFail, "reachable", "%s answers, and the cluster has no leader: its servers do not see each other", d.o.Address)
		return false
	}
	d.say(FindingOK, "reachable", "%s answers; the leader is %s", d.o.Address, leader)
	if u, _ := url.Parse(d.o.Address); u.Scheme == "https" {
		d.say(FindingOK, "transport", "TLS, and the certificate was verified")
	} else {
		d.say(FindingOK, "transport", "http to this machine; an agent that passes requests on to others does so by its own TLS settings")
	}
	return true
}

func (d *doctor) clocks() {
	skew, ok := d.dates.skew()
	far := max(skew, -skew)
	switch {
	case !ok:
		d.say(FindingWarn, "clocks", "the agent does not say what time it has")
	case far > skewFail:
		d.say(FindingFail, "clocks", "Nomad's is %s away from ours: identities of runners are refused as not valid yet or expired; have both set by NTP", far.Round(time.Second))
	case far > skewWarn:
		d.say(FindingWarn, "clocks", "Nomad's is %s away from ours; have both set by NTP", far.Round(time.Second))
	default:
		d.say(FindingOK, "clocks", "Nomad's and ours agree")
	}
}

func (d *doctor) token(ctx context.Context) {
	self, _, err := d.client.ACLTokens().Self(d.query(ctx))
	switch {
	case err == nil && self.AccessorID == "acls-disabled", err != nil && strings.Contains(err.Error(), "ACL support disabled"):
		d.say(FindingWarn, "token", "the cluster has no ACLs: whoever reaches an agent can run anything on each node; set acl { enabled = true } on all agents")
		return
	case err != nil:
		d.say(FindingFail, "token", "Nomad does not take it: %v. Make one of the policy below, and put it into the file of --nomad-token-file", plain(err))
		return
	case self.AccessorID == "anonymous":
		d.say(FindingFail, "token", "Nomad has ACLs and none was given: make a token of the policy below, and put it into the file of --nomad-token-file")
		return
	case self.Type == "management":
		d.say(FindingWarn, "token", "it is a management token, which may do everything in the cluster; one of the policy below is enough")
	default:
		d.say(FindingOK, "token", "%q, policies %s", self.Name, strings.Join(append(slices.Clone(self.Policies), roles(self)...), ", "))
	}
	if at := self.ExpirationTime; at != nil {
		if left := at.Sub(d.o.Clock.Now()); left < 7*24*time.Hour {
			d.say(FindingWarn, "token", "it expires in %s: put another into the file of --nomad-token-file before; nothing need be restarted", left.Round(time.Minute))
		}
	}
}

func roles(t *api.ACLToken) (out []string) {
	for _, r := range t.Roles {
		out = append(out, "role "+r.Name)
	}
	return out
}

// identities are checked with the keys that Nomad publishes.
func (d *doctor) identities(ctx context.Context) {
	var set struct {
		Keys []struct {
			Alg string `json:"alg"`
		} `json:"keys"`
	}
	_, err := d.client.Raw().Query("/.well-known/jwks.json", &set, d.query(ctx))
	switch {
	case err != nil:
		d.say(FindingFail, "identities", "the keys that runners' identities are signed with cannot be read: %v", plain(err))
	case len(set.Keys) == 0:
		d.say(FindingFail, "identities", "Nomad publishes no keys to check runners' identities with; has the keyring been initialised?")
	default:
		n := 0
		for _, k := range set.Keys {
			if k.Alg == "RS256" {
				n++
			}
		}
		if n == 0 {
			d.say(FindingFail, "identities", "Nomad signs them with %s, only RS256 is accepted: `nomad operator root keyring rotate` makes a new key", set.Keys[0].Alg)
		} else {
			d.say(FindingOK, "identities", "%d keys to check runners' identities with", n)
		}
	}
}

// probeJob is a job that is never registered: its index cannot be right.
const probeJob = "inspect-doctor"

// rights tries each call that the engine makes, in a way that changes nothing.
func (d *doctor) rights(ctx context.Context) {
	var lacks []string
	try := func(capability string, err error) {
		var e api.UnexpectedResponseError
		switch {
		case err == nil:
		case errors.As(err, &e) && e.StatusCode() == http.StatusForbidden, strings.Contains(err.Error(), "Permission denied"):
			lacks = append(lacks, capability)
		default:
			d.say(FindingFail, "rights", "%s could not be tried: %v", capability, plain(err))
		}
	}
	_, _, err := d.client.Jobs().List(d.query(ctx))
	try("list-jobs", err)
	_, _, err = d.client.Jobs().Info(probeJob, d.query(ctx))
	try("read-job", unless(err, http.StatusNotFound))
	// The index is checked after the right, and nothing has this one.
	_, _, err = d.client.Jobs().RegisterOpts(d.probe(), &api.RegisterOptions{EnforceIndex: true, ModifyIndex: 1<<63 - 1}, d.write(ctx))
	if err == nil {
		err = errors.New("a job that had to be refused was taken")
	} else if strings.Contains(err.Error(), api.RegisterEnforceIndexErrPrefix) {
		err = nil
	}
	try("submit-job", err)
	_, _, err = d.client.Jobs().Deregister(probeJob, true, d.write(ctx))
	try("submit-job (to end jobs)", err)
	_, _, err = d.client.Nodes().List(d.query(ctx))
	try("node read", err)
	if len(lacks) > 0 {
		d.say(FindingFail, "rights", "the token may not: %s. The least policy:\n%s", strings.Join(lacks, ", "), Policy(d.o.Namespace))
		return
	}
	d.say(FindingOK, "rights", "all that the engine asks for is allowed in namespace %s", d.o.Namespace)
	d.readLogs(ctx)
}

// readLogs is refused only for an allocation that there is, so where there is
// none yet the token's own policies are read.
func (d *doctor) readLogs(ctx context.Context) {
	const lacks = "the token may not read-logs: what a runner wrote that ends without a word cannot be kept"
	allocs, _, err := d.client.Allocations().List(d.query(ctx))
	if err == nil && len(allocs) > 0 {
		_, err := d.client.tail(allocs[0].ID, "stderr", 1, d.query(ctx))
		if status, _, _ := answered(err); status == http.StatusForbidden {
			d.say(FindingWarn, "rights", "%s", lacks)
			return
		}
		d.say(FindingOK, "rights", "read-logs, too")
		return
	}
	self, _, err := d.client.ACLTokens().Self(d.query(ctx))
	if err != nil || self.Type == "management" || self.AccessorID == "acls-disabled" {
		return // said before, or all is allowed
	}
	names := slices.Clone(self.Policies)
	for _, r := range self.Roles {
		if role, _, err := d.client.ACLRoles().Get(r.ID, d.query(ctx)); err == nil {
			for _, p := range role.Policies {
				names = append(names, p.Name)
			}
		}
	}
	for _, name := range names {
		p, _, err := d.client.ACLPolicies().Info(name, d.query(ctx))
		if err == nil && grantsLogs.MatchString(p.Rules) {
			d.say(FindingOK, "rights", "the policy %s names read-logs; it is tried once there is a log", name)
			return
		}
	}
	d.say(FindingWarn, "rights", "no policy of the token names read-logs; without it what a runner wrote that ends without a word cannot be kept")
}

// grantsLogs finds in a policy's text what lets logs be read.
var grantsLogs = regexp.MustCompile(`(?m)^[^#]*(read-logs|policy\s*=\s*"write")`)

// probe has the form of a session's job.
func (d *doctor) probe() *api.Job {
	job := api.NewBatchJob(probeJob, probeJob, d.o.Region, 1)
	job.Namespace, job.NodePool, job.Datacenters = &d.o.Namespace, &d.o.NodePool, []string{"*"}
	task := api.NewTask(taskName, driver).SetConfig("command", "/bin/false")
	return job.AddTaskGroup(api.NewTaskGroup(groupName, 1).AddTask(task))
}

// unless is nil for an answer of that status.
func unless(err error, status int) error {
	var e api.UnexpectedResponseError
	if errors.As(err, &e) && e.StatusCode() == status {
		return nil
	}
	return err
}

func (d *doctor) namespace(ctx context.Context) {
	ns, _, err := d.client.Namespaces().Info(d.o.Namespace, d.query(ctx))
	switch {
	case unless(err, http.StatusNotFound) == nil && err != nil:
		d.say(FindingFail, "namespace", "there is no namespace %s: make it as docs/nomad.md says", d.o.Namespace)
		return
	case err != nil:
		d.say(FindingFail, "namespace", "%s cannot be read: %v", d.o.Namespace, plain(err))
		return
	}
	drivers := []string(nil)
	if ns.Capabilities != nil {
		drivers = ns.Capabilities.EnabledTaskDrivers
		if slices.Contains(ns.Capabilities.DisabledTaskDrivers, driver) {
			d.say(FindingFail, "namespace", "%s does not allow the driver %s, which runners are started with", d.o.Namespace, driver)
			return
		}
	}
	switch {
	case len(drivers) > 0 && !slices.Contains(drivers, driver):
		d.say(FindingFail, "namespace", "%s does not allow the driver %s, which runners are started with", d.o.Namespace, driver)
	case len(drivers) != 1:
		d.say(FindingWarn, "namespace", "%s allows more drivers than %s: enabled_task_drivers = [%q] in its capabilities is enough", d.o.Namespace, driver, driver)
	default:
		d.say(FindingOK, "namespace", "%s, for the driver %s alone", d.o.Namespace, driver)
	}
	if d.o.Namespace == api.DefaultNamespace {
		d.say(FindingWarn, "namespace", "it is the cluster's default one: who may submit jobs there may do with sessions what they like")
	}
}

// dates is an http.RoundTripper that notes what time the other side has.
type dates struct {
	inner http.RoundTripper
	now   func() time.Time
	mu    sync.Mutex
	known bool
	least time.Duration
}

func (t *dates) RoundTrip(r *http.Request) (*http.Response, error) {
	begun := t.now()
	res, err := t.inner.RoundTrip(r)
	if err != nil {
		return res, err
	}
	if date, perr := http.ParseTime(res.Header.Get("Date")); perr == nil {
		t.note(begun, date)
	}
	return res, nil
}

// note takes a date of whole seconds that was written between begun and now.
func (t *dates) note(begun, date time.Time) {
	skew := time.Duration(0)
	if early := begun.Sub(date.Add(time.Second)); early > 0 {
		skew = -early
	} else if late := date.Sub(t.now()); late > 0 {
		skew = late
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.known || max(skew, -skew) < max(t.least, -t.least) {
		t.known, t.least = true, skew
	}
}

// skew is how far the other side's clock is before ours, at least.
func (t *dates) skew() (time.Duration, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.least, t.known
}

// plain is an error of the client without Go's words around it.
func plain(err error) string {
	var e api.UnexpectedResponseError
	if errors.As(err, &e) {
		return fmt.Sprintf("it answered %d %s", e.StatusCode(), strings.TrimSpace(e.Body()))
	}
	return err.Error()
}

// versionOf reads 1.2.3 of 1.2.3-beta.1+ent.
func versionOf(s string) (v [3]int, ok bool) {
	s, _, _ = strings.Cut(strings.TrimPrefix(s, "v"), "-")
	s, _, _ = strings.Cut(s, "+")
	parts := strings.Split(s, ".")
	if len(parts) != 3 {
		return v, false
	}
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil {
			return v, false
		}
		v[i] = n
	}
	return v, true
}

func older(a, b [3]int) bool { return slices.Compare(a[:], b[:]) < 0 }
