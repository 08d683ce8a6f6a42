// Package collect takes the files that a command left out of a sandbox, where an
// enemy has written them: reports, coverage. It runs inside. What was there
// before comes in, and what is new since goes out, as headers and bytes: regular
// files only, no link is followed, nothing is waited for, all is bounded.
package collect

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/bmatcuk/doublestar/v4"
)

// Word asks the init's program for this.
const Word = "collect"

// Verbs of Main.
const (
	List = "list" // print a Stamp for each file that matches
	Take = "take" // print a Head and the bytes of each that is new since
)

// Bounds of one call.
const (
	MaxFileBytes = 24 << 20
	MaxListed    = 20_000   // files that List prints
	MaxBytes     = 32 << 20 // of all files
	maxWalk      = 500_000  // entries looked at
)

// Stamp is a file as it was: a line of JSON.
type Stamp struct {
	Path string `json:"path"`
	Was  string `json:"was"` // inode, size and times
}

// Head is a line of JSON before a file's bytes.
type Head struct {
	Path    string `json:"path,omitempty"`
	Bytes   int64  `json:"bytes,omitempty"`
	Problem string `json:"problem,omitempty"` // then there are no bytes
}

// Main does what the arguments say: a verb, the directory, the most files and a
// glob.
func Main(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 4 {
		return errors.New("collect wants a verb, a directory, a number and a glob")
	}
	var most int
	if _, err := fmt.Sscan(args[2], &most); err != nil {
		return fmt.Errorf("collect: %w", err)
	}
	root, err := os.OpenRoot(args[1])
	if err != nil {
		return err
	}
	defer root.Close()
	w := bufio.NewWriter(out)
	c := collector{root: root, glob: args[3], out: json.NewEncoder(w), bytes: w, most: most}
	if args[0] == List {
		err = c.list()
	} else {
		err = c.take(in)
	}
	return errors.Join(err, w.Flush())
}

type collector struct {
	root  *os.Root
	glob  string
	out   *json.Encoder
	bytes *bufio.Writer
	most  int
}

var errEnough = errors.New("enough")

// each calls f for what matches and is no directory, in order.
func (c *collector) each(f func(path string, info fs.FileInfo) error) error {
	base, _ := doublestar.SplitPattern(c.glob)
	seen := 0
	err := fs.WalkDir(c.root.FS(), base, func(path string, d fs.DirEntry, err error) error {
		if seen++; seen > maxWalk {
			return errEnough
		}
		switch {
		case err != nil && d != nil && d.IsDir():
			return fs.SkipDir // not ours to read
		case err != nil:
			return nil
		case d.IsDir() && d.Name() == ".git":
			return fs.SkipDir
		case d.IsDir() || !doublestar.MatchUnvalidated(c.glob, path):
			return nil
		}
		info, err := c.root.Lstat(path)
		if err != nil {
			return nil // it has gone
		}
		return f(path, info)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func stamp(info fs.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprint(st.Ino, st.Mode, st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec)
}

func (c *collector) list() error {
	n := 0
	err := c.each(func(path string, info fs.FileInfo) error {
		if n++; n > MaxListed {
			return errEnough
		}
		return c.out.Encode(Stamp{path, stamp(info)})
	})
	if errors.Is(err, errEnough) {
		return fmt.Errorf("%s matches too many files", c.glob)
	}
	return err
}

func (c *collector) take(in io.Reader) error {
	was := map[string]string{}
	for d := json.NewDecoder(in); ; {
		var s Stamp
		if err := d.Decode(&s); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		was[s.Path] = s.Was
	}
	n, left := 0, int64(MaxBytes)
	err := c.each(func(path string, info fs.FileInfo) error {
		if was[path] == stamp(info) {
			return nil
		}
		path = strings.ToValidUTF8(path, "\uFFFD")
		if n++; n > c.most {
			if err := c.out.Encode(Head{Problem: fmt.Sprintf("are more than %d", c.most)}); err != nil {
				return err
			}
			return errEnough
		}
		size, err := c.file(path, info, left)
		left -= size
		return err
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// file writes one file and returns how many bytes it has.
func (c *collector) file(path string, info fs.FileInfo, left int64) (int64, error) {
	refuse := func(why string) (int64, error) { return 0, c.out.Encode(Head{Path: path, Problem: why}) }
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		return refuse("is a symbolic link")
	case !mode.IsRegular():
		return refuse("is no regular file")
	}
	// It may be another file by now: nothing is waited for, and it is looked at again.
	f, err := c.root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return refuse("cannot be opened")
	}
	defer f.Close()
	now, err := f.Stat()
	switch {
	case err != nil || !now.Mode().IsRegular():
		return refuse("is no regular file")
	case now.Size() > MaxFileBytes:
		return refuse(fmt.Sprintf("is longer than %d MiB", MaxFileBytes>>20))
	case now.Size() > left:
		return refuse(fmt.Sprintf("is one of files that have more than %d MiB together", MaxBytes>>20))
	}
	size := now.Size()
	if err := c.out.Encode(Head{Path: path, Bytes: size}); err != nil {
		return 0, err
	}
	// As many as were announced, even if it has become shorter.
	_, err = io.CopyN(c.bytes, io.MultiReader(f, zeros{}), size)
	return size, err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Read calls file for each of what Take has printed.
func Read(from io.Reader, file func(Head, io.Reader) error) error {
	r := bufio.NewReaderSize(from, 16<<10)
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("what came out of the sandbox is no list of files: %w", err)
		}
		var h Head
		if err := json.Unmarshal(line, &h); err != nil || h.Bytes < 0 || h.Bytes > MaxFileBytes {
			return errors.New("what came out of the sandbox is no list of files")
		}
		body := io.LimitReader(r, h.Bytes)
		if err := file(h, body); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, body); err != nil {
			return err
		}
	}
}

// Put writes one file as Take does, for a program that has something to hand out.
func Put(to io.Writer, name string, body []byte) error {
	if err := json.NewEncoder(to).Encode(Head{Path: name, Bytes: int64(len(body))}); err != nil {
		return err
	}
	_, err := to.Write(body)
	return err
}
