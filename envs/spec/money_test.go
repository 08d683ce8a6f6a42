package spec

import "testing"

func TestMoney(t *testing.T) {
	for text, want := range map[string]struct {
		m              Money
		people, digits string
	}{
		"0":           {0, "$0.00", "0"},
		"2.5":         {2_500_000_000, "$2.50", "2.5"},
		"0.000243":    {243_000, "$0.0003", "0.000243"},
		"0.000000001": {1, "$0.0001", "0.000000001"},
		"1000000000":  {1_000_000_000 * Dollar, "$1000000000.00", "1000000000"},
	} {
		m, err := ParseMoney(text)
		if err != nil || m != want.m || m.String() != want.people || m.Decimal() != want.digits {
			t.Errorf("%s: %d %s %s, %v", text, m, m, m.Decimal(), err)
		}
	}
	for _, bad := range []string{"", ".5", "1.", "-1", "+1", "1e3", "0.0000000001", "1000000001", "99999999999", "1,5", "$1", "１"} {
		if m, err := ParseMoney(bad); err == nil {
			t.Errorf("%q is %s", bad, m)
		}
	}
	if s := (-3 * Dollar / 2).Decimal(); s != "-1.5" {
		t.Error(s)
	}
}
