package queue

// Dependency is a job for which another job waits.
type Dependency struct {
	ID  string `json:"-"`   // id that the user gave; used until the store has found the job
	Job int64  `json:"job"` // number of the job
	// Draft, if not 0, replaces Job. It is the number, from 1, of a draft in the same request.
	Draft int       `json:"draft,omitempty"`
	How   ParentEnd `json:"how"`
}

// MaxDependencies limits the dependencies of one job, and those of all jobs of a request together.
const MaxDependencies = 10_000

// ParentEnd says how the job that is waited for has to end.
type ParentEnd uint8

// The values of ParentEnd.
const (
	ParentCompleted ParentEnd = iota + 1
	ParentDead
	ParentEnded // the parent may be completed, dead or cancelled
)

// Met reports whether a job in state s has ended as required. State 0 means that the job was
// removed.
func (e ParentEnd) Met(s State) bool {
	return e == ParentCompleted && s == Completed || e == ParentDead && s == Dead || e == ParentEnded && s.Ended()
}

// Otherwise selects what happens to a job whose dependency does not end as required.
type Otherwise uint8

// The values of Otherwise.
const (
	OtherwiseCancel Otherwise = iota // the job is cancelled, and therefore also jobs that depend on it
	OtherwiseHold
	OtherwiseRun
)
