package shot

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
)

// ErrNoBrowser is the error of a place without a Chromium.
var ErrNoBrowser = errors.New("there is no Chromium here. Where the node's own programs are used, install it there (Debian: apt-get install chromium); " +
	"where .inspect.yml names an image, install it in the image; or have setup fetch one that playwright or puppeteer keep in the home directory")

// usual is where distributions keep the program itself. Debian's chromium on PATH
// is a script that reads configuration of the node, which no sandbox sees.
var usual = []string{"/usr/lib/chromium/chromium", "/usr/lib/chromium-browser/chromium-browser", "/usr/lib64/chromium-browser/chromium-browser"}

// Find is the path of the Chromium to use: a distribution's, one on PATH, or the newest of those
// that playwright and puppeteer have fetched.
func Find() (string, error) {
	return find(usual)
}

func find(usual []string) (string, error) {
	for _, path := range usual {
		if path, err := exec.LookPath(path); err == nil {
			return path, nil
		}
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "headless_shell", "headless-shell", "chrome-headless-shell", "chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", ErrNoBrowser
	}
	for _, pattern := range []string{
		".cache/ms-playwright/chromium-*/chrome-linux*/chrome",
		".cache/ms-playwright/chromium_headless_shell-*/chrome-linux*/headless_shell",
		".cache/ms-playwright/chromium_headless_shell-*/chrome-headless-shell-linux*/chrome-headless-shell",
		".cache/puppeteer/chrome/*/chrome-linux*/chrome",
		".cache/puppeteer/chrome-headless-shell/*/chrome-headless-shell-linux*/chrome-headless-shell",
	} {
		found, _ := filepath.Glob(filepath.Join(home, pattern))
		for i := len(found) - 1; i >= 0; i-- { // the names end with versions
			if path, err := exec.LookPath(found[i]); err == nil {
				return path, nil
			}
		}
	}
	return "", ErrNoBrowser
}
