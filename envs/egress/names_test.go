package egress

import (
	"slices"
	"testing"

	"inspect/envs/spec"
)

// What the file may name is what the proxy knows.
func TestNames(t *testing.T) {
	if a, b := spec.Ecosystems(), Ecosystems(); !slices.Equal(a, b) {
		t.Errorf(".inspect.yml takes %v, the proxy knows %v", a, b)
	}
}
