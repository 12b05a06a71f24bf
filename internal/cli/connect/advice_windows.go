package connect

// Messages contain these commands. The last constant is the message about a service that ends at
// logoff.
const (
	StartSystemCommand = "sc start queuectl"
	EndsAtLogoutText   = "your service and its jobs end when you log off, and the service does not start at boot"
	KeepRunningAdvice  = "to keep the service running, install it for all users, in an elevated prompt " +
		"(right-click, Run as " +
		"administrator): queuectl service install"
)
