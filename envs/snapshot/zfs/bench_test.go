package zfs_test

import (
	"testing"

	"inspect/envs/snapshot/storetest"
)

func BenchmarkRestore(b *testing.B) { storetest.Bench(b, newPlace(b).open(b, "octocat")) }
