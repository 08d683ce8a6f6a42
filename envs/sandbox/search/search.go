// Package search looks for secrets in a tree of files that an enemy may have
// written. The values and the directories come in, the places where one stands
// go out. It is meant to run inside a sandbox that has the tree read-only and
// in which nothing else runs: it follows no link, opens nothing but regular
// files and directories, waits for nothing, and is silent about nothing that it
// could not look at.
//
// A value is found in names, link targets, extended attributes and contents, as
// it is and in base64, base64url, hexadecimal, percent and JSON form, also
// where line breaks or blanks were put into a long one. What was compressed,
// encrypted or taken apart is not found.
package search

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Word asks the init binary for Main.
const Word = "search"

// Bounds.
const (
	MaxHits    = 20  // where to stop
	maxDepth   = 600 // directories below each other; a snapshot has fewer
	chunk      = 1 << 20
	maxConfig  = 1 << 20 // bytes of a file of credentials that are looked at
	maxAttrs   = 64 << 10
	shownBytes = 4 << 10 // of a path
)

// Request is what Main reads, as JSON.
type Request struct {
	Secrets []Secret `json:"secrets"`
	// Dirs are the directories to search. In Home files in which programs keep
	// credentials are looked at too, whatever stands in them.
	Dirs  []string      `json:"dirs"`
	Home  string        `json:"home"`
	Limit time.Duration `json:"limit"` // then the search gives up, which is an error
}

// Secret is a value to look for. Less than six bytes are not looked for: they
// stand anywhere.
type Secret struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Hit is a place that a snapshot must not have. Its path is an enemy's text.
type Hit struct {
	Path   string `json:"path"`
	Secret string `json:"secret,omitempty"` // name; empty: see What
	What   string `json:"what"`             // "content", "name", "link target", "attribute"; else a sentence's end
}

// errEnough ends a search.
var errEnough = errors.New("enough was found")

// Main reads a Request and writes each Hit as a line of JSON. The error says
// that not everything could be searched.
func Main(in io.Reader, out io.Writer) error {
	var q Request
	if err := json.NewDecoder(in).Decode(&q); err != nil {
		return fmt.Errorf("read what to search for: %w", err)
	}
	w := json.NewEncoder(out)
	hits := 0
	s := newSearch(q.Secrets, func(h Hit) error {
		if len(h.Path) > shownBytes {
			h.Path = h.Path[:shownBytes]
		}
		h.Path = strings.ToValidUTF8(h.Path, "?")
		if err := w.Encode(h); err != nil {
			return err
		}
		if hits++; hits >= MaxHits {
			return errEnough
		}
		return nil
	})
	s.home = q.Home
	if q.Limit > 0 {
		s.until = time.Now().Add(q.Limit)
	}
	for _, d := range q.Dirs {
		err := s.top(d)
		if errors.Is(err, errEnough) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

type search struct {
	plain    *needles
	squeezed *needles // of text without white space
	report   func(Hit) error
	home     string
	until    time.Time
	buf      []byte
	thin     []byte
}

func newSearch(secrets []Secret, report func(Hit) error) *search {
	s := &search{report: report, buf: make([]byte, 0, chunk), thin: make([]byte, 0, chunk)}
	s.plain, s.squeezed = compile(secrets)
	return s
}

func (s *search) top(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	return s.dir(os.NewFile(uintptr(fd), "directory"), dir, 0)
}

// dir takes over d.
func (s *search) dir(d *os.File, path string, depth int) error {
	defer d.Close()
	if depth > maxDepth {
		return s.report(Hit{Path: path, What: "is nested too deep to be searched"})
	}
	if err := s.attributes(d, path); err != nil {
		return err
	}
	for {
		names, rerr := d.Readdirnames(512) // asks for no types, by a path that is not this one
		for _, name := range names {
			if err := s.entry(d, name, path+"/"+name, depth); err != nil {
				return err
			}
		}
		if errors.Is(rerr, io.EOF) {
			return nil
		}
		if rerr != nil {
			return s.report(Hit{Path: path, What: "could not be listed to its end, so that it cannot be searched"})
		}
	}
}

// entry looks at one name of a directory.
func (s *search) entry(d *os.File, name, path string, depth int) error {
	if err := s.late(); err != nil {
		return err
	}
	if err := s.text([]byte(name), path, "name"); err != nil {
		return err
	}
	at := int(d.Fd())
	var st unix.Stat_t
	if err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return s.unreadable(path)
	}
	how := unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC | unix.O_NOCTTY
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(at, name, target)
		if err != nil {
			return s.unreadable(path)
		}
		return s.text(target[:n], path, "link target")
	case unix.S_IFDIR:
		how |= unix.O_DIRECTORY
	case unix.S_IFREG:
	default:
		return nil // a pipe, a socket, a device: it has no content of its own
	}
	fd, err := unix.Openat(at, name, how, 0)
	if err != nil {
		return s.unreadable(path)
	}
	f := os.NewFile(uintptr(fd), "file")
	if how&unix.O_DIRECTORY != 0 {
		return s.dir(f, path, depth+1)
	}
	defer f.Close()
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return s.unreadable(path)
	}
	if err := s.attributes(f, path); err != nil {
		return err
	}
	if err := s.credentials(f, path); err != nil {
		return err
	}
	return s.content(f, st.Size, path)
}

