package config

// Places holds the paths that a service uses.
type Places struct {
	State  string // state directory, which contains the database
	Socket string
	File   string // settings file
}

// These are names of files in the directories of a service.
const (
	FileName = "queuectl.toml"
	LogName  = "queuectl.log"
	// BothName is the name of an empty file. The file exists if queuectl has already informed the user that
	// there is a system service in addition to the user's own service.
	BothName = "both-services"

	// ServiceLogName is the name of the log of the system service on Windows, which has no journal.
	ServiceLogName = "service.log"
)

// These are the paths of the runners that run as root: their directory, and the file that says whose
// jobs they may run.
const (
	RunnerDir    = "/var/lib/queuectl-runner"
	RunnerPolicy = "/etc/queuectl/runner.conf"
)

// Kind is the kind of a service.
type Kind string

// These are the kinds of services.
const (
	SystemService    Kind = "system"    // the service of the machine
	OwnService       Kind = "own"       // the service of one user, in that user's home directory
	DirectoryService Kind = "directory" // any other service, in a directory that the user has chosen
)

// Kind returns the kind of the service that uses these paths.
func (p Places) Kind() Kind {
	if p.State == SystemPlaces().State {
		return SystemService
	}
	if user, err := UserPlaces(); err == nil && p.State == user.State {
		return OwnService
	}
	return DirectoryService
}
