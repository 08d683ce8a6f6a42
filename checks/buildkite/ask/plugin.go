package ask

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"inspect/checks/buildkite/step"
)

// maxConfig bounds a plugin's configuration, in bytes.
const maxConfig = 256 << 10

// Config is a step's configuration as plugin.yml declares it, in Options and the
// flags it stands for.
type Config struct {
	Server      string        `json:"server"`
	Audience    string        `json:"audience"`
	Repository  string        `json:"repository"`
	Prompt      string        `json:"prompt"`
	Issue       looseText     `json:"issue"`
	FixBuild    bool          `json:"fix-build"`
	Base        string        `json:"base"`
	Harness     string        `json:"harness"`
	Model       string        `json:"model"`
	Budget      looseText     `json:"budget"`
	Timeout     string        `json:"timeout"`
	Once        string        `json:"once"`
	Wait        bool          `json:"wait"`
	WaitTimeout looseDuration `json:"wait-timeout"`
	SoftFail    bool          `json:"soft-fail"`
	IfFailed    looseList     `json:"if-failed"`
	Evidence    bool          `json:"evidence"`
	Program     string        `json:"program"` // read by the hook
}

// looseText is a text, or a number as it is written.
type looseText string

func (t *looseText) UnmarshalJSON(b []byte) error {
	var n json.Number
	if err := json.Unmarshal(b, &n); err == nil {
		*t = looseText(n)
		return nil
	}
	return json.Unmarshal(b, (*string)(t))
}

// looseList is a list of texts, or one of them.
type looseList []string

func (l *looseList) UnmarshalJSON(b []byte) error {
	var one string
	if err := json.Unmarshal(b, &one); err == nil {
		*l = looseList{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(l))
}

type looseDuration time.Duration

func (d *looseDuration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	v, err := time.ParseDuration(s)
	if err != nil || v <= 0 {
		return fmt.Errorf("%q is no time such as 90m", s)
	}
	*d = looseDuration(v)
	return nil
}

// ParseConfig reads BUILDKITE_PLUGIN_CONFIGURATION: nothing of it passes through
// a shell.
func ParseConfig(s string) (Options, error) {
	if s == "" {
		return Options{}, errors.New("BUILDKITE_PLUGIN_CONFIGURATION is not set: --plugin is for the plugin's hook, and the agent must be v3.44 or later")
	}
	if len(s) > maxConfig {
		return Options{}, fmt.Errorf("the plugin's configuration has %d bytes, at most %d are read", len(s), maxConfig)
	}
	d := json.NewDecoder(bytes.NewReader([]byte(s)))
	d.DisallowUnknownFields()
	var c Config
	if err := d.Decode(&c); err != nil {
		return Options{}, fmt.Errorf("the plugin's configuration: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	issue := 0
	if c.Issue != "" {
		n, err := strconv.Atoi(strings.TrimPrefix(string(c.Issue), "#"))
		if err != nil || n <= 0 {
			return Options{}, fmt.Errorf("the plugin's configuration: issue %q is no number", string(c.Issue))
		}
		issue = n
	}
	return Options{
		Server: c.Server, Audience: c.Audience, Wait: c.Wait, SoftFail: c.SoftFail, Evidence: c.Evidence, Most: time.Duration(c.WaitTimeout), IfFailed: c.IfFailed,
		Wish: step.Ask{Repository: c.Repository, Prompt: c.Prompt, Issue: issue, FixBuild: c.FixBuild, Base: c.Base,
			Harness: c.Harness, Model: c.Model, Budget: string(c.Budget), Timeout: c.Timeout, Once: c.Once},
	}, nil
}

// Secrets are the values of variables that Buildkite's agent takes for secrets by
// their names, as it does in logs.
func Secrets(env []string) []string {
	patterns := []string{"*_PASSWORD", "*_SECRET", "*_TOKEN", "*_PRIVATE_KEY", "*_ACCESS_KEY", "*_SECRET_KEY", "*_CONNECTION_STRING"}
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "BUILDKITE_REDACTED_VARS="); ok {
			patterns = append(patterns, strings.Split(v, ",")...)
		}
	}
	var out []string
	for _, e := range env {
		name, v, _ := strings.Cut(e, "=")
		for _, p := range patterns {
			if p = strings.TrimSpace(p); v != "" && p != "" && (name == p || strings.HasPrefix(p, "*") && strings.HasSuffix(name, p[1:])) {
				out = append(out, v)
				break
			}
		}
	}
	return out
}
