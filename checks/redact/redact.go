// Package redact is the one place that takes secrets and live markup out of
// text before the text leaves Inspect or is stored. It is a pure leaf: strings
// come in, harmless strings go out.
//
// Secrets go by exact value (also URL-encoded and in base64, whatever stands
// around them there) and by pattern. Patterns have no upper length: a token of
// a new and longer form is taken whole.
package redact

import (
	"encoding/base64"
	"net/url"
	"regexp"
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
	for _, s := range secrets {
		r.Add(s)
	}
	return r
}

// Add makes one more exact value known. Values under six bytes are ignored.
func (r *Redactor) Add(secret string) {
	secret = strings.TrimSpace(secret)
	if len(secret) < minSecret {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.values[secret] {
		return
	}
	if r.values == nil {
		r.values, r.needles = map[string]bool{}, map[string]int{}
	}
	r.values[secret] = true
	for _, form := range forms(secret) {
		r.needles[form]++
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

// Forms are the spellings of a secret by which it is found: the value itself,
// URL-encoded, in base64 whatever stands around it there.
func Forms(secret string) []string { return forms(secret) }

// forms are the spellings of a secret that are looked for.
func forms(secret string) []string {
	out := []string{secret}
	for _, enc := range []string{url.QueryEscape(secret), url.PathEscape(secret)} {
		if enc != secret {
			out = append(out, enc)
		}
	}
	if strings.ContainsRune(secret, '\n') { // as it stands in a JSON string
		out = append(out, strings.ReplaceAll(secret, "\n", `\n`))
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

type rule struct {
	name string
	re   *regexp.Regexp
}

// rules find secrets nobody told us of. Group 1, where there is one, is the secret.
var rules = []rule{
	{"github-token", regexp.MustCompile(`\bgh[a-z]_[A-Za-z0-9][A-Za-z0-9_.\-]{15,}`)},
	{"github-pat", regexp.MustCompile(`\bgithub_pat_[A-Za-z0-9_]{20,}`)},
	{"private-key", regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----|[\s\S]*)`)},
	{"jwt", regexp.MustCompile(`\beyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*`)},
	{"aws-key", regexp.MustCompile(`\b(?:AKIA|ASIA)[A-Z0-9]{16,}\b`)},
	{"anthropic-key", regexp.MustCompile(`\bsk-ant-[A-Za-z0-9_\-]{16,}`)},
	{"openai-key", regexp.MustCompile(`\bsk-[A-Za-z0-9_\-]{20,}`)},
	{"slack-token", regexp.MustCompile(`\bxox[a-z]-[A-Za-z0-9\-]{10,}`)},
	{"gitlab-token", regexp.MustCompile(`\bglpat-[A-Za-z0-9_\-]{16,}`)},
	{"npm-token", regexp.MustCompile(`\bnpm_[A-Za-z0-9]{30,}`)},
	{"google-key", regexp.MustCompile(`\bAIza[A-Za-z0-9_\-]{30,}`)},
	{"buildkite-token", regexp.MustCompile(`\bbk(?:ua|aj|at|ct)_[A-Za-z0-9]{16,}`)},
	{"url-password", regexp.MustCompile(`\b[a-zA-Z][a-zA-Z0-9+.\-]{1,20}://[^\s/:@'"<>]*:([^\s/@'"<>]{3,})@`)},
	{"authorization", regexp.MustCompile(`(?i)\bauthorization:\s*(?:basic|bearer|token)\s+([A-Za-z0-9+/=_.\-]{8,})`)},
}

// String returns s without secrets.
func (r *Redactor) String(s string) string {
	if r != nil {
		r.mu.RLock()
		rep := r.replace
		r.mu.RUnlock()
		if rep != nil {
			s = rep.Replace(s)
		}
	}
	for _, rule := range rules {
		s = replaceRule(s, rule.re)
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
	Line int    // 1-based
	Rule string // name of the pattern, or "known-secret"
}

// Find lists the secrets that patterns see in s, in order of lines.
func Find(s string) []Finding { return (*Redactor)(nil).Find(s) }

// Find lists the secrets in s that r knows or a pattern sees, in order of lines.
func (r *Redactor) Find(s string) []Finding {
	var out []Finding
	add := func(at int, name string) {
		out = append(out, Finding{Line: 1 + strings.Count(s[:at], "\n"), Rule: name})
	}
	if r != nil {
		r.mu.RLock()
		for n := range r.needles {
			for at := 0; ; {
				i := strings.Index(s[at:], n)
				if i < 0 {
					break
				}
				add(at+i, "known-secret")
				at += i + len(n)
			}
		}
		r.mu.RUnlock()
	}
	for _, rule := range rules {
		for _, m := range rule.re.FindAllStringSubmatchIndex(s, -1) {
			if len(m) > 2 && m[2] >= 0 && s[m[2]:m[3]] == Mark {
				continue
			}
			add(m[0], rule.name)
		}
	}
	if strings.ContainsRune(s, 0) { // UTF-16 and the like
		out = append(out, r.Find(strings.ReplaceAll(s, "\x00", ""))...)
	}
	sort.Slice(out, func(i, j int) bool {
		return out[i].Line < out[j].Line || out[i].Line == out[j].Line && out[i].Rule < out[j].Rule
	})
	return out
}
