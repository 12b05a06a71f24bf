package logs

import "os"

// WritesToJournal returns false, since Windows has no systemd journal.
func WritesToJournal(*os.File) bool { return false }

// Reopen does nothing, since Windows does not move open files.
func Reopen(*os.File, string) error { return nil }
