package spec

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"
)

// A kind of value, for messages and for the published JSON schema.
type kind int

const (
	kindMap kind = iota
	kindList
	kindText
	kindInt
	kindNumber
	kindBool
	kindSize
	kindDuration
	kindAny // shape is checked by the entries of a variant
)

// field describes one place of the file. The table below is the single source
// of what is allowed: the validator, the messages and the JSON schema read it.
type field struct {
	kind     kind
	help     string              // what is expected, completes "expected …"
	check    func(string) bool   // of a scalar's text, after its kind
	problem  func(string) string // the same with a sentence of its own; empty: nothing is wrong
	only     []string            // allowed values of a text
	later    bool                // parsed and validated, but not acted upon yet: refused
	laterIf  func(string) bool   // the same for some values only
	required bool
	fields   map[string]field // of a map
	anyKey   *field           // of a map with free keys
	anyName  bool             // of such a map: keys are not ours, such as labels
	item     *field           // of a list
	variants []field          // of kindAny: the first whose kind matches
	examples []string         // of a text, for editors
	max      int              // entries of a list or map, bytes of a text; 0: 100 entries, 4096 bytes
}

func schema() field {
	line := field{kind: kindText, help: "a shell line", check: notBlank}
	secret := field{kind: kindText, help: "the name of a secret: upper-case letters, digits and '_'", max: 64, check: secretName.MatchString, problem: secretProblem}
	secrets := field{kind: kindList, help: "a list of names of secrets", max: 20, item: &secret}
	step := field{kind: kindAny, help: "a shell line or a map with run and secrets", variants: []field{
		line,
		{kind: kindMap, help: "a map with run and secrets", fields: map[string]field{
			"run":     {kind: kindText, help: "a shell line", check: notBlank, required: true},
			"secrets": secrets,
		}},
	}}
	host := field{kind: kindText, help: egressHelp, examples: ecosystems, max: 300, problem: func(s string) string { return EgressProblem(strings.ToLower(s)) }}
	return field{kind: kindMap, help: "a map", fields: map[string]field{
		"version": {kind: kindInt, help: "the number 1", only: []string{"1"}, required: true},
		"image":   {kind: kindText, help: "an image by digest (name@sha256:…)", check: imageName.MatchString, max: 328},
		"setup":   {kind: kindList, help: "a list of shell lines", item: &step, max: 50},
		"data": {kind: kindMap, help: "a map", fields: map[string]field{
			"provenance": {kind: kindText, help: "synthetic, scrubbed or production", only: []string{"synthetic", "scrubbed", "production"}, required: true},
			"load":       {kind: kindList, help: "a list of shell lines", item: &step, max: 50},
		}},
		"services": {kind: kindMap, help: "a map of services", max: 20, anyKey: &field{kind: kindMap, help: "a map with command", fields: map[string]field{
			"command": {kind: kindText, help: "a shell line that stays in the foreground", check: notBlank, required: true},
			"ready":   {kind: kindText, help: "a shell line or an http:// address", check: notBlank, problem: readyProblem},
			"stop":    {kind: kindText, help: "a shell line", check: notBlank},
			"port":    {kind: kindInt, help: "a port from 1 to 65535", check: between(1, 65535), problem: portProblem},
			"secrets": secrets,
		}}},
		"verify": {kind: kindList, help: "a list of commands", max: 50, item: &field{kind: kindMap, help: "a map with name and run", fields: map[string]field{
			"name":       {kind: kindText, help: "a name of letters, digits, '-', '_', '.', at most 40", check: regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$`).MatchString, required: true},
			"run":        {kind: kindText, help: "a shell line", check: notBlank},
			"secrets":    secrets,
			"report":     {kind: kindText, help: "exit, gotest, tap, junit:<glob> or sarif:<glob>", check: regexp.MustCompile(`^(exit|gotest|tap|(junit|sarif):.+)$`).MatchString, problem: globProblem, max: 200},
			"coverage":   {kind: kindText, help: "go:<file>, cobertura:<glob> or lcov:<glob>", check: regexp.MustCompile(`^(go|cobertura|lcov):.+$`).MatchString, problem: globProblem, max: 200},
			"screenshot": {kind: kindText, help: "an http:// address on the sandbox's own loopback, of which a picture is taken", check: notBlank, problem: screenshotProblem, max: 1024},
			"viewport":   {kind: kindText, help: viewportHelp, check: isViewport},
			"wait_for":   {kind: kindText, help: "a CSS selector of what must be visible before the picture is taken", check: oneLine, max: 200},
			"full_page":  {kind: kindBool, help: "true or false"},
		}}},
		"refresh": {kind: kindMap, help: "a map", fields: map[string]field{
			"every":      {kind: kindDuration, help: "a duration like 30m, from 1m to 168h", check: durationBetween(time.Minute, week)},
			"max_age":    {kind: kindDuration, help: "a duration like 2h, from 1m to 8760h", check: durationBetween(time.Minute, 365*24*time.Hour)},
			"max_drift":  {kind: kindInt, help: "a number of commits from 1 to 1000000", check: between(1, 1_000_000)},
			"when_stale": {kind: kindText, help: "use, refuse or cold", only: []string{StaleUse, StaleRefuse, StaleCold}},
		}},
		"keep_failed": {kind: kindDuration, help: "a duration like 2h, from 0s to 168h", check: durationBetween(0, week)},
		"limits": {kind: kindMap, help: "a map", fields: map[string]field{
			"cpu":                              {kind: kindNumber, help: "a number of cores from 0.1 to 256", check: inRange(0.1, 256)},
			"memory":                           {kind: kindSize, help: "a size like 4GiB, from 64MiB to 1TiB", check: sizeBetween(64<<20, 1<<40)},
			"pids":                             {kind: kindInt, help: "a number from 16 to 32768", check: between(16, 32768)},
			"disk":                             {kind: kindSize, help: "a size like 10GiB, from 16MiB to 10TiB", check: sizeBetween(16<<20, 10<<40)},
			"egress":                           {kind: kindSize, help: "a size like 10GiB, from 1MiB to 1TiB", check: sizeBetween(1<<20, 1<<40)},
			"timeout":                          {kind: kindDuration, help: "a duration like 45m, from 10s to 24h", check: durationBetween(10*time.Second, 24*time.Hour)},
			"concurrent":                       {kind: kindInt, help: "a number from 1 to 1000", check: between(1, 1000)},
			"budget_usd":                       {kind: kindNumber, help: "an amount in US dollars from 0.01 to 100000, with at most three decimals", check: budget},
			"open_pull_requests":               {kind: kindInt, help: "a number from 1 to 1000", check: between(1, 1000)},
			"open_pull_requests_per_requester": {kind: kindInt, help: "a number from 1 to 1000", check: between(1, 1000)},
		}},
		"egress": {kind: kindList, help: "a list of hosts and ecosystems", max: 200, item: &field{kind: kindAny, help: "a host or a map with host and header_from", variants: []field{
			host,
			{kind: kindMap, help: "a map with host and header_from", fields: map[string]field{
				"host":        {kind: kindText, help: "one host like npm.internal.example", problem: injectHostProblem, max: host.max, required: true},
				"header_from": withRequired(secret),
				"header":      {kind: kindText, help: "the name of a header, by default Authorization", max: 64, check: headerName.MatchString, problem: headerProblem},
			}},
		}}},
		"harness": {kind: kindMap, help: "a map", fields: map[string]field{
			"kind":    {kind: kindText, help: "opencode, claude, codex or command", only: []string{HarnessOpenCode, HarnessClaude, HarnessCodex, HarnessCommand}, required: true},
			"command": {kind: kindText, help: "a shell line", check: notBlank},
			"model":   {kind: kindText, help: "a model like provider/name", check: modelName.MatchString},
		}},
		"publish": {kind: kindMap, help: "a map", fields: map[string]field{
			"prefix":    {kind: kindText, help: "lower-case letters, digits and '-', at most 30", check: regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,28}[a-z0-9])?$`).MatchString},
			"draft":     {kind: kindBool, help: "true", laterIf: func(s string) bool { return s == "false" }},
			"push":      {kind: kindText, help: "stacked or head", only: []string{"stacked", "head"}},
			"protected": {kind: kindList, help: "a list of path patterns", item: &field{kind: kindText, help: "a path pattern like **/migrations/**, at most 200 bytes and with at most two groups in braces", check: plainPattern}, max: 200},
			"max_files": {kind: kindInt, help: "a number from 1 to 10000", check: between(1, 10_000)},
			"max_bytes": {kind: kindSize, help: "a size like 4MiB, up to 64MiB", check: sizeBetween(1, 64<<20)},
			"four_eyes": {kind: kindBool, help: "true or false"},
			"signed":    {kind: kindText, help: "auto, always or never", only: []string{SignedAuto, SignedAlways, SignedNever}},
			"signoff":   {kind: kindBool, help: "true or false"},
			"reviewers": {kind: kindText, help: "codeowners or none", only: []string{ReviewersCode, ReviewersNone}},
		}},
		"checks": {kind: kindMap, help: "a map", fields: map[string]field{
			"required": {kind: kindBool, help: "true or false"},
			"buildkite": {kind: kindMap, help: "a map", fields: map[string]field{
				"builds":   {kind: kindText, help: "follow or create", only: []string{BuildsFollow, BuildsCreate}, required: true},
				"required": {kind: kindBool, help: "true or false"},
				"timeout":  {kind: kindDuration, help: "a duration like 1h, from 1m to 24h", check: durationBetween(time.Minute, 24*time.Hour)},
			}},
		}},
		"triggers": {kind: kindMap, help: "a map", fields: map[string]field{
			"labels":               {kind: kindList, help: "a list of label names", item: &field{kind: kindText, help: "a label name", check: notBlank, max: 50}, max: 10},
			"commands":             {kind: kindText, help: "write", only: []string{"write"}},
			"on_buildkite_failure": {kind: kindBool, help: "true or false"},
			"buildkite_attempts":   {kind: kindInt, help: fmt.Sprintf("a number from 1 to %d", MaxAttempts), check: between(1, MaxAttempts)},
		}},
	}}
}

