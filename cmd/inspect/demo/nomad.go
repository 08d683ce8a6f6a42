package demo

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Cluster is a Nomad cluster whose agent runs on this machine. The story looks
// at it by its own means.
type Cluster struct {
	Address, Token            string
	NodeToken                 string // of the node daemon, for the agent; empty: Token
	Namespace, Pool           string
	CAFile, CertFile, KeyFile string // PEM

	http *http.Client
	node string // name of this machine's node during the story
}

// ClusterFrom reads the variables that Nomad's own program knows: NOMAD_ADDR,
// NOMAD_TOKEN, NOMAD_NAMESPACE, NOMAD_CACERT, NOMAD_CLIENT_CERT and
// NOMAD_CLIENT_KEY. The token may also be in the file that NOMAD_TOKEN_FILE names;
// then NOMAD_TOKEN, if it is set, is what the node daemon shows the agent.
func ClusterFrom(getenv func(string) string, pool string) (*Cluster, error) {
	c := &Cluster{
		Address: getenv("NOMAD_ADDR"), Token: getenv("NOMAD_TOKEN"),
		Namespace: cmp.Or(getenv("NOMAD_NAMESPACE"), "default"), Pool: cmp.Or(pool, "default"),
		CAFile: getenv("NOMAD_CACERT"), CertFile: getenv("NOMAD_CLIENT_CERT"), KeyFile: getenv("NOMAD_CLIENT_KEY"),
	}
	if c.Address == "" {
		return nil, errors.New("NOMAD_ADDR is not set: give the address of the Nomad agent of this machine, such as http://127.0.0.1:4646")
	}
	if path := getenv("NOMAD_TOKEN_FILE"); path != "" {
		body, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("NOMAD_TOKEN_FILE: %w", err)
		}
		c.Token, c.NodeToken = strings.TrimSpace(string(body)), c.Token
	}
	return c, c.connect()
}

func (c *Cluster) connect() error {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return err
		}
		if conf.RootCAs = x509.NewCertPool(); !conf.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("%s holds no certificates", c.CAFile)
		}
	}
	if c.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return err
		}
		conf.Certificates = []tls.Certificate{cert}
	}
	c.http = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: conf}}
	return nil
}

// ask sends one request. The status is Nomad's.
func (c *Cluster) ask(ctx context.Context, method, path string) (status int, body []byte, err error) {
	sep := "?"
	if strings.Contains(path, "?") {
		sep = "&"
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(c.Address, "/")+path+sep+"namespace="+url.QueryEscape(c.Namespace), nil)
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("X-Nomad-Token", c.Token)
	res, err := c.http.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("ask Nomad: %w", err)
	}
	defer res.Body.Close()
	body, err = io.ReadAll(io.LimitReader(res.Body, 4<<20))
	return res.StatusCode, body, err
}

// runnerAccount is whom runners are started as: the account of installations, or
// nobody; the agent's own if this is not root.
func runnerAccount() (name, uid string, err error) {
	if os.Geteuid() != 0 {
		return "", "", nil
	}
	u, err := user.Lookup("inspect-runner")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return "", "", fmt.Errorf("an account for runners: %w", err)
		}
	}
	return u.Username, u.Uid, nil
}

// flags are those of serve.
func (st *story) clusterFlags() ([]string, error) {
	c := st.o.Nomad
	if c == nil {
		return nil, nil
	}
	if err := st.placeProgram(); err != nil { // for the runner's account, too
		return nil, err
	}
	account, uid, err := runnerAccount()
	if err != nil {
		return nil, err
	}
	c.node = "demo-" + strings.ToLower(strings.TrimPrefix(filepath.Base(st.dir), "inspect-demo-"))
	argv := []string{
		"--engine", "nomad", "--nomad-address", c.Address, "--nomad-namespace", c.Namespace, "--nomad-pool", c.Pool,
		"--nomad-binary", st.program, "--nomad-user=" + account, "--node-name", c.node,
		"--nomad-node-socket", filepath.Join(st.dir, "data", "node", "node.sock"),
	}
	if uid != "" {
		argv = append(argv, "--runner-uid", uid)
	}
	for flag, token := range map[string]string{"--nomad-token-file": c.Token, "--nomad-agent-token-file": c.NodeToken} {
		if token == "" {
			continue
		}
		path := filepath.Join(st.dir, flag[2:])
		if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
			return nil, err
		}
		argv = append(argv, flag, path)
	}
	for flag, path := range map[string]string{"--nomad-ca-file": c.CAFile, "--nomad-cert-file": c.CertFile, "--nomad-key-file": c.KeyFile} {
		if path != "" {
			argv = append(argv, flag, path)
		}
	}
	return argv, nil
}

// watchJob remembers the job of a session's attempt, and looks at it once while
// the attempt is at work.
func (st *story) watchJob(ctx context.Context, s sessionView) error {
	if st.o.Nomad == nil || s.Generation == 0 || s.Terminal {
		return nil
	}
	id := jobOf(s.Session, s.Generation)
	looked, known := st.jobs[id]
	if !known {
		st.jobs[id] = false
	}
	if looked || s.State != "working" {
		return nil
	}
	st.jobs[id] = true
	return st.lookAtJob(ctx, id)
}

// jobOf is the id of an attempt's job.
func jobOf(session string, generation int) string {
	return "inspect-" + session + "-g" + strconv.Itoa(generation)
}

