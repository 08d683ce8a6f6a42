package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"inspect/envs/spec"
	"inspect/envs/wire"
)

// maxConfig and maxKeyFile bound what is read from disk.
const (
	maxConfig  = 256 << 10
	maxKeyFile = 16 << 10
)

// Files are a models.yml and the key files it names, as they were read: who may
// read them can hand them to who may not.
type Files struct {
	Path string            `json:"path"`
	Body []byte            `json:"body"`
	Keys map[string][]byte `json:"keys"` // by the name in the text
}

// Read reads models.yml and the key files it names; relative names are taken
// from its own folder. A key file that other accounts can read is an error, and
// so is anything that Files.Config would complain of.
func Read(path string) (Files, error) {
	f := Files{Path: path, Keys: map[string][]byte{}}
	var err error
	if f.Body, err = readAtMost(path, maxConfig, false); err != nil {
		return f, fmt.Errorf("read the models' configuration: %w", err)
	}
	_, err = f.parse(func(name string) ([]byte, error) {
		file := name
		if !filepath.IsAbs(name) {
			file = filepath.Join(filepath.Dir(path), name)
		}
		key, err := readAtMost(file, maxKeyFile, true)
		f.Keys[name] = key
		return key, err
	})
	return f, err
}

// Config is what the files say.
func (f Files) Config() (Config, error) {
	return f.parse(func(name string) ([]byte, error) {
		key, ok := f.Keys[name]
		if !ok {
			return nil, fmt.Errorf("%s was not handed over", name)
		}
		return key, nil
	})
}

func (f Files) parse(readFile func(name string) ([]byte, error)) (Config, error) {
	c, err := Parse(f.Body, readFile)
	if err != nil {
		return Config{}, fmt.Errorf("%s:\n%w", f.Path, err)
	}
	return c, nil
}

// Load is Read and what the files say.
func Load(path string) (Config, error) {
	f, err := Read(path)
	if err != nil {
		return Config{}, err
	}
	return f.Config()
}

// readAtMost reads a file. secret: nobody else may be able to.
func readAtMost(name string, most int64, secret bool) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", name)
	}
	if secret && st.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("%s can be read by every account of this machine: chmod 600 it, and give it to the account of `inspect serve`", name)
	}
	body, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(body)) > most {
		return nil, fmt.Errorf("%s is longer than %d bytes", name, most)
	}
	return body, nil
}

// Parse reads the text of a models.yml; readFile reads a key file it names. The
// error names line, key and what was expected, one problem a line, and no key.
func Parse(body []byte, readFile func(name string) ([]byte, error)) (Config, error) {
	if len(body) > maxConfig {
		return Config{}, fmt.Errorf("expected at most %d bytes", maxConfig)
	}
	dec := yaml.NewDecoder(bytes.NewReader(body))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return Config{}, errors.New("expected providers and models, but the file is empty")
	} else if err != nil {
		return Config{}, fmt.Errorf("expected YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return Config{}, errors.New("expected one YAML document, but found more")
	}
	l := &loader{readFile: readFile, c: Config{models: map[string]Model{}, providers: map[string]provider{}}}
	l.root(doc.Content[0])
	if len(l.problems) > 0 {
		sort.SliceStable(l.problems, func(i, j int) bool { return l.problems[i].Line < l.problems[j].Line })
		lines := make([]string, len(l.problems))
		for i, p := range l.problems {
			lines[i] = p.String()
		}
		return Config{}, errors.New(strings.Join(lines, "\n"))
	}
	return l.c, nil
}

type loader struct {
	readFile func(string) ([]byte, error)
	problems []spec.Problem
	c        Config
	priced   *yaml.Node // the first price
}

const maxProblems = 20

func (l *loader) bad(n *yaml.Node, key, format string, args ...any) {
	if len(l.problems) < maxProblems {
		l.problems = append(l.problems, spec.Problem{Line: n.Line, Key: key, Want: fmt.Sprintf(format, args...)})
	}
}

// entries calls do for each key of a map, once.
func (l *loader) entries(n *yaml.Node, at, want string, do func(name string, k, v *yaml.Node)) bool {
	if n.Kind != yaml.MappingNode || n.Anchor != "" {
		l.bad(n, at, "expected %s", want)
		return false
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		name := k.Value
		switch {
		case k.Kind != yaml.ScalarNode || k.Tag == "!!merge":
			l.bad(k, at, "expected a plain key")
		case v.Kind == yaml.AliasNode || v.Anchor != "":
			l.bad(v, join(at, name), "expected a plain value; anchors and aliases are not allowed")
		case seen[name]:
			l.bad(k, join(at, name), "expected each key once")
		default:
			seen[name] = true
			do(name, k, v)
		}
	}
	return true
}

