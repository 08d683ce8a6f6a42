package nomad

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"inspect/scheduler"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func someOptions(t *testing.T, change ...func(*Options)) Options {
	t.Helper()
	o := Options{
		Address: "https://nomad.example.com:4646", Binary: "/usr/local/bin/inspect", ControlURL: "https://inspect.example.com",
		NodeSocket: "/run/inspect/node.sock", User: DefaultUser,
	}
	for _, c := range change {
		c(&o)
	}
	o, err := o.complete()
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func someAttempt() scheduler.Attempt {
	return scheduler.Attempt{
		Session: "abc123", Generation: 2, Node: "node-a", Secret: "never-to-be-seen", Repository: "octocat/hello",
		Environment: "env-42-ab12cd34", Commit: strings.Repeat("a1", 20), CPU: 2, Memory: 4<<30 + 1, Priority: 5, Deadline: now.Add(90 * time.Minute),
	}
}

// TestJob holds every field that makes an attempt run once.
func TestJob(t *testing.T) {
	j, err := someOptions(t).job(someAttempt(), nil, true, now)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(raw), "never-to-be-seen") {
		t.Error("the secret is in the job")
	}
	want := &api.Job{
		Region: new("global"), Namespace: new("inspect"), NodePool: new("inspect"), Datacenters: []string{"*"},
		ID: new("inspect-abc123-g2"), Name: new("inspect-abc123-g2"), Type: new("batch"), Priority: new(55),
		Constraints: []*api.Constraint{{LTarget: "${meta.inspect.node}", Operand: "is_set"}},
		Affinities: []*api.Affinity{
			{LTarget: "${meta.inspect.snapshot.env-42-ab12cd34}", Operand: "=", RTarget: strings.Repeat("a1", 20), Weight: new(int8(100))},
			{LTarget: "${meta.inspect.node}", Operand: "=", RTarget: "node-a", Weight: new(int8(50))},
		},
		Meta: map[string]string{"inspect.session": "abc123", "inspect.generation": "2", "inspect.repository": "octocat/hello"},
		TaskGroups: []*api.TaskGroup{{
			Name: new("session"), Count: new(1),
			RestartPolicy:    &api.RestartPolicy{Attempts: new(0), Mode: new("fail")},
			ReschedulePolicy: &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)},
			Disconnect:       &api.DisconnectStrategy{LostAfter: new(240 * time.Hour), Replace: new(false)},
			MaxRunDuration:   new(90 * time.Minute),
			EphemeralDisk:    &api.EphemeralDisk{SizeMB: new(512)},
			Tasks: []*api.Task{{
				Name: "runner", Driver: "raw_exec", User: "inspect-runner",
				Config: map[string]any{"command": "/usr/local/bin/inspect", "args": []string{"runner",
					"--control", "https://inspect.example.com", "--session", "abc123", "--generation", "2",
					"--node-socket", "/run/inspect/node.sock", "--spool", "${NOMAD_TASK_DIR}/spool",
					"--identity-file", "${NOMAD_SECRETS_DIR}/nomad_inspect.jwt"}},
				Resources: &api.Resources{CPU: new(2000), MemoryMB: new(4096 + 1 + 256)},
				Identities: []*api.WorkloadIdentity{{
					Name: "inspect", Audience: []string{"inspect"}, File: true, TTL: time.Hour, ChangeMode: "noop",
				}},
				KillTimeout: new(30 * time.Second), KillSignal: "SIGTERM",
				LogConfig: &api.LogConfig{MaxFiles: new(2), MaxFileSizeMB: new(5)},
			}},
		}},
	}
	if diff := cmp.Diff(want, j); diff != "" {
		t.Errorf("the job (-want +got):\n%s", diff)
	}
	if !ours(j, "abc123", 2) || ours(j, "abc123", 1) || ours(j, "abc124", 2) || ours(nil, "abc123", 2) || ours(&api.Job{}, "abc123", 2) {
		t.Error("ours does not know our jobs")
	}
}

