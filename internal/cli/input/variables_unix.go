//go:build unix

package input

// inheritedVariables lists the variables that a job gets from its caller, in addition to LC_*.
var inheritedVariables = []string{"PATH", "LANG", "TZ"}
