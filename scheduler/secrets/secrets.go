// Package secrets keeps the values that environments name. They stand sealed
// in the database; this package decides which value a repository has, and what
// a change of one puts out of use. Values come in from an operator and go out
// through Values, to whoever has found out that the caller may have them.
package secrets

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/spec"
	"inspect/storage"
	"inspect/storage/seal"
)

// Bounds of what is kept.
const (
	MinValueBytes = 8 // a shorter one cannot be taken out of texts without mangling them
	MaxValueBytes = 64 << 10
	MaxSecrets    = 100 // of one repository, of one owner, of all
)

// Options of a Store.
type Options struct {
	DB *storage.DB
	// Keys are those of the moment. They are asked for at each use, so that a
	// rotation counts without a restart.
	Keys     func() (*seal.Keys, error)
	Redactor *redact.Redactor // gets to know every value; nil: none
	Clock    proc.Clock       // nil: the machine's
	Log      *slog.Logger     // nil: silent
}

// Store is the secrets of one installation. It is safe for concurrent use.
type Store struct {
	o Options

	mu    sync.Mutex
	known int64 // version up to which the redactor knows the values
}

// New returns the store of a database.
func New(o Options) *Store {
	if o.Clock == nil {
		o.Clock = proc.System()
	}
	if o.Redactor == nil {
		o.Redactor = redact.New()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Store{o: o}
}

// Scope is whose a secret is: a repository's, those of all repositories of an
// owner, or of all there are. The narrowest counts.
type Scope struct {
	kind  string
	id    int64
	place string // octocat/hello, octocat
}

// Kinds of scope, as they are stored. An owner is the App's installation on the
// account: it stays the same when the account is renamed.
const (
	kindRepository = "repository"
	kindOwner      = "installation"
	kindAll        = "all"
)

// All repositories.
var All = Scope{kind: kindAll}

func (s Scope) String() string {
	switch s.kind {
	case kindRepository:
		return s.place
	case kindOwner:
		return "all of " + s.place
	}
	return "all repositories"
}

// row is what a value is bound to.
func (s Scope) row(name string, version int64) string {
	return fmt.Sprintf("inspect secret v1\n%s\n%d\n%s\n%d", s.kind, s.id, name, version)
}

// Repository is the scope of one repository, by its owner/name.
func (s *Store) Repository(ctx context.Context, ownerName string) (Scope, error) {
	owner, name, ok := strings.Cut(ownerName, "/")
	if !ok || owner == "" || name == "" || strings.Contains(name, "/") {
		return Scope{}, fmt.Errorf("expected OWNER/REPO, but found %q", ownerName)
	}
	ids, err := s.o.DB.Q().RepositoriesNamed(ctx, storage.RepositoriesNamedParams{Owner: owner, Name: name})
	if err != nil {
		return Scope{}, fmt.Errorf("looking for repository %s: %w", ownerName, err)
	}
	return one(ids, kindRepository, ownerName, "the repository "+ownerName)
}

// Owner is the scope of all repositories of an account.
func (s *Store) Owner(ctx context.Context, login string) (Scope, error) {
	ids, err := s.o.DB.Q().InstallationsOf(ctx, login)
	if err != nil {
		return Scope{}, fmt.Errorf("looking for the installation of %s: %w", login, err)
	}
	return one(ids, kindOwner, login, "the account "+login)
}

func one(ids []int64, kind, place, what string) (Scope, error) {
	switch len(ids) {
	case 0:
		return Scope{}, fmt.Errorf("nothing is known of %s: it is after the first event from there, so install the App on it first", what)
	case 1:
		return Scope{kind, ids[0], place}, nil
	}
	return Scope{}, fmt.Errorf("%s has had that name with the numbers %v: one of them was renamed, and the next event from it will tell", what, ids)
}

// CheckValue says in words why a value cannot be kept.
func CheckValue(value []byte) error {
	switch {
	case len(value) == 0:
		return errors.New("the value is empty")
	case len(value) > MaxValueBytes:
		return fmt.Errorf("the value is longer than %d bytes", MaxValueBytes)
	case bytes.IndexByte(value, 0) >= 0:
		return errors.New("the value holds a NUL byte, which no environment variable can")
	case !utf8.Valid(value):
		return errors.New("the value is not UTF-8 text: encode binary data, for example with base64")
	case len(bytes.TrimSpace(value)) < MinValueBytes:
		return fmt.Errorf("the value has fewer than %d bytes: whatever short text it is, it stands in other texts too, so it could not be taken out of them safely", MinValueBytes)
	}
	return nil
}

// Change is what came of a change.
type Change struct {
	Version int64
	Same    bool     // the value was this one before, and nothing has changed
	Retired []string // snapshots that may hold another value
}

// Set gives a secret its value, in the name of by. Snapshots that may hold
// another are retired in the same transaction.
func (s *Store) Set(ctx context.Context, at Scope, name string, value []byte, by string) (Change, error) {
	var c Change
	if !spec.IsSecretName(name) {
		return c, fmt.Errorf("%q cannot be the name of a secret: expected upper-case letters, digits and '_', and no name that means something to programs", name)
	}
	if err := CheckValue(value); err != nil {
		return c, err
	}
	keys, err := s.o.Keys()
	if err != nil {
		return c, err
	}
	err = s.o.DB.InLockTx(ctx, func(tx *storage.Tx) error {
		c = Change{} // the transaction may be repeated
		q := tx.Q()
		if err := q.LockSecrets(ctx); err != nil {
			return err
		}
		old, err := q.GetSecret(ctx, storage.GetSecretParams{Scope: at.kind, ScopeID: at.id, Name: name})
		if storage.IsMissing(err) {
			n, err := q.CountSecrets(ctx, storage.CountSecretsParams{Scope: at.kind, ScopeID: at.id})
			if err != nil {
				return err
			}
			if n >= MaxSecrets {
				return fmt.Errorf("%s: there are %d secrets already, which is the most; remove one first", at, n)
			}
		} else if err != nil {
			return err
		} else if was, err := keys.Open(old.Sealed, old.KeyID, at.row(name, old.Version)); err == nil && subtle.ConstantTimeCompare(was, value) == 1 {
			c.Version, c.Same = old.Version, true
			return nil
		}
		if c.Version, err = q.NextSecretVersion(ctx); err != nil {
			return err
		}
		sealed, id := keys.Seal(value, at.row(name, c.Version))
		if err := q.PutSecret(ctx, storage.PutSecretParams{
			Scope: at.kind, ScopeID: at.id, Name: name, Version: c.Version, Sealed: sealed, KeyID: id, SetBy: by, SetAt: s.o.Clock.Now(),
		}); err != nil {
			return err
		}
		c.Retired, err = q.RetireStaleSnapshots(ctx)
		return err
	})
	if err != nil {
		return c, fmt.Errorf("setting the secret %s: %w", name, err)
	}
	return c, nil
}

// Remove takes a secret away. Snapshots that may hold it are retired in the
// same transaction.
func (s *Store) Remove(ctx context.Context, at Scope, name string) (Change, error) {
	var c Change
	err := s.o.DB.InLockTx(ctx, func(tx *storage.Tx) error {
		c = Change{}
		if err := tx.Q().LockSecrets(ctx); err != nil {
			return err
		}
		n, err := tx.Q().DeleteSecret(ctx, storage.DeleteSecretParams{Scope: at.kind, ScopeID: at.id, Name: name})
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("%s: there is no such secret", at)
		}
		c.Retired, err = tx.Q().RetireStaleSnapshots(ctx)
		return err
	})
	if err != nil {
		return c, fmt.Errorf("removing the secret %s: %w", name, err)
	}
	return c, nil
}

