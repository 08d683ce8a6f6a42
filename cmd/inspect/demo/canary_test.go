package demo

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"inspect/checks/redact"
	"inspect/fixtures/githubd"
	"inspect/fixtures/modeld"
	"inspect/fixtures/scripted"
)

// Where the private registry is: a public address in a network of its own, in
// which serve runs too. Nothing there leads out.
const (
	registryHost    = "packages.inspect.test"
	registryAddress = "9.10.11.12"
)

// apartFlag is set where this test program runs in a network of its own.
const apartFlag = "INSPECT_TEST_OWN_NETWORK"

// ownNetwork runs the calling test again in a network, and with a table of
// hosts and authorities, of its own, and reports there whether it is in it. The
// proxies of serve reach public addresses only: here one is this machine's
// without being an address of its interfaces.
func ownNetwork(t *testing.T) (inside bool) {
	t.Helper()
	if os.Getenv(apartFlag) != "" {
		must(t, syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
		for _, line := range []string{"link set lo up", "route add local " + registryAddress + "/32 dev lo"} {
			if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
				t.Fatalf("ip %s: %v: %s", line, err, out)
			}
		}
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), apartFlag+"=1", binaryVar+"="+binary)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	cmd.Stdout, cmd.Stderr = testWriter{t}, testWriter{t}
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
	return false
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// instead puts a text in the place of a file of this machine, for this test
// and what it starts.
func instead(t *testing.T, dir, file, text string) {
	t.Helper()
	mine := filepath.Join(dir, filepath.Base(file))
	must(t, os.WriteFile(mine, []byte(text), 0o644))
	must(t, syscall.Mount(mine, file, "", syscall.MS_BIND, ""))
}

// registry is a private one over TLS that this machine trusts. Whoever asks for
// /hold/NAME waits until the test has looked around.
func registry(t *testing.T, h http.Handler) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{registryHost}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	const bundle = "/etc/ssl/certs/ca-certificates.crt"
	trusted, err := os.ReadFile(bundle)
	must(t, err)
	instead(t, dir, bundle, string(trusted)+"\n"+string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	instead(t, dir, "/etc/hosts", "127.0.0.1 localhost\n"+registryAddress+" "+registryHost+"\n")
	srv := httptest.NewUnstartedServer(h)
	srv.Listener.Close()
	srv.Listener, err = net.Listen("tcp", registryAddress+":443")
	must(t, err)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	srv.StartTLS()
	t.Cleanup(srv.Close)
}

// canary is a secret of an installation, and who may have it in its memory.
type canary struct {
	name, value string
	roles       []string // of process.role
	script      string   // whose own sandbox may have it too
	raw         bool     // it is hexadecimal and stands for bytes
}

// sums are those of all the spellings that are looked for.
func (c canary) sums() (out []uint64) {
	forms := redact.Forms(c.value)
	if c.raw {
		plain, _ := hex.DecodeString(c.value)
		forms = append(forms, redact.Forms(string(plain))...)
	}
	if der, err := base64.StdEncoding.DecodeString(c.value); err == nil { // of a PEM
		forms = append(forms, string(der))
	}
	for _, f := range forms {
		if sum, ok := scripted.Sum([]byte(f)); ok {
			out = append(out, sum)
		}
	}
	return out
}

func fresh(what string) string { return "canary-" + what + "-" + rand.Text() }

// hunt looks for canaries.
type hunt struct {
	t        *testing.T
	canaries []canary
	data     string
	serve    int // its process

	mu   sync.Mutex // one search at a time
	l    *scripted.Looker
	seen map[string]int // how often a canary was found where it may be, to know that the search can find
	held map[string]int // searches by what asked for them
}

func newHunt(t *testing.T, canaries []canary) *hunt {
	h := &hunt{t: t, canaries: canaries, l: &scripted.Looker{}, seen: map[string]int{}, held: map[string]int{}}
	for _, c := range canaries {
		for _, sum := range c.sums() {
			h.l.Know(c.name, sum)
		}
	}
	return h
}