// fields is entries of a map whose keys are known.
func (l *loader) fields(n *yaml.Node, at, want string, known []string, do func(name string, v *yaml.Node)) bool {
	return l.entries(n, at, want, func(name string, k, v *yaml.Node) {
		if !slices.Contains(known, name) {
			l.bad(k, join(at, name), "unknown key; expected one of %s", strings.Join(known, ", "))
			return
		}
		do(name, v)
	})
}

// word is a scalar in its own spelling.
func (l *loader) word(n *yaml.Node, at, want string) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Value == "" {
		l.bad(n, at, "expected %s", want)
		return "", false
	}
	return n.Value, true
}

func join(a, b string) string {
	b = short(b)
	if a == "" {
		return b
	}
	return a + "." + b
}

func (l *loader) root(n *yaml.Node) {
	var models, fallback, day *yaml.Node
	ok := l.fields(n, "", "providers and models", []string{"prices_as_of", "providers", "models", "default"}, func(name string, v *yaml.Node) {
		switch name {
		case "prices_as_of":
			day = v
		case "providers":
			l.entries(v, name, "a map of providers", func(id string, k, v *yaml.Node) { l.provider(id, k, v) })
		case "models":
			models = v
		case "default":
			fallback = v
		}
	})
	if !ok {
		return
	}
	if models == nil {
		l.bad(n, "models", "expected a map of models; the key is missing")
		return
	}
	l.entries(models, "models", "a map of models", func(id string, k, v *yaml.Node) { l.model(id, k, v) })
	if day != nil {
		if s, ok := l.word(day, "prices_as_of", "a day like 2026-11-01"); ok {
			if _, err := time.Parse(time.DateOnly, s); err != nil {
				l.bad(day, "prices_as_of", "expected a day like 2026-11-01, but found %q", short(s))
			}
			l.c.PricesAsOf = s
		}
	} else if l.priced != nil {
		l.bad(l.priced, "prices_as_of", "expected the day the prices were looked up; a model has a price, but this key is missing")
	}
	if fallback != nil {
		if s, ok := l.word(fallback, "default", "the id of a model"); ok {
			if _, known := l.c.models[s]; !known && len(l.problems) == 0 {
				l.bad(fallback, "default", "expected one of %s, but found %q", orNone(l.c.Models()), short(s))
			}
			l.c.Default = s
		}
	}
}

