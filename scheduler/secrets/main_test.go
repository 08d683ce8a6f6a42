package secrets

import (
	"testing"

	"go.uber.org/goleak"

	"inspect/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(storagetest.Main(m)) }