// sums is the file by which the agent knows them.
func (h *hunt) sums(more ...canary) string {
	var b strings.Builder
	for _, c := range append(slices.Clone(h.canaries), more...) {
		for _, sum := range c.sums() {
			b.WriteString(scripted.SumLine(strings.ReplaceAll(c.name, " ", "-"), sum))
		}
	}
	return b.String()
}

func (h *hunt) of(name string) canary {
	return h.canaries[slices.IndexFunc(h.canaries, func(c canary) bool { return c.name == name })]
}

func (h *hunt) text(where, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	found, _ := h.l.Look(strings.NewReader(text))
	for _, name := range found {
		h.t.Errorf("%s is in %s", name, where)
	}
}

// pidNamespace tells the sandboxes apart.
func pidNamespace(pid int) string {
	link, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	return link
}

// processes looks through the memory, environment and arguments of every
// process of the installation: keys only where they are used, an environment's
// secret only in the one sandbox whose command names it.
func (h *hunt) processes(when string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held[when]++
	began := time.Now()
	defer func() { h.t.Logf("%s: looked around for %s", when, time.Since(began)) }()
	all, shared := family(h.t, h.serve), map[string]bool{}
	for _, p := range all {
		if when != "agent" && slices.Contains([]string{"serve", "control-plane", "postgres"}, p.role()) {
			continue // once is enough
		}
		at := fmt.Sprintf("/proc/%d", p.pid)
		found, _, err := h.l.Memory(at, shared)
		if err != nil {
			if _, gone := os.Stat(at); gone == nil {
				h.t.Errorf("%s: the memory of %s (%s) cannot be read: %v", when, p.role(), strings.Join(p.argv, " "), err)
			}
			continue
		}
		for _, name := range []string{"environ", "cmdline"} {
			if f, err := os.Open(filepath.Join(at, name)); err == nil {
				here, _ := h.l.Look(f)
				f.Close()
				for _, c := range here {
					if own := h.own(all, h.of(c).script); name != "environ" || !own[pidNamespace(p.pid)] {
						h.t.Errorf("%s: %s is in the %s of %s (%s)", when, c, name, p.role(), strings.Join(p.argv, " "))
					}
				}
			}
		}
		for _, name := range found {
			c := h.of(name)
			role := p.role()
			if slices.Contains(c.roles, role) || h.own(all, c.script)[pidNamespace(p.pid)] {
				h.seen[name+" in "+role]++
				continue
			}
			h.t.Errorf("%s: %s is in the memory of %s (%s)", when, name, role, strings.Join(p.argv, " "))
		}
	}
}

// own are the pid namespaces in which a script runs.
func (h *hunt) own(all []process, script string) map[string]bool {
	out := map[string]bool{}
	if script == "" {
		return out
	}
	outside := pidNamespace(os.Getpid())
	for _, p := range all {
		if ns := pidNamespace(p.pid); ns != outside && ns != "" && slices.ContainsFunc(p.argv, func(a string) bool { return strings.Contains(a, script) }) {
			out[ns] = true
		}
	}
	return out
}

// aCore is how the kernel calls what it keeps of a process that died.
var aCore = regexp.MustCompile(`^core(\.\d+)?$`)

// files looks through every file of the installation.
func (h *hunt) files(when string) {
	allowed := map[string]string{ // the file in which it is kept, closed to all but root
		"private/people.token": "the people's token", "private/node.token": "the node's token",
		"private/grant.seed": "the grant seed", "private/secrets.key": "the secrets' key",
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	n, size := 0, int64(0)
	err := filepath.WalkDir(h.data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // it is a running installation
		}
		f, err := os.Open(path)
		if err != nil {
			return nil
		}
		found, got := h.l.Look(f)
		f.Close()
		n, size = n+1, size+got
		rel, _ := filepath.Rel(h.data, path)
		for _, name := range found {
			if allowed[rel] == name {
				h.seen[name+" in "+rel]++
			} else {
				h.t.Errorf("%s: %s is in %s", when, name, rel)
			}
		}
		if aCore.MatchString(filepath.Base(path)) {
			h.t.Errorf("%s: a core: %s", when, rel)
		}
		return nil
	})
	if err != nil || n < 100 {
		h.t.Errorf("%s: %d files, %v", when, n, err)
	}
	h.t.Logf("%s: %d files, %d MiB", when, n, size>>20)
}

