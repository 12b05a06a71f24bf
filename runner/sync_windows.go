package runner

// syncFolder does nothing: NTFS journals the names in a directory.
func syncFolder(string) error { return nil }
