//go:build !linux

package main

import "os"

// reopenLog does nothing. On Windows an open file cannot be moved, and on other systems queuectl runs no jobs.
func reopenLog(*os.File, string) {}
