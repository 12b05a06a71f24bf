// Package tune adapts a process to its kind of work: the service, which is idle most of the time, and
// the runner, which makes system calls all the time. It does so only on Linux.
//
// Start with MemoryTrimmer and RestartWithTimerSlack. The package stack in this directory is for the
// client.
package tune
