// Package unpack makes a root file system of a container image. It runs inside
// a sandbox, as the account that will own the result, with nothing of the host
// but one directory: in comes an archive (an OCI layout in a tar, or what
// `docker save` writes), out goes a directory tree and a few words about it.
//
// The archive is an enemy's. Every digest is checked before what it names is
// used; names lead nowhere but into the tree, whatever links earlier layers
// made; devices, pipes, setuid bits, owners and extended attributes are left
// out; bytes, files, layers and depth are bounded before they are spent.
package unpack
