package inside

import (
	"slices"
	"strings"
	"testing"
)

func TestMainRefuses(t *testing.T) {
	for _, args := range [][]string{
		{"--unknown"}, {"--control", "2"}, {"--nofile", "x"}, {"extra"},
		{}, // not the first process of a sandbox
		{execWord}, {execWord, "{", "/bin/true", "true"}, {execWord, "{}", "/no/such", "x"},
	} {
		var err error
		if len(args) > 0 && args[0] == execWord {
			err = execMain(args[1:])
		} else {
			err = run(args)
		}
		if err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
	if err := run(nil); err == nil || !strings.Contains(err.Error(), "Inspect starts it, not you") {
		t.Errorf("%v", err)
	}
}

func TestMerge(t *testing.T) {
	base := []string{"A=1", "AB=2", "C=3"}
	got := merge(base, []string{"A=9", "D=", "=x", "nonsense", "D=4"})
	if want := []string{"AB=2", "C=3", "A=9", "D=4"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if base[0] != "A=1" {
		t.Error("the base was changed")
	}
}
