package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"inspect/envs/spec"
)

// Floor is the operator's policy: which repositories may use Inspect, and what
// none of them can pass. The zero Floor allows all and binds nothing.
type Floor struct{ file spec.Floor }

// Problems is what is wrong with a policy file, in words for the operator.
type Problems []spec.Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// ParseFloor reads a policy file. With problems the Floor must not be used.
func ParseFloor(body []byte) (Floor, Problems) {
	file, problems := spec.ParseFloor(body)
	if len(problems) > 0 {
		return Floor{}, Problems(problems)
	}
	return Floor{file}, nil
}

// NeedsID says that a repository must be asked about with its number, because
// an entry names one.
func (f Floor) NeedsID() bool {
	return slices.ContainsFunc(f.file.Repositories, func(r spec.FloorRepository) bool { return r.ID != 0 })
}

// For returns what binds a repository, or false if it may not use Inspect. The
// first entry that names the repository counts. Names are compared without
// regard to case, as GitHub does; a number of 0 is not known and meets no entry
// with an id.
func (f Floor) For(repoID int64, ownerName string) (Bounds, bool) {
	b := Bounds{{"floor: defaults", f.file.Defaults}}
	if !f.file.Listed {
		return b, true
	}
	name := strings.ToLower(ownerName)
	for i, r := range f.file.Repositories {
		if r.ID != 0 && r.ID == repoID || r.Match != "" && matches(r.Match, name) {
			return append(b, layer{fmt.Sprintf("floor: repositories[%d]", i), r.Keys}), true
		}
	}
	return nil, false
}

// Bounds are what binds one repository. The strictest counts in each key.
type Bounds []layer

type layer struct {
	from string
	keys spec.FloorKeys
}

// Tighten returns the stricter of r and the bounds.
func (b Bounds) Tighten(r Rules) Rules {
	for _, l := range b {
		r = r.Stricter(Rules{Protected: l.keys.Protected, MaxFiles: l.keys.MaxFiles, MaxBytes: l.keys.MaxBytes, FourEyes: l.keys.FourEyes})
	}
	return r
}

// Sandbox is the least tier that all of the bounds take, and who says so; empty: any.
func (b Bounds) Sandbox() (tier, from string) {
	for _, l := range b {
		if slices.Index(spec.Tiers(), l.keys.Sandbox) > slices.Index(spec.Tiers(), tier) {
			tier, from = l.keys.Sandbox, l.from
		}
	}
	return tier, from
}

// NamesImage says whether the operator lists images, and this one among them in
// each list. Only such an image is fetched from its registry; without a list any
// may be used that somebody has brought.
func (b Bounds) NamesImage(image string) bool {
	listed := false
	for _, l := range b {
		if l.keys.Images == nil {
			continue
		}
		if listed = true; !slices.ContainsFunc(l.keys.Images, func(p string) bool { return matchesImage(p, image) }) {
			return false
		}
	}
	return listed
}

// RequireProtection says whether a session needs rules that keep the App from the
// default branch, and who says so.
func (b Bounds) RequireProtection() (required bool, from string) {
	for _, l := range b {
		if l.keys.RequireProtection {
			return true, l.from
		}
	}
	return false, ""
}

// Value is one key of an effective policy.
type Value struct {
	Key, Value string
	From       string // "default", ".inspect.yml", "floor: defaults", "floor: repositories[0]", …
	Instead    string // what From lowered; empty: nothing
}

// Beyond is one thing a repository asks for and may not have.
type Beyond struct {
	Key   string // "egress"
	Asked string // as the repository says it
	Most  string // what it may ask for
	From  string // who says so
}

// BeyondError says that a session must not start: without what is asked for it
// would only fail later, so nothing is taken away in silence.
type BeyondError struct {
	What []Beyond
	// Guessed: egress is among it, and nobody declared it: it was guessed from
	// the repository's files.
	Guessed bool
}

func (e *BeyondError) Error() string {
	words := make([]string, len(e.What))
	for i, w := range e.What {
		words[i] = fmt.Sprintf("%s: %s is beyond what the operator allows, which is %s (%s)", w.Key, strconv.Quote(w.Asked), w.Most, w.From)
	}
	return strings.Join(words, "; ")
}

