//go:build !failpoint

// Package failpoint makes the program break a promise on purpose. With it, a test proves that it would
// detect the broken promise. Only binaries built with the tag "failpoint" contain that code. This file
// is for all other binaries.
package failpoint

// Hit does nothing in this build.
func Hit(string) {}

// IsEnabled returns false in this build, because no saboteur is ever switched on.
func IsEnabled(string) bool { return false }
