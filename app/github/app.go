package github

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/bradleyfalzon/ghinstallation/v2"
	"github.com/golang-jwt/jwt/v4"
	gh "github.com/google/go-github/v60/github"

	"inspect/checks/redact"
	"inspect/envs/proc"
)

// Options of an App.
type Options struct {
	AppID int64
	Key   []byte // the App's private key, PEM
	// APIBase and GitBase are the addresses of the API and of clone URLs, see
	// DeriveBases. Empty: https://api.github.com and what follows from it.
	APIBase, GitBase string
	// HTTP carries the requests; nil is a transport with timeouts.
	HTTP http.RoundTripper
	// Clock decides about token and rate limits; nil is the machine's.
	Clock proc.Clock
	Log   *slog.Logger // nil is slog.Default()
	// Redactor is applied to every text that is sent; minted tokens are added to
	// it. nil makes one of its own.
	Redactor *redact.Redactor
	// Record adds a write to the record of the session it is made for, see
	// ForSession. What it refuses is not sent. nil: writes are only logged.
	Record func(ctx context.Context, session string, w Write) error
	// WriteSpacing is the pause between two writes of one installation. 0 is one
	// second, which is GitHub's advice; a negative one is none.
	WriteSpacing time.Duration
	// Timeout of one try of one request; 0 is 30 s.
	Timeout time.Duration
	// Reads says how reads are repeated when GitHub is unwell. The zero value
	// is three tries, begun within 45 s.
	Reads proc.Policy
	// Rand gives numbers in [0,1) that make waits longer by up to a tenth; nil is
	// the process's own generator.
	Rand func() float64
}

// App is the GitHub App. It is safe for concurrent use.
type App struct {
	id       int64
	signer   ghinstallation.Signer
	bases    Bases
	api      *url.URL
	upload   *url.URL
	http     http.RoundTripper
	clock    proc.Clock
	log      *slog.Logger
	redactor *redact.Redactor
	recorder func(context.Context, string, Write) error
	funnel   funnel
	spacing  time.Duration
	timeout  time.Duration
	reads    proc.Policy
	rand     func() float64
	self     *Client // speaks as the App itself
	counters counters
	etags    *etags

	mu      sync.Mutex
	clients map[int64]*Client
	bot     *Bot
	minted  []minted // known to the redactor
	slugs   sync.Map // of Apps -> their number
	skew    *time.Duration
}

// New checks the options. It sends nothing.
func New(o Options) (*App, error) {
	if o.AppID <= 0 {
		return nil, errors.New("the GitHub App id is missing: it is the number on the App's settings page")
	}
	key, err := jwt.ParseRSAPrivateKeyFromPEM(o.Key)
	if err != nil {
		return nil, errors.New("the GitHub App's private key is not an RSA key in PEM form: generate one on the App's settings page")
	}
	a, err := open(o)
	if err != nil {
		return nil, err
	}
	a.signer = ghinstallation.NewRSASigner(jwt.SigningMethodRS256, key)
	a.redactor.Add(string(o.Key))
	return a, nil
}

// open is an App that cannot prove itself yet.
func open(o Options) (*App, error) {
	if o.APIBase == "" {
		o.APIBase = "https://api.github.com"
	}
	bases, err := DeriveBases(o.APIBase, o.GitBase)
	if err != nil {
		return nil, err
	}
	api, err := url.Parse(bases.API)
	if err != nil {
		return nil, err
	}
	upload, err := url.Parse(bases.Upload)
	if err != nil {
		return nil, err
	}
	a := &App{
		id: o.AppID, bases: bases, api: api, upload: upload, rand: o.Rand, etags: newEtags(),
		http: o.HTTP, clock: o.Clock, log: o.Log, redactor: o.Redactor,
		recorder: o.Record, spacing: o.WriteSpacing, timeout: o.Timeout, reads: o.Reads,
		clients: map[int64]*Client{},
	}
	if a.http == nil {
		a.http = &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			TLSHandshakeTimeout:   10 * time.Second,
			ResponseHeaderTimeout: 30 * time.Second,
			IdleConnTimeout:       90 * time.Second,
			MaxIdleConnsPerHost:   maxConcurrent,
			ForceAttemptHTTP2:     true,
		}
	}
	if a.clock == nil {
		a.clock = proc.System()
	}
	if a.log == nil {
		a.log = slog.Default()
	}
	if a.redactor == nil {
		a.redactor = redact.New()
	}
	if a.spacing == 0 {
		a.spacing = writeSpacing
	}
	if a.timeout <= 0 {
		a.timeout = 30 * time.Second
	}
	if a.reads.Attempts <= 0 {
		a.reads.Attempts = 3
	}
	if a.reads.First <= 0 {
		a.reads.First = 300 * time.Millisecond
	}
	if a.reads.Max <= 0 {
		a.reads.Max = 3 * time.Second
	}
	if a.reads.Total <= 0 {
		a.reads.Total = 45 * time.Second
	}
	if a.rand == nil {
		a.rand = rand.Float64
	}
	a.funnel = funnel{a.redactor}
	a.self = &Client{app: a, pace: newPace(a.clock, a.spacing, a.rand), bearer: a.jwt}
	return a, nil
}

