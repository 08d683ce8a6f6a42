// Package diagnosis judges what `inspect doctor` and /inspect doctor look at:
// facts about the App, its webhooks, a repository's rules and workflows come in,
// findings in words go out. It is pure.
package diagnosis

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"inspect/app/manifest"
)

// Levels of a Finding.
const (
	OK   = "ok"
	Warn = "warn" // it works, and is not as it should be
	Fail = "fail" // sessions do not run, or not as they are meant to
)

// Finding is one thing that was looked at.
type Finding struct {
	Level string `json:"level"`
	What  string `json:"what"`         // that was looked at, in a few words
	Words string `json:"words"`        // what is there
	Do    string `json:"do,omitempty"` // what to do about it; empty if it is ok
}

// Unread says that something could not be looked at.
func Unread(what string, err error) Finding {
	return Finding{Warn, what, "it could not be looked at: " + err.Error(), "See to what is said there, and ask again."}
}

// App compares what the App asks for with app.yml. page is where it is changed.
func App(m manifest.Manifest, permissions map[string]string, events []string, page string) Finding {
	const what = "permissions of the App"
	permissions, teams := withoutTeams(permissions)
	d := m.Compare(permissions, events)
	do := "Change it under \"Permissions & events\" of the App's settings (" + page + "), and let whoever owns each installation accept it."
	switch {
	case d.None() && teams:
		return Finding{OK, what, "as in app.yml, and members: read", ""}
	case d.None():
		return Finding{OK, what, "as in app.yml", ""}
	case len(d.Missing)+len(d.Silent) > 0:
		return Finding{Fail, what, d.Words(), do}
	}
	return Finding{Warn, what, d.Words(), do}
}

// withoutTeams takes away the one permission that app.yml does not ask for and an
// operator may add: GitHub lets an App ask teams for a review with it alone.
func withoutTeams(permissions map[string]string) (rest map[string]string, teams bool) {
	if permissions["members"] != "read" {
		return permissions, false
	}
	rest = maps.Clone(permissions)
	delete(rest, "members")
	return rest, true
}

// Installation compares what an installation granted with app.yml. A permission
// that the App has come to ask for is absent, and its events do not come, until
// whoever owns the installation accepts it.
func Installation(m manifest.Manifest, account string, suspended bool, permissions map[string]string, events []string, page string) Finding {
	what := "installation of " + account
	if suspended {
		return Finding{Fail, what, "it is suspended: nothing is done there", "Its owner can lift that: " + page}
	}
	permissions, teams := withoutTeams(permissions)
	d := m.Compare(permissions, events)
	switch {
	case d.None() && teams:
		return Finding{OK, what, "permissions and events as in app.yml, and members: read, so that teams are asked for reviews, too", ""}
	case d.None():
		return Finding{OK, what, "permissions and events as in app.yml; code owners that are teams are not asked for reviews, which takes members: read", ""}
	case len(d.Missing)+len(d.Silent) > 0:
		return Finding{Fail, what, d.Words(), "If the App itself asks for them, its owner has yet to accept the new permissions: " + page}
	}
	return Finding{Warn, what, d.Words(), "Take what nobody asked for from the App's permissions."}
}

// Hook is where deliveries are sent to.
type Hook struct {
	URL         string
	ContentType string
	Insecure    bool // GitHub does not check the certificate
	Secret      bool
}

// hookPath is where the webhook listener answers.
const hookPath = "/webhooks/github"

// Webhook judges where deliveries go.
func Webhook(h Hook) Finding {
	const what = "webhook"
	do := "Set it under \"Webhook\" of the App's settings to https://HOST" + hookPath + " of the proxy before --listen-hooks."
	switch {
	case h.URL == "":
		return Finding{Fail, what, "GitHub has no address to send to", do}
	case !h.Secret:
		return Finding{Fail, what, "GitHub knows no secret: deliveries are not signed, and every one is refused", "Set the secret of --webhook-secret-file in the App's settings."}
	case !strings.HasSuffix(h.URL, hookPath):
		return Finding{Warn, what, "deliveries go to " + h.URL, do}
	case h.Insecure:
		return Finding{Fail, what, "GitHub does not check the certificate of " + h.URL, "Switch \"SSL verification\" on in the App's settings."}
	case h.ContentType != "json":
		return Finding{Fail, what, "deliveries come as " + h.ContentType, "Set the content type to application/json in the App's settings."}
	case !strings.HasPrefix(h.URL, "https://"):
		return Finding{Warn, what, "deliveries go to " + h.URL + ", without TLS", do}
	}
	return Finding{OK, what, "deliveries go to " + h.URL, ""}
}

