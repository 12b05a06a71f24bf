package service

// What people are told to type.
const (
	joinGroup    = `in an elevated prompt: net localgroup %s "%s" /add, then log on again`
	makeAccounts = "net localgroup NAME /add, net user NAME /add"
	endHung      = "if it hangs: taskkill /F /PID %d, which ends its jobs as lost"
	findHung     = "which process it is cannot be told from here: look for it with tasklist /V"
	asSubmitters = "Windows lets no service run them as others; its settings are in %s"
)
