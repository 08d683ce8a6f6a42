package measure

import (
	"encoding/csv"
	"fmt"
	"html/template"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"inspect/checks/redact"
)

// Unnamed is shown for a name that is not there.
const Unnamed = "(none known)"

// Called is the name of a part for people, one line of it.
func (p Part) Called() string {
	switch {
	case p.By == "":
		return "all"
	case p.Name == "":
		return Unnamed
	}
	return line(p.Name)
}

// String is a cause in words.
func (c Cause) String() string {
	if c.Reason == "" {
		return line(c.State)
	}
	return line(c.State + ": " + c.Reason)
}

// line is a stranger's text as one line, nothing in it invisible.
func line(s string) string {
	return redact.Cut(strings.Join(strings.Fields(redact.Visible(s)), " "), maxName)
}

// maxName is how much of a name is shown, in bytes.
const maxName = 100

// Text is a figure for people: "0.42", "$1.25", "3 min 20 s", "not known".
func (f Figure) Text() string {
	if f.Value == nil {
		return "not known"
	}
	v := *f.Value
	switch f.Unit {
	case "USD":
		return "$" + number(v)
	case "s":
		return (time.Duration(v * float64(time.Second))).Round(time.Millisecond).String()
	case "":
		return number(v)
	}
	return number(v) + " " + f.Unit
}

// Made says what a figure is made of: "3 of 4: merged, of …".
func (f Figure) Made() string {
	if f.Denominator == nil {
		return f.Note
	}
	return number(*f.Numerator) + " by " + number(*f.Denominator) + ": " + f.Note
}

// number writes what a person reads: whole numbers whole, others with three
// digits that count at least.
func number(v float64) string {
	s := strconv.FormatFloat(v, 'f', -1, 64)
	if v != float64(int64(v)) {
		digits := 2
		for x := v; x > 0 && x < 1 && digits < 9; x *= 10 {
			digits++
		}
		s = strings.TrimRight(strings.TrimRight(strconv.FormatFloat(v, 'f', digits, 64), "0"), ".")
	}
	return s
}

// Column is a figure that a table of parts has room for.
type Column struct{ Key, Head string }

// Columns are those of the tables for people.
var Columns = []Column{
	{"sessions", "sessions"}, {"delivered", "delivered"}, {"failed", "failed"}, {"merge_rate", "merged"}, {"review_minutes", "review min"},
	{"accepted_per_review_minute", "accepted/min"}, {"accepted_per_risk", "accepted/risk"}, {"cost", "cost"}, {"cost_per_merged", "cost/merged"},
}

// Brief is a figure in a cell of a table: a rate of things counted is "3 of 4".
func (f Figure) Brief() string {
	switch f.Key {
	case "delivered", "failed", "merge_rate":
		if f.Denominator != nil {
			return number(*f.Numerator) + " of " + number(*f.Denominator)
		}
	}
	return f.Text()
}

// By is the parts of one kind.
func (r Report) By(by By) (out []Part) {
	for _, p := range r.Parts {
		if p.By == by {
			out = append(out, p)
		}
	}
	return out
}

// formula is what a spreadsheet takes for one, at the begin of a cell or after
// what some of them end a cell with.
var formula = regexp.MustCompile(`(^|[;|])(\s*["']?)([=+\-@＝＋－＠])`)

// cell is text that a spreadsheet shows and does not work out.
func cell(s string) string {
	return formula.ReplaceAllString(line(s), "$1'$2$3")
}

// CSV writes a line for each figure and cause of the total and the parts. An
// empty value is one that is not known.
func (r Report) CSV(w io.Writer) error {
	c := csv.NewWriter(w)
	_ = c.Write([]string{"by", "name", "figure", "title", "unit", "value", "numerator", "denominator", "note"}) // Flush tells
	exact := func(v *float64) string {
		if v == nil {
			return ""
		}
		return strconv.FormatFloat(*v, 'f', -1, 64)
	}
	for _, p := range append([]Part{r.Total}, r.Parts...) {
		name := cell(p.Name)
		for _, f := range p.Figures {
			_ = c.Write([]string{string(p.By), name, f.Key, f.Title, f.Unit, exact(f.Value), exact(f.Numerator), exact(f.Denominator), f.Note})
		}
		for _, x := range p.Causes {
			_ = c.Write([]string{string(p.By), name, "failures", cell(x.String()), "", strconv.Itoa(x.Sessions), "", "", ""})
		}
	}
	c.Flush()
	return c.Error()
}