// Installation returns the one client of an installation.
func (a *App) Installation(id int64) *Client {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.clients[id]
	if c == nil {
		c = &Client{app: a, installation: id, pace: newPace(a.clock, a.spacing, a.rand)}
		c.tokens = &tokens{clock: a.clock, mint: c.mint, entries: map[tokenKey]*tokenEntry{}}
		c.bearer = c.tokenFor
		a.clients[id] = c
	}
	return c
}

// Bases tells where the App's GitHub is.
func (a *App) Bases() Bases { return a.bases }

// CloneURL is where a repository is cloned from, without credentials.
func (a *App) CloneURL(r Repo) string {
	return a.bases.Git + "/" + url.PathEscape(r.Owner) + "/" + url.PathEscape(r.Name) + ".git"
}

// jwt proves that we are the App. GitHub: RS256, issued up to a minute ago
// because clocks differ, good for at most ten minutes.
func (a *App) jwt(context.Context, int64, purpose) (string, error) {
	now := a.clock.Now()
	return a.signer.Sign(jwt.RegisteredClaims{
		Issuer:    strconv.FormatInt(a.id, 10),
		IssuedAt:  jwt.NewNumericDate(now.Add(-time.Minute)),
		ExpiresAt: jwt.NewNumericDate(now.Add(8 * time.Minute)),
	})
}

// noteDate compares GitHub's clock with ours.
func (a *App) noteDate(h http.Header) {
	theirs, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return
	}
	skew := a.clock.Now().Sub(theirs)
	a.mu.Lock()
	a.skew = &skew
	a.mu.Unlock()
}

// Skew is how far this machine's clock is ahead of GitHub's, by the last answer,
// refusals included, to within a second and the time the answer took; false
// before the first one.
func (a *App) Skew() (time.Duration, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.skew == nil {
		return 0, false
	}
	return *a.skew, true
}

// Bot is the account the App acts as.
type Bot struct {
	ID    int64  // of the user, not of the App
	Login string // "inspect[bot]"
	Slug  string // "inspect"
}

// Bot asks once who we are and remembers it. It costs three requests and a
// token; ask when the program starts.
func (a *App) Bot(ctx context.Context) (Bot, error) {
	a.mu.Lock()
	known := a.bot
	a.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	me, err := a.Self(ctx)
	if err != nil {
		return Bot{}, err
	}
	bot := Bot{Slug: me.Slug, Login: me.Slug + "[bot]"}
	c, err := a.anyInstallation(ctx)
	if err != nil {
		return Bot{}, err
	}
	err = c.call(ctx, 0, "look up the account "+bot.Login, func(api *gh.Client) error {
		u, _, err := api.Users.Get(ctx, bot.Login)
		bot.ID = u.GetID()
		return err
	})
	if err != nil {
		return Bot{}, err
	}
	if bot.ID <= 0 {
		return Bot{}, fmt.Errorf("GitHub does not say the id of %s", bot.Login)
	}
	a.mu.Lock()
	a.bot = &bot
	a.mu.Unlock()
	return bot, nil
}

// AppID is the number of the App with that slug, 0 if there is none that can be
// seen. It does not change, so it is asked for once.
func (c *Client) AppID(ctx context.Context, slug string) (int64, error) {
	if !forms["slug"].MatchString(slug) {
		return 0, fmt.Errorf("%w: ask about an App called %q", ErrInvalid, slug)
	}
	if id, ok := c.app.slugs.Load(slug); ok {
		return id.(int64), nil
	}
	var id int64
	err := c.app.self.call(ctx, 0, "look up the App "+slug, func(api *gh.Client) error {
		a, _, err := api.Apps.Get(ctx, slug)
		id = a.GetID()
		return err
	})
	var e *Error
	if errors.As(err, &e) && e.Kind == ErrNotFound {
		return 0, nil
	}
	if err == nil {
		c.app.slugs.Store(slug, id)
	}
	return id, err
}

// anyInstallation is a client that can read public things.
func (a *App) anyInstallation(ctx context.Context) (*Client, error) {
	list, err := a.Installations(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list, func(i InstallationInfo) bool { return !i.Suspended })
	if i < 0 {
		return nil, fmt.Errorf("%w: the App is installed nowhere", ErrNotFound)
	}
	return a.Installation(list[i].ID), nil
}
