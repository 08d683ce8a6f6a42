package egress

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inspect/envs/sandbox"
	"inspect/envs/sandbox/sandboxtest"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// registries is one HTTPS server for everything a setup fetches, told apart by
// the names it is called by.
func registries(t *testing.T, ca *authority) (port int) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("plain.t.example/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello ", r.URL.Path) })

	// npm: a package of one file.
	var tgz bytes.Buffer
	z := gzip.NewWriter(&tgz)
	tw := tar.NewWriter(z)
	for name, body := range map[string]string{"package/package.json": `{"name":"lib","version":"1.0.0"}`, "package/index.js": "module.exports = 42\n"} {
		must(t, tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(body))}))
		_, err := tw.Write([]byte(body))
		must(t, err)
	}
	must(t, tw.Close())
	must(t, z.Close())
	sum := sha512.Sum512(tgz.Bytes())
	mux.HandleFunc("registry.t.example/lib", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"name":"lib","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"lib","version":"1.0.0","dist":{"tarball":"https://%s/lib.tgz","integrity":"sha512-%s"}}}}`,
			r.Host, base64.StdEncoding.EncodeToString(sum[:]))
	})
	mux.HandleFunc("registry.t.example/lib.tgz", func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(tgz.Bytes()) })

	// go: a module proxy with one module.
	var zipped bytes.Buffer
	zw := zip.NewWriter(&zipped)
	for name, body := range map[string]string{"go.mod": "module mod.example/lib\n", "lib.go": "package lib\n\nconst Answer = 42\n"} {
		f, err := zw.Create("mod.example/lib@v1.0.0/" + name)
		must(t, err)
		_, err = f.Write([]byte(body))
		must(t, err)
	}
	must(t, zw.Close())
	for path, body := range map[string]string{
		"list": "v1.0.0\n", "v1.0.0.info": `{"Version":"v1.0.0","Time":"2026-01-01T00:00:00Z"}`, "v1.0.0.mod": "module mod.example/lib\n", "v1.0.0.zip": zipped.String(),
	} {
		mux.HandleFunc("goproxy.t.example/mod.example/lib/@v/"+path, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, body) })
	}

	// git: a repository over smart HTTP.
	repos := t.TempDir()
	script := `set -e; cd "$1"; git init -q -b main w; cd w; echo content >f; git add f; git commit -qm one; git clone -q --bare . ../repo.git`
	cmd := exec.Command("sh", "-c", script, "sh", repos)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + repos, "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=octocat", "GIT_AUTHOR_EMAIL=octocat@example.com",
		"GIT_COMMITTER_NAME=octocat", "GIT_COMMITTER_EMAIL=octocat@example.com"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	mux.Handle("git.t.example/", &cgi.Handler{
		Path: "/usr/lib/git-core/git-http-backend",
		Env:  []string{"GIT_PROJECT_ROOT=" + repos, "GIT_HTTP_EXPORT_ALL=1", "HOME=" + repos, "GIT_CONFIG_NOSYSTEM=1", "PATH=/usr/bin:/bin"},
	})
	srv := ca.server(t, mux, "plain.t.example", "registry.t.example", "goproxy.t.example", "git.t.example", "other.example")
	return portOf(srv.Listener.Addr())
}

// insideBox is a sandbox whose one way out is a proxy of the test's.
func insideBox(t *testing.T, allow []string, resolve *names, files map[string][]byte) (run func(script string) (string, int), told func() []wire.Egress) {
	t.Helper()
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Fatalf("make setup installs bubblewrap: %v", err)
	}
	dir, err := os.MkdirTemp("/tmp", "inspect-egress-test-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 {
		uid, gid = 300_000+os.Getpid()%100_000, 300_000+os.Getpid()%100_000
	}
	work, home := filepath.Join(dir, "work"), filepath.Join(dir, "home")
	for _, d := range []string{work, home} {
		must(t, os.Mkdir(d, 0o755))
		must(t, os.Chown(d, uid, gid))
	}
	for name, content := range files {
		must(t, os.WriteFile(filepath.Join(work, name), content, 0o644))
	}
	root := fmt.Sprintf("/inspect-egress-test-%d", os.Getpid())
	launcher, err := sandbox.New(sandbox.Options{
		Binary: sandboxtest.Init(t), RunDir: filepath.Join(dir, "run"), CgroupRoot: root, UID: uid, GID: gid, BestEffort: os.Getuid() != 0,
	})
	must(t, err)
	t.Cleanup(func() { must(t, launcher.Close()) })

	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	must(t, err)
	must(t, os.Chmod(socket, 0o666))
	w := &world{t: t}
	p, err := New(Options{Allow: allow, Resolver: resolve, AllowAddresses: anywhere, Decide: func(e wire.Egress) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.told = append(w.told, e)
	}})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- p.Serve(ctx, l) }()
	t.Cleanup(func() { cancel(); must(t, <-served) })

	ours, theirs, err := stream.Pair()
	must(t, err)
	env := append(Environment(sandbox.EgressPort, ""),
		"SSL_CERT_FILE=/workspace/ca.pem", "CURL_CA_BUNDLE=/workspace/ca.pem", "GIT_SSL_CAINFO=/workspace/ca.pem",
		"NPM_CONFIG_CAFILE=/workspace/ca.pem", "NODE_EXTRA_CA_CERTS=/workspace/ca.pem")
	box, err := launcher.Start(t.Context(), sandbox.Spec{
		ID: "egress", Control: theirs, Env: env, Limits: wire.Limits{CPU: 2, MemoryBytes: 1 << 30, Pids: 200},
		Mounts: []sandbox.Mount{
			{Source: work, Target: sandbox.Workspace, Writable: true}, {Source: home, Target: sandbox.Home, Writable: true},
		},
		Forwards: []sandbox.Forward{{Port: sandbox.EgressPort, Socket: socket, Named: true}},
	})
	must(t, err)
	c := stream.NewClient(ours)
	t.Cleanup(func() { _ = c.Close(); box.Wait() })
	return func(script string) (string, int) {
			t.Helper()
			var out bytes.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			x, err := c.Run(ctx, stream.Exec{Argv: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
			if err != nil {
				t.Fatalf("%s: %v", script, err)
			}
			return out.String(), x.Code
		}, func() []wire.Egress {
			w.mu.Lock()
			defer w.mu.Unlock()
			told := w.told
			w.told = nil
			return told
		}
}

// there looks whether the sandbox can show a program, which .ci/setup installs.
func there(t *testing.T, program string) {
	t.Helper()
	where, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("make test installs what is missing: %v", err)
	}
	if !strings.HasPrefix(where, "/usr/") {
		t.Skipf("%s is at %s, and a sandbox shows the programs below /usr", program, where)
	}
}

