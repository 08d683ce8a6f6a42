package web

import (
	"html/template"
	"io"
	"net/http"
	"strings"
	"time"

	"inspect/app/github"
	"inspect/app/measure"
	"inspect/app/tally"
	"inspect/storage"
)

// maxReported is how many repositories a report of a signed-in person looks
// into: GitHub is asked about each.
const maxReported = 100

type reportView struct {
	Frame   *frame
	Since   string
	Report  measure.Report
	Filter  measure.Filter
	Columns []measure.Column
	Tables  []reportTable
	Charts  []template.HTML
	Query   template.URL // that asks for the same as a file
	Left    bool         // more repositories than are looked into
}

type reportTable struct {
	By    measure.By
	Parts []measure.Part
	More  int // that are not shown
}

// maxParts is how many lines of one table a page shows; files have all.
const maxParts = 100

// report shows what the sessions of a time came to, or gives it away as CSV or JSON.
func (p *pages) report(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	text := func(key string) string {
		return strings.ToValidUTF8(strings.ReplaceAll(strings.TrimSpace(q.Get(key)), "\x00", ""), "")
	}
	v := reportView{Frame: p.frame(r), Since: text("since"), Columns: measure.Columns}
	v.Filter = measure.Filter{Repository: text("repository"), Harness: text("harness"), Model: text("model"), Requester: text("requester")}
	if v.Since == "" {
		v.Since = "30d"
	}
	now := p.clock.Now()
	since, err := measure.ParseSince(v.Since, now)
	if err != nil {
		p.fail(w, http.StatusBadRequest, "That is no time", "Since when: "+err.Error()+".")
		return
	}
	period := tally.Period{Since: since, Until: now, Everywhere: viewerOf(r.Context()).operator}
	if !period.Everywhere {
		if period.Repositories, v.Left, err = p.readable(r, period, v.Filter.Repository); err != nil {
			p.broken(w, r, err)
			return
		}
	}
	adder := measure.NewAdder(since, now, v.Filter, measure.Bys)
	if err := tally.Each(r.Context(), p.db.Q(), period, adder.Add); err != nil {
		p.broken(w, r, err)
		return
	}
	v.Report = adder.Report()
	switch r.URL.Path {
	case "/report.json":
		writeJSON(w, http.StatusOK, v.Report)
	case "/report.csv":
		w.Header().Set("Content-Type", "text/csv; charset=utf-8")
		w.Header().Set("Content-Disposition", `attachment; filename="inspect-report-`+now.UTC().Format(time.DateOnly)+`.csv"`)
		var b strings.Builder
		_ = v.Report.CSV(&b) // a Builder takes everything
		_, _ = io.WriteString(w, p.redact.String(b.String()))
	default:
		p.reportPage(w, r, v)
	}
}

func (p *pages) reportPage(w http.ResponseWriter, r *http.Request, v reportView) {
	for _, by := range measure.Bys {
		parts := v.Report.By(by)
		shown := parts[:min(len(parts), maxParts)]
		v.Tables = append(v.Tables, reportTable{by, shown, len(parts) - len(shown)})
	}
	for _, c := range v.Report.Charts() {
		var b strings.Builder
		if err := c.SVG(&b, false); err != nil {
			p.broken(w, r, err)
			return
		}
		v.Charts = append(v.Charts, template.HTML(b.String())) // escaped by the template it was made with
	}
	v.Query = template.URL(r.URL.Query().Encode())
	p.render(w, http.StatusOK, "report.html", v)
}

// readable are the repositories of a period that who looks may read; more: there
// are further ones, which nobody was asked about.
func (p *pages) readable(r *http.Request, period tally.Period, repository string) (ids []int64, more bool, err error) {
	rows, err := p.db.Q().ReportRepositories(r.Context(), storage.ReportRepositoriesParams{Since: period.Since, Until: period.Until, Repository: repository, AtMost: maxReported + 1})
	if err != nil {
		return nil, false, err
	}
	more = len(rows) > maxReported
	for _, row := range rows[:min(len(rows), maxReported)] {
		if p.mayRead(r.Context(), repositoryRef{row.InstallationID, github.Repo{ID: row.ID, Owner: row.Owner, Name: row.Name}}) {
			ids = append(ids, row.ID)
		}
	}
	return ids, more, nil
}
