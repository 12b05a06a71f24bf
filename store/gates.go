package store

import (
	"cmp"
	"maps"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// QueueRule says how jobs of a queue start relative to those of other queues. While all weights are 1, jobs
// of all queues start in order of rank. If the weights differ, the queues share the starts in proportion to
// their weights. Only queues with a job that could start take part. A queue without one does not save up
// starts for later.
type QueueRule struct {
	Weight      int   `json:"weight"`                // share of the starts, at least 1
	Concurrency int   `json:"concurrency,omitempty"` // limit of the queue's leased jobs; 0 means unlimited
	MaxPending  int64 `json:"max_pending,omitempty"` // limit of the queue's waiting jobs; 0 means unlimited
	// Defaults contains the default fields of its jobs as JSON. The store does not interpret them.
	Defaults string `json:"defaults,omitempty"`
	Paused   bool   `json:"paused,omitempty"` // jobs of the queue are not claimed
	// PausedBy is the uid of the user who paused the queue, PausedAt the time, and Reason the user's reason.
	// Promote ends the pause at Until; 0 means never.
	PausedBy int          `json:"paused_by,omitempty"`
	PausedAt queue.Millis `json:"paused_at,omitempty"`
	Reason   string       `json:"reason,omitempty"`
	Until    queue.Millis `json:"until,omitempty"`
	Keep     Retention    `json:"keep,omitzero"`
	// Frozen reports that the queue's running jobs were paused too. The store does not interpret it.
	Frozen bool `json:"frozen,omitempty"`
}

// Retention says how long a queue's completed and cancelled jobs are kept. For a field that is 0, the general
// settings apply.
type Retention struct {
	Age     time.Duration `json:"age,omitempty"`      // longest time since a job's end, or Forever
	MaxJobs int64         `json:"max_jobs,omitempty"` // number of jobs kept; the oldest are removed first
	// Output is how many bytes of outputs are kept. The oldest outputs are removed first.
	Output int64 `json:"output,omitempty"`
}

// Forever as Retention.Age means that jobs are kept without a time limit.
const Forever = -1

// Ended selects jobs that ended in one of States before an instant.
type Ended struct {
	States []queue.State
	Before queue.Millis
	// Of selects the jobs of one queue that ended while it had its own retention. An empty name selects the
	// jobs of all queues that ended while their queue had no separate retention. Nil selects all jobs.
	Of *string
}

// KeepingQueue is a queue with jobs that ended while it had its own retention.
type KeepingQueue struct {
	Name    string
	Jobs    int64 // number of these jobs in BoundedStates
	Outputs int64 // bytes of the outputs of these jobs
}

// Resumed returns the rule without its pause.
func (r QueueRule) Resumed() QueueRule {
	r.Paused, r.PausedBy, r.PausedAt, r.Reason, r.Until, r.Frozen = false, 0, 0, "", 0, false
	return r
}

// Plain is the rule of a queue without a stored rule.
var Plain = QueueRule{Weight: 1}

// QueueState is the current state of a queue.
type QueueState struct {
	Name    string
	Rule    QueueRule
	Waiting int64 // number of waiting jobs
	Leased  int
	// Oldest is the time since which the oldest job that could start has waited, or 0 if none could start.
	// Only the first jobs of the best lanes are considered.
	Oldest queue.Millis
}

// MaxQueues limits the queues without a rule that one user may have begun and that have unfinished jobs.
const MaxQueues = 1000

// Link is a job at the other end of a dependency, past or present.
type Link struct {
	Seq   int64       // number of the job at the other end
	ID    string      // "" if the job at the other end was removed
	State queue.State // 0 if the job at the other end was removed
	How   queue.ParentEnd
	Met   Met
}

// Parent is the current state of a job that another job has waited for.
type Parent struct {
	ID       string
	UID      int
	State    queue.State
	ExitCode int64  // -1 means none
	Result   []byte // JSON result of the last attempt, nil if none
}

// Met is the status of a dependency.
type Met uint8

// The values of Met.
const (
	Open   Met = iota // the parent has not ended
	Well              // the parent ended as required, or the child runs whatever happens to the parent
	Failed            // the parent did not end as required
)

// Obstacle is the reason why a job cannot start: its queue, or a gate without room.
type Obstacle struct {
	Gate   queue.GateKind // 0 means the queue
	Key    string         // key of the gate, or name of the queue
	Used   int
	Most   int
	Need   int          // units that the job needs
	Opens  queue.Millis // for a rate: when the oldest start leaves the period, which makes room; 0 if unknown
	Paused bool         // the queue is paused
	// Barred reports that the resource has enough free units, but they are kept for another job. That job
	// ranks first in the same queue and needs more units than are free.
	Barred bool
}

// GateState is the current state of a lock, rate or resource.
type GateState struct {
	queue.Demand       // the rule of the gate; for a resource, N is the number of its units
	UID          int   // owner of the key; queue.Everybody for a shared key
	Set          bool  // true if SetGate has stored the rule
	Used         int   // number of jobs that hold the lock, of starts in the period, or of units in use
	Jobs         int64 // number of unfinished jobs that name the lock or rate
}

// Follows reports whether g comes after h in the order of gates: shared keys come first.
func (g *GateState) Follows(h *GateState) bool {
	return cmp.Or(cmp.Compare(g.UID, h.UID), cmp.Compare(g.Kind, h.Kind), cmp.Compare(g.Key, h.Key)) > 0
}

// MaxGates limits the shared keys that may have a rule, and the gates that one call of Gates lists.
const MaxGates = 1000

// MaxAfter limits the parents that a job read from the store has in After.
const MaxAfter = 8

// Node describes the machine on which jobs run, as far as jobs may require it.
// See docs/decisions/0017.
type Node struct {
	ID        int64 // number that the store assigns to the node; 0 if only one node uses the store
	Name      string
	Labels    map[string]string
	Resources map[string]int // number of units of each resource; the node has none of other resources
	Strangers map[int]bool   // uids whose jobs the node does not claim, because it lacks their accounts
}

// Is reports whether a job that requires on may run on the node. on is the node's name, or label=value.
func (n *Node) Is(on string) bool {
	label, value, labelled := strings.Cut(on, "=")
	if !labelled {
		return on == n.Name
	}
	own, found := n.Labels[label]
	return found && own == value
}

// Clone returns a deep copy.
func (n *Node) Clone() Node {
	return Node{n.ID, n.Name, maps.Clone(n.Labels), maps.Clone(n.Resources), maps.Clone(n.Strangers)}
}
