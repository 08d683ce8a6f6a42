package github

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	gh "github.com/google/go-github/v60/github"
)

// Grant is what the App asks for, or what an installation has given it.
type Grant struct {
	Permissions map[string]string `json:"permissions"`
	Events      []string          `json:"events"`
}

// Self is the App as GitHub knows it.
type Self struct {
	ID    int64
	Slug  string
	Name  string
	Owner string // account it belongs to
	URL   string // its page for people
	Grant
}

// apiApp is decoded by ourselves: the library drops permissions it does not know.
type apiApp struct {
	ID      int64  `json:"id"`
	Slug    string `json:"slug"`
	Name    string `json:"name"`
	HTMLURL string `json:"html_url"`
	Owner   struct {
		Login string `json:"login"`
	} `json:"owner"`
	Grant
}

func (a apiApp) self() Self {
	return Self{ID: a.ID, Slug: a.Slug, Name: a.Name, Owner: a.Owner.Login, URL: a.HTMLURL, Grant: a.Grant}
}

// fetch decodes the answer to a read.
func fetch(ctx context.Context, api *gh.Client, path string, into any) (*gh.Response, error) {
	req, err := api.NewRequest(http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	return api.Do(ctx, req, into)
}

// Self asks who the App is and what it asks for.
func (a *App) Self(ctx context.Context) (Self, error) {
	var got apiApp
	err := a.self.call(ctx, 0, "ask GitHub who this App is", func(api *gh.Client) error {
		_, err := fetch(ctx, api, "app", &got)
		if err == nil && got.ID != a.id {
			return fmt.Errorf("the key belongs to App %d, not to App %d", got.ID, a.id)
		}
		return err
	})
	return got.self(), err
}

// InstallationInfo is one installation of the App.
type InstallationInfo struct {
	ID        int64
	Account   string
	Suspended bool
	URL       string // where its owner changes it
	Grant
}

// Installations lists where the App is installed, at most a thousand.
func (a *App) Installations(ctx context.Context) ([]InstallationInfo, error) {
	var out []InstallationInfo
	err := a.self.call(ctx, 0, "list the installations of this App", func(api *gh.Client) error {
		out = nil
		more, err := pages(10, func(o gh.ListOptions) (*gh.Response, error) {
			var page []struct {
				ID      int64 `json:"id"`
				Account struct {
					Login string `json:"login"`
				} `json:"account"`
				SuspendedAt *time.Time `json:"suspended_at"`
				HTMLURL     string     `json:"html_url"`
				Grant
			}
			resp, err := fetch(ctx, api, fmt.Sprintf("app/installations?per_page=%d&page=%d", o.PerPage, o.Page), &page)
			for _, i := range page {
				out = append(out, InstallationInfo{ID: i.ID, Account: i.Account.Login, Suspended: i.SuspendedAt != nil, URL: i.HTMLURL, Grant: i.Grant})
			}
			return resp, err
		})
		if more {
			return fmt.Errorf("%w: more than a thousand installations", ErrTooLarge)
		}
		return err
	})
	return out, err
}

// HookConfig is where GitHub sends deliveries to.
type HookConfig struct {
	URL         string
	ContentType string // "json" or "form"
	Insecure    bool   // the receiver's certificate is not checked
	Secret      bool   // there is one
}

// HookConfig asks where deliveries are sent to.
func (a *App) HookConfig(ctx context.Context) (HookConfig, error) {
	var got struct {
		URL         string `json:"url"`
		ContentType string `json:"content_type"`
		InsecureSSL any    `json:"insecure_ssl"` // "0", or a number
		Secret      string `json:"secret"`       // stars
	}
	err := a.self.call(ctx, 0, "ask where webhooks are sent to", func(api *gh.Client) error {
		_, err := fetch(ctx, api, "app/hook/config", &got)
		return err
	})
	insecure := got.InsecureSSL != nil && fmt.Sprint(got.InsecureSSL) != "0"
	return HookConfig{URL: got.URL, ContentType: got.ContentType, Insecure: insecure, Secret: got.Secret != ""}, err
}

// Delivery is one attempt to deliver a webhook.
type Delivery struct {
	ID     int64
	GUID   string
	Event  string
	At     time.Time
	Status int    // of HTTP; 0: nobody answered
	Words  string // GitHub's, "OK" or what went wrong
}

// Deliveries lists the newest attempts to deliver, at most a hundred.
func (a *App) Deliveries(ctx context.Context) ([]Delivery, error) {
	var out []Delivery
	err := a.self.call(ctx, 0, "list the webhook deliveries", func(api *gh.Client) error {
		list, _, err := api.Apps.ListHookDeliveries(ctx, &gh.ListCursorOptions{PerPage: 100})
		for _, d := range list {
			out = append(out, Delivery{
				ID: d.GetID(), GUID: d.GetGUID(), Event: d.GetEvent(), At: d.GetDeliveredAt().Time,
				Status: d.GetStatusCode(), Words: a.redactor.String(d.GetStatus()),
			})
		}
		return err
	})
	return out, err
}

// TokenForm says what kind of token GitHub gives an installation, without
// showing it: the older of 40 characters, or the newer one that says whose it is.
func (c *Client) TokenForm(ctx context.Context) (string, error) {
	t, err := c.tokens.get(ctx, 0, forNames, fresh)
	if err != nil {
		return "", err
	}
	return tokenForm(t.Token), nil
}

var statelessToken = regexp.MustCompile(`^ghs_[0-9]+_[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$`)

func tokenForm(token string) string {
	switch {
	case statelessToken.MatchString(token):
		return fmt.Sprintf("ghs_<App>_<JWT>, %d characters", len(token))
	case strings.HasPrefix(token, "ghs_"):
		return fmt.Sprintf("ghs_…, %d characters", len(token))
	}
	return fmt.Sprintf("of a form that is not known, %d characters", len(token))
}

// Made is a new App with all that GitHub tells of it, once.
type Made struct {
	Self
	Key           string // private, PEM
	WebhookSecret string
	ClientID      string // with the secret, for signing people in
	ClientSecret  string
}

// Convert redeems the code that GitHub's manifest flow ended with. A code is
// good once, for an hour. o needs no id and no key.
func Convert(ctx context.Context, o Options, code string) (Made, error) {
	if !forms["code"].MatchString(code) {
		return Made{}, errors.New("this is not a code of GitHub's manifest flow")
	}
	a, err := open(o)
	if err != nil {
		return Made{}, err
	}
	a.redactor.Add(code)
	// The code is the proof; there is nobody to be yet.
	nobody := &Client{app: a, pace: a.self.pace, bearer: func(context.Context, int64, purpose) (string, error) { return "", nil }}
	var got struct {
		apiApp
		PEM           string `json:"pem"`
		WebhookSecret string `json:"webhook_secret"`
		ClientID      string `json:"client_id"`
		ClientSecret  string `json:"client_secret"`
	}
	err = nobody.call(ctx, 0, "get the new App's key from GitHub", func(api *gh.Client) error {
		req, err := api.NewRequest(http.MethodPost, "app-manifests/"+url.PathEscape(code)+"/conversions", nil)
		if err != nil {
			return err
		}
		_, err = api.Do(ctx, req, &got)
		return err
	})
	if err != nil {
		return Made{}, errors.New(a.redactor.String(err.Error()))
	}
	a.redactor.Add(got.PEM, got.WebhookSecret, got.ClientSecret)
	return Made{Self: got.self(), Key: got.PEM, WebhookSecret: got.WebhookSecret, ClientID: got.ClientID, ClientSecret: got.ClientSecret}, nil
}
