package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
)

// initSum is the SHA-256 of the inspect-init that was built with this program, in
// hexadecimal. The linker sets it (see Makefile); without it this program is its
// own init. Nothing less tells two builds apart for certain.
var initSum string

// ownBinary copies this program into dir, and its init if that is there, under
// names made of their content, so that an upgrade does not pull them away from
// what runs. It returns the path of the program.
func ownBinary(dir string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if from := findInit(self); from != "" {
		if _, err := copyInto(dir, "inspect-init-", from); err != nil {
			return "", err
		}
	}
	return copyInto(dir, "inspect-", self)
}

// copyInto copies a program and returns the path of the copy.
func copyInto(dir, prefix, from string) (string, error) {
	body, err := os.ReadFile(from)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, prefix+short(sumOf(body)))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return path, putProgram(path, body)
}

// putProgram puts a program in its place as a whole.
func putProgram(path string, body []byte) error {
	tmp := path + ".new"
	if err := errors.Join(os.WriteFile(tmp, body, 0o755), os.Chmod(tmp, 0o755)); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// initProgram is what the sandboxes of program, which is this one or its copy,
// are started with: the init beside it, or program itself where there is none of
// this very build.
func initProgram(program string, log *slog.Logger) string {
	if found := findInit(program); found != "" {
		return found
	}
	log.Warn("the small program inspect-init of this build is not beside inspect: sandboxes work and take longer to start; make build builds both", "beside", program)
	return program
}

// findInit finds the init that was built with this program beside program, or "".
func findInit(program string) string {
	if initSum == "" {
		return ""
	}
	for _, name := range []string{"inspect-init-" + short(initSum), "inspect-init"} {
		path := filepath.Join(filepath.Dir(program), name)
		if body, err := os.ReadFile(path); err == nil && sumOf(body) == initSum {
			return path
		}
	}
	return ""
}

func sumOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// short is enough of a sum for a name.
func short(sum string) string { return sum[:min(len(sum), 12)] }
