package policy

import (
	"regexp"
	"strconv"
)

// Verification runs the code that is under test, in one process with its tests, so
// that what it says of itself can be made up as a whole. Such code has to know that
// it is tested, or to write what a report looks like: whoever does neither in a
// form that is seen here is not found by it.
var (
	asksForTests = regexp.MustCompile(`testing\.Testing\(\)|flag\.Lookup\("test\.|-test\.v|HasSuffix\(os\.Args\[0\], *"\.test"|NODE_ENV['"\]]* *[!=]==? *['"]test['"]|JEST_WORKER_ID|VITEST_|PYTEST_CURRENT_TEST|['"]pytest['"] in sys\.modules|cfg!\(test\)|PHPUNIT_`)
	likeAReport  = regexp.MustCompile(`=== RUN|--- PASS|<testcase|<testsuite|##teamcity\[|\\x16|"Action" *: *"pass"|^["'\x60 ]*ok \d+ - `)
	endsWell     = regexp.MustCompile(`os\.Exit\(0\)|process\.exit\(0\)|process\.exitCode *= *0|sys\.exit\(0\)|os\._exit\(0\)|std::process::exit\(0\)|System\.exit\(0\)`)
)

// forged names added lines that a made-up report would need. Each is harmless
// elsewhere, which is why they are only named.
func forged(added []AddedText) (out []string) {
	for _, a := range added {
		for i, line := range a.Lines {
			if len(line) > 4<<10 { // of a generated file
				continue
			}
			what := ""
			switch {
			case likeAReport.MatchString(line):
				what = " (looks like a report of tests)"
			case asksForTests.MatchString(line):
				what = " (asks whether tests run)"
			case endsWell.MatchString(line):
				what = " (ends the process as if all were well)"
			default:
				continue
			}
			out = append(out, show(a.Path)+" line "+strconv.Itoa(a.Numbers[i])+what)
		}
	}
	return out
}
