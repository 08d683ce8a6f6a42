package github

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"inspect/checks/redact"
)

const (
	userToken    = "ghu_usertokencanary0123456789"
	clientSecret = "clientsecretcanary0123456789"
)

// door is the part of GitHub that signs people in.
type door struct {
	t         *testing.T
	challenge string
	user      string // JSON of the account
	token     string // answer to the code; empty: a token
	kind      string // its Content-Type
	revoked   int
	status    int // of the revocation
}

func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + r.URL.Path {
	case "POST /login/oauth/access_token":
		sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
		if r.PostFormValue("client_id") != "Iv1.abc" || r.PostFormValue("client_secret") != clientSecret || r.PostFormValue("code") != "good" ||
			r.PostFormValue("redirect_uri") != "https://inspect.example/signin/callback" || base64.RawURLEncoding.EncodeToString(sum[:]) != d.challenge {
			d.t.Errorf("the code is redeemed with %v", r.PostForm)
		}
		w.Header().Set("Content-Type", d.kind)
		_, _ = w.Write([]byte(d.token))
	case "GET /api/v3/user":
		if r.Header.Get("Authorization") != "Bearer "+userToken {
			d.t.Errorf("GitHub is asked with %q", r.Header.Get("Authorization"))
		}
		_, _ = w.Write([]byte(d.user))
	case "DELETE /api/v3/applications/Iv1.abc/token":
		var body map[string]string
		id, secret, _ := r.BasicAuth()
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body["access_token"] != userToken || id != "Iv1.abc" || secret != clientSecret {
			d.t.Errorf("revoked is %v by %s: %v", body, id, err)
		}
		d.revoked++
		w.WriteHeader(d.status)
	default:
		d.t.Errorf("GitHub is asked for %s %s", r.Method, r.URL.Path)
		w.WriteHeader(404)
	}
}

func TestSignIn(t *testing.T) {
	const form, object = "application/x-www-form-urlencoded; charset=utf-8", "application/json; charset=utf-8"
	granted := "access_token=" + userToken + "&scope=&token_type=bearer&expires_in=28800&refresh_token=ghr_x"
	monalisa := `{"id": 3, "login": "monalisa", "type": "User"}`
	for name, c := range map[string]struct {
		kind, token, user string
		status            int
		want              Person
		words             string
		revoked           int
	}{
		"as GitHub answers":       {form, granted, monalisa, 204, Person{3, "monalisa"}, "", 1},
		"as Enterprise answers":   {object, `{"access_token": "` + userToken + `", "token_type": "bearer"}`, monalisa, 204, Person{3, "monalisa"}, "", 1},
		"a code that is used":     {object, `{"error": "bad_verification_code", "error_description": "` + clientSecret + `"}`, monalisa, 204, Person{}, "bad_verification_code", 0},
		"no token":                {object, `{}`, monalisa, 204, Person{}, "did not redeem", 0},
		"no JSON":                 {object, `<html>`, monalisa, 204, Person{}, "did not redeem", 0},
		"a bot":                   {form, granted, `{"id": 3, "login": "hubot[bot]", "type": "Bot"}`, 204, Person{}, "not the account of a person", 1},
		"an organization":         {form, granted, `{"id": 3, "login": "octocat", "type": "Organization"}`, 204, Person{}, "not the account of a person", 1},
		"nobody":                  {form, granted, `{}`, 204, Person{}, "not the account of a person", 1},
		"a login that is no name": {form, granted, `{"id": 3, "login": "../x", "type": "User"}`, 204, Person{}, "not the account of a person", 1},
		"a token that stays":      {form, granted, monalisa, 500, Person{}, "could not be revoked", 1},
		"a redirect":              {form, granted, monalisa, 307, Person{}, "could not be revoked", 1},
	} {
		t.Run(name, func(t *testing.T) {
			d := &door{t: t, user: c.user, token: c.token, kind: c.kind, status: c.status}
			hub := httptest.NewServer(d)
			defer hub.Close()
			red := redact.New()
			s, err := NewSignIn(Options{APIBase: hub.URL + "/api/v3", Redactor: red}, "Iv1.abc", clientSecret, "https://inspect.example/signin/callback")
			if err != nil {
				t.Fatal(err)
			}
			at, err := url.Parse(s.Address("the-state", "the-verifier"))
			if err != nil || !strings.HasPrefix(at.String(), hub.URL+"/login/oauth/authorize?") || at.Query().Get("state") != "the-state" ||
				at.Query().Get("code_challenge_method") != "S256" || at.Query().Get("redirect_uri") != "https://inspect.example/signin/callback" {
				t.Fatalf("a browser goes to %v: %v", at, err)
			}
			d.challenge = at.Query().Get("code_challenge")
			who, err := s.Who(t.Context(), "good", "the-verifier")
			if who != c.want || (err == nil) != (c.words == "") || err != nil && !strings.Contains(err.Error(), c.words) {
				t.Errorf("it is %+v: %v", who, err)
			}
			if err != nil && (strings.Contains(err.Error(), clientSecret) || strings.Contains(err.Error(), userToken)) {
				t.Errorf("the error tells a secret: %v", err)
			}
			if d.revoked != c.revoked {
				t.Errorf("revoked %d times", d.revoked)
			}
			if c.revoked > 0 && strings.Contains(red.String("x "+userToken), userToken) {
				t.Error("the redactor does not know the token")
			}
		})
	}
	s, err := NewSignIn(Options{}, "Iv1.abc", clientSecret, "https://inspect.example/signin/callback")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Who(t.Context(), "../x", "v"); err == nil {
		t.Error("anything is a code")
	}
	if _, err := NewSignIn(Options{}, "Iv1.abc", " ", "https://inspect.example/signin/callback"); err == nil {
		t.Error("no secret is enough")
	}
}
