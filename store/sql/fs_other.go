//go:build !linux && !windows

package sql

// fileSystemOf names the file system of a folder; here nothing is known of it.
func fileSystemOf(string) (fileSystem, error) { return fileSystem{name: "an unknown file system"}, nil }

// refusedNames lists the file systems that are refused.
func refusedNames() string { return "none on this system" }

// freeInodes is how many files may still be made below dir, -1 if nothing says.
func freeInodes(string) int64 { return -1 }
