package approve

import (
	"strings"
	"testing"
)

func TestButtons(t *testing.T) {
	const session = "abcdefgh23"
	digest := strings.Repeat("0a1b2c3d", 8)
	for _, yes := range []bool{true, false} {
		id := Identifier(yes, digest)
		if len(id) > 20 { // GitHub
			t.Errorf("%q is too long", id)
		}
		if b, ok := ReadButton(ExternalID(session, digest), id); !ok || b != (Button{session, digest[:12], yes}) {
			t.Errorf("%+v %v", b, ok)
		}
	}
	for _, c := range [][2]string{
		{session, Identifier(true, digest)}, // a run that asks nothing
		{ExternalID(session, digest), ""}, {ExternalID(session, digest), "approve"}, {ExternalID(session, digest), "merge-0a1b2c3d0a1b"},
		{ExternalID(session, digest), Identifier(true, strings.Repeat("f", 64))}, // of another question
		{ExternalID("../etc", digest), Identifier(true, digest)},
		{ExternalID(session, digest) + "\n", Identifier(true, digest)}, {ExternalID(session, digest), Identifier(true, digest) + "0"},
	} {
		if b, ok := ReadButton(c[0], c[1]); ok {
			t.Errorf("%q on %q is %+v", c[1], c[0], b)
		}
	}
}
