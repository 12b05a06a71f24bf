package config

// Paths holds the paths that a service uses.
type Paths struct {
	StateDir     string // state directory, which contains the database
	SocketPath   string // path of the control socket; on Windows, name of the pipe
	SettingsFile string
}

// These are names of files in the directories of a service.
const (
	SettingsFileName = "queuectl.toml"
	LogFileName      = "queuectl.log"
	// BothServicesMarkerName is the name of an empty file that records that queuectl has shown a message to the user: the
	// machine has a system service in addition to the user's own service.
	BothServicesMarkerName = "both-services"

	// WindowsServiceLogName is the file name of the log of the system service on Windows. On Linux, the log is in the
	// journal.
	WindowsServiceLogName = "service.log"
)

// RootRunnerDir is the directory of the runners that run as root. The file RootRunnerPolicyFile lists the users whose
// jobs these runners may run.
const (
	RootRunnerDir        = "/var/lib/queuectl-runner"
	RootRunnerPolicyFile = "/etc/queuectl/runner.conf"
)

// ServiceKind says for which users a service is and where its files are.
type ServiceKind string

// These are the kinds of services.
const (
	SystemService    ServiceKind = "system"    // the service of the machine
	UserService      ServiceKind = "own"       // the service of one user, with its files in that user's home directory
	DirectoryService ServiceKind = "directory" // any other service, whose directory the user has chosen
)

// ServiceKind returns the kind of the service that uses these paths.
func (p Paths) ServiceKind() ServiceKind {
	if p.StateDir == SystemPaths().StateDir {
		return SystemService
	}
	if user, err := UserPaths(); err == nil && p.StateDir == user.StateDir {
		return UserService
	}
	return DirectoryService
}
