package input

// inheritedEnvVariables lists the variables that a job gets from its caller, in addition to LC_*. In the job, the names
// of the variables are spelled as in this list, even if the caller spells them in other letter cases.
var inheritedEnvVariables = []string{"PATH", "PATHEXT", "LANG", "TZ"}
