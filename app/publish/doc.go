// Package publish turns the bundle of a session into a draft pull request. In
// comes a session whose result was verified; out goes a receipt that was read
// back from GitHub, or a refusal in words, or an error that may be tried again.
//
// The bundle is an enemy's. Its header is read by our own parser, its pack
// only by git inside a Quarantine, without network, key or host files. What
// policy lets pass is squashed into one commit of our own in a fresh, trusted
// repository and pushed from there, to a branch the database records as ours,
// with a lease and a token minted for that push. Every step is keyed and
// looked up before it is repeated.
package publish
