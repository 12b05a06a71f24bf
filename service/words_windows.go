package service

// What people are told to type.
const (
	endHung      = "if it hangs: taskkill /F /PID %d, which ends its jobs as lost"
	asSubmitters = "Windows lets no service run them as others; its settings are in %s"
)
