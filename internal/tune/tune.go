// Package tune adapts a process to how it works: the service, which is idle most of the time, and the
// runner, which makes system calls all the time. It does so only on Linux.
//
// Start with MemoryTrimmer and RestartWithTimerSlack. The package stack, below, is for the client.
package tune