func TestJobVariants(t *testing.T) {
	for _, c := range []struct {
		name  string
		o     func(*Options)
		a     func(*scheduler.Attempt)
		limit bool
		is    func(j *api.Job) bool
	}{
		{name: "priority above", a: func(a *scheduler.Attempt) { a.Priority = 1000 }, is: func(j *api.Job) bool { return *j.Priority == 100 }},
		{name: "priority below", a: func(a *scheduler.Attempt) { a.Priority = -1000 }, is: func(j *api.Job) bool { return *j.Priority == 1 }},
		{name: "an older cluster", is: func(j *api.Job) bool { return j.TaskGroups[0].MaxRunDuration == nil }},
		{name: "no deadline", limit: true, a: func(a *scheduler.Attempt) { a.Deadline = time.Time{} }, is: func(j *api.Job) bool {
			return j.TaskGroups[0].MaxRunDuration == nil && *j.TaskGroups[0].Disconnect.LostAfter == 240*time.Hour
		}},
		{name: "lost after less than the session", o: func(o *Options) { o.LostAfter = time.Minute }, is: func(j *api.Job) bool {
			return *j.TaskGroups[0].Disconnect.LostAfter == 100*time.Minute && !*j.TaskGroups[0].Disconnect.Replace
		}},
		{name: "no snapshot and no node", a: func(a *scheduler.Attempt) { a.Commit, a.Node = "", "" }, is: func(j *api.Job) bool { return len(j.Affinities) == 0 }},
		{name: "names that would be more than names", a: func(a *scheduler.Attempt) { a.Environment, a.Node = "x} ${env.", "${attr.x}" }, is: func(j *api.Job) bool { return len(j.Affinities) == 0 }},
		{name: "an artifact", o: func(o *Options) {
			o.Binary, o.Artifact = "", Artifact{URL: "https://files.example.com/inspect.gz", Checksum: "sha256:" + strings.Repeat("0", 64)}
		}, is: func(j *api.Job) bool {
			task := j.TaskGroups[0].Tasks[0]
			return task.Config["command"] == "${NOMAD_TASK_DIR}/inspect" && *task.Artifacts[0].RelativeDest == "local/inspect" && *task.Artifacts[0].GetterMode == "file" &&
				task.Artifacts[0].GetterOptions["checksum"] != "" && task.Artifacts[0].GetterOptions["archive"] == "false"
		}},
		{name: "less than a core", a: func(a *scheduler.Attempt) { a.CPU = 0 }, is: func(j *api.Job) bool { return *j.TaskGroups[0].Tasks[0].Resources.CPU == 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var change []func(*Options)
			if c.o != nil {
				change = append(change, c.o)
			}
			a := someAttempt()
			if c.a != nil {
				c.a(&a)
			}
			j, err := someOptions(t, change...).job(a, nil, c.limit, now)
			if err != nil || !c.is(j) {
				raw, _ := json.MarshalIndent(j, "", " ")
				t.Errorf("%v %s", err, raw)
			}
		})
	}
	late := someAttempt()
	late.Deadline = now
	if _, err := someOptions(t).job(late, nil, true, now); err == nil {
		t.Error("an attempt without time left has a job")
	}
}

