//go:build unix

package connect

// Messages contain these commands. The last constant is the message about a service that ends at
// logout.
const (
	StartSystemCommand = "systemctl start queuectl"
	EndsAtLogoutText   = "lingering is off, so your service and its jobs end when you log out, and the service " +
		"does not start at boot"
	KeepRunningAdvice = "keep the service running with: loginctl enable-linger"
)
