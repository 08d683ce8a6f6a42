package scheduler

import (
	"slices"
	"testing"

	"inspect/storage"
)

// order is how far along a state is; a session never goes down in it within
// one attempt.
var order = map[State]int{
	Queued: 0, Placing: 1, Restoring: 2, Working: 3, Verifying: 4, Publishing: 5, NeedsApproval: 5,
	Delivered: 9, NoChange: 9, Failed: 9, Stopped: 9, TimedOut: 9, OverBudget: 9, Infrastructure: 9,
}

func TestEveryPairOfStates(t *testing.T) {
	all := storage.AllSessionStateValues()
	if len(all) != len(order) {
		t.Fatalf("%d states, this test knows %d", len(all), len(order))
	}
	for _, from := range all {
		for _, to := range all {
			got := Allowed(from, to, Forward)
			if got && Terminal(from) {
				t.Errorf("%s is terminal but leads to %s", from, to)
			}
			if got && order[to] < order[from] {
				t.Errorf("%s → %s goes backwards", from, to)
			}
			if got && from == to {
				t.Errorf("%s leads to itself", from)
			}
			if got && to == Delivered && from != Publishing {
				t.Errorf("%s → delivered without publishing", from)
			}
			if again := Allowed(from, to, NewAttempt); again != (to == Queued && order[from] >= 1 && order[from] <= 4) {
				t.Errorf("%s → %s by a new attempt: %v", from, to, again)
			}
			if back := Allowed(from, to, Rewound); back != (to == Queued && order[from] == 9 && from != Delivered) {
				t.Errorf("%s → %s by rewinding: %v", from, to, back)
			}
		}
		if !Terminal(from) {
			for _, end := range []State{Stopped, Failed, Infrastructure, TimedOut} {
				if !Allowed(from, end, Forward) {
					t.Errorf("%s cannot end as %s", from, end)
				}
			}
		}
		if Terminal(from) != (order[from] == 9) {
			t.Errorf("Terminal(%s) = %v", from, Terminal(from))
		}
		if OnMachine(from) != (order[from] >= 1 && order[from] <= 4) {
			t.Errorf("OnMachine(%s) = %v", from, OnMachine(from))
		}
	}
	if Terminal("nonsense") || Allowed("nonsense", Queued, Forward) {
		t.Error("an unknown state is taken for one of ours")
	}
}

func TestPhasesAreTheRunnersOnlyStates(t *testing.T) {
	for _, s := range storage.AllSessionStateValues() {
		got, ok := phaseState(string(s))
		want := slices.Contains([]State{Restoring, Working, Verifying}, s)
		if ok != want || ok && got != s {
			t.Errorf("phase %s gives %s, %v", s, got, ok)
		}
	}
}