func TestTemplate(t *testing.T) {
	for _, c := range []struct{ name, template, refused string }{
		{"nothing", `{}`, ""},
		{"wrapped", `{"Job": {"Priority": 70}}`, ""},
		{"all that may be", `{"Priority": 60, "Constraints": [{"LTarget": "${node.class}", "Operand": "=", "RTarget": "agents"}], "TaskGroups": [{
			"Name": "session", "EphemeralDisk": {"SizeMB": 2000}, "Tasks": [{"Name": "runner", "Env": {"HTTPS_PROXY": "http://proxy.example.com:3128"},
			"Config": {"oom_score_adj": 100}, "Resources": {"MemoryMaxMB": 9000}, "KillTimeout": 60000000000, "LogConfig": {"MaxFiles": 4}}]}]}`, ""},
		{"not JSON", `job "x" {}`, "not a job"},
		{"a field that is none", `{"Prority": 1}`, "not a job"},
		{"more", `{} {}`, "follows"},
		{"id", `{"ID": "x"}`, "ID"},
		{"type", `{"Type": "service"}`, "Type"},
		{"namespace", `{"Namespace": "default"}`, "Namespace"},
		{"meta", `{"Meta": {"key": "value"}}`, "Meta"},
		{"reschedule", `{"Reschedule": {"Attempts": 3}}`, "Reschedule"},
		{"priority", `{"Priority": 101}`, "Priority"},
		{"two groups", `{"TaskGroups": [{}, {}]}`, "one group"},
		{"a null group", `{"TaskGroups": [null]}`, "null"},
		{"group name", `{"TaskGroups": [{"Name": "x"}]}`, "session"},
		{"count", `{"TaskGroups": [{"Count": 2}]}`, "Count"},
		{"restart", `{"TaskGroups": [{"RestartPolicy": {"Attempts": 1}}]}`, "RestartPolicy"},
		{"group reschedule", `{"TaskGroups": [{"ReschedulePolicy": {"Attempts": 1}}]}`, "ReschedulePolicy"},
		{"disconnect", `{"TaskGroups": [{"Disconnect": {"Replace": true}}]}`, "Disconnect"},
		{"max run", `{"TaskGroups": [{"MaxRunDuration": 1}]}`, "MaxRunDuration"},
		{"two tasks", `{"TaskGroups": [{"Tasks": [{}, {}]}]}`, "one task"},
		{"a null task", `{"TaskGroups": [{"Tasks": [null]}]}`, "null"},
		{"driver", `{"TaskGroups": [{"Tasks": [{"Driver": "docker"}]}]}`, "Driver"},
		{"user", `{"TaskGroups": [{"Tasks": [{"User": "root"}]}]}`, "User"},
		{"command", `{"TaskGroups": [{"Tasks": [{"Config": {"command": "/bin/sh"}}]}]}`, "command"},
		{"identity", `{"TaskGroups": [{"Tasks": [{"Identities": [{"Name": "x"}]}]}]}`, "Identities"},
		{"vault", `{"TaskGroups": [{"Tasks": [{"Vault": {"Role": "x"}}]}]}`, "Vault"},
		{"template", `{"TaskGroups": [{"Tasks": [{"Templates": [{"EmbeddedTmpl": "x"}]}]}]}`, "Templates"},
		{"a secret in the environment", `{"TaskGroups": [{"Tasks": [{"Env": {"GITHUB_TOKEN": "x"}}]}]}`, "GITHUB_TOKEN"},
		{"a secret in an address", `{"TaskGroups": [{"Tasks": [{"Env": {"HTTPS_PROXY": "http://hubot:pw@proxy.example.com"}}]}]}`, "credentials"},
		{"memory", `{"TaskGroups": [{"Tasks": [{"Resources": {"MemoryMB": 1}}]}]}`, "MemoryMB"},
		{"no logs", `{"TaskGroups": [{"Tasks": [{"LogConfig": {"Disabled": true}}]}]}`, "logs"},
		{"endless logs", `{"TaskGroups": [{"Tasks": [{"LogConfig": {"MaxFiles": 100, "MaxFileSizeMB": 100}}]}]}`, "logs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			base, err := parseTemplate([]byte(c.template))
			if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Fatalf("error %v, want one with %q", err, c.refused)
			}
			if err != nil {
				return
			}
			if _, err := someOptions(t).job(someAttempt(), base, true, now); err != nil {
				t.Error(err)
			}
		})
	}
	base, err := parseTemplate([]byte(`{"Priority": 60, "Affinities": [{"LTarget": "${node.class}", "Operand": "=", "RTarget": "big", "Weight": 10}],
		"TaskGroups": [{"Tasks": [{"Env": {"TZ": "UTC"}, "Config": {"oom_score_adj": 100}, "LogConfig": {"MaxFiles": 4}}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the template is not changed by its use
		j, err := someOptions(t).job(someAttempt(), base, true, now)
		if err != nil {
			t.Fatal(err)
		}
		task := j.TaskGroups[0].Tasks[0]
		if *j.Priority != 65 || len(j.Affinities) != 3 || len(j.Constraints) != 1 || task.Env["TZ"] != "UTC" || task.Config["oom_score_adj"] != float64(100) ||
			task.Config["command"] != "/usr/local/bin/inspect" || *task.LogConfig.MaxFiles != 4 || *task.LogConfig.MaxFileSizeMB != 5 || *j.TaskGroups[0].Count != 1 {
			t.Errorf("what is laid over the template is %+v, task %+v", j, task)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		name string
		o    func(*Options)
		ok   bool
	}{
		{"https", func(*Options) {}, true},
		{"loopback", func(o *Options) { o.Address = "http://127.0.0.1:4646" }, true},
		{"loopback v6", func(o *Options) { o.Address = "http://[::1]:4646/" }, true},
		{"localhost", func(o *Options) { o.Address = "http://localhost:4646" }, true},
		{"open http", func(o *Options) { o.Address = "http://nomad.example.com:4646" }, false},
		{"a name that begins so", func(o *Options) { o.Address = "http://127.0.0.1.example.com:4646" }, false},
		{"a socket", func(o *Options) { o.Address = "unix:///run/nomad.sock" }, false},
		{"credentials", func(o *Options) { o.Address = "https://hubot:pw@nomad.example.com" }, false},
		{"none", func(o *Options) { o.Address = "" }, false},
		{"half a certificate", func(o *Options) { o.ClientCert = []byte("x") }, false},
		{"a colon in a name", func(o *Options) { o.Namespace = "a:b" }, false},
		{"all namespaces", func(o *Options) { o.Namespace = "*" }, false},
		{"no binary", func(o *Options) { o.Binary = "" }, false},
		{"a relative binary", func(o *Options) { o.Binary = "inspect" }, false},
		{"both", func(o *Options) { o.Artifact.URL = "https://files.example.com/inspect" }, false},
		{"no checksum", func(o *Options) { o.Binary, o.Artifact.URL = "", "https://files.example.com/inspect" }, false},
		{"credentials of an artifact", func(o *Options) {
			o.Binary, o.Artifact = "", Artifact{"https://files.example.com/inspect?token=x", "sha256:" + strings.Repeat("0", 64)}
		}, false},
		{"no control address", func(o *Options) { o.ControlURL = "" }, false},
		{"a template that is none", func(o *Options) { o.Template = []byte("no job") }, false},
		{"authorities that are none", func(o *Options) { o.CACert = []byte("no certificate") }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := Options{Address: "https://nomad.example.com:4646", Binary: "/usr/local/bin/inspect", ControlURL: "https://inspect.example.com", NodeSocket: "/run/node.sock"}
			c.o(&o)
			if e, err := New(o); (err == nil) != c.ok {
				t.Errorf("New: %v, %v", e, err)
			}
		})
	}
}

func TestNames(t *testing.T) {
	for id, ok := range map[string]bool{
		"inspect-abc-g1": true, "inspect-abc-g0": false, "inspect-abc-g01": false, "inspect--g1": false, "inspect-abc-g1 ": false, "inspect-abc-g1\n": false,
		"inspect-a-b-g1": false, "INSPECT-abc-g1": false, "xinspect-abc-g1": false, "inspect-abc-g9999999999": false, "inspect-abc-g1/dispatch-1-2": false, "": false,
	} {
		session, generation, got := attemptOf(id)
		if got != ok {
			t.Errorf("%q is read as attempt %d of %q (%v)", id, generation, session, got)
		}
		if again, fine := jobID(session, generation); ok && (!fine || again != id) {
			t.Errorf("%q becomes %q", id, again)
		}
	}
}
