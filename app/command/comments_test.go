package command

import (
	"fmt"
	"strings"
	"testing"
)

// comments as people and programs write them, and what is made of each: nothing
// (""), commands, or a reply with these words.
var comments = []struct{ name, body, want string }{
	// White space and characters that cannot be seen.
	{"CRLF between two", "/inspect stop\r\n\r\n/inspect status\r\n", "stop; status"},
	{"CRLF in a flag's value", "/inspect --base main\r\nfix it\r\n", "request[fix it] base=main"},
	{"CRLF in an argument", "/inspect allow modules.example.org\r\n", "allow(modules.example.org)"},
	{"mixed line ends", "a\r/inspect stop\r\n/inspect status\n", "stop; status"},
	{"three spaces", "   /inspect stop", "stop"},
	{"four spaces", "    /inspect stop", ""},
	{"four spaces after a paragraph go on with it", "a\n    /inspect stop", "stop"},
	{"four spaces after a blank line", "a\n\n    /inspect stop", ""},
	{"tab", "\t/inspect stop", ""},
	{"space and tab", " \t/inspect stop", ""},
	{"tab after", "/inspect\tstop\t", "stop"},
	{"byte order mark", "\ufeff/inspect stop", ""},
	{"byte order mark on the second line", "a\n\ufeff/inspect stop", ""},
	{"no-break space instead of the space", "/inspect\u00a0stop", ""},
	{"no-break space at the end", "/inspect stop\u00a0", "stop"},
	{"no-break space before an argument", "/inspect rewind\u00a03", "rewind(3)"},
	{"ideographic space at the end", "/inspect stop\u3000", "stop"},
	{"no-break space before a word too many", "/inspect stop\u00a0now", "reply: takes nothing after it"},
	{"zero width space at the end", "/inspect stop\u200b", "reply: `/inspect stop`"},
	{"zero width joiner in the trigger", "/ins\u200dpect stop", ""},
	{"soft hyphen in the trigger", "/in\u00adspect stop", ""},
	{"right to left mark", "\u200f/inspect stop", ""},
	{"right to left override", "\u202e/inspect stop", ""},
	{"full-width slash", "\uff0finspect stop", ""},
	{"division slash", "\u2215inspect stop", ""},
	{"backslash instead", `\inspect stop`, ""},
	{"combining mark on the slash", "/\u0338inspect stop", ""},
	{"next line character", "a\u0085/inspect stop", ""},
	{"paragraph separator", "a\u2029/inspect stop", ""},
	{"only a line feed after", "/inspect\n", "reply: Say what is to be done"},

	// What the trigger is not.
	{"mixed case", "/InSpect stop", ""},
	{"capitals", "/INSPECT STOP", ""},
	{"capital command", "/inspect STOP", "stop"},
	{"mention before", "@octocat /inspect stop", ""},
	{"mention on the line before", "@octocat\n/inspect stop", "stop"},
	{"mail address", "octocat@example.com/inspect stop", ""},
	{"address of a page", "http://127.0.0.1/inspect stop", ""},
	{"path", "see docs/inspect stop", ""},
	{"an emoji before", ":eyes: /inspect stop", ""},
	{"full stop after", "/inspect. stop", ""},
	{"comma after", "/inspect, stop", ""},
	{"question mark", "/inspect?", ""},
	{"another product's", "/inspector\n/inspect-all\n/inspect_it", ""},
	{"escaped slash", `\/inspect stop`, ""},
	{"decimal entity", "&#47;inspect stop", ""},
	{"hexadecimal entity", "&#x2F;inspect stop", ""},
	{"named entity", "&sol;inspect stop", ""},
	{"entity that is a line end", "a&#10;/inspect stop", ""},

	// Where a reader sees no command of its own.
	{"quote reply (B2)", "> /inspect stop\n\nWhat did this do?", ""},
	{"quote, then an answer", "> /inspect stop\n\n/inspect status", "status"},
	{"quote, then an answer without a blank line", "> /inspect fix it\n/inspect stop", ""},
	{"quote in a quote", ">> /inspect stop\n> /inspect stop", ""},
	{"lazy in a list's quote", "- > a\n/inspect stop", ""},
	{"quote of code", "> ```\n> /inspect stop\n> ```\n\nhm", ""},
	{"alert", "> [!WARNING]\n> /inspect stop", ""},
	{"explained (B3)", "Write `/inspect stop` to stop it.", ""},
	{"inline code at the line's start", "`/inspect stop` stops it.", ""},
	{"code of two ticks", "``/inspect stop``", ""},
	{"code span over lines", "`a\n/inspect stop\nb`", ""},
	{"tick that is never closed", "it`s\n/inspect stop", "stop"},
	{"fence of another length in it", "````\n```\n/inspect stop\n```\n````", ""},
	{"fence closed by a longer one", "```\na\n`````\n/inspect stop", "stop"},
	{"fence not closed by a shorter one", "````\na\n```\n/inspect stop", ""},
	{"tildes", "~~~\n/inspect stop\n~~~", ""},
	{"tildes are not closed by ticks", "~~~\na\n```\n/inspect stop", ""},
	{"fence that is never closed", "hello\n\n```sh\n/inspect stop\n\n/inspect stop", ""},
	{"fence indented by three", "   ```\n/inspect stop\n   ```", ""},
	{"fence indented by four is code and text", "    ```\n/inspect stop\n    ```", "stop"},
	{"ticks in the fence's info make it none", "``` a`b\n/inspect stop", "stop"},
	{"suggestion", "```suggestion\n/inspect stop\n```", ""},
	{"diagram", "```mermaid\n/inspect stop\n```", ""},
	{"formula block", "```math\n/inspect stop\n```", ""},
	{"formula", "$$\n/inspect stop\n$$", ""},
	{"list", "- /inspect stop\n* /inspect stop\n+ /inspect stop\n1. /inspect stop\n2) /inspect stop", ""},
	{"below a list's item", "- a\n  /inspect stop", ""},
	{"lazy below a list's item", "- a\n/inspect stop", ""},
	{"second paragraph of an item", "1. a\n\n   /inspect stop", ""},
	{"nested list", "- a\n  - b\n    - /inspect stop\n\n      /inspect stop", ""},
	{"after a list", "- a\n\n/inspect stop", "stop"},
	{"number that begins no list here", "a\n2. b\n/inspect stop", "stop"},
	{"task", "- [x] /inspect stop", ""},
	{"table", "| command |\n|---|\n| /inspect stop |", ""},
	{"table's row without bars", "command | does\n--- | ---\n/inspect stop | stops", ""},
	{"below a table without a blank line", "| a |\n|---|\n| b |\n/inspect stop", ""},
	{"after a table", "| a |\n|---|\n| b |\n\n/inspect stop", "stop"},
	{"heading", "# /inspect stop\n## /inspect stop ##", ""},
	{"heading by underline", "/inspect stop\n=====", ""},
	{"heading by dashes", "/inspect stop\n---\n", ""},
	{"heading by a signature's dashes", "/inspect stop\n-- \nOctocat", ""},
	{"two lines of a heading", "a\n/inspect stop\n===", ""},
	{"after a heading", "a\n===\n/inspect stop", "stop"},
	{"after a ruler", "***\n/inspect stop", "stop"},
	{"footnote", "a[^1]\n\n[^1]: /inspect stop", ""},
	{"below a footnote", "a[^1]\n\n[^1]: b\n/inspect stop", ""},
	{"link's definition", "[a]: /inspect \"stop\"", ""},
	{"link's definition on two lines", "[a]:\n/inspect", ""},
	{"title of a link's definition", "[a]: /b '\n/inspect stop\n'", ""},
	{"after a link's definition", "[a]: /b\n\n/inspect stop", "stop"},
	{"link's text", "[/inspect stop](/a)", ""},
	{"link's text over lines", "[a\n/inspect stop](/b)", ""},
	{"brackets that are no link", "[a\n/inspect stop\nb]", "stop"},
	{"emphasis", "*/inspect stop*", ""},
	{"emphasis with underscores", "__/inspect stop__", ""},
	{"emphasis of the trigger", "**/inspect** stop", ""},
	{"emphasis over lines", "**a\n/inspect stop\nb**", ""},
	{"struck out", "~~/inspect stop~~", ""},
	{"struck out over lines", "~~a\n/inspect stop\nb~~", ""},
	{"keyboard", "<kbd>/inspect stop</kbd>", ""},
	{"hard break of spaces", "a  \n/inspect stop", "stop"},
	{"hard break of a backslash", "a\\\n/inspect stop", "stop"},
	{"break as a tag in a line", "a<br>\n/inspect stop", "stop"},

	// HTML (B1).
	{"issue template's comment", "<!--\nWrite\n/inspect stop\nto stop it\n-->\nIt is broken.", ""},
	{"comment never closed", "<!-- a\n\n/inspect stop", ""},
	{"comment in a line never closed", "a <!-- b\n\n/inspect stop", ""},
	{"after a comment", "<!-- a -->\n\n/inspect stop", "stop"},
	{"after an empty comment", "<!---->\n\n/inspect stop", "stop"},
	{"comment closed in a way of its own", "<!--> \n\n/inspect stop\n\n-->", "stop"},
	{"in a comment's line", "<!-- a --> /inspect stop", ""},
	{"directly below a comment", "<!-- a -->\n/inspect stop", "stop"},
	{"details", "<details><summary>Log</summary>\n\n/inspect stop\n\n</details>", ""},
	{"details never closed", "<details>\n\n/inspect stop", ""},
	{"after details", "<details>\n\na\n\n</details>\n\n/inspect stop", "stop"},
	{"directly below details", "<details>\n\na\n\n</details>\n/inspect stop", ""},
	{"details closed too often", "</details>\n\n/inspect stop", "stop"},
	{"cell of a table", "<table><tr><td>\n\n/inspect stop\n\n</td></tr></table>", ""},
	{"between a table's tags", "<table>\n\n/inspect stop\n\n</table>", ""},
	{"table's row never closed", "<table><tr>\n\n/inspect stop", ""},
	{"after a table of tags", "<table><tr><td>\n\na\n\n</td></tr></table>\n\n/inspect stop", "stop"},
	{"item of tags", "<ul><li>\n\n/inspect stop\n\n</li></ul>", ""},
	{"paragraph of tags", "<p>\n/inspect stop\n</p>", ""},
	{"centred", "<p align=\"center\">\n\n/inspect stop\n\n</p>", "stop"},
	{"centred by a block", "<div align=\"center\">\n\n/inspect stop\n\n</div>", ""},
	{"preformatted", "<pre>\n/inspect stop\n\n/inspect stop\n</pre>", ""},
	{"preformatted, never closed", "<pre>\n\n/inspect stop", ""},
	{"end of what was never preformatted", "</pre>\n/inspect stop", ""},
	{"struck out by a tag that is never closed", "# a <s>b\n\n/inspect stop", ""},
	{"struck out by a quote's tag", "> <s>a\n\n/inspect stop", ""},
	{"link that is never closed", "- <a href=\"/b\">c\n\n/inspect stop", ""},
	{"hidden by an attribute", "<div hidden>\n\n/inspect stop\n\n</div>", ""},
	{"in an attribute", "<img alt=\"\n/inspect stop\n\">", ""},
	{"picture, then a command", "<img src=\"/a.png\" width=\"300\">\n\n/inspect stop", "stop"},
	{"text area", "<textarea>\n\n/inspect stop\n\n</textarea>", ""},
	{"instruction", "<?a\n/inspect stop\n?>", ""},
	{"declaration", "<!A\n/inspect stop\n>", ""},
	{"character data", "<![CDATA[\n/inspect stop\n]]>", ""},
	{"a tag of no meaning", "<x>\n\n/inspect stop\n\n</x>", ""},
	{"subscript over lines", "<sub>a\n/inspect stop</sub>", ""},
	{"address in angle brackets", "<http://127.0.0.1>\n/inspect stop", "stop"},
	{"less-than sign", "a < b\n/inspect stop", "stop"},

	// Mail.
	{"mail that answers", "/inspect stop\n\nOn Mon, Jan 4, 2027 at 10:00 octocat wrote:\n\n> /inspect fix it\n> again\n", "stop"},
	{"mail that answers below", "On Mon, Jan 4, 2027 at 10:00 octocat wrote:\n> /inspect fix it\n\n/inspect stop\n\n-- \nMonalisa", "stop"},
	{"mail that only quotes", "Thanks!\n\nOn Mon, Jan 4, 2027 at 10:00 octocat wrote:\n> /inspect fix it\n", ""},
	{"the quote's line is broken", "Thanks!\n\nOn Mon, Jan 4, 2027 at 10:00 octocat <octocat@example.com>\nwrote:\n\n> /inspect fix it", ""},
	{"mail of plain text with a signature", "/inspect fix the sum\n\n-- \nMonalisa\n", "request[fix the sum\n\n-- \nMonalisa]"},

	// Several.
	{"in order", "/inspect stop\n\n/inspect fix the sum\n\n/inspect status", "stop; request[fix the sum]; status"},
	{"words between", "First\n/inspect refresh\nand then\n\n/inspect doctor\nplease", "refresh; doctor"},
	{"a hidden one between", "/inspect stop\n\n> /inspect doctor\n\n/inspect status", "stop; status"},
	{"a hidden one is a request's text", "/inspect fix it\n\n```\n/inspect stop\n```", "request[fix it\n\n```\n/inspect stop\n```]"},
	{"five", strings.Repeat("/inspect status\n", 5), "status; status; status; status; status"},
	{"six", strings.Repeat("/inspect status\n", 6), "reply: at most five"},
	{"six, one of them quoted", strings.Repeat("/inspect status\n", 5) + "\n> /inspect status", "status; status; status; status; status"},
	{"one of them wrong", "/inspect stop\n/inspect budget much", "reply: not an amount"},
	{"two of them wrong", "/inspect stpo\n/inspect budget much", "reply: `/inspect stop`; reply: not an amount"},
	{"two on one line", "/inspect stop /inspect status", "reply: a line of its own"},

	// Words, flags and quotes.
	{"quote that is not paired", "/inspect don't touch \"main", "request[don't touch \"main]"},
	{"quote that is not paired in a flag", "/inspect --base \"main fix it", "reply: not closed"},
	{"typographic quotes", "/inspect say “hello”", "request[say “hello”]"},
	{"typographic dash", "/inspect —budget 2.50 fix it", "reply: two dashes"},
	{"typographic dash, with =", "/inspect –timeout=30m fix it", "reply: two dashes"},
	{"typographic dash in a sentence", "/inspect — finally — fix it", "request[— finally — fix it]"},
	{"flags before and after", "/inspect --budget 1 fix it --base main", "request[fix it] base=main budget=100"},
	{"flag in the middle", "/inspect make --base work again", "request[make --base work again]"},
	{"flag twice", "/inspect --budget 1 fix it --budget 2", "reply: twice"},
	{"unknown flag", "/inspect --yes fix it", "reply: no flag"},
	{"misspelt flag", "/inspect --budgte 2 fix it", "reply: `--budget` meant"},
	{"one dash", "/inspect -v is broken", "request[-v is broken]"},
	{"two dashes alone", "/inspect -- fix it", "request[-- fix it]"},
	{"shell (B9)", "/inspect --base 'a&&id' fix it", "request[fix it] base=a&&id"},
	{"option of git", "/inspect --base --upload-pack=x fix it", "reply: a branch's name"},
	{"branch with special characters (1.7)", "/inspect --base feature/#123 fix it", "request[fix it] base=feature/#123"},
	{"model that is a path", "/inspect --model ../../x fix it", "reply: no value for `--model`"},
	{"command with marks", "/inspect **stop**", "reply: `/inspect stop`"},
	{"command in ticks", "/inspect `stop`", "reply: `/inspect stop`"},
	{"command with a full stop", "/inspect stop.", "reply: `/inspect stop`"},
	{"command with exclamation marks", "/inspect stop!!!", "reply: `/inspect stop`"},
	{"two edits away", "/inspect sttaus", "reply: `/inspect status`"},
	{"three edits away", "/inspect statistics", "request[statistics]"},
	{"a word in another script", "/inspect ремонт", "request[ремонт]"},
	{"politeness", "/inspect please stop", "request[please stop]"},
	{"approval in capitals", "/inspect APPROVE 0123abc", "approve(0123abc)"},
	{"approval of more than a digest", "/inspect approve 0123abc please", "request[approve 0123abc please]"},
	{"approval with a wrong digest", "/inspect approve 0123abg", "reply: not a digest"},
	{"host with a path", "/inspect allow example.com/a", "reply: not a host name"},
	{"host with a user", "/inspect allow a@example.com", "reply: not a host name"},
	{"dollars with a sign", "/inspect budget $5", "reply: not an amount"},
	{"dollars with a comma", "/inspect budget 2,50", "reply: not an amount"},
	{"negative dollars", "/inspect budget -5", "reply: not an amount"},
	{"endless dollars", "/inspect budget 1e9", "reply: not an amount"},

	// What stands around it.
	{"paragraph of a task", "- [ ] a\n\n  /inspect stop", ""},
	{"after an ordered list", "1) a\n\n/inspect stop", "stop"},
	{"code in a list's item", "- a\n\n      /inspect stop", ""},
	{"far below an item, indented", "- a\n\n\n    /inspect stop", ""},
	{"an empty item above", "+ \n/inspect stop", "stop"},
	{"a blank and an empty item above", "+ \n\n/inspect stop", "stop"},
	{"an empty quote above", ">\n/inspect stop", "stop"},
	{"a quoted heading above", "> # a\n/inspect stop", "stop"},
	{"quoted code above", ">     a\n/inspect stop", "stop"},
	{"a quote's fence is closed by its end", "> ```\n/inspect stop", "stop"},
	{"a list's fence is closed by its end", "- ```\n/inspect stop", "stop"},
	{"a fence is not closed by a line with text", "```\na\n``` b\n/inspect stop", ""},
	{"after a fence", "``` \n/inspect stop\n ``` \n/inspect status", "status"},
	{"tildes in the fence's info", "~~~ a ~ b\n/inspect stop\n~~~", ""},
	{"code after a command", "/inspect stop\n\n    /inspect status", "stop"},
	{"ruler below", "/inspect stop\n***", "stop"},
	{"ruler of spaced dashes below", "/inspect stop\n- - -", "stop"},
	{"ruler of spaced dashes above", "- - -\n/inspect stop", "stop"},
	{"underline that is indented", "/inspect stop\n   ===", ""},
	{"underline that is indented too far", "/inspect stop\n    ===", "stop"},
	{"no underline", "/inspect stop\n= =", "stop"},
	{"underline below nothing", "======\n/inspect stop", "stop"},
	{"what would be front matter elsewhere", "---\ntitle: /inspect\n---\n/inspect stop", "stop"},
	{"label of a link's definition", "[/inspect stop]: /a", ""},
	{"directly below a link's definition", "[a]: /b\n/inspect stop", "stop"},
	{"after a footnote", "[^1]: a\n\n/inspect stop\n\nb[^1]", "stop"},
	{"paragraph of a footnote", "a[^1]\n\n[^1]: b\n\n    /inspect stop", ""},
	{"definition list of other dialects", "a\n: /inspect stop", ""},
	{"address above", "https://example.com\n/inspect stop", "stop"},
	{"address without a scheme", "www.example.com/inspect stop", ""},
	{"angle brackets over lines are no address", "<https://example.com/\n/inspect stop", "stop"},
	{"picture's description", "![/inspect stop](a.png)", ""},
	{"picture in a link", "[![/inspect stop](a.png)](/b)", ""},
	{"picture's title over lines", "![a](b.png \"\n/inspect stop\n\")", ""},
	{"rocket", "🚀 /inspect stop", ""},
	{"short name without a space", ":rocket:/inspect stop", ""},
	{"struck out by single tildes", "a ~b\n/inspect stop\nc~ d", ""},
	{"emphasis over two lines", "_a\n/inspect stop_", ""},
	{"opened but never closed", "**a\n/inspect stop", "stop"},
	{"checkbox without a list", "[x] /inspect stop", ""},
	{"reference above", "#5\n/inspect stop", "stop"},
	{"a backslash above", "\\\n/inspect stop", "stop"},
	{"an entity above", "&nbsp;\n/inspect stop", "stop"},
	{"an entity before", "&nbsp;/inspect stop", ""},
	{"tab in a paragraph", "a\n\t/inspect stop", "stop"},
	{"formula before", "$$x$$ /inspect stop", ""},
	{"bold by tags", "<b>/inspect stop</b>", ""},
	{"bold by tags over lines", "a <b>\n/inspect stop\n</b>", ""},
	{"tags on the line above", "<ins>a</ins>\n/inspect stop", "stop"},
	{"two comments above", "<!-- a --><!-- b -->\n\n/inspect stop", "stop"},
	{"behind a comment's end", "<!-- a\n--> /inspect stop", ""},
	{"document type above", "<!DOCTYPE html>\n/inspect stop", "stop"},
	{"details before", "<details>\n<summary>a</summary>\n\nb\n\n</details>\n\n/inspect stop", "stop"},
	{"carriage returns alone", "/inspect fix it\r\r/inspect stop\r", "request[fix it]; stop"},
	{"line separator", "/inspect stop\u2028/inspect status", "reply: a line of its own"},

	// What a reader does not see of a command's own line.
	{"comment behind", "/inspect stop <!-- please -->", "stop"},
	{"comment without a space", "/inspect stop<!-- please -->", "stop"},
	{"comment between", "/inspect <!-- a --> rewind <!-- b --> 3", "rewind(3)"},
	{"only a comment", "/inspect <!-- fix it -->", "reply: Say what is to be done"},
	{"entity for a space behind", "/inspect stop&nbsp;", "stop"},
	{"entity in the word", "/inspect st&#111;p", "stop"},
	{"entity for a mark", "/inspect stop&excl;", "reply: `/inspect stop`"},
	{"a link", "/inspect [stop](/a)", "reply: `/inspect stop`"},
	{"hard break behind", "/inspect stop\\\nthanks", "stop"},
	{"zero width space before the word", "/inspect \u200bstop", "reply: `/inspect stop`"},
	{"an emoji is a request", "/inspect 🚀", "request[🚀]"},
	{"an emoji too many", "/inspect stop 🛑", "reply: takes nothing after it"},
	{"comment in a request stays", "/inspect fix it <!-- a -->", "request[fix it <!-- a -->]"},
	{"code over a command", "/inspect fix `a\n/inspect stop\n`", "request[fix `a\n/inspect stop\n`]"},
	{"emphasis over a command", "/inspect fix *a\n/inspect stop* b", "request[fix *a\n/inspect stop* b]"},
	{"the same twice", "/inspect approve 0123abc\n/inspect approve 0123abc", "approve(0123abc); approve(0123abc)"},

	// Length.
	{"as long as GitHub takes", "/inspect " + strings.Repeat("a ", 32763) + "b", "request[" + strings.Repeat("a ", 32763) + "b]"},
	{"as long in four bytes each", "/inspect " + strings.Repeat("\U0001F600", 65526), "request[" + strings.Repeat("\U0001F600", 65526) + "]"},
	{"at the end of a long one", strings.Repeat("words and words\n\n", 3800) + "/inspect stop", "stop"},
	{"one long line", strings.Repeat("a", 65000) + "\n/inspect stop", "stop"},
}

