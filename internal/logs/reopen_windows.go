package logs

import "os"

// Reopen does nothing, since Windows does not move open files.
func Reopen(*os.File, string) error { return nil }
