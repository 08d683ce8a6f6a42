package dialer_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"inspect/envs/harness/harnesstest"
	"inspect/envs/proc"
	"inspect/envs/sandbox/dialer"
	"inspect/envs/sandbox/stream"
)

func TestMain(m *testing.M) { harnesstest.Main(m) }

func TestDial(t *testing.T) {
	box := harnesstest.NewBox(t, "/usr/bin/env", http.NotFoundHandler(), func(dir string) {
		if err := os.WriteFile(dir+"/page", []byte(strings.Repeat("x", 1<<20)), 0o644); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := dialer.Dial(t.Context(), box, "127.0.0.1:8000"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Fatalf("nobody listens, got %v", err)
	}
	for _, far := range []string{"10.0.0.1:80", "169.254.169.254:80", "example.com:80", "nonsense"} {
		if _, err := dialer.Dial(t.Context(), box, far); err == nil {
			t.Errorf("%s was connected to", far)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() {
		_, err := box.Run(ctx, stream.Exec{Argv: []string{"python3", "-m", "http.server", "8000", "--bind", "127.0.0.1"}})
		over <- err
	}()
	err := proc.Retry(t.Context(), proc.System(), proc.Policy{First: 20 * time.Millisecond, Attempts: 300}, func(ctx context.Context) error {
		c, err := dialer.Dial(ctx, box, "localhost:8000")
		if err == nil {
			err = c.Close()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
		return dialer.Dial(ctx, box, addr)
	}}}
	for range 3 {
		res, err := client.Get("http://127.0.0.1:8000/page")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || len(body) != 1<<20 {
			t.Fatalf("%d bytes, %v", len(body), err)
		}
	}
	// A deadline ends a read that nothing comes for.
	c, err := dialer.Dial(t.Context(), box, "127.0.0.1:8000")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	// The end of the server is the end of the connection.
	stop()
	<-over
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("got %v", err)
	}
}
