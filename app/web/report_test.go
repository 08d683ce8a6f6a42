package web

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"inspect/app/measure"
)

// Who is signed in gets figures of the repositories they can read alone.
func TestReportOfWhoMayRead(t *testing.T) {
	h, b := newHouse(t, "https://inspect.example")
	h.sql(`UPDATE sessions SET state = 'failed', reason = 'verify_failed', finished_at = created_at WHERE id = 'open'`)
	h.sql(`UPDATE sessions SET state = 'infrastructure', reason = 'hidden_reason', requester_login = 'secretive', finished_at = created_at WHERE id = 'hidden'`)
	for _, path := range []string{"/report", "/report.csv", "/report.json"} {
		if w := b.send("GET", path, nil); w.Code != http.StatusUnauthorized {
			t.Errorf("a stranger gets %s: %d", path, w.Code)
		}
	}
	b.signIn("/report")
	operator := &browser{t: t, to: b.to, base: b.base, jar: map[string]*http.Cookie{}}
	operator.send("GET", "/?token="+accessToken, nil)
	for _, path := range []string{"/report", "/report.csv", "/report.json", "/report?repository=octocat/vault", "/report.json?requester=secretive"} {
		w := b.send("GET", path, nil)
		if w.Code != http.StatusOK {
			t.Errorf("%s is %d %s", path, w.Code, w.Body)
		}
		for _, hidden := range []string{"hidden_reason", "infrastructure"} {
			if strings.Contains(w.Body.String(), hidden) {
				t.Errorf("%s tells of what the person cannot read: %s", path, w.Body)
			}
		}
		if all := operator.send("GET", path, nil).Body.String(); !strings.Contains(all, "hidden_reason") {
			t.Errorf("%s does not tell who holds the token everything: %s", path, all)
		}
	}
	for path, want := range map[string]float64{"/report.json": 1, "/report.json?since=1h&repository=OCTOCAT/parcel": 1, "/report.json?repository=octocat/vault": 0, "/report.json?requester=secretive": 0} {
		var r measure.Report
		if err := json.Unmarshal(b.send("GET", path, nil).Body.Bytes(), &r); err != nil || *r.Total.Get("sessions").Value != want {
			t.Errorf("%s counts %s, want %g: %v", path, r.Total.Get("sessions").Text(), want, err)
		}
	}
	h.hub.levels[7] = nil
	h.clock.Advance(mayFor)
	if w := b.send("GET", "/report", nil); strings.Contains(w.Body.String(), "verify_failed") {
		t.Errorf("what the person cannot read any more is told: %s", w.Body)
	}
}

func TestReportPage(t *testing.T) {
	s := newSite(t)
	s.session("s1", "one")
	s.sql(`UPDATE sessions SET state = 'failed', reason = $1, requester_login = $1, spec = jsonb_build_object('harness', jsonb_build_object('kind', $1::text, 'model', '=1+1')), finished_at = created_at`, evil)
	w := s.get("/report?" + url.Values{"harness": {evil}, "since": {"2026-03-01"}}.Encode())
	page := w.Body.String()
	if w.Code != http.StatusOK || strings.Contains(page, "<script>") || strings.Contains(page, "<img") || !strings.Contains(page, "&lt;script&gt;alert(1)") {
		t.Fatalf("%d %s", w.Code, page)
	}
	for _, want := range []string{"Merge rate</th><td>not known</td>", "no pull request was opened", `role="img" aria-label="Failures by cause"`, "1 of 1", `href="/report.csv?harness=`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %s: %s", want, page)
		}
	}
	w = s.get("/report.csv")
	if !strings.Contains(w.Header().Get("Content-Disposition"), "attachment") || !strings.Contains(w.Body.String(), "model,'=1+1,") {
		t.Errorf("%v %s", w.Header(), w.Body)
	}
	for _, since := range []string{"yesterday", "-1d", "2026-03-05"} {
		if w := s.get("/report?since=" + since); w.Code != http.StatusBadRequest {
			t.Errorf("since %s: %d", since, w.Code)
		}
	}
}
