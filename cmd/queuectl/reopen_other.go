//go:build !linux

package main

import "os"

// reopenLog does nothing. On Windows an open log cannot be moved for rotation, and on other systems queuectl
// runs no jobs.
func reopenLog(*os.File, string) {}
