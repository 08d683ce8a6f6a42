package wire

// What the model gateway and the ledger of the control plane say to one
// another, and what the gateway tells the runner in headers. Money is in
// billionths of a US dollar.

// Headers on answers of the model gateway. The runner reads and removes them.
const (
	HeaderBudget = "Inspect-Budget" // the session's budget
	HeaderSpent  = "Inspect-Spent"  // what is spent or held of it
	// HeaderOver is set on a refusal for lack of budget.
	HeaderOver = "Inspect-Over-Budget"
)

// Codes of an Error that only the model gateway uses.
const (
	CodeOverBudget = "over_budget"
)

// ReadyModel is the model of the throw-away prompt a harness is primed with.
// The runner answers it itself; it costs nothing and reaches nobody.
const ReadyModel = "inspect/ready"

// ModelCaller is an authenticated attempt as the gateway sees it.
type ModelCaller struct {
	Session    string
	Generation int
	Model      string // the one model the session may use
}

// ModelCall asks for money for one call.
type ModelCall struct {
	Model  string
	Want   int64 // what the call can cost at most
	Least  int64 // with less than this it is not worth beginning
	Input  int64 // what it costs even if nothing comes back: its input, estimated
	Priced bool
}

// Reservation is money set aside for one call.
type Reservation struct {
	ID      int64
	Granted int64 // between Least and Want
	Budget  int64 // of the session
	Spent   int64 // spent and held, this reservation included
}