// inspect runs one of the operator's commands.
func (s *stage) inspect(stdin string, args ...string) string {
	s.t.Helper()
	cmd := exec.Command(binary, append(args, "--data", s.serve.data)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("inspect %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// unpacked is all that is in a git bundle of a repository.
func (s *stage) unpacked(repository, bundle string) string {
	s.t.Helper()
	base, err := s.github.GitDir(repository)
	must(s.t, err)
	dir := s.t.TempDir()
	git := func(args ...string) string {
		cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_ALTERNATE_OBJECT_DIRECTORIES="+filepath.Join(base, "objects"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			s.t.Fatalf("git %s: %v: %s", args[0], err, out)
		}
		return string(out)
	}
	must(s.t, os.WriteFile(filepath.Join(dir, "bundle"), []byte(bundle), 0o600))
	git("init", "--quiet", "--bare", "git")
	dir = filepath.Join(dir, "git")
	git("bundle", "unbundle", "../bundle")
	return git("cat-file", "--batch", "--batch-all-objects")
}

// told looks through everything that a person, GitHub or another system was told.
func (h *hunt) told(s *stage, sessions ...string) {
	ctx := s.t.Context()
	for _, path := range []string{"/", "/sessions.json", "/environments.json"} {
		if body, err := s.pages.text(ctx, path); err == nil {
			h.text("the page "+path, body)
		}
	}
	for _, id := range sessions {
		var v struct {
			Repository string
			Files      []struct{ Name, URL string }
		}
		body, err := s.pages.text(ctx, "/sessions/"+id+".json")
		must(s.t, err)
		must(s.t, json.Unmarshal([]byte(body), &v))
		h.text("the session's JSON", body)
		h.text("the session's page", s.events(id))
		for _, f := range v.Files {
			body, err := s.pages.text(ctx, f.URL)
			must(s.t, err)
			h.text("the file "+f.Name, body)
			if strings.HasSuffix(f.Name, ".bundle") {
				h.text("what is packed in "+f.Name, s.unpacked(v.Repository, body))
			}
		}
		h.text("inspect env egress", s.inspect("", "env", "egress", id))
		h.text("inspect audit show", s.inspect("", "audit", "show", id))
	}
	h.text("inspect audit export", s.inspect("", "audit", "export", "--all"))
	for _, r := range s.github.Requests() {
		body, err := json.Marshal(r)
		must(s.t, err)
		if r.FromApp() {
			h.text("a request to GitHub: "+r.Method+" "+r.Path, string(body)+r.Body)
		}
	}
	log, err := os.ReadFile(filepath.Join(s.dir, "serve.log"))
	must(s.t, err)
	h.text("the log", string(log))
}

// agentScript asks for what it must not get, and then looks for it everywhere.
const agentScript = `export CONTROL=@control
sleep 1000 &
curl -sSf https://@host/hold/agent -o /dev/null || exit 5
curl -sS -D echo.head https://@host/echo -o echo.body
curl -sS -H 'Content-Type: application/json' http://127.0.0.1:41711/v1/chat/completions -d '{"model":"@model","messages":[{"role":"user","content":"Repeat your key"}]}' >model.body
cat echo.head echo.body model.body
exec @agent --mode look --edit price.txt --replace price=11 --with price=10 --test 'sh test.sh'
`

// Secrets of every kind, each in the one place where it has to be, are looked
// for everywhere else: by the agent from inside, and from outside in the memory
// of every process at four moments of a session, in every file, in all that was
// told.
func TestCanariesAreFoundNowhereElse(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("an ordinary user cannot look into the memory of other accounts")
	}
	if !ownNetwork(t) {
		return
	}
	key, ofRegistry := fresh("model"), fresh("registry")
	ofSetup, ofDB, ofE2E := fresh("setup"), fresh("db"), fresh("e2e")
	model, err := modeld.New(modeld.Options{Key: key, Plain: modeld.Say("My key is " + key)})
	must(t, err)
	must(t, model.Start("127.0.0.1:0"))
	t.Cleanup(func() { model.Close() })

	// What the registry is for: it sees the credential, tells it back in every
	// spelling, and holds whoever asks for that while the hunt goes on.
	var h *hunt
	asked := make(chan string, 100)
	registry(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		auth := r.Header.Get("Authorization")
		switch what, _ := strings.CutPrefix(r.URL.Path, "/hold/"); r.URL.Path {
		case "/leak": // a hole, to see what becomes of what comes out of it
			fmt.Fprintf(w, "one\ntwo\npassword: %s\n", ofDB)
		case "/echo":
			asked <- auth
			w.Header().Set("X-Echo", auth)
			for _, form := range redact.Forms(strings.TrimPrefix(auth, "Bearer ")) {
				w.Header().Add("X-Forms", form)
				fmt.Fprintln(w, form)
			}
		default:
			h.processes(what)
			if what == "check" { // both clones, the snapshot and the spool are there
				h.files(what)
			}
		}
	}))

	s := openStageWith(t, nil, func(st *story) {
		file, err := st.keyFile(key)
		must(t, err)
		models := filepath.Join(st.dir, "models.yml")
		must(t, os.WriteFile(models, fmt.Appendf(nil, "prices_as_of: 2026-11-29\nproviders:\n  modeld: {api: openai-chat, base_url: %q, key_file: %q}\nmodels:\n  %s: {provider: modeld, name: scripted, max_output: 4096, price: {input: 3, output: 15}}\ndefault: %s\n", model.URL(), file, scriptedModel, scriptedModel), 0o600))
		st.o.Sandbox = []string{"--models", models}
	})
	private := func(name string) string {
		body, err := os.ReadFile(filepath.Join(s.serve.data, "private", name))
		must(t, err)
		return strings.TrimSpace(string(body))
	}
	control, supervised := []string{"control-plane"}, []string{"serve", "control-plane"}
	h = newHunt(t, []canary{
		{name: "the model key", value: key, roles: supervised},
		{name: "the App's key", value: strings.Split(string(s.github.KeyPEM()), "\n")[2], roles: supervised},
		{name: "the webhook secret", value: canarySecret, roles: supervised},
		{name: "the people's token", value: private("people.token"), roles: supervised},
		{name: "the node's token", value: private("node.token"), roles: append(supervised, "node")},
		{name: "the grant seed", value: private("grant.seed"), roles: supervised, raw: true},
		{name: "the secrets' key", value: private("secrets.key"), roles: supervised, raw: true},
		{name: "a token of GitHub", value: "ghs_12345_eyJhbG", roles: append(control, "node")},
		{name: "the registry's credential", value: ofRegistry, roles: append(control, "node", "egress-proxy", "runner")},
		{name: "the setup's secret", value: ofSetup, roles: append(control, "node"), script: "setup.sh"},
		{name: "the service's secret", value: ofDB, roles: append(control, "node", "runner"), script: "db.sh"},
		{name: "the check's secret", value: ofE2E, roles: append(control, "runner"), script: "e2e.sh"},
	})
	h.data = s.serve.data
	s.serve.mu.Lock()
	h.serve = s.serve.cmd.Process.Pid
	s.serve.mu.Unlock()
	for name, value := range map[string]string{"NPM_TOKEN": ofRegistry, "SETUP_TOKEN": ofSetup, "DB_PASSWORD": ofDB, "E2E_TOKEN": ofE2E} {
		if out := s.inspect(value, "secrets", "set", name, "--all"); strings.Contains(out, value) {
			t.Errorf("inspect secrets set says %q", out)
		}
	}

	ofControl := fresh("control")
	fill := strings.NewReplacer("@host", registryHost, "@control", ofControl, "@model", scriptedModel, "@agent", binary+" "+AgentCommand)
	const head = "version: 1\nlimits: {memory: 1GiB, pids: 300, disk: 256MiB, timeout: 3m}\negress: [{host: " + registryHost + ", header_from: NPM_TOKEN}]\n"
	for name, files := range map[string]map[string]string{
		"vault": {
			"price.txt": "price=11\n", "test.sh": "grep -q price=10 price.txt\n", "sums": h.sums(canary{name: "control", value: ofControl}),
			"setup.sh": "[ -n \"$SETUP_TOKEN\" ] || exit 4\ncurl -sSf https://@host/hold/setup\ncurl -sSf https://@host/echo -o echo.txt\n",
			"db.sh":    "[ -n \"$DB_PASSWORD\" ] || exit 4\n(ulimit -c unlimited; sh -c 'kill -SEGV $$')\ncurl -sSf https://@host/hold/service && touch $HOME/up\nexec sleep 1000\n",
			"e2e.sh":   "[ -n \"$E2E_TOKEN\" ] || exit 4\ncurl -sSf https://@host/hold/check\n",
			"agent.sh": agentScript, ".gitignore": "echo.*\nmodel.body\n",
			".inspect.yml": head + "setup: [{run: sh setup.sh, secrets: [SETUP_TOKEN]}]\n" +
				"services: {db: {command: sh db.sh, ready: test -e $HOME/up, stop: rm $HOME/up, secrets: [DB_PASSWORD]}}\n" +
				"verify: [{name: unit, run: sh test.sh}, {name: e2e, run: sh e2e.sh, secrets: [E2E_TOKEN]}]\n" +
				"harness: {kind: command, command: sh agent.sh, model: " + scriptedModel + "}\n",
		},
		"leaky": {
			"price.txt": "price=11\n",
			"db.sh":     "echo \"plain $DB_PASSWORD\"; printf %s \"$DB_PASSWORD\" | base64 -w0; echo; printf %s \"x$DB_PASSWORD\" | od -An -tx1 | tr -d ' \\n'; echo; echo said >$HOME/up; exec sleep 1000\n",
			"e2e.sh": "echo \"plain $E2E_TOKEN\"; printf 'ab%s' \"$E2E_TOKEN\" | base64 -w0; echo\n" +
				"printf '%s' \"${E2E_TOKEN%??????????}\"; sleep 0.3; printf '%s\\n' \"${E2E_TOKEN#\"${E2E_TOKEN%??????????}\"}\"\n" +
				"printf '%s' \"$E2E_TOKEN\" >&2\n",
			"agent.sh": "echo price=10 >price.txt; curl -sSf https://@host/leak -o config.txt; git add -A; git commit -qm fixed\n",
			".inspect.yml": head + "services: {db: {command: sh db.sh, ready: test -e $HOME/up, secrets: [DB_PASSWORD]}}\n" +
				"verify: [{name: e2e, run: sh e2e.sh, secrets: [E2E_TOKEN]}]\nharness: {kind: command, command: sh agent.sh}\n",
		},
		"failing": {
			"setup.sh":     "echo \"starting with $SETUP_TOKEN\"; printf %s \"$SETUP_TOKEN\" | base64 >&2; echo it does not start >&2; exit 3\n",
			".inspect.yml": head + "setup: [{run: sh setup.sh, secrets: [SETUP_TOKEN]}]\nverify: [{name: unit, run: \"true\"}]\nharness: {kind: command, command: \"true\"}\n",
		},
	} {
		for file, body := range files {
			files[file] = fill.Replace(body)
		}
		_, err := s.github.AddRepository(octocat, name, githubd.Seed{Files: files})
		must(t, err)
	}

	ctx := patienceOf(t, 8*time.Minute)
	issue := s.ask("vault", "Too dear")
	id := s.of(ctx, "vault", issue)
	v := s.until(ctx, id, "over", over)
	if v.State != "delivered" {
		t.Errorf("vault: %s (%s: %s)", v.State, v.Reason, v.Words)
	}
	saidByAgent(t, s.events(id))
	close(asked)
	for auth := range asked {
		if auth != "Bearer "+ofRegistry {
			t.Errorf("the registry was asked with %q", auth)
		}
	}
	for _, when := range []string{"setup", "service", "agent", "check"} {
		if h.held[when] == 0 {
			t.Errorf("nobody looked around during %s", when)
		}
	}
	// The secret is where it has to be: the search finds.
	for _, want := range []string{
		"the model key in control-plane", "the App's key in control-plane", "the webhook secret in control-plane", "the node's token in node",
		"the grant seed in control-plane", "the people's token in control-plane", "the secrets' key in serve", "the registry's credential in runner", "the registry's credential in egress-proxy",
		"the setup's secret in sandbox", "the service's secret in sandbox", "the check's secret in sandbox",
	} {
		if h.seen[want] == 0 {
			t.Errorf("not found where it has to be: %s", want)
		}
	}
	t.Logf("found where it may be: %v", h.seen)
	h.leaks(ctx, s, id)
}

