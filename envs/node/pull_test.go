package node_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"inspect/envs/image/pull"
	"inspect/envs/node"
)

// pullMain is what fetches images in these tests: the one registry is on this
// machine's loopback.
func pullMain() int {
	line, err := bufio.NewReader(os.Stdin).ReadBytes('\n')
	var c pull.Config
	if err != nil || json.Unmarshal(line, &c) != nil {
		fmt.Fprintln(os.Stderr, "a bad configuration")
		return 2
	}
	c.Reach.Resolve = map[string]string{"registry.egress.test": "127.0.0.1"}
	c.Reach.AllowAddresses = []string{"127.0.0.1"}
	if roots, err := os.ReadFile(rootsFile(os.Getppid())); err == nil {
		c.Reach.Roots = string(roots)
	}
	if line, err = json.Marshal(c); err != nil {
		panic(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	go func() {
		_, _ = w.Write(append(line, '\n'))
		w.Close()
	}()
	os.Stdin = r
	return pull.Main(nil)
}

// privateRegistry holds one image of a repository, for octocat alone, and counts
// what is asked for. Before it answers for a blob it calls look.
func privateRegistry(t *testing.T, password string, look func(), programs ...string) (ref string, asked func() map[string]int) {
	t.Helper()
	archive, _ := savedImage(t, programs...)
	im, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }, nil)
	must(t, err)
	blobs := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	direct := httptest.NewServer(blobs)
	defer direct.Close()
	at, err := name.ParseReference(strings.TrimPrefix(direct.URL, "http://")+"/octocat/dev", name.Insecure)
	must(t, err)
	must(t, remote.Write(at, im))
	digest, err := im.Digest()
	must(t, err)
	var mu sync.Mutex
	count := map[string]int{}
	port := hostOf(t, "registry.egress.test", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if user, p, ok := r.BasicAuth(); !ok || user != "octocat" || p != password {
			rw.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		if strings.Contains(r.URL.Path, "/blobs/") {
			look()
			mu.Lock()
			count[r.URL.Path]++
			mu.Unlock()
		}
		blobs.ServeHTTP(rw, r)
	}))
	return fmt.Sprintf("registry.egress.test:%d/octocat/dev@%s", port, digest), func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		return count
	}
}

// registryAuth is a file with octocat's password.
func registryAuth(t *testing.T, ref, password string) string {
	t.Helper()
	host, _, _ := strings.Cut(ref, "/")
	b, err := json.Marshal(map[string]any{"auths": map[string]any{host: map[string]string{"username": "octocat", "password": password}}})
	must(t, err)
	path := filepath.Join(t.TempDir(), "config.json")
	must(t, os.WriteFile(path, b, 0o600))
	return path
}

// The image that the operator's policy names is fetched from its registry, once
// for two refreshes at once, by an account without rights; the credential is in
// no sandbox, no file, no argument and not in the log.
func TestImageFromItsRegistry(t *testing.T) {
	w, said := newWorld(t), &overheard{}
	look := func() {
		for _, pid := range pidsOf(pull.Command) {
			st, err := os.Stat("/proc/" + pid + "/comm")
			if err != nil {
				continue // it has ended
			}
			status, err := os.ReadFile("/proc/" + pid + "/status")
			must(t, err)
			account, _ := sandboxAccount()
			if os.Geteuid() == 0 && !strings.Contains(string(status), fmt.Sprintf("Uid:\t%d\t", account+4)) {
				t.Errorf("it runs as: %s, %v", status, st.Sys().(*syscall.Stat_t).Uid)
			}
			for _, name := range []string{"cmdline", "environ"} {
				if b, err := os.ReadFile(filepath.Join("/proc", pid, name)); err != nil || bytes.Contains(b, []byte(canary)) {
					t.Errorf("%s of what fetches: %q %v", name, b, err)
				}
			}
		}
	}
	ref, asked := privateRegistry(t, canary, look, imagePrograms...)
	w.start(func(o *node.Options) {
		o.RegistryAuth, o.Refreshes = registryAuth(t, ref, canary), 2
		o.Log = slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	for i := range 2 {
		work := w.refreshWork(int64(i+1), fmt.Sprintf("snap-%d", i+1), "cat /etc/image >of-image")
		work.Refresh.Environment = fmt.Sprintf("env-%d", i+1)
		work.Refresh.Image, work.Refresh.Pull = ref, true
		w.plane.give(work)
	}
	for range 2 {
		select {
		case <-w.plane.offers:
		case r := <-w.plane.results:
			t.Fatalf("the refresh failed: %s\n%s", r.Words, said)
		case <-time.After(patience):
			t.Fatalf("no offer: %s", said)
		}
	}
	if len(asked()) != 2 { // its configuration and its one layer
		t.Errorf("asked for: %v", asked())
	}
	for path, n := range asked() {
		if n != 1 {
			t.Errorf("%s was fetched %d times", path, n)
		}
	}
	if all := w.listed("image"); len(all) != 1 || len(w.listed("base")) != 0 {
		t.Errorf("left are the images %q and the bases %q", all, w.listed("base"))
	}
	if strings.Contains(said.String(), canary) {
		t.Error("the credential is in the log")
	}
	must(t, filepath.WalkDir(w.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(canary)) {
			t.Errorf("the credential is in %s", path)
		}
		return err
	}))
}

// What cannot be fetched is said in words, and leaves nothing.
func TestImageThatCannotBeFetched(t *testing.T) {
	w := newWorld(t)
	ref, _ := privateRegistry(t, canary, func() {}, "cat")
	auth := registryAuth(t, ref, "wrong")
	w.start(func(o *node.Options) { o.RegistryAuth = auth })
	other := ref[:len(ref)-64] + strings.Repeat("0", 64)
	var id int64
	fails := func(image string, pulled bool, words string) {
		t.Helper()
		id++
		work := w.refreshWork(id, fmt.Sprintf("snap-%d", id))
		work.Refresh.Image, work.Refresh.Pull = image, pulled
		w.plane.give(work)
		select {
		case <-w.plane.offers:
			t.Errorf("%s: it was offered", words)
		case r := <-w.plane.results:
			if !strings.Contains(r.Words, words) || strings.Contains(r.Words, canary) {
				t.Errorf("%q lacks %q", r.Words, words)
			}
		case <-time.After(patience):
			t.Fatal("no result")
		}
	}
	fails(ref, false, "name it under images in the operator's policy")
	fails(ref, true, "with the credential that the node has")
	fails("dev@sha256:"+strings.Repeat("0", 64), true, "says no registry")
	must(t, os.Chmod(auth, 0o644))
	fails(ref, true, "chmod 600")
	must(t, os.Remove(auth))
	must(t, os.Rename(registryAuth(t, ref, canary), auth)) // it is read anew
	fails(other, true, "was it deleted")
	fails("nowhere.egress.test/dev@sha256:"+strings.Repeat("0", 64), true, "could not be resolved")
	if left := append(w.listed("image"), w.listed("base")...); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
}