// The programs that setups use, in a real sandbox, through its one way out.
func TestRealClients(t *testing.T) {
	ca := newAuthority(t)
	port := registries(t, ca)
	all := &names{then: func(string) []string { return []string{"127.0.0.1"} }}
	run, told := insideBox(t, []string{fmt.Sprintf("*.t.example:%d", port)}, all, map[string][]byte{"ca.pem": ca.pem})
	for _, c := range []struct {
		program, script, want string
		host, command         string
	}{
		{"curl", "curl -sS https://plain.t.example:%d/x", "hello /x", "plain.t.example", "curl -sS https://plain.t.example:"},
		{"git", "git clone -q https://git.t.example:%d/repo.git repo && cat repo/f", "content\n", "git.t.example", "git-remote-https origin https://git.t.example:"},
		{"go", "mkdir m && cd m && export GOSUMDB=off GOFLAGS=-mod=mod GOPROXY=https://goproxy.t.example:%d && go mod init m 2>/dev/null; go get mod.example/lib@v1.0.0 2>/dev/null && cat go.sum | wc -l", "2\n", "goproxy.t.example", "go get mod.example/lib@v1.0.0"},
		{"npm", "mkdir n && cd n && npm install --silent --registry https://registry.t.example:%d lib && node -p 'require(\"lib\")'", "42\n", "registry.t.example", "npm install"},
	} {
		t.Run(c.program, func(t *testing.T) {
			there(t, c.program)
			out, code := run(fmt.Sprintf(c.script, port))
			if code != 0 || !strings.HasSuffix(out, c.want) {
				t.Errorf("status %d: %s", code, out)
			}
			decisions := told()
			if len(decisions) == 0 {
				t.Fatal("nothing was decided")
			}
			for _, e := range decisions {
				if e.Host != c.host || e.Port != port || !e.Allowed || !strings.Contains(e.Command, c.command) {
					t.Errorf("%+v", e)
				}
			}
		})
	}
	// Refused ones fail soon and say by whom they were refused, as far as the
	// program shows it.
	for _, c := range []struct{ program, script, want string }{
		{"curl", "curl -sS https://other.example/", "403"},
		{"curl", "curl -sS http://other.example/", `egress: ["other.example"]`},
		{"git", "git clone -q https://other.example/x.git", "403"},
		{"go", "cd m && GOPROXY=https://other.example go list -m mod.example/other@v1.0.0", "egress to other.example:443 refused by Inspect"},
		{"npm", "cd n && npm install --registry https://other.example lib2", "403"},
	} {
		t.Run("refused "+c.script[:3]+c.script[len(c.script)-3:], func(t *testing.T) {
			there(t, c.program)
			begun := time.Now()
			out, code := run(c.script)
			if !strings.Contains(out, c.want) || code == 0 && !strings.Contains(c.script, "http://") {
				t.Errorf("status %d: %s", code, out)
			}
			// npm needs many seconds on a busy machine; if it tried again it would
			// first wait for 70 (fetch-retry-mintimeout, fetch-retry-factor).
			if d := time.Since(begun); d > time.Minute {
				t.Errorf("it took %s", d)
			}
			t.Logf("after %s", time.Since(begun))
			decisions := told()
			for _, e := range decisions {
				if e.Host != "other.example" || e.Allowed || e.Reason != NotListed {
					t.Errorf("%+v", e)
				}
			}
			if len(decisions) == 0 {
				t.Error("nothing was decided")
			}
		})
	}
	// Java programs read no variables, and are told by properties.
	if _, err := os.Stat("/usr/bin/mvn"); err == nil {
		pom := `<project><modelVersion>4.0.0</modelVersion><groupId>a</groupId><artifactId>b</artifactId><version>1</version></project>`
		out, _ := run("mkdir j && cd j && echo '" + pom + "' >pom.xml && mvn -q -B compile 2>&1")
		if decisions := told(); len(decisions) == 0 || decisions[0].Host != "repo.maven.apache.org" {
			t.Errorf("Maven: %+v\n%s", decisions, out)
		}
	}
	// There is no way past the proxy.
	if out, code := run("curl -sS --noproxy '*' https://plain.t.example/ || curl -sS --noproxy '*' https://203.0.113.1/"); code == 0 {
		t.Errorf("past the proxy: %s", out)
	}
	if len(told()) > 0 {
		t.Error("what did not reach the proxy was decided")
	}
}