// imageName is how an image is named: by its registry, if it has one there, its
// name, perhaps a tag, and the digest, which alone decides.
var imageName = regexp.MustCompile(`^[a-z0-9][A-Za-z0-9._:/-]{0,254}@sha256:[0-9a-f]{64}$`)

var secretName = regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,63}$`)

// IsSecretName tells whether a secret can be called s.
func IsSecretName(s string) bool { return secretName.MatchString(s) && secretProblem(s) == "" }

// secretProblem refuses names that mean something to the programs of a step.
func secretProblem(s string) string {
	switch {
	case slices.Contains([]string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "IFS", "ENV", "PWD", "NODE_OPTIONS", "JDK_JAVA_OPTIONS"}, s),
		strings.HasPrefix(s, "LD_"), strings.HasPrefix(s, "INSPECT_"), strings.HasPrefix(s, "GIT_"), strings.HasSuffix(s, "_PROXY"):
		return "expected another name: this one means something to programs"
	}
	return ""
}

// injectHostProblem refuses what is not one host: a credential never goes to
// whatever matches a pattern.
func injectHostProblem(s string) string {
	if IsEcosystem(strings.ToLower(s)) || strings.ContainsAny(s, "*?[{") {
		return "expected one host like npm.internal.example: a credential is not added for patterns and ecosystems"
	}
	return EgressProblem(strings.ToLower(s))
}

var headerName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]{0,63}$`)

