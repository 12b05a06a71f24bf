package termtext

// isASCIIOnly reports whether the terminal shows only ASCII. The Windows console shows Unicode.
func isASCIIOnly() bool { return false }
