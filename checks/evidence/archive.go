package evidence

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"inspect/checks/redact"
)

// Names of what an archive of evidence holds beside the files of the manifest.
const (
	ManifestName = "manifest.json"
	ReceiptName  = "receipt.json"
	// SumsName has the SHA-256 of all other files, as sha256sum writes and checks
	// them: of the receipt, too, and of what came after the manifest was sealed.
	SumsName = "SHA256SUMS"
)

// Bounds of what is read of an archive into memory, in bytes.
const (
	MaxManifest = 128 << 20
	maxReceipt  = 1 << 20
	maxSums     = 64 << 20
	maxWrong    = 1000 // sentences
)

// Archive is what an archive of evidence holds. Nothing in it is believed yet.
type Archive struct {
	Manifest, Receipt, Sums []byte // nil: it has none
	Files                   map[string]Sum
	// Wrong has a sentence for each thing that no archive of ours has.
	Wrong []string
}

// ReadArchive reads an archive from its beginning to its end, every byte of it.
// It may be an enemy's: nothing is unpacked, and whatever is not the plain files
// that we write is named in Wrong. An error is the reader's.
func ReadArchive(r io.Reader) (Archive, error) {
	a := Archive{Files: map[string]Sum{}}
	source := &source{from: r}
	t := tar.NewReader(source)
	last := ""
	for {
		h, err := t.Next()
		if source.err != nil {
			return a, source.err
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			a.wrong("%s: the archive cannot be read any further: it is cut, or was changed there", after(last))
			return a, nil
		}
		name := redact.OneLine(h.Name, 200)
		last = name
		if why := odd(h); why != "" {
			a.wrong("%s %s", name, why)
			continue
		}
		if _, again := a.Files[h.Name]; again {
			a.wrong("%s is in the archive twice", name)
			continue
		}
		if !plain(h) {
			a.wrong("%s: its header was changed", name)
		}
		var keep *bytes.Buffer
		var most int64
		switch h.Name {
		case ManifestName:
			most = MaxManifest
		case ReceiptName:
			most = maxReceipt
		case SumsName:
			most = maxSums
		}
		var from io.Reader = t
		if most > 0 {
			if h.Size > most {
				a.wrong("%s is longer than %d bytes", name, most)
				continue
			}
			keep = &bytes.Buffer{}
			from = io.TeeReader(t, keep)
		}
		s, err := SumOf(from)
		if source.err != nil {
			return a, source.err
		}
		a.Files[h.Name] = s
		if err != nil {
			a.wrong("%s is cut: the archive ends in it", name)
		}
		if keep != nil {
			switch body := append([]byte{}, keep.Bytes()...); h.Name {
			case ManifestName:
				a.Manifest = body
			case ReceiptName:
				a.Receipt = body
			case SumsName:
				a.Sums = body
			}
		}
		if err != nil {
			return a, nil
		}
	}
	if _, err := io.Copy(io.Discard, source); err != nil {
		return a, err
	}
	for _, w := range source.frame.complaints() {
		a.wrong("%s", w)
	}
	return a, nil
}

func (a *Archive) wrong(format string, args ...any) {
	if len(a.Wrong) < maxWrong {
		a.Wrong = append(a.Wrong, fmt.Sprintf(format, args...))
	}
}

func after(name string) string {
	if name == "" {
		return "at its beginning"
	}
	return "after " + name
}

// odd says why an entry is none that we write; empty: it is.
func odd(h *tar.Header) string {
	switch h.Typeflag {
	case tar.TypeReg:
	case tar.TypeSymlink, tar.TypeLink:
		return "is a link and no file"
	case tar.TypeDir:
		return "is a directory and no file"
	default:
		return "is no ordinary file"
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse") {
			return "is said to have holes, which no file of ours has"
		}
	}
	return ""
}

// plain says whether a header has only what export writes into one: everything else
// could be a right that an unpacked file gets, or a message.
func plain(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if key != "path" {
			return false
		}
	}
	return (h.Format == tar.FormatPAX || h.Format == tar.FormatUSTAR) && h.Mode == 0o644 && h.ModTime.Equal(time.Unix(0, 0)) &&
		h.Uid == 0 && h.Gid == 0 && h.Uname == "" && h.Gname == "" && h.Linkname == "" && h.Devmajor == 0 && h.Devminor == 0
}

