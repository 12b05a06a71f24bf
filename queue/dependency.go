package queue

// Dependency is a job for which another job waits.
type Dependency struct {
	ID     string `json:"-"`   // id that the user gave; used until the store has found the job
	JobSeq int64  `json:"job"` // number of the job
	// DraftNumber, if not 0, replaces JobSeq. It is the number, from 1, of a draft in the same request.
	DraftNumber int                 `json:"draft,omitempty"`
	Condition   DependencyCondition `json:"how"`
}

// MaxDependencies limits the dependencies of one job, and those of all jobs of a request together.
const MaxDependencies = 10_000

// DependencyCondition is the outcome that a dependency requires of the parent.
type DependencyCondition uint8

// The values of DependencyCondition.
const (
	ParentCompleted DependencyCondition = iota + 1
	ParentDead
	ParentEnded // the parent may be completed, dead or cancelled
)

// SatisfiedBy reports whether a job in state s has ended as required. State 0 means that the job was
// removed.
func (e DependencyCondition) SatisfiedBy(s State) bool {
	return e == ParentCompleted && s == Completed || e == ParentDead && s == Dead || e == ParentEnded && s.Ended()
}

// OnDependencyFailure selects what happens to a job whose dependency does not end as required.
type OnDependencyFailure uint8

// The values of OnDependencyFailure.
const (
	DependencyFailureCancel OnDependencyFailure = iota // the job is cancelled, and therefore also jobs that depend on it
	DependencyFailureHold
	DependencyFailureRun
)
