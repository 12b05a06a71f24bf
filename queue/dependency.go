package queue

// Dependency says that a job, the dependant, waits for another job, the parent. Condition says in which state the
// parent must end.
type Dependency struct {
	ParentID  string `json:"-"`   // id of the parent as the user gave it; used until the store has found the parent
	ParentSeq int64  `json:"job"` // number of the parent
	// ParentDraftNumber identifies the parent instead of ParentSeq if the parent is a new job in the same request. It is
	// the position of the parent in the request, from 1. If it is 0, ParentSeq is set.
	ParentDraftNumber int                 `json:"draft,omitempty"`
	Condition         DependencyCondition `json:"how"`
}

// MaxDependencies is the maximum number of dependencies of one job. It is also the maximum for all jobs in one request
// together.
const MaxDependencies = 10_000

// DependencyCondition says in which state the parent must end.
type DependencyCondition uint8

// These are the values of DependencyCondition.
const (
	ParentCompleted DependencyCondition = iota + 1
	ParentDead
	ParentEnded // the parent must be completed, dead or cancelled
)

// SatisfiedBy reports whether a parent in state s satisfies the condition. s is 0 if the parent was removed.
func (e DependencyCondition) SatisfiedBy(s State) bool {
	return e == ParentCompleted && s == Completed || e == ParentDead && s == Dead || e == ParentEnded && s.HasEnded()
}

// OnDependencyFailure says what happens to a job if a parent does not end as required.
type OnDependencyFailure uint8

// These are the values of OnDependencyFailure.
const (
	DependencyFailureCancel OnDependencyFailure = iota // the job is cancelled, which may also cancel its dependants
	DependencyFailureHold                              // the job is held
	DependencyFailureRun                               // the job runs nevertheless
)
