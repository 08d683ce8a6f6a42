// Package proc is the one process runner, the one clock and the one retry
// policy of the house. In come a command, a context and a clock; out come an
// exit status with bounded output, or an error in words. A command gets a
// process group of its own, and the whole group is killed when the command or
// the context ends.
//
// It is a leaf: it imports nothing of ours and everybody may import it.
package proc
