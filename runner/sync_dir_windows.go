package runner

// syncDir does nothing: NTFS journals the names in a directory.
func syncDir(string) error { return nil }
