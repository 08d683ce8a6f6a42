package render

// State is how a state of a session is told to people, and to GitHub.
type State struct {
	Title string // without a full stop; empty for a state that is not known
	Ended bool
	// Conclusion of a check run; empty while the session goes on.
	Conclusion string
}

// StateOf tells the state of that name, as in the sessions table.
func StateOf(name string) State {
	switch name {
	case "queued":
		return State{Title: "Queued"}
	case "placing":
		return State{Title: "Looking for a machine"}
	case "restoring":
		return State{Title: "Restoring the environment"}
	case "working":
		return State{Title: "Working"}
	case "verifying":
		return State{Title: "Verifying in a second, clean clone"}
	case "publishing":
		return State{Title: "Publishing"}
	case "needs_approval":
		return State{Title: "Waiting for approval", Conclusion: ActionRequired}
	case "delivered":
		return State{"Delivered", true, Success}
	case "no_change":
		return State{"Nothing to deliver", true, Neutral}
	case "failed":
		return State{"Failed", true, Failure}
	case "stopped":
		return State{"Stopped", true, Cancelled}
	case "timed_out":
		return State{"Out of time", true, TimedOut}
	case "over_budget":
		return State{"Over budget", true, Neutral}
	case "infrastructure":
		return State{"Not done: the machinery failed, not the work", true, Neutral}
	}
	return State{}
}