// source hands on what is read and looks at all of it.
type source struct {
	from  io.Reader
	frame frame
	err   error // of the reader, other than its end
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.from.Read(p)
	s.frame.look(p[:n])
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// frame looks at what stands between the files of an archive, which readers of
// such pass over: what fills up blocks, and what comes after the end.
type frame struct {
	block [512]byte
	have  int
	left  int64  // bytes of the file that goes on
	name  string // of the last header
	ends  int    // blocks of zeros since the last file
	over  bool   // something else came after them
	wrong []string
}

func (f *frame) look(p []byte) {
	for len(p) > 0 {
		n := copy(f.block[f.have:], p)
		f.have, p = f.have+n, p[n:]
		if f.have == len(f.block) {
			f.whole()
			f.have = 0
		}
	}
}

func (f *frame) say(format string, args ...any) {
	if len(f.wrong) < maxWrong {
		f.wrong = append(f.wrong, fmt.Sprintf(format, args...))
	}
}

func octal(p []byte) bool {
	return !bytes.ContainsFunc(p, func(c rune) bool { return c < '0' || c > '7' })
}

func zeros(p []byte) bool { return len(bytes.Trim(p, "\x00")) == 0 }

func (f *frame) whole() {
	b := f.block[:]
	switch {
	case f.left > 0:
		n := min(f.left, int64(len(b)))
		if f.left -= n; !zeros(b[n:]) {
			f.say("after %s: the archive was changed between its files", f.name)
		}
	case zeros(b):
		f.ends++
	case f.ends > 0:
		if !f.over {
			f.say("after %s: there is more behind the end of the archive", f.name)
		}
		f.over = true
	default:
		f.name = redact.OneLine(string(bytes.TrimRight(b[:100], "\x00")), 200)
		// The header's own sum and the kind are written so; readers take other ways of
		// writing, too.
		if !octal(b[148:154]) || b[154] != 0 || b[155] != ' ' || b[156] == 0 {
			f.say("%s: its header was changed", f.name)
		}
		size := bytes.TrimRight(b[124:136], "\x00 ")
		if !octal(size) {
			f.say("%s: its header has no size that can be read", f.name)
			return
		}
		for _, c := range size {
			f.left = f.left<<3 | int64(c-'0')
		}
	}
}

func (f *frame) complaints() []string {
	if f.have > 0 || f.left > 0 || f.ends < 2 {
		f.say("%s: the archive is cut before its end", after(f.name))
	}
	return f.wrong
}

// Sums are the lines of SumsName for files by name.
func Sums(files map[string]string) []byte {
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(files)) {
		escaped := strings.NewReplacer("\\", "\\\\", "\n", "\\n", "\r", "\\r").Replace(name)
		if escaped != name {
			b.WriteByte('\\')
		}
		fmt.Fprintf(&b, "%s  %s\n", files[name], escaped)
	}
	return b.Bytes()
}

// Compare checks an archive, of which digest is what a receipt says of the
// manifest; empty: nobody knows. The manifest says what its files have to be, and
// SumsName of the others. wrong has a sentence for each thing that is not as it
// should be, beside the names of files of which the manifest says nothing, and so
// no receipt: SumsName can be written anew with them, and older archives have none.
func (a Archive) Compare(digest string) (m Manifest, wrong, beside []string, err error) {
	wrong = a.Wrong
	if a.Manifest == nil {
		return m, append(wrong, ManifestName+" is missing"), nil, nil
	}
	m, more, err := Verify(a.Manifest, digest, func(f File) (Sum, error) {
		s, ok := a.Files[f.Name]
		if !ok {
			return s, ErrAbsent
		}
		return s, nil
	})
	wrong = append(wrong, more...)
	if err != nil {
		return m, wrong, nil, err
	}
	named := map[string]bool{ManifestName: true, SumsName: true}
	for _, f := range m.Files {
		named[f.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(a.Files)) {
		switch {
		case named[name]:
		case name == ReceiptName || later(name):
			beside = append(beside, redact.OneLine(name, 200))
		default:
			wrong = append(wrong, redact.OneLine(name, 200)+" does not belong to the evidence: the manifest does not name it")
		}
	}
	if a.Sums != nil {
		wrong = append(wrong, a.compareSums(m, named)...)
	}
	return m, wrong, beside, nil
}

// later says whether a file of that name may have come after the manifest.
func later(name string) bool {
	ok, err := path.Match("build-*.json", name)
	return ok && err == nil
}

// compareSums holds what is there against the list. Where the manifest speaks of
// a file, it decides.
func (a Archive) compareSums(m Manifest, named map[string]bool) (wrong []string) {
	want, said := map[string]string{}, map[string]string{}
	for _, f := range m.Files {
		said[f.Name] = f.SHA256
	}
	for line := range strings.Lines(string(a.Sums)) {
		line = strings.TrimSuffix(line, "\n")
		line, escaped := strings.CutPrefix(line, "\\")
		sum, name, _ := strings.Cut(line, "  ")
		if escaped {
			name = strings.NewReplacer("\\\\", "\\", "\\n", "\n", "\\r", "\r").Replace(name)
		}
		want[name] = sum
	}
	if !bytes.Equal(Sums(want), a.Sums) {
		wrong = append(wrong, SumsName+" was changed: it is not as it is written")
	}
	for _, name := range slices.Sorted(maps.Keys(a.Files)) {
		if name == SumsName || !named[name] && name != ReceiptName && !later(name) {
			continue
		}
		shown, have := redact.OneLine(name, 200), a.Files[name].SHA256
		switch sum, listed := want[name]; {
		case !listed && named[name]:
			wrong = append(wrong, SumsName+" was changed: it does not name "+shown)
		case !listed:
			wrong = append(wrong, shown+" does not belong to the evidence: neither the manifest nor "+SumsName+" names it")
		case sum != have && named[name] && name != ManifestName:
			if said[name] == have {
				wrong = append(wrong, SumsName+" was changed: of "+shown+" it says something else than the manifest")
			}
		case sum != have:
			wrong = append(wrong, fmt.Sprintf("%s or %s was changed: the file has sha256:%s, the list says sha256:%s", shown, SumsName, have, redact.OneLine(sum, 64)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if _, there := a.Files[name]; !there && said[name] == "" {
			wrong = append(wrong, redact.OneLine(name, 200)+" is missing, which "+SumsName+" names")
		}
	}
	return wrong
}