func (s *search) unreadable(path string) error {
	return s.report(Hit{Path: path, What: "cannot be read by its own user, so that it cannot be searched"})
}

func (s *search) late() error {
	if !s.until.IsZero() && time.Now().After(s.until) {
		return errors.New("the time for the search is over: what setup leaves is too much to be searched")
	}
	return nil
}

// text looks at something short.
func (s *search) text(b []byte, path, what string) error {
	if name, ok := s.plain.in(b); ok {
		return s.report(Hit{Path: path, Secret: name, What: what})
	}
	return nil
}

// attributes looks at a file's extended attributes.
func (s *search) attributes(f *os.File, path string) error {
	fd := int(f.Fd())
	list := make([]byte, maxAttrs)
	n, err := unix.Flistxattr(fd, list)
	if err != nil || n == 0 {
		return nil // the file system has none
	}
	for _, name := range bytes.Split(bytes.TrimRight(list[:n], "\x00"), []byte{0}) {
		value := make([]byte, maxAttrs)
		n, err := unix.Fgetxattr(fd, string(name), value)
		if err != nil {
			n = 0 // the system's own, which nobody inside can write
		}
		if err := s.text(slices.Concat(name, []byte{0}, value[:n]), path, "attribute"); err != nil {
			return err
		}
	}
	return nil
}

// content looks at a file's bytes, without its holes.
func (s *search) content(f *os.File, size int64, path string) error {
	fd := int(f.Fd())
	keep := max(s.plain.longest, s.squeezed.longest) - 1 // of what was seen, for what stands across a border
	for at := int64(0); at < size; {
		data, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return nil // a hole to the end
		}
		end := size
		if err == nil {
			if hole, herr := unix.Seek(fd, data, unix.SEEK_HOLE); herr == nil {
				end = min(hole, size)
			}
			at = max(at, data)
		}
		s.buf, s.thin = s.buf[:0], s.thin[:0]
		for at < end {
			if err := s.late(); err != nil {
				return err
			}
			s.buf = tail(s.buf, keep)
			s.thin = tail(s.thin, keep)
			from := len(s.buf)
			n, err := unix.Pread(fd, grown(&s.buf, int(min(chunk, end-at))), at)
			if err == unix.EINTR {
				s.buf = s.buf[:from]
				continue
			}
			if err != nil {
				return s.unreadable(path)
			}
			if s.buf = s.buf[:from+n]; n == 0 {
				return nil // it has become shorter
			}
			at += int64(n)
			name, ok := s.plain.in(s.buf)
			if !ok && s.squeezed.longest > 0 {
				s.thin = squeeze(s.thin, s.buf[from:])
				name, ok = s.squeezed.in(s.thin)
			}
			if ok {
				return s.report(Hit{Path: path, Secret: name, What: "content"})
			}
		}
	}
	return nil
}

// tail moves the last n bytes of b to its beginning.
func tail(b []byte, n int) []byte {
	if n = min(max(n, 0), len(b)); n == 0 {
		return b[:0]
	}
	return append(b[:0], b[len(b)-n:]...)
}

// grown makes b longer by n and returns the new part.
func grown(b *[]byte, n int) []byte {
	from := len(*b)
	*b = slices.Grow(*b, n)[:from+n]
	return (*b)[from:]
}

// squeeze appends text without its white space.
func squeeze(to, text []byte) []byte {
	for _, c := range text {
		if c != ' ' && c != '\n' && c != '\r' && c != '\t' {
			to = append(to, c)
		}
	}
	return to
}

