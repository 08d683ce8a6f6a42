package scheduler

import (
	"slices"

	"inspect/storage"
)

// State is the state of a session, see the table below.
type State = storage.SessionState

// Short names for the states.
const (
	Queued        = storage.SessionStateQueued
	Placing       = storage.SessionStatePlacing
	Restoring     = storage.SessionStateRestoring
	Working       = storage.SessionStateWorking
	Verifying     = storage.SessionStateVerifying
	Publishing    = storage.SessionStatePublishing
	NeedsApproval = storage.SessionStateNeedsApproval

	Delivered      = storage.SessionStateDelivered
	NoChange       = storage.SessionStateNoChange
	Failed         = storage.SessionStateFailed
	Stopped        = storage.SessionStateStopped
	TimedOut       = storage.SessionStateTimedOut
	OverBudget     = storage.SessionStateOverBudget
	Infrastructure = storage.SessionStateInfrastructure
)

// Move is what makes a session change its state.
type Move int

const (
	// Forward is progress within one attempt, or an end.
	Forward Move = iota
	// NewAttempt gives an attempt up and puts the session back into the queue
	// for another one.
	NewAttempt
	// Rewound puts a session that ended without a delivery back into the queue,
	// because a person asked for it; see Rewind.
	Rewound
)

// forward lists where each state may go within one attempt. Phases may be
// skipped: what a runner says arrives late or not at all. Only publishing
// leads to delivered, because only publishing makes a receipt.
var forward = map[State][]State{
	Queued:        {Placing, Failed, Stopped, TimedOut, Infrastructure},
	Placing:       {Restoring, Working, Verifying, Publishing, NoChange, Failed, Stopped, TimedOut, OverBudget, Infrastructure},
	Restoring:     {Working, Verifying, Publishing, NoChange, Failed, Stopped, TimedOut, OverBudget, Infrastructure},
	Working:       {Verifying, Publishing, NoChange, Failed, Stopped, TimedOut, OverBudget, Infrastructure},
	Verifying:     {Publishing, NoChange, Failed, Stopped, TimedOut, OverBudget, Infrastructure},
	Publishing:    {NeedsApproval, Delivered, NoChange, Failed, Stopped, TimedOut, Infrastructure},
	NeedsApproval: {Publishing, Failed, Stopped, TimedOut, Infrastructure},
}

// onMachine are the states in which an attempt holds a machine.
var onMachine = []State{Placing, Restoring, Working, Verifying}

// Allowed tells whether a session may go from one state to another by move.
func Allowed(from, to State, move Move) bool {
	switch move {
	case NewAttempt:
		return to == Queued && OnMachine(from)
	case Rewound:
		return to == Queued && Terminal(from) && from != Delivered
	}
	return slices.Contains(forward[from], to)
}

// Terminal tells whether a session in this state is over for good.
func Terminal(s State) bool {
	_, goesOn := forward[s]
	return s.Valid() && !goesOn
}

// OnMachine tells whether a session in this state holds a machine.
func OnMachine(s State) bool { return slices.Contains(onMachine, s) }

// phaseState is the state a runner's phase asks for. A runner can ask for no other.
func phaseState(phase string) (State, bool) {
	switch phase {
	case "restoring":
		return Restoring, true
	case "working":
		return Working, true
	case "verifying":
		return Verifying, true
	}
	return "", false
}
