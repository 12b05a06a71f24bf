//go:build !failpoint

// Package failpoint makes the program break one of its promises on purpose, so that a test can prove that it
// detects such faults. Only binaries built with the tag "failpoint" can do so. In all other binaries, the
// functions of this file do nothing.
package failpoint

// Hit does nothing in this build.
func Hit(string) {}

// IsEnabled returns false in this build.
func IsEnabled(string) bool { return false }
