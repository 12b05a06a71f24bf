//go:build !linux && !windows

package sqlitedb

// FileSystemOf returns an unknown file system, because the type is not determined on this operating system.
func FileSystemOf(string) (fileSystem, error) { return fileSystem{Name: "an unknown file system"}, nil }

// UnsupportedFileSystemNames returns text for the user that lists the file systems on which no queue may be stored.
func UnsupportedFileSystemNames() string { return "" }

// allocateWALIndex does nothing: disk blocks have at least 4 KiB on this system, and SQLite itself allocates
// every such block.
func allocateWALIndex(string) error { return nil }
