package web

import (
	"html/template"
	"net/http/httptest"
	"strings"
	"testing"

	"inspect/checks/redact"
)

func TestPagesAreRedacted(t *testing.T) {
	const canary = `a+b "of" the <control> plane`
	p := &pages{redact: redact.New(canary), tmpl: template.Must(template.New("x").Parse("<p title=\"{{.}}\">{{.}}</p>"))}
	w := httptest.NewRecorder()
	p.render(w, 200, "x", canary+" ghs_"+strings.Repeat("Ab-_9", 90))
	if body := w.Body.String(); strings.Contains(body, "control") || strings.Contains(body, "Ab-_9") || strings.Count(body, redact.Mark) < 2 {
		t.Error(body)
	}
}