// Delivery is one attempt to deliver.
type Delivery struct {
	GUID, Event string
	At          time.Time
	Status      int // of HTTP; 0: nobody answered
	Words       string
}

// Deliveries judges the newest attempts, newest first. What failed and came later
// is no failure.
func Deliveries(list []Delivery, now time.Time) Finding {
	const what = "deliveries"
	if len(list) == 0 {
		return Finding{Warn, what, "GitHub has delivered nothing in the last days", "Install the App, or ask for a \"ping\" under \"Advanced\" of the App's settings, and look again."}
	}
	came, lost := map[string]bool{}, map[string]bool{}
	for _, d := range list {
		switch {
		case d.Status >= 200 && d.Status < 300:
			came[d.GUID] = true
		case !came[d.GUID]:
			lost[d.GUID] = true
		}
	}
	newest := list[0]
	when := Age(now.Sub(newest.At)) + " ago"
	if newest.Status >= 200 && newest.Status < 300 {
		if len(lost) == 0 {
			return Finding{OK, what, fmt.Sprintf("the last %d arrived, the newest %s", len(came), when), ""}
		}
		return Finding{Warn, what, fmt.Sprintf("the newest arrived, %s; %d of the last %d did not", when, len(lost), len(came)+len(lost)), "Inspect asks for these again by itself while GitHub keeps them (3 days, Enterprise Server 7)."}
	}
	answer := fmt.Sprintf("was answered %d", newest.Status)
	if newest.Status == 0 {
		answer = "did not reach anybody"
	}
	if newest.Words != "" {
		answer += " (" + newest.Words + ")"
	}
	return Finding{Fail, what, fmt.Sprintf("the newest, %s, %s %s; %d of the last %d did not arrive", newest.Event, when, answer, len(lost), len(came)+len(lost)),
		"See that the webhook's address leads to --listen-hooks, that `inspect serve` runs, and that the secret is the same on both sides (401: it is not)."}
}

// Bounds on clocks: GitHub refuses a proof from the future, and one that is old.
const (
	skewWarn = 10 * time.Second
	skewFail = 50 * time.Second
)

// Clock judges how far this machine is ahead of GitHub.
func Clock(ahead time.Duration) Finding {
	const what = "clock"
	side := "ahead of"
	by := ahead
	if ahead < 0 {
		side, by = "behind", -ahead
	}
	words := fmt.Sprintf("this machine is %s %s GitHub", by.Round(time.Second), side)
	do := "Have the clock set by NTP (timedatectl set-ntp true)."
	switch {
	case by >= skewFail:
		return Finding{Fail, what, words + "; the App's proofs are refused", do}
	case by >= skewWarn:
		return Finding{Warn, what, words, do}
	}
	return Finding{OK, what, "this machine and GitHub agree to within seconds", ""}
}

// Token says what form tokens have. found says that the redactor takes one out
// of a text by its form alone.
func Token(form string, found bool) Finding {
	if !found {
		return Finding{Fail, "tokens", "GitHub gives tokens of a form that is not recognised in texts (" + form + ")", "Do not run sessions: update Inspect first."}
	}
	return Finding{OK, "tokens", "of an installation: " + form, ""}
}

// Snapshot is the current one of an environment on a node.
type Snapshot struct {
	Environment, Node, Commit string
	// Age is how long ago it was last known to be of the newest commit.
	Age    time.Duration
	MaxAge time.Duration // refresh.max_age; 0: none
}

// Snapshots judges how old a repository's snapshots are.
func Snapshots(list []Snapshot) []Finding {
	if len(list) == 0 {
		return []Finding{{Warn, "snapshots", "there is none: the first session has to wait for the whole setup", "`/inspect refresh`, or `inspect env build`, prepares one."}}
	}
	var out []Finding
	for _, s := range list {
		f := Finding{OK, "snapshot", fmt.Sprintf("on %s: of %.12s, checked %s ago", s.Node, s.Commit, Age(s.Age)), ""}
		if s.MaxAge > 0 && s.Age > s.MaxAge {
			f.Level, f.Words = Warn, f.Words+fmt.Sprintf("; refresh.max_age is %s", Age(s.MaxAge))
			f.Do = "`inspect env status` says why it is not refreshed; `/inspect refresh` asks for it now."
		}
		out = append(out, f)
	}
	return out
}

// Age is a duration as people say it.
func Age(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return d.Round(time.Second).String()
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// Worst is the highest level among findings.
func Worst(findings []Finding) string {
	order := []string{OK, Warn, Fail}
	worst := OK
	for _, f := range findings {
		if slices.Index(order, f.Level) > slices.Index(order, worst) {
			worst = f.Level
		}
	}
	return worst
}
