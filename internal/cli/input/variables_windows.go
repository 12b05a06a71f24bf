package input

// usual lists the variables that a job gets from its caller, in addition to LC_*, in the spelling
// that the job gets.
var usual = []string{"PATH", "PATHEXT", "LANG", "TZ"}
