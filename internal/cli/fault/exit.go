package fault

// These are the exit codes of run and wait for outcomes that have no exit code of the job.
const (
	ExitTimeout  = 124
	ExitFailure  = 125 // queuectl itself has failed
	ExitDetached = 130
)