// Effective bounds what a repository asks for. Numbers are lowered to the
// smallest and protected paths add up; the values say so. A host, model,
// harness, provenance or secret beyond the bounds is a *BeyondError, which names
// all there are; the spec must not be used then.
//
// An empty harness or model is not judged: where the operator's default takes
// its place, ask again with it.
func Effective(sp spec.Spec, b Bounds) (spec.Spec, []Value, error) {
	e := effect{bounds: b, out: sp}
	def := spec.Default()

	e.one("harness.kind", sp.Harness.Kind, "the operator's default", func(k spec.FloorKeys) []string { return k.Harnesses }, equal)
	e.one("harness.model", sp.Harness.Model, "the operator's default", func(k spec.FloorKeys) []string { return k.Models }, matches)
	e.one("data.provenance", sp.Data.Provenance, "no data", func(k spec.FloorKeys) []string { return k.Data }, equal)
	e.egress(sp)
	e.secrets(sp.SecretNames())
	e.submodules()
	e.one("image", sp.Image, "the node's own programs", func(k spec.FloorKeys) []string { return k.Images }, matchesImage)
	if tier, from := b.Sandbox(); tier != "" {
		e.values = append(e.values, Value{Key: "sandbox (at least)", Value: tier, From: from})
	}

	if required, from := b.RequireProtection(); required {
		e.values = append(e.values, Value{Key: "require_protection", Value: "true", From: from})
	}

	l, d := &e.out.Limits, def.Limits
	number(&e, "limits.cpu", &l.CPU, d.CPU, func(k spec.FloorKeys) float64 { return k.Limits.CPU }, func(n float64) string { return strconv.FormatFloat(n, 'g', -1, 64) })
	number(&e, "limits.memory", &l.MemoryBytes, d.MemoryBytes, func(k spec.FloorKeys) int64 { return k.Limits.MemoryBytes }, bytesWords)
	number(&e, "limits.pids", &l.Pids, d.Pids, func(k spec.FloorKeys) int64 { return k.Limits.Pids }, intWords)
	number(&e, "limits.disk", &l.DiskBytes, d.DiskBytes, func(k spec.FloorKeys) int64 { return k.Limits.DiskBytes }, bytesWords)
	number(&e, "limits.egress", &l.EgressBytes, d.EgressBytes, func(k spec.FloorKeys) int64 { return k.Limits.EgressBytes }, bytesWords)
	number(&e, "limits.timeout", &l.Timeout, d.Timeout, func(k spec.FloorKeys) time.Duration { return k.Limits.Timeout }, durationWords)
	number(&e, "limits.concurrent", &l.Concurrent, d.Concurrent, func(k spec.FloorKeys) int { return k.Limits.Concurrent }, intWords)
	e.openPullRequests("limits.open_pull_requests", func(l *spec.Limits) *int { return &l.OpenPullRequests })
	e.openPullRequests("limits.open_pull_requests_per_requester", func(l *spec.Limits) *int { return &l.OpenPullRequestsEach })
	e.priority()
	number(&e, "limits.budget_usd", &l.Budget, d.Budget, func(k spec.FloorKeys) spec.Money { return k.Limits.Budget }, spec.Money.String)

	e.refresh(sp.Refresh)
	e.keepFailed(sp.KeepFailed)

	e.protected(sp)
	p := &e.out.Publish
	number(&e, "publish.max_files", &p.MaxFiles, def.Publish.MaxFiles, func(k spec.FloorKeys) int { return k.MaxFiles }, intWords)
	number(&e, "publish.max_bytes", &p.MaxBytes, def.Publish.MaxBytes, func(k spec.FloorKeys) int64 { return k.MaxBytes }, bytesWords)
	e.plain("publish.prefix", p.Prefix, def.Publish.Prefix)
	e.plain("publish.signed", cmp.Or(p.Signed, spec.SignedAuto), spec.SignedAuto)
	e.plain("publish.signoff", strconv.FormatBool(p.SignOff), "false")
	e.plain("publish.reviewers", cmp.Or(p.Reviewers, spec.ReviewersCode), spec.ReviewersCode)
	e.fourEyes()
	e.push(p)

	if len(e.beyond) > 0 {
		guessed := sp.EgressGuessed && slices.ContainsFunc(e.beyond, func(w Beyond) bool { return w.Key == "egress" })
		return e.out, e.values, &BeyondError{What: e.beyond, Guessed: guessed}
	}
	return e.out, e.values, nil
}