// Entry is a secret as it may be shown.
type Entry struct {
	At      Scope
	Name    string
	Version int64 // grows with each change of any secret
	By      string
	When    time.Time
}

// List is all there are, without their values.
func (s *Store) List(ctx context.Context) ([]Entry, error) {
	rows, err := s.o.DB.Q().AllSecrets(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the secrets: %w", err)
	}
	out := make([]Entry, len(rows))
	for i, r := range rows {
		out[i] = Entry{Scope{r.Scope, r.ScopeID, r.Place}, r.Name, r.Version, r.SetBy, r.SetAt}
	}
	return out, nil
}

// Rotate seals every value anew with the first key, all or none. After it no
// other key is needed. It returns how many there were and the key's id.
func (s *Store) Rotate(ctx context.Context) (n int, key string, err error) {
	keys, err := s.o.Keys()
	if err != nil {
		return 0, "", err
	}
	err = s.o.DB.InLockTx(ctx, func(tx *storage.Tx) error {
		if err := tx.Q().LockSecrets(ctx); err != nil {
			return err
		}
		rows, err := tx.Q().AllSecrets(ctx)
		if err != nil {
			return err
		}
		for _, r := range rows {
			at := Scope{r.Scope, r.ScopeID, r.Place}
			value, err := keys.Open(r.Sealed, r.KeyID, at.row(r.Name, r.Version))
			if err != nil {
				return fmt.Errorf("secret %s of %s cannot be opened: %w", r.Name, at, explained(err))
			}
			sealed, id := keys.Seal(value, at.row(r.Name, r.Version))
			if err := tx.Q().ResealSecret(ctx, storage.ResealSecretParams{Version: r.Version, Sealed: sealed, KeyID: id}); err != nil {
				return err
			}
		}
		n = len(rows)
		return nil
	})
	if err != nil {
		return 0, "", fmt.Errorf("no secret was sealed anew: %w", err)
	}
	return n, keys.ID(), nil
}

