package control

import "context"

// AdminAPI contains the methods for administrators.
type AdminAPI interface {
	// RemoveOldJobs removes old ended jobs. It calls reportProgress from time to time.
	RemoveOldJobs(ctx context.Context, p CleanupParams, reportProgress func(RemovalCount) error) (RemovalCount, error)
	// StreamBackup sends a copy of the queue's database in pieces. The copy contains every change that the service
	// acknowledged before the call.
	StreamBackup(ctx context.Context, p NoParams, handleBackupPiece func(BackupPiece) error) (BackupSummary, error)
	// RunDoctor checks the queue and its environment for problems. It calls reportProgress from time to time.
	RunDoctor(ctx context.Context, p DoctorParams, reportProgress func(DoctorProgress) error) (Diagnosis, error)
	// EnqueueHookTest enqueues a job that executes a hook or webhook in the settings, so that users can test it. A
	// hook is a command and a webhook an HTTP request, executed after an event of a job. For the test, the
	// event is invented.
	EnqueueHookTest(ctx context.Context, p HookTestParams) (EnqueueResult, error)
	// StartOrEndDrain turns a drain on or off. During a drain no jobs start, even after a restart. StartOrEndDrain returns
	// once no job can start any more. If a job can still start after a time limit, StartOrEndDrain returns an error that
	// names this job or its node; the drain then stays on.
	StartOrEndDrain(ctx context.Context, p DrainParams) (DrainResult, error)
	// StopService stops the service. It returns when the service begins to stop.
	StopService(ctx context.Context, p ServiceStopParams) (ServiceStopResult, error)
}

// CleanupParams holds the parameters of the method cleanup. The method removes jobs in the given states (default:
// completed and cancelled) that ended at least MinAgeDays days ago (nil means 7). It always keeps the newest
// KeepNewestJobs jobs in these states.
type CleanupParams struct {
	MinAgeDays     *float64 `json:"days,omitempty" rule:"days"`
	States         TextList `json:"state,omitempty" rule:"endedStates"`
	KeepNewestJobs int64    `json:"keep,omitempty" rule:"jobCount"`
	DryRun         bool     `json:"dry_run,omitempty"` // count the jobs without removing them
}

// BackupPiece is a piece of a backup. While the service copies the database, before the first piece with Content, it
// sends values without Content, which only report the progress of the copy.
type BackupPiece struct {
	Content     []byte `json:"base64,omitempty"`
	CopiedBytes int64  `json:"done"` // number of bytes copied until now
	TotalBytes  int64  `json:"of"`   // estimated total number of bytes
}

// BackupSummary is the response to StreamBackup: the size and the hash of the whole backup.
type BackupSummary struct {
	TotalBytes int64  `json:"bytes"`
	SHA256     string `json:"sha256"` // SHA-256 of the backup, in hexadecimal
}

// DoctorParams holds the parameters of the method doctor, which checks the queue and its environment. With
// VerifyDatabase, the method also reads the whole database. It then checks whether the database is damaged and whether
// it agrees with the output files.
type DoctorParams struct {
	VerifyDatabase bool `json:"verify,omitempty"`
}

// DoctorProgress is the progress of the method doctor, measured in bytes.
type DoctorProgress struct {
	CheckedBytes int64 `json:"done"` // number of bytes checked until now
	TotalBytes   int64 `json:"of"`   // estimated total number of bytes
}

// Diagnosis lists the results of all checks. WorstLevel is the worst level among the results.
type Diagnosis struct {
	WorstLevel string    `json:"level"` // ok, warning or failure
	Findings   []Finding `json:"findings"`
}

// Finding is the result of one check.
type Finding struct {
	CheckName string `json:"check"`
	Level     string `json:"level"` // ok, warning or failure
	Message   string `json:"message"`
	Advice    string `json:"next,omitempty"` // what the user can do about the problem
}

// HookTestParams holds the parameters of the method hook.test: the name of a webhook or hook in the settings, such as
// on_dead.
type HookTestParams struct {
	HookName string `json:"name" rule:"nonEmpty,required"`
}

// DrainParams holds the parameters of the method drain, which starts a drain or, with EndDrain, ends it. With
// WaitUntilIdle, the method returns only when no job is running.
type DrainParams struct {
	EndDrain      bool `json:"off,omitempty"`
	WaitUntilIdle bool `json:"wait,omitempty"`
}

// DrainResult is the response to StartOrEndDrain.
type DrainResult struct {
	Draining    bool `json:"draining"`
	RunningJobs int  `json:"running"` // number of jobs that are still running
}

// ServiceStopParams holds the parameters of the method service.stop, which stops the service as SIGTERM does. With
// KeepJobs, the jobs continue to run.
type ServiceStopParams struct {
	KeepJobs bool `json:"keep_jobs,omitempty"`
}

// ServiceStopResult is the response to StopService. The service sends it when it begins to stop.
type ServiceStopResult struct {
	ServicePID int    `json:"pid"`
	StateDir   string `json:"folder"` // state directory; the service releases its lock when it ends
	// RunnerDir is the directory of the runners that run as root; "" if the service uses no such runners.
	RunnerDir string `json:"runner_dir,omitempty"`
}
