package sandbox

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// view is what a tier shows inside: directories of its own, links, and files and
// directories of this machine, read-only.
type view interface {
	mkdir(at string)
	link(to, at string)
	show(from, at string)
}

// showImage shows the tree of an image around the places where something else
// is mounted. A directory above such a place is made anew, with all the image
// has in it: nothing can be made in the image itself. No link of the image is
// followed outside; its programs do so inside.
func showImage(v view, root string, places []string) error {
	taken, above := map[string]bool{}, map[string]bool{"/": true}
	for _, p := range places {
		taken[p] = true
		for d := path.Dir(p); d != "/"; d = path.Dir(d) {
			above[d] = true
		}
	}
	return showDir(v, root, "/", taken, above)
}

func showDir(v view, root, dir string, taken, above map[string]bool) error {
	entries, err := os.ReadDir(filepath.Join(root, dir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		at := path.Join(dir, e.Name())
		from := filepath.Join(root, at)
		switch {
		case taken[at]:
		case above[at] && !e.IsDir(): // what the sandbox needs there goes before
		case above[at]:
			v.mkdir(at)
			if err := showDir(v, root, at, taken, above); err != nil {
				return err
			}
		case e.Type() == os.ModeSymlink:
			to, err := os.Readlink(from)
			if err != nil {
				return err
			}
			v.link(to, at)
		case e.IsDir() || e.Type().IsRegular():
			v.show(from, at)
		}
	}
	return nil
}

// showHost shows the programs of this machine.
func showHost(v view) {
	v.show("/usr", "/usr")
	links, dirs := hostRoot()
	for _, name := range slices.Sorted(maps.Keys(links)) {
		v.link(links[name], name)
	}
	for _, dir := range dirs {
		v.show(dir, dir)
	}
}

// showPrograms shows what the sandbox's programs come from, and the host
// directories that every sandbox may read.
func (l *Launcher) showPrograms(v view, s Spec) error {
	if s.Root != "" {
		if err := showImage(v, s.Root, l.places(s)); err != nil {
			return err
		}
	} else {
		showHost(v)
		for _, e := range l.etc {
			v.show(e, e)
		}
	}
	for _, e := range l.opt.Expose {
		v.show(e, e)
	}
	return nil
}

// places are where a sandbox shows something of its own.
func (l *Launcher) places(s Spec) []string {
	out := append([]string{"/proc", "/sys", "/dev", "/tmp", "/run", "/var/tmp", "/var/run", Home}, l.opt.Expose...)
	for name := range s.etcFiles() {
		out = append(out, name)
	}
	for _, m := range s.Mounts {
		if !strings.HasPrefix(m.Target, "/run/") {
			out = append(out, m.Target)
		}
	}
	return out
}
