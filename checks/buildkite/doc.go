// Package buildkite is Inspect's client of Buildkite: builds, their jobs' logs,
// annotations and artifacts come in as narrow types of our own, bounded and
// without what only a terminal understands; a build may be asked for. It also
// reads what Buildkite sends us, webhooks and their signatures, without acting
// on them. All that Buildkite answers was written by whoever writes pipelines:
// it is data, and none of it is believed about who may do what.
//
// It is the only package that knows go-buildkite.
package buildkite
