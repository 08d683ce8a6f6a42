package evidence

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// packed is an archive as it is exported, in its order, with a name that needs
// headers of its own, and its manifest's digest.
type packed struct {
	names  []string
	bodies map[string]string
	digest string
}

func newPacked(t *testing.T) packed {
	t.Helper()
	long := strings.Repeat("long-", 25) + "\n|😀"
	p := packed{bodies: map[string]string{"change.patch": "diff\n", "empty": "", long: strings.Repeat("x", 700)}}
	m := Manifest{Session: "abcdefghij", Repository: "octocat/hello"}
	sums := map[string]string{}
	for _, name := range []string{"change.patch", "empty", long} {
		sum := sha256.Sum256([]byte(p.bodies[name]))
		sums[name] = hex.EncodeToString(sum[:])
		m.Files = append(m.Files, File{Name: name, SHA256: sums[name], Bytes: int64(len(p.bodies[name]))})
	}
	body, digest, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	p.digest = digest
	p.bodies[ManifestName], p.bodies[ReceiptName], p.bodies["build-web-3.json"] = string(body), `{"evidence":"`+digest+`","branch":"inspect/1"}`, "{}"
	for _, name := range []string{ManifestName, ReceiptName, "build-web-3.json"} {
		sum := sha256.Sum256([]byte(p.bodies[name]))
		sums[name] = hex.EncodeToString(sum[:])
	}
	p.bodies[SumsName] = string(Sums(sums))
	p.names = []string{ManifestName, ReceiptName, SumsName, "change.patch", "empty", long, "build-web-3.json"}
	return p
}

func (p packed) without(name string) packed {
	p.names = slices.DeleteFunc(slices.Clone(p.names), func(n string) bool { return n == name })
	return p
}

func (p packed) with(name, body string) packed {
	if !slices.Contains(p.names, name) {
		p.names = append(slices.Clone(p.names), name)
	}
	p.bodies = maps.Clone(p.bodies)
	p.bodies[name] = body
	return p
}

