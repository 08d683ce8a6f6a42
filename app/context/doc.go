// Package context decides what the agent is told: facts about a request, its
// issue and its environment come in, one prompt and a digest of it go out. It
// is pure. Only the request of the person who may command is an instruction;
// everything else that people wrote is data, cut to size, freed of what a
// reader of the page would not have seen, and put between marks that its
// authors cannot forge.
package context
