package github

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/oauth2"
)

// signInTime bounds the three requests of one sign-in together.
const signInTime = 20 * time.Second

// Person is an account of a human on GitHub.
type Person struct {
	ID    int64
	Login string
}

// SignIn finds out who sits at a browser, by GitHub's web flow for Apps
// ("Generating a user access token for a GitHub App"), with PKCE. Of what GitHub
// grants only the account is taken; the token is revoked before it is told, so
// that nothing can act as that person. It is safe for concurrent use.
type SignIn struct {
	app   *App
	oauth oauth2.Config
	http  *http.Client
}

// NewSignIn needs of o only GitHub's addresses and how to reach them. back is the
// address that GitHub sends browsers to, one of the App's callback URLs.
func NewSignIn(o Options, clientID, secret, back string) (*SignIn, error) {
	if strings.TrimSpace(clientID) == "" || strings.TrimSpace(secret) == "" {
		return nil, errors.New("signing in with GitHub needs the App's client id and one of its client secrets")
	}
	a, err := open(o)
	if err != nil {
		return nil, err
	}
	a.redactor.Add(secret)
	return &SignIn{
		app: a,
		oauth: oauth2.Config{
			ClientID: clientID, ClientSecret: secret, RedirectURL: back,
			Endpoint: oauth2.Endpoint{
				AuthURL: a.bases.Git + "/login/oauth/authorize", TokenURL: a.bases.Git + "/login/oauth/access_token",
				AuthStyle: oauth2.AuthStyleInParams,
			},
		},
		// A secret goes to the address that was configured and nowhere else.
		http: &http.Client{Transport: a.http, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}, nil
}

// Address is where a browser is sent to. state comes back with it; verifier is
// what the code that comes back is bound to.
func (s *SignIn) Address(state, verifier string) string {
	return s.oauth.AuthCodeURL(state, oauth2.S256ChallengeOption(verifier))
}

// Who redeems the code that a browser came back with. A code is good once, for ten
// minutes.
func (s *SignIn) Who(ctx context.Context, code, verifier string) (Person, error) {
	who, err := s.who(ctx, code, verifier)
	if err != nil {
		return Person{}, fmt.Errorf("signing in with GitHub: %s", s.app.redactor.String(err.Error()))
	}
	return who, nil
}

func (s *SignIn) who(ctx context.Context, code, verifier string) (who Person, err error) {
	if !forms["code"].MatchString(code) {
		return who, errors.New("this is not a code of GitHub's")
	}
	ctx, cancel := context.WithTimeout(ctx, signInTime)
	defer cancel()
	s.app.redactor.Add(code)
	t, err := s.oauth.Exchange(context.WithValue(ctx, oauth2.HTTPClient, s.http), code, oauth2.VerifierOption(verifier))
	if err != nil {
		var refused *oauth2.RetrieveError
		if errors.As(err, &refused) && refused.ErrorCode != "" {
			return who, fmt.Errorf("GitHub says %s", refused.ErrorCode)
		}
		return who, errors.New("GitHub did not redeem the code") // the answer may hold anything
	}
	s.app.redactor.Add(t.AccessToken, t.RefreshToken)
	defer func() {
		revoke, cancel := context.WithTimeout(context.WithoutCancel(ctx), signInTime)
		defer cancel()
		if e := s.revoke(revoke, t.AccessToken); e != nil && err == nil {
			who, err = Person{}, fmt.Errorf("the token could not be revoked: %w", e)
		}
	}()
	var user struct {
		ID    int64  `json:"id"`
		Login string `json:"login"`
		Type  string `json:"type"`
	}
	if err := s.ask(ctx, http.MethodGet, "user", nil, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+t.AccessToken) }, http.StatusOK, &user); err != nil {
		return who, fmt.Errorf("asking GitHub who that is: %w", err)
	}
	if user.ID <= 0 || user.Type != "User" || !forms["login"].MatchString(user.Login) || strings.HasSuffix(user.Login, "[bot]") {
		return who, errors.New("that is not the account of a person")
	}
	return Person{ID: user.ID, Login: user.Login}, nil
}

// revoke ends what GitHub granted for that person.
func (s *SignIn) revoke(ctx context.Context, token string) error {
	body, err := json.Marshal(map[string]string{"access_token": token})
	if err != nil {
		return err
	}
	return s.ask(ctx, http.MethodDelete, "applications/"+url.PathEscape(s.oauth.ClientID)+"/token", body,
		func(r *http.Request) { r.SetBasicAuth(s.oauth.ClientID, s.oauth.ClientSecret) }, http.StatusNoContent, nil)
}

func (s *SignIn) ask(ctx context.Context, method, path string, body []byte, prove func(*http.Request), want int, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, s.app.bases.API+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/vnd.github+json")
	req.Header.Set("X-GitHub-Api-Version", "2022-11-28")
	req.Header.Set("User-Agent", "inspect")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	prove(req)
	resp, err := s.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != want {
		return fmt.Errorf("GitHub answers %s", resp.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(into)
}
