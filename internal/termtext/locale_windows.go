package termtext

// isLocaleASCIIOnly reports whether the terminal shows only ASCII. The Windows console shows Unicode.
func isLocaleASCIIOnly() bool { return false }