// explained adds what to do.
func explained(err error) error {
	var unknown *seal.UnknownKeyError
	if errors.As(err, &unknown) {
		return fmt.Errorf("%w, which is not among the keys: add that key again, or set the secret anew", err)
	}
	return fmt.Errorf("%w: set the secret anew", err)
}

// Problem says in words for people why a repository's environment cannot have
// the secrets it names.
type Problem struct{ Words string }

func (p *Problem) Error() string { return p.Words }

// Values are what a repository has for some names.
type Values struct {
	Text    map[string]string
	Version map[string]int64
}

// Versions is what a snapshot records of them.
func (v Values) Versions() json.RawMessage {
	body, err := json.Marshal(v.Version)
	if err != nil {
		panic("secrets: names and numbers always marshal: " + err.Error())
	}
	return body
}

// Values returns a value for each of the names, or a *Problem that says what
// is missing. The redactor knows them from then on.
func (s *Store) Values(ctx context.Context, q *storage.Queries, repo storage.Repository, names []string) (Values, error) {
	out := Values{Text: map[string]string{}, Version: map[string]int64{}}
	if len(names) == 0 {
		return out, nil
	}
	asked, err := json.Marshal(names)
	if err != nil {
		return out, err
	}
	rows, err := q.RepositorySecrets(ctx, storage.RepositorySecretsParams{RepositoryID: repo.ID, Names: asked})
	if err != nil {
		return out, fmt.Errorf("reading the secrets of repository %d: %w", repo.ID, err)
	}
	keys, err := s.o.Keys()
	if err != nil {
		return out, err
	}
	var problems []string
	told := map[string]bool{}
	for _, r := range rows {
		value, err := keys.Open(r.Sealed, r.KeyID, Scope{kind: r.Scope, id: r.ScopeID}.row(r.Name, r.Version))
		if err != nil {
			told[r.Name] = true
			problems = append(problems, fmt.Sprintf("secret %s cannot be opened: %v", r.Name, explained(err)))
			continue
		}
		out.Text[r.Name], out.Version[r.Name] = string(value), r.Version
		s.o.Redactor.Add(string(value))
	}
	for _, name := range names {
		if _, ok := out.Text[name]; !ok && !told[name] {
			told[name] = true
			problems = append(problems, fmt.Sprintf("secret %s is not set: `inspect secrets set %s --repository %s/%s`", name, name, repo.Owner, repo.Name))
		}
	}
	if len(problems) > 0 {
		return Values{}, &Problem{strings.Join(problems, "; ")}
	}
	return out, nil
}

// Learn makes the redactor know the values that were set since it was called
// last. A value that cannot be opened is logged: nobody gets it from here.
func (s *Store) Learn(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows, err := s.o.DB.Q().SecretsAfter(ctx, s.known)
	if err != nil {
		return fmt.Errorf("reading the secrets: %w", err)
	}
	if len(rows) == 0 {
		return nil
	}
	keys, err := s.o.Keys()
	if err != nil {
		return err
	}
	for _, r := range rows {
		at := Scope{kind: r.Scope, id: r.ScopeID}
		value, err := keys.Open(r.Sealed, r.KeyID, at.row(r.Name, r.Version))
		if err != nil {
			s.o.Log.Error("a secret cannot be opened; no session can have it", "name", r.Name, "scope", r.Scope, "scope_id", r.ScopeID, "error", explained(err))
		} else {
			s.o.Redactor.Add(string(value))
		}
		s.known = r.Version
	}
	return nil
}
