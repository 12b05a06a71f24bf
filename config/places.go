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

	ServiceLogName = "service.log" // of the system's service on Windows, which keeps no journal
)

// Places of root's runners: their folder, and the file that says whose jobs they run.
const (
	RunnerDir    = "/var/lib/queuectl-runner"
	RunnerPolicy = "/etc/queuectl/runner.conf"
)
