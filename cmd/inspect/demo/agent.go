package demo

import "inspect/fixtures/scripted"

// AgentCommand is the hidden command under which this program is the demo's
// scripted agent, inside the sandbox.
const AgentCommand = "demo-agent"

// Agent is the scripted agent.
func Agent(args []string) int { return scripted.Main(args) }

// Modes are the ways in which the scripted agent can behave.
func Modes() []string { return scripted.Modes() }
