package runner

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"inspect/envs/wire"
)

// giveSecrets has the control plane give these, and returns what was asked for
// so far, "A B".
func (w *world) giveSecrets(values map[string]string) (asked func() []string) {
	var list []string
	w.control.intercept = func(rw http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/runner/v1/secrets" {
			return false
		}
		var q wire.SecretsRequest
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, &q); err != nil || r.Header.Get("Authorization") != "Bearer "+w.control.token {
			w.t.Errorf("%s: %v", body, err)
		}
		reply := wire.SecretsReply{Values: map[string]string{}}
		for _, n := range q.Names {
			if _, ok := values[n]; !ok {
				rw.WriteHeader(http.StatusBadRequest)
				_ = json.NewEncoder(rw).Encode(wire.Error{Code: "bad_request", Message: "the secret " + n + " is not set: inspect secret set " + n})
				return true
			}
			reply.Values[n] = values[n]
		}
		w.control.mu.Lock()
		list = append(list, strings.Join(q.Names, " "))
		w.control.mu.Unlock()
		_ = json.NewEncoder(rw).Encode(reply)
		return true
	}
	return func() []string {
		w.control.mu.Lock()
		defer w.control.mu.Unlock()
		return slices.Clone(list)
	}
}

// holding are the files under dir that hold one of the words.
func holding(t *testing.T, dir string, words ...string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(p)
		for _, w := range words {
			if bytes.Contains(b, []byte(w)) {
				out = append(out, p)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return out
}

// A service's and a verification command's secrets are nowhere but with them.
func TestSecretsReachOnlyWhoNamesThem(t *testing.T) {
	for _, tier := range []string{wire.TierBubblewrap, wire.TierGVisor} {
		t.Run(tier, secretsReachOnlyWhoNamesThem)
	}
}

func secretsReachOnlyWhoNamesThem(t *testing.T) {
	ofDB, ofE2E := "db-"+rand.Text(), "e2e-"+rand.Text()
	// Looks for both in every process of its sandbox, without having them in
	// its own arguments or environment.
	scan := fmt.Sprintf(`printf %%s\\n %s %s | base64 -di | grep -ao -- '[a-z0-9]*-[A-Z0-9]*' >/tmp/words
for f in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do if grep -qaFf /tmp/words $f 2>/dev/null; then echo "FO""UND in $f"; fi; done; rm /tmp/words; echo scanned`,
		base64.StdEncoding.EncodeToString([]byte(" "+ofDB+"\n   ")), base64.StdEncoding.EncodeToString([]byte(" "+ofE2E+"\n   ")))
	w := newWorld(t, "--test", checkLine+"; "+scan)
	r := newRealNode(t, w)
	w.opt.Node, w.opt.NodeSocket = nil, r.socket
	w.spec.WorkGrant, w.spec.VerifyGrant = r.grant(t, wire.PurposeWork), r.grant(t, wire.PurposeVerify)
	w.spec.Services = []wire.Service{
		{Name: "plain", Command: "exec sleep 1000"},
		{Name: "db", Secrets: []string{"DB_PASSWORD"}, Ready: `test -e $HOME/up`, Stop: "touch $HOME/stopped",
			Command: `[ -z "$E2E_TOKEN" ] || exit 9; echo "I am given $DB_PASSWORD"; printf %s "$DB_PASSWORD" | sha256sum >$HOME/up; exec sleep 1000`},
	}
	w.spec.Verify = []wire.Verify{
		{Name: "scan", Run: scan + `; [ -z "$DB_PASSWORD$E2E_TOKEN" ]`, Report: "exit"},
		{Name: "e2e", Run: `[ -z "$DB_PASSWORD" ] || exit 9; echo "with $E2E_TOKEN"; printf %s "$E2E_TOKEN" | base64; [ ${#E2E_TOKEN} -gt 20 ] || exit 8
` + scan, Report: "exit", Secrets: []string{"E2E_TOKEN"}},
		{Name: "again", Run: scan, Report: "exit"},
	}
	asked := w.giveSecrets(map[string]string{"DB_PASSWORD": ofDB, "E2E_TOKEN": ofE2E})
	give := w.control.intercept
	w.control.intercept = func(rw http.ResponseWriter, q *http.Request) bool {
		if strings.HasSuffix(q.URL.Path, "/outcome") { // before anything is removed
			if found := holding(t, w.node.dir, ofDB, ofE2E); len(found) > 0 {
				t.Errorf("on the disk: %v", found)
			}
		}
		return give(rw, q)
	}
	if err := w.run(); err != nil {
		t.Fatal(err)
	}
	o := w.control.result
	if os.Geteuid() != 0 {
		if tierOf(t) == wire.TierBubblewrap && (o == nil || o.Kind != wire.OutcomeInfrastructure || !strings.Contains(o.Words, "only root")) {
			t.Errorf("as an ordinary user: %+v", o)
		}
		return
	}
	if o == nil || o.Kind != wire.OutcomeVerified || len(o.Results) != 3 {
		t.Fatalf("outcome %+v", o)
	}
	for i, res := range o.Results {
		out := string(w.control.artifacts[res.Stdout])
		if res.ExitCode != 0 || i != 1 && (!strings.Contains(out, "scanned") || strings.Contains(out, "FOUND")) {
			t.Errorf("%s: status %d: %s%s", res.Name, res.ExitCode, out, w.control.artifacts[res.Stderr])
		}
	}
	// The scan can find: where the secret may be, it does.
	if out := string(w.control.artifacts[o.Results[1].Stdout]); !strings.HasPrefix(out, "with [redacted]\n[redacted]") || !strings.Contains(out, "FOUND in /proc/") {
		t.Errorf("what the command with the secret said: %q", out)
	}
	if d := asked(); !slices.Equal(d, []string{"DB_PASSWORD", "DB_PASSWORD", "E2E_TOKEN"}) {
		t.Errorf("asked for %q", d)
	}
	notes := w.control.texts(wire.EventNote)
	for _, want := range []string{"Secrets handed to service db: DB_PASSWORD.", "Secrets handed to verification command e2e: E2E_TOKEN."} {
		if !strings.Contains(notes, want) {
			t.Errorf("no event says %q:\n%s", want, notes)
		}
	}
	if all := w.control.texts(wire.EventOutput); !strings.Contains(all, "scanned") || strings.Contains(all, "FOUND") {
		t.Errorf("the agent looked around and said: %s", all)
	}
	everything := [][]byte{w.log.Bytes()}
	for _, e := range w.control.events() {
		everything = append(everything, e.Data)
	}
	everything = slices.Concat(everything, slices.Collect(maps.Values(w.control.artifacts)), slices.Collect(maps.Values(w.control.bundles)))
	for _, b := range everything {
		if bytes.Contains(b, []byte(ofDB)) || bytes.Contains(b, []byte(ofE2E)) {
			t.Errorf("a secret is in %q", b)
		}
	}
}

// Who gives no secret is named, and nothing is tried again.
func TestSecretThatIsMissing(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	for name, change := range map[string]func(*wire.Spec){
		"service db": func(s *wire.Spec) {
			s.Services = []wire.Service{{Name: "db", Command: "exec sleep 1000", Secrets: []string{"NOT_SET"}}}
		},
		"verification command e2e": func(s *wire.Spec) {
			s.Verify = []wire.Verify{{Name: "e2e", Run: "true", Report: "exit", Secrets: []string{"NOT_SET"}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			change(&w.spec)
			w.giveSecrets(nil)
			o := w.outcome()
			if o.Kind != wire.OutcomeFailed || o.Reason != wire.ReasonSecret || !strings.Contains(o.Words, "inspect secret set NOT_SET") || !strings.Contains(o.Words, name) {
				t.Errorf("%+v", o)
			}
		})
	}
}
