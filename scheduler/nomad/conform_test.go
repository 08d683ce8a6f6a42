package nomad

import (
	"testing"

	"inspect/scheduler"
	"inspect/scheduler/enginetest"
)

// On the double, or with NOMAD_ADDR on a real agent.
func TestIsAnEngine(t *testing.T) {
	addr := cluster(t)
	t.Run("informed by events", func(t *testing.T) {
		enginetest.Run(t, enginetest.World{Node: testNode, New: func(t *testing.T, args []string) scheduler.Engine {
			return running(t, options(t, addr, args...))
		}})
	})
	t.Run("asking each time", func(t *testing.T) {
		enginetest.Run(t, enginetest.World{Node: testNode, New: func(t *testing.T, args []string) scheduler.Engine {
			return asking(t, options(t, addr, args...))
		}})
	})
}
