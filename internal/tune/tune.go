// Package tune reduces the resources that a process uses, on Linux only. It releases memory of the service,
// which is idle most of the time. In the runner, which makes system calls all the time, it makes a thread of
// the Go runtime wake less often.
//
// Start with MemoryTrimmer and RestartWithTimerSlack. The package stack in this directory is for the client.
package tune
