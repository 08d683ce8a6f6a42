// Package sandbox starts and ends the places where a repository's code runs:
// setup, harness, services and verification. In come a Spec (which directories,
// which limits) and the far end of a control stream; out comes a running
// sandbox, and when it ends the reason. Isolation is bubblewrap's: user, pid,
// net, ipc, uts, cgroup and mount namespaces, no capability, no new privileges,
// a system-call filter, no network but loopback, no file of the host but the
// system's programs and what the Spec names, an unprivileged uid outside. Where
// the Spec says so, ports of the loopback lead to unix sockets outside; there is
// no other way out.
//
// Commands are run through package stream on the control stream, which is the
// sandbox's lifeline too: when its last holder outside closes it, the sandbox
// ends. The end of the launching process alone does not end it; Launcher.List
// and Launcher.Reap find and end what an earlier process has left.
//
// Whatever cannot be isolated or limited as asked is an error, never a weaker
// sandbox. The one exception is asked for by name: Options.BestEffort.
package sandbox
