// Package stream is the control stream of a sandbox: commands go in, their
// output and their ends come out, many at once, in frames on one socket. The
// socket is the sandbox's lifeline too: when the last holder outside closes
// it, the init inside ends, and with it every process of the sandbox.
//
// The client side is here; the side of the init is in package inside. What
// arrives from a sandbox is written by an enemy: every length is checked
// before it is believed, and a frame that breaks the protocol ends the stream.
//
// Flow control: each of a command's three streams may have at most Window
// bytes on the way; the receiver gives credit back as its reader consumes. A
// noisy command whose output nobody reads stops at its own window and holds up
// no other, and neither side's reader ever waits for anything but the socket.
package stream
