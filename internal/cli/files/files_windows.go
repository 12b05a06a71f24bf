package files

// makeDir is the command that creates a directory.
const makeDir = "mkdir"

// Umask returns no umask, since Windows has none.
func Umask() (int, bool) { return 0, false }

// KeepPrivate does nothing, because on Windows files inherit the rights of their directory.
func KeepPrivate() {}

// Share does nothing; see KeepPrivate.
func Share(string) error { return nil }
