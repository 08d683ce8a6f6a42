package egress

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inspect/envs/wire"
)

// proxyChild is the proxy as a process of its own.
type proxyChild struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	pipe   io.Closer
	out    *bufio.Reader
	stderr strings.Builder
	socket string
}

func startChild(t *testing.T, config string) *proxyChild {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	c := &proxyChild{cmd: exec.Command(self, Command), socket: filepath.Join(t.TempDir(), "s")}
	c.cmd.Env = []string{}
	c.cmd.Stderr = &c.stderr
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.socket, Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	must(t, err)
	l.Close()
	c.cmd.ExtraFiles = []*os.File{f}
	c.in, err = c.cmd.StdinPipe()
	must(t, err)
	out, err := c.cmd.StdoutPipe()
	must(t, err)
	c.pipe, c.out = out, bufio.NewReader(out)
	must(t, c.cmd.Start())
	f.Close()
	t.Cleanup(func() { _ = c.cmd.Process.Kill(); _ = c.cmd.Wait() })
	_, err = io.WriteString(c.in, config)
	must(t, err)
	return c
}

func TestChild(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "reached") }))
	defer plain.Close()
	port := portOf(plain.Listener.Addr())
	config, err := json.Marshal(Config{
		Allow: []string{fmt.Sprintf("a.example:%d", port)}, AllowAddresses: anywhere, Resolve: map[string]string{"a.example": "127.0.0.1"},
	})
	must(t, err)
	c := startChild(t, string(config)+"\n")
	if line, err := c.out.ReadString('\n'); line != "{}\n" {
		t.Fatalf("%q %v", line, err)
	}
	w := &world{t: t, socket: c.socket}
	if _, _, body := w.raw(fmt.Sprintf("GET http://a.example:%d/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", port)); body != "reached" {
		t.Errorf("%q", body)
	}
	if status, _, _ := w.raw("GET http://b.example/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); !strings.HasPrefix(status, "403") {
		t.Errorf("%q", status)
	}
	for _, want := range []wire.Egress{
		{Host: "a.example", Port: port, Allowed: true, Command: "npm ci"}, {Host: "b.example", Port: 80, Reason: NotListed, Command: "npm ci"},
	} {
		line, err := c.out.ReadBytes('\n')
		must(t, err)
		var got wire.Egress
		if err := json.Unmarshal(line, &got); err != nil || got != want {
			t.Errorf("%s %v, want %+v", line, err, want)
		}
	}
	tunnel := w.dial() // open at the end
	must(t, c.in.Close())
	if rest, err := io.ReadAll(c.out); len(rest) > 0 || err != nil {
		t.Errorf("%q %v", rest, err)
	}
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, c.stderr.String())
	}
	if _, err := tunnel.Read(make([]byte, 1)); err == nil {
		t.Error("a connection outlived the proxy")
	}
}

func TestChildRefuses(t *testing.T) {
	for name, c := range map[string]struct{ config, words string }{
		"nothing":   {"", "configuration"},
		"nonsense":  {"nonsense\n", "configuration"},
		"a bad one": {`{"allow":["*"]}` + "\n", "egress"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startChild(t, c.config)
			must(t, p.in.Close())
			if out, err := io.ReadAll(p.out); len(out) > 0 || err != nil {
				t.Errorf("it said %q %v", out, err)
			}
			if err := p.cmd.Wait(); err == nil || !strings.Contains(p.stderr.String(), c.words) {
				t.Errorf("%v: %s", err, p.stderr.String())
			}
		})
	}
	// Without a listener.
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self, Command)
	cmd.Stdin = strings.NewReader("{}\n")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "descriptor 3") {
		t.Errorf("%v: %s", err, out)
	}
}

// Nobody reads what it decides: it ends.
func TestChildOfADeadParent(t *testing.T) {
	c := startChild(t, "{}\n")
	if line, err := c.out.ReadString('\n'); line != "{}\n" {
		t.Fatalf("%q %v", line, err)
	}
	must(t, c.pipe.Close())
	conn, err := net.Dial("unix", c.socket)
	must(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "{}\nGET http://b.example/ HTTP/1.1\r\nHost: x\r\n\r\n")
	must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- c.cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("it goes on")
		_ = c.cmd.Process.Kill()
		<-ended
	}
}
