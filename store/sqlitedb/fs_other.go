//go:build !linux && !windows

package sqlitedb

// FileSystemOf returns an unknown file system: on this operating system its type is not determined.
func FileSystemOf(string) (fileSystem, error) { return fileSystem{Name: "an unknown file system"}, nil }

// RefusedFileSystems lists the file systems on which no queue may be stored.
func RefusedFileSystems() string { return "" }

// allocateWALIndex does nothing: on this system blocks have at least 4 KiB, so SQLite itself writes to each one.
func allocateWALIndex(string) error { return nil }
