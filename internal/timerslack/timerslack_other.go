//go:build !linux

// Package timerslack does nothing except on Linux.
package timerslack

// RestartWithTimerSlack calls the function in the parameter before and does nothing else.
func RestartWithTimerSlack(before func()) error {
	before()
	return nil
}
