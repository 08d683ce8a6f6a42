package node_test

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/envs/node"
	"inspect/envs/node/dial"
	"inspect/envs/wire"
)

// overheard is all that the daemon logs.
type overheard struct {
	mu sync.Mutex
	b  strings.Builder
}

func (o *overheard) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *overheard) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// patience is for a refresh that starts many sandboxes of the slower tier.
const patience = 3 * time.Minute

// eachTier runs a test with sandboxes of each tier.
func eachTier(t *testing.T, test func(t *testing.T, tier string)) {
	for _, tier := range []string{wire.TierBubblewrap, wire.TierGVisor} {
		t.Run(tier, func(t *testing.T) { test(t, tier) })
	}
}

// startWithSecrets runs a daemon whose control plane gives two secrets.
func startWithSecrets(t *testing.T, tier string) (w *world, token, password string, log *overheard) {
	w, log = newWorld(t), &overheard{}
	w.tier = tier
	w.start(func(o *node.Options) {
		o.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	token, password = "token-"+rand.Text(), "password-"+rand.Text()
	w.plane.set(func(p *plane) { p.secrets = map[string]string{"NPM_TOKEN": token, "DB_PASSWORD": password} })
	t.Cleanup(func() {
		if said := log.String(); strings.Contains(said, token) || strings.Contains(said, password) {
			t.Errorf("a secret is in the log:\n%s", said)
		}
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return w, token, password, log
}

// failed waits for the end of work that must fail, and returns its words.
func (w *world) failed(work wire.Work) string {
	w.t.Helper()
	w.plane.give(work)
	select {
	case r := <-w.plane.results:
		if r.OK {
			w.t.Error("it succeeded")
		}
		return r.Words
	case o := <-w.plane.offers:
		w.t.Errorf("it was offered: %+v", o)
	case <-time.After(patience):
		w.t.Fatal("no result in time")
	}
	return ""
}

// spy writes what it sees of all processes' environments until it is ended.
const spy = `mkdir -p built; setsid sh -c 'while :; do cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline >>built/seen 2>/dev/null; sleep 0.02; done' >/dev/null 2>&1 & until [ -s built/seen ]; do sleep 0.01; done`

func TestSecretsOfARefresh(t *testing.T) {
	eachTier(t, func(t *testing.T, tier string) {
		w, token, password, _ := startWithSecrets(t, tier)
		work := w.refreshWork(1, "snap-1")
		r := work.Refresh
		r.Timeout = patience
		sum := func(name, file string) string {
			return `[ -n "$` + name + `" ] || exit 7; printf %s "$` + name + `" | sha256sum | cut -c1-64 >` + file + `; sleep 0.2; [ $(grep -c . built/seen) -gt 0 ]`
		}
		r.Setup = []wire.Step{
			{Run: spy},
			{Run: sum("NPM_TOKEN", "built/token") + `; [ -z "$DB_PASSWORD" ]`, Secrets: []string{"NPM_TOKEN"}},
			{Run: `[ -z "$NPM_TOKEN" ] && echo '//r.example/:_authToken=${NPM_TOKEN}' >~/.npmrc`},
		}
		r.Services = []wire.Service{{
			Name: "db", Secrets: []string{"DB_PASSWORD"}, Ready: "test -e built/up", Stop: "kill $(cat /tmp/pid)",
			Command: `echo $$ >/tmp/pid; ` + sum("DB_PASSWORD", "built/db") + `; touch built/up; exec sleep 1000`,
		}}
		r.Load = []wire.Step{{Run: sum("DB_PASSWORD", "built/load"), Secrets: []string{"DB_PASSWORD"}}, {Run: "rm built/up"}}
		if os.Geteuid() != 0 && tier == wire.TierBubblewrap {
			if words := w.failed(work); !strings.Contains(words, "only root can start") {
				t.Errorf("as an ordinary user: %s", words)
			}
			return
		}
		w.plane.give(work)
		select {
		case o := <-w.plane.offers:
			if o.Phases["secrets"] <= 0 {
				t.Errorf("nothing was searched: %v", o.Phases)
			}
		case res := <-w.plane.results:
			t.Fatal(res.Words)
		case <-time.After(patience):
			t.Fatal("no offer in time")
		}
		grant := w.grant("s1", wire.PurposeWork, "snap-1")
		_, err := dial.Restore(t.Context(), w.socket, grant)
		must(t, err)
		c, _, err := dialSandbox(t.Context(), w.socket, grant)
		must(t, err)
		defer c.Close()
		for file, value := range map[string]string{"built/token": token, "built/db": password, "built/load": password} {
			h := sha256.Sum256([]byte(value))
			sh(t, c, "grep -qx "+hex.EncodeToString(h[:])+" "+file)
		}
		sh(t, c, "grep -qa GIT_CONFIG_SYSTEM built/seen") // the spy has seen environments
		sh(t, c, "! grep -qaE '(token|password)-[A-Z0-9]{20}' -r /workspace /home/agent")
	})
}

func TestSecretsInASnapshotAreRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		return // TestSecretsOfARefresh sees that it is refused before
	}
	eachTier(t, func(t *testing.T, tier string) {
		w, token, _, _ := startWithSecrets(t, tier)
		for id, cases := range []map[string]string{
			{
				`mkdir -p built; echo "x=$NPM_TOKEN" >built/out`:                        "the secret NPM_TOKEN is in the content of /workspace/built/out",
				`git config http.extraheader "Authorization: Bearer $NPM_TOKEN"`:        "the secret NPM_TOKEN is in the content of /workspace/.git/config",
				`mkdir -p /var/lib/db; echo "$NPM_TOKEN" >/var/lib/db/wal`:              "the secret NPM_TOKEN is in the content of /var/lib/db/wal",
				`mkdir -p ~/.cache; printf 'u:%s' "$NPM_TOKEN" | base64 >~/.cache/auth`: "the secret NPM_TOKEN is in the content of /home/agent/.cache/auth",
			},
			{
				`mkdir -p built; touch "built/$NPM_TOKEN"`:                   "the secret NPM_TOKEN is in the name of /workspace/built/[redacted]",
				`mkdir -p built; ln -s "x$NPM_TOKEN" built/link`:             "the secret NPM_TOKEN is in the link target of /workspace/built/link",
				`mkdir -p built; echo x >built/closed; chmod 0 built/closed`: "/workspace/built/closed cannot be read by its own user, so that it cannot be searched",
				`echo '//r.example/:_authToken=npm_hello' >~/.npmrc`:         "/home/agent/.npmrc holds a credential",
			},
		} {
			work := w.refreshWork(int64(id+1), "snap-1")
			for run := range cases {
				work.Refresh.Setup = append(work.Refresh.Setup, wire.Step{Run: run, Secrets: []string{"NPM_TOKEN"}})
			}
			words := w.failed(work)
			for run, want := range cases {
				if !strings.Contains(words, want) || strings.Contains(words, token) {
					t.Errorf("%s: %s", run, words)
				}
			}
		}
		if left := w.listed("snapshot"); len(left) != 0 {
			t.Errorf("snapshots are left: %v", left)
		}
	})
}

func TestWordsOfARefreshWithoutSecrets(t *testing.T) {
	if os.Geteuid() != 0 {
		return // TestSecretsOfARefresh sees that it is refused before
	}
	w, token, _, _ := startWithSecrets(t, wire.TierBubblewrap)
	work := w.refreshWork(1, "snap-1")
	work.Refresh.Setup = []wire.Step{{Run: `echo "I was given $NPM_TOKEN"; exit 3`, Secrets: []string{"NPM_TOKEN"}}}
	if words := w.failed(work); !strings.Contains(words, "I was given [redacted]") || !strings.Contains(words, "setup command 1 of 1 failed with exit status 3") || strings.Contains(words, token) {
		t.Error(words)
	}
	work = w.refreshWork(2, "snap-1")
	work.Refresh.Setup = []wire.Step{{Run: "true", Secrets: []string{"NPM_TOKEN", "NOT_SET"}}}
	if words := w.failed(work); words != "the secrets of setup command 1 of 1: the secret NOT_SET is not stored" {
		t.Error(words)
	}
	work = w.refreshWork(3, "snap-1")
	work.Refresh.Setup = []wire.Step{{Run: "true", Secrets: []string{"LD_PRELOAD"}}}
	if words := w.failed(work); !strings.Contains(words, `it names a secret "LD_PRELOAD"`) {
		t.Error(words)
	}
}

// Also where no secret is named: a token that setup has got somewhere is in
// every clone.
func TestACredentialAtHomeRefusesTheSnapshot(t *testing.T) {
	w := newWorld(t)
	w.start()
	work := w.refreshWork(1, "snap-1", "echo '//r.example/:_authToken=npm_hello' >~/.npmrc")
	if words := w.failed(work); !strings.Contains(words, "/home/agent/.npmrc holds a credential") {
		t.Error(words)
	}
}