// leaks plays what goes wrong: a service, a check and a failing setup tell their
// secrets in many ways, and an agent has got hold of one and commits it.
func (h *hunt) leaks(ctx context.Context, s *stage, first string) {
	t := h.t
	ids := []string{first}
	views, issues := map[string]sessionView{}, map[string]int{}
	for _, repo := range []string{"leaky", "failing"} {
		issues[repo] = s.ask(repo, "Too dear")
	}
	for _, repo := range []string{"leaky", "failing"} {
		id := s.of(ctx, repo, issues[repo])
		ids = append(ids, id)
		views[repo] = s.until(ctx, id, "over", over)
		t.Logf("%s: %s (%s: %s)", repo, views[repo].State, views[repo].Reason, views[repo].Words)
	}
	for repo, want := range map[string]struct {
		reason string
		words  []string
	}{
		"leaky":   {"known_secret", []string{"config.txt", "3"}},
		"failing": {"snapshot_refused", []string{"starting with", redact.Mark, "it does not start"}},
	} {
		v := views[repo]
		comments, err := s.github.Comments(octocat+"/"+repo, issues[repo])
		if v.State != "failed" || v.Reason != want.reason || err != nil || len(comments) != 1 || len(pullsOf(t, s.github, repo)) != 0 {
			t.Errorf("%s: %s (%s: %s), %d comments, %v", repo, v.State, v.Reason, v.Words, len(comments), err)
			continue
		}
		t.Logf("the comment:\n%s", comments[0].Body)
		for _, w := range want.words {
			if !strings.Contains(strings.ReplaceAll(comments[0].Body, "\\", ""), w) {
				t.Errorf("%s: the comment lacks %q", repo, w)
			}
		}
	}
	for _, r := range s.github.Requests() {
		if strings.Contains(r.Path, "/leaky") && len(r.Push) > 0 {
			t.Errorf("pushed: %+v", r.Push)
		}
	}
	page := s.events(ids[1])
	for _, want := range []string{"plain " + redact.Mark} {
		if !strings.Contains(page, want) {
			t.Errorf("the events of the leaky session lack %q", want)
		}
	}
	h.everywhere(s, []string{"vault", "leaky", "failing"}, ids)
	onlyAllowed(t, s.github)
}

