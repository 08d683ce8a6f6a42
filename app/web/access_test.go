package web

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func TestLockedWithoutToken(t *testing.T) {
	s := newSite(t)
	sum := s.delivered("abcdefghij")
	no := header("Authorization", "")
	for _, path := range []string{"/", "/sessions/abcdefghij", "/sessions/abcdefghij.json", "/sessions/abcdefghij/files/" + sum, "/nowhere", "/?token=", "/?token=wrong"} {
		for name, edit := range map[string]func(*http.Request){
			"nothing": func(*http.Request) {}, "wrong bearer": header("Authorization", "Bearer wrong"),
			"wrong cookie":        header("Cookie", newGate(accessToken, nil).name+"=wrong"),
			"the token as cookie": header("Cookie", newGate(accessToken, nil).name+"="+accessToken),
		} {
			w := s.get(path, no, edit)
			if w.Code != 401 || strings.Contains(w.Body.String(), "octocat") || !strings.Contains(w.Body.String(), "in the log") {
				t.Errorf("%s with %s: %d %s", path, name, w.Code, w.Body)
			}
		}
	}
	// A link on GitHub comes without the strict cookie and is tried again from here.
	w := s.get("/sessions/abcdefghij", no, header("Sec-Fetch-Site", "cross-site"), header("Sec-Fetch-Mode", "navigate"))
	if w.Code != 401 || !strings.Contains(w.Body.String(), `content="0"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := s.get("/sessions/abcdefghij", no, header("Sec-Fetch-Site", "same-origin"), header("Sec-Fetch-Mode", "navigate")); strings.Contains(w.Body.String(), "http-equiv") {
		t.Error("an endless loop")
	}
}

func TestTokenBecomesACookie(t *testing.T) {
	s := newSite(t)
	s.session("abc", "Mend it")
	no := header("Authorization", "")
	w := s.get("/sessions/abc?before=5&token="+accessToken, no)
	if w.Code != 303 || w.Header().Get("Location") != "/sessions/abc?before=5" {
		t.Fatalf("%d to %q", w.Code, w.Header().Get("Location"))
	}
	set := w.Header().Get("Set-Cookie")
	for _, want := range []string{"HttpOnly", "SameSite=Strict", "Path=/"} {
		if !strings.Contains(set, want) {
			t.Errorf("cookie %q lacks %s", set, want)
		}
	}
	if strings.Contains(set, accessToken) {
		t.Error("the token itself lies in the browser")
	}
	cookie, _, _ := strings.Cut(set, ";")
	if w := s.get("/sessions/abc", no, header("Cookie", cookie)); w.Code != 200 {
		t.Errorf("with the cookie: %d", w.Code)
	}
	// An address must not lead away from here.
	for _, path := range []string{"//example.com/?token=" + accessToken, "/%2f%2fexample.com?token=" + accessToken} {
		to := s.get(path, no).Header().Get("Location")
		if u, err := url.Parse(to); err != nil || u.Host != "" || strings.HasPrefix(to, "//") {
			t.Errorf("%s leads to %q", path, to)
		}
	}
	if a, b := newGate(accessToken, nil), newGate(accessToken+"x", nil); a.name == b.name {
		t.Error("two servers on one machine share a cookie")
	}
	if fmt.Sprintf("%+v", newGate(accessToken, nil)) == "" || strings.Contains(fmt.Sprintf("%+v", newGate(accessToken, nil)), accessToken) {
		t.Error("the gate keeps the token")
	}
}

func TestNamesOfStrangersAreNotAnswered(t *testing.T) {
	s := newSite(t)
	for host, ok := range map[string]bool{
		"127.0.0.1:8080": true, "127.0.0.1": true, "localhost:1": true, "LOCALHOST": true, "[::1]:8080": true, "127.9.9.9": true,
		"inspect.example": true, "inspect.example:8443": true, "INSPECT.example": true,
		"evil.example": false, "127.0.0.1.evil.example": false, "localhost.evil.example": false, "inspect.example.evil.example": false,
		"10.0.0.1": false, "": false, "0.0.0.0": false,
	} {
		w := s.get("/", func(r *http.Request) { r.Host = host })
		if (w.Code == 200) != ok {
			t.Errorf("%q: %d", host, w.Code)
		}
	}
}

func TestHeadersOfEveryAnswer(t *testing.T) {
	s := newSite(t)
	for _, path := range []string{"/", "/sessions/none", "/nowhere", "/style.css", "/healthz", "/?token=x"} {
		for _, edit := range []func(*http.Request){func(*http.Request) {}, header("Authorization", ""), func(r *http.Request) { r.Host = "evil.example" }, func(r *http.Request) { r.Method = "POST" }} {
			h := s.get(path, edit).Header()
			if !strings.Contains(h.Get("Content-Security-Policy"), "default-src 'none'") || h.Get("X-Content-Type-Options") != "nosniff" ||
				h.Get("Referrer-Policy") != "no-referrer" || h.Get("X-Frame-Options") != "DENY" || h.Get("Cache-Control") != "no-store" {
				t.Errorf("%s: %v", path, h)
			}
		}
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH"} {
		if w := s.get("/", func(r *http.Request) { r.Method = method }); w.Code != 405 {
			t.Errorf("%s: %d", method, w.Code)
		}
	}
	if w := s.get("/healthz", header("Authorization", "")); w.Code != 200 || w.Body.String() != "ok\n" {
		t.Errorf("health: %d %s", w.Code, w.Body)
	}
	if w := s.get("/style.css", header("Authorization", "")); w.Code != 200 || !strings.Contains(w.Body.String(), "prefers-color-scheme") {
		t.Errorf("style: %d", w.Code)
	}
}
