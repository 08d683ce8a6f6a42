package local

import (
	"os"
	"testing"
	"time"

	"inspect/scheduler"
	"inspect/scheduler/enginetest"
)

func TestIsAnEngine(t *testing.T) {
	bin, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dirs := map[string]string{} // of each test, which its engines share
	enginetest.Run(t, enginetest.World{New: func(t *testing.T, args []string) scheduler.Engine {
		if dirs[t.Name()] == "" {
			dirs[t.Name()] = t.TempDir()
		}
		e, err := New(Options{
			Binary: bin, ControlURL: "http://127.0.0.1:1", NodeSocket: "/run/node.sock", Dir: dirs[t.Name()], Grace: 2 * time.Second, Args: args,
		})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}})
}
