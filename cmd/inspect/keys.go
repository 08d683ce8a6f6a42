package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// secretFile returns the content of a file in dir, made by create and written
// with mode 0600 if it is not there yet. dir must be private to this user.
func secretFile(dir, name string, create func() ([]byte, error)) ([]byte, error) {
	path := filepath.Join(dir, name)
	body, err := os.ReadFile(path)
	if err == nil {
		return body, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if body, err = create(); err != nil {
		return nil, err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, body, 0o600); err != nil {
		return nil, err
	}
	return body, os.Rename(tmp, path)
}

// randomToken is 32 random bytes in hexadecimal.
func randomToken() ([]byte, error) {
	b := make([]byte, 32)
	if _, err := rand.Read(b); err != nil {
		return nil, err
	}
	return []byte(hex.EncodeToString(b)), nil
}

// grantKey loads or makes the key with which the control plane signs grants.
func grantKey(dir string) (ed25519.PrivateKey, error) {
	body, err := secretFile(dir, "grant.seed", func() ([]byte, error) {
		seed := make([]byte, ed25519.SeedSize)
		_, err := rand.Read(seed)
		return []byte(hex.EncodeToString(seed)), err
	})
	if err != nil {
		return nil, err
	}
	seed, err := hex.DecodeString(strings.TrimSpace(string(body)))
	if err != nil || len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("%s is damaged: delete it while nothing runs and start again", filepath.Join(dir, "grant.seed"))
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// readSecret reads a file the operator keeps a secret in. Its mode must not
// let others read it.
func readSecret(path, what string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", what, err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("%s in %s can be read by others: chmod 600 %s", what, path, path)
	}
	body, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", what, err)
	}
	text := strings.TrimSpace(string(body))
	if text == "" {
		return "", fmt.Errorf("%s in %s is empty", what, path)
	}
	return text, nil
}
