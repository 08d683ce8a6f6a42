package demo

import "runtime"

// The first thread is the main goroutine's alone. Tests give threads of theirs
// the accounts of runners, and with the first one's account the whole process
// would be a runner's, and end with it.
func init() { runtime.LockOSThread() }
