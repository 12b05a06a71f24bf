// Package tune adapts a process to its kind of work, on Linux only. The service is idle most of the time, and
// the runner makes system calls all the time.
//
// Start with MemoryTrimmer and RestartWithTimerSlack. The package stack in this directory is for the client.
package tune
