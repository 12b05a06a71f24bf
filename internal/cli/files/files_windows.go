package files

// mkdirCommand is the command that creates a directory.
const mkdirCommand = "mkdir"

// CallerUmask returns no umask, because Windows has none.
func CallerUmask() (int, bool) { return 0, false }

// RestrictUmaskToOwner does nothing, because on Windows files inherit the rights of their directory.
func RestrictUmaskToOwner() {}

// ApplyCallerUmask does nothing, because Windows has no umask.
func ApplyCallerUmask(string) error { return nil }
