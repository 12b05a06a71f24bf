//go:build unix

package input

// inheritedEnvVariables lists the variables that a job gets from its caller, in addition to LC_*.
var inheritedEnvVariables = []string{"PATH", "LANG", "TZ"}
