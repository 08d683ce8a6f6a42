package storage_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"inspect/storage/storagetest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperEnv); dir != "" {
		os.Exit(helper(dir))
	}
	goleak.VerifyTestMain(storagetest.Main(m))
}
