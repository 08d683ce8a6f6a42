// Package scheduler owns sessions: their state machine, the queue they wait
// in, the attempts that run them on machines and the events that tell what
// happened. app asks it to start and stop sessions; runners and node daemons
// speak to it through app's machine API and are not trusted. It never talks to
// GitHub itself: what must happen in the world is declared in Effects, which
// app implements, and in Engine, which runs attempts.
//
// Every session is level-triggered: its row says where it stands and when it
// must be looked at again. Queue jobs only make that sooner, so a lost job
// costs latency and nothing else. Reconcile (reconcile.go) is the one place
// that moves a session on; states.go says which moves there are.
package scheduler