// keepers are files of a home in which programs keep credentials, and what is
// one there. A reference to a variable, ${NAME}, is none.
var keepers = sync.OnceValue(func() []keeper {
	return []keeper{
		{at(`\.npmrc`), regexp.MustCompile(`(?m)_(?:authToken|auth|password)\s*=\s*["']?[^\s"'$]`)},
		{at(`\.yarnrc\.yml`), regexp.MustCompile(`(?m)npmAuth(?:Token|Ident)"?\s*:\s*["']?[^\s"'$]`)},
		{at(`[._]netrc`), regexp.MustCompile(`\bpassword\s+\S`)},
		{at(`\.git-credentials|\.config/git/credentials`), regexp.MustCompile(`://[^\s/@]+@`)},
		{at(`\.pip/pip\.conf|\.config/pip/pip\.conf`), regexp.MustCompile(`://[^\s/:@]*:[^\s/@$]+@`)},
		{at(`\.pypirc`), regexp.MustCompile(`(?m)^\s*password\s*[=:]\s*\S`)},
		{at(`\.docker/config\.json`), regexp.MustCompile(`"(?:auth|identitytoken|registrytoken|password)"\s*:\s*"[^"]`)},
		{at(`\.cargo/credentials(?:\.toml)?`), regexp.MustCompile(`(?m)^\s*token\s*=\s*["'][^"']`)},
		{at(`\.gem/credentials`), regexp.MustCompile(`:\s*\S*[A-Za-z0-9]{8}`)},
		{at(`\.m2/settings\.xml`), regexp.MustCompile(`<(?:password|passphrase)>\s*[^<\s$]`)},
		{at(`\.aws/credentials`), regexp.MustCompile(`(?m)^\s*aws_(?:secret_access_key|session_token)\s*=\s*\S`)},
		{at(`\.config/gh/hosts\.yml`), regexp.MustCompile(`oauth_token\s*:\s*\S`)},
		{at(`\.kube/config`), regexp.MustCompile(`(?m)^\s*(?:- )?(?:token|password|client-key-data)\s*:\s*\S`)},
		{at(`\.ssh/[^/]+`), regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----`)},
	}
})

type keeper struct{ path, line *regexp.Regexp }

func at(path string) *regexp.Regexp { return regexp.MustCompile(`^(?:` + path + `)$`) }

// credentials looks at a file in which programs keep credentials.
func (s *search) credentials(f *os.File, path string) error {
	rel, ok := strings.CutPrefix(path, s.home+"/")
	if s.home == "" || !ok {
		return nil
	}
	for _, k := range keepers() {
		if !k.path.MatchString(rel) {
			continue
		}
		b, err := io.ReadAll(io.NewSectionReader(f, 0, maxConfig))
		if err != nil {
			return s.unreadable(path)
		}
		if k.line.Match(b) {
			return s.report(Hit{Path: path, What: "holds a credential"})
		}
	}
	return nil
}

// needles are strings that are looked for all at once.
type needles struct {
	longest int
	first   [1 << 16 / 64]uint64 // of the hashes of their first four bytes
	by      map[uint32][]needle
}

type needle struct {
	text   []byte
	secret string // name
}

func (n *needles) add(text, secret string) {
	if len(text) < 4 {
		return
	}
	key := word([]byte(text))
	for _, other := range n.by[key] {
		if string(other.text) == text {
			return
		}
	}
	if n.by == nil {
		n.by = map[uint32][]needle{}
	}
	n.by[key] = append(n.by[key], needle{[]byte(text), secret})
	h := hash(key)
	n.first[h/64] |= 1 << (h % 64)
	n.longest = max(n.longest, len(text))
}

// in finds the first of them in b.
func (n *needles) in(b []byte) (secret string, ok bool) {
	if n.longest == 0 || len(b) < 4 {
		return "", false
	}
	key := word(b)
	for i := 0; ; i++ {
		if h := hash(key); n.first[h/64]&(1<<(h%64)) != 0 {
			for _, x := range n.by[key] {
				if bytes.HasPrefix(b[i:], x.text) {
					return x.secret, true
				}
			}
		}
		if i+4 >= len(b) {
			return "", false
		}
		key = key>>8 | uint32(b[i+4])<<24
	}
}

// word is the first four bytes as a number, the first the lowest.
func word(b []byte) uint32 {
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}

func hash(key uint32) uint32 { return key * 0x9E3779B1 >> 16 }
