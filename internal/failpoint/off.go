//go:build !failpoint

// Package failpoint breaks a promise on purpose, so that a test can show that it would notice. Only
// binaries built with the tag "failpoint" contain it.
package failpoint

// Hit executes the failpoint's action; in this build, nothing.
func Hit(string) {}

// On reports whether a saboteur is switched on; in this build, never.
func On(string) bool { return false }