// lookAtJob reads the job of an attempt as Nomad shows it to whoever may read
// jobs, and fails if anything in it is secret.
func (st *story) lookAtJob(ctx context.Context, id string) error {
	done := st.out.step("the job " + id + " is read back from Nomad")
	status, body, err := st.o.Nomad.ask(ctx, http.MethodGet, "/v1/job/"+id)
	if err != nil || status != http.StatusOK {
		return fmt.Errorf("read the job %s: %d %s: %w", id, status, body, err)
	}
	vstatus, variables, err := st.o.Nomad.ask(ctx, http.MethodGet, "/v1/vars?prefix=nomad/jobs/"+id)
	if err != nil || vstatus != http.StatusOK && vstatus != http.StatusForbidden && vstatus != http.StatusNotFound {
		return fmt.Errorf("read the variables of job %s: %d %s: %w", id, vstatus, variables, err)
	}
	secrets, err := st.secrets()
	if err != nil {
		return err
	}
	for name, value := range secrets {
		for _, text := range [][]byte{body, variables} {
			if strings.Contains(string(text), value) {
				return fmt.Errorf("the job %s holds the %s", id, name)
			}
		}
	}
	words, err := noPlaceForSecrets(body, variables)
	if err != nil {
		return fmt.Errorf("the job %s: %w", id, err)
	}
	done(fmt.Sprintf("nothing secret in it: none of %d values, %s", len(secrets), words))
	return nil
}

// noPlaceForSecrets looks at where a job could hold some.
func noPlaceForSecrets(job, variables []byte) (string, error) {
	var j struct {
		Meta       map[string]string
		Payload    []byte
		TaskGroups []struct {
			Meta  map[string]string
			Tasks []struct {
				Env, Meta map[string]string
				Templates []any
				Vault     any
				User      string
				Driver    string
			}
		}
	}
	if err := json.Unmarshal(job, &j); err != nil {
		return "", err
	}
	if s := strings.TrimSpace(string(variables)); strings.HasPrefix(s, "[") && s != "[]" {
		return "", errors.New("there are variables of it")
	}
	if len(j.TaskGroups) != 1 || len(j.TaskGroups[0].Tasks) != 1 {
		return "", errors.New("it is not one task")
	}
	t := j.TaskGroups[0].Tasks[0]
	if len(j.Payload)+len(t.Env)+len(t.Meta)+len(j.TaskGroups[0].Meta)+len(t.Templates) > 0 || t.Vault != nil {
		return "", errors.New("it has a payload, environment, meta of the task, templates or Vault")
	}
	return fmt.Sprintf("no environment, no variables; %s as %q", t.Driver, t.User), nil
}

// secrets are what must be nowhere but where it is needed.
func (st *story) secrets() (map[string]string, error) {
	out := map[string]string{}
	add := func(name, value string) {
		if value = strings.TrimSpace(value); len(value) >= 8 {
			out[name] = value
		}
	}
	hook, err := os.ReadFile(filepath.Join(st.dir, "webhook.secret"))
	if err != nil {
		return nil, err
	}
	add("webhook secret", string(hook))
	add("App's key", strings.Split(string(st.github.KeyPEM()), "\n")[1])
	add("GitHub token", "ghs_12345_")
	add("Nomad token", st.o.Nomad.Token)
	add("node daemon's Nomad token", st.o.Nomad.NodeToken)
	add("model's key", st.key)
	private := filepath.Join(st.dir, "data", "private")
	files, err := os.ReadDir(private)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if !f.Type().IsRegular() || filepath.Ext(f.Name()) == ".lock" {
			continue
		}
		body, err := os.ReadFile(filepath.Join(private, f.Name()))
		if err != nil {
			return nil, err
		}
		add("content of "+f.Name(), string(body))
	}
	return out, nil
}

// awaitCleared waits until Nomad has forgotten the session's jobs and the node
// its clones.
func (st *story) awaitCleared(ctx context.Context) error {
	done := st.out.step("Nomad forgets the job, the clones are discarded")
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for id := range st.jobs {
		err := await(ctx, "Nomad still has the job "+id, nil, func() (bool, error) {
			status, _, err := st.o.Nomad.ask(ctx, http.MethodGet, "/v1/job/"+id)
			return status == http.StatusNotFound, err
		})
		if err != nil {
			return err
		}
	}
	clones := filepath.Join(st.dir, "data", "node", "session")
	if err := await(ctx, "there are still clones in "+clones, nil, func() (bool, error) {
		left, err := os.ReadDir(clones)
		return len(left) == 0, err
	}); err != nil {
		return err
	}
	done("job purged, clones gone")
	return nil
}

// clearCluster removes what an interrupted story leaves in Nomad, and waits for
// its runners to end.
func (st *story) clearCluster(ctx context.Context) {
	if st.o.Nomad == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	for id := range st.jobs {
		_, _, err := st.o.Nomad.ask(ctx, http.MethodDelete, "/v1/job/"+id+"?purge=true")
		if err == nil {
			session, _, _ := strings.Cut(strings.TrimPrefix(id, "inspect-"), "-g")
			err = await(ctx, "its runner does not end", nil, func() (bool, error) { return findRunner(session) == 0, nil })
		}
		if err != nil {
			st.out.line("  job " + id + " may be left: " + err.Error())
			return
		}
	}
}
