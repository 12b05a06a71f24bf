package input

import (
	"strings"
)

// sameVariable reports whether two names denote the same environment variable.
func sameVariable(a, b string) bool { return strings.EqualFold(a, b) }

// usual lists the variables that a job gets from its caller, in addition to LC_*, in the spelling
// that the job gets.
var usual = []string{"PATH", "PATHEXT", "LANG", "TZ"}