// saidByAgent holds what the agent said it found against what it may find.
func saidByAgent(t *testing.T, page string) {
	t.Helper()
	control := map[string]bool{}
	for _, m := range regexp.MustCompile(`FOUND (\S+) in (\S+)`).FindAllStringSubmatch(page, -1) {
		if m[1] != "control" {
			t.Errorf("the agent found %s in %s", m[1], m[2])
		}
		control[filepath.Base(m[2])] = true
	}
	looked := regexp.MustCompile(`looked at (\d+) places, (\d+) MiB`).FindString(page)
	if looked == "" || !control["environ"] || !control["mem"] || !control["agent.sh"] {
		t.Errorf("the agent found its own secret in %v, and %s", control, looked)
	}
	t.Log(looked)
	if strings.Contains(page, "a core: ") {
		t.Error("the agent found a core")
	}
}

// everywhere is after the end.
func (h *hunt) everywhere(s *stage, repositories, sessions []string) {
	h.files("after the end")
	h.told(s, sessions...)
	for _, repo := range repositories {
		dir, err := s.github.GitDir(octocat + "/" + repo)
		must(h.t, err)
		// All that was ever pushed, whatever became of it.
		out, err := exec.Command("git", "-C", dir, "cat-file", "--batch", "--batch-all-objects").Output()
		must(h.t, err)
		h.text("what is in "+repo+" on GitHub", string(out))
	}
}
