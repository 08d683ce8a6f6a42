package nomad

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"inspect/scheduler"
	"inspect/scheduler/enginetest"
)

// What is wrong with a cluster is told in the same words by the double and by the
// agent at NOMAD_ADDR. Of tokens such an agent is asked if it has any.
func TestRealTrouble(t *testing.T) {
	addr := cluster(t)
	start := func(t *testing.T, edit func(*Options)) error {
		t.Helper()
		o := options(t, addr)
		edit(&o)
		e := asking(t, o)
		ref, err := e.Start(t.Context(), enginetest.Attempt())
		if err == nil {
			t.Errorf("it is started as %s", ref)
			_ = e.Forget(context.WithoutCancel(t.Context()), ref)
		}
		return err
	}
	said := func(t *testing.T, err error, want string) {
		t.Helper()
		var trouble *scheduler.EngineTrouble
		if !errors.As(err, &trouble) || trouble.Words != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
	t.Run("no namespace", func(t *testing.T) {
		said(t, start(t, func(o *Options) { o.Namespace = "inspect-missing" }), "Nomad has no namespace inspect-missing")
	})
	t.Run("no node pool", func(t *testing.T) {
		said(t, start(t, func(o *Options) { o.NodePool = "inspect-missing" }), "Nomad has no node pool inspect-missing")
	})
	t.Run("away", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		nobody := "http://" + l.Addr().String()
		l.Close()
		said(t, start(t, func(o *Options) { o.Address = nobody }), "Nomad does not answer")
	})
	t.Run("no node", func(t *testing.T) {
		e := running(t, options(t, addr))
		a := enginetest.Attempt()
		a.Memory = 1 << 50
		ref, err := e.Start(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Forget(context.WithoutCancel(t.Context()), ref) })
		waitFor(t, "words", func() bool {
			w, err := e.Waits(t.Context(), ref)
			return err == nil && w.Waiting && w.Never && strings.HasPrefix(w.Words, "no node with ")
		})
	})
	if os.Getenv("NOMAD_ADDR") == "" || os.Getenv("NOMAD_TOKEN") == "" {
		return
	}
	t.Run("a token nobody knows", func(t *testing.T) {
		said(t, start(t, func(o *Options) {
			o.Token = func() (string, error) { return "00000000-0000-0000-0000-000000000002", nil }
		}), "Nomad does not know the token that Inspect has for it")
	})
	t.Run("an expired token", func(t *testing.T) {
		token := shortLived(t, addr)
		use := func(o *Options) { o.Token = func() (string, error) { return token, nil } }
		waitFor(t, "its end", func() bool {
			c, err := api.NewClient(&api.Config{Address: addr, SecretID: token})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, _, err = c.ACLTokens().Self(nil)
			return err != nil
		})
		err := start(t, use)
		var trouble *scheduler.EngineTrouble
		// After a while Nomad has forgotten that there was such a token.
		if !errors.As(err, &trouble) || !strings.Contains(trouble.Words, "has expired") && !strings.Contains(trouble.Words, "does not know the token") {
			t.Errorf("%v", err)
		}
	})
}

// shortLived makes a token that ends in a second.
func shortLived(t *testing.T, addr string) string {
	t.Helper()
	c, err := api.NewClient(&api.Config{Address: addr, SecretID: os.Getenv("NOMAD_TOKEN")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	got, _, err := c.ACLTokens().Create(&api.ACLToken{Name: "inspect-test", Type: "management", ExpirationTTL: time.Second}, nil)
	if err != nil {
		t.Fatalf("the agent must let a token end soon (acl { token_min_expiration_ttl = \"1s\" }): %v", err)
	}
	return got.SecretID
}