// Chart is a picture of a report, as bars.
type Chart struct {
	Name  string // of its file, without the end
	Title string
	Bars  []Bar
	Left  int // how many more there are
}

// Bar is one value of a chart. Part is its length, 0 to 1.
type Bar struct {
	Label, Words string
	Part         float64
	Y            int // its upper edge
}

// maxBars are drawn of one chart.
const maxBars = 60

// charted are the figures that are drawn of the parts.
var charted = []string{"sessions", "merge_rate", "accepted_per_review_minute", "accepted_per_risk", "cost_per_merged", "sandbox_minutes"}

// Charts draws: sessions by day, failures by cause, and some figures of the parts.
func (r Report) Charts() (out []Chart) {
	days := Chart{Name: "days", Title: "Sessions that ended, by day in UTC"}
	for _, d := range r.Days[max(0, len(r.Days)-maxBars):] {
		days.add(d.Date, fmt.Sprintf("%d, %d delivered", d.Sessions, d.Delivered), float64(d.Sessions))
	}
	days.Left = len(r.Days) - len(days.Bars)
	causes := Chart{Name: "failures", Title: "Failures by cause"}
	for _, c := range r.Total.Causes {
		causes.add(c.String(), strconv.Itoa(c.Sessions), float64(c.Sessions))
	}
	out = append(out, days, causes)
	for _, by := range Bys {
		for _, key := range charted {
			c := Chart{Name: string(by) + "-" + strings.ReplaceAll(key, "_", "-"), Title: r.Total.Get(key).Title + ", by " + string(by)}
			for _, p := range r.By(by) {
				f, v := p.Get(key), 0.0
				if f.Value != nil {
					v = *f.Value
				}
				c.add(p.Called(), f.Text(), v)
			}
			if len(c.Bars) > 0 {
				out = append(out, c)
			}
		}
	}
	for i := range out {
		out[i].scale()
	}
	return out
}

func (c *Chart) add(label, words string, v float64) {
	if len(c.Bars) == maxBars {
		c.Left++
		return
	}
	c.Bars = append(c.Bars, Bar{Label: shorten(label), Words: words, Part: v, Y: top + len(c.Bars)*step})
}

// shorten cuts a label to what its place takes.
func shorten(s string) string {
	if utf8.RuneCountInString(s) > maxLabel {
		return string([]rune(s)[:maxLabel-1]) + "…"
	}
	return s
}

func (c *Chart) scale() {
	most := 0.0
	for _, b := range c.Bars {
		most = max(most, b.Part)
	}
	for i := range c.Bars {
		if most > 0 {
			c.Bars[i].Part /= most
		}
	}
}

// Measures of a chart in pixels.
const (
	top, step, length, maxLabel = 40, 22, 260, 34
)

// Where things are in a chart, in pixels.

func (c Chart) Height() int {
	return top + max(1, len(c.Bars))*step + map[bool]int{true: step}[c.Left > 0]
}
func (c Chart) End() int      { return top + len(c.Bars)*step + 14 }
func (b Bar) Length() string  { return strconv.FormatFloat(b.Part*length, 'f', 1, 64) }
func (b Bar) WordsAt() string { return strconv.FormatFloat(250+b.Part*length, 'f', 1, 64) }
func (b Bar) Line() int       { return b.Y + 14 }

// picture is a chart as SVG. Everything that comes from elsewhere is escaped.
var picture = template.Must(template.New("").Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {{.Height}}" role="img" aria-label="{{.Title}}" font-family="system-ui, sans-serif" font-size="13" fill="currentColor">{{if .Alone}}<rect width="720" height="{{.Height}}" fill="#ffffff"/>{{end}}<text x="0" y="20" font-size="15" font-weight="600">{{.Title}}</text>
{{range .Bars}}<text x="235" y="{{.Line}}" text-anchor="end">{{.Label}}</text><rect x="242" y="{{.Y}}" width="{{.Length}}" height="18" fill="#1f6feb"/><text x="{{.WordsAt}}" y="{{.Line}}">{{.Words}}</text>
{{else}}<text x="0" y="54">Nothing is known.</text>
{{end}}{{if .Left}}<text x="0" y="{{.End}}">and {{.Left}} more</text>
{{end}}</svg>
`))

// SVG writes a chart, on its own white ground if it stands alone.
func (c Chart) SVG(w io.Writer, alone bool) error {
	return picture.Execute(w, struct {
		Chart
		Alone bool
	}{c, alone})
}