var providerID = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,39}$`)

func (l *loader) provider(id string, k, v *yaml.Node) {
	at := join("providers", id)
	if !providerID.MatchString(id) {
		l.bad(k, at, "expected a name of lower-case letters, digits, '-' and '_'")
		return
	}
	p := provider{id: id}
	var base, keyFile *yaml.Node
	ok := l.fields(v, at, "api and base_url", []string{"api", "base_url", "key_file"}, func(name string, v *yaml.Node) {
		at := join(at, name)
		switch name {
		case "api":
			if s, ok := l.word(v, at, "anthropic, openai or openai-chat"); ok {
				if spoken[s] == nil {
					l.bad(v, at, "expected anthropic, openai or openai-chat, but found %q", short(s))
				}
				p.api = s
			}
		case "base_url":
			base = v
			if s, ok := l.word(v, at, "an address"); ok {
				b, err := baseOf(s)
				if err != nil {
					l.bad(v, at, "%s", err)
				}
				p.base = b
			}
		case "key_file":
			keyFile = v
			if s, ok := l.word(v, at, "the name of a file that holds the key"); ok {
				p.key = l.key(v, at, s)
			}
		}
	})
	if !ok {
		return
	}
	if p.api == "" && len(l.problems) == 0 {
		l.bad(v, join(at, "api"), "expected anthropic, openai or openai-chat; the key is missing")
	}
	if base == nil {
		l.bad(v, join(at, "base_url"), "expected an address; the key is missing")
	}
	if keyFile == nil && p.api != apiOpenAIChat {
		l.bad(v, join(at, "key_file"), "expected the name of a file that holds the key; only api: openai-chat goes without one")
	}
	l.c.providers[id] = p
}

func (l *loader) key(n *yaml.Node, at, name string) string {
	body, err := l.readFile(name)
	if err != nil {
		var pe *fs.PathError
		if errors.As(err, &pe) {
			l.bad(n, at, "cannot %s %s: %v", pe.Op, pe.Path, pe.Err)
		} else {
			l.bad(n, at, "%s", err)
		}
		return ""
	}
	key := strings.TrimSpace(string(body))
	if err := checkKey(key); err != nil {
		l.bad(n, at, "%s in %s", err, name)
		return ""
	}
	return key
}

func (l *loader) model(id string, k, v *yaml.Node) {
	at := join("models", id)
	if len(id) > maxModelID || !modelID.MatchString(id) || id == wire.ReadyModel {
		l.bad(k, at, "expected an id like anthropic/claude-sonnet: letters, digits and . _ : @ - between slashes")
		return
	}
	m := Model{ID: id}
	var price *yaml.Node
	ok := l.fields(v, at, "provider, name and max_output", []string{"provider", "name", "max_output", "price"}, func(name string, v *yaml.Node) {
		at := join(at, name)
		switch name {
		case "provider":
			if s, ok := l.word(v, at, "one of the providers"); ok {
				p, known := l.c.providers[s]
				if !known {
					ids := make([]string, 0, len(l.c.providers))
					for id := range l.c.providers {
						ids = append(ids, id)
					}
					sort.Strings(ids)
					l.bad(v, at, "expected one of %s, but found %q", orNone(ids), short(s))
				}
				m.Provider, m.api = s, p.api
			}
		case "name":
			if s, ok := l.word(v, at, "the provider's own name of the model"); ok {
				if len(s) > 200 {
					l.bad(v, at, "expected at most 200 letters")
				}
				m.Name = s
			}
		case "max_output":
			s, _ := l.word(v, at, "a number of tokens")
			n, err := strconv.ParseInt(s, 10, 64)
			if s != "" && (err != nil || n < 1 || n > maxTokens) {
				l.bad(v, at, "expected a number of tokens like 64000, but found %q", short(s))
				n = 1
			}
			m.MaxOutput = n
		case "price":
			price = v
		}
	})
	if !ok {
		return
	}
	missing := func(name, want string) { l.bad(v, join(at, name), "expected %s; the key is missing", want) }
	if m.Provider == "" {
		missing("provider", "one of the providers")
	}
	if m.Name == "" {
		missing("name", "the provider's own name of the model")
	}
	if m.MaxOutput == 0 {
		m.MaxOutput = DefaultMaxOutput
	}
	if price != nil {
		m.Priced = true
		m.Price = l.price(price, join(at, "price"), m.api)
		if l.priced == nil {
			l.priced = price
		}
	}
	l.c.models[id] = m
}

// price reads US dollars per million tokens.
func (l *loader) price(n *yaml.Node, at, api string) (p Price) {
	given := map[string]bool{}
	names := []string{"input", "cache_read", "cache_write", "cache_write_1h", "output"}
	into := map[string]*spec.Money{
		"input": &p.Input, "cache_read": &p.CacheRead, "cache_write": &p.CacheWrite, "cache_write_1h": &p.CacheWrite1h, "output": &p.Output,
	}
	const want = "US dollars per million tokens, like 3 or 0.30, at most three decimals"
	ok := l.fields(n, at, "input and output in "+want, names, func(name string, v *yaml.Node) {
		given[name] = true
		at := join(at, name)
		s, ok := l.word(v, at, want)
		if !ok {
			return
		}
		dollars, err := spec.ParseMoney(s)
		const million, most = 1_000_000, 10_000 * spec.Dollar
		if err != nil || dollars%million != 0 || dollars > most {
			l.bad(v, at, "expected %s, but found %q", want, short(s))
			return
		}
		*into[name] = dollars / million
	})
	if !ok {
		return p
	}
	required := []string{"input", "output"}
	if api == apiAnthropic {
		// Every agent caches there, and a write costs more than plain input.
		required = append(required, "cache_read", "cache_write")
	}
	for _, name := range required {
		if !given[name] {
			l.bad(n, join(at, name), "expected %s; the key is missing", want)
		}
	}
	if !given["cache_read"] {
		p.CacheRead = p.Input
	}
	if !given["cache_write"] {
		p.CacheWrite = p.Input
	}
	return p
}
