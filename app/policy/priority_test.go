package policy

import (
	"errors"
	"testing"
)

func TestPriority(t *testing.T) {
	for _, c := range []struct {
		defaults, entry string
		asked           int
		labels          []string
		want            int // -1: beyond
	}{
		{"", "", 0, []string{"urgent"}, 0},
		{"", "", 1, nil, -1},
		{"limits: {priority: 10}", "", 10, nil, 10},
		{"limits: {priority: 10}", "", 11, nil, -1},
		{"limits: {priority: 10}", "limits: {priority: 5}", 6, nil, -1},
		{"limits: {priority: 5}", "limits: {priority: 10}", 6, nil, -1},
		{"limits: {priority: 5}", "limits: {priority: 0}", 1, nil, -1},
		{"priority_labels: {urgent: 10, soon: 2}", "", 0, []string{"soon", "Urgent"}, 10},
		{"priority_labels: {urgent: 10}", "priority_labels: {urgent: 3}", 0, []string{"urgent"}, 3},
		{"priority_labels: {urgent: 10}, limits: {priority: 4}", "", 4, []string{"urgent"}, 4}, // who asks knows better
		{"priority_labels: {urgent: 10}", "", 0, nil, 0},
	} {
		b, _ := floorOf(t, "version: 1\ndefaults: {"+c.defaults+"}\nrepositories: [{match: \"**\", "+c.entry+"}]\n").For(1, "a/b")
		got, err := b.Priority(c.asked, c.labels)
		var beyond *BeyondError
		if c.want < 0 != errors.As(err, &beyond) || c.want >= 0 && got != c.want {
			t.Errorf("%+v: %d, %v", c, got, err)
		}
	}
	if _, err := (Bounds)(nil).Priority(1, nil); err == nil {
		t.Error("without a floor anybody may go ahead")
	}
}
