package logs

import "os"

// Reopen does nothing: a file that is open cannot be moved.
func Reopen(*os.File, string) error { return nil }
