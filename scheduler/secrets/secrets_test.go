package secrets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"inspect/checks/redact"
	"inspect/storage"
	"inspect/storage/seal"
	"inspect/storage/storagetest"
)

// world is a store with two repositories of octocat and one of hubot.
type world struct {
	*Store
	t    *testing.T
	db   *storage.DB
	keys string
	red  *redact.Redactor
	log  bytes.Buffer
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, db: storagetest.New(t), keys: seal.NewKey(), red: redact.New()}
	w.sql(`INSERT INTO installations (id, account) VALUES (7, 'octocat'), (8, 'hubot');
		INSERT INTO repositories (id, installation_id, owner, name, default_branch) VALUES
		(42, 7, 'octocat', 'hello', 'main'), (43, 7, 'octocat', 'other', 'main'), (44, 8, 'hubot', 'hello', 'main')`)
	w.Store = w.fresh()
	return w
}

// fresh is another process's store on the same database.
func (w *world) fresh() *Store {
	return New(Options{DB: w.db, Redactor: w.red, Log: slog.New(slog.NewTextHandler(&w.log, nil)),
		Keys: func() (*seal.Keys, error) { return seal.ParseKeys(w.keys) }})
}

func (w *world) sql(q string, args ...any) {
	w.t.Helper()
	if _, err := w.db.SQL().Exec(q, args...); err != nil {
		w.t.Fatalf("%s: %v", q, err)
	}
}

