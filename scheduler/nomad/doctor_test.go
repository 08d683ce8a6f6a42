package nomad

import (
	"slices"
	"strings"
	"testing"
	"time"

	"inspect/fixtures/nomadd"
)

// told is what a doctor says of a cluster.
func told(t *testing.T, o Options, known []KnownNode) []Finding {
	t.Helper()
	o.Binary, o.ControlURL, o.NodeSocket, o.User = "/usr/local/bin/inspect", "http://127.0.0.1:7462", "/run/node.sock", DefaultUser
	all, err := Examine(t.Context(), o, known)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func wantFinding(t *testing.T, all []Finding, level, what, words string) {
	t.Helper()
	if !slices.ContainsFunc(all, func(f Finding) bool {
		return f.Level == level && f.What == what && strings.Contains(f.Words, words)
	}) {
		t.Errorf("no %s of %s with %q in:", level, what, words)
		for _, f := range all {
			t.Logf("%s %s: %s", f.Level, f.What, f.Words)
		}
	}
}

const commitOne, commitTwo = "1111111111111111111111111111111111111111", "2222222222222222222222222222222222222222"

func TestExamine(t *testing.T) {
	const secret = "0b7c1c5e-aaaa-bbbb-cccc-1234567890ab"
	double, err := nomadd.New(nomadd.Options{Dir: t.TempDir(), Token: secret, Nodes: []nomadd.Node{
		{Name: "good", Meta: map[string]string{MetaNode: "n1", MetaFree: "1099511627776", MetaSnapshot + "env-1-aa": commitOne, MetaSnapshot + "env-2-bb": commitOne}},
		{Name: "bare"},
		{Name: "driverless", NoRawExec: true, Meta: map[string]string{MetaNode: "n3"}},
		{Name: "twice", Meta: map[string]string{MetaNode: "n1"}},
		{Name: "stranger", Meta: map[string]string{MetaNode: "n5"}},
		{Name: "elsewhere", Pool: "default"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { double.Close() })
	token := secret
	o := Options{Address: double.URL(), Token: func() (string, error) { return token, nil }}
	known := []KnownNode{
		{Name: "n1", Alive: true, Snapshots: map[string]string{"env-1-aa": commitOne, "env-2-bb": commitTwo, "env-3-cc": commitOne}},
		{Name: "n3", Snapshots: map[string]string{}},
		{Name: "n4", Alive: true}, {Name: "local", Alive: true, Draining: true},
	}
	all := told(t, o, known)
	for _, f := range [][3]string{
		{FindingOK, "reachable", "the leader is"}, {FindingOK, "clocks", "agree"}, {FindingOK, "token", "policies inspect"},
		{FindingOK, "identities", "1 keys"}, {FindingOK, "rights", "allowed in namespace inspect"},
		{FindingOK, "version", "2.0.5"},
		{FindingOK, "node good", "n1 is connected, 2 snapshots, 1024 GiB free"},
		{FindingOK, "node good", "env-1-aa at 111111111111"}, {FindingWarn, "node good", "env-2-bb is advertised at 111111111111, and the newest is at 222222222222"},
		{FindingWarn, "node good", "env-3-cc at 111111111111 is not advertised"},
		{FindingFail, "node bare", "no node daemon advertises itself"},
		{FindingFail, "node driverless", "driver raw_exec is not enabled"}, {FindingFail, "node driverless", "not heard of lately"},
		{FindingFail, "node twice", "and so does good"},
		{FindingFail, "node stranger", "inspect node add n5"},
		{FindingWarn, "node n4", "no machine of the pool has inspect.node = n4"},
	} {
		wantFinding(t, all, f[0], f[1], f[2])
	}
	for _, f := range all {
		if strings.Contains(f.Words, "elsewhere") || strings.Contains(f.Words, secret) || f.What == "node local" {
			t.Errorf("%+v", f)
		}
	}
	if jobs := double.Jobs(); len(jobs) != 0 {
		t.Errorf("it left jobs: %+v", jobs)
	}

	token = "another"
	all = told(t, o, known)
	wantFinding(t, all, FindingFail, "token", "does not take it")
	wantFinding(t, all, FindingFail, "rights", `capabilities = ["list-jobs", "read-job", "submit-job", "read-logs"]`)
	token = ""
	wantFinding(t, told(t, o, known), FindingFail, "token", "none was given")
	token = secret
	double.ExpireToken(true)
	wantFinding(t, told(t, o, known), FindingFail, "token", "expired")
	double.ExpireToken(false)

	double.Namespace("inspect", false)
	wantFinding(t, told(t, o, known), FindingFail, "namespace", "there is no namespace inspect")
	double.Namespace("inspect", true)
	o.NodePool = "fast"
	wantFinding(t, told(t, o, known), FindingFail, "nodes", "node pool fast")
	if err := double.Down(); err != nil {
		t.Fatal(err)
	}
	if all = told(t, o, known); len(all) != 1 || all[0].Level != FindingFail || all[0].What != "reachable" {
		t.Errorf("of a cluster that is away: %+v", all)
	}
}

func TestExamineAnOldCluster(t *testing.T) {
	double, err := nomadd.New(nomadd.Options{Dir: t.TempDir(), Version: "1.9.3"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { double.Close() })
	all := told(t, Options{Address: double.URL()}, nil)
	wantFinding(t, all, FindingWarn, "version", "from 2.0.3 on")
	wantFinding(t, all, FindingWarn, "token", "no ACLs")
}

func TestClockSkew(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 500_000_000, time.UTC)
	for _, c := range []struct {
		date time.Duration // of the other side before ours
		want time.Duration
	}{{0, 0}, {-400 * time.Millisecond, 0}, {-900 * time.Millisecond, -500 * time.Millisecond}, {5 * time.Second, 4500 * time.Millisecond}, {-10 * time.Second, -9500 * time.Millisecond}} {
		d := &dates{now: func() time.Time { return at }}
		d.note(at, at.Add(c.date).Truncate(time.Second))
		if got, ok := d.skew(); !ok || got != c.want {
			t.Errorf("%v: %v, want %v", c.date, got, c.want)
		}
	}
}

func TestVersionOf(t *testing.T) {
	for s, want := range map[string][3]int{"1.8.0": {1, 8, 0}, "2.0.5-beta.1+ent": {2, 0, 5}, "v2.0.3+ent": {2, 0, 3}} {
		if got, ok := versionOf(s); !ok || got != want {
			t.Errorf("%s: %v", s, got)
		}
	}
	for _, s := range []string{"", "2", "2.x.1", "dev"} {
		if _, ok := versionOf(s); ok {
			t.Errorf("%q is a version", s)
		}
	}
}
