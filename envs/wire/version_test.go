package wire

import (
	"errors"
	"strconv"
	"strings"
	"testing"
)

func TestVersions(t *testing.T) {
	for _, c := range []struct {
		machine, control int
		words            string // empty: they understand one another
	}{
		{1, 1, ""}, {1, 2, ""}, {2, 1, ""}, {7, 7, ""}, {7, 8, ""}, {8, 7, ""},
		{1, 3, "the runner speaks version 1 of the protocol and the control plane version 3: only neighbouring versions understand one another, so update inspect on the node"},
		{9, 7, "the runner speaks version 9 of the protocol and the control plane version 7: only neighbouring versions understand one another, so update the control plane"},
		{0, 1, "update inspect on the node"}, {-1, 0, "update inspect on the node"}, {1, 0, "update the control plane"},
		{-1 << 63, 1<<63 - 1, "update inspect on the node"}, {1<<63 - 1, -1 << 63, "update the control plane"}, {1<<63 - 1, 1, "update the control plane"},
	} {
		got := Misfit("the runner", c.machine, c.control)
		if Speaks(c.machine, c.control) != (c.words == "") || (got == "") != (c.words == "") || !strings.Contains(got, c.words) {
			t.Errorf("machine %d, control plane %d: %q", c.machine, c.control, got)
		}
	}
}

func TestAnswered(t *testing.T) {
	for v, ok := range map[string]bool{
		"": true, strconv.Itoa(Version): true, strconv.Itoa(Version + 1): true, strconv.Itoa(Version + 2): false, "0": false, "one": false,
	} {
		err := Answered("the runner", v)
		var we *Error
		if (err == nil) != ok || err != nil && (!errors.As(err, &we) || we.Code != "version") {
			t.Errorf("%q: %v", v, err)
		}
	}
}