func (w *world) repository(name string) Scope {
	w.t.Helper()
	at, err := w.Repository(context.Background(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	return at
}

func (w *world) set(at Scope, name, value string) Change {
	w.t.Helper()
	c, err := w.Set(context.Background(), at, name, []byte(value), "monalisa")
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// value is what repository 42, 43 or 44 has, or why it has none.
func (w *world) value(repository int64, name string) string {
	w.t.Helper()
	ctx := context.Background()
	repo, err := w.db.Q().GetRepositoryRow(ctx, repository)
	if err != nil {
		w.t.Fatal(err)
	}
	got, err := w.Values(ctx, w.db.Q(), repo, []string{name})
	var p *Problem
	if errors.As(err, &p) {
		return p.Error()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return got.Text[name]
}

func (w *world) want(repository int64, name, want string) {
	w.t.Helper()
	if got := w.value(repository, name); got != want {
		w.t.Errorf("%s of %d is %q, want %q", name, repository, got, want)
	}
}

func TestNarrowestScopeCounts(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	owner, err := w.Owner(ctx, "OctoCat")
	if err != nil {
		t.Fatal(err)
	}
	w.want(42, "TOKEN", "secret TOKEN is not set: `inspect secrets set TOKEN --repository octocat/hello`")
	w.set(All, "TOKEN", "value of all")
	w.set(owner, "TOKEN", "value of the owner")
	w.set(w.repository("Octocat/Hello"), "TOKEN", "value of hello")
	w.want(42, "TOKEN", "value of hello")
	w.want(43, "TOKEN", "value of the owner")
	w.want(44, "TOKEN", "value of all")
	if _, err := w.Remove(ctx, w.repository("octocat/hello"), "TOKEN"); err != nil {
		t.Fatal(err)
	}
	w.want(42, "TOKEN", "value of the owner")
	if _, err := w.Remove(ctx, w.repository("octocat/hello"), "TOKEN"); err == nil || !strings.Contains(err.Error(), "octocat/hello: there is no such secret") {
		t.Errorf("removed twice: %v", err)
	}
	w.sql("UPDATE repositories SET installation_id = 8, owner = 'hubot' WHERE id = 43") // given away
	w.want(43, "TOKEN", "value of all")

	for _, name := range []string{"octocat", "octocat/", "octocat/hello/x"} {
		if _, err := w.Repository(ctx, name); err == nil || !strings.Contains(err.Error(), "expected OWNER/REPO") {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, err := range []error{second(w.Repository(ctx, "octocat/none")), second(w.Owner(ctx, "monalisa"))} {
		if err == nil || !strings.Contains(err.Error(), "install the App") {
			t.Errorf("unknown: %v", err)
		}
	}
	w.sql("UPDATE repositories SET name = 'hello' WHERE id = 43") // whose former name another has now
	if _, err := w.Repository(ctx, "hubot/hello"); err == nil || !strings.Contains(err.Error(), "[43 44]") {
		t.Errorf("two of one name: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestValuesThatCannotBeKept(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	at := w.repository("octocat/hello")
	for name, c := range map[string]struct{ name, value, want string }{
		"empty":      {"A", "", "is empty"},
		"short":      {"A", "1234567", "fewer than 8 bytes"},
		"spaces":     {"A", "   1234567   ", "fewer than 8 bytes"},
		"long":       {"A", strings.Repeat("x", MaxValueBytes+1), "longer than 65536 bytes"},
		"NUL":        {"A", "12345\x006789", "NUL"},
		"not text":   {"A", "12345\xff6789", "UTF-8"},
		"lower case": {"token", "123456789", "cannot be the name"},
		"a program's": {
			"LD_PRELOAD", "123456789", "cannot be the name",
		},
		"injection": {"A'; DROP", "123456789", "cannot be the name"},
	} {
		_, err := w.Set(ctx, at, c.name, []byte(c.value), "monalisa")
		if err == nil || !strings.Contains(err.Error(), c.want) || c.value != "" && strings.Contains(err.Error(), c.value) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.set(at, "LONGEST", strings.Repeat("é", MaxValueBytes/2))
	for i := range MaxSecrets - 1 {
		w.set(at, fmt.Sprintf("N%d", i), "12345678")
	}
	if _, err := w.Set(ctx, at, "ONE_MORE", []byte("12345678"), "monalisa"); err == nil || !strings.Contains(err.Error(), "octocat/hello: there are 100 secrets already") {
		t.Errorf("one too many: %v", err)
	}
	w.set(at, "N0", "another value") // one of them may change
	w.set(w.repository("octocat/other"), "A", "12345678")
	list, err := w.List(ctx)
	if err != nil || len(list) != MaxSecrets+1 || list[0].At.String() != "octocat/hello" || list[MaxSecrets].Name != "A" || list[0].By != "monalisa" || list[0].When.IsZero() {
		t.Errorf("%d, %+v, %v", len(list), list[0], err)
	}
}

func TestRowsThatWereMeddledWith(t *testing.T) {
	const words = "cannot be opened: the value was changed, or belongs to another row: set the secret anew"
	for name, meddle := range map[string]string{
		"changed":                   "UPDATE secrets SET sealed = set_byte(sealed, 19, get_byte(sealed, 19) # 1) WHERE name = 'A'",
		"cut":                       "UPDATE secrets SET sealed = '\\x' WHERE name = 'A'",
		"moved to another name":     "UPDATE secrets SET sealed = (SELECT sealed FROM secrets WHERE name = 'B') WHERE name = 'A'",
		"moved from another scope":  "UPDATE secrets SET sealed = (SELECT sealed FROM secrets WHERE name = 'A' AND scope = 'all') WHERE scope_id = 42 AND name = 'A'",
		"renamed":                   "DELETE FROM secrets WHERE name = 'A'; UPDATE secrets SET name = 'A' WHERE name = 'B'",
		"given to the repository":   "DELETE FROM secrets WHERE name = 'A' AND scope_id = 42; UPDATE secrets SET scope_id = 42 WHERE scope_id = 43",
		"an old value in a new row": "UPDATE secrets SET version = 99 WHERE scope_id = 42 AND name = 'A'",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.set(w.repository("octocat/hello"), "A", "value of A")
			w.set(w.repository("octocat/hello"), "B", "value of B")
			w.set(w.repository("octocat/other"), "A", "value of other's A")
			w.set(All, "A", "value of all's A")
			w.want(42, "A", "value of A")
			w.sql(meddle)
			w.want(42, "A", "secret A "+words)
			if err := w.fresh().Learn(context.Background()); err != nil || !strings.Contains(w.log.String(), "a secret cannot be opened") {
				t.Errorf("%v, logged %s", err, &w.log)
			}
			if _, _, err := w.Rotate(context.Background()); err == nil || !strings.Contains(err.Error(), "no secret was sealed anew: secret A of octocat/hello cannot be opened") {
				t.Errorf("rotated: %v", err)
			}
			w.set(w.repository("octocat/hello"), "A", "value of A") // which helps
			w.want(42, "A", "value of A")
		})
	}
}

func TestRotation(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	old := w.keys
	w.set(w.repository("octocat/hello"), "A", "value of A")
	w.set(All, "B", "value of B")
	next := seal.NewKey()
	w.keys = next
	var oldID string
	if err := w.db.SQL().QueryRow("SELECT min(key_id) FROM secrets").Scan(&oldID); err != nil {
		t.Fatal(err)
	}
	for _, said := range []string{w.value(42, "A"), fmt.Sprint(third(w.Rotate(ctx)))} {
		if !strings.Contains(said, "sealed with key "+oldID) {
			t.Errorf("without the old key: %s", said)
		}
	}
	w.keys = next + "\n" + old
	w.want(42, "A", "value of A") // while it serves
	w.set(All, "C", "value of C") // by the new key already
	n, id, err := w.Rotate(ctx)
	if err != nil || n != 3 || id == oldID {
		t.Fatalf("%d, %s, %v", n, id, err)
	}
	w.keys = next
	w.want(42, "A", "value of A")
	w.want(43, "B", "value of B")
	if c := w.set(All, "C", "value of C"); !c.Same {
		t.Error("the same value is another after a rotation")
	}
	w.keys = old
	if said := w.value(42, "A"); !strings.Contains(said, "sealed with key "+id) {
		t.Errorf("the old key: %s", said)
	}
	w.keys = ""
	if _, err := w.Set(ctx, All, "A", []byte("value of A"), "x"); err == nil {
		t.Error("set without a key")
	}
}

func third[A, B any](_ A, _ B, err error) error { return err }

func TestRedactorLearnsWhatOthersSet(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	here := w.fresh()
	said := func(s string) string { return w.red.String(s) }
	if err := here.Learn(ctx); err != nil {
		t.Fatal(err)
	}
	w.set(All, "A", "first value") // another process
	if said("first value") != "first value" {
		t.Fatal("it knew before it could")
	}
	for range 2 {
		if err := here.Learn(ctx); err != nil {
			t.Fatal(err)
		}
	}
	w.set(All, "A", "second value")
	w.set(All, "B", "third value")
	if err := here.Learn(ctx); err != nil {
		t.Fatal(err)
	}
	// A session that runs may still have the former value.
	if got := said("first value, second value, third value"); got != "[redacted], [redacted], [redacted]" {
		t.Errorf("said %q", got)
	}
}

// No value is in the database in clear, in any of the forms it could be looked for.
func TestNothingIsStoredInClear(t *testing.T) {
	w := newWorld(t)
	const canary = "canary-5f3c9a71d2"
	c := w.set(All, "A", canary)
	if c.Same || c.Version == 0 {
		t.Errorf("%+v", c)
	}
	if again := w.set(All, "A", canary); !again.Same || again.Version != c.Version {
		t.Errorf("the same value: %+v", again)
	}
	if dump := storagetest.Dump(t, w.db); !strings.Contains(dump, "monalisa") || redact.New(canary).Known(dump) != dump || strings.Contains(dump, fmt.Sprintf("%x", canary)) {
		t.Error("the database holds the value")
	}
}
