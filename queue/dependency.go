package queue

// Dependency is a job that another one waits for.
type Dependency struct {
	ID    string    `json:"-"`               // that a person named, until the job is found
	Job   int64     `json:"job"`             // its seq
	Draft int       `json:"draft,omitempty"` // or the number, from 1, of another draft of the same request
	How   ParentEnd `json:"how"`
}

// MaxDependencies is how many jobs one may wait for, and those of one request together.
const MaxDependencies = 10_000

// ParentEnd is how a job has to end for those that wait for it.
type ParentEnd uint8

// The ends.
const (
	ParentCompleted ParentEnd = iota + 1
	ParentDead
	ParentEnded // completed, dead or cancelled
)

// Met reports whether a job that has ended so, or is gone if the state is 0, ended as asked.
func (e ParentEnd) Met(s State) bool {
	return e == ParentCompleted && s == Completed || e == ParentDead && s == Dead || e == ParentEnded && s.Ended()
}

// Otherwise is what becomes of a job when one that it waits for does not end as asked.
type Otherwise uint8

// The ways.
const (
	OtherwiseCancel Otherwise = iota // it, and so those that wait for it
	OtherwiseHold
	OtherwiseRun
)
