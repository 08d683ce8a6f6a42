package wire

import "testing"

func TestTierAtLeast(t *testing.T) {
	for _, c := range []struct {
		node, least string
		want        bool
	}{
		{"bubblewrap 0.8.0", "", true},
		{"bubblewrap 0.8.0", TierBubblewrap, true},
		{"bubblewrap 0.8.0", TierGVisor, false},
		{"gvisor v0.0.0-1", TierBubblewrap, true},
		{"gvisor v0.0.0-1", TierGVisor, true},
		{"gvisor", TierGVisor, true},
		{"gvisory 1", TierGVisor, false},
		{"", TierBubblewrap, false},
		{"", "", true},
		{"gvisor v0.0.0-1", "firecracker", false},
	} {
		if got := TierAtLeast(c.node, c.least); got != c.want {
			t.Errorf("%q at least %q: %v", c.node, c.least, got)
		}
	}
}
