package main

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// Tokens and secrets do not travel in clear to another machine.
func TestControlIsNotInClear(t *testing.T) {
	for address, ok := range map[string]bool{
		"http://127.0.0.1:7462": true, "http://127.9.9.9:7462": true, "http://[::1]:7462": true, "http://localhost:7462": true,
		"https://inspect.example:7462": true,
		"http://inspect.example:7462":  false, "http://10.0.0.1:7462": false, "http://0.0.0.0:7462": false, "http://[::]:7462": false,
		"http://localhost.example:7462": false, "http://127.0.0.1@inspect.example:7462": false, "http://127.1:7462": false,
		"HTTP://inspect.example:7462": false, "ftp://127.0.0.1": false, "127.0.0.1:7462": false, "": false,
	} {
		cmd := nodeCommand()
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetArgs([]string{"--control", address})
		var usage usageError
		err := cmd.ExecuteContext(context.Background()) // the token is asked for next
		if !errors.As(err, &usage) || strings.Contains(err.Error(), "--control") == ok {
			t.Errorf("%q: %v", address, err)
		}
	}
	c := serveConfig{AppID: 1, KeyFile: "k", SecretFile: "s", Limits: "enforce", LogFormat: "text", MaxSessions: 1, Labels: []string{"inspect"}}
	for address, ok := range map[string]bool{"127.0.0.1:7462": true, "[::1]:0": true, "localhost:7462": true, ":7462": false, "0.0.0.0:7462": false, "10.0.0.1:7462": false, "": false} {
		c.Machines = address
		if err := c.check(); err != nil && strings.Contains(err.Error(), "--listen-machines") == ok || err == nil && !ok {
			t.Errorf("%q: %v", address, err)
		}
	}
}
