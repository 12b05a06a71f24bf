package store

import (
	"cmp"
	"maps"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// QueueRule is how the jobs of one queue start beside those of others. While no weight but 1 is
// set they go by rank over all queues. Else queues that have a job which could start share the
// starts by weight, and a queue that had none earns nothing by that.
type QueueRule struct {
	Weight      int    `json:"weight"`                // at least 1
	Concurrency int    `json:"concurrency,omitempty"` // jobs of it that may be leased at once, 0 is any number
	MaxPending  int64  `json:"max_pending,omitempty"` // jobs of it that may wait, 0 is any number
	Defaults    string `json:"defaults,omitempty"`    // JSON of what its jobs are enqueued with; the store only keeps it
	Paused      bool   `json:"paused,omitempty"`      // none of it is claimed
	// What is known of the pause: who began it, when, why, and when Promote ends it; 0 is never.
	PausedBy int          `json:"paused_by,omitempty"`
	PausedAt queue.Millis `json:"paused_at,omitempty"`
	Reason   string       `json:"reason,omitempty"`
	Until    queue.Millis `json:"until,omitempty"`
	Keep     Retention    `json:"keep,omitzero"`
	Frozen   bool         `json:"frozen,omitempty"` // what ran then was paused too; the store only keeps it
}

// Retention is how long a queue's completed and cancelled jobs are kept; what is 0 is as the settings say of
// all.
type Retention struct {
	Age     time.Duration `json:"age,omitempty"`      // Forever is for ever
	MaxJobs int64         `json:"max_jobs,omitempty"` // the newest
	Output  int64         `json:"output,omitempty"`   // bytes of their outputs; the oldest go first
}

// Forever is an age that nothing comes to.
const Forever = -1

// Ended are jobs that have ended in these states before an instant.
type Ended struct {
	States []queue.State
	Before queue.Millis
	// Of limits them to one queue's jobs that ended while it had its own retention; an empty name limits them to
	// the jobs of all queues that ended while their queue had none. Nil does not limit them.
	Of *string
}

// KeepingQueue is a queue with jobs that ended while it had its own retention.
type KeepingQueue struct {
	Name    string
	Jobs    int64 // of BoundedStates
	Outputs int64 // bytes of their outputs
}

// Resumed is the rule without its pause.
func (r QueueRule) Resumed() QueueRule {
	r.Paused, r.PausedBy, r.PausedAt, r.Reason, r.Until, r.Frozen = false, 0, 0, "", 0, false
	return r
}

// Plain is the rule of a queue that was not given any.
var Plain = QueueRule{Weight: 1}

// QueueState is a queue as it is now.
type QueueState struct {
	Name    string
	Rule    QueueRule
	Waiting int64 // jobs
	Leased  int
	// Oldest is since when the first job waits of those that could start, of the first lanes; 0 if there
	// is none.
	Oldest queue.Millis
}

// MaxQueues is how many queues without a rule one user may have begun that have jobs which have not
// ended.
const MaxQueues = 1000

// Link is a job that another one waits for, or waited for.
type Link struct {
	Seq   int64       // of the other job
	ID    string      // "" if it was removed
	State queue.State // 0 if it was removed
	How   queue.ParentEnd
	Met   Met
}

// Parent is a job that another one waited for, as it is now.
type Parent struct {
	ID       string
	UID      int
	State    queue.State
	ExitCode int64  // -1 is none
	Result   []byte // JSON that its last attempt has left, nil for none
}

// Met is what has become of a dependency.
type Met uint8

// What may.
const (
	Open   Met = iota // its parent has not ended
	Well              // it ended as asked, or that did not matter
	Failed            // it did not
)

// Obstacle is a gate without room for a job, or its queue.
type Obstacle struct {
	Gate   queue.GateKind // 0 is the queue
	Key    string         // of the gate; the name of the queue
	Used   int
	Most   int
	Need   int          // what the job takes of it
	Opens  queue.Millis // when a start will have left a rate's period; 0 if that is not known
	Paused bool         // the queue is
	// Barred says that there would be room, but a job of the queue that ranks before this one waits for
	// more of it.
	Barred bool
}

// GateState is a lock, a rate or a resource as it is now.
type GateState struct {
	queue.Demand       // its rule; of a resource N is how many units there are
	UID          int   // whose it is, queue.Everybody for everybody's
	Set          bool  // SetGate has set it
	Used         int   // jobs that hold it, starts in the period, or units in use
	Jobs         int64 // that name a lock or a rate and have not ended
}

// Follows is an order of gates: everybody's first.
func (g *GateState) Follows(h *GateState) bool {
	return cmp.Or(cmp.Compare(g.UID, h.UID), cmp.Compare(g.Kind, h.Kind), cmp.Compare(g.Key, h.Key)) > 0
}

// MaxGates is how many keys of everybody's may have a rule, and how many gates Gates lists at once.
const MaxGates = 1000

// MaxAfter is how many of the jobs that a job waits for stand in its After as it is read.
const MaxAfter = 8

// Node is what jobs may ask of a machine that runs them.
// See docs/decisions/0017.
type Node struct {
	ID        int64 // as the store numbers them, which sets it; 0 of a store that has one alone
	Name      string
	Labels    map[string]string
	Resources map[string]int // units of each; of one that is not named there are none
	Strangers map[int]bool   // uids whose jobs it does not claim, since it does not have their accounts
}

// Is reports whether a job may run on the node that asks for one of this name, or with a label of
// this value, label=value.
func (n *Node) Is(on string) bool {
	label, value, labelled := strings.Cut(on, "=")
	if !labelled {
		return on == n.Name
	}
	own, found := n.Labels[label]
	return found && own == value
}

// Clone is a copy that shares nothing.
func (n *Node) Clone() Node {
	return Node{n.ID, n.Name, maps.Clone(n.Labels), maps.Clone(n.Resources), maps.Clone(n.Strangers)}
}