// told is a parsed comment as the table above has it.
func told(parsed []Parsed) string {
	var out []string
	for _, p := range parsed {
		switch p := p.(type) {
		case Reply:
			out = append(out, "reply: "+p.Words)
		case Command:
			s := p.Name
			if p.Arg != "" {
				s += "(" + p.Arg + ")"
			}
			if p.Text != "" {
				s += "[" + p.Text + "]"
			}
			if p.Flags.Base != "" {
				s += " base=" + p.Flags.Base
			}
			if p.Flags.Budget != 0 {
				s += fmt.Sprintf(" budget=%d", p.Flags.Budget)
			}
			out = append(out, s)
		}
	}
	return strings.Join(out, "; ")
}

func TestComments(t *testing.T) {
	for _, c := range comments {
		t.Run(c.name, func(t *testing.T) {
			got := told(Parse(c.body))
			if replies := strings.Split(c.want, "; "); strings.HasPrefix(c.want, "reply: ") {
				parsed := Parse(c.body)
				for i, want := range replies {
					if len(parsed) != len(replies) || !strings.Contains(told(parsed[i:i+1]), strings.TrimPrefix(want, "reply: ")) || !strings.HasPrefix(got, "reply: ") {
						t.Errorf("%.300q: %.300q, want %.300q", c.body, got, c.want)
					}
				}
			} else if got != c.want {
				t.Errorf("%.300q: %.300q, want %.300q", c.body, got, c.want)
			}
		})
	}
}
