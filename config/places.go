package config

// Places are where a service keeps its things.
type Places struct {
	State  string // folder of the database
	Socket string
	File   string // of settings
}

// Names of files below a service's folders.
const (
	FileName = "queuectl.toml"
	LogName  = "queuectl.log"
	BothName = "both-services" // marks that the user knows of the machine's service too

	ServiceLogName = "service.log" // of the system's service on Windows, which keeps no journal
)

// Places of root's runners: their folder, and the file that says whose jobs they run.
const (
	RunnerDir    = "/var/lib/queuectl-runner"
	RunnerPolicy = "/etc/queuectl/runner.conf"
)

// Kind says whose service one is.
type Kind string

// Kinds of services.
const (
	SystemService    Kind = "system"    // the machine's service
	OwnService       Kind = "own"       // the service of one user, in that user's home
	DirectoryService Kind = "directory" // any other service, in a directory that was named
)

// Kind returns whose service uses these places.
func (p Places) Kind() Kind {
	if p.State == System().State {
		return SystemService
	}
	if user, err := User(); err == nil && p.State == user.State {
		return OwnService
	}
	return DirectoryService
}
