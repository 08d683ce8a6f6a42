package command

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func request(text string) Command { return Command{Name: Request, Text: text, Line: 1} }

func TestParseCommands(t *testing.T) {
	long := strings.Repeat("words ", 5000) + "end"
	tests := []struct {
		name string
		body string
		want []Command // compared without Line
	}{
		{"request", "/inspect fix the bug", []Command{request("fix the bug")}},
		{"request with tab", "/inspect\tfix the bug", []Command{request("fix the bug")}},
		{"up to three spaces before", "   /inspect fix the bug", []Command{request("fix the bug")}},
		{"second line of a paragraph", "Hello\n/inspect fix the bug", []Command{request("fix the bug")}},
		{"indented line that continues a paragraph", "Hello\n     /inspect fix the bug", []Command{request("fix the bug")}},
		{"after a quote and a blank line", "> please\n\n/inspect fix the bug", []Command{request("fix the bug")}},
		{"after a fence", "```\ncode\n```\n/inspect fix the bug", []Command{request("fix the bug")}},
		{"after closed details", "<details>\n\nlog\n\n</details>\n\n/inspect fix the bug", []Command{request("fix the bug")}},
		{"after a closed comment", "<!-- hidden -->\n\n/inspect fix the bug", []Command{request("fix the bug")}},
		{"after an image in HTML", "<img src=\"x.png\">\n\n/inspect fix the bug", []Command{request("fix the bug")}},
		{"CRLF", "Hello\r\n/inspect fix the bug\r\n", []Command{request("fix the bug")}},
		{"CR alone", "Hello\r/inspect fix the bug\r", []Command{request("fix the bug")}},
		{"CRLF command word", "/inspect stop\r\n", []Command{{Name: Stop}}},
		{"trailing spaces", "/inspect stop  \t\n", []Command{{Name: Stop}}},
		{"request on the next lines", "/inspect\n\nplease fix\n\n- this\n- that\n", []Command{request("please fix\n\n- this\n- that")}},
		{"request of many lines", "/inspect fix this\n\n```go\nx := 1\n```\nthanks", []Command{request("fix this\n\n```go\nx := 1\n```\nthanks")}},
		{"indented first line is kept", "/inspect\n\n    code\nmore", []Command{request("    code\nmore")}},
		{"long", "/inspect " + long, []Command{request(long)}},
		{"unpaired quote is text", "/inspect don't use \"foo", []Command{request("don't use \"foo")}},
		{"shell characters are text", "/inspect run `a && b; $(id)` | c", []Command{request("run `a && b; $(id)` | c")}},
		{"mention and URL in text", "/inspect see http://127.0.0.1/ and *this*", []Command{request("see http://127.0.0.1/ and *this*")}},
		{"emphasis opens on the next line", "/inspect a\n*b*", []Command{request("a\n*b*")}},
		{"quoted command belongs to the request", "/inspect fix\n> /inspect stop\n", []Command{request("fix\n> /inspect stop")}},
		{"one word that is no command", "/inspect refactor", []Command{request("refactor")}},
		{"several in order", "/inspect stop\n/inspect fix the bug\nplease\n\n/inspect status", []Command{
			{Name: Stop}, {Index: 1, Name: Request, Text: "fix the bug\nplease"}, {Index: 2, Name: Status}}},
		{"five", strings.Repeat("/inspect status\n\n", 5), []Command{
			{Name: Status}, {Index: 1, Name: Status}, {Index: 2, Name: Status}, {Index: 3, Name: Status}, {Index: 4, Name: Status}}},

		{"every word: status", "/inspect status", []Command{{Name: Status}}},
		{"help", "/inspect help", []Command{{Name: Help}}},
		{"stop", "/inspect stop", []Command{{Name: Stop}}},
		{"a phone's capital", "/inspect Stop", []Command{{Name: Stop}}},
		{"stop and thanks on the next line", "/inspect stop\nthanks", []Command{{Name: Stop}}},
		{"retry", "/inspect retry", []Command{{Name: Retry}}},
		{"approve", "/inspect approve", []Command{{Name: Approve}}},
		{"approve digest", "/inspect approve 0123abcdef", []Command{{Name: Approve, Arg: "0123abcdef"}}},
		{"approve long digest", "/inspect approve sha256:" + strings.Repeat("a", 64), []Command{{Name: Approve, Arg: "sha256:" + strings.Repeat("a", 64)}}},
		{"reject", "/inspect reject", []Command{{Name: Reject}}},
		{"allow", "/inspect allow modules.example.org", []Command{{Name: Allow, Arg: "modules.example.org"}}},
		{"allow with port", "/inspect allow *.example.com:443", []Command{{Name: Allow, Arg: "*.example.com:443"}}},
		{"budget", "/inspect budget 2.50", []Command{{Name: Budget, Arg: "2.50"}}},
		{"rewind", "/inspect rewind 3", []Command{{Name: Rewind, Arg: "3"}}},
		{"fork", "/inspect fork", []Command{{Name: Fork}}},
		{"fork with harness", "/inspect fork --harness codex", []Command{{Name: Fork, Flags: Flags{Harness: "codex"}}}},
		{"refresh", "/inspect refresh", []Command{{Name: Refresh}}},
		{"doctor", "/inspect doctor", []Command{{Name: Doctor}}},

		{"request that begins with a command", "/inspect stop the server from crashing", []Command{request("stop the server from crashing")}},
		{"request that begins with allow", "/inspect allow users to log in", []Command{request("allow users to log in")}},
		{"request that begins with retry", "/inspect retry failing requests", []Command{request("retry failing requests")}},

		{"flags first", "/inspect --timeout 30m --base release/1.2 fix it now", []Command{
			{Name: Request, Text: "fix it now", Flags: Flags{Timeout: 30 * time.Minute, Base: "release/1.2"}}}},
		{"flags last", "/inspect fix it now --model anthropic/claude-sonnet --budget 2.50\nand more", []Command{
			{Name: Request, Text: "fix it now\nand more", Flags: Flags{Model: "anthropic/claude-sonnet", Budget: 250}}}},
		{"priority", "/inspect --priority 50 fix it", []Command{{Name: Request, Text: "fix it", Flags: Flags{Priority: 50}}}},
		{"flags on both ends", "/inspect --harness codex fix it now --timeout=1h30m", []Command{
			{Name: Request, Text: "fix it now", Flags: Flags{Harness: "codex", Timeout: 90 * time.Minute}}}},
		{"flags alone on the line", "/inspect --timeout 30m\nfix it now", []Command{
			{Name: Request, Text: "fix it now", Flags: Flags{Timeout: 30 * time.Minute}}}},
		{"quoted value", "/inspect --base 'feature/#123' fix it", []Command{
			{Name: Request, Text: "fix it", Flags: Flags{Base: "feature/#123"}}}},
		{"quotes in the request stay", "/inspect --timeout 5m say \"hello   world", []Command{
			{Name: Request, Text: "say \"hello   world", Flags: Flags{Timeout: 5 * time.Minute}}}},
		{"flag in a sentence is text", "/inspect make --verbose the default mode", []Command{request("make --verbose the default mode")}},
		{"unknown flag before a noun is text", "/inspect add a --verbose flag", []Command{request("add a --verbose flag")}},
		{"flag in backticks is text", "/inspect document `--timeout 30m`", []Command{request("document `--timeout 30m`")}},
		{"flags on the second line are text", "/inspect fix it\n--timeout 1m", []Command{request("fix it\n--timeout 1m")}},
		{"dash list", "/inspect fix it -- and that", []Command{request("fix it -- and that")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []Command
			for _, p := range Parse(tt.body) {
				c, ok := p.(Command)
				if !ok {
					t.Fatalf("got %#v, want a command", p)
				}
				c.Line = 0
				got = append(got, c)
			}
			for i := range tt.want {
				tt.want[i].Line = 0
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestParseIgnores(t *testing.T) {
	tests := map[string]string{
		"empty":                             "",
		"no command":                        "hello there",
		"in the middle of a line":           "please /inspect stop",
		"another word":                      "/inspector stop",
		"another word with a dash":          "/inspect-now stop",
		"colon":                             "/inspect: stop",
		"capital":                           "/Inspect stop",
		"slash more":                        "//inspect stop",
		"path":                              "/inspect/stop",
		"mail-like":                         "me/inspect stop",
		"escaped":                           `\/inspect stop`,
		"entity":                            "&#47;inspect stop",
		"bold":                              "**/inspect stop**",
		"struck out over lines":             "~~no\n/inspect stop~~",
		"emphasised over lines":             "*no\n/inspect stop*",
		"quote":                             "> /inspect stop",
		"quote without space":               ">/inspect stop",
		"lazy continuation":                 "> hello\n/inspect stop",
		"lazy continuation of nested quote": "> > hello\n/inspect stop",
		"quote in a list":                   "- > hello\n/inspect stop",
		"alert":                             "> [!NOTE]\n> /inspect stop",
		"list":                              "- /inspect stop",
		"star list":                         "* /inspect stop",
		"ordered list":                      "1. /inspect stop",
		"lazy continuation of a list":       "- hello\n/inspect stop",
		"second paragraph of a list item":   "- hello\n\n  /inspect stop",
		"task list":                         "- [ ] /inspect stop",
		"fence":                             "```\n/inspect stop\n```",
		"fence of tildes":                   "~~~sh\n/inspect stop\n~~~",
		"long fence with a short one in it": "`````\n```\n/inspect stop\n`````",
		"fence never closed":                "```\n/inspect stop",
		"fence in a list never closed":      "- ```\n  /inspect stop",
		"indented code":                     "    /inspect stop",
		"indented code with tab":            "\t/inspect stop",
		"inline code":                       "`/inspect stop`",
		"code span over lines":              "see `code\n/inspect stop\nmore` here",
		"code span of two ticks over lines": "see ``a ` b\n/inspect stop``",
		"comment":                           "<!--\n/inspect stop\n-->",
		"comment with blank lines":          "<!--\n\n/inspect stop\n\n-->",
		"comment never closed":              "<!--\n\n/inspect stop",
		"comment in a sentence over lines":  "hello <!-- x\n/inspect stop\n--> world",
		"comment in a sentence, not closed": "hello <!-- x\n/inspect stop",
		"... and in the next paragraph":     "hello <!-- x\n\n/inspect stop",
		"HTML block":                        "<div>\n/inspect stop\n</div>",
		"between details":                   "<details>\n<summary>x</summary>\n\n/inspect stop\n\n</details>",
		"between nested details":            "<details>\n\n<details>\n\n</details>\n\n/inspect stop\n\n</details>",
		"details never closed":              "<details>\n\n/inspect stop",
		"details with attributes":           "<details open class=\"a>b\">\n\n/inspect stop\n\n</details>",
		"details in capitals":               "<DETAILS>\n\n/inspect stop\n\n</DETAILS>",
		"details opened in a sentence":      "see <details> this\n\n/inspect stop\n\n</details>",
		"between div":                       "<div align=\"center\">\n\n/inspect stop\n\n</div>",
		"between blockquote tags":           "<blockquote>\n\n/inspect stop\n\n</blockquote>",
		"pre":                               "<pre>\n/inspect stop\n\n/inspect stop\n</pre>",
		"script":                            "<script>\n\n/inspect stop\n\n</script>",
		"attribute over lines":              "a <a title=\"\n/inspect stop\n\">b</a>",
		"processing instruction":            "a <?x\n/inspect stop\n?>",
		"link title over lines":             "[a](http://127.0.0.1 \"x\n/inspect stop\n\") b",
		"link text":                         "[a\n/inspect stop](http://127.0.0.1)",
		"image text":                        "![a\n/inspect stop](http://127.0.0.1)",
		"reference definition":              "[a]: http://127.0.0.1 \"x\n/inspect stop\"",
		"footnote":                          "a[^1]\n\n[^1]: b\n/inspect stop",
		"heading":                           "# /inspect stop",
		"setext heading":                    "/inspect stop\n===",
		"setext heading, dashes":            "/inspect stop\n---",
		"table":                             "| a |\n|---|\n| /inspect stop |",
		"table without outer bars":          "a | b\n---|---\n/inspect stop",
		"formula":                           "$$\n/inspect stop\n$$",
		"no-break space before":             "\u00a0/inspect stop",
		"no-break space after":              "/inspect\u00a0stop",
		"zero width space before":           "\u200b/inspect stop",
		"zero width space after":            "/inspect\u200bstop",
		"byte order mark":                   "\ufeff/inspect stop",
		"line separator":                    "hello\u2028/inspect stop",
		"form feed before":                  "\f/inspect stop",
		"vertical tab after":                "/inspect\vstop",
		"NUL after":                         "/inspect\x00stop",
		"homoglyph":                         "/іnspect stop",
		"full-width slash":                  "／inspect stop",
		"too long":                          "/inspect stop\n" + strings.Repeat("a", MaxBytes),
	}
	for name, body := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Parse(body); len(got) != 1 || got[0] != (Ignore{}) {
				t.Errorf("Parse(%q) = %#v, want Ignore", body, got)
			}
		})
	}
}

func TestParseReplies(t *testing.T) {
	tests := []struct {
		name, body, want string
	}{
		{"nothing asked", "/inspect", "Say what is to be done"},
		{"only a form feed", "/inspect \f", "Say what is to be done"},
		{"only zero width", "/inspect \u200b", "Say what is to be done"},
		{"flags only", "/inspect --timeout 30m", "Say what is to be done"},
		{"near stop", "/inspect stpo", "`/inspect stop`"},
		{"near status", "/inspect statsu", "`/inspect status`"},
		{"near approve", "/inspect aprove", "`/inspect approve`"},
		{"near with capitals", "/inspect STPO", "`/inspect stop`"},
		{"after flags", "/inspect --timeout 5m stop", "`/inspect stop`"},
		{"one word too many", "/inspect stop now", "takes nothing after it"},
		{"unknown flag first", "/inspect --frobnicate fix it", "no flag `--frobnicate`"},
		{"unknown flag last", "/inspect fix it --dry-run", "no flag `--dry-run`"},
		{"unknown flag with = last", "/inspect fix it --colour=red", "no flag `--colour`"},
		{"misspelt flag last", "/inspect fix it --modle x", "`--model` meant"},
		{"flag of another command", "/inspect stop --force", "`/inspect stop` has no flag `--force`"},
		{"flag without value", "/inspect fix it --model", "needs a value"},
		{"flag that eats a flag", "/inspect --model --harness x fix it", "`--harness` is no value for `--model`"},
		{"twice", "/inspect --timeout 5m --timeout 6m fix it", "stands there twice"},
		{"timeout without unit", "/inspect --timeout 30 fix it", "from `1m` to `24h`"},
		{"timeout too short", "/inspect --timeout 1s fix it", "from `1m` to `24h`"},
		{"timeout too long", "/inspect --timeout 25h fix it", "from `1m` to `24h`"},
		{"timeout negative", "/inspect --timeout -5m fix it", "from `1m` to `24h`"},
		{"priority too high", "/inspect --priority 51 fix it", "from `1` to `50`"},
		{"priority zero", "/inspect --priority 0 fix it", "from `1` to `50`"},
		{"priority in words", "/inspect --priority high fix it", "from `1` to `50`"},
		{"budget in words", "/inspect --budget much fix it", "in dollars"},
		{"budget zero", "/inspect --budget 0.00 fix it", "in dollars"},
		{"budget too fine", "/inspect --budget 0.001 fix it", "in dollars"},
		{"base with dash", "/inspect --base -x fix it", "a branch's name"},
		{"base with dots", "/inspect --base a..b fix it", "a branch's name"},
		{"base with space", "/inspect --base 'a b' fix it", "a branch's name"},
		{"base quote open", "/inspect --base 'main fix it", "not closed"},
		{"model with shell characters", "/inspect --model a&&id fix it", "no value for `--model`"},
		{"approve what", "/inspect approve this", "not a digest"},
		{"allow what", "/inspect allow localhost", "not a host name"},
		{"allow nothing", "/inspect allow", "`/inspect allow HOST`"},
		{"allow URL", "/inspect allow https://example.com/", "not a host name"},
		{"budget what", "/inspect budget lots", "not an amount"},
		{"rewind what", "/inspect rewind back", "not a turn's number"},
		{"six commands", strings.Repeat("/inspect status\n\n", 6), "at most five"},
		{"one bad among good", "/inspect stop\n/inspect fix it --modle x", "`--model` meant"},
		{"nested quotes", strings.Repeat("> ", 30000) + "\n\n/inspect stop", "too much markup"},
		{"delimiters", strings.Repeat("*a_ ", 16000) + "\n\n/inspect stop", "too much markup"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Parse(tt.body)
			if len(got) != 1 {
				t.Fatalf("got %d results, want one reply: %#v", len(got), got)
			}
			r, ok := got[0].(Reply)
			if !ok {
				t.Fatalf("got %#v, want a reply", got[0])
			}
			if !strings.Contains(r.Words, tt.want) {
				t.Errorf("words %q do not contain %q", r.Words, tt.want)
			}
			if strings.HasPrefix(r.Words, "/") || strings.ContainsAny(r.Words, "\n@") {
				t.Errorf("words may do harm: %q", r.Words)
			}
		})
	}
}

func TestReplyPosition(t *testing.T) {
	got := Parse("hello\n\n/inspect stop\n\n/inspect stpo")
	want := []Parsed{Reply{Index: 1, Line: 5, Words: got[0].(Reply).Words}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestQuoteIsHarmless(t *testing.T) {
	got := Parse("/inspect approve `@octokit<!--`")
	r, ok := got[0].(Reply)
	if !ok {
		t.Fatalf("got %#v, want a reply", got[0])
	}
	if strings.Count(r.Words, "`")%2 != 0 || strings.Contains(r.Words, "``") {
		t.Errorf("backticks of the comment break out: %q", r.Words)
	}
}

// TestParseTime feeds what is expensive for a Markdown parser, just under the
// bounds. The limit is generous for slow machines; without the bounds some of
// these need minutes.
func TestParseTime(t *testing.T) {
	fill := map[string]string{
		"quotes": "> ", "emphasis": "*a_ ", "brackets": "[", "links": "[a](", "images": "![", "ticks": "`", "ticks of many lengths": "` `` ``` ",
		"angle": "<a ", "comments": "<!-- ", "instructions": "<? ", "cdata": "<![CDATA[", "tags": "<div>", "strikes": "~~a ", "lists": "- ", "flags": "--timeout 5m ",
		"rules": "-", "table": "| a ", "autolinks": "www.a.", "entities": "&amp", "mails": "a@b.", "closing": "</a>", "notes": "[^1]", "parens": "(", "urls": "http://a(", "backslashes": "\\",
	}
	for name, piece := range fill {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{2000, 30_000, 65_000} {
				filler := strings.Repeat(piece, size/len(piece))
				for _, body := range []string{
					filler + "\n\n/inspect stop", "/inspect " + filler, "/inspect fix\n" + filler,
					"/inspect fix\n" + strings.ReplaceAll(filler, " ", "\n"),
				} {
					start := time.Now()
					Parse(body)
					if took := time.Since(start); took > 2*time.Second {
						t.Errorf("%d bytes took %v", size, took)
					} else if took > 100*time.Millisecond {
						t.Logf("%d bytes took %v", size, took)
					}
				}
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"/inspect fix it", "> /inspect stop", "/inspect --base 'a b' x --timeout 3m", "<details>\n\n/inspect stop", "a <!--\n/inspect stop", "/inspect stop\r\n/inspect stpo"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		got := Parse(body)
		if len(got) == 0 || len(got) > MaxCommands {
			t.Fatalf("%d results", len(got))
		}
		for _, p := range got {
			switch p := p.(type) {
			case Command:
				info, ok := Lookup(p.Name)
				if !ok {
					t.Fatalf("unknown command %q", p.Name)
				}
				if info.Name == Request && strings.TrimSpace(p.Text) == "" {
					t.Fatal("empty request")
				}
				if p.Flags.Base != "" && !ValidBranch(p.Flags.Base) {
					t.Fatalf("bad branch %q", p.Flags.Base)
				}
			case Reply:
				if p.Words == "" || strings.HasPrefix(p.Words, Trigger) || strings.Contains(p.Words, "\n") {
					t.Fatalf("bad reply %q", p.Words)
				}
			case Ignore:
				if len(got) != 1 {
					t.Fatal("ignore is not alone")
				}
			}
		}
	})
}

func TestTable(t *testing.T) {
	table := Table()
	for _, c := range Commands() {
		if !strings.Contains(table, "`/inspect "+c.Usage+"`") {
			t.Errorf("table lacks %s", c.Name)
		}
		if c.Who != Read && c.Who != Write {
			t.Errorf("%s: who = %q", c.Name, c.Who)
		}
	}
	if got := Parse(table); got[0] != (Ignore{}) {
		t.Errorf("our own table is read as %#v", got)
	}
}
