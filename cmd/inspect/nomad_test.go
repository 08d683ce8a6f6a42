package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inspect/app/diagnosis"
	"inspect/scheduler/nomad"
)

// The job of node daemons says what a daemon needs to be told and holds no secret.
func TestNodeJob(t *testing.T) {
	data := t.TempDir()
	private := filepath.Join(data, "private")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, error) {
		cmd := nomadCommand()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(append([]string{"node-job", "--data", data}, args...))
		err := cmd.Execute()
		return out.String(), err
	}
	if _, err := run("--control", "https://inspect.example"); err == nil {
		t.Error("without the control plane's key")
	}
	key, err := grantKey(private)
	if err != nil {
		t.Fatal(err)
	}
	public, err := publicGrantKey(private)
	if err != nil {
		t.Fatal(err)
	}
	out, err := run("--control", "https://inspect.example", "--", "--store", "zfs", "--zfs-root", "tank/inspect")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`type        = "system"`, `namespace   = "inspect-nodes"`, `node_pool   = "inspect"`, `driver = "raw_exec"`, `user   = "root"`, `kill_signal  = "SIGTERM"`,
		`"` + public + `",`, `"` + ownerOf(data) + `",`, `"/etc/inspect/node.token",`, `"${node.unique.name}",`, `"tank/inspect",`, `"unix://${NOMAD_SECRETS_DIR}/api.sock",`,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it lacks %s:\n%s", want, out)
		}
	}
	seed, err := os.ReadFile(filepath.Join(private, "grant.seed"))
	if err != nil || strings.Contains(out, strings.TrimSpace(string(seed))) || strings.Contains(out, string(key)) {
		t.Errorf("it holds the private key (%v)", err)
	}
	for _, bad := range [][]string{{}, {"--control", "http://10.0.0.1:7462"}, {"--control", "https://inspect.example", "--name", "a\nb"}, {"--control", "https://inspect.example", "--pool", ""}} {
		if _, err := run(bad...); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
	// What could end a word of the job does not.
	if out, err = run("--control", "https://inspect.example", "--", `x" ] }`); err != nil || !strings.Contains(out, `"x\" ] }",`) {
		t.Errorf("%v:\n%s", err, out)
	}
}

func TestDoctorTells(t *testing.T) {
	var out bytes.Buffer
	err := tellFindings(&out, []diagnosis.Finding{
		{Level: diagnosis.OK, What: "reachable", Words: "it answers"}, {Level: diagnosis.Fail, What: "rights", Words: "it may not:\nnamespace\x1b[2J"},
	}, false)
	if err == nil || strings.ContainsRune(out.String(), 0x1b) || !strings.HasPrefix(out.String(), "ok    reachable: it answers\nfail  rights: it may not:\n      namespace") {
		t.Errorf("%v: %q", err, out.String())
	}
	out.Reset()
	if err := tellFindings(&out, []diagnosis.Finding{{Level: diagnosis.Warn, What: "token", Words: "it may do too much", Do: "take it away"}}, true); err != nil || !strings.Contains(out.String(), `"do": "take it away"`) {
		t.Errorf("%v: %s", err, out.String())
	}
	cmd := doctorCommand()
	out.Reset()
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"--policy-hcl", "--nomad-namespace", "agents"})
	if err := cmd.Execute(); err != nil || out.String() != nomad.Policy("agents") {
		t.Errorf("%v: %s", err, out.String())
	}
}

// The nodes that a doctor compares a cluster with.
func TestDoctorKnowsNodes(t *testing.T) {
	s := newShelf(t)
	s.sql(`INSERT INTO nodes (name, token_hash, draining, seen_at) VALUES ('n2', 'x', true, now() - interval '2 min')`)
	known, err := knownNodes(t.Context(), dataFlags{postgresURL: s.url}, time.Now())
	if err != nil || len(known) != 2 {
		t.Fatalf("%+v %v", known, err)
	}
	if n := known[0]; n.Name != "n1" || !n.Alive || n.Draining || n.Snapshots["env-42-aaaaaaaa"] != headSHA || len(n.Snapshots) != 3 {
		t.Errorf("%+v", n)
	}
	if n := known[1]; n.Alive || !n.Draining || len(n.Snapshots) != 0 {
		t.Errorf("%+v", n)
	}
}
