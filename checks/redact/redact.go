// Package redact is the one place that takes secrets and live markup out of
// text before the text leaves Inspect or is stored. It is a pure leaf: strings
// come in, harmless strings go out.
//
// Secrets go by exact value (also URL-encoded, as JSON and HTML write them, in
// hexadecimal, and in base64 whatever stands around them there) and by pattern.
// Patterns have no upper length: a token of a new and longer form is taken whole.
// Not seen: a secret that something cut into pieces, and base64 broken into lines.
package redact

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"html"
	"net/url"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"
)

// Mark is what stands where a secret stood.
const Mark = "[redacted]"

// minSecret is the shortest exact value that is looked for: shorter ones would
// mangle ordinary text and are no secrets.
const minSecret = 6

// Redactor replaces secrets. The zero value knows the patterns only. It is
// safe for concurrent use.
type Redactor struct {
	mu      sync.RWMutex
	needles map[string]int // spellings, by how many known values have them
	values  map[string]bool
	replace *strings.Replacer
}

// New returns a Redactor that also replaces the given exact values.
func New(secrets ...string) *Redactor {
	r := &Redactor{}
	r.Add(secrets...)
	return r
}

// With returns a Redactor that knows what r knows now, and more.
func (r *Redactor) With(secrets ...string) *Redactor {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for v := range r.values {
		secrets = append(secrets, v)
	}
	return New(secrets...)
}

// Add makes more exact values known. Values under six bytes are ignored.
func (r *Redactor) Add(secrets ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, secret := range secrets {
		secret = strings.TrimSpace(secret)
		if len(secret) < minSecret || r.values[secret] {
			continue
		}
		if r.values == nil {
			r.values, r.needles = map[string]bool{}, map[string]int{}
		}
		r.values[secret] = true
		for _, form := range forms(secret) {
			r.needles[form]++
		}
	}
	r.rebuild()
}

// Forget is for values that are no secrets any more: a token some time after
// it expired. Text that was held back meanwhile may still bear it, so forget late.
func (r *Redactor) Forget(secret string) {
	secret = strings.TrimSpace(secret)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.values[secret] {
		return
	}
	delete(r.values, secret)
	for _, form := range forms(secret) {
		if r.needles[form]--; r.needles[form] <= 0 {
			delete(r.needles, form)
		}
	}
	r.rebuild()
}

// rebuild makes the replacer anew. Longest first: a secret that contains
// another is taken whole.
func (r *Redactor) rebuild() {
	all := make([]string, 0, len(r.needles))
	for n := range r.needles {
		all = append(all, n)
	}
	sort.Slice(all, func(i, j int) bool {
		return len(all[i]) > len(all[j]) || len(all[i]) == len(all[j]) && all[i] < all[j]
	})
	pairs := make([]string, 0, 2*len(all))
	for _, n := range all {
		pairs = append(pairs, n, Mark)
	}
	r.replace = strings.NewReplacer(pairs...)
}

// forms are the spellings of a secret that are looked for.
func forms(secret string) []string {
	out := []string{secret}
	inHex := hex.EncodeToString([]byte(secret))
	for _, enc := range []string{
		url.QueryEscape(secret), url.PathEscape(secret),
		html.EscapeString(secret), strings.ReplaceAll(html.EscapeString(secret), "+", "&#43;"), // as html/template does
		jsonText(secret, true), jsonText(secret, false), inHex, strings.ToUpper(inHex),
	} {
		if !slices.Contains(out, enc) {
			out = append(out, enc)
		}
	}
	// In base64 a value looks different by where it starts modulo three. The
	// letters that depend on the value alone are the same in any text around it.
	for shift := 0; shift < 3; shift++ {
		padded := strings.Repeat("\x00", shift) + secret
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			full := enc.EncodeToString([]byte(padded))
			from := (shift*8 + 5) / 6 // the first letter without bits of the padding
			to := len(padded) * 8 / 6 // letters wholly made of the value
			if to-from >= 8 {
				out = append(out, full[from:to])
			}
		}
	}
	return out
}

// jsonText is s as it stands in a JSON string, with or without the escapes
// that make it safe in HTML.
func jsonText(s string, safe bool) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(safe)
	_ = e.Encode(s) // a string always encodes
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(b.String()), `"`), `"`)
}

type rule struct {
	name string
	need string // the rule is tried only where this stands, in lower case
	// core is a part of re that begins with letters of its own, which are looked for
	// ten times faster than what may stand before them; nil where there is none.
	core func() *regexp.Regexp
	re   func() *regexp.Regexp
}

// in says whether the rule may find something in s, which is lower in lower case.
func (r rule) in(s, lower string) bool {
	return strings.Contains(lower, r.need) && (r.core == nil || r.core().MatchString(s))
}

// pattern is a regular expression that is compiled when it is first needed: this
// package is part of programs that start often and mostly need none.
func pattern(form string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(form) })
}

// token is a rule for what begins with some letters of its own, wherever a word
// begins: also after an escape of JSON, of a URL or of a terminal, whose last
// letter is no part of it.
func token(name, need, form string) rule {
	return rule{name, need, pattern(form), pattern(`(?:\b|_|\\[abfnrtv]|\\u[0-9a-fA-F]{4}|%[0-9a-fA-F]{2}|\x1b\[[0-9;]*[A-Za-z])(` + form + `)`)}
}

