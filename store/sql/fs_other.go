//go:build !linux && !windows

package sql

// fileSystemOf returns an unknown file system: on this operating system its type is not determined.
func fileSystemOf(string) (fileSystem, error) { return fileSystem{name: "an unknown file system"}, nil }

// refusedNames returns "": no file system is refused.
func refusedNames() string { return "" }

// freeInodes returns -1: the number of files that can be created is unknown.
func freeInodes(string) int64 { return -1 }
