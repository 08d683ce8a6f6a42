package newapp

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"inspect/app/github"
)

// Files in a Store's directory. The last one is read by the systemd unit, and
// by a shell.
const (
	KeyFile    = "app.pem"
	SecretFile = "webhook.secret"
	ClientFile = "client.secret"
	EnvFile    = "app.env"
)

// Store keeps an App's id, key and secrets in files of mode 0600.
type Store struct {
	dir       string
	overwrite bool
}

// ErrThere says that a file is there already, and stays as it is.
var ErrThere = errors.New("it is there already")

// OpenStore looks whether an App could be kept in a directory, before one is
// made: its key is told once.
func OpenStore(dir string, overwrite bool) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if strings.ContainsAny(dir, " \"'\\\n%$#`") {
		return nil, fmt.Errorf("the directory %q must have no spaces, quotes, $, %% and # in its name", dir)
	}
	s := &Store{dir, overwrite}
	for _, name := range []string{KeyFile, SecretFile, ClientFile, EnvFile} {
		path := filepath.Join(dir, name)
		if _, err := os.Lstat(path); err == nil && !overwrite {
			return nil, fmt.Errorf("%s: %w, maybe of an App that is in use. Choose another --dir, or say --overwrite", path, ErrThere)
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	tmp, err := os.CreateTemp(dir, ".inspect-*")
	if err != nil {
		return nil, fmt.Errorf("nothing can be written to the directory: %w", err)
	}
	return s, errors.Join(tmp.Close(), os.Remove(tmp.Name()))
}

// Path of one of the files.
func (s *Store) Path(name string) string { return filepath.Join(s.dir, name) }

// keep writes the files, the one with the id last: it names the others.
func (s *Store) keep(m github.Made, b github.Bases) error {
	env := fmt.Sprintf("# The GitHub App %s of %s. Written by `inspect app create`.\nINSPECT_GITHUB_APP_ID=%d\nINSPECT_GITHUB_KEY_FILE=%s\nINSPECT_WEBHOOK_SECRET_FILE=%s\nINSPECT_GITHUB_API=%s\nINSPECT_GITHUB_GIT=%s\nINSPECT_GITHUB_CLIENT_ID=%s\nINSPECT_GITHUB_CLIENT_SECRET_FILE=%s\n",
		word(m.Slug), word(m.Owner), m.ID, s.Path(KeyFile), s.Path(SecretFile), strings.TrimSuffix(b.API, "/"), b.Git, m.ClientID, s.Path(ClientFile))
	for _, f := range []struct{ name, body string }{
		{KeyFile, strings.TrimRight(m.Key, "\n") + "\n"}, {SecretFile, m.WebhookSecret + "\n"}, {ClientFile, m.ClientSecret + "\n"}, {EnvFile, env},
	} {
		if err := s.write(s.Path(f.name), f.body); err != nil {
			return err
		}
	}
	return nil
}

// word is a name GitHub gave, as it may stand in a comment of a file.
func word(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
			return r
		}
		return '?'
	}, s)
}

// write puts a file in its place as a whole; unless it was asked for, over none.
func (s *Store) write(path, body string) error {
	tmp, err := os.CreateTemp(s.dir, ".inspect-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(body)
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if s.overwrite {
		return os.Rename(tmp.Name(), path)
	}
	if err := os.Link(tmp.Name(), path); err != nil { // fails where something is
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
