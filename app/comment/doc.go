// Package comment writes what people read under an issue: the one comment of a
// session, edited as the session goes on, and the short replies to what cannot
// be done. Facts come in, Markdown goes out; it is pure. Whatever was not
// written by us (titles, commands, words of a runner, values of a
// configuration) is made harmless here, and nothing it writes mentions a
// person, closes an issue or reads as a command.
package comment
