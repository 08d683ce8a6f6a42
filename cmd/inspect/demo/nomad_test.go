package demo

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"inspect/envs/proc"
	"inspect/fixtures/nomadd"
)

// cluster is the agent at NOMAD_ADDR, or a double of Nomad that starts runners
// for real.
func cluster(t *testing.T) *Cluster {
	t.Helper()
	if os.Getenv("NOMAD_ADDR") != "" {
		c, err := ClusterFrom(os.Getenv, cmp.Or(os.Getenv("INSPECT_TEST_NOMAD_POOL"), "default"))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c, _ := double(t)
	return c
}

// double is one of Nomad that starts runners for real.
func double(t *testing.T) (*Cluster, *nomadd.Double) {
	t.Helper()
	dir, err := os.MkdirTemp("", "inspect-nomadd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil { // runners have another account
		t.Fatal(err)
	}
	d, err := nomadd.New(nomadd.Options{Dir: dir, Token: "0b7c1c5e-aaaa-bbbb-cccc-1234567890ab"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	env := map[string]string{"NOMAD_ADDR": d.URL(), "NOMAD_TOKEN": "0b7c1c5e-aaaa-bbbb-cccc-1234567890ab", "NOMAD_NAMESPACE": "inspect"}
	c, err := ClusterFrom(func(name string) string { return env[name] }, "inspect")
	if err != nil {
		t.Fatal(err)
	}
	return c, d
}

// A session runs as a job of Nomad, whose runner proves itself with what Nomad
// signs: delivered, the job without a secret and forgotten, the clones gone.
// When its runner is killed, the next attempt delivers.
func TestNomad(t *testing.T) {
	for _, kill := range []string{"", "runner"} {
		t.Run("kill "+kill, func(t *testing.T) {
			s := openStageWith(t, map[string]map[string]string{"cluster": small("--delay", "3s")}, func(st *story) {
				st.o.Nomad, st.o.Kill = cluster(t), kill
				if root := os.Getenv("INSPECT_TEST_ZFS_ROOT"); root != "" { // POOL/DATASET
					st.o.Store = []string{"--store", "zfs", "--zfs-root", root + "/" + filepath.Base(st.dir)}
				}
			})
			ctx := patienceOf(t, 5*time.Minute)
			t.Cleanup(func() { s.clearCluster(context.WithoutCancel(ctx)) })
			s.ask("cluster", "Too dear")
			v, err := s.follow(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if v.State != "delivered" || (v.Generation == 2) != (kill != "") {
				t.Fatalf("%s (%s: %s) in attempt %d", v.State, v.Reason, v.Words, v.Generation)
			}
			if n := len(pullsOf(t, s.github, "cluster")); n != 1 {
				t.Errorf("%d pull requests", n)
			}
			if !s.jobs[jobOf(v.Session, v.Generation)] {
				t.Errorf("the job was not looked at: %v", s.jobs)
			}
			if err := s.awaitCleared(ctx); err != nil {
				t.Error(err)
			}
			onlyAllowed(t, s.github)
		})
	}
}

// Whatever goes away while the harness works, the runner goes on, and its session
// ends once, with its work, in its first attempt. Only what Nomad has given up is
// given up by us, too: the old runner is refused, and the next attempt delivers.
// On the double, or with NOMAD_BIN on agents that this test starts.
func TestNomadAway(t *testing.T) {
	const lost = "the agent comes back after Nomad gave it up"
	for name, fault := range map[string]func(ctx context.Context, s *stage, b *breakable) error{
		"the agent dies and comes back": func(_ context.Context, _ *stage, b *breakable) error { return errors.Join(b.kill(), b.revive()) },
		lost: func(_ context.Context, _ *stage, b *breakable) error {
			return errors.Join(b.kill(), b.giveUp(), b.revive())
		},
		"the servers are killed and started again": func(_ context.Context, _ *stage, b *breakable) error { return errors.Join(b.down(), b.up()) },
		"the node daemon is killed": func(_ context.Context, s *stage, _ *breakable) error {
			_, err := s.kill("node", "")
			return err
		},
		"inspect serve is away": func(ctx context.Context, s *stage, b *breakable) error {
			return errors.Join(s.serve.stop(), proc.Sleep(ctx, proc.System(), b.absence), s.again())
		},
		"the control plane hangs": func(ctx context.Context, s *stage, b *breakable) error {
			return s.hang(ctx, b.absence)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := breakableCluster(t)
			files := small("--delay", "6s")
			files[".inspect.yml"] = strings.Replace(files[".inspect.yml"], "timeout: 15s", "timeout: 5m", 1)
			s := openStageWith(t, map[string]map[string]string{"away": files}, func(st *story) { st.o.Nomad, st.o.Store = b.Cluster, b.flags })
			ctx := patienceOf(t, 8*time.Minute)
			t.Cleanup(func() { s.clearCluster(context.WithoutCancel(ctx)) })
			id := s.of(ctx, "away", s.ask("away", "Too dear"))
			s.jobs[jobOf(id, 1)] = true
			if v := s.until(ctx, id, "working", func(v sessionView) bool { return v.State == "working" || v.Generation > 1 || v.Terminal }); v.State != "working" {
				t.Fatalf("it is %s in attempt %d: %s %s", v.State, v.Generation, v.QueueReason, v.Words)
			}
			begun := time.Now()
			if err := fault(ctx, s, b); err != nil {
				t.Fatal(err)
			}
			t.Logf("broken and mended in %.1f s", time.Since(begun).Seconds())
			v := s.until(ctx, id, "over", over)
			t.Logf("over after %.1f s", time.Since(begun).Seconds())
			if v.State != "delivered" || (v.Generation == 2) != (name == lost) {
				t.Errorf("%s (%s: %s) in attempt %d", v.State, v.Reason, v.Words, v.Generation)
			}
			s.jobs[jobOf(id, v.Generation)] = true
			if n := len(pullsOf(t, s.github, "away")); n != 1 {
				t.Errorf("%d pull requests", n)
			}
			if err := s.awaitCleared(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// hang stops the control plane's process for a while; an ordinary user's is
// serve itself.
func (s *stage) hang(ctx context.Context, d time.Duration) error {
	s.serve.mu.Lock()
	pid := s.serve.cmd.Process.Pid
	s.serve.mu.Unlock()
	for _, p := range family(s.t, pid) {
		if p.role() == "control-plane" {
			pid = p.pid
			break
		}
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	return errors.Join(proc.Sleep(ctx, proc.System(), d), syscall.Kill(pid, syscall.SIGCONT))
}

// Runners may be fetched for each session: nodes check what they got.
func TestRealArtifact(t *testing.T) {
	if os.Getenv("NOMAD_ADDR") == "" {
		t.Skip("NOMAD_ADDR is not set: the double fetches nothing")
	}
	body, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	files := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "inspect", time.Time{}, bytes.NewReader(body))
	}))
	t.Cleanup(files.Close)
	for name, sum := range map[string][32]byte{"as it is": sha256.Sum256(body), "another": sha256.Sum256([]byte("another"))} {
		t.Run(name, func(t *testing.T) {
			s := openStageWith(t, map[string]map[string]string{"fetched": small()}, func(st *story) {
				st.o.Nomad = cluster(t)
				st.o.Store = []string{"--nomad-artifact", files.URL + "/inspect", "--nomad-artifact-checksum", "sha256:" + hex.EncodeToString(sum[:])}
			})
			ctx := patienceOf(t, 5*time.Minute)
			t.Cleanup(func() { s.clearCluster(context.WithoutCancel(ctx)) })
			id := s.of(ctx, "fetched", s.ask("fetched", "Too dear"))
			for generation := range 3 {
				s.jobs[jobOf(id, generation+1)] = true
			}
			v := s.until(ctx, id, "over", over)
			if good := name == "as it is"; good != (v.State == "delivered") || !good && !strings.Contains(v.Words, "Expected: "+hex.EncodeToString(sum[:])) {
				t.Errorf("%s in attempt %d: %s", v.State, v.Generation, v.Words)
			}
		})
	}
}

// The look at a job can fail.
func TestSecretsInAJobAreSeen(t *testing.T) {
	task := func(fields string) string {
		return `{"Meta":{"inspect.session":"s"},"TaskGroups":[{"Tasks":[{"Driver":"raw_exec","User":"nobody"` + fields + `}]}]}`
	}
	for name, c := range map[string]struct{ job, variables, want string }{
		"good":          {task(""), "[]", ""},
		"environment":   {task(`,"Env":{"TOKEN":"x"}`), "[]", "environment"},
		"template":      {task(`,"Templates":[{}]`), "[]", "templates"},
		"Vault":         {task(`,"Vault":{}`), "[]", "Vault"},
		"meta of task":  {task(`,"Meta":{"a":"b"}`), "[]", "meta"},
		"variables":     {task(""), `[{"Path":"nomad/jobs/x"}]`, "variables"},
		"no group":      {`{}`, "[]", "one task"},
		"not to be had": {task(""), "Permission denied", ""},
	} {
		_, err := noPlaceForSecrets([]byte(c.job), []byte(c.variables))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
