package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// An import makes the directory of images and leaves all else as it is.
func TestImportLeavesTheRestAlone(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(data, 0o711); err != nil {
		t.Fatal(err)
	}
	for dir, mode := range map[string]fs.FileMode{filepath.Dir(filepath.Dir(data)): 0o711, filepath.Dir(data): 0o711, filepath.Join(data, "node"): 0o711, filepath.Join(data, "publish"): 0o710} {
		if err := os.MkdirAll(dir, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
	}
	_, done, err := imageConfig{data: data, limits: "best-effort", sandboxUID: sandboxUID}.store()
	if err != nil {
		t.Fatal(err)
	}
	done()
	entries, err := os.ReadDir(data)
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
	st, err := os.Stat(filepath.Join(data, "publish"))
	if err != nil || st.Mode().Perm() != 0o710 {
		t.Errorf("%v, %v", st, err)
	}
	if st, err = os.Stat(filepath.Join(data, "node", "images")); err != nil || st.Mode().Perm() != 0o710 {
		t.Errorf("%v, %v", st, err)
	}
}
