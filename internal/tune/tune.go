// Package tune reduces the resources that a process uses, on Linux only. It releases memory of the service, which is
// idle most of the time. In the runner, which makes system calls all the time, it reduces how often the monitor thread
// of the Go runtime wakes.
//
// Start with MemoryTrimmer and RestartWithTimerSlack. The package stack in this directory is for the client.
package tune
