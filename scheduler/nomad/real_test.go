package nomad

import (
	"testing"

	"inspect/scheduler"
	"inspect/scheduler/enginetest"
)

func TestRealAgent(t *testing.T) {
	addr := realAgent(t)
	prepare(t, options(t, addr))
	t.Run("informed by events", func(t *testing.T) {
		enginetest.Run(t, enginetest.World{Node: testNode, New: func(t *testing.T, args []string) scheduler.Engine {
			return running(t, options(t, addr, args...))
		}})
	})
	t.Run("asking each time", func(t *testing.T) {
		enginetest.Run(t, enginetest.World{Node: testNode, New: func(t *testing.T, args []string) scheduler.Engine {
			e, err := New(options(t, addr, args...))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(e.nomad.Close)
			return e
		}})
	})
}
