package logs

import "os"

// WritesToJournal returns false, because Windows has no systemd journal.
func WritesToJournal(*os.File) bool { return false }

// ReopenIfMoved does nothing, because on Windows an open file cannot be moved.
func ReopenIfMoved(*os.File, string) error { return nil }
