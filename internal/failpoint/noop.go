//go:build !failpoint

// Package failpoint makes the program break one of its promises on purpose. So a test can prove
// that it would notice the broken promise. Only binaries built with the tag "failpoint" contain it.
package failpoint

// Hit does nothing in this build.
func Hit(string) {}

// On returns false in this build, because no saboteur is ever switched on.
func On(string) bool { return false }