// effect is an effective policy in the making.
type effect struct {
	bounds Bounds
	out    spec.Spec
	values []Value
	beyond []Beyond
}

const (
	fromDefault = "default"
	fromAlways  = "always"
	fromGuess   = "guessed from the files"
)

func (e *effect) plain(key, value, def string) {
	from := spec.FileName
	if value == def {
		from = fromDefault
	}
	e.values = append(e.values, Value{Key: key, Value: value, From: from})
}

// number lowers *v to the smallest bound there is.
func number[N cmp.Ordered](e *effect, key string, v *N, def N, of func(spec.FloorKeys) N, words func(N) string) {
	asked, from := *v, spec.FileName
	if asked == def {
		from = fromDefault
	}
	var none N
	for _, l := range e.bounds {
		if most := of(l.keys); most != none && most < *v {
			*v, from = most, l.from
		}
	}
	value := Value{Key: key, Value: words(*v), From: from}
	if *v != asked {
		value.Instead = words(asked)
	}
	e.values = append(e.values, value)
}

// What binds where no floor says anything: a refresh takes minutes of a
// machine, and a clone that is kept takes its disk.
const (
	leastRefreshEvery = 5 * time.Minute
	mostKeepFailed    = 24 * time.Hour
)

// refresh raises the time between refreshes to the longest of the floors.
func (e *effect) refresh(asked spec.Refresh) {
	least, from := leastRefreshEvery, fromAlways
	for _, l := range e.bounds {
		if every := l.keys.RefreshEvery; every > 0 && (from == fromAlways || every > least) {
			least, from = every, l.from
		}
	}
	def := spec.Default().Refresh
	value := Value{Key: "refresh.every", Value: durationWords(asked.Every), From: spec.FileName}
	switch {
	case asked.Every < least:
		e.out.Refresh.Every = least
		value.Value, value.Instead, value.From = durationWords(least), durationWords(asked.Every), from
	case asked.Every == def.Every:
		value.From = fromDefault
	}
	e.values = append(e.values, value)
	e.plain("refresh.max_age", durationWords(asked.MaxAge), durationWords(def.MaxAge))
	e.plain("refresh.max_drift", intWords(asked.MaxDrift), intWords(def.MaxDrift))
	e.plain("refresh.when_stale", asked.WhenStale, def.WhenStale)
}

// keepFailed lowers how long a failed clone is kept to the shortest of the floors.
func (e *effect) keepFailed(asked time.Duration) {
	most, from := mostKeepFailed, fromAlways
	for _, l := range e.bounds {
		if keep := l.keys.KeepFailed; keep != nil && (from == fromAlways || *keep < most) {
			most, from = *keep, l.from
		}
	}
	value := Value{Key: "keep_failed", Value: durationWords(asked), From: spec.FileName}
	switch {
	case asked > most:
		e.out.KeepFailed = most
		value.Value, value.Instead, value.From = durationWords(most), durationWords(asked), from
	case asked == 0:
		value.From = fromDefault
	}
	e.values = append(e.values, value)
}

// one judges a single word against lists of what is allowed.
func (e *effect) one(key, asked, unset string, of func(spec.FloorKeys) []string, covers func(most, asked string) bool) {
	if asked == "" {
		e.values = append(e.values, Value{Key: key, Value: "(" + unset + ")", From: fromDefault})
	} else {
		e.values = append(e.values, Value{Key: key, Value: asked, From: spec.FileName})
	}
	e.atMost(key, of, func(most []string) []string {
		if asked == "" || slices.ContainsFunc(most, func(m string) bool { return covers(m, asked) }) {
			return nil
		}
		return []string{asked}
	})
}

