// Command inspect-init is the init of each sandbox. It is a part of inspect, which
// can do the same, in a program of its own because a large one takes long to
// start; the two are built together.
package main

import (
	"fmt"
	"os"

	"inspect/envs/sandbox/inside"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "sandbox-init" {
		os.Exit(inside.Main(os.Args[2:]))
	}
	fmt.Fprintln(os.Stderr, "inspect-init: inspect starts it, not you")
	os.Exit(2)
}
