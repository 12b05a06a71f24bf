package service

import "os"

// toJournal reports whether a file is the stream to systemd's journal, which Windows
// has not.
func toJournal(*os.File) bool { return false }

// cutShort empties a file. What is opened to be appended to cannot be cut itself.
func cutShort(f *os.File) error { return os.Truncate(f.Name(), 0) }
