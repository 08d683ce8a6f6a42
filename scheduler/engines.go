package scheduler

import "encoding/json"

// Listed is an attempt that an engine knows.
type Listed struct {
	Session    string
	Generation int
	State      EngineState
	Node       string          // as it is registered with us; empty: none or not known
	Ref        json.RawMessage // for the other methods of the engine
	// Words says why it is over or has not begun, as far as the engine can tell,
	// such as "killed for want of memory". They are no outcome.
	Words string
}

// EngineTrouble is an error of an Engine in words for people. What was asked of
// the engine is asked again: what is wrong can be put right without us.
type EngineTrouble struct {
	Words string // such as "Nomad has no namespace inspect"; no addresses, no secrets
	Cause error  // for the log
}

func (t *EngineTrouble) Error() string {
	if t.Cause == nil {
		return t.Words
	}
	return t.Words + ": " + t.Cause.Error()
}

func (t *EngineTrouble) Unwrap() error { return t.Cause }
