package scheduler

import (
	"strings"
	"testing"

	"inspect/envs/wire"
)

func TestServiceLogsOfAnOutcomeAreBounded(t *testing.T) {
	good := wire.ServiceLog{Where: "base-tests", Service: "db", SHA256: strings.Repeat("a", 64)}
	with := func(l ...wire.ServiceLog) *wire.Outcome {
		return &wire.Outcome{Kind: wire.OutcomeNoChange, ServiceLogs: l}
	}
	if err := checkOutcome(with(good)); err != nil {
		t.Error(err)
	}
	place, name, sum := good, good, good
	place.Where, name.Service, sum.SHA256 = "../x", strings.Repeat("n", 101), "nothing"
	for _, bad := range []*wire.Outcome{with(place), with(name), with(sum), with(make([]wire.ServiceLog, wire.MaxServiceLogs+1)...)} {
		if checkOutcome(bad) == nil {
			t.Errorf("taken: %d logs, %+v", len(bad.ServiceLogs), bad.ServiceLogs[0])
		}
	}
}
