// Command inspect-init is what starts with each sandbox: the step into it and its
// init. It is a part of inspect, which can do the same, in a program of its own
// because a large one takes long to start; the two are built together.
package main

import (
	"fmt"
	"os"

	"inspect/envs/sandbox/enter"
	"inspect/envs/sandbox/inside"
)

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "sandbox-init":
			os.Exit(inside.Main(os.Args[2:]))
		case enter.Word:
			os.Exit(enter.Main(os.Args[2:]))
		}
	}
	fmt.Fprintln(os.Stderr, "inspect-init: inspect starts it, not you")
	os.Exit(2)
}
