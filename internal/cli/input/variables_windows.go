package input

// inheritedVariables lists the variables that a job gets from its caller, in addition to LC_*. In the job,
// their names are spelled as in this list.
var inheritedVariables = []string{"PATH", "PATHEXT", "LANG", "TZ"}
