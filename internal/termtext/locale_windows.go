package termtext

// asciiOnly reports whether the terminal shows only ASCII. The Windows console shows Unicode.
func asciiOnly() bool { return false }
