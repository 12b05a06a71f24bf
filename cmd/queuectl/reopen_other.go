//go:build !linux

package main

import "os"

// reopenLogOnSIGHUP does nothing. On Windows an open log cannot be moved for rotation, and on other systems queuectl
// runs no jobs.
func reopenLogOnSIGHUP(*os.File, string) {}
