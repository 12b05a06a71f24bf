package logs

import "os"

// ToJournal reports whether a file is the stream to systemd's journal, which Windows
// has not.
func ToJournal(*os.File) bool { return false }
