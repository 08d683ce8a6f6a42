package buildkite

import (
	"os"
	"testing"

	"inspect/storage/storagetest"
)

func TestMain(m *testing.M) { os.Exit(storagetest.Main(m).Run()) }