// rules find secrets nobody told us of. Group 1, where there is one, is the secret.
var rules = []rule{
	token("github-token", "gh", `gh[a-z]_[A-Za-z0-9][A-Za-z0-9_.\-]{15,}`),
	token("github-pat", "github_pat_", `github_pat_[A-Za-z0-9_]{20,}`),
	{"private-key", "private key-----", nil, pattern(`-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----|[\s\S]*)`)},
	token("jwt", "eyj", `eyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*`),
	token("aws-key", "akia", `AKIA[A-Z0-9]{16,}\b`),
	token("aws-key", "asia", `ASIA[A-Z0-9]{16,}\b`),
	token("anthropic-key", "sk-ant-", `sk-ant-[A-Za-z0-9_\-]{16,}`),
	token("openai-key", "sk-", `sk-[A-Za-z0-9_\-]{20,}`),
	token("slack-token", "xox", `xox[a-z]-[A-Za-z0-9\-]{10,}`),
	token("gitlab-token", "glpat-", `glpat-[A-Za-z0-9_\-]{16,}`),
	token("npm-token", "npm_", `npm_[A-Za-z0-9]{30,}`),
	token("google-key", "aiza", `AIza[A-Za-z0-9_\-]{30,}`),
	token("buildkite-token", "bk", `bk(?:ua|aj|at|ct)_[A-Za-z0-9]{16,}`),
	{"url-password", "://", pattern(`://[^\s/:@'"<>]*:[^\s/@'"<>]{3,}@`), pattern(`\b[a-zA-Z][a-zA-Z0-9+.\-]{1,20}://[^\s/:@'"<>]*:([^\s/@'"<>]{3,})@`)},
	{"authorization", "authorization", nil, pattern(`(?i)\bauthorization:\s*(?:basic|bearer|token)\s+([A-Za-z0-9+/=_.\-]{8,})`)},
}

// Known returns s without the exact values r knows. It is a hundred times
// faster than String, for what has passed a String elsewhere.
func (r *Redactor) Known(s string) string {
	if r == nil {
		return s
	}
	r.mu.RLock()
	rep := r.replace
	r.mu.RUnlock()
	if rep == nil {
		return s
	}
	return rep.Replace(s)
}

// String returns s without secrets.
func (r *Redactor) String(s string) string {
	s = r.Known(s)
	lower := strings.ToLower(s)
	for _, rule := range rules {
		if rule.in(s, lower) {
			s = replaceRule(s, rule.re())
		}
	}
	return s
}

// replaceRule puts Mark where the rule's secret stood, keeping what stands
// around group 1.
func replaceRule(s string, re *regexp.Regexp) string {
	found := re.FindAllStringSubmatchIndex(s, -1)
	if found == nil {
		return s
	}
	var b strings.Builder
	at := 0
	for _, m := range found {
		from, to := m[0], m[1]
		if len(m) > 2 && m[2] >= 0 {
			from, to = m[2], m[3]
		}
		if s[from:to] == Mark {
			continue
		}
		b.WriteString(s[at:from])
		b.WriteString(Mark)
		at = to
	}
	b.WriteString(s[at:])
	return b.String()
}

// Finding is a secret found in text. The value itself is never part of it.
type Finding struct {
	Line int    // 1-based, where it begins
	End  int    // where it ends
	Rule string // name of the pattern, or "known-secret"
}

// Find lists the secrets that patterns see in s, in order of lines.
func Find(s string) []Finding { return (*Redactor)(nil).Find(s) }

// Find lists the secrets in s that r knows or a pattern sees, in order of lines.
func (r *Redactor) Find(s string) []Finding {
	out := inLines(s, r.spans(s))
	if strings.ContainsRune(s, 0) { // UTF-16 and the like
		plain := strings.ReplaceAll(s, "\x00", "")
		out = append(out, inLines(plain, r.spans(plain))...)
	}
	slices.SortFunc(out, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), strings.Compare(a.Rule, b.Rule), cmp.Compare(a.End, b.End))
	})
	return slices.Compact(out)
}

// span is where a secret stands.
type span struct {
	from, to int
	rule     string
}

// spans are the places of secrets, in order of where they begin. They may overlap.
func (r *Redactor) spans(s string) []span {
	var out []span
	if r != nil {
		r.mu.RLock()
		for n := range r.needles {
			for at := 0; ; {
				i := strings.Index(s[at:], n)
				if i < 0 {
					break
				}
				at += i + len(n)
				out = append(out, span{at - len(n), at, "known-secret"})
			}
		}
		r.mu.RUnlock()
	}
	lower := strings.ToLower(s)
	for _, rule := range rules {
		if !rule.in(s, lower) {
			continue
		}
		for _, m := range rule.re().FindAllStringSubmatchIndex(s, -1) {
			from, to := m[0], m[1]
			if len(m) > 2 && m[2] >= 0 {
				from, to = m[2], m[3]
			}
			if s[from:to] != Mark {
				out = append(out, span{from, to, rule.name})
			}
		}
	}
	slices.SortFunc(out, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	return out
}

// inLines counts the lines of spans, which are in order.
func inLines(s string, spans []span) []Finding {
	var out []Finding
	line, at := 1, 0
	for _, p := range spans {
		line += strings.Count(s[at:p.from], "\n")
		at = p.from
		out = append(out, Finding{Line: line, End: line + strings.Count(s[p.from:p.to], "\n"), Rule: p.rule})
	}
	return out
}