func (e *effect) egress(sp spec.Spec) {
	from := spec.FileName
	switch {
	case len(sp.Egress) == 0:
		from = fromDefault
	case sp.EgressGuessed:
		from = fromGuess
	}
	e.values = append(e.values, Value{Key: "egress", Value: words(sp.Egress), From: from})
	e.atMost("egress", func(k spec.FloorKeys) []string { return k.Egress }, func(most []string) []string {
		var out []string
		for _, asked := range slices.Concat(sp.Egress, sp.Allowed) {
			if !coversHost(most, asked) {
				out = append(out, asked)
			}
		}
		return out
	})
}

func (e *effect) secrets(names []string) {
	e.plain("secrets", words(names), words(nil))
	e.atMost("secrets", func(k spec.FloorKeys) []string { return k.Secrets }, func(most []string) []string {
		return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			return slices.ContainsFunc(most, func(m string) bool { return matches(m, name) })
		})
	})
}

// Secrets is a *BeyondError if a repository may not have all of the secrets.
func (b Bounds) Secrets(names []string) error {
	e := effect{bounds: b}
	if e.secrets(names); len(e.beyond) > 0 {
		return &BeyondError{What: e.beyond}
	}
	return nil
}

// Submodule says whether the submodules of a repository may be read with a token
// from another, owner/name: all of the bounds that say something must list it,
// and one at least. Whoever writes to a repository chooses its submodules and
// sees what is in them.
func (b Bounds) Submodule(ownerName string) bool {
	listed, name := false, strings.ToLower(ownerName)
	for _, l := range b {
		if l.keys.Submodules == nil {
			continue
		}
		if listed = slices.ContainsFunc(l.keys.Submodules, func(m string) bool { return matches(m, name) }); !listed {
			return false
		}
	}
	return listed
}

// submodules tells what Submodule goes by. Nobody asks for anything beforehand.
func (e *effect) submodules() {
	before := len(e.values)
	e.atMost("submodules", func(k spec.FloorKeys) []string { return k.Submodules }, func([]string) []string { return nil })
	if len(e.values) == before {
		e.values = append(e.values, Value{Key: "submodules (at most)", Value: words(nil), From: fromDefault})
	}
}

// atMost tells of each bound on a key, and of what passes it.
func (e *effect) atMost(key string, of func(spec.FloorKeys) []string, passing func(most []string) []string) {
	for _, l := range e.bounds {
		most := of(l.keys)
		if most == nil {
			continue
		}
		e.values = append(e.values, Value{Key: key + " (at most)", Value: words(most), From: l.from})
		for _, asked := range passing(most) {
			e.beyond = append(e.beyond, Beyond{Key: key, Asked: asked, Most: words(most), From: l.from})
		}
	}
}

// PushHead says whether results may go onto the head of somebody's pull
// request: somebody must have said so, and nobody the contrary.
func (b Bounds) PushHead() bool { on, _ := b.pushHead(); return on }

func (b Bounds) pushHead() (on bool, from string) {
	from = fromDefault
	for _, l := range b {
		switch l.keys.Push {
		case spec.PushHead:
			on, from = true, l.from
		case "":
		default:
			return false, l.from
		}
	}
	return on, from
}

// push leaves what goes onto a head only where the bounds allow it.
func (e *effect) push(p *spec.Publish) {
	const stacked = "stacked"
	value := Value{Key: "publish.push", Value: cmp.Or(p.Push, stacked), From: fromDefault}
	if p.Push != "" {
		value.From = spec.FileName
	}
	if on, from := e.bounds.pushHead(); p.Push == spec.PushHead && !on {
		p.Push = ""
		value.Value, value.Instead, value.From = stacked, spec.PushHead, from
	}
	e.values = append(e.values, value)
}

