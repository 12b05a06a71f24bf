package service

// Commands that messages suggest.
const (
	joinGroup    = `in an elevated prompt: net localgroup %s "%s" /add, then log on again`
	makeAccounts = "net localgroup NAME /add, net user NAME /add"
	endHung      = "if the runner hangs: taskkill /F /PID %d (its jobs are then treated as lost)"
	findHung     = "find the runner's pid with: tasklist /V"
	runAsAdvice  = "on Windows, a service can run jobs only as its own account; leave the user out"
)
