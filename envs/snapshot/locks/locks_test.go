package locks

import (
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"inspect/envs/snapshot"
)

// A lock that is given up in time is taken, one that is kept is busy.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	synctest.Test(t, func(t *testing.T) {
		held, err := File(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := File(path); !errors.Is(err, snapshot.ErrBusy) {
			t.Errorf("a lock that is held: %v", err)
		}
		time.AfterFunc(filePatience/2, func() { held.Close() })
		again, err := File(path)
		if err != nil {
			t.Fatalf("a lock that is given up: %v", err)
		}
		again.Close()
	})
}