// protected paths add up.
func (e *effect) protected(sp spec.Spec) {
	const key = "publish.protected"
	e.values = append(e.values, Value{Key: key, Value: words(spec.AlwaysProtected()), From: fromAlways})
	all := slices.Clone(sp.Publish.Protected)
	if len(all) > 0 {
		e.values = append(e.values, Value{Key: key, Value: words(all), From: spec.FileName})
	}
	for _, l := range e.bounds {
		if len(l.keys.Protected) == 0 {
			continue
		}
		e.values = append(e.values, Value{Key: key, Value: words(l.keys.Protected), From: l.from})
		for _, p := range l.keys.Protected {
			if !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	e.out.Publish.Protected = all
}

// fourEyes holds if anybody asks for it.
func (e *effect) fourEyes() {
	value := Value{Key: "publish.four_eyes", Value: strconv.FormatBool(e.out.Publish.FourEyes), From: spec.FileName}
	if !e.out.Publish.FourEyes {
		value.From = fromDefault
		for _, l := range e.bounds {
			if l.keys.FourEyes {
				e.out.Publish.FourEyes = true
				value.Value, value.From = "true", l.from
				break
			}
		}
	}
	e.values = append(e.values, value)
}

// FourEyes says whether the bounds want it of every session.
func (b Bounds) FourEyes() bool {
	return slices.ContainsFunc(b, func(l layer) bool { return l.keys.FourEyes })
}

// Host is a *BeyondError if a repository may not reach an entry of egress.
func (b Bounds) Host(entry string) error {
	e := effect{bounds: b}
	if e.egress(spec.Spec{Egress: []string{entry}}); len(e.beyond) > 0 {
		return &BeyondError{What: e.beyond}
	}
	return nil
}

// Budget is a *BeyondError if a session may not have that much to spend.
func (b Bounds) Budget(asked spec.Money) error {
	e := effect{bounds: b}
	most := asked
	number(&e, "limits.budget_usd", &most, 0, func(k spec.FloorKeys) spec.Money { return k.Limits.Budget }, spec.Money.String)
	if v := e.values[0]; most < asked {
		return &BeyondError{What: []Beyond{{Key: v.Key, Asked: v.Instead, Most: v.Value, From: v.From}}}
	}
	return nil
}

func equal(most, asked string) bool { return most == asked }

// matches says whether a pattern names s. One that cannot be read names nothing.
func matches(pattern, s string) bool {
	ok, err := doublestar.Match(pattern, s)
	return ok && err == nil
}

// matchesImage compares an image's name, without its digest. The name is only
// the repository's word: a pattern with an @ is compared with name and digest.
func matchesImage(pattern, image string) bool {
	if name, _, ok := strings.Cut(image, "@"); ok && !strings.Contains(pattern, "@") {
		image = name
	}
	return matches(pattern, image)
}

// coversHost says whether all that an entry of egress opens is within a list of
// such entries. Ecosystems are compared by name: their hosts are not known here.
func coversHost(most []string, asked string) bool {
	if spec.IsEcosystem(asked) {
		return slices.Contains(most, asked)
	}
	host, ports := hostPorts(asked)
	for _, port := range ports {
		if !slices.ContainsFunc(most, func(m string) bool {
			if spec.IsEcosystem(m) {
				return false
			}
			h, ps := hostPorts(m)
			return slices.Contains(ps, port) && within(h, host)
		}) {
			return false
		}
	}
	return true
}

// hostPorts splits an entry. Without a port it opens those of https and http.
func hostPorts(entry string) (host string, ports []string) {
	host, port, ok := strings.Cut(entry, ":")
	if ok {
		return host, []string{port}
	}
	return host, []string{"443", "80"}
}

// within says whether every host that asked names is one of most. "*.x" are the
// names below x, without x itself.
func within(most, asked string) bool {
	domain, below := strings.CutPrefix(most, "*.")
	if !below {
		return asked == most
	}
	return strings.HasSuffix(strings.TrimPrefix(asked, "*"), "."+domain)
}

func words(items []string) string {
	if len(items) == 0 {
		return "nothing"
	}
	return strings.Join(items, ", ")
}

func intWords[N int | int64](n N) string { return strconv.FormatInt(int64(n), 10) }

// bytesWords writes a size as the files do.
func bytesWords(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for n != 0 && n%1024 == 0 && i < len(units)-1 {
		n /= 1024
		i++
	}
	return strconv.FormatInt(n, 10) + units[i]
}

// durationWords is 45m, not 45m0s.
func durationWords(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
