package main

import (
	"cmp"
	"runtime"
	"runtime/debug"
)

// version is what this program was built from, as the go command recorded it: the
// module's version, which is of the commit where there is no tag and ends with
// +dirty where files were changed, and Go's.
func version() string {
	module := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		module = info.Main.Version
	}
	return cmp.Or(module, "(unknown)") + " " + runtime.Version()
}
