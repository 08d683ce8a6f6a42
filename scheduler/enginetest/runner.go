package enginetest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
)

// Said is what a runner of these tests says of itself when it has started.
type Said struct {
	Session    string   `json:"session"`
	Generation int      `json:"generation"`
	PID        int      `json:"pid"`
	UID        int      `json:"uid"`
	Args       []string `json:"args"`
	Env        []string `json:"env"`
	// Identity is what its identity file held, if it was given one.
	Identity string `json:"identity,omitempty"`
}

// IsRunner says whether this process was started by an engine under test. A
// TestMain ends such a process by Runner.
func IsRunner() bool { return len(os.Args) > 1 && os.Args[1] == "runner" }

// Runner is the runner that engines start in these tests: a process that says
// where it listens what it is, and does what it is told from there. It returns
// its exit code.
func Runner() int {
	said := Said{PID: os.Getpid(), UID: os.Getuid(), Args: os.Args, Env: os.Environ()}
	said.Session = flagOf("--session")
	said.Generation, _ = strconv.Atoi(flagOf("--generation"))
	if path := flagOf("--identity-file"); path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, "no identity:", err)
			return 90
		}
		said.Identity = string(b)
	}
	c, err := net.Dial("unix", flagOf("--tell"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "nobody listens:", err)
		return 91
	}
	if err := json.NewEncoder(c).Encode(said); err != nil {
		return 92
	}
	orders := bufio.NewScanner(c)
	for orders.Scan() {
		what, arg, _ := strings.Cut(orders.Text(), " ")
		switch what {
		case "exit":
			code, _ := strconv.Atoi(arg)
			return code
		case "say":
			fmt.Fprintln(os.Stdout, "said: "+arg)
			fmt.Fprintln(os.Stderr, "complained: "+arg)
		}
		fmt.Fprintln(c, "done")
	}
	return 0 // whoever listened is gone, and the test with it
}

func flagOf(name string) string {
	for i, arg := range os.Args[:len(os.Args)-1] {
		if arg == name {
			return os.Args[i+1]
		}
	}
	return ""
}
