//go:build unix

package input

// sameVariable reports whether two names denote the same environment variable.
func sameVariable(a, b string) bool { return a == b }

// usual lists the variables that a job gets from its caller, in addition to LC_*.
var usual = []string{"PATH", "LANG", "TZ"}
