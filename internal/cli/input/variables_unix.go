//go:build unix

package input

// usual lists the variables that a job gets from its caller, in addition to LC_*.
var usual = []string{"PATH", "LANG", "TZ"}
