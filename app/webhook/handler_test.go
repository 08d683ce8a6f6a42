package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/storage"
	"inspect/storage/storagetest"
)

const secret = "It's a Secret to Everybody"

// jobs counts committed jobs: it writes into the caller's transaction, as a
// queue in the same database would.
type jobs struct {
	fail error
}

func (j *jobs) InsertDelivery(ctx context.Context, tx *storage.Tx, guid string) error {
	if j.fail != nil {
		return j.fail
	}
	_, err := tx.SQL().ExecContext(ctx, "INSERT INTO test_jobs (guid) VALUES ($1)", guid)
	return err
}

type world struct {
	t    *testing.T
	db   *storage.DB
	jobs *jobs
	log  *bytes.Buffer
	h    *Handler
}

func setup(t *testing.T, change func(*Options)) *world {
	t.Helper()
	w := &world{t: t, db: storagetest.New(t), jobs: &jobs{}, log: &bytes.Buffer{}}
	if _, err := w.db.SQL().Exec("CREATE TABLE test_jobs (guid text)"); err != nil {
		t.Fatal(err)
	}
	o := Options{DB: w.db, Jobs: w.jobs, Log: slog.New(slog.NewTextHandler(w.log, nil)), Secrets: []string{secret}, AppID: 7, Events: []string{"issues", "ping"}, StoreTime: time.Minute}
	if change != nil {
		change(&o)
	}
	var err error
	if w.h, err = New(o); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) count(table string) (n int) {
	w.t.Helper()
	if err := w.db.SQL().QueryRow("SELECT count(*) FROM " + table).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

func sign(key string, body []byte) string {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

const guid = "72d3162e-cc78-11e3-81ab-4c9367dc0958"

const payload = `{"action":"labeled","installation":{"id":11},"repository":{"id":22},"sender":{"id":33}}`

func request(body string, change func(*http.Request)) *http.Request {
	r := httptest.NewRequest(http.MethodPost, DefaultPath, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-GitHub-Delivery", guid)
	r.Header.Set("X-GitHub-Event", "issues")
	r.Header.Set("X-Hub-Signature-256", sign(secret, []byte(body)))
	if change != nil {
		change(r)
	}
	return r
}

func (w *world) serve(r *http.Request) int {
	rec := httptest.NewRecorder()
	w.h.ServeHTTP(rec, r)
	return rec.Code
}

func set(key, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(key, value) }
}

func del(key string) func(*http.Request) { return func(r *http.Request) { r.Header.Del(key) } }

func TestSignatureVectorOfGitHub(t *testing.T) {
	sig, ok := parseSignature([]string{"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"})
	if !ok || !signedBy(sig, []byte("Hello, World!"), []string{secret}) {
		t.Error("GitHub's own example is refused")
	}
	if signedBy(sig, []byte("Hello, World?"), []string{secret}) || signedBy(sig, []byte("Hello, World!"), []string{"other"}) {
		t.Error("a wrong body or secret is accepted")
	}
}

func TestStored(t *testing.T) {
	w := setup(t, nil)
	if code := w.serve(request(payload, set("X-GitHub-Hook-Installation-Target-ID", "7"))); code != 202 {
		t.Fatalf("answer %d", code)
	}
	d, err := w.db.Q().DeliveryByGUID(t.Context(), guid)
	if err != nil {
		t.Fatal(err)
	}
	if d.Event != "issues" || d.Action != "labeled" || d.InstallationID != 11 || d.RepositoryID != 22 || d.SenderID != 33 ||
		string(d.Payload) != payload || d.Status != "pending" || !d.RemoteAddr.Valid || d.RemoteAddr.IPNet.IP.String() != "192.0.2.1" {
		t.Errorf("stored %+v", d)
	}
	if w.count("test_jobs") != 1 {
		t.Error("no job")
	}
}

func TestRefusals(t *testing.T) {
	w := setup(t, nil)
	sum := hmac.New(sha1.New, []byte(secret))
	sum.Write([]byte(payload))
	both := func(a, b func(*http.Request)) func(*http.Request) { return func(r *http.Request) { a(r); b(r) } }
	tests := []struct {
		name   string
		change func(*http.Request)
		want   int
	}{
		{"no signature", del("X-Hub-Signature-256"), 401},
		{"SHA-1 only", both(del("X-Hub-Signature-256"), set("X-Hub-Signature", "sha1="+hex.EncodeToString(sum.Sum(nil)))), 401},
		{"SHA-1 in the new header", set("X-Hub-Signature-256", "sha1="+hex.EncodeToString(sum.Sum(nil))), 401},
		{"other secret", set("X-Hub-Signature-256", sign("other", []byte(payload))), 401},
		{"empty secret", set("X-Hub-Signature-256", sign("", []byte(payload))), 401},
		{"other body", set("X-Hub-Signature-256", sign(secret, []byte(payload+" "))), 401},
		{"no prefix", set("X-Hub-Signature-256", strings.TrimPrefix(sign(secret, []byte(payload)), "sha256=")), 401},
		{"empty", set("X-Hub-Signature-256", "sha256="), 401},
		{"not hexadecimal", set("X-Hub-Signature-256", "sha256="+strings.Repeat("z", 64)), 401},
		{"cut", set("X-Hub-Signature-256", sign(secret, []byte(payload))[:40]), 401},
		{"two signatures", func(r *http.Request) { r.Header.Add("X-Hub-Signature-256", sign("x", nil)) }, 401},
		{"no signature and no GUID", both(del("X-Hub-Signature-256"), del("X-GitHub-Delivery")), 401},
		{"wrong signature and no GUID", both(set("X-Hub-Signature-256", sign("x", nil)), del("X-GitHub-Delivery")), 401},
		{"no GUID", del("X-GitHub-Delivery"), 400},
		{"odd GUID", set("X-GitHub-Delivery", "1; DROP TABLE deliveries"), 400},
		{"two GUIDs", func(r *http.Request) { r.Header.Add("X-GitHub-Delivery", guid) }, 400},
		{"no event", del("X-GitHub-Event"), 400},
		{"odd event", set("X-GitHub-Event", "Issues\x00"), 400},
		{"another App", set("X-GitHub-Hook-Installation-Target-ID", "8"), 400},
		{"a repository's webhook", set("X-GitHub-Hook-Installation-Target-Type", "repository"), 400},
		{"form", set("Content-Type", "application/x-www-form-urlencoded"), 415},
		{"no content type", del("Content-Type"), 415},
		{"compressed", set("Content-Encoding", "gzip"), 415},
		{"GET", func(r *http.Request) { r.Method = http.MethodGet }, 405},
		{"PUT", func(r *http.Request) { r.Method = http.MethodPut }, 405},
		{"another path", func(r *http.Request) { r.URL.Path = "/" }, 404},
		{"body that breaks off", func(r *http.Request) { r.Body = io.NopCloser(io.MultiReader(strings.NewReader("{"), broken{})) }, 400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := w.serve(request(payload, tt.change)); got != tt.want {
				t.Errorf("answer %d, want %d", got, tt.want)
			}
		})
	}
	if n, j := w.count("deliveries"), w.count("test_jobs"); n != 0 || j != 0 {
		t.Errorf("%d deliveries and %d jobs were stored", n, j)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("connection reset") }

func TestContentTypeWithCharset(t *testing.T) {
	w := setup(t, nil)
	if code := w.serve(request(payload, set("Content-Type", "application/json; charset=utf-8"))); code != 202 {
		t.Errorf("answer %d", code)
	}
}

func TestRotation(t *testing.T) {
	w := setup(t, func(o *Options) { o.Secrets = []string{"new", secret} })
	if code := w.serve(request(payload, nil)); code != 202 {
		t.Errorf("old secret: answer %d", code)
	}
	if code := w.serve(request(payload, set("X-Hub-Signature-256", sign("new", []byte(payload))))); code != 202 {
		t.Errorf("new secret: answer %d", code)
	}
	if code := w.serve(request(payload, set("X-Hub-Signature-256", sign("older", []byte(payload))))); code != 401 {
		t.Errorf("other secret: answer %d", code)
	}
}

func TestNewRefuses(t *testing.T) {
	db := &storage.DB{}
	for name, secrets := range map[string][]string{
		"none": nil, "empty": {""}, "blank": {" \n"}, "one of two empty": {secret, ""}, "three": {"a", "b", "c"},
	} {
		if _, err := New(Options{DB: db, Jobs: &jobs{}, Secrets: secrets}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestSameDeliveryTenTimesAtOnce(t *testing.T) {
	w := setup(t, nil)
	var wg sync.WaitGroup
	codes := make([]int, 10)
	for i := range codes {
		wg.Go(func() {
			codes[i] = w.serve(request(payload, func(r *http.Request) {
				if i%2 == 1 {
					r.Header.Set("X-GitHub-Delivery", strings.ToUpper(guid))
				}
			}))
		})
	}
	wg.Wait()
	for _, c := range codes {
		if c != 202 {
			t.Errorf("answer %d", c)
		}
	}
	if n, j := w.count("deliveries"), w.count("test_jobs"); n != 1 || j != 1 {
		t.Errorf("%d deliveries and %d jobs, want one each", n, j)
	}
}

func TestNotWorkedOn(t *testing.T) {
	tests := []struct{ name, body, event, status string }{
		{"no JSON", "{", "issues", "undecodable"},
		{"empty", "", "issues", "undecodable"},
		{"a list", "[]", "issues", "undecodable"},
		{"odd ids", `{"repository":{"id":"x"}}`, "issues", "undecodable"},
		{"bytes that are no text", "{\"action\":\"\xff\x00", "issues", "undecodable"},
		{"unknown event", "{}", "sponsorship", "unknown"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := setup(t, nil)
			for range 3 {
				if code := w.serve(request(tt.body, set("X-GitHub-Event", tt.event))); code != 202 {
					t.Fatalf("answer %d", code)
				}
			}
			d, err := w.db.Q().DeliveryByGUID(t.Context(), guid)
			if err != nil || d.Status != tt.status || string(d.Payload) != tt.body {
				t.Errorf("stored %+v, %v", d, err)
			}
			if w.count("test_jobs") != 0 {
				t.Error("there is a job")
			}
			if n := strings.Count(w.log.String(), "not worked on"); n != 1 {
				t.Errorf("logged %d times", n)
			}
		})
	}
}

func TestNullsEverywhere(t *testing.T) {
	for i, body := range []string{"null", "{}", `{"action":null,"installation":null,"repository":null,"sender":null}`, `{"repository":{"id":null}}`, `{"action":"a\u0000b"}`} {
		w := setup(t, nil)
		if code := w.serve(request(body, nil)); code != 202 {
			t.Errorf("%d: answer %d", i, code)
		}
	}
}

func TestNothingStoredWithoutJob(t *testing.T) {
	w := setup(t, nil)
	w.jobs.fail = errors.New("no queue")
	if code := w.serve(request(payload, nil)); code != 503 {
		t.Errorf("answer %d", code)
	}
	if n := w.count("deliveries"); n != 0 {
		t.Errorf("%d deliveries were stored without a job", n)
	}
	w.jobs.fail = nil
	if code := w.serve(request(payload, nil)); code != 202 || w.count("test_jobs") != 1 {
		t.Errorf("the same delivery afterwards: answer %d", code)
	}
}

// zeros is an endless body.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestTooLarge(t *testing.T) {
	w := setup(t, nil)
	exact := strings.Repeat(" ", MaxBody)
	if code := w.serve(request(exact, nil)); code != 202 {
		t.Errorf("25 MB exactly: answer %d", code)
	}
	if code := w.serve(request(exact+" ", nil)); code != 413 {
		t.Errorf("one byte more: answer %d", code)
	}
	r := request("", nil)
	r.Body, r.ContentLength = io.NopCloser(zeros{}), -1
	if code := w.serve(r); code != 413 {
		t.Errorf("no length, no end: answer %d", code)
	}
	if n := w.count("deliveries"); n != 1 {
		t.Errorf("%d deliveries are stored, want the first alone", n)
	}
}

// TestLyingLength speaks HTTP by hand: chunks that never end, and a length
// that is larger than what comes.
func TestLyingLength(t *testing.T) {
	w := setup(t, nil)
	srv := httptest.NewServer(w.h)
	defer srv.Close()
	head := "POST " + DefaultPath + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-GitHub-Event: issues\r\nX-GitHub-Delivery: " + guid +
		"\r\nX-Hub-Signature-256: " + sign(secret, []byte(payload)) + "\r\n"
	t.Run("chunks", func(t *testing.T) {
		conn, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "%sTransfer-Encoding: chunked\r\n\r\n", head)
		chunk := fmt.Sprintf("%x\r\n%s\r\n", 1<<20, strings.Repeat(" ", 1<<20))
		for range 26 { // stops being read at 25
			if _, err := io.WriteString(conn, chunk); err != nil {
				break
			}
		}
		answer := make([]byte, 64)
		n, _ := io.ReadAtLeast(conn, answer, 12)
		if !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 413") {
			t.Errorf("answer %q", answer[:n])
		}
	})
	t.Run("shorter than it says", func(t *testing.T) {
		conn, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n%s", head, len(payload)+10, payload)
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 64)
		n, _ := io.ReadAtLeast(conn, answer, 12)
		if !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 400") {
			t.Errorf("answer %q", answer[:n])
		}
	})
	if w.count("deliveries") != 0 {
		t.Error("something was stored")
	}
}

func FuzzSignature(f *testing.F) {
	f.Add("sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17")
	f.Add("sha1=x")
	f.Fuzz(func(t *testing.T, s string) {
		if sig, ok := parseSignature([]string{s}); ok && (len(sig) != 32 || signedBy(sig, []byte(s), []string{secret})) {
			t.Fatalf("%q is accepted", s)
		}
	})
}

// TestDatabaseHangs locks the table: the sender is still answered.
func TestDatabaseHangs(t *testing.T) {
	w := setup(t, func(o *Options) { o.StoreTime = 50 * time.Millisecond })
	tx, err := w.db.SQL().Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec("LOCK TABLE deliveries IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	if code := w.serve(request(payload, nil)); code != 503 {
		t.Errorf("answer %d", code)
	}
}
