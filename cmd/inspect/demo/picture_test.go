package demo

import (
	"bytes"
	"image/png"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// A page is pictured by a real browser on the base and on the result, the check run
// says how much of it changed and leads to where both and their difference stand.
func TestPicturesInACheckRun(t *testing.T) {
	files := small()
	files["index.html"] = "<!doctype html><title>Price</title><h1>Price</h1><iframe src=price.txt width=300 height=80></iframe>\n"
	config := files[".inspect.yml"]
	config = strings.Replace(config, "verify: [{name: unit, run: sh test.sh}]", `services: {web: {command: "exec python3 -m http.server 5173 --bind 127.0.0.1", port: 5173, ready: "http://127.0.0.1:5173/"}}`+
		"\n"+`verify: [{name: unit, run: sh test.sh}, {name: home, screenshot: "http://127.0.0.1:5173/", viewport: 400x300}]`, 1)
	config = strings.NewReplacer("memory: 256MiB, pids: 100, disk: 64MiB, timeout: 15s", "memory: 2GiB, pids: 500, disk: 512MiB, timeout: 2m").Replace(config)
	files[".inspect.yml"] = config
	s := openStage(t, map[string]map[string]string{"shop": files})
	ctx := patienceOf(t, 3*time.Minute)
	id := s.of(ctx, "shop", s.ask("shop", "Too dear"))
	v := s.until(ctx, id, "over", over)
	if v.State != "delivered" {
		t.Fatalf("%s (%s): %s", v.State, v.Reason, v.Words)
	}
	runs, err := s.github.CheckRuns(octocat + "/shop")
	if err != nil || len(runs) != 1 || runs[0].Conclusion != "success" {
		t.Fatalf("%+v %v", runs, err)
	}
	line := regexp.MustCompile(`\*\*Screenshots\*\* before and after: \[home\]\(\S*/sessions/` + id + `#screenshots\): \d[^·\n]* changed`)
	if !line.MatchString(runs[0].Summary) {
		t.Errorf("the check run does not lead to the pictures:\n%s", runs[0].Summary)
	}
	page, err := s.pages.text(ctx, "/sessions/"+id)
	if err != nil {
		t.Fatal(err)
	}
	_, part, found := strings.Cut(page, `<h2 id="screenshots">`)
	part, _, _ = strings.Cut(part, "</section>")
	pictures := regexp.MustCompile(`<img src="([^"]+)"`).FindAllStringSubmatch(part, -1)
	if !found || len(pictures) != 3 {
		t.Fatalf("the page shows %d pictures: %s", len(pictures), part)
	}
	var seen [][]byte
	for _, p := range pictures {
		body, err := s.pages.text(ctx, p[1])
		if err != nil {
			t.Fatal(err)
		}
		img, err := png.Decode(strings.NewReader(body))
		if err != nil || img.Bounds().Dx() != 400 || img.Bounds().Dy() != 300 {
			t.Errorf("%s: %v %v", p[1], err, img.Bounds())
		}
		if slices.ContainsFunc(seen, func(b []byte) bool { return bytes.Equal(b, []byte(body)) }) {
			t.Errorf("%s is shown twice", p[1])
		}
		seen = append(seen, []byte(body))
	}
}
