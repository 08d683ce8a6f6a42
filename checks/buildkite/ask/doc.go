// Package ask is the step of a pipeline: it runs on a Buildkite agent, without any
// state of ours. The wish of a step comes in; the job's OIDC token goes to the
// control plane with it; what goes out are lines about how the session goes on, an
// annotation, meta-data, artifacts, and an exit status by how it ended.
//
// The control plane is believed as far as TLS proves it. What it says of others'
// texts is shown to people without markup and without what steers a terminal.
package ask
