// Package buildkite is the door for Buildkite on the listener for hooks: steps of
// pipelines, which prove themselves with the token of their job and ask for a
// session, and webhooks, which tell of builds. What comes in is bounded and
// verified, stored in one transaction and worked on by the intake; what goes out
// is where a session stands, to whoever started it. Nothing is decided here.
package buildkite
