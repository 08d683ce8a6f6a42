package zfs_test

import (
	"testing"

	"inspect/envs/snapshot"
	"inspect/envs/snapshot/storetest"
)

func TestConformance(t *testing.T) {
	places := map[string]place{}
	storetest.Run(t, func(t *testing.T, at, owner string) snapshot.Store {
		key := t.Name() + "/" + at
		if _, ok := places[key]; !ok {
			places[key] = newPlace(t)
		}
		return places[key].open(t, owner)
	})
}
