package store

import (
	"context"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Cluster is a store that the services of several machines share. Each is a node, which has a lease of its own:
// what it has leased is its own for as long as that lasts, by the store's clock, and others' after that. What it
// writes once others have taken over fails the store.
type Cluster interface {
	// Database tells the database from any other one, also of another server. A standby that is promoted has that of its primary.
	Database() string
	// HasOthers reports whether there was another node whose lease was not over, as of the last transaction.
	HasOthers() bool
	// Lease is how long a node may be silent.
	Lease() time.Duration
	// Extend prolongs the node's lease: it lasts at least for Lease from when Extend was called. The load is told to
	// whoever asks for the nodes.
	Extend(ctx context.Context, load Load) (Membership, error)
	// TakeOver gives this node, each with another fence, up to MaxTakeOver leases of those whose own are over. What
	// is left of them is to be settled as lost.
	TakeOver(ctx context.Context) ([]LostLease, error)
	// Nodes lists up to MaxNodes nodes after a name, by name.
	Nodes(ctx context.Context, after string) ([]NodeState, error)
	// DrainNode has a node claim nothing any more, or again. RemoveNode forgets one whose service does not run.
	DrainNode(ctx context.Context, name string, on bool) error
	RemoveNode(ctx context.Context, name string) error
	// Drained reports whether this node is to claim nothing.
	Drained(ctx context.Context) (bool, error)
	// Holder is the other node that has a job leased, 0 if none has.
	Holder(ctx context.Context, seq int64) (int64, error)
	// NodesOf names the nodes that had jobs leased last, by the jobs' numbers.
	NodesOf(ctx context.Context, seqs []int64) (map[int64]string, error)
	// Ask asks another node for something, and waits for its answer until ctx ends. Asked lists
	// up to limit that this node is asked and has not been told of yet, each once, and Answer answers one. What is slow, and may
	// be asked often, stands apart, so that nothing else waits for it. Wanted are those whose askers wait still.
	Ask(ctx context.Context, node int64, ask []byte, slow bool) (answer []byte, err error)
	Asked(ctx context.Context, slow bool, limit int) ([]Asked, error)
	Wanted(ctx context.Context) (map[int64]bool, error)
	Answer(ctx context.Context, n int64, answer []byte) error
	// Hints hints, until the store is closed, that the node may be asked something, and Changes that another node has changed
	// anything, like settings.
	Hints() <-chan struct{}
	Changes() <-chan struct{}
}

// Membership is what a node learns as it prolongs its lease.
type Membership struct {
	Drained bool
	Orphans bool // there is something to take over
}

// LostLease is a lease of a node whose own is over. Its job has the new fence; Was is the fence that it had, and
// From the node.
type LostLease struct {
	Job     queue.Job
	Running bool // known to have started
	Was     int64
	From    string
}

// NodeState is a node as it is now.
type NodeState struct {
	Node
	This    bool // whose store was asked
	Alive   bool // its lease lasts
	Left    bool // it does not, for its service was stopped
	Drained bool
	Load        // as of when it was heard
	Running int // jobs
	Version string
	Joined  queue.Millis
	Heard   queue.Millis // about when it has prolonged its lease
}

// Load is how much a node does.
type Load struct {
	Workers int            `json:"workers"`
	Ended   int            `json:"ended,omitempty"`    // attempts in the last minute
	EndedOf map[string]int `json:"ended_of,omitempty"` // the same of the MaxLoadQueues queues in which the most have
}

// MaxLoadQueues is how many queues a node names in its load: what it tells stays below 3 KiB.
const MaxLoadQueues = 32

// Asked is what another node asks.
type Asked struct {
	N   int64
	Ask []byte
}

// MaxTakeOver is how many leases a node takes over at once.
const MaxTakeOver = 500

// MaxNodes is how many nodes are listed at once.
const MaxNodes = 250

// Limits of what nodes ask each other.
const (
	MaxAsk    = 64 << 10  // bytes
	MaxAnswer = 512 << 10 // bytes
)
