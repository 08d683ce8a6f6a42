package policy

import (
	"slices"
	"strings"
)

// Need is the permission an act needs on the repository.
type Need string

// Needs of acts.
const (
	NeedRead  Need = "read"  // commands that only tell
	NeedWrite Need = "write" // labels and every other command
)

// Actor is the account whose action caused an event: the sender of the
// delivery, never the author of some text.
type Actor struct {
	ID    int64
	Login string
	Bot   bool  // GitHub says it is an App or a bot account
	App   int64 // the App whose bot it is, or through which it acted; 0: not known
}

// ActorOf is the actor behind an account. A login that ends in [bot] cannot be a
// person's, whatever else is said of it.
func ActorOf(id int64, login string) Actor {
	return Actor{ID: id, Login: login, Bot: strings.HasSuffix(login, "[bot]")}
}

// Permission is what GitHub answered, at the time of the decision, about the
// actor on the repository. The zero value is "not known" and allows nothing.
type Permission struct {
	Known bool // false: GitHub could not be asked
	Read  bool
	Write bool
}

// ActorRules are the operator's own.
type ActorRules struct {
	OwnAppID    int64   // our App; never allowed, or we would answer ourselves
	AllowedApps []int64 // numbers of Apps whose bots may act; by default none
}

// Reasons of a decision about an actor.
const (
	ActorAllowed    = "allowed"
	ActorUnknown    = "actor_unknown"
	ActorOwnEcho    = "own_echo"
	ActorBot        = "bot"
	ActorNotChecked = "permission_unknown"
	ActorNoAccess   = "no_access"
	ActorReadOnly   = "read_only"
)

// ActorDecision says whether an actor may act, and why, for the record. The
// actor is told nothing of a denial.
type ActorDecision struct {
	Allow  bool
	Reason string
	Words  string // plain text
}

// IgnoreActor is the part of the decision that needs no question to GitHub.
// It returns a denial, or false if the permission has to be asked for.
func IgnoreActor(a Actor, rules ActorRules) (ActorDecision, bool) {
	switch {
	case a.ID <= 0 || a.Login == "":
		return deny(ActorUnknown, "the event names no actor"), true
	case rules.OwnAppID != 0 && a.App == rules.OwnAppID:
		return deny(ActorOwnEcho, "the event is an echo of our own action"), true
	case a.Bot && (a.App == 0 || !slices.Contains(rules.AllowedApps, a.App)):
		return deny(ActorBot, "bots start nothing unless the operator names them"), true
	}
	return ActorDecision{}, false
}

// DecideActor says whether a may do what needs need. Whatever is not known
// denies.
func DecideActor(a Actor, p Permission, need Need, rules ActorRules) ActorDecision {
	if d, ignored := IgnoreActor(a, rules); ignored {
		return d
	}
	switch {
	case !p.Known:
		return deny(ActorNotChecked, "the permission of the actor could not be learned")
	case p.Write:
		return ActorDecision{Allow: true, Reason: ActorAllowed, Words: "has write access"}
	case p.Read && need == NeedRead:
		return ActorDecision{Allow: true, Reason: ActorAllowed, Words: "has read access"}
	case p.Read:
		return deny(ActorReadOnly, "has read access only, write access is needed")
	}
	return deny(ActorNoAccess, "has no access to the repository")
}

func deny(reason, words string) ActorDecision {
	return ActorDecision{Reason: reason, Words: words}
}
