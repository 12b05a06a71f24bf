package service

import "os"

// toJournal reports whether a file is the stream to systemd's journal, which Windows
// has not.
func toJournal(*os.File) bool { return false }
