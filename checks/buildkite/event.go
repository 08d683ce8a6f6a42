package buildkite

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// MaxEvent bounds the body of a webhook, in bytes. Builds come without jobs there.
const MaxEvent = 5 << 20

// Event is what a webhook says. The build may be newer than the event's name: two
// changes in quick succession send the later state twice. So nothing is to be
// done on the word of it but to read the build again.
type Event struct {
	Name         string // build.finished, job.finished, ping, …
	Organization string // slug; builds have it only in addresses
	Pipeline     Pipeline
	Build        Build // without jobs; zero in ping
	Job          Job   // zero but in job.*
}

// ParseEvent reads the body of a webhook that was verified. Name is the value of
// EventHeader, which is part of no signature: the body says it again, and the two
// must be the same.
func ParseEvent(name string, body []byte) (Event, error) {
	if len(body) > MaxEvent {
		return Event{}, fmt.Errorf("the webhook has %d bytes, at most %d are read", len(body), MaxEvent)
	}
	var w struct {
		Event        string        `json:"event"`
		Build        *wireBuild    `json:"build"`
		Job          *wireJob      `json:"job"`
		Pipeline     *wirePipeline `json:"pipeline"`
		Organization struct {
			Slug string `json:"slug"`
		} `json:"organization"`
	}
	if err := json.Unmarshal(body, &w); err != nil {
		return Event{}, errors.New("the webhook is no JSON that can be read: " + oneLine(err.Error()))
	}
	if w.Event == "" || w.Event != name {
		return Event{}, fmt.Errorf("the webhook's header says %q, its body %q", short(name), short(w.Event))
	}
	e := Event{Name: cut(w.Event, 100)}
	addresses := []string{}
	if w.Build != nil {
		e.Build = w.Build.build()
		e.Pipeline = e.Build.Pipeline
		addresses = append(addresses, w.Build.URL)
	}
	if w.Pipeline != nil {
		e.Pipeline = w.Pipeline.pipeline()
		addresses = append(addresses, w.Pipeline.URL)
	}
	if w.Job != nil {
		e.Job = w.Job.job()
	}
	if e.Organization = organization(addresses...); slug.MatchString(w.Organization.Slug) {
		e.Organization = w.Organization.Slug
	}
	if e.Build.ID != "" {
		e.Build.Organization, e.Build.Pipeline = e.Organization, e.Pipeline
	}
	return e, nil
}

// Key tells deliveries apart, since Buildkite sends no id with them: the same
// event about the same thing in the same state with the same words is one.
func (e Event) Key(body []byte) string {
	h := sha256.New()
	sum := sha256.Sum256(body)
	for _, s := range []string{e.Name, e.Build.ID, e.Build.State, e.Job.ID, e.Job.State, string(sum[:])} {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return hex.EncodeToString(h.Sum(nil))
}