// tar packs; more has further entries.
func (p packed) tar(t *testing.T, more ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range p.names {
		more = append(more, &tar.Header{Name: name, Mode: 0o644, Size: int64(len(p.bodies[name])), Format: tar.FormatPAX})
	}
	for _, h := range more {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write([]byte(p.bodies[h.Name])); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func (p packed) compare(t *testing.T, body []byte, digest string) (wrong, beside []string) {
	t.Helper()
	a, err := ReadArchive(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	_, wrong, beside, err = a.Compare(digest)
	if err != nil {
		t.Fatal(err)
	}
	return wrong, beside
}

func TestArchive(t *testing.T) {
	p := newPacked(t)
	whole := p.tar(t)
	if wrong, beside := p.compare(t, whole, p.digest); len(wrong) > 0 || !slices.Equal(beside, []string{"build-web-3.json", "receipt.json"}) {
		t.Fatalf("%q %q", wrong, beside)
	}
	// As GNU tar fills an archive up to its record.
	if wrong, _ := p.compare(t, append(slices.Clone(whole), make([]byte, 20*512)...), p.digest); len(wrong) > 0 {
		t.Errorf("filled up with zeros: %q", wrong)
	}
	long := p.names[5]
	link := &tar.Header{Name: "change.patch", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd", Format: tar.FormatPAX}
	for name, c := range map[string]struct {
		body []byte
		want string
	}{
		"a file more":               {p.with("evil.sh", "x").tar(t), "evil.sh does not belong to the evidence"},
		"a file more, in a place":   {p.with("../../evil", "x").tar(t), "../../evil does not belong to the evidence"},
		"a file less":               {p.without("change.patch").tar(t), "change.patch is missing"},
		"a later file less":         {p.without("build-web-3.json").tar(t), "build-web-3.json is missing, which SHA256SUMS names"},
		"a later file more":         {p.with("build-web-4.json", "{}").tar(t), "build-web-4.json does not belong"},
		"a later file changed":      {p.with("build-web-3.json", "[]").tar(t), "build-web-3.json or SHA256SUMS was changed"},
		"no manifest":               {p.without(ManifestName).tar(t), "manifest.json is missing"},
		"no receipt":                {p.without(ReceiptName).tar(t), "receipt.json is missing, which"},
		"another receipt":           {p.with(ReceiptName, strings.Replace(p.bodies[ReceiptName], "inspect/1", "inspect/2", 1)).tar(t), "receipt.json or SHA256SUMS was changed"},
		"sums of another":           {p.with(SumsName, strings.Replace(p.bodies[SumsName], "  change.patch", "  change.patcH", 1)).tar(t), "SHA256SUMS was changed: it does not name change.patch"},
		"sums that say otherwise":   {p.with(SumsName, strings.Repeat("0", 64)+p.bodies[SumsName][64:]).tar(t), "SHA256SUMS was changed"},
		"sums in another order":     {p.with(SumsName, p.bodies[SumsName]+p.bodies[SumsName]).tar(t), "SHA256SUMS was changed"},
		"renamed":                   {p.without("change.patch").with("change.Patch", p.bodies["change.patch"]).tar(t), "change.patch is missing"},
		"twice, the right one last": {p.tar(t, &tar.Header{Name: "change.patch", Format: tar.FormatPAX}), "change.patch is in the archive twice"},
		"a manifest twice":          {p.tar(t, &tar.Header{Name: ManifestName, Format: tar.FormatPAX}), "manifest.json is in the archive twice"},
		"a link":                    {p.without("change.patch").tar(t, link), "change.patch is a link"},
		"a hard link":               {p.tar(t, &tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "change.patch"}), "h is a link"},
		"a pipe":                    {p.tar(t, &tar.Header{Name: "p", Typeflag: tar.TypeFifo}), "p is no ordinary file"},
		"a directory":               {p.tar(t, &tar.Header{Name: "d/", Typeflag: tar.TypeDir}), "d/ is a directory"},
		"two archives":              {append(slices.Clone(whole), whole...), "more behind the end"},
		"something behind the end":  {append(slices.Clone(whole), "x"...), "cut before its end"},
		"nothing":                   {nil, "cut before its end"},
		"no archive":                {bytes.Repeat([]byte("FAIL "), 1000), "at its beginning: the archive cannot be read"},
		"with a receipt's length":   {p.with(ReceiptName, strings.Repeat("x", maxReceipt+1)).tar(t), "receipt.json is longer than"},
	} {
		if wrong, _ := p.compare(t, c.body, p.digest); !strings.Contains(strings.Join(wrong, "\n"), c.want) {
			t.Errorf("%s: %q", name, wrong)
		}
	}
	// However short it is cut.
	for n := range len(whole) {
		if n%61 != 0 && n < len(whole)-1100 {
			continue
		}
		if wrong, _ := p.compare(t, whole[:n], p.digest); len(wrong) == 0 {
			t.Fatalf("%d of %d bytes are taken for the whole", n, len(whole))
		}
	}
	if wrong, _ := p.compare(t, p.with(long, p.bodies[long][1:]).tar(t), p.digest); len(wrong) != 1 || !strings.Contains(wrong[0], "was changed") {
		t.Errorf("%q", wrong)
	}
	if _, err := ReadArchive(iotest.ErrReader(bytes.ErrTooLarge)); err == nil {
		t.Error("a reader's error is lost")
	}
}

// Each byte of an archive counts, wherever it stands: in a file, in a header, in
// what fills up a block, behind the end; and what is said names the file of it.
func TestEveryByteOfAnArchive(t *testing.T) {
	p := newPacked(t)
	whole := p.tar(t)
	at := map[string]int{} // where files begin
	for _, name := range p.names {
		at[name] = bytes.Index(whole, []byte(p.bodies[name]))
	}
	inFile := func(i int) bool {
		return slices.ContainsFunc(p.names, func(n string) bool { return i >= at[n] && i < at[n]+len(p.bodies[n]) })
	}
	for i := range whole {
		if i%5 > 0 && inFile(i) {
			continue // its sum does not care which one
		}
		changed := slices.Clone(whole)
		changed[i] ^= []byte{1, 0x20, 0xff}[i%3]
		wrong, _ := p.compare(t, changed, p.digest)
		if len(wrong) == 0 {
			t.Fatalf("byte %d of %d (block %d, %d in it) may be %#x instead of %#x", i, len(whole), i/512, i%512, changed[i], whole[i])
		}
		for _, name := range p.names {
			if n := len(p.bodies[name]); n > 0 && i >= at[name] && i < at[name]+n && !strings.Contains(strings.Join(wrong, "\n"), strings.Join(strings.Fields(name), " ")) {
				t.Fatalf("byte %d of %q: %q", i-at[name], name, wrong)
			}
		}
	}
}

// Whoever writes a file more, or another header, can write the list and the sums anew
// as well.
func TestArchiveWrittenAnew(t *testing.T) {
	p := newPacked(t)
	evil := p.with("evil.sh", "x")
	sums := map[string]string{}
	for _, name := range evil.names {
		sum := sha256.Sum256([]byte(evil.bodies[name]))
		sums[name] = hex.EncodeToString(sum[:])
	}
	delete(sums, SumsName)
	if wrong, _ := p.compare(t, evil.with(SumsName, string(Sums(sums))).tar(t), p.digest); len(wrong) != 1 || !strings.Contains(wrong[0], "evil.sh does not belong to the evidence") {
		t.Errorf("a file that only SHA256SUMS names: %q", wrong)
	}
	for name, change := range map[string]func(*tar.Header){
		"a mode":            func(h *tar.Header) { h.Mode = 0o4755 },
		"an owner":          func(h *tar.Header) { h.Uid = 1000 },
		"a group":           func(h *tar.Header) { h.Gid = 1000 },
		"an owner's name":   func(h *tar.Header) { h.Uname = "octocat" },
		"a group's name":    func(h *tar.Header) { h.Gname = "octocat" },
		"a time":            func(h *tar.Header) { h.ModTime = time.Unix(1, 0) },
		"a record":          func(h *tar.Header) { h.PAXRecords = map[string]string{"SCHILY.xattr.user.a": "b"} },
		"a link's target":   func(h *tar.Header) { h.Linkname = "/etc/passwd" },
		"a way of writing":  func(h *tar.Header) { h.Format = tar.FormatGNU; h.AccessTime = time.Unix(1, 0) },
		"a device's number": func(h *tar.Header) { h.Devmajor = 1 },
	} {
		h := &tar.Header{Name: "empty", Mode: 0o644, Format: tar.FormatPAX}
		change(h)
		if wrong, _ := p.compare(t, p.without("empty").tar(t, h), p.digest); len(wrong) != 1 || !strings.Contains(wrong[0], "empty: its header was changed") {
			t.Errorf("%s: %q", name, wrong)
		}
	}
	whole := p.tar(t)
	header := whole[:512]
	sumOf := func() (n int) {
		for i, b := range header {
			if i >= 148 && i < 156 {
				b = ' '
			}
			n += int(b)
		}
		return n
	}
	header[156] = 0 // an older way to say that it is a file
	copy(header[148:], fmt.Sprintf("%06o\x00 ", sumOf()))
	if wrong, _ := p.compare(t, whole, p.digest); len(wrong) != 1 || !strings.Contains(wrong[0], "manifest.json: its header was changed") {
		t.Errorf("a kind: %q", wrong)
	}
}

// One that an older version exported is read as well, and what it does not say is
// said; what nothing could be is refused.
func TestArchiveWithoutSums(t *testing.T) {
	p := newPacked(t).without(SumsName)
	wrong, beside := p.compare(t, p.tar(t), p.digest)
	if len(wrong) > 0 || !slices.Equal(beside, []string{"build-web-3.json", "receipt.json"}) {
		t.Errorf("%q %q", wrong, beside)
	}
	if wrong, _ := p.compare(t, p.with("evil", "x").tar(t), p.digest); len(wrong) != 1 || !strings.Contains(wrong[0], "evil does not belong") {
		t.Errorf("%q", wrong)
	}
}

func FuzzArchive(f *testing.F) {
	f.Add([]byte("manifest.json"))
	f.Fuzz(func(t *testing.T, body []byte) {
		a, err := ReadArchive(bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if _, wrong, _, err := a.Compare(""); err != nil || len(wrong) == 0 && len(a.Manifest) == 0 {
			t.Fatal(err, wrong)
		}
	})
}
