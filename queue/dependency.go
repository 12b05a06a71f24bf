package queue

// Dependency is a job that another job waits for, and how it must end. In other comments, the two are called
// parent and dependant.
type Dependency struct {
	ID     string `json:"-"`   // id that the user gave; used until the store has found the job
	JobSeq int64  `json:"job"` // number of the job
	// DraftNumber is used instead of JobSeq if it is not 0. It is the number, from 1, of another new job in the
	// same request.
	DraftNumber int                 `json:"draft,omitempty"`
	Condition   DependencyCondition `json:"how"`
}

// MaxDependencies is the maximum number of dependencies of one job, and of all jobs in a request together.
const MaxDependencies = 10_000

// DependencyCondition says how the parent must end.
type DependencyCondition uint8

// These are the values of DependencyCondition.
const (
	ParentCompleted DependencyCondition = iota + 1
	ParentDead
	ParentEnded // the parent may be completed, dead or cancelled
)

// SatisfiedBy reports whether a parent in state s has ended as required. State 0 means that the parent was
// removed.
func (e DependencyCondition) SatisfiedBy(s State) bool {
	return e == ParentCompleted && s == Completed || e == ParentDead && s == Dead || e == ParentEnded && s.Ended()
}

// OnDependencyFailure says what happens to a job if a parent does not end as required.
type OnDependencyFailure uint8

// These are the values of OnDependencyFailure.
const (
	DependencyFailureCancel OnDependencyFailure = iota // the job is cancelled, which may also cancel its dependants
	DependencyFailureHold                              // the job is held
	DependencyFailureRun                               // the job runs nevertheless
)