// headerProblem refuses headers that steer a connection or say where it goes.
func headerProblem(s string) string {
	switch strings.ToLower(s) {
	case "host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "keep-alive", "expect", "cookie":
		return "expected a header that holds a credential"
	}
	if l := strings.ToLower(s); strings.HasPrefix(l, "proxy-") || strings.HasPrefix(l, "x-forwarded-") || strings.HasPrefix(l, "x-upstream-") {
		return "expected a header that holds a credential"
	}
	return ""
}

func withRequired(f field) field { f.required = true; return f }

// plainPattern accepts patterns that match in a bounded time: alternatives in
// braces multiply, and so do wildcards.
func plainPattern(s string) bool {
	return notBlank(s) && len(s) <= 200 && strings.Count(s, "{") <= 2 && strings.Count(s, ",") <= 20 &&
		strings.Count(s, "*") <= 12 && doublestar.ValidatePattern(s)
}

// modelName is how a model is named: the provider as the operator calls it, and
// the provider's own name, which may hold slashes.
var modelName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,39}(/[A-Za-z0-9][A-Za-z0-9._:@-]{0,99}){1,3}$`)

// budget accepts amounts of at most three decimals.
func budget(s string) bool {
	_, frac, _ := strings.Cut(s, ".")
	m, err := ParseMoney(s)
	return err == nil && len(frac) <= 3 && m >= Dollar/100 && m <= 100_000*Dollar
}

// loopback are the hosts a service can be asked at.
var loopback = []string{"localhost", "127.0.0.1", "::1"}

// readyProblem says what is wrong with the address of a service.
func readyProblem(s string) string {
	if strings.HasPrefix(s, "https://") {
		return "expected an http:// address or a shell line: nothing inside knows the certificate of an https:// address"
	}
	if !strings.HasPrefix(s, "http://") {
		return ""
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || u.User != nil || strings.ContainsAny(s, " \t\r\n"):
		return "expected an address like http://127.0.0.1:5173/"
	case !slices.Contains(loopback, u.Hostname()):
		return "expected an address on the sandbox's own loopback, http://127.0.0.1:…, and no other host"
	case u.Port() != "" && !between(1, 65535)(u.Port()):
		return "expected a port from 1 to 65535 in the address"
	}
	return ""
}

// Ports on the sandbox's loopback that are ours: the egress proxy and the model
// gateway, see package sandbox.
const (
	egressPort = 41710
	modelPort  = 41711
)

func portProblem(s string) string {
	if n, _ := strconv.Atoi(s); n == egressPort || n == modelPort {
		return "expected another port: 41710 and 41711 are the sandbox's own"
	}
	return ""
}

func notBlank(s string) bool { return strings.TrimSpace(s) != "" && !strings.ContainsRune(s, 0) }

func between(lo, hi int64) func(string) bool {
	return func(s string) bool { n, err := strconv.ParseInt(s, 10, 64); return err == nil && n >= lo && n <= hi }
}

func inRange(lo, hi float64) func(string) bool {
	return func(s string) bool { n, err := strconv.ParseFloat(s, 64); return err == nil && n >= lo && n <= hi }
}

func sizeBetween(lo, hi int64) func(string) bool {
	return func(s string) bool { n, err := parseSize(s); return err == nil && n >= lo && n <= hi }
}

const week = 7 * 24 * time.Hour

func durationBetween(lo, hi time.Duration) func(string) bool {
	return func(s string) bool { d, err := time.ParseDuration(s); return err == nil && d >= lo && d <= hi }
}

var sizeForm = regexp.MustCompile(`^([0-9]{1,12})(B|KiB|MiB|GiB|TiB)$`)

// parseSize reads a whole number with a binary unit: 512MiB, 4GiB.
func parseSize(s string) (int64, error) {
	m := sizeForm.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("%q is not a size like 4GiB", s)
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		return 0, err
	}
	shift := map[string]uint{"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}[m[2]]
	if n > (1<<62)>>shift {
		return 0, fmt.Errorf("%q is too large", s)
	}
	return n << shift, nil
}

// JSONSchema returns the schema of .inspect.yml for editors (draft 2020-12).
// Keys that are refused today are in it and say so in their description.
func JSONSchema() []byte {
	root := jsonSchema(schema())
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = FileName
	out, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic("spec: the schema is made of plain maps: " + err.Error())
	}
	return append(out, '\n')
}

func jsonSchema(f field) map[string]any {
	out := map[string]any{"description": f.help}
	if f.later {
		out["description"] = f.help + " (not supported yet)"
	}
	switch f.kind {
	case kindMap:
		out["type"] = "object"
		if f.anyKey != nil {
			out["additionalProperties"] = jsonSchema(*f.anyKey)
			break
		}
		props, required := map[string]any{}, []string{}
		for _, name := range sortedKeys(f.fields) {
			props[name] = jsonSchema(f.fields[name])
			if f.fields[name].required {
				required = append(required, name)
			}
		}
		out["properties"], out["additionalProperties"] = props, false
		if len(required) > 0 {
			out["required"] = required
		}
	case kindList:
		out["type"], out["items"] = "array", jsonSchema(*f.item)
	case kindInt:
		out["type"] = "integer"
	case kindNumber:
		out["type"] = "number"
	case kindBool:
		out["type"] = "boolean"
	case kindAny:
		var any []map[string]any
		for _, v := range f.variants {
			any = append(any, jsonSchema(v))
		}
		out["anyOf"] = any
	default:
		out["type"] = "string"
		if f.only != nil {
			out["enum"] = f.only
		}
		if f.examples != nil {
			out["examples"] = f.examples
		}
	}
	if f.kind == kindInt && f.only != nil {
		var nums []int
		for _, s := range f.only {
			n, _ := strconv.Atoi(s)
			nums = append(nums, n)
		}
		out["enum"] = nums
	}
	return out
}
