package input

// inheritedVariables lists the variables that a job gets from its caller, in addition to LC_*. The job gets them in
// this spelling.
var inheritedVariables = []string{"PATH", "PATHEXT", "LANG", "TZ"}
